"""Scales from numbers to percent of a picture, with round ticks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

from fedpower.report.page.markup import (
    Markup,
    beside,
    column,
    element,
    human_bytes,
    name,
    number,
    power_of_ten,
)

LEAST = 1e-16
"""What a logarithmic scale draws smaller numbers as, 0 among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A vertical scale: 0 percent is its top."""

    ticks: tuple[tuple[float, str], ...]
    place: Callable[[float], float]


def _percent_of(share: float) -> str:
    """Return a share as a length of SVG."""
    return f"{100 * share:.4g}%"


def linear(values: Sequence[float], *, label: Callable[[float], str] = number) -> Scale:
    """Return a scale from 0 (or below, where a value is) to the largest value."""
    low, high = min(0.0, *values), max(0.0, *values)
    if high == low:
        high = low + 1.0
    step = _round_up((high - low) / 4)
    bottom, top = math.floor(low / step) * step, math.ceil(high / step) * step
    places = range(round(bottom / step), round(top / step) + 1)
    return Scale(
        ticks=tuple((place * step, label(place * step)) for place in places),
        place=lambda value: (top - value) / (top - bottom),
    )


def logarithmic(values: Sequence[float]) -> Scale:
    """Return a scale in powers of ten around all values."""
    powers = [math.log10(max(value, LEAST)) for value in values]
    bottom, top = math.floor(min(powers)), math.ceil(max(powers))
    top += top == bottom
    step = -(-(top - bottom) // 5)
    return Scale(
        ticks=tuple((10.0**power, power_of_ten(power)) for power in range(bottom, top + 1, step)),
        place=lambda value: (top - math.log10(max(value, LEAST))) / (top - bottom),
    )


def every(how_many: int, at_most: int = 10) -> int:
    """Return the least round step at which no more than ``at_most`` of so many things get a label."""
    step = 1
    while how_many / step > at_most:
        step = next(f * 10**p for p in range(9) for f in (1, 2, 5) if f * 10**p > step)
    return step


def _round_up(width: float) -> float:
    power = 10.0 ** math.floor(math.log10(width))
    return next(power * factor for factor in (1, 2, 2.5, 5, 10, 20) if power * factor >= width)


_ROW_REM = 1.75
CELL = 18
_HEIGHT = 220
_LOW_HEIGHT = 96
_MOST_DOTS = 80
"""More points than that are a line alone."""

SHAPES = {
    "dot": "M-4.5 0a4.5 4.5 0 1 0 9 0a4.5 4.5 0 1 0-9 0Z",
    "cross": "M-4.5-4.5L4.5 4.5M4.5-4.5L-4.5 4.5",
    "square": "M-3-3H3V3H-3Z",
    "small-cross": "M-3-3L3 3M3-3L-3 3",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Numbers over rounds: what they are called, how they are marked, None where there is none."""

    kind: str
    shape: str
    values: Sequence[float | None]


def scree(values: Sequence[float], *, standing: Sequence[str], beyond: Sequence[float]) -> Markup:
    """Return variances by component as stems with marks."""
    shown = [*values, *beyond]
    scale = linear(shown)
    parts = [*_rules(scale), *_numbers_below(range(1, len(shown) + 1))]
    zero = _percent_of(scale.place(0.0))
    for place, value in enumerate(shown):
        x, y = _percent_of((place + 0.5) / len(shown)), _percent_of(scale.place(value))
        kind = standing[place] if place < len(values) else "beyond"
        parts.append(_line(x, zero, x, y, f"stem {kind}"))
        parts.append(_mark(x, y, "square" if kind == "beyond" else "dot", kind))
    summary = f"{standing.count('undetermined')} of {len(values)} components are not determined"
    picture = _picture(
        "Variance of each component",
        f"From {number(shown[0])} for the first to {number(shown[-1])} for the last of "
        f"{len(shown)} shown; {summary}. The table below has the numbers.",
        parts,
        height=_HEIGHT,
    )
    return element("div", picture, class_="plot")


