"""What templates draw charts with (templates/charts.html): scales, and what a page shows of a value."""

import math
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from markupsafe import Markup

from fedpower.report.text import number, power_of_ten

Numbers = Sequence[float]

_UNPRINTABLE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufdd0-\ufdef\ufffe\uffff]")
_LEAST = 1e-16  # a logarithmic scale draws smaller numbers, 0 among them, as this
_MOST_ARROWS = 30


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


def longest(first: Numbers, second: Numbers) -> list[int]:
    """Return the places of the longest arrows, longest first."""
    lengths = [*map(math.hypot, first, second)]
    return sorted(range(len(lengths)), key=lambda place: -lengths[place])[:_MOST_ARROWS]


def spread(values: Numbers) -> list[float]:
    low, high = min(values), max(values)
    return [0.04 + 0.92 * (value - low) / ((high - low) or 1.0) for value in values]
