"""``Completion``: predictions of missing ratings from a released covariance of ratings."""

from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array, fix_signs
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, number, percent
from fedpower.rules.rules import KNOWN

_SEED = 37
_MOST_DRAWS, _LEAST_DRAWS, _NUMBERS = 100, 40, 4e6
_EDGE = 0.95  # the share of draws of the noise alone whose largest eigenvalue is below the edge
_LEAST_VARIANCE = 0.05  # of items' average: no item varies less, nor its part outside the components
_LEAST_COUNT = 1e-12  # of pairs' shares, without noise: nobody rated both


class Filled(NamedTuple):
    """Rows without empty cells, and intervals for the filled cells."""

    values: Array
    low: Array
    high: Array


class Completion(TransformerMixin, Analysis):
    """Predict empty cells of a table of ratings.

    The release must come from columns with rules of kind ``rating``. The ratings follow x = μ + Λf + e with k
    components f. New rows are completed locally.

    Attributes
    ----------
    items_ : ndarray of str of shape (d,)
        The rated items.
    mean_, covariance_ : ndarray
        Mean of each item, and covariance of each pair of items over the rows that rated both, in the units of
        the ratings and with noise. Means are shrunk towards their average as far as noise explains their
        differences.
    weight_ : ndarray of shape (d,)
        Share of all ratings that each item has.
    components_, explained_variance_ : ndarray
        Axes and eigenvalues of the weighted covariance, in units of half the range of the ratings.
    loadings_ : ndarray of shape (d, n_used)
        Λ, in the units of the ratings.
    noise_variance_ : ndarray of shape (d,)
        Variance of e for each item, in squared units of the ratings.
    n_used_ : int
        Number of components in use: k, or those that stand out from the noise. With 0, empty cells get the
        mean of their item.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import Completion
    >>> ratings = pd.DataFrame(np.random.default_rng(0).integers(1, 6, (200, 3)), columns=["a", "b", "c"])
    >>> book = {name: {"kind": "rating", "range": [1, 5]} for name in ratings}
    >>> release = FedCovariance(epsilon=float("inf"), center=False, codebook=book).fit_silos([ratings])
    >>> Completion(1).fit(release).transform([[5, np.nan, 1]]).shape
    (1, 3)
    """

    kind = "complete"
    needs_covariance = False

    n_components: int = base.components(
        "Largest number of components; those that noise can explain are left out."
    )
    _: KW_ONLY
    level: float = base.level()

    def _fit(self, release: Covariance) -> None:
        spans = _spans(release)
        d, k = len(spans), self.n_components
        require(k < d, "n_components", f"at most {d - 1}, below the {d} items", k)
        raw, sigma = (
            _about_the_middle(release, d),
            release.noise_std * (release.treatment.row_norm or 1.0) ** 2,
        )
        # A count below two standard deviations may be 0.
        least = max(2.0 * sigma / KNOWN**2, _LEAST_COUNT)
        ends = np.array(list(spans.values()))
        self._middle, self._half = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
        pairs = _pairs(raw, least)
        noised = _pairs(raw + _noise(len(raw), sigma), least) if sigma else None
        root = np.sqrt(pairs.weight / np.mean(pairs.weight))
        weights = np.outer(root, root)
        values, vectors = base.eigenpairs(pairs.covariance * weights)
        vectors = fix_signs(vectors)
        edge, means, variances = 0.0, None, None
        if noised is not None:
            largest = np.linalg.eigvalsh((noised.covariance - pairs.covariance) * weights)[:, -1]
            edge = float(np.quantile(largest, _EDGE))
            means, variances = noised.mean, _diagonal(noised.covariance)
        self.n_used_ = used = min(k, _n_clear(values, edge))
        sums = _diagonal(raw)
        rated, total = sums[d:] > least, max(float(np.sum(sums[d:])), least)
        mean = float(np.clip(np.sum(_diagonal(raw[:d, d:])) / total, -1.0, 1.0))
        variance = max(float(np.sum(sums[:d])) / total - mean**2, 0.0)
        shrink_means = _shrinkage(pairs.mean, means, mean, rated)
        shrink_own = _shrinkage(_diagonal(pairs.covariance), variances, variance, rated)

        def modelled(one: _Pairs, values: Array, vectors: Array) -> _Model:
            """Return Λ and ψ: eigenvalues less the average of those left out, and less what noise adds."""
            rest = max(float(np.mean(values[used:])), 0.0)
            shown = np.maximum(values[:used] - rest, 0.0)
            kept = (shown + np.sqrt(np.maximum(shown**2 - edge**2, 0.0))) / 2.0
            loadings = vectors[:, :used] * np.sqrt(kept) / root[:, None]
            own = shrink_own(_diagonal(one.covariance))
            floor = _LEAST_VARIANCE * max(float(np.mean(own)), _LEAST_COUNT)
            unique = np.maximum(own - np.sum(loadings**2, axis=1), floor)
            return _Model(shrink_means(one.mean), loadings, unique)

        self._model, self._draws = modelled(pairs, values, vectors), []
        for middle, covariance in zip(noised.mean, noised.covariance, strict=True) if noised else ():
            one = _Pairs(middle, covariance, pairs.weight)
            self._draws.append(modelled(one, *base.eigenpairs(covariance * weights)))
        half = self._half
        self.items_ = np.asarray(list(spans), dtype=object)
        self.mean_ = self._middle + half * self._model.mean
        self.covariance_ = pairs.covariance * np.outer(half, half)
        self.weight_ = pairs.weight / np.sum(pairs.weight)
        self.components_ = np.asarray(vectors[:, :used].T)
        self.explained_variance_, self.spectrum_ = values[:used].copy(), values
        self.loadings_ = self._model.loadings * half[:, None]
        self.noise_variance_ = self._model.unique * half**2
        self.feature_names_in_, self.n_features_in_ = self.items_, d

    def transform(self, X: ArrayLike) -> Array:
        """Return rows with their empty cells filled in. This is a local computation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Ratings, NaN if there is none. The columns of a table are matched by name.
        """
        return self.intervals(X).values

    def intervals(self, X: ArrayLike) -> Filled:
        """Return completed rows, with intervals of the cells that were empty.

        An interval covers the variation outside the components, the error of a row's scores, and the privacy
        noise. ``X`` is as in `transform`.
        """
        check_is_fitted(self)
        given = base.new_rows(X, self.items_, "items of the covariance")
        known = ~np.isnan(given)
        scaled = np.clip((np.where(known, given, 0.0) - self._middle) / self._half, -1.0, 1.0)
        means, variance = self._model.predict(scaled, known)
        if self._draws:
            shifts = sum((each.predict(scaled, known)[0] - means) ** 2 for each in self._draws)
            variance = variance + shifts / len(self._draws)
        width = base.quantile(self.level) * np.sqrt(variance)
        ends = (np.clip(each, -1.0, 1.0) for each in (means, means - width, means + width))
        return Filled(*(np.where(known, given, self._middle + self._half * end) for end in ends))

    def decoded(self, features: ArrayLike) -> Array:
        """Return ratings in their own units, NaN where there is none, from the features of a table."""
        check_is_fitted(self)
        rows = np.asarray(features, dtype=np.float64)
        return np.where(rows[:, 1::2] > 0, self._middle + self._half * rows[:, ::2], np.nan)

    def _page(self) -> Contents:
        used, asked, names = self.n_used_, self.n_components, [str(item) for item in self.items_]
        outside = np.sqrt(self.noise_variance_)
        deviations = np.sqrt(self.noise_variance_ + np.sum(self.loadings_**2, axis=1))
        yield f"Completion of {count(len(names), 'item')} through {count(used, 'component')}"
        if used:
            more = "" if used == asked else "; noise could explain the others"
            yield f"{used} of {count(asked, 'component')} {'is' if used == 1 else 'are'} used{more}."
        else:
            yield (
                "No component is used, because noise could explain all of them: the items' means fill empty "
                "cells. Use a larger epsilon, fewer items or more persons."
            )
        yield (
            f"Predictions have a standard deviation of {number(float(np.median(outside)), 3)} for a person "
            f"with many ratings, and of {number(float(np.median(deviations)), 3)} for a person without "
            "ratings (medians over items)."
        )
        yield (
            "Clipped rows count less, and extreme ratings make longer rows. With few items, means are too "
            "close to the middle, and deviations and intervals too small."
        )
        yield f"New rows are filled locally, with intervals of {percent(self.level)}."
        items = {
            "Item": names,
            "Mean": self.mean_,
            "Deviation": deviations,
            "Outside components": outside,
            "Share of ratings": self.weight_,
        }
        yield Table("Items", "items.csv", items)
        if used:
            loadings = {f"pc{place}": values for place, values in enumerate(self.loadings_.T, start=1)}
            yield Table("Loadings", "loadings.csv", {"Item": names, **loadings})
        caption = "Variances, with items weighted by their number of ratings; squares are not used."
        yield base.variance_chart(self.spectrum_, [True] * used, caption)
        yield from base.loadings_chart(self.loadings_.T, names, "Items", "components")