def angles(components: Sequence[float], subspaces: Sequence[float], most: float) -> Markup:
    """Return angles of components and of leading subspaces, and up to which they are determined."""
    scale = Scale(
        ticks=tuple((float(tick), f"{tick}°") for tick in (0, 45, 90)), place=lambda angle: 1 - angle / 90
    )
    level = _percent_of(scale.place(most))
    parts = [*_rules(scale), *_numbers_below(range(1, len(components) + 1))]
    parts.append(_line("0", level, "100%", level, "edge"))
    for place, pair in enumerate(zip(components, subspaces, strict=True)):
        x = _percent_of((place + 0.5) / len(components))
        kinds = ("determined" if angle <= most else "undetermined" for angle in pair)
        ys = [_percent_of(scale.place(angle)) for angle in pair]
        parts += map(_mark, (x, x), ys, ("dot", "square"), kinds)
    picture = _picture(
        "Angle of each component",
        f"{sum(angle <= most for angle in components)} of {len(components)} components and "
        f"{sum(angle <= most for angle in subspaces)} of their leading subspaces are within "
        f"{most:.0f}°. The table below has the numbers.",
        parts,
        height=_LOW_HEIGHT,
    )
    return element("div", picture, class_="plot")


def over_rounds(title: str, rounds: Sequence[int], series: Sequence[Series]) -> Markup:
    """Return positive numbers over rounds, on a logarithmic scale."""
    known = [value for each in series for value in each.values if value is not None]
    scale = logarithmic(known)
    parts = [*_rules(scale), *_numbers_below(rounds)]
    for each in series:
        points = [
            (_percent_of((place + 0.5) / len(rounds)), _percent_of(scale.place(value)))
            for place, value in enumerate(each.values)
            if value is not None
        ]
        for (x1, y1), (x2, y2) in pairwise(points):
            parts.append(_line(x1, y1, x2, y2, f"series {each.kind}"))
        if len(points) <= _MOST_DOTS:
            parts.extend(_mark(x, y, each.shape, each.kind) for x, y in points)
    return _picture(
        title,
        f"Over {len(rounds)} rounds, from {number(known[0])} to {number(known[-1])}. The table of "
        "rounds has the numbers.",
        parts,
        height=_HEIGHT,
    )


def bytes_by_round(rounds: Sequence[int], up: Sequence[int], down: Sequence[int]) -> Markup:
    """Return two bars a round: what the silos sent, and what they were sent."""
    scale = linear([*up, *down], label=lambda size: human_bytes(round(size)))
    parts = [*_rules(scale), *_numbers_below(rounds)]
    wide = 1 / len(rounds)
    for place, pair in enumerate(zip(up, down, strict=True)):
        for side, (size, kind) in enumerate(zip(pair, ("up", "down"), strict=True)):
            top = scale.place(size)
            parts.append(_bar((place + 0.15 + 0.37 * side) * wide, top, 0.33 * wide, 1 - top, f"bar {kind}"))
    return _picture(
        "Bytes in each round",
        f"Up from the silos {human_bytes(sum(up))} in all, down to them {human_bytes(sum(down))}. "
        "The table of rounds has the numbers.",
        parts,
        height=_LOW_HEIGHT,
    )


def bars(title: str, description: str, values: Sequence[float], *, most: float = 0.0) -> Markup:
    """Return a horizontal bar a row, from zero to either side, before a pale one to ``most``."""
    low, high = min(0.0, *values), max(0.0, most, *values)
    width = 1 / ((high - low) or 1.0)
    zero = -low * width
    parts = [_line(_percent_of(zero), "0", _percent_of(zero), "100%", "axis")]
    row = 1 / len(values)
    for place, value in enumerate(values):
        long = abs(value) * width
        left = zero - long if value < 0 else zero
        kind = "bar minus" if value < 0 else "bar plus"
        if most > 0:
            parts.append(_bar(0, (place + 0.25) * row, most * width, 0.5 * row, "bar rest"))
        parts.append(_bar(left, (place + 0.25) * row, long, 0.5 * row, kind))
    return _picture(title, description, parts, rows=len(values))


