"""How far the components of a release may be from those of the rows: an angle at 90% confidence."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import NamedTuple

import numpy as np

from fedpower.linalg import Array, blas, goe_quantile, shrunk_spectrum
from fedpower.protocol.pooled import Gains, Pooled
from fedpower.protocol.study import NoiseLaw

CONFIDENCE = 0.9
DETERMINED = 45.0
"""Degrees up to which a component is determined."""

_FEW_TOGETHER = 3
"""So many components that only their subspace tells apart from others still mean something."""

_CHANCE = 0.002  # that a direction is seen where there is none
_DRAWS = 100
# Draws that settle whether a component is determined: it is where all keep to so many degrees, and none is
# where so many exceed 45.
_FEW_DRAWS = ((5, 8.0, 4), (20, 25.0, 7))
_MOST = 64  # columns up to which whole moments are drawn; more are drawn in the basis of their eigenvectors
_MOST_RANK = 60  # components with angles of their own; those after them have 90°
_MOST_JOINT = 30  # subspaces with an angle of their own; those after them have a bound on it
_FEW = 20  # columns up to which all eigenvectors are found at once
_STEADY = 0.03  # up to such angles, in radians, subspaces of draws are taken to first order
_LEADING, _TAIL = 24, 40  # in that basis: eigenvectors that count by themselves, and groups of the others


class Angles(NamedTuple):
    """Angles between what is reported and what the rows have, in degrees, at `CONFIDENCE`."""

    components: Array
    subspaces: Array
    noise_components: Array
    noise_subspaces: Array

    @property
    def n_determined(self) -> int:
        """The largest j for which the first j components are determined together; 0 where none is."""
        return int(np.flatnonzero(np.append(True, self.subspaces <= DETERMINED))[-1])

    @property
    def n_kept(self) -> int:
        """How many ``"auto"`` keeps: up to where only more than a few together are determined, at least 1."""
        kept = 0
        for end in np.flatnonzero(self.subspaces <= DETERMINED) + 1:
            if end - kept > (min(kept, _FEW_TOGETHER) or (self.subspaces.size + 1) / 2):
                break
            kept = int(end)
        return max(kept, 1)


@dataclass(frozen=True, kw_only=True)
class Directions:
    """Variances of what is reported, and its angles, which take longer than the rest of a small fit."""

    variances: Array
    draw: Callable[[], Angles]
    settle: Callable[[], bool | None] = lambda: None
    """Whether any component is determined, as far as a few draws show it."""

    @cached_property
    def angles(self) -> Angles:
        return self.draw()

    def first(self, rank: int) -> "Directions":
        """Return the first components."""
        return replace(self, draw=lambda: Angles(*(part[:rank] for part in self.angles)))


class _Law(NamedTuple):
    """What is drawn: a denoised matrix, and the standard deviations of what is added to its entries."""

    denoised: Array
    noise: Array
    cut: Array
    center: Array


def moment_angles(
    pooled: Pooled,
    rank: int,
    *,
    pairs: tuple[Array, Array],
    gains: Gains | None = None,
    drawn: Gains | None = None,
    cut: Array | None = None,
) -> Directions:
    """Return the angles of the leading components of a noised moment; draws may have gains of their own."""
    if len(pooled.covariance) > _MOST:
        return _wide_angles(pooled, rank, pairs=pairs, gains=gains, cut=cut)
    law = _law(pooled, cut)
    inner = pairs[1].T * _factor(pooled.covariance, gains)
    found = np.einsum("ij,ij->i", inner @ law.denoised, inner)
    return _angles(law, pairs[1][:, :rank], found, partial(_scaled, gains=drawn or gains))


def derived_angles(
    pooled: Pooled, reported: Array, derive: Callable[[Array], Array], *, cut: Array | None = None
) -> Directions:
    """Return the angles of the leading eigenvectors of a matrix that is computed from a noised moment."""
    law = _law(pooled, cut)
    found = np.einsum("ji,ji->i", derive(law.denoised) @ reported, reported)
    return _angles(law, reported, found, lambda drawn: np.array(list(map(derive, drawn))))


def network_angles(values: Array, rank: int, *, std: float) -> Directions:
    """Return the angles of the leading eigenvectors of a noised adjacency matrix."""
    order, found = np.argsort(-values, kind="stable"), np.empty_like(values)
    found[order] = shrunk_spectrum(values[order], std, of="matrix")
    reach = math.sqrt(2.0) * std * goe_quantile(values.size, _CHANCE / 2.0)
    found[np.abs(values) <= reach] = 0.0
    return _angles_of_axes(found, rank, noise=std, by_size=True)


def _law(pooled: Pooled, cut: Array | None) -> _Law:
    """Return what is drawn around a moment."""
    dim, std = len(pooled.covariance), pooled.noise_std / math.sqrt(2.0)
    center, gaps = _center_and_gaps(pooled)
    values, vectors = np.linalg.eigh(pooled.covariance)
    typical = std * float(np.mean(gaps)) ** 2
    shrunk = denoised_spectrum(values[::-1], typical, float(np.linalg.norm(center)))[::-1]
    denoised = (vectors * shrunk) @ vectors.T
    spread = np.sqrt((0.0 if cut is None else cut) * np.diagonal(denoised))
    return _Law(
        denoised=denoised,
        noise=std * np.where(np.eye(dim), gaps, np.outer(gaps, gaps)),
        cut=np.outer(spread, spread),
        center=center,
    )


def _center_and_gaps(pooled: Pooled) -> tuple[Array, Array]:
    """Return the mean over its weight, and by what missing cells multiply the noise of a column."""
    dim = len(pooled.covariance)
    center = np.zeros(dim) if pooled.center is None else pooled.center / pooled.mean_weight
    return center, np.ones(dim) if pooled.present is None else 1.0 / pooled.present


def _wide_angles(
    pooled: Pooled, rank: int, *, pairs: tuple[Array, Array], gains: Gains | None, cut: Array | None
) -> Directions:
    """Return the angles of a wide moment in the basis of its eigenvectors, of which a few are enough."""
    covariance = pooled.covariance
    center, gaps = _center_and_gaps(pooled)
    std = pooled.noise_std / math.sqrt(2.0) * gaps**2
    factor = _factor(covariance, gains)
    squares = factor**2
    vectors = pairs[1][:, : _MOST_RANK + 8]
    left = len(covariance) - vectors.shape[1]

    def by_axis(column: Array, known: Array | None = None) -> Array:
        """Return the mean of a property of columns over each axis, the others alike."""
        known = vectors.T**2 @ column if known is None else known
        rest = max(float(column.sum() - known.sum()), 0.0) / max(left, 1)
        return np.append(known, np.full(left, rest))

    typical = float(std.min()) * _noise_growth(factor * np.sqrt(std / std.min()))
    lean = by_axis((center * factor) ** 2, (vectors.T @ (center * factor)) ** 2)
    cut = np.zeros(len(covariance)) if cut is None else cut
    return _angles_of_axes(
        denoised_spectrum(pairs[0], typical, float(np.linalg.norm(center))),
        rank,
        noise=by_axis(std * squares),
        cut=by_axis(cut * np.maximum(np.diagonal(covariance), 0.0) * squares),
        center=np.sqrt(lean / np.maximum(by_axis(squares), 1e-300)),
        standardized=not np.array_equal(factor, _factor(2.0 * covariance, gains)),
    )


def product_angles(
    values: Array, rank: int, *, n_features: int, total_variance: float, law: NoiseLaw, cut: float
) -> Directions:
    """Return the angles of components that noised products with a few directions give."""
    left, std = n_features - values.size, law.std / math.sqrt(2.0)
    rest = 0.0 if math.isnan(total_variance) else max(total_variance - float(values.sum()), 0.0)
    tail = np.full(left, rest / max(left, 1))
    if law.once:  # the noise of the moment is in its whole spectrum, of which the rest is not known
        tail += 2.0 * std * math.sqrt(n_features) * _semicircle(left)
        spectrum = np.append(values, np.minimum(tail, values[-1]))
        spectrum = denoised_spectrum(spectrum, std)
        noise = std
    else:
        # A mean that is off by e adds eeᵀ: a rank of one, of about d times the variance of its entries.
        off = law.mean_std**2 * (n_features + 3.0 * math.sqrt(2.0 * n_features))
        inner = denoised_spectrum(values, std)
        inner = np.maximum(inner - off, np.append(inner[1:], 0.0))
        spectrum = np.append(inner, np.minimum(tail, inner[-1]))
        noise = law.std
    return _angles_of_axes(spectrum, rank, noise=noise, cut=cut * float(spectrum.mean()))


def _noise_growth(gains: Array) -> float:
    """Return the factor by which the noise's edge grows where columns are multiplied by gains."""
    squares = gains**2
    squares, unit = squares / squares.max(), float(squares.max())

    least, most = 1e-9, 1.0 - 1e-9
    for _ in range(6):  # of a convex function: each time around the best of 64 places
        places = np.linspace(least, most, 64)
        found = np.sum(squares / (1.0 - squares * places[:, np.newaxis]), axis=1) / places
        best = int(found.argmin())
        least, most = places[max(best - 1, 0)], places[min(best + 1, 63)]
    return unit * math.sqrt(float(found[best]) / (4.0 * squares.size))


