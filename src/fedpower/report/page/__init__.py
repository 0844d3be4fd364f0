"""``report.html``: a result as one page that needs nothing but itself, made from its folder alone."""

import base64
import functools
import hashlib
from importlib.resources import files

from fedpower.report.findings import Findings
from fedpower.report.page.components import components_section, loadings_section
from fedpower.report.page.markup import Markup, element
from fedpower.report.page.privacy import privacy_section
from fedpower.report.page.run import provenance_section, rounds_section, silos_section
from fedpower.report.page.summary import heading, summary, title

__all__ = ["page"]

CONTENTS = {
    "privacy": "Privacy",
    "components": "Components",
    "loadings": "Loadings",
    "rounds": "Rounds",
    "silos": "Silos",
    "provenance": "Where this comes from",
}


def page(result: Findings) -> str:
    """Return the report of a result: the same bytes for the same result, wherever and whenever made.

    Style and script are named by their hashes in the page's own policy, so that a browser loads
    nothing from anywhere and runs nothing else, whatever a column may be called.
    """
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    head = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element(
            "meta", name_="generator", content=f"fedpower {result.run['versions']['fedpower']}"
        ),
        element("title", f"{title(result)} – fedpower"),
        element("style", style),
    )
    links = (element("li", element("a", label, href=f"#{key}")) for key, label in CONTENTS.items())
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        heading(result),
        element("nav", element("ul", links), aria_label="Contents"),
        element(
            "main",
            summary(result),
            privacy_section(result.run),
            components_section(result),
            loadings_section(result),
            rounds_section(result.run),
            silos_section(result.run),
            provenance_section(result.run),
            id="main",
            tabindex="-1",
        ),
        element(
            "footer",
            element("p", "Made by fedpower from what was released, and from nothing else."),
        ),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', head, body, lang='en')}\n"


@functools.cache
def _asset(name: str) -> Markup:
    return Markup(files(__name__).joinpath(name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
