"""The arithmetic of a ledger: what is spent, what is left, whether one more release fits.

Unit: one row of one silo, replace-one neighbours; every release is a Gaussian mechanism with
μ = 1/(noise multiplier). Pure: no files, no clock.

A fixed cap that adaptively chosen releases may not pass is a privacy *filter*. For Gaussian
differential privacy the filter costs nothing: as long as every release is refused that would take
Σμ_j² past μ², all that was let through is μ-GDP together, although studies, modes and every μ_j may
depend on what was released before [ST22; KTH23]. So the guarantee is the **cap**.
What is *spent* is the exact loss when the releases were fixed in advance; after adaptive choices
it is an account of the cap (an odometer reading), not a guarantee of its own. The same
holds of a cap that was raised: the guarantee is that of the highest cap ever set.

`slack_delta` is what a release adds to delta because it is not quite μ-GDP: the probability that it
is not, or (1 + e^ε)·t at the cap's epsilon for one within total variation t of it (lattice tails).
Slacks add, and are taken off the cap's delta. This is exact for slack that is fixed in advance.
Were it chosen by looking at earlier releases, delta + Σslack bounds the cap's delta instead,
because Σμ_j² alone never passes mu_of(epsilon, delta)².

References
----------
.. [ST22] Smith and Thakurta, "Fully Adaptive Composition for Gaussian Differential Privacy",
   arXiv:2210.17520.
.. [KTH23] Koskela, Tobaben and Honkela, "Individual Privacy Accounting with Gaussian Differential
   Privacy", ICLR 2023.
"""

import functools
import math
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Self

from fedpower.errors import InputError
from fedpower.privacy.accounting import epsilon_of, mu_of

ROUNDING = 1e-9
"""Relative overspend of the cap's epsilon that counts as floating-point rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a ledger has charged so far; epsilon is at the cap's delta, less `slack_delta`."""

    epsilon: float
    mu: float
    slack_delta: float
    n_releases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one more release would do: whether it fits, the total it makes, what it leaves."""

    fits: bool
    spent: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One charged release; `seq` is the order, `time` (UTC) only what the clock said."""

    seq: int
    time: datetime
    key: str
    purpose: str
    study: str
    mu: float
    slack_delta: float
    epsilon: float
    total_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """One cap an operator set; the last one holds."""

    seq: int
    time: datetime
    epsilon: float
    delta: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A cap (epsilon, delta) and what was charged to it: mu = √Σμ_j², slack = Σ slack_delta."""

    epsilon: float
    delta: float
    mu: float = 0.0
    slack: float = 0.0

    def charged(self, mu: float, slack: float = 0.0) -> Self:
        """Return the account after one more release."""
        return replace(self, mu=math.hypot(self.mu, mu), slack=self.slack + slack)

    @property
    def spent(self) -> float:
        """The epsilon of all releases together at the cap's delta, less the slack."""
        if self.mu == 0.0 and self.slack <= self.delta:
            return 0.0
        return _epsilon(self.mu, self.delta - self.slack)

    @property
    def holds(self) -> bool:
        """Whether the cap is kept."""
        return self.spent <= self.epsilon * (1 + ROUNDING)

    @property
    def left(self) -> float:
        """The largest epsilon, at the cap's delta, of one more Gaussian release that fits.

        0 for what rounding leaves of a cap that was spent in full.
        """
        if self.slack >= self.delta:
            return 0.0
        limit = mu_of(self.epsilon, self.delta - self.slack)
        if self.mu >= limit * (1 - 5 * ROUNDING):
            return 0.0
        return self.alone(math.sqrt((limit - self.mu) * (limit + self.mu)))

    def alone(self, mu: float) -> float:
        """Return the epsilon of a single release at the cap's delta."""
        return _epsilon(mu, self.delta)


def overspending(account: Account, silo: str | None, mu: float, slack: float) -> str:
    """Return the sentence that refuses a release; following its advice is always allowed."""
    left = replace(account, slack=account.slack + slack).left
    told = rounded_down(left, 3)
    if left > 0 and not account.charged(mu_of(float(told), account.delta), slack).holds:
        told = rounded_down(left * (1 - 10 * ROUNDING), 3)
    who, it = ("this silo", "it") if silo is None else (f"silo {silo!r}", repr(silo))
    advice = f"ask for epsilon<={told}, " if left > 0 else ""
    return (
        f"this release would spend epsilon={_round_up(account.alone(mu))} but {who} has "
        f"{told} left at delta={account.delta:g}; "
        f"{advice}leave {it} out or have its operator raise the cap"
    )


def checked_cap(epsilon: float, delta: float) -> tuple[float, float]:
    """Return a cap as floats, or refuse it."""
    epsilon, delta = float(epsilon), float(delta)
    if not 0 < epsilon < math.inf:
        raise InputError(
            f"epsilon must be positive and finite, got {epsilon:g}; "
            "a ledger cannot account for releases without noise"
        )
    if not 0 < delta < 1:
        raise InputError(f"delta must lie between 0 and 1, got {delta:g}; 1e-6 is usual")
    return epsilon, delta


def checked_charge(mu: float, slack_delta: float) -> tuple[float, float]:
    """Return a charge as floats, or refuse it."""
    mu, slack_delta = float(mu), float(slack_delta) + 0.0  # SQLite keeps no -0.0
    if not 0 < mu < math.inf:
        raise InputError(
            f"mu must be positive and finite, got {mu:g}; "
            "a ledger cannot account for releases without noise"
        )
    if not 0 <= slack_delta < 1:
        raise InputError(f"slack_delta must lie in [0, 1), got {slack_delta:g}; 0 if there is none")
    return mu, slack_delta


def check_text(name: str, text: str) -> None:
    """Refuse a name that is empty or would spoil a one-line message."""
    if not (text and text.isprintable()):
        raise InputError(f"{name} must be printable text on one line, got {text!a}; name it anew")


def jsonable(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with times as text and infinities as None."""
    return {
        name: value.isoformat()
        if isinstance(value, datetime)
        else (None if value == math.inf else value)
        for name, value in fields.items()
    }


@functools.lru_cache(maxsize=4096)  # equal steps, and statements asked for again
def _epsilon(mu: float, delta: float) -> float:
    """Return epsilon_of, or ∞ where it does not reach: no delta left, or hardly any noise."""
    return epsilon_of(mu, delta) if delta > 0 and mu < 1e6 else math.inf


def rounded_down(value: float, digits: int) -> str:
    """Return value to some significant digits, and not more than it is but by rounding errors.

    So a cap of which nothing is spent shows all of it left.
    """
    if not 0 < value < math.inf:
        return f"{value:g}"
    value *= 1 + 4 * ROUNDING
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.floor(value / step) * step:.{digits}g}"


def _round_up(value: float, digits: int = 3) -> str:
    """Return value to some significant digits, never less than it is."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step * (1 - 1e-12)) * step:.{digits}g}"
