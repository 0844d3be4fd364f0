"""Noise that silos share: each adds a part, and only the sum has to hide a row.

A coordinator that sees nothing but the sum of m silos' integers needs noise in the sum alone. So each
silo adds a share, and the shares of any m − c silos (the rest may tell theirs) reach the full amount.

Unit and neighbours are those of `sensitivity`; the sum is that of the silos' whole numbers
(`integer_release`), so one row moves it by as much whichever silo holds it, and no weights enter.
"""

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
    """The noise of one secure sum.

    Attributes
    ----------
    share
        The noise of one silo: its ``diagonal`` is a, the least with (m − c)·a² ≥ M², where M is what the
        honest silos' shares must reach together.
    n_rows
        n, of all silos.
    n_silos, colluders
        m and c.
    """

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
    """Return the noise of the sum over silos of these sizes; refuse what the ring cannot hold.

    Public facts alone decide. Neighbours: replace one row of one silo, rows of squared norm at most S².

    Theorem. Let every silo on the roll add round(aX) to each of its N integers, X independent standard
    normals and a the scale of its kind (`IntegerNoise`). Whoever sees the sum, and knows all about at
    most c of its m silos, sees a release that is μ-GDP up to total variation N·`sum_distance`,
    μ = moved/(2^k·a·√(m − c)) ≤ `budget.mu`, a that of the diagonal.

    Proof. What is known of the c silos can be taken off the sum: what is left is Q + T, Q the sum of
    the other silos' whole numbers and T that of h ≥ m − c shares. A row enters one silo's numbers only,
    and moves them, and so Q, by what the lemma and the corollary of `integer_release` say. By
    `sum_distance`, T is distributed as round(√h·a·X + V) with V independent of everything, so Q + T is
    as round((Q + √h·a·X) + V): the Gaussian mechanism on Q, then an independent V added, then a
    rounding. Both are post-processing. And √h·a of the three kinds are to each other as a are. ∎

    Ring. No number of the sum exceeds n·S²/2^k, or n·S for Σ z, and no draw 14a. k is the least for which
    that and the draws of all m silos stay within 2⁶²: k = 0 up to about 2²² rows.

    Equal shares are the best, whatever the sizes. For let a₁ ≤ … ≤ a_m be any shares whose m − c
    smallest reach M² = Σ_{i ≤ m−c} a_i²; their mean square M²/(m − c) is no more than any of the other c
    squares, so Σa_i² ≥ m·M²/(m − c), which equal shares attain. Sizes do not enter, because a row moves
    the sum by the same in every silo.

    Parameters
    ----------
    budget
        The price list, with ``n_sharing`` and ``colluders``.
    sizes
        Rows of each silo on the roll.
    """
    rows = list(sizes)
    m, n = len(rows), sum(rows)
    if m <= budget.colluders:
        raise InputError(
            f"a secure sum must have more silos than the {budget.colluders} that may collude, got {m}; "
            "bring more silos or declare fewer colluders"
        )
    share = next(
        (found for k in range(MOST_SHIFT + 1) if _fits(found := _share(budget, m, k), n, m)), None
    )
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
    """The noise of one secure sum of any whole numbers.

    Attributes
    ----------
    share
        a, the standard deviation of what each silo adds to each number, in steps of 2^−fineness.
    fineness
        b: numbers are multiplied by 2^b before noise is added, so that shares are wide enough.
    moved
        How far one row moves the vector that is summed, in its own units.
    n_silos, colluders
        m and c.
    """

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
    multiplier: float,
    *,
    sensitivity: Fraction | float,
    per_row: int,
    sizes: Iterable[int],
    colluders: int,
) -> SumNoise:
    """Return the noise of a sum of whole numbers of any kind; refuse what the ring cannot hold.

    Public facts alone decide. Neighbours: replace one row of one silo.

    Theorem. Let every silo on the roll multiply its whole numbers by 2^b and add round(aX) to each, X
    independent standard normals. If a row moves the vector of the numbers by at most Δ in Euclidean norm
    and (m − c)·a² ≥ (multiplier·2^b·Δ)², whoever sees the sum and knows all about at most c of its m
    silos sees a release that is μ-GDP with μ = 1/multiplier, up to total variation N·`sum_distance`.

    Proof. That of `shared_noise`, with one scale for all numbers: what is left is round((2^b·Q + √h·a·X)
    + V), where Q moves by Δ, h ≥ m − c, and V is independent of everything. ∎

    Parameters
    ----------
    multiplier
        Noise over sensitivity of the sum; taken as the fraction that a float64 is.
    sensitivity
        Δ, rounded up where it is no fraction (`integer_release.root_above`).
    per_row
        No row adds more to a number than this, in absolute value.
    sizes
        Rows of each silo on the roll.
    colluders
        c.
    """
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
    """Return a bound on how far Σ round(aX_i) is from round(√h·aX + V), in total variation.

    Theorem. Let X, X_1, …, X_h be independent standard normals, a ≥ 1, and V the sum of h − 1 independent
    uniform variables on [−½, ½]. Then T = Σ round(aX_i) and R = round(√h·aX + V) are within
    (50√h·a + h)·9h·e^(−π²a²/2) + 2e^(−1250) of each other, if 3h·e^(−π²a²/2) ≤ 1.

    So a sum of rounded Gaussians is no rounded Gaussian, but it is one that an independent,
    bounded variable was added to before it was rounded, and that costs no privacy. From a = 2¹⁰ on the
    bound is below 2⁻¹⁰⁰⁰, for any h below 2³².

    Proof. Let u be the density of a uniform variable on [−½, ½], with transform s(t) = sin(t/2)/(t/2),
    and φ_a that of aX. P[round(Y) = k] is (f_Y ∗ u)(k). So round(aX) has the values of φ_a ∗ u at the
    integers for its law, and by Poisson summation the characteristic function Σ_j G_a(θ + 2πj),
    G_a(t) = e^(−a²t²/2)s(t), j over all integers. For |θ| ≤ π the terms j ≠ 0 add up to at most
    β = 3e^(−π²a²/2). A product of h of them is within (1 + β)^h − 1 ≤ 2hβ of
    G_a(θ)^h = e^(−ha²θ²/2)s(θ)^h. The law of R has the values of φ_{√h·a} ∗ u^{∗h} at the integers, whose
    characteristic function is within β of the very same. Hence |P[T = k] − P[R = k]| ≤ 3hβ for every k.
    Both are within h/2 of a normal variable of standard deviation M = √h·a, so beyond
    |k| ≤ L = 50M + h/2 each has at most 2e^(−1250); and half the sum of the differences is at most
    (L + ½)·3hβ + 2e^(−1250). ∎
    """
    alias = 3.0 * math.exp(-0.5 * (math.pi * share) ** 2)
    if n_shares * alias > 1:
        return 1.0
    spread = 50.0 * math.sqrt(n_shares) * share + n_shares
    # e^(−700), 2⁻¹⁰¹⁰, stands for e^(−1250), which is below the smallest float64.
    return min(1.0, spread * 3 * n_shares * alias + 2.0 * math.exp(-700))


def _least_share(scale: int, n_honest: int) -> int:
    """Return the least whole a with n_honest·a² ≥ scale²; exact."""
    return math.isqrt(-(-(scale**2) // n_honest) - 1) + 1
