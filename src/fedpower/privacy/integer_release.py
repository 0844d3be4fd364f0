"""The joint release of moment, mean and trace where rows are whole numbers: no float is in the proof."""

import functools
import math
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg.words import Words
from fedpower.privacy.noise import WIDEST_SCALE, NoiseSource, gaussian_integers
from fedpower.privacy.sensitivity import LARGEST_MEAN_WEIGHT, MEAN_WEIGHT, factors, whole

UNIT_PARTS = 2**16
"""P: how much finer Σ k z is than Σ z where persons count (`fedpower.rows.units`)."""

SIDE = 2**20
"""S of every release; `fedpower.sums.lattice_rows` rounds rows to as many bits."""

MOST_SHIFT = 32
"""Of k: what `Words.over` divides by."""

_PARTS = 2**40  # roots are rounded up to a multiple of one part


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerNoise:
    """Standard deviations of the integers that are added, whole numbers all."""

    diagonal: int
    below: int
    mean: int
    side: int
    moved: Fraction
    shift: int = 0
    mean_weight: float = MEAN_WEIGHT
    parts: int = 1

    @property
    def mu(self) -> float:
        """The Gaussian-DP parameter of the release, rounded up."""
        return math.nextafter(float(self.moved / (self.diagonal << self.shift)), math.inf)

    def std(self, n_rows: int) -> float:
        """Return the noise on the diagonal of the moment of s rows, in units of the bound's square."""
        return (self.diagonal << self.shift) / (whole("n_rows", n_rows) * self.side**2)

    def with_diagonal(self, diagonal: int) -> "IntegerNoise":
        """Return the noise with another M, and the least M′ and M″ that go with it."""
        mean = 0
        if self.mean:
            whole_scale = (diagonal << self.shift) * self.parts
            mean = _mean_scale(whole_scale, self.side, self.mean_weight)
        below = _ceil_root(Fraction(diagonal**2, 2))
        return replace(self, diagonal=diagonal, below=below, mean=mean)


@functools.lru_cache(maxsize=256)  # fractions take a tenth of a millisecond, and every silo asks
def integer_noise(
    multiplier: float,
    *,
    with_mean: bool,
    side: int = SIDE,
    shift: int = 0,
    n_features: int = 1,
    mean_weight: float = MEAN_WEIGHT,
    per_unit: int = 0,
) -> IntegerNoise:
    """Return the least whole scales whose release is 1/multiplier-GDP, by integer arithmetic alone."""
    if not 0 < multiplier < math.inf:
        raise InputError(f"multiplier must be a positive number, got {multiplier!r}; calibrate it first")
    weight = mean_weight if with_mean else 0.0
    moved = root_above(_squared_sensitivity(whole("side", side), weight)) * max(1, per_unit)
    if shift:
        moved += root_above(Fraction(n_features**2 + 1)) * 2**shift
    diagonal = math.ceil(Fraction(multiplier) * moved / 2**shift)
    if diagonal > WIDEST_SCALE:
        raise InputError(
            f"noise must be at most {WIDEST_SCALE} steps of the rows' lattice, got {diagonal}; ask for a "
            "larger epsilon"
        )
    first = IntegerNoise(
        diagonal=diagonal,
        below=1,
        mean=int(with_mean),
        side=side,
        moved=moved,
        shift=shift,
        mean_weight=mean_weight,
        parts=UNIT_PARTS if per_unit else 1,
    )
    return first.with_diagonal(diagonal)


def perturb_integers(
    below: Words, total: NDArray[np.int64] | None, trace: int, *, noise: IntegerNoise, source: NoiseSource
) -> tuple[Words, NDArray[np.int64] | None, int]:
    """Return the lower triangle of G, Σ z and Σ ‖z‖², noised: the theorem's release."""
    size = below.low.size
    n_features = (math.isqrt(8 * size + 1) - 1) // 2
    if n_features * (n_features + 1) // 2 != size or (total is None) != (noise.mean == 0):
        raise InputError(
            "a release must hold a lower triangle, and a mean row if and only if noise was made for one, "
            f"got {size} numbers; check what is packed"
        )
    below, trace = below.over(noise.shift), (trace + (1 << noise.shift >> 1)) >> noise.shift
    added = gaussian_integers(source, size, scale=noise.below)
    added[_diagonal(n_features)] = gaussian_integers(source, n_features, scale=noise.diagonal)
    mean = None
    if total is not None:
        mean = total + gaussian_integers(source, total.size, scale=noise.mean)
    noised_trace = trace + int(gaussian_integers(source, 1, scale=noise.diagonal)[0])
    return below.plus(added), mean, noised_trace


@functools.lru_cache(maxsize=1)
def _diagonal(n_features: int) -> NDArray[np.intp]:
    """Return where the diagonal is in a lower triangle."""
    places = np.arange(1, n_features + 1)
    return np.asarray(places * (places + 1) // 2 - 1)


def packed_integers(
    below: Words, total: NDArray[np.int64] | None, trace: int, *, n_rows: int, noise: IntegerNoise
) -> NDArray[np.float64]:
    """Return what noised integers say of s rows in units of the bound, as `summary.pack` lays it out."""
    size = 0 if total is None else total.size
    vector = np.empty(below.low.size + size + 1)
    unit = n_rows * noise.side**2
    half = below.low.size
    np.multiply(below.to_float(), factors((math.isqrt(8 * half + 1) - 1) // 2), out=vector[:half])
    vector[:half] *= 2.0**noise.shift / unit
    if total is not None:
        vector[half:-1] = total * (math.sqrt(2.0) * noise.mean_weight / (n_rows * noise.side * noise.parts))
    vector[-1] = (trace << noise.shift) / unit  # of whole numbers, rounded once
    return vector


def _mean_scale(diagonal: int, side: int, weight: float) -> int:
    """Return the least whole M″ of at least M/(√2·c·S)."""
    return _ceil_root(Fraction(diagonal**2) / (2 * Fraction(weight) ** 2 * side**2))


def _squared_sensitivity(side: int, weight: float) -> Fraction:
    """Return 2(1 + c²)²S⁴, exactly."""
    if not 0 <= weight <= LARGEST_MEAN_WEIGHT:
        raise InputError(
            f"mean_weight must lie between 0 and {LARGEST_MEAN_WEIGHT}, where the theorem holds, got "
            f"{weight}; leave it alone"
        )
    return 2 * (1 + Fraction(weight) ** 2) ** 2 * side**4


def _ceil_root(square: Fraction) -> int:
    """Return the least whole number whose square is at least the given one."""
    least = -(-square.numerator // square.denominator)  # squares of whole numbers are whole
    return math.isqrt(least - 1) + 1 if least > 0 else 0


def root_above(square: Fraction) -> Fraction:
    """Return a number whose square is at least the given one, and hardly more."""
    return Fraction(_ceil_root(square * _PARTS**2), _PARTS)
