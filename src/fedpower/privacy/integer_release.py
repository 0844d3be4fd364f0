"""The joint release of moment, mean and trace where rows are whole numbers: no float is in the proof.

Rows are integer vectors z with ‖z‖² ≤ S², a bound that `fedpower.data.lattice_rows` enforces in whole
numbers. A silo holds G = Σ z zᵀ, m = Σ z and t = Σ ‖z‖², exactly. To each of these integers it adds an
integer round(M·X), X a standard normal drawn by `noise.gaussian_integers`, with a scale M of its own
kind: one for the diagonal and the trace, one below the diagonal, one for the mean.

Neighbours: replace one row z by w, both of squared norm at most S²; the number of rows is public.

Lemma. Let c be `MEAN_WEIGHT`, or another weight of at most 3/4. Then
‖ΔG‖_F² + 2c²S²‖Δm‖² + (Δt)² ≤ 2(1 + c²)²S⁴, and with c = 0, ‖ΔG‖_F² + (Δt)² ≤ 2S⁴.

Proof. x = z/S and y = w/S are vectors over the rationals of norm at most 1, and the left-hand side is
S⁴ times the squared change that `summary.summary_sensitivity` bounds, of a silo of one row. ∎

Theorem. Let M, M′, M″ be whole numbers with M ≥ √2(1 + c²)S²/μ, M′ ≥ M/√2 and M″ ≥ M/(√2·c·S). The
vector of G_jj + round(MX), G_jl + round(M′X) for j > l, m_j + round(M″X) and t + round(MX), all X
independent, is μ-GDP.

Proof. n + round(MX) = round(n + MX) for a whole number n, so each number is the rounding of a Gaussian
one: post-processing. Divide each of these by its own scale: unit variances, and a change of squared norm
Σ_j(ΔG_jj)²/M² + Σ_{j>l}(ΔG_jl)²/M′² + ‖Δm‖²/M″² + (Δt)²/M²
≤ [Σ_j(ΔG_jj)² + 2Σ_{j>l}(ΔG_jl)² + 2c²S²‖Δm‖² + (Δt)²]/M² ≤ 2(1 + c²)²S⁴/M² ≤ μ²,
by the lemma, since the first two sums are ‖ΔG‖_F². ∎

What is not there: an allowance for the rounding of sums (`sensitivity.rounding_slack`, which grows with
the number of rows: `budget.longest_sum`), one for √2·G_jl in float64, and one for quantising
(`lattice`'s g√N): the noise is on the lattice of the integers themselves. The scales exceed the ideal by
less than one step, a relative 2⁻⁴⁰ for the moment and 2⁻²⁰ for the mean at S = 2²⁰.

How a silo releases by it: `integer_noise` gives the scales from public numbers; G's lower triangle, m
and t are noised by `perturb_integers`; all that follows is post-processing, in float64: `packed_integers`
gives G/(s·S²), the moment, m/(s·S), the mean, and t/(s·S²), the trace, in units of the bound B. A secure
sum adds the silos' integers as they are: Σ_i G_i is that of all rows, so that no weights s_i/n enter, and
every silo's row moves it by the same.

Shift. A ring of 2⁶⁴ holds n·S² and the noise up to about n = 2²² rows at S = 2²⁰. Past that, a silo first
divides G and t by 2^k and rounds; m, which is 2²⁰ times smaller, stays. M and M′ then count steps of 2^k.

Corollary. The same release of ⌊G/2^k⌉, m and ⌊t/2^k⌉ is μ-GDP if
M·2^k ≥ (√2(1 + c²)S² + 2^k·√(d² + 1))/μ, M′ ≥ M/√2 and M″ ≥ M·2^k/(√2·c·S).

Proof. Rounding moves each of the d + d(d − 1)/2 + 1 numbers by at most ½ on either side of a pair of
neighbours, so their difference by at most 1. In units of the scales that is a vector of squared norm at
most (d + 1)/M² + d(d − 1)/(2M′²) ≤ (d² + 1)/M², added to one of norm √2(1 + c²)S²/(M·2^k). ∎

With 10⁹ rows and 100 columns it costs a relative 10⁻⁸ of the noise.

Persons. Where a person is the unit, her m rows have whole numbers k = P·b with m·b² ≤ C, and integers z
with ‖z‖² ≤ S²b²; Σ z zᵀ, m = Σ k z and Σ ‖z‖² are held. With y = z/(Sb) these are S²·Σ b²·y yᵀ,
S·P·Σ b²·y and S²·Σ b²·‖y‖²: the weights b², which add up to C at most, times what rows y of norm at most
1 contribute. So the lemma holds for her with C²-fold right-hand side (`sensitivity.unit_sensitivity`),
Δm counted in units of 1/P, and the theorem with C times M and M′ and C·P times M″: exactly, in whole
numbers, for every m.
"""

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
"""P: how much finer Σ k z is than Σ z where persons count (`fedpower.data.units`)."""

