"""``FactorAnalysis``: common factors behind the columns of a released moment, with intervals."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import scipy.optimize
from markupsafe import Markup
from numpy.typing import NDArray

from fedpower.analyses.base import (
    LEVEL,
    SAMPLING,
    Analysis,
    NoisedCorrelations,
    Option,
    clipping_share,
    draws,
    noised_correlations,
    table_of,
    usable,
)  # fmt: skip
from fedpower.errors import InputError
from fedpower.linalg import fix_signs
from fedpower.report.charts import biplot, intervals
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, percent

Array = NDArray[np.float64]

_STEP = 1e-3
_DRAWS = 300
_LEAST_UNIQUE = 5e-3
"""Share of a column's variance that is its own at least: at less the likelihood has no maximum."""

_MOST_MISFIT = 0.4
"""Share of misfit in what the model leaves of noised correlations, above which likelihood is kept."""


class FactorAnalysis(Analysis):
    """Factors behind the columns of a released moment: x = μ + Λf + u, u of each column its own.

    Without noise: maximum likelihood of normal rows, as :class:`sklearn.decomposition.FactorAnalysis`,
    from the moment only [J67]. The likelihood ignores privacy noise, which is equal on all entries, and
    takes small eigenvalues for exact. With noise, loadings minimise the squared errors of the
    correlations, each divided by its variance from sampling and noise. Where the model misses the
    correlations by about as much as the noise does, the two losses differ even without noise, and
    maximum likelihood is kept: of the moment with its spectrum floored at the noise.

    Parameters
    ----------
    n_factors : int
        k, with (d − k)² > d + k: else the model has more numbers than the moment.
    rotation : {"varimax", None}, default="varimax"
        How factors are turned so that they are simple; None leaves them on principal axes.
    level : float, default=0.95
        Of the intervals.
    sampling : bool, default=True
        Whether the rows are a sample: else intervals hold the privacy noise alone.

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
        The share of the rows' squared length that the bound removed, which intervals do not account for.
    moment_ : Moment
        What it was computed from.
    """

    kind = "factor"
    options = (
        Option("n_factors", "-k --factors", "Number of factors.", required=True),
        Option(
            "rotation",
            "--rotation",
            "How factors are turned.",
            default="varimax",
            choices=("varimax", "none"),
        ),
        LEVEL,
        SAMPLING,
    )
    facts = ("loadings", "standard_error", "low", "high", "communality", "n_floored", "n_at_bound", "loss",
             "clipping_share")  # fmt: skip

    def __init__(
        self,
        n_factors: int,
        *,
        rotation: Literal["varimax"] | None = "varimax",
        level: float = 0.95,
        sampling: bool = True,
    ) -> None:
        self.n_factors = n_factors
        self.rotation = rotation
        self.level = level
        self.sampling = sampling

    @classmethod
    def from_options(cls, **given: Any) -> Analysis:
        """Return the analysis that a command's options ask for."""
        return cls(rotation=None if given.pop("rotation") == "none" else "varimax", **given)

    def _fit(self, moment: Moment) -> None:
        d, k = moment.n_features, self.n_factors
        if not (isinstance(k, int) and k >= 1 and (d - k) ** 2 >= d + k):
            raise InputError(
                f"n_factors must be a whole number k of at least 1 with (d - k)² at least d + k, d = {d} "
                f"columns, got {k!r}; choose fewer factors"
            )
        if self.rotation not in ("varimax", None):
            raise InputError(f"rotation must be 'varimax' or None, got {self.rotation!r}; choose one")
        fitted = _fit(moment, k)
        raw = fitted.loadings
        turn = _varimax(raw) if self.rotation else np.eye(k)
        order = np.argsort(-np.sum((raw @ turn) ** 2, axis=0), kind="stable")
        turn = turn[:, order]
        turn = turn * np.sign(np.sum(fix_signs(raw @ turn) * (raw @ turn), axis=0))
        self.loadings_ = raw @ turn
        self._set_intervals(self.loadings_, self._errors(moment, fitted, turn))
        biased = fitted.deviations / np.sqrt(moment.divisor)  # scikit-learn divides by n
        self.components_ = np.asarray((self.loadings_ * biased[:, None]).T)
        self.noise_variance_ = np.asarray(fitted.unique * biased**2)
        self.communality_ = np.asarray(1.0 - fitted.unique)
        self.n_floored_, self.n_at_bound_ = fitted.n_floored, int(np.sum(~fitted.free))
        self.loss_, self.clipping_share_ = fitted.loss, clipping_share(moment)
        self._remark = fitted.remark

    def _errors(self, moment: Moment, fitted: "_Fitted", turn: Array) -> Array:
        """Return the standard errors of the loadings: the delta method on the equations of the loss."""
        loadings = fitted.loadings @ turn
        scales = np.outer(fitted.deviations, fitted.deviations)
        at, response = fitted.correlation * scales, fitted.response()
        squares, seen = np.zeros_like(loadings), 0
        covariance = usable(moment).covariance
        for matrices, _ in draws(moment, covariance, sampling=self.sampling, count=_DRAWS):
            for change in matrices:
                up, down = (
                    _turned(side, loadings, rotate=self.rotation is not None)
                    for side in response(_correlation(at + _STEP * change), _correlation(at - _STEP * change))
                )
                squares += ((up - down) / (2.0 * _STEP)) ** 2
                seen += 1
        return np.asarray(np.sqrt(squares / seen))

    @property
    def _factors(self) -> list[str]:
        return [f"factor {place}" for place in range(1, self.loadings_.shape[1] + 1)]

    def _title(self) -> str:
        d, k = self.loadings_.shape
        return f"{count(k, 'factor')} of {count(d, 'column')}"

    def _sentences(self) -> Iterator[str]:
        shares = np.sum(self.loadings_**2, axis=0) / len(self.loadings_)
        sure = (self.low_ > 0) | (self.high_ < 0)
        yield (
            f"The factors explain {percent(float(shares.sum()))} of the variance of standardised columns: "
            f"{', '.join(percent(float(share)) for share in shares)}."
        )
        yield (
            f"{int(sure.sum())} of {count(sure.size, 'loading')} are told from 0; intervals are of "
            f"{percent(self.level)} each and {self._what_intervals_hold}"
        )
        yield from self._remarks
        if self.n_at_bound_:
            yield (
                f"{count(self.n_at_bound_, 'column')} would have no variance of its own left (a Heywood "
                "case): its loadings are at their limit, and not to be trusted."
            )

    def _tables(self) -> Iterator[Table]:
        columns: dict[str, Any] = {"Column": self.moment_.names}
        for place, factor in enumerate(self._factors):
            columns[factor.capitalize()] = self.loadings_[:, place]
            columns[f"Error {place + 1}"] = self.standard_error_[:, place]
        yield table_of("Loadings", "loadings.csv", {**columns, "Communality": self.communality_})

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        names, loadings = self.moment_.names, self.loadings_.T.tolist()
        if len(loadings) > 1:
            plane = biplot(loadings[0], loadings[1], names, (self._factors[0], self._factors[1]))
            yield plane, "Columns by their loadings on the first two factors."
        ends = zip(self._factors, loadings, self.low_.T.tolist(), self.high_.T.tolist(), strict=True)
        for factor, values, low, high in ends:
            chart = intervals(f"Loadings of {factor}", names, values, low, high)
            yield chart, f"{factor.capitalize()}: a line is an interval; a cross has 0 within it."

    def _more_facts(self) -> dict[str, Any]:
        return {"columns": list(self.moment_.names), "rotation": self.rotation}