def participation(present: Sequence[Sequence[bool]], rounds: Sequence[int]) -> Markup:
    """Return a grid, a row a silo and a column a round: full where it answered, a cross where not."""
    high, wide = 1 / len(present), 1 / len(rounds)
    parts = list(_numbers_below(rounds, at_most=max(10, len(rounds) // 2)))
    for row, answers in enumerate(present):
        for place, answered in enumerate(answers):
            left, top = (place + 0.1) * wide, (row + 0.2) * high
            kind = "cell answered" if answered else "cell missing"
            parts.append(_bar(left, top, 0.8 * wide, 0.6 * high, kind))
            if not answered:
                middle = _percent_of((place + 0.5) * wide), _percent_of((row + 0.5) * high)
                parts.append(_mark(*middle, "small-cross", "missing"))
    missing = sum(not answered for answers in present for answered in answers)
    summary = f"{missing} answers are missing" if missing else "every silo answered every round"
    return _picture(
        "Who answered in which round",
        f"{len(present)} silos over {len(rounds)} rounds: {summary}. The tables of silos and rounds "
        "have the numbers.",
        parts,
        rows=len(present),
        width=max(CELL * len(rounds), 3 * CELL),
    )


def _picture(
    title: str,
    description: str,
    parts: Sequence[Markup],
    *,
    height: int | None = None,
    rows: int = 0,
    width: int | None = None,
) -> Markup:
    return element(
        "svg",
        element("title", title),
        element("desc", description),
        parts,
        role="img",
        width="100%" if width is None else width,
        height=height or f"{_ROW_REM * rows:g}rem",
    )


def _rules(scale: Scale) -> list[Markup]:
    """Return a thin line across at every tick, with its number on the left."""
    rules = []
    for value, label in scale.ticks:
        y = _percent_of(scale.place(value))
        rules.append(_line("0", y, "100%", y, "axis" if value == 0 else "rule"))
        rules.append(_word("0", y, label, "tick", dx=-8, dy=4, anchor="end"))
    return rules


def _numbers_below(numbers: Sequence[int], at_most: int = 10) -> list[Markup]:
    """Return the numbers of rounds or components along the foot, as many as there is room for."""
    step = every(len(numbers), at_most)
    return [
        _word(_percent_of((place + 0.5) / len(numbers)), "100%", each, "tick", dy=18, anchor="middle")
        for place, each in enumerate(numbers)
        if step == 1 or each % step == 0
    ]


def _line(x1: str, y1: str, x2: str, y2: str, kind: str) -> Markup:
    return element("line", x1=x1, y1=y1, x2=x2, y2=y2, class_=kind)


def _bar(left: float, top: float, width: float, height: float, kind: str) -> Markup:
    shares = {"x": left, "y": top, "width": width, "height": height}
    return element("rect", class_=kind, **{key: _percent_of(x) for key, x in shares.items()})


def _mark(x: str, y: str, shape: str, kind: str) -> Markup:
    path = element("path", d=SHAPES[shape], class_=f"mark {kind}")
    return element("svg", path, x=x, y=y, width=1, height=1, class_="point")


def _word(
    x: str, y: str, word: object, kind: str, *, dx: int = 0, dy: int = 0, anchor: str = "start"
) -> Markup:
    return element("text", word, x=x, y=y, dx=dx or None, dy=dy, text_anchor=anchor, class_=kind)


_MOST_MAPPED = 40
_SQUARE = 22


def heat_map(
    values: Sequence[Sequence[float]], names: Sequence[str], told: Sequence[Sequence[bool]]
) -> Markup:
    """Return a square of cells, coloured by numbers from −1 to 1; a cross where it is not told from 0."""
    many = min(len(names), _MOST_MAPPED)
    size = 1 / many
    parts = []
    for row in range(many):
        middle = _percent_of((row + 0.5) * size)
        parts.append(_word("0", middle, names[row], "tick", dx=-8, dy=4, anchor="end"))
        for place in range(many):
            value, left, top = values[row][place], place * size, row * size
            shares = {"x": left, "y": top, "width": 0.94 * size, "height": 0.94 * size}
            parts.append(
                element(
                    "rect",
                    class_="bar minus" if value < 0 else "bar plus",
                    fill_opacity=f"{min(abs(value), 1.0):.2f}",
                    **{key: _percent_of(each) for key, each in shares.items()},
                )
            )
            if not told[row][place]:
                parts.append(_mark(_percent_of((place + 0.47) * size), middle, "small-cross", "missing"))
    hidden = sum(not each for row in range(many) for each in told[row][:row])
    cut = f" The first {many} of {len(names)} columns are drawn." if many < len(names) else ""
    picture = _picture(
        "Correlations of the columns",
        f"{many} by {many} cells; {hidden} pairs are not told from 0.{cut} The table has the numbers.",
        parts,
        height=_SQUARE * many,
        width=_SQUARE * many,
    )
    return element("div", picture, class_="plot map")


def intervals(
    title: str, names: Sequence[str], values: Sequence[float], low: Sequence[float], high: Sequence[float]
) -> Markup:
    """Return a row a number: its interval as a line, with a dot, or a cross where 0 is within."""
    least, most = min(0.0, *low), max(0.0, *high)
    wide = 1 / ((most - least) or 1.0)
    zero = _percent_of(-least * wide)
    row = 1 / len(names)
    parts = [_line(zero, "0", zero, "100%", "axis")]
    within = 0
    for place, (value, start, end) in enumerate(zip(values, low, high, strict=True)):
        y = _percent_of((place + 0.5) * row)
        ends = (_percent_of((start - least) * wide), _percent_of((end - least) * wide))
        blank = start <= 0 <= end
        within += blank
        parts.append(_line(ends[0], y, ends[1], y, "stem noise" if blank else "stem"))
        kind = ("cross", "noise") if blank else ("dot", "signal")
        parts.append(_mark(_percent_of((value - least) * wide), y, *kind))
    picture = _picture(
        title,
        f"{len(names)} numbers from {number(min(values))} to {number(max(values))}; {within} have 0 in "
        "their interval. The table has the numbers.",
        parts,
        rows=len(names),
    )
    return beside([name(each) for each in names], picture, column(list(values)), kind="loadings")


_MOST_ARROWS = 30
_PLANE = 360
_LONG_NAME = 14
"""Characters of a column's name that have room beside its mark."""


def biplot(
    first: Sequence[float],
    second: Sequence[float],
    names: Sequence[str],
    labels: tuple[str, str],
    *,
    of: str = "column",
) -> Markup:
    """Return the loadings of two components as lines from the middle of a square, the longest named."""
    most = max(*map(abs, first), *map(abs, second)) or 1.0
    order = sorted(range(len(names)), key=lambda each: -math.hypot(first[each], second[each]))
    drawn = order[:_MOST_ARROWS]
    parts = [_line("0", "50%", "100%", "50%", "axis"), _line("50%", "0", "50%", "100%", "axis")]
    for each in drawn:
        x = _percent_of(0.5 + 0.45 * first[each] / most)
        y = _percent_of(0.5 - 0.45 * second[each] / most)
        parts.append(_line("50%", "50%", x, y, "stem"))
        parts.append(_mark(x, y, "square", "signal"))
        # Names run inwards, so that they stay within the square on a phone too.
        side, shift = ("end", -6) if first[each] >= 0 else ("start", 6)
        label = names[each] if len(names[each]) <= _LONG_NAME else f"{names[each][:_LONG_NAME]}…"
        parts.append(_word(x, y, label, "tick", dx=shift, dy=-4, anchor=side))
    parts.append(_word("100%", "50%", labels[0], "tick", dy=-6, anchor="end"))
    parts.append(_word("50%", "0", labels[1], "tick", dx=6, dy=10))
    cut = f" The {len(drawn)} longest of {len(names)} are drawn." if len(drawn) < len(names) else ""
    picture = _picture(
        f"Loadings on {labels[0]} and {labels[1]}",
        f"Every {of} as a line from the middle: {labels[0]} to the right, {labels[1]} upwards.{cut} "
        "The tables of loadings have the numbers.",
        parts,
        height=_PLANE,
    )
    return element("div", picture, class_="plot plane")


_NODE_MARKS = (
    ("dot", "signal"), ("cross", "noise"), ("square", "misalignment"), ("dot", "near"),
    ("square", "beyond"),
)  # fmt: skip
_MOST_NODES = 2000


def nodes_plane(
    first: Sequence[float], second: Sequence[float], groups: Sequence[int], labels: tuple[str, str]
) -> Markup:
    """Return nodes as marks on a square, each group with a shape and colour of its own."""
    step = -(-len(first) // _MOST_NODES)
    drawn = range(0, len(first), step)

    def shares(values: Sequence[float]) -> list[float]:
        low, high = min(values), max(values)
        return [0.04 + 0.92 * (value - low) / ((high - low) or 1.0) for value in values]

    across, upwards = shares(first), shares(second)
    parts = [_line("0", "100%", "100%", "100%", "axis"), _line("0", "0", "0", "100%", "axis")]
    for each in drawn:
        x, y = _percent_of(across[each]), _percent_of(1.0 - upwards[each])
        parts.append(_mark(x, y, *_NODE_MARKS[groups[each] % len(_NODE_MARKS)]))
    parts.append(_word("100%", "100%", f"{labels[0]} →", "tick", dy=16, anchor="end"))
    parts.append(_word("0", "0", f"↑ {labels[1]}", "tick", dy=-6))
    cut = f" Every {step}th node is drawn." if step > 1 else ""
    picture = _picture(
        "Nodes by community",
        f"{len(first)} nodes in {len(set(groups))} communities: {labels[0]} to the right, {labels[1]} "
        f"upwards.{cut} The table has the numbers.",
        parts,
        height=_PLANE,
    )
    return element("div", picture, class_="plot plane")


_MAP = 288


def score_map(
    title: str, counts: Sequence[Sequence[float]], edges: Sequence[Sequence[float]], *, least: float
) -> Markup:
    """Return a square of places, darker where they hold more; those below ``least`` are empty."""
    most, size = max(max(row) for row in counts), 1 / len(counts)
    parts = [_bar(0, 0, 1, 1, "bar rest")]
    shown = 0
    for place, row in enumerate(counts):
        for height, value in enumerate(row):
            if value < least:
                continue
            shown += 1
            shares = {"x": place * size, "y": 1 - (height + 1) * size, "width": size, "height": size}
            parts.append(
                element(
                    "rect",
                    class_="bar plus",
                    fill_opacity=f"{0.15 + 0.85 * value / most:.2f}",
                    **{key: _percent_of(each) for key, each in shares.items()},
                )
            )
    across, up = edges
    for x, value, anchor in (("0", across[0], "start"), ("100%", across[-1], "end")):
        parts.append(_word(x, "100%", number(value, 2), "tick", dy=16, anchor=anchor))
    parts.append(_word("50%", "100%", "pc1", "tick", dy=16, anchor="middle"))
    for y, value, shift in (("100%", up[0], 0), ("0", up[-1], 10)):
        parts.append(_word("0", y, number(value, 2), "tick", dx=-6, dy=shift, anchor="end"))
    parts.append(_word("0", "50%", "pc2", "tick", dx=-6, dy=4, anchor="end"))
    fullest = f", the fullest {number(most, 3)}" if shown else ""
    picture = _picture(
        title,
        f"{shown} of {len(counts) ** 2} places hold rows for certain{fullest}: pc1 to the right, pc2 "
        "upwards. The table has the numbers.",
        parts,
        height=_MAP,
    )
    return element("div", picture, class_="plot scores")
