"""How the documentation site is built: ``make docs``, and any warning ends it."""

import sys
from pathlib import Path

import fedpower

sys.path.insert(0, str(Path(__file__).parent / "site"))

project = "fedpower"
author = "The fedpower authors"
copyright = "The fedpower authors, Apache-2.0"
version = release = fedpower.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_click",
    "sphinx_copybutton",
    "mathml",  # this and the next two are in docs/site
    "outside",
    "plain_docstrings",
]
exclude_patterns = ["site"]

# Markdown: what a forge renders too, and headings that can be linked to.
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Reference from the code itself.
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # scikit-learn adds these, with references to its own pages
    "exclude-members": "set_fit_request, set_score_request, set_predict_request",
}
autodoc_typehints = "none"  # NumPy docstrings say the types in words
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
default_role = "code"
smartquotes = False  # an option is two hyphens, and quotes are as they are written

html_theme = "furo"
html_title = f"fedpower {version}"
html_static_path = ["site/static"]
html_css_files = ["wide.css"]
html_math_renderer = "mathml"
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}

# A console block is copied as commands: no prompt, no output, continued lines whole.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_only_copy_prompt_lines = True
