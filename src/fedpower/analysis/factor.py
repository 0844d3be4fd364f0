"""``FactorAnalysis``: common factors behind the columns of a released covariance, with intervals."""

from dataclasses import KW_ONLY, MISSING
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.analysis.correlation import correlation_of, noised_correlations
from fedpower.exceptions import require
from fedpower.linalg import Array, fix_signs
from fedpower.options import setting
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, percent

_DRAWS = 300
_LEAST_UNIQUE = 5e-3  # share of a column's variance that is its own
_LEAST_SAMPLED = 0.01  # (1 − r²)²: one correlation near 1 must not outweigh all others


class FactorAnalysis(Analysis):
    """Factor analysis: x = μ + Λf + u, with k common factors f.

    Loadings minimise the squared errors of the correlations, each divided by its variance from sampling and
    noise (minimum residuals). This tolerates noise in small eigenvalues, which maximum likelihood does not.

    Attributes
    ----------
    loadings_ : ndarray of shape (d, k)
        Correlations of columns and factors.
    standard_error_, low_, high_ : ndarray of shape (d, k)
        Standard errors and intervals of the loadings.
    components_ : ndarray of shape (k, d)
        Loadings in the units of the columns, as in scikit-learn.
    noise_variance_ : ndarray of shape (d,)
        Variance of each column that the factors do not explain, as in scikit-learn.
    communality_ : ndarray of shape (d,)
        Share of each column's variance that the factors explain.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import FactorAnalysis
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(500, 1)) + rng.normal(size=(500, 4))
    >>> release = FedCovariance(epsilon=float("inf")).fit(rows)
    >>> FactorAnalysis(1).fit(release).loadings_.shape
    (4, 1)
    """

    kind = "factor"

    n_factors: int = setting(
        MISSING, "Number of factors, k, with (d − k)² ≥ d + k for d columns.", "count", option="-k --factors"
    )
    _: KW_ONLY
    rotation: Literal["varimax", "none"] = setting(
        "varimax", "Rotation to simple factors; none keeps principal axes.", ("varimax", "none")
    )
    level: float = base.level()
    sampling: bool = base.sampling()

    def _fit(self, release: Covariance) -> None:
        d, k = release.n_features, self.n_factors
        must = f"a whole number k of at least 1 with (d - k)² at least d + k, d = {d} columns"
        require((d - k) ** 2 >= d + k, "n_factors", must, k)
        fitted = _fit(release, k)
        raw = fitted.loadings
        turn = _varimax(raw, np.eye(k)) if self.rotation == "varimax" else np.eye(k)
        turn = turn[:, np.argsort(-np.sum((raw @ turn) ** 2, axis=0), kind="stable")]
        self.loadings_ = fix_signs(raw @ turn)
        self._set_intervals(self.loadings_, self._errors(release, fitted))
        biased = fitted.deviations / np.sqrt(release.divisor)  # scikit-learn divides by n
        self.components_ = np.asarray((self.loadings_ * biased[:, None]).T)
        self.noise_variance_ = np.asarray(fitted.unique * biased**2)
        self.communality_ = np.asarray(1.0 - fitted.unique)
        self.n_at_bound_ = int(np.sum(~fitted.free))

    def _errors(self, release: Covariance, fitted: "_Fitted") -> Array:
        """Return the standard errors of the loadings: the delta method on the equations of the loss."""
        at, inverse = fitted.correlation * np.outer(fitted.deviations, fitted.deviations), fitted.inverse()

        def loadings(covariances: Array, means: Array) -> Array:
            near = (fitted.near(correlation, inverse) for correlation in correlation_of(covariances))
            rotate = self.rotation == "varimax"
            return np.array([_aligned(found, self.loadings_, rotate=rotate) for found in near])

        return self._standard_errors(loadings, base.usable(release)[0], at=at, count=_DRAWS)

    def _page(self) -> Contents:
        d, k = self.loadings_.shape
        factors = [f"factor {place}" for place in range(1, k + 1)]
        shares, sure = np.sum(self.loadings_**2, axis=0) / d, (self.low_ > 0) | (self.high_ < 0)
        yield f"{count(k, 'factor')} of {count(d, 'column')}"
        yield (
            f"The factors explain {percent(float(shares.sum()))} of the variance of standardised columns: "
            f"{', '.join(map(percent, shares.tolist()))}."
        )
        yield f"{int(sure.sum())} of {count(sure.size, 'loading')} differ from 0."
        yield self._interval_sentence()
        if self.n_at_bound_:
            yield (
                f"The factors explain {count(self.n_at_bound_, 'column')} completely (a Heywood case): such "
                "loadings are at their limit and not reliable."
            )
        columns: dict[str, Any] = {"Column": self.columns_}
        for place, factor in enumerate(factors):
            columns[factor.capitalize()] = self.loadings_[:, place]
            columns[f"Error {place + 1}"] = self.standard_error_[:, place]
        yield Table("Loadings", "loadings.csv", {**columns, "Communality": self.communality_})
        yield from base.loadings_chart(self.loadings_.T, self.columns_, "Columns", "factors")
        for factor, *ends in zip(factors, self.loadings_.T, self.low_.T, self.high_.T, strict=True):
            caption = f"{factor.capitalize()}: lines are intervals; a cross marks one that contains 0."
            yield base.interval_chart(f"Loadings of {factor}", self.columns_, *ends, caption=caption)


