"""How the documentation site is built: ``make docs``, and any warning ends it."""

import shutil
import sys
from pathlib import Path

import fedpower

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE / "site"))
shutil.rmtree(
    HERE / "reference" / "api", ignore_errors=True
)  # autosummary keeps pages of objects that are gone

project = "fedpower"
author = "The fedpower authors"
copyright = "The fedpower authors, Apache-2.0"
version = release = fedpower.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_design",
    "commands",  # this and the next three are in docs/site
    "mathml",
    "outside",
    "plain_docstrings",
]
exclude_patterns = ["site"]
suppress_warnings = ["misc.highlighting_failure"]  # what a command prints need not be shell
templates_path = ["site/templates"]

# Markdown: what a forge renders too, headings that can be linked to, and `:::` for layout.
myst_enable_extensions = ["attrs_block", "colon_fence", "dollarmath"]
myst_heading_anchors = 4
myst_links_external_new_tab = False

# Reference from the code itself: a page per object, written into docs/reference/api.
autodoc_default_options = {
    "members": True,
    "member-order": "bysource",
    # scikit-learn adds these, with references to its own pages
    "exclude-members": "set_fit_request, set_score_request, set_predict_request, set_transform_request, "
    "set_inverse_transform_request",
}
autodoc_typehints = "none"  # NumPy docstrings say the types in words
autodoc_preserve_defaults = True
napoleon_google_docstring = False
napoleon_use_rtype = False
napoleon_use_param = False
napoleon_use_ivar = True
napoleon_attr_annotations = False
toc_object_entries_show_parents = "hide"
python_maximum_signature_line_length = 70
python_trailing_comma_in_multi_line_signatures = False
default_role = "code"
smartquotes = False  # an option is two hyphens, and quotes are as they are written

html_theme = "pydata_sphinx_theme"
html_title = f"fedpower {version}"
html_static_path = ["site/static"]
html_css_files = ["site.css"]
html_favicon = "site/static/logo.svg"
html_math_renderer = "mathml"
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
html_sidebars = {"**": ["sidebar-nav-bs"], "index": []}
html_context = {"default_mode": "auto"}
html_theme_options = {
    "logo": {"text": "fedpower", "image_light": "_static/logo.svg", "image_dark": "_static/logo.svg"},
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "header_links_before_dropdown": 6,
    "navigation_depth": 3,
    "show_toc_level": 2,
    "search_bar_text": "Search",
    "navigation_with_keys": True,
    "secondary_sidebar_items": {"**": ["page-toc"], "index": []},
    "back_to_top_button": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}

# A console block is copied as commands: no prompt, no output, continued lines whole.
copybutton_prompt_text = "$ "
copybutton_line_continuation_character = "\\"
copybutton_only_copy_prompt_lines = True