def congruence(one: Array, other: Array) -> Array:
    """Return Tucker's congruence of each factor of ``other`` with its match among those of ``one``.

    Cosines of columns, matched so that their sum is largest, whatever order and signs they have.

    Parameters
    ----------
    one, other
        Loadings, d×k each.
    """
    lengths = np.linalg.norm(one, axis=0)[:, None] * np.linalg.norm(other, axis=0)[None, :]
    cosines = np.abs(one.T @ other) / lengths
    rows, columns = scipy.optimize.linear_sum_assignment(-cosines)
    return np.asarray(cosines[rows, columns][np.argsort(columns)])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fitted:
    """Unrotated loadings at the minimum of a loss."""

    correlation: Array
    deviations: Array
    loadings: Array
    unique: Array
    free: NDArray[np.bool_]
    weights: Array | None
    n_floored: int
    remark: tuple[str, ...]

    @property
    def loss(self) -> Literal["maximum_likelihood", "least_squares"]:
        return "maximum_likelihood" if self.weights is None else "least_squares"

    def response(self) -> Callable[[Array, Array], tuple[Array, Array]]:
        """Return the function from two correlation matrices, to either side, to the loadings there."""
        k, free = self.loadings.shape[1], self.free
        if self.weights is None:
            hessian = _hessian(self.correlation, self.unique, k)[np.ix_(free, free)]

            def likeliest(up: Array, down: Array) -> tuple[Array, Array]:
                slope = (_gradient(up, self.unique, k) - _gradient(down, self.unique, k)) / 2.0
                change = np.zeros_like(self.unique)
                change[free] = -np.linalg.solve(hessian, slope[free])
                return (
                    _loadings(up, np.maximum(self.unique + change, 1e-9), k),
                    _loadings(down, np.maximum(self.unique - change, 1e-9), k),
                )

            return likeliest
        weights, within = self.weights, np.repeat(free, k)
        inverse = np.zeros((within.size, within.size))
        curvature = _curvature(self.correlation, weights, self.loadings)[np.ix_(within, within)]
        inverse[np.ix_(within, within)] = np.linalg.pinv(curvature, rcond=1e-9, hermitian=True)

        def nearest(up: Array, down: Array) -> tuple[Array, Array]:
            slope = (weights * (up - down) / 2.0) @ self.loadings
            change = (inverse @ slope.ravel()).reshape(self.loadings.shape)
            return self.loadings + change, self.loadings - change

        return nearest


