"""``FactorAnalysis``: common factors behind the columns of a released covariance, with intervals."""

from dataclasses import KW_ONLY, MISSING, dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

from fedpower.analyses import base
from fedpower.analyses.base import Analysis, Array, Contents, analysis
from fedpower.analyses.correlation import NoisedCorrelations, noised_correlations
from fedpower.errors import require
from fedpower.linalg import fix_signs
from fedpower.options import setting
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, percent

_STEP = 1e-3
_DRAWS = 300
_LEAST_UNIQUE = 5e-3
"""Least share of a column's variance that is its own: below it the likelihood has no maximum."""

_MOST_MISFIT = 0.4
"""Share of misfit in what the model leaves of noised correlations, above which likelihood is kept."""


@analysis
class FactorAnalysis(Analysis):
    """Factors behind the columns of a released covariance: x = μ + Λf + u, u of each column its own.

    Without noise: maximum likelihood of normal rows, as :class:`sklearn.decomposition.FactorAnalysis` [J67].
    The likelihood takes small eigenvalues for exact, so with noise loadings minimise the squared errors of
    the correlations, each divided by its variance from sampling and noise. Where the model misses the
    correlations by about as much as the noise does, maximum likelihood is kept, of the covariance with its
    spectrum floored at the noise.

    Attributes
    ----------
    loadings_ : ndarray of shape (d, k)
        Correlations of columns and factors: loadings of columns of variance 1.
    standard_error_, low_, high_ : ndarray of shape (d, k)
        Of the loadings.
    components_ : ndarray of shape (k, d)
        Loadings in the rows' own units, as scikit-learn gives them.
    noise_variance_ : ndarray of shape (d,)
        Each column's own variance, in the rows' own units and divided by n, as scikit-learn's.
    communality_ : ndarray of shape (d,)
        The share of each column's variance that the factors explain.
    loss_ : {"maximum_likelihood", "least_squares"}
        What the loadings minimise.
    clipping_share_ : float or None
        The share of the rows' squared length that the bound removed, which intervals do not include.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedMoment
    >>> from fedpower.analyses import FactorAnalysis
    >>> rng = np.random.default_rng(0)
    >>> rows = rng.normal(size=(500, 1)) + rng.normal(size=(500, 4))
    >>> moment = FedMoment(epsilon=float("inf")).fit_silos([rows]).moment_
    >>> FactorAnalysis(1).fit(moment).loadings_.shape
    (4, 1)
    """

    kind = "factor"

    n_factors: int = setting(
        MISSING,
        "Number of factors k, of d columns: with (d − k)² below d + k there are more numbers than pairs.",
        "count",
        option="-k --factors",
    )
    _: KW_ONLY
    rotation: Literal["varimax", "none"] = setting(
        "varimax",
        "How factors are rotated so that they are simple; none leaves them on principal axes.",
        ("varimax", "none"),
    )
    level: float = base.level()
    sampling: bool = base.sampling()

    def _fit(self, moment: Moment) -> None:
        d, k = moment.n_features, self.n_factors
        must = f"a whole number k of at least 1 with (d - k)² at least d + k, d = {d} columns"
        require((d - k) ** 2 >= d + k, "n_factors", must, k)
        fitted = _fit(moment, k)
        raw = fitted.loadings
        turn = _varimax(raw, np.eye(k)) if self.rotation == "varimax" else np.eye(k)
        turn = turn[:, np.argsort(-np.sum((raw @ turn) ** 2, axis=0), kind="stable")]
        self.loadings_ = fix_signs(raw @ turn)
        self._set_intervals(self.loadings_, self._errors(moment, fitted))
        biased = fitted.deviations / np.sqrt(moment.divisor)  # scikit-learn divides by n
        self.components_ = np.asarray((self.loadings_ * biased[:, None]).T)
        self.noise_variance_ = np.asarray(fitted.unique * biased**2)
        self.communality_ = np.asarray(1.0 - fitted.unique)
        self.n_floored_, self.n_at_bound_ = fitted.n_floored, int(np.sum(~fitted.free))
        self.loss_ = fitted.loss

    def _errors(self, moment: Moment, fitted: "_Fitted") -> Array:
        """Return the standard errors of the loadings: the delta method on the equations of the loss."""
        at = fitted.correlation * np.outer(fitted.deviations, fitted.deviations)
        squares, seen, like = np.zeros_like(self.loadings_), 0, self.loadings_
        inverse = fitted.inverse()
        for matrices, _ in base.draws(moment, base.usable(moment)[0], sampling=self.sampling, count=_DRAWS):
            for change in matrices:
                sides = _correlation(at + _STEP * change), _correlation(at - _STEP * change)
                up, down = (
                    _aligned(side, like, rotate=self.rotation == "varimax")
                    for side in fitted.response(*sides, inverse)
                )
                squares += ((up - down) / (2.0 * _STEP)) ** 2
                seen += 1
        return np.asarray(np.sqrt(squares / seen))

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
        if self.loss_ == "least_squares":
            yield "Least squares, weighted by the errors of sampling and of privacy noise."
        elif self.moment_.noise_std > 0:
            yield "Maximum likelihood: the model misses the correlations by as much as the noise does."
        if self.n_at_bound_:
            yield (
                f"{count(self.n_at_bound_, 'column')} would have no variance of its own left (a Heywood "
                "case): its loadings are at their limit, and not to be trusted."
            )
        columns: dict[str, Any] = {"Column": self.columns_}
        for place, factor in enumerate(factors):
            columns[factor.capitalize()] = self.loadings_[:, place]
            columns[f"Error {place + 1}"] = self.standard_error_[:, place]
        yield Table("Loadings", "loadings.csv", {**columns, "Communality": self.communality_})
        yield from base.loadings_chart(self.loadings_.T, self.columns_, "Columns", "factors")
        for factor, *ends in zip(factors, self.loadings_.T, self.low_.T, self.high_.T, strict=True):
            caption = f"{factor.capitalize()}: a line is an interval; a cross has 0 within it."
            yield base.interval_chart(f"Loadings of {factor}", self.columns_, *ends, caption=caption)


