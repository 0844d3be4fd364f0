"""``Correlations``: all correlations of a released covariance with intervals, and which differ from 0."""

from dataclasses import KW_ONLY
from typing import Any, NamedTuple

import numpy as np
import scipy.stats

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.linalg import Array, shrunk_spectrum
from fedpower.report.covariance import Covariance
from fedpower.report.page import Picture, Table, drawn
from fedpower.report.text import count, percent


class Correlations(Analysis):
    """Correlations of all columns, with intervals and tests that account for the noise.

    Attributes
    ----------
    correlation_ : ndarray of shape (d, d)
        Correlations with the noise shrunk out of their spectrum: closer to the exact ones on average, and
        biased. Without noise they are exact.
    released_ : ndarray of shape (d, d)
        Correlations of the release, with noise.
    standard_error_, low_, high_ : ndarray of shape (d, d)
        Standard errors and intervals of ``released_``, on Fisher's scale.
    distinct_ : ndarray of bool of shape (d, d)
        Whether a correlation differs from 0, corrected for all pairs (Bonferroni).

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import Correlations
    >>> rows = np.random.default_rng(0).normal(size=(500, 3))
    >>> rows[:, 1] += rows[:, 0]
    >>> found = Correlations().fit(FedCovariance(epsilon=float("inf")).fit(rows))
    >>> found.correlation_.round(1)
    array([[ 1. ,  0.7, -0. ],
           [ 0.7,  1. , -0. ],
           [-0. , -0. ,  1. ]])
    >>> bool(found.distinct_[0, 1]), bool(found.distinct_[0, 2])
    (True, False)
    """

    kind = "correlation"

    _: KW_ONLY
    level: float = base.level()
    sampling: bool = base.sampling()

    def _fit(self, release: Covariance) -> None:
        covariance, self.n_floored_ = base.usable(release)
        correlations, d = noised_correlations(release), release.n_features
        lower = np.tril_indices(d, -1)

        def clipped(covariances: Array, means: Array) -> Array:
            return np.clip(correlation_of(covariances)[..., *lower], -1.0, 1.0)

        values, errors = correlations.released[lower], self._standard_errors(clipped, covariance)
        scaled = np.arctanh(np.clip(values, -1 + 1e-12, 1 - 1e-12))
        deviations = errors / np.maximum(1.0 - values**2, 1e-12)
        width = base.quantile(self.level) * deviations
        strict = float(scipy.stats.norm.isf((1.0 - self.level) / (2.0 * max(len(values), 1))))
        self.correlation_, self.released_ = correlations.shrunk, correlations.released
        self.standard_error_ = _square(errors, d, 0.0)
        self.low_ = _square(np.tanh(scaled - width), d, 1.0)
        self.high_ = _square(np.tanh(scaled + width), d, 1.0)
        self.distinct_ = _square(np.abs(scaled) > strict * deviations, d, True).astype(bool)

    def _page(self) -> Contents:
        names, lower = self.columns_, np.tril_indices(len(self.correlation_), -1)
        distinct = self.distinct_[lower]
        yield f"Correlations of {len(names)} columns"
        cause = "noise and sampling make" if self.sampling else "noise makes"
        yield (
            f"{int(distinct.sum())} of {count(len(distinct), 'pair')} differ from 0, tested all together: "
            f"{cause} any of these findings wrong with a probability of at most "
            f"{percent(1 - self.level)}. An interval is for one pair, so it may exclude 0 where the pair "
            "does not differ."
        )
        yield self._interval_sentence()
        if self.release_.noise_std > 0:
            yield "The correlations have some noise removed; the intervals are of those that were released."
        order = np.argsort(-np.abs(self.correlation_[lower]), kind="stable")
        at = (lower[0][order], lower[1][order])
        columns = {
            "Column 1": [names[place] for place in at[1]],
            "Column 2": [names[place] for place in at[0]],
            "Correlation": self.correlation_[at],
            **self._interval_columns(at),
            "Differs": self.distinct_[at],
        }
        yield Table("Correlations, the largest first", "correlations.csv", columns, n_printed=15)
        yield Picture(
            drawn("heat_map", self.correlation_.tolist(), names, self.distinct_.tolist()),
            "Stronger colours are larger correlations; a cross marks one that may be 0. "
            "The table has the numbers.",
        )


def correlation_of(covariances: Array) -> Array:
    """Return the correlations of covariances: (…, d, d)."""
    deviations = np.sqrt(np.diagonal(covariances, axis1=-2, axis2=-1))
    return np.asarray(covariances / (deviations[..., :, None] * deviations[..., None, :]))


def _square(values: Any, d: int, diagonal: float) -> Array:
    made, lower = np.full((d, d), diagonal, dtype=np.float64), np.tril_indices(d, -1)
    made[lower] = made.T[lower] = values
    return made


class NoisedCorrelations(NamedTuple):
    """Correlations of a released covariance, as released and shrunk; exact ones are the same twice."""

    deviations: Array
    released: Array
    shrunk: Array
    noise_variance: Array


def noised_correlations(release: Covariance) -> NoisedCorrelations:
    """Return the correlations of a released covariance, and the variance that the noise gives each."""
    sigma, scales = release.noise_std, release.units * np.sqrt(release.divisor)
    variances = np.diagonal(release.pooled.covariance)
    if sigma > 0:
        variances = np.maximum(variances, sigma)
    elif not (variances > 0).all():
        raise np.linalg.LinAlgError("a column that does not vary has no correlations")
    roots = np.sqrt(variances)
    released = _unit_diagonal(release.pooled.covariance / np.outer(roots, roots))
    noise = _noise_variance(release, released, variances)
    shrunk = released
    if sigma > 0 and len(released) > 1:
        typical = float(np.sqrt(noise.sum() / (noise.size - len(noise))))
        values, vectors = np.linalg.eigh(released)
        spectrum = shrunk_spectrum(values[::-1], typical)[::-1]
        shrunk = _unit_diagonal((vectors * np.maximum(spectrum, 0.0)) @ vectors.T)
        noise = _noise_variance(release, shrunk, variances)
    return NoisedCorrelations(roots * scales, released, shrunk, noise)


def _noise_variance(release: Covariance, correlation: Array, variances: Array) -> Array:
    """Return the variance that noise gives a_jl/√(a_jj a_ll): of the entry, and of the diagonal."""
    center = np.zeros(len(variances)) if release.pooled.center is None else release.pooled.center
    growth = base.noise_growth(release) ** 2
    shift = np.outer((release.mean_noise_std * center) ** 2, growth)
    entries = release.noise_std**2 / 2.0 * np.outer(growth, growth) + shift + shift.T
    own = (release.noise_std**2 * growth + 4.0 * np.diagonal(shift)) / variances**2
    made = entries / np.outer(variances, variances)
    made += correlation**2 / 4.0 * (own[:, None] + own[None, :])
    np.fill_diagonal(made, 0.0)
    return np.asarray(made)


def _unit_diagonal(matrix: Array) -> Array:
    made = np.clip((matrix + matrix.T) / 2.0, -1.0, 1.0)
    np.fill_diagonal(made, 1.0)
    return np.asarray(made)
