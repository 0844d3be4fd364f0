"""Tables that scroll in a box of their own, and boxes that pair labels with a picture."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from fedpower.report.page.markup import Markup, element


@dataclass(frozen=True, slots=True)
class Figure:
    """A number in a table: how it reads, and what it is sorted by."""

    text: str
    value: float | None = None


def figures(texts: Iterable[str], values: Iterable[float | None]) -> list[Figure]:
    """Return a table's numbers from how they read and what they are."""
    return [Figure(text, value) for text, value in zip(texts, values, strict=True)]


def table(
    caption: str, headings: Sequence[str], rows: Iterable[Sequence[Any]], *, sortable: bool = False
) -> Markup:
    """Return a table; the first cell of a row is its heading, and columns of figures are flush right.

    Parameters
    ----------
    caption
        What the table holds, for those who do not see where it stands.
    headings
        One per column.
    rows
        Cells: text, markup or `Figure`.
    sortable
        Whether its headings become buttons that sort it; then every cell of a row should be short.
    """
    body = [list(row) for row in rows]
    numeric = [
        any(isinstance(row[place], Figure) for row in body) for place in range(len(headings))
    ]
    top = element(
        "tr",
        (
            element("th", heading, scope="col", class_="number" if flush else None)
            for heading, flush in zip(headings, numeric, strict=True)
        ),
    )
    return element(
        "div",
        element(
            "table",
            element("caption", caption),
            element("thead", top),
            element("tbody", (element("tr", _cells(row, numeric)) for row in body)),
            class_="sortable" if sortable else None,
        ),
        class_="scroll",
        role="region",
        aria_label=caption,
        tabindex="0",
    )


def facts(pairs: Iterable[tuple[Any, Any]], *, kind: str = "facts") -> Markup:
    """Return named facts as a list; those that are None are left out."""
    return element(
        "dl",
        (
            element("div", element("dt", term), element("dd", told))
            for term, told in pairs
            if told is not None
        ),
        class_=kind,
    )


def beside(labels: Sequence[Any], picture: Markup, values: Sequence[str], *, kind: str) -> Markup:
    """Return a picture of rows between their labels and their values.

    Labels and values are for the eye: the picture has a description, and a table has the numbers.
    """
    return element(
        "div",
        _stack(labels, "labels"),
        element("div", picture, class_="rows-picture"),
        _stack(values, "values"),
        class_=f"rows {kind}",
    )


def figure(picture: Markup, caption: Any) -> Markup:
    """Return a picture with a line under it that says how to read it."""
    return element("figure", picture, element("figcaption", caption))


def folded(summary: Any, *content: Any, is_open: bool = False, kind: str | None = None) -> Markup:
    """Return content that opens and closes under a line."""
    return element("details", element("summary", summary), content, open=is_open, class_=kind)


def section(anchor: str, title: str, *content: Any) -> Markup:
    """Return a part of the page with its heading."""
    heading = element("h2", title, id=f"{anchor}-title")
    return element("section", heading, content, id=anchor, aria_labelledby=f"{anchor}-title")


def paragraphs(*sentences: Any) -> list[Markup]:
    """Return a paragraph of each."""
    return [element("p", sentence) for sentence in sentences if sentence]


def items(entries: Iterable[Any]) -> Markup:
    """Return a list."""
    return element("ul", (element("li", entry) for entry in entries))


def _cells(row: Sequence[Any], numeric: Sequence[bool]) -> list[Markup]:
    cells = []
    for place, (content, flush) in enumerate(zip(row, numeric, strict=True)):
        sort_by = None
        if isinstance(content, Figure):
            sort_by, content = _key(content.value), content.text  # noqa: PLW2901
        cells.append(
            element(
                "td" if place else "th",
                content,
                scope=None if place else "row",
                class_="number" if flush else None,
                data_value=sort_by,
            )
        )
    return cells


def _stack(entries: Sequence[Any], kind: str) -> Markup:
    return element(
        "ol", (element("li", entry) for entry in entries), class_=kind, aria_hidden="true"
    )


def _key(value: float | None) -> str:
    """Return a number as JavaScript reads it; nothing where there is none."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, int) else f"{value:.9g}"
