"""How far one row can move what a silo releases: the bounds every noise level rests on.

Neighbours are data sets of the same public number of rows s that differ in the values of one row
(*replace-one*); every row has Euclidean norm at most 1. Norms are Frobenius norms of the released
array, which are Euclidean norms of its entries, as the Gaussian mechanism needs.
"""

from __future__ import annotations

import functools
import math
from numbers import Integral

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import lower_of, lower_triangle, symmetric_of

_UNIT_ROUNDOFF = 2.0**-53


def moment_sensitivity(n_rows: int) -> float:
    """Return √2/s, the Frobenius sensitivity of the second moment A = MᵀM/s.

    Neighbours: replace one row x by y, both of norm ≤ 1. Norm: Frobenius.

    Theorem. ‖xxᵀ − yyᵀ‖_F ≤ √2, with equality if and only if x ⟂ y are unit vectors.

    Proof. ⟨xxᵀ, yyᵀ⟩ = (xᵀy)², so ‖xxᵀ − yyᵀ‖_F² = ‖x‖⁴ + ‖y‖⁴ − 2(xᵀy)² ≤ 2. Neighbouring moments
    differ by (xxᵀ − yyᵀ)/s. ∎

    Deviation: [FP Thm 2, first step of the proof] uses the triangle inequality and gets 2/s.
    """
    return math.sqrt(2.0) / whole("n_rows", n_rows)


def product_sensitivity(n_rows: int, iteration_rank: int) -> float:
    """Return the Frobenius sensitivity of A Z, Z d×r with ‖Z‖₂ ≤ 1: 1/s if r = 1, else √2/s.

    Neighbours: replace one row x by y, both of norm ≤ 1; Z is the same for both (it is public, or a
    function of earlier releases, on which adaptive composition conditions). Norm: Frobenius.

    Theorem. With D = xxᵀ − yyᵀ, ‖D z‖ ≤ 1 for a unit vector z, and ‖D Z‖_F ≤ √2 for every r. Both
    are attained.

    Proof. −yyᵀ ⪯ D ⪯ xxᵀ, so the eigenvalues of D lie in [−‖y‖², ‖x‖²] and ‖D‖₂ ≤ 1: the first
    claim, attained by x = z = e₁, y = e₂. For any r, ‖D Z‖_F ≤ ‖D‖_F‖Z‖₂ ≤ √2 by
    `moment_sensitivity`, attained from r = 2 on by x = e₁, y = e₂, Z = [e₁, e₂, …]. ∎

    Deviation: [FP Thm 2] stacks r columns of sensitivity 2/s each and gets 2√r/s.
    """
    bound = 1.0 if whole("iteration_rank", iteration_rank) == 1 else math.sqrt(2.0)
    return bound / whole("n_rows", n_rows)


def clipped_sensitivity(clip: float, iteration_rank: int) -> float:
    """Return Δ(α), how far one row moves Σ x·c(Zᵀx)ᵀ, where c shortens a vector to norm α ≤ 1.

    Neighbours: replace one row x by y, both of norm ≤ 1; Z (d×r, orthonormal columns) is the same for
    both. Norm: Frobenius. c(p) = p·min(1, α/‖p‖).

    Theorem. Δ² is at most 4α²(1 − α²) for α² ≤ 1/3, and (1 + α²)²/2 from there to α = 1, where it is
    the 2 of `moment_sensitivity`; with one column it is 4α²(1 − α²) up to α² = 1/2, and 1 beyond. All
    are attained.

    Proof. Let p = c(Zᵀx), q = c(Zᵀy), s = ‖p‖, t = ‖q‖ and c = pᵀq. The squared change is F = ‖x‖²s² +
    ‖y‖²t² − 2c·xᵀy ≤ s² + t² − 2c·xᵀy. Write xᵀy = (Zᵀx)ᵀ(Zᵀy) + v, where v is the inner product of
    what lies outside Z. Shortening keeps directions, so (Zᵀx)ᵀ(Zᵀy) has the sign of c and is at least
    as far from 0; and ‖Zᵀx‖ ≥ s, ‖Zᵀy‖ ≥ t, so |v| ≤ √(1 − s²)√(1 − t²) ≤ 1 − m with m = (s² + t²)/2.
    Hence −c·xᵀy ≤ −c² + |c|(1 − m), and F ≤ 2m + 2|c|(1 − m − |c|), where |c| ≤ st ≤ m ≤ α². That grows
    with m, so F ≤ f(|c|) = 2α² + 2|c|(1 − α² − |c|) for some 0 ≤ |c| ≤ α². f is largest at |c| = (1 −
    α²)/2, if that is at most α², which is α² ≥ 1/3, with (1 + α²)²/2; else at |c| = α², with 4α²(1 −
    α²). Two rows attain it with p and q at the angle that c asks for, and opposite signs inside Z and
    outside.

    With one column |c| = st, so F ≤ s² + t² + 2st(√(1 − s²)√(1 − t²) − st): with s = sin φ and t = sin
    ψ it is sin²(φ + ψ) ≤ 1, and for φ, ψ ≤ π/4 it is largest with both at arcsin α: sin² 2φ = 4α²(1 −
    α²). ∎

    Deviation: clipping the weight alone, ‖x‖‖Zᵀx‖ ≤ α, gives 2α by the triangle inequality.
    """
    if not 0 < clip <= 1:
        raise InputError(f"clip must lie above 0 and be at most 1, got {clip!r}; give one between")
    square = clip * clip
    if whole("iteration_rank", iteration_rank) == 1:
        return 1.0 if square >= 0.5 else 2.0 * clip * math.sqrt(1.0 - square)
    if square <= 1.0 / 3.0:
        return 2.0 * clip * math.sqrt(1.0 - square)
    return (1.0 + square) / math.sqrt(2.0)