def denoised_spectrum(values: Array, std: float, center_norm: float = 0.0) -> Array:
    """Return eigenvalues without what noise adds to them, largest first, none below 0."""
    import scipy.special  # noqa: PLC0415 - only where there is noise

    lean = center_norm * std * math.sqrt(scipy.special.chdtri(values.size, _CHANCE))
    found = shrunk_spectrum(values, std, of="matrix")
    means = np.maximum(np.cumsum(values[::-1])[::-1] / np.arange(values.size, 0, -1), 0.0)
    for place in range(min(values.size, _MOST_RANK)):
        size = values.size - place if values.size <= _MOST else values.size
        reach = math.sqrt(2.0) * std * goe_quantile(size, _CHANCE) + lean
        if values[place] - means[place] <= reach:
            found[place:] = found[place:].mean()
            break
    return np.asarray(np.maximum(found, 0.0))


def exact_angles(values: Array, rank: int, *, n_features: int) -> Directions:
    """Return the angles of components without noise: those that rounding leaves open are 90°."""
    rounding = n_features * float(np.finfo(np.float64).eps) * max(float(values[0]), 0.0)
    known = np.maximum(values, 0.0)
    # After the last one there is nothing, or what is not known.
    gaps = np.minimum(-np.diff(known, append=0.0), known)[:rank]
    together = np.where(gaps > rounding, 0.0, 90.0)
    single = np.maximum(together, np.append(0.0, together[:-1]))
    return Directions(variances=values, draw=lambda: Angles(single, together, single, together))


