"""Numbers, counts and times as people write them, for pages and terminals."""

import math
from collections.abc import Sequence
from datetime import UTC, datetime

_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_MOST_DECIMALS = 8
MISSING = "–"
MOST_NAMES = 8  # of silos in one line


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
    """Return ε = 0.5, without a line break in it."""
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


def degrees(angle: float) -> str:
    """Return an angle in whole degrees, rounded up."""
    return f"{math.ceil(angle)}°"


def signed(text: str) -> str:
    """Return digits with a minus as long as a plus."""
    return text.replace("-", "−")


def count(many: int, thing: str) -> str:
    """Return so many things: 1 row, 60,000 rows."""
    return f"{many:,} {thing}{'' if many == 1 else 's'}"


def listed(names: Sequence[str]) -> str:
    """Return names as a sentence lists them: a, b and c."""
    if len(names) < 2:
        return "".join(names)
    return f"{', '.join(names[:-1])} and {names[-1]}"


def and_more(names: Sequence[str], most: int = MOST_NAMES) -> list[str]:
    """Return the first names, and how many more there are."""
    rest = len(names) - most
    return [*names[:most], f"{rest} more"] if rest > 0 else list(names)


def human_bytes(size: int) -> str:
    """Return a number of bytes with a unit."""
    left = float(size)
    for unit in ("B", "kB", "MB", "GB"):
        if left < 1000:
            return f"{left:.3g} {unit}"
        left /= 1000
    return f"{left:.3g} TB"


def date_and_time(stamp: str, *, seconds: bool = False) -> str:
    """Return a time of the record as a date and a time in UTC."""
    when = datetime.fromisoformat(stamp).astimezone(UTC)
    return f"{when:{'%Y-%m-%d, %H:%M:%S' if seconds else '%Y-%m-%d, %H:%M'}} UTC"


_NAMES = {
    "octaves": "rough column ranges",
    "bins": "column ranges",
    "zoom": "narrow column ranges",
    "means": "means and spreads",
    "norms": "row lengths",
    "mean": "mean row",
    "scores": "score counts",
}
"""What releases measure, by their name in the ledger; other names say it themselves."""


def measured(purpose: str) -> str:
    """Return what a release measures, and what else its purpose in the ledger says."""
    query, *more = purpose.split(", ")
    return ", ".join([_NAMES.get(query, query), *more])