def _fit(moment: Moment, k: int) -> _Fitted:
    """Return loadings by least squares where noise exceeds misfit, else by maximum likelihood."""
    if moment.noise_std > 0:
        noised = noised_correlations(moment)
        weights = _weights(noised, moment.n_samples)
        loadings = _least_squares(noised.released, weights, _start(noised.shrunk, k))
        if _misfit(noised, weights, loadings) <= _MOST_MISFIT:
            unique = 1.0 - np.sum(loadings**2, axis=1)
            return _Fitted(
                correlation=noised.released,
                deviations=noised.deviations,
                loadings=loadings,
                unique=unique,
                free=unique > 2.0 * _LEAST_UNIQUE,
                weights=weights,
                n_floored=0,
                remark=("Least squares, weighted by the errors of sampling and of privacy noise.",),
            )
    found = usable(moment)
    correlation = _correlation(found.covariance)
    unique = _uniquenesses(correlation, k)
    why = "Maximum likelihood: the model misses the correlations by as much as the noise does."
    return _Fitted(
        correlation=correlation,
        deviations=np.sqrt(np.diagonal(found.covariance)),
        loadings=_loadings(correlation, unique, k),
        unique=unique,
        free=unique > _LEAST_UNIQUE * (1 + 1e-9),
        weights=None,
        n_floored=found.n_floored,
        remark=(*((why,) if moment.noise_std > 0 else ()), *found.remark),
    )


def _weights(noised: NoisedCorrelations, n_samples: int) -> Array:
    """Return 1/variance of each correlation, from sampling and noise; 0 on the diagonal."""
    made = 1.0 / ((1.0 - noised.shrunk**2) ** 2 / n_samples + noised.noise_variance + 1e-12)
    np.fill_diagonal(made, 0.0)
    return np.asarray(made / made.max())


