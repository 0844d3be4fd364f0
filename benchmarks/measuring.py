"""What repeated measurements say: means, ratios and exponents, as numbers and as text."""

import math
import random
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Measured = Mapping[str, Any]
"""What one process measured: ``seconds`` and more, or only how it ``ended``."""


SEED = 0
"""Of the order in which things are timed."""


def in_turn(ways: Sequence[Any], repeats: int) -> Iterator[tuple[int, Any]]:
    """Yield every way once a repeat, each repeat in an order of its own.

    Whatever else the machine does then falls on all ways alike.
    """
    order = random.Random(SEED)  # noqa: S311
    for repeat in range(repeats):
        mixed = list(ways)
        order.shuffle(mixed)
        for way in mixed:
            yield repeat, way


def having(measured: Sequence[Measured], **wanted: Any) -> list[Measured]:
    """Return the measurements with these values."""
    return [each for each in measured if all(each.get(key) == wanted[key] for key in wanted)]


def of_way(measured: Sequence[Measured], **wanted: Any) -> list[Measured]:
    """Return the measurements with these values, in the order of their repeats."""
    return sorted(having(measured, **wanted), key=lambda each: each["repeat"])


def distinct(measured: Sequence[Measured], key: str) -> list[Any]:
    """Return the values that there are of a key, in the order of their first appearance."""
    return list(dict.fromkeys(each[key] for each in measured))


def mean(measured: Sequence[Measured], key: str, **wanted: Any) -> float:
    """Return the mean of a value over the measurements that have the wanted ones; nan without any."""
    found = values(having(measured, **wanted), key)
    return statistics.mean(found) if found else math.nan


def ratios(measured: Sequence[Measured], base: Sequence[Measured], key: str = "seconds") -> list[float]:
    """Return measured over base, each within a repeat in which both have a value."""
    below = {each["repeat"]: each[key] for each in base if key in each}
    return [each[key] / below[each["repeat"]] for each in measured if key in each and each["repeat"] in below]


def values(measured: Sequence[Measured], key: str = "seconds") -> list[float]:
    """Return one value of every measurement that has it."""
    return [each[key] for each in measured if key in each]


def spread(found: Sequence[float], form: str = ".2e", small: str = ".1e") -> str:
    """Return mean ± standard deviation as text; no deviation of a single value."""
    middle = format(statistics.mean(found), form)
    return f"{middle} ± {format(statistics.stdev(found), small)}" if len(found) > 1 else middle


def standard_error(found: Sequence[float]) -> float:
    """Return the standard error of the mean; 0 of a single value, which tells none."""
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0


def reported(found: Sequence[float]) -> str:
    """Return the median and the range as text."""
    if not found:
        return ""
    middle = statistics.median(found)
    return f"{_short(middle)} ({_short(min(found))} to {_short(max(found))})"


def times(measured: Sequence[Measured]) -> str:
    """Return the seconds as text or, where a process gave none, how it ended."""
    return next((each["ended"] for each in measured if "ended" in each), reported(values(measured)))


def most(measured: Sequence[Measured], key: str, form: str) -> str:
    """Return the largest value as text; nothing where there is none."""
    found = values(measured, key)
    return format(max(found), form) if found else ""


def exponent(sizes: Sequence[float], seconds: Sequence[float]) -> float:
    """Return the slope of log seconds on log sizes by least squares: cost grows like size^slope."""
    across = [math.log(size) for size in sizes]
    up = [math.log(each) for each in seconds]
    return statistics.linear_regression(across, up).slope


def exponents(measured: Sequence[Measured], sizes: Sequence[int], key: str = "seconds") -> list[float]:
    """Return the exponent over these sizes within each repeat in which all have a value."""
    found = []
    for repeat in sorted({each["repeat"] for each in measured}):
        here = {each["size"]: each for each in of_way(measured, repeat=repeat)}
        if all(key in here.get(size, {}) for size in sizes):
            found.append(exponent(sizes, [here[size][key] for size in sizes]))
    return found


def _short(value: float) -> str:
    """Return three digits, never as a power of ten."""
    digits = 0 if value >= 100 else max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"
