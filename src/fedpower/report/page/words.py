"""Numbers, sizes, times and lists as people read them."""

import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
MONTHS = (
    "January", "February", "March", "April", "May", "June", "July", "August", "September",
    "October", "November", "December",
)  # fmt: skip

MISSING = "–"
MOST_DECIMALS = 8
COUNTED = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


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
    if decimals > MOST_DECIMALS or largest > MOST_DECIMALS:
        return [number(x, digits) for x in values]
    return [
        signed(f"{x + 0.0:,.{decimals}f}")
        if x is not None and math.isfinite(x)
        else number(x, digits)
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


NOT_ASSESSED = (
    "Which components stand above the noise was not assessed: that takes a last product in which all "
    "silos answered about the same directions"
)


def beyond_bound(variances: Sequence[float], most: float) -> list[str]:
    """Return a sentence where more variance is shown than rows within their bound can have; else none."""
    above = [f"pc{place}" for place, value in enumerate(variances, start=1) if value > most]
    if not above:
        return []
    shows = "shows" if len(above) == 1 else "show"
    named = listed(above if len(above) <= 4 else [*above[:3], f"{len(above) - 3} more"])
    return [
        f"{named} {shows} more variance than the {number(most, 3)} that rows within their bound can "
        "have: what is beyond is noise."
    ]


def most_variance(run: Mapping[str, Any], n_samples: int) -> float:
    """Return the most variance that rows within their bound can have; infinity where none is known."""
    terms = run["parameters"]
    bound = 1.0 if terms.get("normalize") else terms.get("row_norm")
    known = isinstance(bound, int | float)
    return float(bound) ** 2 * n_samples / max(n_samples - 1, 1) if known else math.inf


def above_the_noise(n_above: int, n_features: int) -> str:
    """Return how many components stand above the privacy noise and how sure that is, without a stop."""
    return (
        f"Above the noise: {n_above:,} of {count(n_features, 'component')}, with a chance of at most 1% "
        "that it is too many"
    )


def count(many: int, thing: str) -> str:
    """Return so many things: 1 row, 60,000 rows."""
    return f"{many:,} {thing}{'' if many == 1 else 's'}"


def counted(many: int) -> str:
    """Return a small number as a word, a larger one in digits."""
    return COUNTED[many] if many < len(COUNTED) else f"{many:,}"


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
    return f"{when.day} {MONTHS[when.month - 1]} {when.year}, {when:{hour}} UTC"
