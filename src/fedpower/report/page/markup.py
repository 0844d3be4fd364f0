"""HTML and SVG as text in which everything is escaped that is not markup already."""

import html
import re
from collections.abc import Iterable
from typing import Any

VOID = frozenset({"meta", "link", "br"})
"""Elements that have no content and no end."""

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
REPLACEMENT = "\ufffd"


class Markup(str):
    """Text that is HTML already; any other text is escaped when it becomes content."""

    __slots__ = ()


def escaped(content: Any) -> Markup:
    """Return content as HTML: markup as it is, an iterable piece by piece, other things as text."""
    if isinstance(content, Markup):
        return content
    if content is None:
        return Markup("")
    if isinstance(content, Iterable) and not isinstance(content, str):
        return Markup("".join(escaped(each) for each in content))
    return Markup(html.escape(_UNPRINTABLE.sub(REPLACEMENT, str(content)), quote=True))


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """Return an element with escaped attributes and content.

    Parameters
    ----------
    name
        What the element is called.
    content
        Markup, text, numbers, or iterables of these.
    attributes
        ``class_`` stands for ``class`` and ``aria_label`` for ``aria-label``; None and False leave an
        attribute out, True gives it no value.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{escaped(content)}</{name}>")


def name(text: str) -> Markup:
    """Return somebody's name for something: whichever way it is written, it turns nothing around it."""
    return element("bdi", text)