SIDE = 2**20
"""S of every release; `fedpower.data.lattice_rows` rounds rows to as many bits."""

MOST_SHIFT = 32
"""Of k: what `Words.over` divides by."""

_PARTS = 2**40  # roots are rounded up to a multiple of one part


@dataclass(frozen=True, slots=True, kw_only=True)
class IntegerNoise:
    """Standard deviations of the integers that are added, whole numbers all.

    Attributes
    ----------
    diagonal
        M, of G_jj and of the trace, in steps of 2^shift.
    below
        M′, of G_jl for j > l, in steps of 2^shift.
    mean
        M″, of Σ z; 0 where the mean is not released.
    side
        S.
    moved
        How far one row moves the release, in the units of G and rounded up: what M·2^shift is made for.
    shift
        k.
    mean_weight
        c.
    parts
        P: Σ z comes in units of 1/P.
    """

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
    """Return the least whole scales whose release is 1/multiplier-GDP, by integer arithmetic alone.

    Parameters
    ----------
    multiplier
        Noise over sensitivity, `Budget.multiplier`; taken as the fraction that a float64 is.
    with_mean
        Whether Σ z is released too.
    side
        S: rows have squared norm at most S².
    shift, n_features
        k and d: see the corollary.
    mean_weight
        c, at most 3/4.
    per_unit
        C where a person is the unit; 0 where a row is.
    """
    if not 0 < multiplier < math.inf:
        raise InputError(
            f"multiplier must be a positive number, got {multiplier!r}; calibrate it first"
        )
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
    below: Words,
    total: NDArray[np.int64] | None,
    trace: int,
    *,
    noise: IntegerNoise,
    source: NoiseSource,
) -> tuple[Words, NDArray[np.int64] | None, int]:
    """Return the lower triangle of G, Σ z and Σ ‖z‖², noised: the theorem's release.

    Where the noise has a shift, the first comes divided by 2^shift, in one word, and so does the last.

    Parameters
    ----------
    below
        G_jl for j ≥ l, row by row.
    total
        Σ z; None where the mean is not released.
    trace
        Σ ‖z‖².
    noise
        The scales.
    source
        `SystemNoise()`, or words for an experiment.
    """
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
    below: Words,
    total: NDArray[np.int64] | None,
    trace: int,
    *,
    n_rows: int,
    noise: IntegerNoise,
) -> NDArray[np.float64]:
    """Return what noised integers say of s rows in units of the bound, as `summary.pack` lays it out.

    Parameters
    ----------
    below, total, trace
        As `perturb_integers` gives them, or sums of such.
    n_rows
        s.
    noise
        The scales, for S and the shift.
    """
    size = 0 if total is None else total.size
    vector = np.empty(below.low.size + size + 1)
    unit = n_rows * noise.side**2
    half = below.low.size
    np.multiply(below.to_float(), factors((math.isqrt(8 * half + 1) - 1) // 2), out=vector[:half])
    vector[:half] *= 2.0**noise.shift / unit
    if total is not None:
        vector[half:-1] = total * (
            math.sqrt(2.0) * noise.mean_weight / (n_rows * noise.side * noise.parts)
        )
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