def congruence(one: Array, other: Array) -> Array:
    """Return Tucker's congruence of each factor of ``other`` with its match among those of ``one``.

    Cosines of columns, matched so that their sum is largest, whatever order and signs they have.

    Parameters
    ----------
    one, other : ndarray of shape (d, k)
        Loadings.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower.analyses import congruence
    >>> congruence(np.eye(3)[:, :2], -np.eye(3)[:, [1, 0]])
    array([1., 1.])
    """
    lengths = np.linalg.norm(one, axis=0)[:, None] * np.linalg.norm(other, axis=0)[None, :]
    cosines = np.abs(one.T @ other) / lengths
    rows, columns = scipy.optimize.linear_sum_assignment(cosines, maximize=True)
    return np.asarray(cosines[rows, columns][np.argsort(columns)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """The minimum of a loss: its numbers are ψ of maximum likelihood, or unrotated Λ of least squares."""

    correlation: Array
    deviations: Array
    numbers: Array
    k: int
    weights: Array | None = None
    n_floored: int = 0

    @property
    def loss(self) -> Literal["maximum_likelihood", "least_squares"]:
        return "maximum_likelihood" if self.weights is None else "least_squares"

    @property
    def loadings(self) -> Array:
        return self._loadings(self.numbers, self.correlation)

    @property
    def unique(self) -> Array:
        return np.asarray(1.0 - np.sum(self.loadings**2, axis=1)) if self.numbers.ndim > 1 else self.numbers

    @property
    def free(self) -> NDArray[np.bool_]:
        """Whether each column's own variance is above its limit."""
        return np.asarray(self.unique > _LEAST_UNIQUE * (1.0 + 1e-9 if self.weights is None else 2.0))

    def inverse(self) -> Array:
        """Return the inverse of the gradient's derivative by the numbers that are free."""
        columns, numbers = [], self.numbers.ravel()
        for step in np.diag(1e-5 * np.maximum(np.abs(numbers), _LEAST_UNIQUE)):
            sides = (self._gradient((numbers + sign * step), self.correlation) for sign in (1.0, -1.0))
            columns.append((next(sides) - next(sides)) / (2.0 * step.sum()))
        derivative, made = np.column_stack(columns), np.zeros((len(numbers), len(numbers)))
        at = np.ix_(*2 * [np.repeat(self.free, len(numbers) // len(self.free))])
        made[at] = np.linalg.pinv(derivative[at], rcond=1e-7)  # turns of all factors change nothing
        return made

    def response(self, up: Array, down: Array, inverse: Array) -> tuple[Array, Array]:
        """Return the loadings at two correlation matrices, to either side of the minimum."""
        moved = (self._gradient(self.numbers, up) - self._gradient(self.numbers, down)) / 2.0
        change = (inverse @ moved).reshape(self.numbers.shape)
        return self._loadings(self.numbers - change, up), self._loadings(self.numbers + change, down)

    def _gradient(self, numbers: Array, correlation: Array) -> Array:
        if self.weights is None:
            return _gradient(correlation, numbers, self.k)
        loadings = numbers.reshape(-1, self.k)
        return -np.ravel((self.weights * (correlation - loadings @ loadings.T)) @ loadings)

    def _loadings(self, numbers: Array, correlation: Array) -> Array:
        if self.weights is None:
            return _loadings(correlation, np.maximum(numbers, 1e-9), self.k)
        return numbers


def _fit(moment: Moment, k: int) -> _Fitted:
    """Return loadings by least squares where noise exceeds misfit, else by maximum likelihood."""
    if moment.noise_std > 0:
        noised = noised_correlations(moment)
        weights = _weights(noised, moment.n_samples)
        start = _loadings(noised.shrunk, np.full(len(noised.shrunk), 0.5), k)
        lengths = np.linalg.norm(start, axis=1, keepdims=True)
        start = start * np.minimum(1.0, 0.95 / np.maximum(lengths, 1e-12))
        loadings = _least_squares(noised.released, weights, start)
        if _misfit(noised, weights, loadings) <= _MOST_MISFIT:
            at, deviations = noised.released, noised.deviations
            return _Fitted(correlation=at, deviations=deviations, numbers=loadings, k=k, weights=weights)
    covariance, n_floored = base.usable(moment)
    deviations, correlation = np.sqrt(np.diagonal(covariance)), _correlation(covariance)
    unique = _uniquenesses(correlation, k)
    return _Fitted(correlation=correlation, deviations=deviations, numbers=unique, k=k, n_floored=n_floored)


def _weights(noised: NoisedCorrelations, n_samples: int) -> Array:
    """Return 1/variance of each correlation, from sampling and noise; 0 on the diagonal."""
    made = 1.0 / ((1.0 - noised.shrunk**2) ** 2 / n_samples + noised.noise_variance + 1e-12)
    np.fill_diagonal(made, 0.0)
    return np.asarray(made / made.max())


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


def _misfit(noised: NoisedCorrelations, weights: Array, loadings: Array) -> float:
    """Return the share of misfit in the variance that the model leaves, the rest of it being noise."""
    d, k = loadings.shape
    pairs = d * (d - 1) / 2
    left = max(1.0 - (d * k - k * (k - 1) / 2) / pairs, 0.2)  # degrees of freedom that are left
    squares = (noised.released - loadings @ loadings.T) ** 2
    variance = float(np.sum(weights * squares)) / left
    return float(max(1.0 - np.sum(weights * noised.noise_variance) / variance, 0.0))


def _correlation(covariance: Array) -> Array:
    deviations = np.sqrt(np.diagonal(covariance))
    return np.asarray(covariance / np.outer(deviations, deviations))


def _scaled(correlation: Array, unique: Array) -> tuple[Array, Array]:
    """Return the eigenpairs of Ψ^−½RΨ^−½, largest first."""
    roots = np.sqrt(unique)
    return base.eigenpairs(correlation / np.outer(roots, roots))


def _loadings(correlation: Array, unique: Array, k: int) -> Array:
    """Return Λ = Ψ^½V(Θ − I)^½: the best loadings for given ψ [J67 eq. 15]."""
    values, vectors = _scaled(correlation, unique)
    stretched = np.sqrt(np.maximum(values[:k] - 1.0, 0.0))
    return np.asarray(np.sqrt(unique)[:, None] * vectors[:, :k] * stretched)


def _gradient(correlation: Array, unique: Array, k: int) -> Array:
    """Return the derivative of the concentrated likelihood by log ψ [J67 eq. 18]."""
    loadings = _loadings(correlation, unique, k)
    fitted = np.sum(loadings**2, axis=1) + unique
    return np.asarray((fitted - np.diagonal(correlation)) / unique)


def _discrepancy(correlation: Array, unique: Array, k: int) -> float:
    values = np.maximum(_scaled(correlation, unique)[0][k:], 1e-300)
    return float(np.sum(values - np.log(values) - 1.0))


def _uniquenesses(correlation: Array, k: int) -> Array:
    """Return ψ at the maximum of the likelihood: quasi-Newton in log ψ, then Newton to the end."""
    d = len(correlation)
    inverse = np.diagonal(np.linalg.inv(correlation))
    start = np.clip((1.0 - 0.5 * k / d) / inverse, 2 * _LEAST_UNIQUE, 1.0)
    minimize: Any = scipy.optimize.minimize
    found = minimize(
        lambda x: _discrepancy(correlation, np.exp(x), k),
        np.log(start),
        jac=lambda x: _gradient(correlation, np.exp(x), k),
        method="L-BFGS-B",
        bounds=[(np.log(_LEAST_UNIQUE), 0.0)] * d,
        options={"maxiter": 2000, "ftol": 1e-15, "gtol": 1e-10},
    )
    unique = np.exp(found.x)
    free = (unique > _LEAST_UNIQUE * 1.0001) & (unique < 0.9999)

    def slope(values: Array) -> Array:
        return _gradient(correlation, np.where(free, values, unique), k)

    root: Any = scipy.optimize.root
    refined = root(lambda values: np.where(free, slope(values), values - unique), unique, tol=1e-15).x
    near = bool(np.all(np.abs(refined - unique) <= 0.1 * unique))
    return np.asarray(np.clip(refined if near else unique, _LEAST_UNIQUE, 1.0))


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