def mean_sensitivity(n_rows: int) -> float:
    """Return 2/s, the Euclidean sensitivity of the mean row.

    Neighbours: replace one row x by y, both of norm ≤ 1. Norm: Euclidean.

    Proof. Neighbouring means differ by (x − y)/s and ‖x − y‖ ≤ 2, attained by y = −x, ‖x‖ = 1. ∎
    """
    return 2.0 / whole("n_rows", n_rows)


def paper_sensitivity(n_rows: int, iteration_rank: int) -> float:
    """Return 2√r/s, the sensitivity of A Z as printed in [FP Thm 2, first step of the proof].

    Neighbours: replace one row of norm 1. Norm: Frobenius. Valid, but √(2r) times
    `product_sensitivity` (2 times for r = 1); kept so that the mode `paper` is the paper's.
    """
    return 2.0 * math.sqrt(whole("iteration_rank", iteration_rank)) / whole("n_rows", n_rows)


def rounding_slack(
    n_rows: int, n_features: int, *, iteration_rank: int = 1, longest_sum: int | None = None
) -> float:
    """Return what float64 arithmetic can add to the sensitivity of a moment or of a product.

    Neighbours and norm as in `moment_sensitivity` and `product_sensitivity`. Real-number bounds
    say nothing about the low bits of a computed sum [M12]; this allowance does.

    Theorem. Let γ_n = nu/(1 − nu), u = 2⁻⁵³. If each entry is computed in float64 as a sum of
    products, in any order, fused or not, in which no term passes through more than L additions,
    from rows clipped in float64, then two neighbours' computed values are at most
    Δ + 2√r·γ_n apart, n = L + 8d + 64, where Δ is the sensitivity over the reals.

    Proof. By [H02 §3.1] the computed moment differs from the exact one of the same stored rows by
    at most γ_{L+1}·|M|ᵀ|M|/s entrywise, whose Frobenius norm is at most γ_{L+1}·max‖x‖². For a
    product, via the moment or as Mᵀ(MZ)/s, it is at most γ_{L+d+2}·√r·max‖x‖², because
    ‖|x||x|ᵀ|Z|‖_F ≤ ‖x‖²‖Z‖_F. There are two neighbours: factor 2. A stored row has norm at most
    1 + γ_{d+3}, which adds at most 5γ_{d+3} to Δ ≤ √2; and Z, orthonormalised by the silo in
    float64, may have ‖Z‖₂ ≤ 1 + 6(d + 12)u, which adds √2 times that. With the rounding of the √2
    in the moment's isometry, the terms beside 2√r·γ_{L+d+2} stay below 2γ_{7d+62}; and
    γ_a + γ_b ≤ γ_{a+b}. ∎

    Parameters
    ----------
    n_rows, n_features
        Public s and d.
    iteration_rank
        r of a product; 1 for a moment or a mean.
    longest_sum
        L; s by default, which covers every order of summation. A source that adds blocks of b rows
        may pass b + (number of blocks): it matters from about s = 10⁶ rows on.
    """
    longest = whole("longest_sum", longest_sum or n_rows)
    n = (longest + 8 * whole("n_features", n_features) + 64) * _UNIT_ROUNDOFF
    if n >= 0.5:
        raise InputError(f"longest_sum must be below 2**52, got {longest}; add the rows in blocks")
    return 2.0 * math.sqrt(whole("iteration_rank", iteration_rank)) * n / (1.0 - n)


