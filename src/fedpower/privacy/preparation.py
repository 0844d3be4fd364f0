"""How far one row moves the sums that preparation asks for, what noise hides it, and what each may
cost.
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
"""T: what a row of a person who has no other counts for (`fedpower.rows.units`)."""

_MOST = (0.05, 0.03, 0.02, 0.08, 0.02)
_LEAST = (0.01, 0.01, 0.005, 0.02, 0.005)
_GOAL = (0.002, 0.002, 0.002, 0.01, 0.002)
_COARSE = 0.05
"""Octaves and bins get twice the most where a count's noise would be more than this share of the rows."""


def shares_of(*, n_rows: int | None, n_features: int, n_open: int, mu: float, n_noises: int = 1) -> Shares:
    """Return what each stage of preparation may spend of μ², from public numbers."""
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
    """Return the share of μ² with which counts of scores alone cost ``scores_epsilon`` of ``epsilon``."""
    share = (mu_of(scores_epsilon, delta) / mu_of(epsilon, delta)) ** 2
    unit = 10.0 ** (math.floor(math.log10(share)) - 2)
    return float(f"{math.floor(share / unit) * unit:.3g}")


def stage_scales(
    kind: str, multiplier: float, *, n_features: int, n_open: int, side: int, per_unit: int = 0
) -> tuple[int, ...]:
    """Return the least whole scales of a stage's noise: of its counts, or of Σq, Σq² and the cells."""
    if not 0 < multiplier < math.inf:
        raise InputError(f"multiplier must be a positive number, got {multiplier!r}; calibrate it first")
    moved = squared_sensitivity(kind, n_features, n_open, side, per_unit)
    scale = _least_root(Fraction(multiplier) ** 2 * moved)
    return tuple(-(-scale // times) for times in part_weights(kind, side))


def part_weights(kind: str, side: int) -> tuple[int, ...]:
    """Return what the parts of a stage's vector are multiplied by to have noise of one scale."""
    return (side, 1, side**2) if kind == "means" else (1,)


def squared_sensitivity(kind: str, n_features: int, n_open: int, side: int, per_unit: int = 0) -> int:
    """Return by how much at most one row, or one person, moves a stage's vector, squared."""
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
    """Return a stage's whole numbers with noise, in as many equal parts as there are scales."""
    part = exact.size // len(scales)
    added = [gaussian_integers(source, part, scale=scale) for scale in scales]
    return exact + np.concatenate(added)


def _least_root(square: Fraction) -> int:
    """Return the least whole number whose square is at least the given one."""
    least = -(-square.numerator // square.denominator)
    return math.isqrt(least - 1) + 1 if least > 0 else 1
