"""The frame of every page: one file that needs nothing but itself."""

import base64
import functools
import hashlib
from collections.abc import Iterable, Mapping
from importlib.resources import files

from fedpower.report.page.markup import Markup, element


def document(
    title: str, head: Markup, contents: Mapping[str, str], sections: Iterable[Markup], *, version: str
) -> str:
    """Return a page of sections, the same bytes for the same sections."""
    style, script = _asset("style.css"), _asset("script.js")
    policy = (
        f"default-src 'none'; style-src '{_hash(style)}'; script-src '{_hash(script)}'; "
        "base-uri 'none'; form-action 'none'"
    )
    top = element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name_="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name_="color-scheme", content="light dark"),
        element("meta", name_="generator", content=f"fedpower {version}"),
        element("title", f"{title} – fedpower"),
        element("style", style),
    )
    links = (element("li", element("a", label, href=f"#{key}")) for key, label in contents.items())
    body = element(
        "body",
        element("a", "Skip to the content", href="#main", class_="skip"),
        head,
        element("nav", element("ul", links), aria_label="Contents"),
        element("main", sections, id="main", tabindex="-1"),
        element("footer", element("p", "Made by fedpower from what was released, and from nothing else.")),
        element("script", script),
    )
    return f"<!doctype html>\n{element('html', top, body, lang='en')}\n"


@functools.cache
def _asset(name: str) -> Markup:
    return Markup(files(__package__).joinpath(name).read_text(encoding="utf-8"))


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode()).digest()
    return f"sha256-{base64.b64encode(digest).decode()}"