def _start(correlation: Array, k: int) -> Array:
    """Return the loadings of columns half of whose variance is their own, shortened where too long."""
    made = _loadings(correlation, np.full(len(correlation), 0.5), k)
    lengths = np.linalg.norm(made, axis=1, keepdims=True)
    return np.asarray(made * np.minimum(1.0, 0.95 / np.maximum(lengths, 1e-12)))


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
    found = minimize(loss, free.ravel(), jac=True, method="L-BFGS-B", options=options).x
    free = found.reshape(start.shape)
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


def _curvature(correlation: Array, weights: Array, loadings: Array) -> Array:
    """Return the derivative of −(W∘(R − ΛΛᵀ))Λ by Λ, as a matrix of dk×dk."""
    d, k = loadings.shape
    made = np.einsum("jl,la,jb->jalb", weights, loadings, loadings)
    made -= np.einsum("jl,ab->jalb", weights * (correlation - loadings @ loadings.T), np.eye(k))
    places = np.arange(d)
    made[places, :, places, :] += np.einsum("jm,ma,mb->jab", weights, loadings, loadings)
    return np.asarray(made.reshape(d * k, d * k))


def _correlation(covariance: Array) -> Array:
    deviations = np.sqrt(np.diagonal(covariance))
    return np.asarray(covariance / np.outer(deviations, deviations))


def _scaled(correlation: Array, unique: Array) -> tuple[Array, Array]:
    """Return the eigenpairs of Ψ^−½RΨ^−½, largest first."""
    roots = np.sqrt(unique)
    values, vectors = np.linalg.eigh(correlation / np.outer(roots, roots))
    return values[::-1], vectors[:, ::-1]


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


def _hessian(correlation: Array, unique: Array, k: int) -> Array:
    """Return the derivative of the gradient by ψ, by central differences."""
    made = np.empty((unique.size, unique.size))
    for place in range(unique.size):
        step = np.zeros_like(unique)
        step[place] = 1e-5 * unique[place]
        up, down = (_gradient(correlation, unique + step, k), _gradient(correlation, unique - step, k))
        made[:, place] = (up - down) / (2.0 * step[place])
    return made


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
    for _ in range(20):
        slope = _gradient(correlation, unique, k)
        if not free.any() or np.abs(slope[free]).max() < 1e-14:
            break
        inner = _hessian(correlation, unique, k)[np.ix_(free, free)]
        step = np.linalg.solve(inner, slope[free])
        if np.abs(step / unique[free]).max() > 0.1:
            break
        unique[free] -= step
    return np.asarray(np.clip(unique, _LEAST_UNIQUE, 1.0))


def _varimax(loadings: Array, start: Array | None = None) -> Array:
    """Return the rotation that makes squared loadings vary most within factors [K58]."""
    d, k = loadings.shape
    turn = np.eye(k) if start is None else start.copy()
    turned = loadings @ turn
    for _ in range(200):
        largest = 0.0
        for one in range(k - 1):
            for other in range(one + 1, k):
                x, y = turned[:, one], turned[:, other]
                u, v = x**2 - y**2, 2.0 * x * y
                along = float(np.sum(u**2 - v**2) - (u.sum() ** 2 - v.sum() ** 2) / d)
                across = float(2.0 * (u @ v) - 2.0 * u.sum() * v.sum() / d)
                angle = float(np.arctan2(across, along)) / 4.0
                largest = max(largest, abs(angle))
                plane = np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
                pair = [one, other]
                turned[:, pair] = turned[:, pair] @ plane
                turn[:, pair] = turn[:, pair] @ plane
        if largest < 1e-12:
            break
    return np.asarray(turn)


def _turned(loadings: Array, like: Array, *, rotate: bool) -> Array:
    """Return loadings in the order and with the signs of others that they are close to."""
    if not rotate:
        return np.asarray(loadings * np.sign(np.sum(loadings * like, axis=0)))
    left, _, right = np.linalg.svd(loadings.T @ like)
    near = left @ right
    return np.asarray(loadings @ _varimax(loadings, near))
