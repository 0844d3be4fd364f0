"""How far a released moment may be from the law of the rows: noise and sampling, carried through."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg.shrinkage import shrunk_spectrum
from fedpower.report.moment import Moment

Array = NDArray[np.float64]

Statistic = Callable[[Array, Array], Array]
"""From covariances (…, d, d) and means (…, d) to numbers (…, p)."""

_SEED = 19
_MOST_DRAWS, _LEAST_DRAWS, _NUMBERS = 1000, 200, 2e7
_STEP = 1e-3
"""Of the draws, at which a derivative is taken: an error of its square."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Usable:
    """A covariance that can be divided by, from a noised one that cannot."""

    covariance: Array
    n_floored: int

    @property
    def remark(self) -> tuple[str, ...]:
        """What was done about the noise, as a sentence; none where nothing was."""
        if not self.n_floored:
            return ()
        many = "1 eigenvalue" if self.n_floored == 1 else f"{self.n_floored} eigenvalues"
        return (
            f"{many} of the noised moment lay below the noise's own standard deviation and were raised "
            "to it: directions of so little variance are not known.",
        )


def usable(moment: Moment) -> Usable:
    """Return the covariance of a moment with its spectrum floored at the noise; exact ones as they are."""
    sigma = moment.noise_std
    if sigma == 0:
        return Usable(covariance=moment.covariance, n_floored=0)
    values, vectors = np.linalg.eigh(moment.pooled.moment)
    low = int(np.count_nonzero(values < sigma))
    if not low:
        return Usable(covariance=moment.covariance, n_floored=0)
    raised = (vectors * np.maximum(values, sigma)) @ vectors.T
    units = moment.units
    made = (raised + raised.T) / 2 * np.outer(units, units) * moment.divisor
    return Usable(covariance=np.asarray(made), n_floored=low)


@dataclass(frozen=True, slots=True, kw_only=True)
class NoisedCorrelations:
    """Correlations of a released moment."""

    deviations: Array
    released: Array
    shrunk: Array
    noise_variance: Array


def noised_correlations(moment: Moment) -> NoisedCorrelations:
    """Return the correlations of a moment, as released and shrunk; exact ones are the same twice."""
    sigma, scales = moment.noise_std, moment.units * np.sqrt(moment.divisor)
    variances = np.diagonal(moment.pooled.moment)
    if sigma > 0:
        variances = np.maximum(variances, sigma)
    roots = np.sqrt(variances)
    released = _unit_diagonal(moment.pooled.moment / np.outer(roots, roots))
    noise = _noise_variance(moment, released, variances)
    shrunk = released
    if sigma > 0 and len(released) > 1:
        typical = float(np.sqrt(noise.sum() / (noise.size - len(noise))))
        shrunk = _shrunk(released, typical)
        noise = _noise_variance(moment, shrunk, variances)
    return NoisedCorrelations(
        deviations=roots * scales, released=released, shrunk=shrunk, noise_variance=noise
    )


def _noise_variance(moment: Moment, correlation: Array, variances: Array) -> Array:
    """Return the variance that noise gives a_jl/√(a_jj a_ll): of the entry, and of the diagonal."""
    center = np.zeros(len(variances)) if moment.pooled.center is None else moment.pooled.center
    gaps = _gaps(moment) ** 2
    shift = np.outer((moment.mean_noise_std * center) ** 2, gaps)
    entries = moment.noise_std**2 / 2.0 * np.outer(gaps, gaps) + shift + shift.T
    own = (moment.noise_std**2 * gaps + 4.0 * np.diagonal(shift)) / variances**2
    made = entries / np.outer(variances, variances)
    made += correlation**2 / 4.0 * (own[:, None] + own[None, :])
    np.fill_diagonal(made, 0.0)
    return np.asarray(made)


def _gaps(moment: Moment) -> Array:
    """Return by what missing cells multiply the noise of each column."""
    present = moment.pooled.present
    return np.ones(moment.n_features) if present is None else np.asarray(1.0 / present)


def _shrunk(correlation: Array, noise: float) -> Array:
    values, vectors = np.linalg.eigh(correlation)
    found = shrunk_spectrum(values[::-1], noise)[::-1]
    return _unit_diagonal((vectors * np.maximum(found, 0.0)) @ vectors.T)