class _Fitted(NamedTuple):
    """Correlations, the weights of their squared errors, and the unrotated loadings that minimise these."""

    correlation: Array
    deviations: Array
    weights: Array
    loadings: Array

    @property
    def unique(self) -> Array:
        """The share of each column's variance that is its own."""
        return np.asarray(1.0 - np.sum(self.loadings**2, axis=1))

    @property
    def free(self) -> NDArray[np.bool_]:
        """Whether each column's own variance is above its limit."""
        return np.asarray(self.unique > 2.0 * _LEAST_UNIQUE)

    def inverse(self) -> Array:
        """Return the inverse of the gradient's derivative by the loadings of columns that are free."""
        (d, k), weights, loadings = self.loadings.shape, self.weights, self.loadings
        left = weights * (self.correlation - loadings @ loadings.T)
        derivative = np.einsum("il,ib,la->ialb", weights, loadings, loadings)
        derivative -= np.einsum("il,ab->ialb", left, np.eye(k))
        derivative[np.arange(d), :, np.arange(d)] += np.einsum("ij,ja,jb->iab", weights, loadings, loadings)
        made, at = np.zeros((d * k, d * k)), np.ix_(*2 * [np.repeat(self.free, k)])
        # Turns of all factors change nothing.
        made[at] = np.linalg.pinv(derivative.reshape(d * k, d * k)[at], rcond=1e-7)
        return made

    def near(self, correlation: Array, inverse: Array) -> Array:
        """Return the loadings that minimise the errors of nearly the same correlations."""
        change = (self.weights * (correlation - self.correlation)) @ self.loadings
        return np.asarray(self.loadings + (inverse @ change.ravel()).reshape(change.shape))


def _fit(release: Covariance, k: int) -> _Fitted:
    """Return loadings by least squares on the correlations as released."""
    noised = noised_correlations(release)
    sampled = np.maximum((1.0 - noised.shrunk**2) ** 2, _LEAST_SAMPLED) / release.n_samples
    weights = 1.0 / (sampled + noised.noise_variance)
    np.fill_diagonal(weights, 0.0)
    weights /= weights.max()
    values, vectors = base.eigenpairs(noised.shrunk)
    start = vectors[:, :k] * np.sqrt(np.maximum(values[:k] - 0.5, 0.01))
    lengths = np.linalg.norm(start, axis=1, keepdims=True)
    start = start * np.minimum(1.0, 0.95 / np.maximum(lengths, 1e-12))
    loadings = _least_squares(noised.released, weights, start)
    return _Fitted(noised.released, noised.deviations, weights, loadings)


def _least_squares(correlation: Array, weights: Array, start: Array) -> Array:
    """Return Λ that minimises Σ w_jl(r_jl − λ_j·λ_l)² on principal axes, with ψ above its limit."""
    longest = np.sqrt(1.0 - _LEAST_UNIQUE)

    def loss(numbers: Array) -> tuple[float, Array]:
        free = numbers.reshape(start.shape)
        lengths = np.sqrt(1.0 + np.sum(free**2, axis=1, keepdims=True))
        loadings = longest * free / lengths
        left = correlation - loadings @ loadings.T
        slope = -2.0 * (weights * left) @ loadings
        along = np.sum(slope * free, axis=1, keepdims=True) / lengths**2
        return 0.5 * float(np.sum(weights * left**2)), np.ravel(longest * (slope - free * along) / lengths)

    free = start / np.sqrt(longest**2 - np.sum(start**2, axis=1, keepdims=True))
    minimize: Any = scipy.optimize.minimize
    options = {"maxiter": 5000, "maxcor": 30, "ftol": 1e-15, "gtol": 1e-10}
    free = minimize(loss, free.ravel(), jac=True, method="L-BFGS-B", options=options).x.reshape(start.shape)
    made = longest * free / np.sqrt(1.0 + np.sum(free**2, axis=1, keepdims=True))
    return np.asarray(made @ np.linalg.svd(made, full_matrices=False)[2].T)


def _varimax(loadings: Array, start: Array) -> Array:
    """Return the rotation that makes squared loadings vary most within factors [K58]."""
    turn, reached = start, -1.0
    for _ in range(1000):
        turned = loadings @ turn
        slope = loadings.T @ (turned**3 - turned * np.mean(turned**2, axis=0))
        left, values, right = np.linalg.svd(slope)
        turn, before, reached = left @ right, reached, float(values.sum())
        if reached <= before * (1.0 + 1e-14):
            break
    return np.asarray(turn)


def _aligned(loadings: Array, like: Array, *, rotate: bool) -> Array:
    """Return loadings in the order and with the signs of others that they are close to."""
    if not rotate:
        return np.asarray(loadings * np.sign(np.sum(loadings * like, axis=0)))
    left, _, right = np.linalg.svd(loadings.T @ like)
    return np.asarray(loadings @ _varimax(loadings, left @ right))
