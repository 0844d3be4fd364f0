"""Text, numbers and tables as HTML, in which everything is escaped that is not markup already."""

import html
import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

MISSING = "–"
_MOST_DECIMALS = 8
_COUNTED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def number(value: float | None, digits: int = 4) -> str:
    """Return a number to so many digits: 0.09152, 60,000, 10⁻⁶, 2.5×10⁻¹²; a dash for none."""
    if value is None or math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    if value == 0 or 1e-4 <= abs(value) < 1e6:
        return signed(f"{float(f'{value:.{digits}g}'):,.10g}")
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    short = mantissa.rstrip("0").rstrip(".")
    power = power_of_ten(int(exponent))
    return signed({"1": power, "-1": f"-{power}"}.get(short, f"{short}×{power}"))


def power_of_ten(exponent: int) -> str:
    """Return 10⁻⁶ for −6, and 1 for 0."""
    return f"10{str(exponent).translate(_RAISED)}" if exponent else "1"


def equals(letter: str, value: float | None) -> str:
    """Return ε = 0.5, in one piece."""
    return f"{letter}\u00a0=\u00a0{number(value)}"


def column(values: Sequence[float | None], digits: int = 4) -> list[str]:
    """Return numbers that line up: the same decimals, the largest with so many digits."""
    sizes = [abs(x) for x in values if x is not None and math.isfinite(x) and x != 0]
    largest = math.floor(math.log10(max(sizes))) if sizes else 0
    decimals = max(digits - 1 - largest, 0)
    if decimals > _MOST_DECIMALS or largest > _MOST_DECIMALS:
        return [number(x, digits) for x in values]
    return [
        signed(f"{x + 0.0:,.{decimals}f}") if x is not None and math.isfinite(x) else number(x, digits)
        for x in values
    ]


def percent(share: float | None) -> str:
    """Return a share between 0 and 1 in percent; a dash for none."""
    if share is None or math.isnan(share):
        return MISSING
    return "<0.1%" if 0 < share < 0.0005 else signed(f"{share:.1%}")


def signed(text: str) -> str:
    """Return digits with a minus as long as a plus."""
    return text.replace("-", "−")


def count(many: int, thing: str) -> str:
    """Return so many things: 1 row, 60,000 rows."""
    return f"{many:,} {thing}{'' if many == 1 else 's'}"


def counted(many: int) -> str:
    """Return a small number as a word, a larger one in digits."""
    return _COUNTED[many] if many < len(_COUNTED) else f"{many:,}"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def human_bytes(size: int) -> str:
    """Return a number of bytes as people say it."""
    left = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1000:
            return f"{left:.3g} {unit}"
        left /= 1000
    return f"{left:.3g} TB"


def moment_of_time(stamp: str) -> str:
    """Return a time of the record as a date and an hour in UTC."""
    return _told(stamp, "%H:%M")


def second_of_time(stamp: str) -> str:
    """Return a time of the record to the second."""
    return _told(stamp, "%H:%M:%S")


def _told(stamp: str, hour: str) -> str:
    when = datetime.fromisoformat(stamp).astimezone(UTC)
    return f"{when.day} {_MONTHS[when.month - 1]} {when.year}, {when:{hour}} UTC"


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
    """Return an element with escaped attributes and content."""
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
    """Return a table; the first cell of a row is its heading, and columns of figures are flush right."""
    body = [list(row) for row in rows]
    numeric = [any(isinstance(row[place], Figure) for row in body) for place in range(len(headings))]
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
            element("div", element("dt", term), element("dd", description))
            for term, description in pairs
            if description is not None
        ),
        class_=kind,
    )


def beside(labels: Sequence[Any], picture: Markup, values: Sequence[str], *, kind: str) -> Markup:
    """Return a picture of rows between their labels and their values."""
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
    return element("ol", (element("li", entry) for entry in entries), class_=kind, aria_hidden="true")


def _key(value: float | None) -> str:
    """Return a number as JavaScript reads it; nothing where there is none."""
    if value is None or math.isnan(value):
        return ""
    if math.isinf(value):
        return "Infinity" if value > 0 else "-Infinity"
    return str(value) if isinstance(value, int) else f"{value:.9g}"