def _unit_diagonal(matrix: Array) -> Array:
    made = np.clip((matrix + matrix.T) / 2.0, -1.0, 1.0)
    np.fill_diagonal(made, 1.0)
    return np.asarray(made)


def clipping_share(moment: Moment) -> float | None:
    """Return the share of the rows' squared length that the bound removed; None where it is unknown."""
    clipping = moment.record.clipping
    return None if clipping is None else clipping.energy


def correlation_shift(moment: Moment) -> Array | None:
    """Return by column what shortening rows does to correlations; None where none is known to be."""
    record, book = moment.record.clipping, moment.code_book
    if record is None:
        return None
    return record.clipping.moves(moment.n_features, None if book is None else book.outside)


def clipping_remark(moment: Moment) -> tuple[str, ...]:
    """Return a sentence on what clipping leaves out of intervals; none where nothing is known of it."""
    share = clipping_share(moment)
    if share is None:
        return ()
    size = "less than 0.1%" if share < 0.001 else f"about {share:.1%}"
    return (f"Intervals exclude clipping bias: the bound removed {size} of the rows' squared length.",)


def require_centred(moment: Moment) -> None:
    """Refuse a moment that is no covariance."""
    if not moment.centered:
        raise InputError(
            "a moment must be about the pooled mean for this analysis, got one about the origin; release "
            "it with centring, which is the default"
        )


def draws(
    moment: Moment, covariance: Array, *, sampling: bool = True, noise: bool = True, count: int = 0
) -> Iterator[tuple[Array, Array]]:
    """Yield blocks of draws of the error of covariance and mean, in the rows' own units."""
    d, units = moment.n_features, moment.units
    rng = np.random.default_rng(_SEED)
    total = count or int(np.clip(_NUMBERS / d**2, _LEAST_DRAWS, _MOST_DRAWS))
    at_once = max(1, min(total, int(4e6 / d**2)))
    values, vectors = np.linalg.eigh(covariance)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    center = np.zeros(d) if moment.pooled.center is None else moment.pooled.center
    gaps = _gaps(moment)
    noise_std = moment.noise_std / np.sqrt(2.0) * np.where(np.eye(d), gaps, np.outer(gaps, gaps))
    left = total
    while left:
        size = min(left, at_once)
        left -= size
        matrices, means = np.zeros((size, d, d)), np.zeros((size, d))
        normal = _symmetric(rng, size, d)
        rows = rng.standard_normal((size, d))
        if sampling:
            matrices += root @ normal @ root.T / np.sqrt(moment.n_samples)
            means += rows @ root.T / np.sqrt(moment.n_samples)
        normal = _symmetric(rng, size, d)
        shift = rng.standard_normal((size, d)) * (moment.mean_noise_std * gaps)
        if noise and moment.noise_std > 0:
            made = normal * noise_std
            crossed = shift[:, :, None] * center
            made -= crossed + crossed.transpose(0, 2, 1)
            matrices += made * np.outer(units, units) * moment.divisor
            means += shift * units
        yield matrices, means


def _symmetric(rng: np.random.Generator, size: int, d: int) -> Array:
    """Return symmetric matrices of normal numbers: variance 2 on the diagonal and 1 off it."""
    drawn = rng.standard_normal((size, d, d))
    return np.asarray((drawn + drawn.transpose(0, 2, 1)) / np.sqrt(2.0))


def standard_errors(
    statistic: Statistic, moment: Moment, covariance: Array, *, sampling: bool = True, count: int = 0
) -> Array:
    """Return the standard deviation of each number of a statistic, from noise and sampling together."""
    mean, squares, seen = moment.mean, 0.0, 0
    for matrices, means in draws(moment, covariance, sampling=sampling, count=count):
        up = statistic(covariance + _STEP * matrices, mean + _STEP * means)
        down = statistic(covariance - _STEP * matrices, mean - _STEP * means)
        squares = squares + np.sum(((up - down) / (2.0 * _STEP)) ** 2, axis=0)
        seen += len(matrices)
    return np.asarray(np.sqrt(np.asarray(squares) / seen))


def quantile(level: float) -> float:
    """Return how many standard errors an interval of a level goes to either side."""
    if not (isinstance(level, int | float) and 0 < level < 1):
        raise InputError(f"level must lie between 0 and 1, got {level!r}; 0.95 is usual")
    return float(scipy.stats.norm.ppf(0.5 + level / 2.0))
