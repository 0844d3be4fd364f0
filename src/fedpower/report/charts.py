"""What templates draw charts with (templates/charts.html): scales, and what a page shows of a value."""

import math
import re
from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup

from fedpower.report.text import number, power_of_ten

Numbers = Sequence[float]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_LEAST = 1e-16  # a logarithmic scale draws smaller numbers, 0 among them, as this
_MOST_ARROWS, _MOST_LETTERS = 30, 16
_SHORT = 0.3  # of the longest arrow: shorter ones have no label, and leave the others their room
_SIDES = np.array([[290.0], [480.0]])  # pixels of a biplot on a phone and on a screen
_LETTER = 7.2  # pixels of a letter of a label
_PLACES = (
    (8, 4, "start", 0),
    (-8, 4, "end", 1),
    (0, -9, "middle", 0.5),
    (0, 17, "middle", 0.5),
    *((dx, dy, *at) for dx, at in ((6, ("start", 0)), (-6, ("end", 1))) for dy in (-7, 15)),
)  # of a label
_TITLE = (-95, -20, 0, -4)  # of the horizontal axis, at its end


def printable(value: Any) -> Any:
    """Return what a page shows of a value: nothing for None, and no character that HTML cannot hold."""
    if value is None:
        return ""
    if isinstance(value, str) and not isinstance(value, Markup):
        return _UNPRINTABLE.sub("\ufffd", value)
    return value


class Scale(NamedTuple):
    """A vertical scale: its ticks with their labels, and where a value is; 0 is the top and 1 the foot."""

    ticks: list[tuple[float, str]]
    place: Callable[[float], float]


angle_scale = Scale([(0.0, "0°"), (45.0, "45°"), (90.0, "90°")], lambda angle: 1 - angle / 90)


def linear(values: Numbers, label: Callable[[float], str] = number) -> Scale:
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


def numbered(numbers: Sequence[int], at_most: int) -> list[tuple[float, int]]:
    """Return where to write which of the numbers: all, or those that a round step divides."""
    many = len(numbers)
    step = next(f * 10**p for p in range(9) for f in (1, 2, 5) if many <= at_most * f * 10**p)
    places = (((place + 0.5) / many, numeral) for place, numeral in enumerate(numbers))
    return [(x, numeral) for x, numeral in places if step == 1 or numeral % step == 0]


def arrows(first: Numbers, second: Numbers, names: Sequence[str]) -> list[tuple[Any, ...]]:
    """Return the longest arrows with column, end and label; a label that would overlap another is empty."""
    most = max(map(abs, (*first, *second)), default=0.0) or 1.0
    order = sorted(range(len(first)), key=lambda n: -math.hypot(first[n], second[n]))[:_MOST_ARROWS]
    ends = [(n, 0.5 + 0.44 * first[n] / most, 0.5 - 0.44 * second[n] / most) for n in order]
    lengths = {n: math.hypot(first[n], second[n]) for n in order}
    large = [end for end in ends if lengths[end[0]] >= _SHORT * max(lengths.values())]
    taken, drawn = [_boxes(1.0, 0.5, _TITLE), *(_boxes(x, y, (-5, -5, 5, 5)) for _, x, y in large)], []
    along = np.linspace(0.0, 1.0, 24).tolist()
    ways = [(0.5 + t * (x - 0.5), 0.5 + t * (y - 0.5)) for _, x, y in large for t in along]
    lines = [_boxes(x, y, (-3, -3, 3, 3)) for x, y in ways]
    for place, x, y in ends:
        name, arrow = names[place], (place, x, y, "", 0, 0, "start")
        label = name if len(name) <= _MOST_LETTERS else f"{name[: _MOST_LETTERS - 1]}…"
        places = sorted(_PLACES, key=lambda at: (x - 0.5) * at[0] < 0)
        # A label crosses an arrow only where it has no other place.
        ways_out = product(([*taken, *lines], [*taken]), places) if (place, x, y) in large else ()
        for others, (dx, dy, anchor, before) in ways_out:
            left = dx - before * _LETTER * len(label)
            box = _boxes(x, y, (left, dy - 11, left + _LETTER * len(label), dy + 4))
            around = np.array(others)
            overlaps = (box[:, :2] < around[..., 2:]) & (around[..., :2] < box[:, 2:])
            if box.min() >= 0 and (box <= _SIDES).all() and not overlaps.all(axis=-1).any():
                taken.append(box)
                arrow = (place, x, y, label, dx, dy, anchor)
                break
        drawn.append(arrow)
    return drawn


def _boxes(x: float, y: float, around: Numbers) -> Any:
    """Return left, top, right and bottom around a point of the picture, in each of its sizes."""
    return _SIDES * [x, y, x, y] + np.asarray(around)


def spread(values: Numbers) -> list[float]:
    low, high = min(values), max(values)
    return [0.04 + 0.92 * (value - low) / ((high - low) or 1.0) for value in values]
