"""How far one row moves the sums that preparation asks for, what noise hides it, and what each may cost.

Preparation finds offset, scale and bound privately, by five sums over rows of whole numbers
(`fedpower.data.survey`), each asked in the light of the noised answers to those before. Every number is
noised on its own lattice, the integers: n + round(MX) = round(n + MX) for a whole number n, so each
release is the Gaussian mechanism, rounded (`integer_release`).

Neighbours: replace one row x by y; the number of rows is public. Norm: Euclidean.

Theorem. Let f columns be open (without a range from the user) and d there be in all.
(1) ``octaves`` and ``bins``: a row counts 1 in one place of each open column. Replacing it changes the
    counts by a vector of squared norm at most 2f. ``zoom`` counts in some of them alone, f′, which the
    question names: 2f′.
(2) ``norms`` and ``scores``: a row counts 1 in one place. The squared norm is at most 2.
(3) ``means``: a row adds (Q·q_j, q_j², W) for every column in which it has a cell, q_j whole, |q_j| ≤ Q
    and W = Q², and nothing for one in which its cell is missing. The squared norm is at most 4dQ⁴.

Proof. (1), (2): of each column one count falls by 1 and one rises by 1, or none changes; missing cells
have a place of their own. (3): of one column with a cell before and after, with z = q/Q and w = q'/Q in
[−1, 1], the change is Q⁴ times
(z − w)² + (z² − w²)² = a²(1 + b²) for a = |z − w|, b = |z + w|. As a + b = 2·max(|z|, |w|) ≤ 2, it is at
most g(a) = a²(1 + (2 − a)²) for some 0 ≤ a ≤ 2, and g′(a) = 2a[1 + 2(2 − a)(1 − a)] ≥ a > 0, because
(2 − a)(a − 1) ≤ ¼. So g ≤ g(2) = 4: the squares are free beside the means. With a cell in one of the two
rows alone it is Q⁴(z² + z⁴) + W² ≤ 3Q⁴: so are the counts of cells. ∎

Corollary. A release whose counts have noise of scale M ≥ √(2f)/μ, or M ≥ √2/μ, or whose Σq² has
M ≥ 2√d·Q²/μ, whose Σq has M′ ≥ M/Q and whose counts of cells have M″ ≥ M/W, all whole numbers, is μ-GDP.
For (3): divided by their scales, the change has squared norm at most that of (Q·Δq, Δq², WΔ1) over M,
4dQ⁴/M². ∎

**Persons.** Where a person is the unit, each of her m rows has a whole weight ω, m·ω ≤ C·T, and what a
row adds is multiplied by it. Her part is C·T times a point of the convex hull of what single rows add, 0
among them, so that it moves by C·T times as much at most (`sensitivity.unit_sensitivity`): (1) to (3)
hold with C²T²-fold bounds, in whole numbers.

**Scores.** Once the components are known, rows may be counted by their scores on two of them
(`fedpower.data.score_counts`): a sum like ``norms``, asked last, whose places follow from what was
released before it.

**Composition.** The five and the moment are adaptive Gaussian releases: Σμ² is exactly what they cost
together [DRS22 Cor. 3.3]. A stage has a share of μ²; the moment has the rest.
"""

import math
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.noise import NoiseSource, gaussian_integers
from fedpower.privacy.sensitivity import whole

Shares = tuple[float, float, float, float, float]
"""Of μ², for each of `STAGES`; 0 where one is not asked."""

STAGES = ("octaves", "bins", "zoom", "means", "norms")

SCORES = "scores"
"""What the counts of rows by their scores are called, among stages and among several sums."""

MOST_COUNTS = 256
"""No stage has more numbers than this for each open column, or than twice this where there are none."""

TALLY_PARTS = 2**12
"""T: what a row of a person who has no other counts for (`fedpower.data.units`)."""

_MOST = (0.05, 0.03, 0.02, 0.08, 0.02)
_LEAST = (0.01, 0.01, 0.005, 0.02, 0.005)
_GOAL = (0.002, 0.002, 0.002, 0.01, 0.002)
_COARSE = 0.05
"""Octaves and bins get twice the most where a count's noise would be more than this share of the rows."""