def _semicircle(count: int) -> Array:
    """Return so many quantiles of the semicircle law on [−1, 1], largest first."""
    levels = (np.arange(count, 0, -1) - 0.5) / max(count, 1)
    grid = np.linspace(-1.0, 1.0, 2001)
    below = 0.5 + (grid * np.sqrt(1.0 - grid**2) + np.arcsin(grid)) / math.pi
    return np.asarray(np.interp(levels, below, grid))


def _angles_of_axes(
    values: Array,
    rank: int,
    *,
    noise: Array | float,
    cut: Array | float = 0.0,
    center: Array | float = 0.0,
    standardized: bool = False,
    by_size: bool = False,
) -> Directions:
    """Return the angles where the denoised matrix is diagonal, and wide."""
    dim = values.size
    first = min(dim, max(_LEADING, min(rank, _MOST_RANK) + 8))
    order = np.append(np.arange(first), first + np.argsort(-values[first:]))
    groups = [order[place : place + 1] for place in range(first)]
    groups += [group for group in np.array_split(order[first:], _TAIL) if group.size]
    size = np.array([group.size for group in groups], dtype=np.float64)
    times = np.sqrt(np.maximum.outer(size, size))
    *means, center = np.broadcast_arrays(values, noise, cut, center)
    value, noise, cut = (np.array([part[group].mean() for group in groups]) for part in means)
    center = np.array([np.linalg.norm(center[group]) for group in groups])
    from_spread = np.add.outer(value, value) ** 2 / (2.0 * dim) if standardized else 0.0
    law = _Law(
        denoised=np.diag(value),
        noise=times * np.sqrt(np.outer(noise, noise) * (1.0 + from_spread)),
        cut=times * np.sqrt(np.outer(cut, cut)),
        center=center,
    )
    reported = np.eye(len(groups), rank)
    return _angles(law, reported, values, lambda drawn: drawn, by_size=by_size)


def _angles(
    law: _Law, reported: Array, variances: Array, derive: Callable[[Array], Array], *, by_size: bool = False
) -> Directions:
    """Return the angles between what is reported and what draws, derived, give."""
    between_draws = partial(_drawn, law, reported[:, :_MOST_RANK], derive, by_size=by_size)

    def draw() -> Angles:
        single, joint = (np.quantile(part, CONFIDENCE, axis=1) for part in between_draws(_DRAWS))
        beyond = ((0, 0), (0, max(reported.shape[1] - _MOST_RANK, 0)))
        single, joint = (np.pad(angles, beyond, constant_values=90.0) for angles in (single, joint))
        return Angles(single[-1], joint[-1], single[0], joint[0])

    def settle() -> bool | None:
        for draws, within, many in _FEW_DRAWS:
            single, joint = (part[-1] for part in between_draws(draws))
            if single.max(axis=0).min() <= within:
                return True
            beyond = np.hstack([single, joint[:, : len(law.denoised) - 1]]) > DETERMINED
            if np.count_nonzero(beyond, axis=0).min() >= many:
                return False
        return None

    return Directions(variances=variances, draw=draw, settle=settle)


