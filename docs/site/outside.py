"""Links from ``docs`` to files outside it, which the site shows as pages of its own."""

from typing import Any

from sphinx.application import Sphinx

PAGES = {
    "benchmarks/README.md": "/contributor/benchmarks.md",
    "CONTRIBUTING.md": "/contributor/contributing.md",
    "CHANGELOG.md": "/contributor/changelog.md",
}
"""By a file's path in the repository: the page that includes it."""


def setup(app: Sphinx) -> dict[str, Any]:
    """Rewrite such links as each page is read; in Markdown on a forge they stay as they are."""
    app.connect("source-read", _rewrite)
    return {"parallel_read_safe": True, "parallel_write_safe": True}


def _rewrite(app: Sphinx, name: str, content: list[str]) -> None:
    del app
    up = "../" * (name.count("/") + 1)
    for path, page in PAGES.items():
        content[0] = content[0].replace(f"]({up}{path}", f"]({page}")