def shares_of(
    *, n_rows: int | None, n_features: int, n_open: int, mu: float, n_noises: int = 1
) -> Shares:
    """Return what each stage of preparation may spend of μ², from public numbers.

    A stage gets what brings its noise to a goal: 0.2% of the rows for a count, 1% of half a range for a
    mean and a mean square. Less than a least share is not worth the saving, and more than a most share
    would take from the moment what it brings: 20% in all at most, 10% where every column has a range.
    Where rows are so few, or so many silos add noise of their own, that a count's noise would be above 5%
    of the rows, octaves and bins get twice the most: a range that is wrong costs more than they do. The
    goals and limits were found by simulation (docs/decisions/0024). Without a number of rows it is the
    most.

    Parameters
    ----------
    n_rows, n_features, n_open
        n of all silos, d and how many columns have no range from the user.
    mu
        The Gaussian-DP parameter of the whole fit.
    n_noises
        How many silos add noise of their own; 1 where they share it.
    """
    counts = math.sqrt(2.0 * n_open)
    moved = (counts, counts, counts, 2.0 * math.sqrt(n_features), math.sqrt(2.0))
    shares = []
    for kind, length, goal, least, most in zip(STAGES, moved, _GOAL, _LEAST, _MOST, strict=True):
        share = most
        if n_rows is not None and length:
            wanted = length / (n_rows * mu)
            coarse = wanted * math.sqrt(n_noises / most) > _COARSE
            if kind in ("octaves", "bins") and coarse:
                share = 2.0 * most
            else:
                share = min(max((wanted / goal) ** 2, least), most)
        # To three digits, so that a study says it as it is.
        shares.append(float(f"{share:.3g}") if length else 0.0)
    return (shares[0], shares[1], shares[2], shares[3], shares[4])


def scores_share(scores_epsilon: float, epsilon: float, delta: float) -> float:
    """Return the share of μ² with which counts of scores alone cost ``scores_epsilon`` of ``epsilon``.

    To three digits, rounded down, so that a study says it as it is, and never more than was asked for.
    """
    share = (mu_of(scores_epsilon, delta) / mu_of(epsilon, delta)) ** 2
    unit = 10.0 ** (math.floor(math.log10(share)) - 2)
    return float(f"{math.floor(share / unit) * unit:.3g}")


def stage_scales(
    kind: str, multiplier: float, *, n_features: int, n_open: int, side: int, per_unit: int = 0
) -> tuple[int, ...]:
    """Return the least whole scales of a stage's noise: of its counts, or of Σq, Σq² and the cells.

    Parameters
    ----------
    kind
        One of `STAGES`, or `SCORES`.
    multiplier
        Noise over sensitivity, 1/μ of the stage; taken as the fraction that a float64 is.
    n_features, n_open
        d and f.
    side
        Q.
    per_unit
        C where a person is the unit; 0 where a row is.
    """
    if not 0 < multiplier < math.inf:
        raise InputError(
            f"multiplier must be a positive number, got {multiplier!r}; calibrate it first"
        )
    moved = squared_sensitivity(kind, n_features, n_open, side, per_unit)
    scale = _least_root(Fraction(multiplier) ** 2 * moved)
    return tuple(-(-scale // times) for times in part_weights(kind, side))


def part_weights(kind: str, side: int) -> tuple[int, ...]:
    """Return what the parts of a stage's vector are multiplied by to have noise of one scale."""
    return (side, 1, side**2) if kind == "means" else (1,)


def squared_sensitivity(
    kind: str, n_features: int, n_open: int, side: int, per_unit: int = 0
) -> int:
    """Return by how much at most one row, or one person, moves a stage's vector, squared.

    The theorem above. Of ``means`` it is that of (Q·Σq, Σq², W·Σ1).
    """
    return _moved_by_a_row(kind, n_features, n_open, side) * ((per_unit * TALLY_PARTS) ** 2 or 1)


def _moved_by_a_row(kind: str, n_features: int, n_open: int, side: int) -> int:
    if kind in ("octaves", "bins", "zoom"):
        return 2 * whole("n_open", n_open)
    if kind == "means":
        return 4 * whole("n_features", n_features) * whole("side", side) ** 4
    if kind in ("norms", SCORES):
        return 2
    raise InputError(f"a stage must be one of {', '.join(STAGES)}, got {kind!r}; ask for one")


def perturb_stage(
    exact: NDArray[np.int64], scales: tuple[int, ...], source: NoiseSource
) -> NDArray[np.int64]:
    """Return a stage's whole numbers with noise, in as many equal parts as there are scales.

    Parameters
    ----------
    exact
        The sums, as secret as the rows.
    scales
        As `stage_scales` gives them.
    source
        `SystemNoise()`, or words for an experiment.
    """
    part = exact.size // len(scales)
    added = [gaussian_integers(source, part, scale=scale) for scale in scales]
    return exact + np.concatenate(added)


def _least_root(square: Fraction) -> int:
    """Return the least whole number whose square is at least the given one."""
    least = -(-square.numerator // square.denominator)
    return math.isqrt(least - 1) + 1 if least > 0 else 1
