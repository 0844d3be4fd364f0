"""How many components stand above the noise of the releases they come from, and what they are without it.

Post-processing of releases whose noise is known exactly, so it costs no budget. One rule for every
solver and noise mode; where its proof does not hold there is no verdict. The rule and its error
probability, in words: docs/how-to/choose-k.md; why this one: docs/decisions/0017.
"""

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
import scipy.linalg
import scipy.special
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg.goe import goe_quantile
from fedpower.privacy.sensitivity import MEAN_WEIGHT
from fedpower.protocol.study import NoiseLaw

Array = NDArray[np.float64]

Rank = int | float | Literal["noise"]
"""k; a fraction of variance; or as many as stand above the noise."""

LEVEL = 0.01
"""The chance that a component is counted that should not be, whatever the rows are."""

_SIDE_LEVEL = LEVEL / 10
"""The part of it for the noise of the trace, and for that of the mean."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """What a noised release shows beyond its noise.

    Attributes
    ----------
    n_above
        Components that stand above the noise.
    denoised
        Their eigenvalues, corrected for what noise adds to them.
    total_variance
        tr A, corrected likewise.
    prominence
        The largest eigenvalue over what it must exceed to count.
    """

    n_above: int
    denoised: Array
    total_variance: float
    prominence: float

    @property
    def together(self) -> Array:
        """The share of all variance that the first, the first two, … explain without the noise."""
        total = self.total_variance
        return np.minimum(np.cumsum(self.denoised) / total, 1.0) if total > 0 else self.denoised * 0


def find_signal(
    moment: Array,
    pairs: tuple[Array, Array],
    *,
    center: Array | None,
    total_variance: float,
    std: float,
    n_features: int | None = None,
    center_norm: float | None = None,
    mean_weight: float = MEAN_WEIGHT,
) -> Signal:
    """Return what stands above the noise of a pooled moment Â = A + noise, or of a compression of it.

    A component j counts if those before it do and its variance, less all that noise may have added,
    exceeds the average of those after it (zero for the last).

    Theorem. With probability at least 1 − `LEVEL`, for every A, each component that counts has
    λ_j(A) above the average of λ_{j+1}(A), …, λ_d(A). So none counts where A is a multiple of the
    identity, and at most r where it is one plus r larger eigenvalues.

    Proof. Let E be the noise of the second moment and e that of the mean μ̂ (entries of variance
    σ²/(2c²), c the mean's weight), so Â − A = E − μ̂eᵀ − eμ̂ᵀ + eeᵀ. With w = −μ̂ᵀu/c and F the matrix
    that has E, ce and 0 for its blocks, uᵀ(Â − A)u = (u, w)ᵀF(u, w) + (eᵀu)² ≤ q(1 + (μ̂ᵀu/c)²) + ρ² for
    every unit u, once λ_max(F) ≤ q and ‖e‖ ≤ ρ. F has the noise of `goe_quantile` for d + 1 but for its
    last entry; were that drawn too, it would be positive half of the time and then only raise λ_max: so
    P[λ_max(F) > q] is at most twice that of the full matrix. Hence A ⪰ Â − qμ̂μ̂ᵀ/c² − (q + ρ²)I, which
    bounds every λ_j(A) from below [Weyl]; and tr A is at most the released trace plus its own noise and
    2‖μ̂‖ρ. Without a mean it is A ⪰ Â − qI. A union bound over q, ρ and the trace gives `LEVEL`. ∎

    Of a solver that iterates with Â only VᵀÂV is known, V orthonormal and found with the noise in sight.
    The j-th eigenvalue of VᵀMV is at most that of M [Cauchy], for M = Â − qμ̂μ̂ᵀ/c² too: what counts by
    the compression counts by Â.

    Parameters
    ----------
    moment
        Â, d×d, about the noised mean where there is one; or VᵀÂV.
    pairs
        Its eigenvalues, all of them, and leading eigenvectors, largest first.
    center, total_variance
        μ̂ or None (Vᵀμ̂ of a compression); the released trace, about it.
    std
        σ of the pooled release: the diagonal's noise, √2 times that off it.
    n_features, center_norm
        d and ‖μ̂‖ of a compression.
    mean_weight
        c.
    """
    values, vectors = pairs
    dim = values.size if n_features is None else n_features
    inflation = np.ones(values.size)
    trace = total_variance + std * float(-scipy.special.ndtri(_SIDE_LEVEL))
    if center is None:
        reach = std * goe_quantile(dim, LEVEL - _SIDE_LEVEL)
        shown, correction = values, 0.0
    else:
        reach = std * goe_quantile(dim + 1, (LEVEL - 2 * _SIDE_LEVEL) / 2)
        mean_std = std / (math.sqrt(2.0) * mean_weight)
        mean_reach = mean_std * math.sqrt(scipy.special.chdtri(dim, _SIDE_LEVEL))
        steep = reach / mean_weight**2
        shown = eigenvalues(moment - steep * np.outer(center, center))
        inflation[: vectors.shape[1]] += (center @ vectors / mean_weight) ** 2
        length = float(np.linalg.norm(center)) if center_norm is None else center_norm
        trace += 2.0 * length * mean_reach
        reach += mean_reach**2
        correction = dim * mean_std**2
    least = shown - reach
    n_above = _count(least, trace, dim)
    total = total_variance + correction
    edges = std * np.sqrt(2.0 * dim * inflation[:n_above])
    return Signal(
        n_above=n_above,
        denoised=_denoised(values[:n_above], edges, total, dim),
        total_variance=total,
        prominence=float(shown[0] / (reach + max(trace, 0.0) / dim)),
    )


def find_signal_of_product(
    basis: Array,
    product: Array,
    *,
    law: NoiseLaw,
    center: Array | None,
    total_variance: float,
) -> Signal:
    """Return what stands above the noise of a product Y = A_cZ + N whose N is newer than its Z.

    Theorem. As that of :func:`find_signal`, and by the same count.

    Proof. Z (d×r, orthonormal) was fixed before N was drawn, so given all that came before the entries
    of ZᵀN are independent N(0, σ²), and H = (ZᵀY + YᵀZ)/2 is ZᵀA_cZ plus noise of exactly the law of
    `goe_quantile` for r: d plays no part, nor does how Z was found. With λ_max of that noise at most q,
    λ_j(A_c) ≥ λ_j(ZᵀA_cZ) ≥ λ_j(H) − q [Cauchy, Weyl]. About a released mean that is off by e,
    A_c = A + eeᵀ: a rank of one, so λ_j(A) ≥ λ_{j+1}(A_c), and λ_j(A) ≥ λ_j(A_c) − ρ² once ‖e‖ ≤ ρ.
    tr A ≤ tr A_c, which is at most what was released plus its own noise, and at most (1 + ‖c‖)² for
    rows of norm at most 1. A union bound over q, ρ and the trace gives `LEVEL`. ∎

    The theorem is about *one* product. Products of a whole history do not have it: each basis holds the
    noise of the products before it, which a combination of them shows as variance.

    Parameters
    ----------
    basis, product
        Z and Y.
    law
        Of the pooled noise; ``std`` is that of Y's entries, about whichever centre.
    center, total_variance
        c or None; the released trace about it, the mean of one or more with noise σ each, or NaN.
    """
    return find_signal_of_compressed(
        compressed(basis, product),
        len(basis),
        law=law,
        center=center,
        total_variance=total_variance,
    )


def find_signal_of_compressed(
    inner: Array, dim: int, *, law: NoiseLaw, center: Array | None, total_variance: float
) -> Signal:
    """Return what :func:`find_signal_of_product` returns, from (ZᵀY + YᵀZ)/2 and d alone."""
    width = len(inner)
    values = eigenvalues(inner)
    length = 0.0 if center is None else float(np.linalg.norm(center))
    most = (1.0 + length) ** 2
    trace = total_variance + law.std * float(-scipy.special.ndtri(_SIDE_LEVEL))
    trace = most if math.isnan(trace) else min(trace, most)
    shown = values - law.std * goe_quantile(width, LEVEL - 2 * _SIDE_LEVEL)
    off = law.mean_std**2 * float(scipy.special.chdtri(dim, _SIDE_LEVEL))
    least = np.maximum(shown - off, np.append(shown[1:], -np.inf))
    n_above = _count(least, trace, dim)
    total = most if math.isnan(total_variance) else min(max(total_variance, 0.0), most)
    edges = np.full(n_above, law.std * math.sqrt(2.0 * width))
    needed = float(values[0] - least[0]) + max(trace, 0.0) / dim
    return Signal(
        n_above=n_above,
        denoised=_denoised(values[:n_above], edges, total, dim),
        total_variance=total,
        prominence=float(values[0]) / needed if needed > 0 else 0.0,
    )


def judge(
    basis: Array,
    product: Array,
    *,
    law: NoiseLaw,
    center: Array | None,
    total_variance: float,
) -> Signal | None:
    """Return what stands above the noise of a pooled product of a common basis, in every noise mode.

    None where the trace of a noised moment is not known, without which there is nothing to compare with.
    """
    if not law.once:
        return find_signal_of_product(
            basis, product, law=law, center=center, total_variance=total_variance
        )
    if math.isnan(total_variance):
        return None
    inner = compressed(basis, product)
    values, vectors = np.linalg.eigh(inner)
    return find_signal(
        inner,
        (values[::-1], vectors[:, ::-1]),
        center=None if center is None else basis.T @ center,
        total_variance=total_variance,
        std=law.std,
        n_features=len(basis),
        center_norm=0.0 if center is None else float(np.linalg.norm(center)),
    )


def compressed(basis: Array, product: Array) -> Array:
    """Return (ZᵀY + YᵀZ)/2: ZᵀAZ, and of noise in Y what is symmetric."""
    inner = basis.T @ product
    return np.asarray((inner + inner.T) / 2.0)


def chosen_rank(asked: float | Literal["noise"], signal: Signal, *, kept: bool = True) -> int:
    """Return k for a fraction of variance or for "noise"; refuse what the noise does not let be told.

    ``kept``: the same releases can be had again for another k, as those of a secure sum, or of a fit
    without ledgers, cannot.
    """
    again = (
        ", which the same releases allow at no further cost"
        if kept
        else "; what was released is spent and not kept, so another fit spends again"
    )
    remedy = f"bring more rows or a larger epsilon, or give a whole number{again}"
    if signal.n_above == 0:
        raise InputError(
            "{n_components:{asked}} must find a component that stands above the noise, got none: the "
            "largest variance is {share:.2g} of what it must exceed; {remedy}",
            asked=asked,
            share=max(signal.prominence, 0.0),
            remedy=remedy,
        )
    if asked == "noise":
        return signal.n_above
    reached = int(np.searchsorted(signal.together, asked, side="right"))
    if reached == signal.n_above:
        raise InputError(
            "{n_components:{asked}} must be reached by components that stand above the noise, got "
            "{share:.3f} of the variance with all {n_above} of them; ask for less, {remedy}",
            asked=asked,
            share=signal.together[-1],
            n_above=signal.n_above,
            remedy=remedy,
        )
    return reached + 1


def eigenvalues(moment: Array) -> Array:
    """Return all eigenvalues of a symmetric matrix, largest first."""
    return np.asarray(scipy.linalg.eigvalsh(moment)[::-1], dtype=np.float64)


def _count(least: Array, trace: float, dim: int) -> int:
    """Return how many lead the others by their least possible values; ``trace`` is the most possible."""
    known = 0.0
    for place, value in enumerate(least):
        after = dim - place - 1
        average = (trace - known - value) / after if after else 0.0
        if value <= max(average, 0.0):
            return place
        known += float(value)
    return int(least.size)


def _denoised(values: Array, edges: Array, total: float, dim: int) -> Array:
    """Return eigenvalues without what noise adds to those that stand above it [BGN11 §3.1].

    Noise whose semicircle ends at R moves θ over a level bulk m to m + x with x = (θ − m) + R²/4(θ − m);
    this is the inverse, with m the average of what the others leave of the total.
    """
    found = values.astype(np.float64)
    for _ in range(8):  # m depends on the answer, weakly: each pass divides its error by about d/k
        bulk = max(total - float(found.sum()), 0.0) / max(dim - values.size, 1)
        above = np.maximum(values - bulk, 0.0)
        found = bulk + (above + np.sqrt(np.maximum(above**2 - edges**2, 0.0))) / 2.0
    return found