def _drawn(
    law: _Law, reported: Array, derive: Callable[[Array], Array], draws: int, *, by_size: bool
) -> tuple[Array, Array]:
    """Return angles of components and of subspaces by draw: from noise, and then from all if that is more."""
    dim, rank = len(law.denoised), reported.shape[1]
    # Public: the same release has the same angles.
    normals = np.random.default_rng(0).standard_normal((draws, 2 * dim**2 + dim))
    square = np.moveaxis(normals[:, :-dim].reshape(-1, 2, dim, dim), 1, 0)
    noise, cut = (square + np.swapaxes(square, -1, -2)) / math.sqrt(2.0)  # variance 2 on the diagonal
    lean = law.center[:, np.newaxis] * (np.diagonal(law.noise) * normals[:, -dim:])[:, np.newaxis]
    drawn = law.denoised + law.noise * noise - lean - lean.transpose(0, 2, 1)
    cases = [drawn, drawn + law.cut * cut] if law.cut.any() else [drawn]
    # Matrices so small are no work for several threads, which would wait for each other.
    with blas().limit(limits=1):
        known = _ordered(derive(law.denoised[np.newaxis]), by_size=by_size)
        found = (_leading(derive(case), known, rank, by_size=by_size) for case in cases)
        return between(np.array([vectors.transpose(0, 2, 1) @ reported for vectors in found]))


def between(inner: Array) -> tuple[Array, Array]:
    """Return angles of components, and of their leading subspaces, in degrees."""
    cosines = np.abs(np.diagonal(inner, axis1=-2, axis2=-1))
    together = []
    for j in range(1, inner.shape[-1] + 1):
        block = inner[..., :j, :j]
        if j <= _MOST_JOINT:
            together.append(np.linalg.svd(block, compute_uv=False)[..., -1])
        else:  # sin θ ≤ the root of the sum of all squared sines
            left = np.sum(block**2, axis=(-2, -1)) - (j - 1)
            together.append(np.sqrt(np.maximum(left, 0.0)))
    single, joint = (np.degrees(np.arccos(np.clip(c, 0.0, 1.0))) for c in (cosines, np.stack(together, -1)))
    return single, joint


def _factor(covariance: Array, gains: Gains | None) -> Array:
    diagonal = np.diagonal(covariance, axis1=-2, axis2=-1)
    return np.ones(diagonal.shape[-1]) if gains is None else gains(diagonal)


def _scaled(covariance: Array, *, gains: Gains | None) -> Array:
    factor = _factor(covariance, gains)
    return np.asarray(covariance * factor[..., np.newaxis] * factor[..., np.newaxis, :])


def _leading(matrices: Array, known: tuple[Array, Array], rank: int, *, by_size: bool) -> Array:
    """Return the leading eigenvectors of draws around a matrix whose pairs are known."""
    values, vectors = known[0][0], known[1][0]
    kept, left = vectors[:, :rank], vectors[:, rank:]
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = left.T @ (matrices @ kept) / (values[:rank] - values[rank:, np.newaxis])
    if np.linalg.norm(moves, axis=(1, 2)).max() < _STEADY:
        near = np.linalg.qr(kept + left @ moves)[0]
        return np.asarray(near @ _ordered(near.transpose(0, 2, 1) @ matrices @ near, by_size=by_size)[1])
    if values.size > _FEW and not by_size:  # a few of many vectors take half the time of all
        import scipy.linalg  # noqa: PLC0415 - only for wide rows

        last = {"range": "I", "il": values.size - rank + 1, "iu": values.size}
        found = [scipy.linalg.lapack.dsyevx(each, **last) for each in matrices]
        if not any(failed for *_, failed in found):
            return np.array([vectors[:, rank - 1 :: -1] for _, vectors, *_ in found])
    return _ordered(matrices, by_size=by_size)[1][..., :rank]


def _ordered(matrices: Array, *, by_size: bool) -> tuple[Array, Array]:
    values, vectors = np.linalg.eigh(matrices)
    order = np.argsort(-np.abs(values) if by_size else -values)
    return np.take_along_axis(values, order, -1), np.take_along_axis(vectors, order[:, np.newaxis], -1)