def whole(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1; refuse it in one sentence if not."""
    if type(value) is int and value >= 1:  # what every silo asks some thirty times
        return value
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise InputError(
            f"{name} must be a whole number of at least 1, got {value!r}; pass a positive int"
        )
    return int(value)


def unit_sensitivity(of_a_row: float, rows_per_unit: int = 1) -> float:
    """Return C times the sensitivity of what rows contribute: that of persons whose rows weigh C at most.

    Neighbours: replace all rows of one person by any others, of which as many count: min(m, C) is the
    same, which for C = 1 is no condition. Norm: that of the release.

    Theorem. Let a release be (1/s) Σ f(x) over rows, f(0) = 0, and K the set of values of f on the rows
    there can be, so that its sensitivity for a row is D/s with D = diam K. If a person contributes
    Σ w_j f(x_j) with w_j ≥ 0, Σ w_j ≤ C, replacing her rows moves the release by C·D/s at most.

    Proof. Both contributions are C times points of conv K, for what is missing of Σ w_j = C is filled up
    with f(0) = 0 in K. The diameter of a convex hull is that of the set: ‖p − q‖ is convex in p and in q,
    so largest at points of K. ∎

    So a person costs what a row does, whatever is released, as long as it is a sum over rows: the moment
    (f = xxᵀ, D = √2), products with a basis (f = xxᵀZ), the mean (f = x), moment, mean and trace together
    (f = (xxᵀ, √2·c·x, ‖x‖²)), counts and means of preparation. For the moment alone it is also seen from
    ‖P − Q‖² ≤ ‖P‖² + ‖Q‖² ≤ 2 for positive semi-definite P and Q of trace at most 1.
    """
    return of_a_row * whole("rows_per_unit", rows_per_unit)


Array = NDArray[np.float64]

LARGEST_MEAN_WEIGHT = 0.75
"""Up to here the theorem of `summary_sensitivity` holds."""

MEAN_WEIGHT = 0.5
"""c unless a study says otherwise: how much of the sensitivity the mean row may use."""


def summary_sensitivity(n_rows: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT) -> float:
    """Return √2(1 + c²)/s, the sensitivity of (S, √2·c·μ, tr S); √2/s without the mean (c = 0).

    Neighbours: replace one row x by y, both of norm ≤ 1. Norm: Frobenius for S, Euclidean for the
    rest, together.

    Theorem. For 0 ≤ c ≤ 3/4, s² times the squared sensitivity is at most 2(1 + c²)², attained by unit
    vectors with xᵀy = −c². So the trace is free, and the mean costs a factor 1 + c².

    Proof. Let a = ‖x‖ ≥ b = ‖y‖ and t = xᵀy, |t| ≤ ab. The squared change is
    F = (a⁴ + b⁴ − 2t²) + 2c²(a² + b² − 2t) + (a² − b²)², concave in t with its maximum at t = −c².
    If c² ≤ ab that t can be had, and F = 2u² + 2v² − 2uv + 2c²(u + v) + 2c⁴ with u = a², v = b²: convex
    on [0, 1]², so largest at a corner, which is u = v = 1 with 2(1 + c²)². If c² > ab the best t is
    −ab, and F = 2(a + b)²[(a − b)² + c²], increasing in a: so a = 1, b < c², and
    F/2 = (1 − b²)² + c²(1 + b)² ≤ 1 + c²(1 + c²)² ≤ (1 + c²)², the last because c² + c⁴ ≤ 1. ∎

    The pair (S, √2·c·μ) is the augmented moment of the rows (x, c)/√(1 + c²), scaled by
    1 + c² and without its constant corner. Those rows have norm at most 1, so that moment has
    sensitivity √2/s by `moment_sensitivity`, which scaled by 1 + c² is the bound above: the two ways
    to centre cost the same, and this one has the trace besides.
    """
    factor = 1.0 + mean_weight**2 if with_mean else 1.0
    return moment_sensitivity(n_rows) * factor


def pack(
    moment: Array, mean: Array | None, trace: float, mean_weight: float = MEAN_WEIGHT
) -> Array:
    """Return (S_jj, √2·S_jl for j > l; √2·c·μ; tr S) as one vector, an isometry of the norms above."""
    size = moment.shape[0]
    parts = [lower_of(moment) * factors(size)]
    if mean is not None:
        parts.append(math.sqrt(2.0) * mean_weight * mean)
    return np.concatenate([*parts, [trace]])


def unpack(
    vector: Array, n_features: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT
) -> tuple[Array, Array | None, float]:
    """Return (moment, mean, trace) from what `pack` made, the moment exactly symmetric."""
    below, mean, trace = unpack_below(
        vector, n_features, with_mean=with_mean, mean_weight=mean_weight
    )
    return symmetric_of(below, n_features), mean, trace


def unpack_below(
    vector: Array, n_features: int, *, with_mean: bool, mean_weight: float = MEAN_WEIGHT
) -> tuple[Array, Array | None, float]:
    """Return the same with the moment's lower triangle, row by row, in place of the moment."""
    half = n_features * (n_features + 1) // 2
    mean = None
    if with_mean:
        mean = vector[half : half + n_features] / (math.sqrt(2.0) * mean_weight)
    return vector[:half] / factors(n_features), mean, float(vector[-1])


def summary_size(n_features: int, *, with_mean: bool) -> int:
    """Return the number of coordinates of a packed summary."""
    return n_features * (n_features + 1) // 2 + (n_features if with_mean else 0) + 1


@functools.lru_cache(maxsize=1)
def factors(n_features: int) -> Array:
    """Return what the isometry multiplies each number of the lower triangle by."""
    return np.where(np.equal(*lower_triangle(n_features)), 1.0, math.sqrt(2.0))
