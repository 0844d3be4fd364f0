"""Charts as SVG that needs no script: lengths are percentages, so a chart is as wide as its place."""

import math
import re
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

from markupsafe import Markup, escape

from fedpower.report.text import column, human_bytes, number, power_of_ten

Numbers = Sequence[float]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_LEAST = 1e-16  # a logarithmic scale draws smaller numbers, 0 among them, as this
_HEIGHT, _LOW_HEIGHT, _PLANE, _MAP, _SQUARE, _CELL, _ROW_REM = 220, 96, 360, 288, 22, 18, 1.75
_MOST_DOTS, _MOST_MAPPED, _MOST_ARROWS, _MOST_NODES, _LONG_NAME = 80, 40, 30, 2000, 14
_SHAPES = {
    "dot": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "cross": "M-4.5-4.5L4.5 4.5M4.5-4.5L-4.5 4.5",
    "square": "M-3-3H3V3H-3Z",
    "small-cross": "M-3-3L3 3M3-3L-3 3",
}
_NODE_MARKS = (("dot", "signal"), ("cross", "noise"), ("square", "misalignment"), ("dot", "near"),
               ("square", "beyond"))  # fmt: skip


def printable(value: Any) -> Any:
    """Return what a page shows of a value: nothing for None, and no character that HTML cannot hold."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub("\ufffd", value)
    return value


def element(name: str, *content: Any, **attributes: Any) -> Markup:
    """Return an element with escaped attributes and content; an iterable is content piece by piece."""
    written = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{escape(printable(value))}"'
        for key, value in attributes.items()
        if value is not None
    )
    return Markup(f"<{name}{written}>{''.join(map(_escaped, content))}</{name}>")  # noqa: S704


def _escaped(content: Any) -> str:
    if isinstance(content, Iterable) and not isinstance(content, str):
        return "".join(map(_escaped, content))
    return str(escape(printable(content)))


class Scale(NamedTuple):
    """A vertical scale: its ticks with their labels, and where a value is; 0 is the top and 1 the foot."""

    ticks: list[tuple[float, str]]
    place: Callable[[float], float]

    def above(self, numbers: Sequence[int]) -> list[Markup]:
        """Return a thin line with its number on the left at every tick, and numbers below."""
        parts = _numbers_below(numbers)
        for value, label in self.ticks:
            y = self.place(value)
            parts.append(_line(0, y, 1, y, "axis" if value == 0 else "rule"))
            parts.append(_word(0, y, label, dx=-8, dy=4, anchor="end"))
        return parts


def linear(values: Numbers, *, label: Callable[[float], str] = number) -> Scale:
    """Return a scale from 0 (or below, where a value is) to the largest value."""
    low, high = min(0.0, *values), max(0.0, *values)
    if high == low:
        high = low + 1.0
    width = (high - low) / 4
    power = 10.0 ** math.floor(math.log10(width))
    step = next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= width)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    places = range(round(bottom / step), round(top / step) + 1)
    ticks = [(place * step, label(place * step)) for place in places]
    return Scale(ticks, lambda value: (top - value) / (top - bottom))


def logarithmic(values: Numbers) -> Scale:
    """Return a scale in powers of ten around all values."""
    powers = [math.log10(max(value, _LEAST)) for value in values]
    bottom, top = math.floor(min(powers)), math.ceil(max(powers))
    top += top == bottom
    step = -(-(top - bottom) // 5)
    ticks = [(10.0**power, power_of_ten(power)) for power in range(bottom, top + 1, step)]
    return Scale(ticks, lambda value: (top - math.log10(max(value, _LEAST))) / (top - bottom))


def scree(values: Numbers, *, determined: Sequence[bool], beyond: Numbers) -> Markup:
    """Return variances by component as stems with marks: dots, rings if undetermined, squares beyond."""
    shown = [*values, *beyond]
    scale, kinds = linear(shown), [*map(_standing, determined), *("beyond" for _ in beyond)]
    parts = scale.above(range(1, len(shown) + 1))
    for x, value, kind in zip(_middles(len(shown)), shown, kinds, strict=True):
        y = scale.place(value)
        parts.append(_line(x, scale.place(0.0), x, y, f"stem {kind}"))
        parts.append(_mark(x, y, "square" if kind == "beyond" else "dot", kind))
    description = (
        f"From {number(shown[0])} for the first to {number(shown[-1])} for the last of {len(shown)} shown; "
        f"{list(determined).count(False)} of {len(values)} components are not determined."
    )
    return _plot("Variance of each component", description, parts, height=_HEIGHT)


def angles(components: Numbers, subspaces: Numbers, most: float) -> Markup:
    """Return angles of components and of leading subspaces, and up to which they are determined."""
    scale = Scale([(0.0, "0°"), (45.0, "45°"), (90.0, "90°")], lambda angle: 1 - angle / 90)
    level, within = scale.place(most), []
    parts = [*scale.above(range(1, len(components) + 1)), _line(0, level, 1, level, "edge")]
    for kind, shape in ((components, "dot"), (subspaces, "square")):
        within.append(sum(angle <= most for angle in kind))
        for x, angle in zip(_middles(len(kind)), kind, strict=True):
            parts.append(_mark(x, scale.place(angle), shape, _standing(angle <= most)))
    description = (
        f"{within[0]} of {len(components)} components and {within[1]} of their leading subspaces are within "
        f"{most:.0f}°."
    )
    return _plot("Angle of each component", description, parts, height=_LOW_HEIGHT)


def over_rounds(rounds: Sequence[int], series: Sequence[tuple[str, str, Sequence[float | None]]]) -> Markup:
    """Return series (kind, shape of marks, positive numbers) over rounds, on a logarithmic scale."""
    known = [value for _, _, values in series for value in values if value is not None]
    scale = logarithmic(known)
    parts = scale.above(rounds)
    for kind, shape, values in series:
        pairs = zip(_middles(len(rounds)), values, strict=True)
        points = [(x, scale.place(value)) for x, value in pairs if value is not None]
        parts += [_line(*start, *end, f"series {kind}") for start, end in pairwise(points)]
        if len(points) <= _MOST_DOTS:
            parts += [_mark(*point, shape, kind) for point in points]
    description = f"Over {len(rounds)} rounds, from {number(known[0])} to {number(known[-1])}."
    return _plot("Convergence over rounds", description, parts, table="table of rounds", height=_HEIGHT)


def bytes_by_round(rounds: Sequence[int], up: Sequence[int], down: Sequence[int]) -> Markup:
    """Return two bars per round: what the silos sent, and what they were sent."""
    scale = linear([*up, *down], label=lambda size: human_bytes(round(size)))
    parts, wide = scale.above(rounds), 1 / len(rounds)
    for sizes, kind, shift in ((up, "up", 0.15), (down, "down", 0.52)):
        for place, size in enumerate(sizes):
            top = scale.place(size)
            parts.append(_bar((place + shift) * wide, top, 0.33 * wide, 1 - top, f"bar {kind}"))
    description = f"Up from the silos {human_bytes(sum(up))} in all, down to them {human_bytes(sum(down))}."
    return _plot("Bytes in each round", description, parts, table="table of rounds", height=_LOW_HEIGHT)


def bars(
    title: str, description: str, values: Numbers, labels: Sequence[str], texts: Sequence[str],
    *, kind: str, most: float = 0.0, names: bool = True,
) -> Markup:  # fmt: skip
    """Return a horizontal bar per row between label and text, in front of a pale one to ``most``."""
    if most > 0:
        values = [min(value, 2 * most) for value in values]
    low, high = min(0.0, *values), max(0.0, most, *values)
    width, row = 1 / ((high - low) or 1.0), 1 / len(values)
    zero = -low * width
    parts = [_line(zero, 0, zero, 1, "axis")]
    for place, value in enumerate(values):
        top, length = (place + 0.25) * row, abs(value) * width
        if most > 0:
            parts.append(_bar(0, top, most * width, 0.5 * row, "bar rest"))
        left, side = (zero - length, "minus") if value < 0 else (zero, "plus")
        parts.append(_bar(left, top, length, 0.5 * row, f"bar {side}"))
    return _by_row(title, description, parts, labels, texts, kind=kind, names=names)


def participation(names: Sequence[str], present: Sequence[Sequence[bool]], rounds: Sequence[int]) -> Markup:
    """Return a grid, a row per silo and a column per round: full where it answered, a cross where not."""
    high, wide = 1 / len(present), 1 / len(rounds)
    parts = _numbers_below(rounds, at_most=max(10, len(rounds) // 2))
    for y, answers in zip(_middles(len(present)), present, strict=True):
        for x, answered in zip(_middles(len(rounds)), answers, strict=True):
            kind = "cell answered" if answered else "cell missing"
            parts.append(_bar(x - 0.4 * wide, y - 0.3 * high, 0.8 * wide, 0.6 * high, kind))
            if not answered:
                parts.append(_mark(x, y, "small-cross", "missing"))
    missing = sum(not answered for answers in present for answered in answers)
    summary = f"{missing} answers are missing" if missing else "every silo answered every round"
    description = (
        f"{len(present)} silos over {len(rounds)} rounds: {summary}. The tables of silos and rounds have the "
        "numbers."
    )
    texts, width = [f"{sum(row)} of {len(rounds)}" for row in present], max(_CELL * len(rounds), 3 * _CELL)
    return _by_row("Who answered in which round", description, parts, names, texts, kind="grid", width=width)


def heat_map(values: Sequence[Numbers], names: Sequence[str], distinct: Sequence[Sequence[bool]]) -> Markup:
    """Return a square of cells coloured by numbers from −1 to 1, with a cross where 0 is possible."""
    many = min(len(names), _MOST_MAPPED)
    size, parts = 1 / many, []
    for row in range(many):
        middle = (row + 0.5) * size
        parts.append(_word(0, middle, names[row], dx=-8, dy=4, anchor="end"))
        for place in range(many):
            value = values[row][place]
            kind, shade = "bar minus" if value < 0 else "bar plus", min(abs(value), 1.0)
            parts.append(_bar(place * size, row * size, 0.94 * size, 0.94 * size, kind, opacity=shade))
            if not distinct[row][place]:
                parts.append(_mark((place + 0.47) * size, middle, "small-cross", "missing"))
    hidden = sum(not cell for row in range(many) for cell in distinct[row][:row])
    cut = f" The first {many} of {len(names)} columns are drawn." if many < len(names) else ""
    description = f"{many} by {many} cells; {hidden} pairs cannot be told from 0.{cut}"
    side = _SQUARE * many
    title = "Correlations of the columns"
    return _plot(title, description, parts, table="table", kind="plot map", height=side, width=side)


def intervals(title: str, names: Sequence[str], values: Numbers, low: Numbers, high: Numbers) -> Markup:
    """Return a row per number: its interval as a line, with a dot, or a cross where 0 is within."""
    least, most = min(0.0, *low), max(0.0, *high)
    wide, within = 1 / ((most - least) or 1.0), 0
    parts = [_line(-least * wide, 0, -least * wide, 1, "axis")]
    for y, *ends in zip(_middles(len(names)), low, values, high, strict=True):
        start, middle, end = ((value - least) * wide for value in ends)
        blank = ends[0] <= 0 <= ends[2]
        within += blank
        parts.append(_line(start, y, end, y, "stem noise" if blank else "stem"))
        parts.append(_mark(middle, y, *(("cross", "noise") if blank else ("dot", "signal"))))
    description = (
        f"{len(names)} numbers from {number(min(values))} to {number(max(values))}; {within} have 0 in their "
        "interval. The table has the numbers."
    )
    return _by_row(title, description, parts, names, column(list(values)), kind="loadings")


def biplot(
    first: Numbers, second: Numbers, names: Sequence[str], labels: tuple[str, str], *, of: str = "column"
) -> Markup:
    """Return the loadings of two components as lines from the middle of a square, the longest named."""
    most = max(*map(abs, first), *map(abs, second)) or 1.0
    order = sorted(range(len(names)), key=lambda place: -math.hypot(first[place], second[place]))
    drawn = order[:_MOST_ARROWS]
    parts = [_line(0, 0.5, 1, 0.5, "axis"), _line(0.5, 0, 0.5, 1, "axis")]
    for place in drawn:
        x, y = 0.5 + 0.45 * first[place] / most, 0.5 - 0.45 * second[place] / most
        parts += [_line(0.5, 0.5, x, y, "stem"), _mark(x, y, "square", "signal")]
        # Names run inwards, so that they stay within the square on a phone too.
        side, shift = ("end", -6) if first[place] >= 0 else ("start", 6)
        label = names[place] if len(names[place]) <= _LONG_NAME else f"{names[place][:_LONG_NAME]}…"
        parts.append(_word(x, y, label, dx=shift, dy=-4, anchor=side))
    parts += [_word(1, 0.5, labels[0], dy=-6, anchor="end"), _word(0.5, 0, labels[1], dx=6, dy=10)]
    cut = f" The {len(drawn)} longest of {len(names)} are drawn." if len(drawn) < len(names) else ""
    axes = f"{labels[0]} to the right, {labels[1]} upwards"
    description = (
        f"Every {of} as a line from the middle: {axes}.{cut} The tables of loadings have the numbers."
    )
    title = f"Loadings on {labels[0]} and {labels[1]}"
    return _plot(title, description, parts, table=None, kind="plot plane", height=_PLANE)


def nodes_plane(first: Numbers, second: Numbers, groups: Sequence[int], labels: tuple[str, str]) -> Markup:
    """Return nodes as marks on a square, each group with its own shape and colour."""
    step = -(-len(first) // _MOST_NODES)

    def shares(values: Numbers) -> list[float]:
        low, high = min(values), max(values)
        return [0.04 + 0.92 * (value - low) / ((high - low) or 1.0) for value in values]

    nodes = list(zip(shares(first), shares(second), groups, strict=True))[::step]
    parts = [_line(0, 1, 1, 1, "axis"), _line(0, 0, 0, 1, "axis")]
    parts += [_mark(x, 1.0 - up, *_NODE_MARKS[group % len(_NODE_MARKS)]) for x, up, group in nodes]
    parts += [_word(1, 1, f"{labels[0]} →", dy=16, anchor="end"), _word(0, 0, f"↑ {labels[1]}", dy=-6)]
    cut = f" Every {step}th node is drawn." if step > 1 else ""
    axes = f"{labels[0]} to the right, {labels[1]} upwards"
    description = f"{len(first)} nodes in {len(set(groups))} communities: {axes}.{cut}"
    return _plot("Nodes by community", description, parts, table="table", kind="plot plane", height=_PLANE)


def score_map(title: str, counts: Sequence[Numbers], edges: Sequence[Numbers], *, least: float) -> Markup:
    """Return a square of bins, darker where they hold more rows; those below ``least`` are empty."""
    most, size = max(max(row) for row in counts), 1 / len(counts)
    parts = [_bar(0, 0, 1, 1, "bar rest")]
    for across, row in enumerate(counts):
        for up, value in enumerate(row):
            if value >= least:
                shade = 0.15 + 0.85 * value / most
                parts.append(_bar(across * size, 1 - (up + 1) * size, size, size, "bar plus", opacity=shade))
    shown = len(parts) - 1
    (left, right), (foot, top) = ((number(ends[0], 2), number(ends[-1], 2)) for ends in edges)
    for x, anchor, label in ((0, "start", left), (0.5, "middle", "pc1"), (1, "end", right)):
        parts.append(_word(x, 1, label, dy=16, anchor=anchor))
    for y, down, label in ((1, 0, foot), (0.5, 4, "pc2"), (0, 10, top)):
        parts.append(_word(0, y, label, dx=-6, dy=down, anchor="end"))
    fullest = f", the fullest {number(most, 3)}" if shown else ""
    description = (
        f"{shown} of {len(counts) ** 2} places hold rows for certain{fullest}: pc1 to the right, pc2 upwards."
    )
    return _plot(title, description, parts, table="table", kind="plot scores", height=_MAP)


def _standing(determined: bool) -> str:
    return "determined" if determined else "undetermined"


def _middles(count: int) -> list[float]:
    return [(place + 0.5) / count for place in range(count)]


def _plot(
    title: str, description: str, parts: Sequence[Markup], *, table: str | None = "table below",
    kind: str = "plot", height: int, width: int | str = "100%",
) -> Markup:  # fmt: skip
    where = "" if table is None else f" The {table} has the numbers."
    return element("div", _picture(title, description + where, parts, width, height), class_=kind)


def _picture(title: str, description: str, parts: Any, width: int | str, height: int | str) -> Markup:
    words = element("title", title), element("desc", description)
    return element("svg", words, parts, role="img", width=width, height=height)


def _by_row(
    title: str, description: str, parts: Sequence[Markup], labels: Sequence[str], texts: Sequence[str],
    *, kind: str, names: bool = True, width: int | str = "100%",
) -> Markup:  # fmt: skip
    picture = _picture(title, description, parts, width, f"{_ROW_REM * len(labels):g}rem")
    shown = [element("bdi", label) if names else label for label in labels]
    left, right = (
        element("ol", (element("li", entry) for entry in entries), class_=side, aria_hidden="true")
        for side, entries in (("labels", shown), ("values", texts))
    )
    return element("div", left, element("div", picture, class_="rows-picture"), right, class_=f"rows {kind}")


def _numbers_below(numbers: Sequence[int], at_most: int = 10) -> list[Markup]:
    step = next(f * 10**p for p in range(9) for f in (1, 2, 5) if len(numbers) <= at_most * f * 10**p)
    return [
        _word(x, 1, numeral, dy=18, anchor="middle")
        for x, numeral in zip(_middles(len(numbers)), numbers, strict=True)
        if step == 1 or numeral % step == 0
    ]


def _lengths(**shares: float) -> dict[str, str]:
    return {key: f"{100 * share:.4g}%" for key, share in shares.items()}


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return element("line", **_lengths(x1=x1, y1=y1, x2=x2, y2=y2), class_=kind)


def _bar(
    x: float, y: float, width: float, height: float, kind: str, *, opacity: float | None = None
) -> Markup:
    shade = None if opacity is None else f"{opacity:.2f}"
    return element("rect", class_=kind, fill_opacity=shade, **_lengths(x=x, y=y, width=width, height=height))


def _mark(x: float, y: float, shape: str, kind: str) -> Markup:
    path = element("path", d=_SHAPES[shape], class_=f"mark {kind}")
    return element("svg", path, **_lengths(x=x, y=y), width=1, height=1, class_="point")


def _word(x: float, y: float, word: object, *, dx: int = 0, dy: int = 0, anchor: str = "start") -> Markup:
    return element(
        "text", word, **_lengths(x=x, y=y), dx=dx or None, dy=dy, text_anchor=anchor, class_="tick"
    )