class _Pairs(NamedTuple):
    """Means, covariances of observed pairs, and how often items were rated: (…, d), (…, d, d), (…, d)."""

    mean: Array
    covariance: Array
    weight: Array


class _Model(NamedTuple):
    """x = μ + Λf + e: f standard normal, e normal with variances ψ."""

    mean: Array
    loadings: Array
    unique: Array

    def predict(self, values: Array, known: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the conditional mean and variance of all cells, given those that are known."""
        n, k = len(values), self.loadings.shape[1]
        scaled = self.loadings / self.unique[:, None]
        outer = np.einsum("dk,dl->dkl", self.loadings, scaled).reshape(len(self.mean), k * k)
        inverse = np.linalg.inv(np.eye(k) + (known @ outer).reshape(n, k, k))
        scores = np.einsum("nkl,nl->nk", inverse, np.where(known, values - self.mean, 0.0) @ scaled)
        spread = np.einsum("dk,nkl,dl->nd", self.loadings, inverse, self.loadings, optimize=True)
        return self.mean + scores @ self.loadings.T, spread + self.unique


def _shrinkage(
    values: Array, drawn: Array | None, average: float, rated: NDArray[np.bool_]
) -> Callable[[Array], Array]:
    """Return what moves items' numbers towards their average as far as their differences are noise."""
    if drawn is None:
        return lambda own: own
    noise = np.var(drawn, axis=0)
    noise = np.maximum(noise, 0.01 * np.median(noise))  # some are at an end of their range
    weights = np.where(rated, 1.0 / noise**2, 0.0)
    spread = max(float(np.sum(((values - average) ** 2 - noise) * weights)), 0.0)
    between = spread / max(float(np.sum(weights)), _LEAST_COUNT)
    kept = np.where(rated, between / (between + noise), 0.0)
    return lambda own: np.asarray(own * kept + average * (1.0 - kept))


def _pairs(raw: Array, least: float) -> _Pairs:
    """Return means, covariances and weights of items from the covariance of ratings and of their presence."""
    d = raw.shape[-1] // 2
    xx, xm, mm = raw[..., :d, :d], raw[..., :d, d:], raw[..., d:, d:]
    counts = np.maximum(mm, least)
    weight = _diagonal(counts)
    mean = np.clip(_diagonal(xm) / weight, -1.0, 1.0)
    one, other = mean[..., :, None], mean[..., None, :]
    crossed = one * np.swapaxes(xm, -1, -2)
    sums = xx - crossed - np.swapaxes(crossed, -1, -2) + one * other * mm
    own = _diagonal(xx) / weight - mean**2
    return _Pairs(mean, np.where(np.eye(d, dtype=bool), own[..., None], sums / counts), weight)


def _noise(size: int, sigma: float) -> Array:
    """Return draws of the noise: public, and always the same."""
    scale = np.ones(size)
    scale[size // 2 :] = KNOWN
    many = int(np.clip(_NUMBERS / size**2, _LEAST_DRAWS, _MOST_DRAWS))
    drawn = base.symmetric(np.random.default_rng(_SEED), many, size)
    return np.asarray(drawn * (sigma / np.sqrt(2.0)) / np.outer(scale, scale))


def _diagonal(matrices: Array) -> Array:
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def _spans(release: Covariance) -> Mapping[str, tuple[float, float]]:
    """Return the rated items and the ranges of their ratings; refuse a covariance of anything else."""
    rules, treatment = release.record.table_rules, release.treatment
    spans = {} if rules is None else rules.spans
    if not spans or 2 * len(spans) != release.n_features:
        got = "other columns too" if spans else "none"
        raise InputError(f"the release must have only columns with rules of kind 'rating', got {got}")
    if treatment.center is not None or treatment.scale is not None:
        raise InputError("ratings must be released without offsets and scales, got some")
    return spans


def _about_the_middle(release: Covariance, d: int) -> Array:
    """Return the covariance about the middle of the ranges, ratings first, then whether there is one."""
    middle = release.pooled.center
    values = (
        release.pooled.covariance if middle is None else release.pooled.covariance + np.outer(middle, middle)
    )
    order = [2 * place + part for part in range(2) for place in range(d)]
    scale = np.repeat([1.0, KNOWN], d)
    row_norm = release.treatment.row_norm or 1.0
    return np.asarray(row_norm**2 * values[np.ix_(order, order)] / np.outer(scale, scale))


def _n_clear(values: Array, edge: float) -> int:
    """Return how many eigenvalues, less what noise may add, exceed the average of those after them."""
    after = (np.cumsum(values[::-1])[::-1] - values) / np.maximum(np.arange(len(values))[::-1], 1)
    return int(np.argmin(np.append(values - edge > np.maximum(after, 0.0), False)))
