"""Noise that silos share: each adds a part, and only the sum has to hide a row."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from fractions import Fraction

from fedpower.errors import InputError
from fedpower.privacy.budget import Budget
from fedpower.privacy.integer_release import MOST_SHIFT, SIDE, IntegerNoise, integer_noise
from fedpower.privacy.noise import WIDEST_SCALE

SMALLEST_SHARE = 2**10
"""Shares at least this many steps wide are within 2⁻¹⁰⁰⁰ of the theorem's law: see `sum_distance`."""

_LARGEST_SUM = 2**62  # the ring, modulo 2⁶⁴, holds twice as much
_LARGEST_DRAW = 16  # `gaussian_integers` ends at 14 times its scale


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedNoise:
    """The noise of one secure sum."""

    share: IntegerNoise
    n_rows: int
    n_silos: int
    colluders: int

    @property
    def std(self) -> float:
        """The noise of the whole sum, √m·a steps, on the diagonal of the moment of all rows."""
        return math.sqrt(self.n_silos) * self.share.std(self.n_rows)

    def mu(self, known: int) -> float:
        """Return the Gaussian-DP parameter of the sum for whoever knows the shares of ``known`` silos."""
        return self.share.mu / math.sqrt(self.n_silos - known) * (1 + 2.0**-50)


def shared_noise(budget: Budget, sizes: Iterable[int]) -> SharedNoise:
    """Return the noise of the sum over silos of these sizes; refuse what the ring cannot hold."""
    rows = list(sizes)
    m, n = len(rows), sum(rows)
    if m <= budget.colluders:
        raise InputError(
            f"a secure sum must have more silos than the {budget.colluders} that may collude, got {m}; "
            "bring more silos or declare fewer colluders"
        )
    share = next((found for k in range(MOST_SHIFT + 1) if _fits(found := _share(budget, m, k), n, m)), None)
    if share is None:
        raise InputError(
            f"a secure sum must stay within 2**62 whole numbers, but {n} rows of {m} silos could need "
            "more; sum fewer rows"
        )
    least = min(share.below, share.mean or share.below)
    if least < SMALLEST_SHARE:
        raise InputError(
            f"a share of the noise must be at least {SMALLEST_SHARE} lattice steps wide, got {least} "
            f"for {m} silos; let fewer silos take part"
        )
    return SharedNoise(share=share, n_rows=n, n_silos=m, colluders=budget.colluders)


WIDE_SHARE = 2**20
"""Numbers that are too coarse for it are multiplied by a power of two until shares are this wide."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SumNoise:
    """The noise of one secure sum of any whole numbers."""

    share: int
    fineness: int
    moved: Fraction
    n_silos: int
    colluders: int

    @property
    def std(self) -> float:
        """The noise in each number of the sum, √m·a steps, in the units of the numbers."""
        return math.sqrt(self.n_silos) * math.ldexp(self.share, -self.fineness)

    def mu(self, known: int) -> float:
        """Return the Gaussian-DP parameter of the sum for whoever knows the shares of ``known`` silos."""
        alone = float(self.moved * 2**self.fineness / self.share)
        return alone / math.sqrt(self.n_silos - known) * (1 + 2.0**-50)


def sum_noise(
    multiplier: float, *, sensitivity: Fraction | float, per_row: int, sizes: Iterable[int], colluders: int
) -> SumNoise:
    """Return the noise of a sum of whole numbers of any kind; refuse what the ring cannot hold."""
    rows = list(sizes)
    m, n = len(rows), sum(rows)
    if m <= colluders:
        raise InputError(
            f"a secure sum must have more silos than the {colluders} that may collude, got {m}; "
            "bring more silos or declare fewer colluders"
        )
    if not 0 < multiplier < math.inf or not 0 < sensitivity < math.inf or per_row < 1:
        raise InputError(
            "a secure sum must have a positive multiplier, sensitivity and largest number of a row, got "
            f"{multiplier!r}, {sensitivity!r} and {per_row!r}; take them from the study"
        )
    moved = Fraction(sensitivity)
    whole = Fraction(multiplier) * moved
    fineness = 0
    while whole**2 * 4**fineness < WIDE_SHARE**2 * (m - colluders):
        fineness += 1
    share = _least_share(math.ceil(whole * 2**fineness), m - colluders)
    if share > WIDEST_SCALE or (n * per_row << fineness) + m * _LARGEST_DRAW * share > _LARGEST_SUM:
        raise InputError(
            f"a secure sum must stay within 2**62 whole numbers, but {n} rows of {m} silos could need "
            "more; sum fewer rows or ask for a larger epsilon"
        )
    return SumNoise(share=share, fineness=fineness, moved=moved, n_silos=m, colluders=colluders)


def _share(budget: Budget, n_silos: int, shift: int) -> IntegerNoise:
    """Return the noise of one of m silos where G is divided by 2^shift."""
    whole = integer_noise(
        budget.multiplier,
        with_mean=budget.center,
        shift=shift,
        n_features=budget.n_features,
        mean_weight=budget.mean_weight,
        per_unit=budget.per_unit,
    )
    return whole.with_diagonal(_least_share(whole.diagonal, n_silos - budget.colluders))


def _fits(share: IntegerNoise, n_rows: int, n_silos: int) -> bool:
    """Return whether every number of a sum over so many rows and silos stays within 2⁶²."""
    squares = (n_rows * SIDE**2 >> share.shift) + n_silos * (_LARGEST_DRAW * share.diagonal + 1)
    totals = 0
    if share.mean:
        totals = n_rows * SIDE * share.parts + n_silos * _LARGEST_DRAW * share.mean
    return max(squares, totals) <= _LARGEST_SUM


def sum_distance(share: float, n_shares: int) -> float:
    """Return a bound on how far Σ round(aX_i) is from round(√h·aX + V), in total variation."""
    alias = 3.0 * math.exp(-0.5 * (math.pi * share) ** 2)
    if n_shares * alias > 1:
        return 1.0
    spread = 50.0 * math.sqrt(n_shares) * share + n_shares
    # e^(−700), 2⁻¹⁰¹⁰, stands for e^(−1250), which is below the smallest float64.
    return min(1.0, spread * 3 * n_shares * alias + 2.0 * math.exp(-700))


def _least_share(scale: int, n_honest: int) -> int:
    """Return the least whole a with n_honest·a² ≥ scale²; exact."""
    return math.isqrt(-(-(scale**2) // n_honest) - 1) + 1
