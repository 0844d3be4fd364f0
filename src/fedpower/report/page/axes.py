"""Scales from numbers to percent of a picture, with round ticks."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fedpower.report.page.words import number, power_of_ten

LEAST = 1e-16
"""What a logarithmic scale draws smaller numbers as, 0 among them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """A vertical scale: 0 percent is its top.

    Attributes
    ----------
    ticks
        Round numbers with their labels.
    place
        From a number to percent from the top.
    """

    ticks: tuple[tuple[float, str], ...]
    place: Callable[[float], float]


def percent_of(share: float) -> str:
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
