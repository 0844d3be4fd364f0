"""``Completion``: what empty cells would hold, from the released moment of those that are not."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup
from numpy.typing import ArrayLike, NDArray
from sklearn.base import TransformerMixin
from sklearn.utils.validation import check_is_fitted

from fedpower.analyses.base import (
    LEVEL,
    N_COMPONENTS,
    Analysis,
    new_rows,
    quantile,
    require_count,
    table_of,
)  # fmt: skip
from fedpower.errors import InputError
from fedpower.linalg import fix_signs
from fedpower.report.charts import biplot, scree
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, number, percent
from fedpower.rules.rules import KNOWN

Array = NDArray[np.float64]

_SEED = 37
_MOST_DRAWS, _LEAST_DRAWS, _NUMBERS = 100, 40, 4e6
_EDGE = 0.95
"""The share of draws of the noise alone whose largest eigenvalue is below the edge."""

_LEAST_VARIANCE = 0.05
"""Of items' average variance: no item is taken to vary less, nor less than this beside the components."""

_LEAST_COUNT = 1e-12
"""Of pairs' shares, without noise: nobody rated both."""


class Filled(NamedTuple):
    """Rows without empty cells, and intervals for those that were empty."""

    values: Array
    low: Array
    high: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Means, covariances of observed pairs, and how often items were rated: (…, d), (…, d, d), (…, d)."""

    mean: Array
    covariance: Array
    weight: Array


@dataclass(frozen=True, slots=True, kw_only=True)
class _Model:
    """x = μ + Λf + e: f standard normal, e normal with variances ψ."""

    mean: Array
    loadings: Array
    unique: Array

    def predict(self, values: Array, known: NDArray[np.bool_]) -> tuple[Array, Array]:
        """Return the conditional mean and variance of all cells, given those that are known."""
        n, k = len(values), self.loadings.shape[1]
        scaled = self.loadings / self.unique[:, None]
        outer = np.einsum("dk,dl->dkl", self.loadings, scaled).reshape(len(self.mean), k * k)
        inner = np.eye(k) + (known @ outer).reshape(n, k, k)
        apart = np.where(known, values - self.mean, 0.0)
        inverse = np.linalg.inv(inner)
        scores = np.einsum("nkl,nl->nk", inverse, apart @ scaled)
        spread = np.einsum("dk,nkl,dl->nd", self.loadings, inverse, self.loadings, optimize=True)
        return self.mean + scores @ self.loadings.T, spread + self.unique


@dataclass(frozen=True, slots=True, kw_only=True)
class _Steady:
    """Numbers of items drawn towards their average as far as noise is all that sets them apart."""

    average: float
    kept: Array

    @classmethod
    def of(cls, values: Array, drawn: list[Array], *, average: float, told: NDArray[np.bool_]) -> "_Steady":
        """Return how far values may be kept, by draws of what noise makes of them: blocks (…, d)."""
        if not drawn:
            return cls(average=average, kept=np.ones(len(values)))
        noise = np.var(np.concatenate(drawn), axis=0)
        noise = np.maximum(noise, 0.01 * np.median(noise))  # some are at an end of their range
        weights = np.where(told, 1.0 / noise**2, 0.0)
        apart = max(float(np.sum(((values - average) ** 2 - noise) * weights)), 0.0)
        between = apart / max(float(np.sum(weights)), _LEAST_COUNT)
        return cls(average=average, kept=np.where(told, between / (between + noise), 0.0))

    def drawn_together(self, values: Array) -> Array:
        """Return values with what noise sets apart taken off."""
        return np.asarray(values * self.kept + self.average * (1.0 - self.kept))


class Completion(TransformerMixin, Analysis):
    """Empty cells predicted from those that are not, through components of the items' covariances.

    The moment must be of columns that have rules of kind ``rating``: it then holds, of every pair of
    items, how many rated both, and the sums and products of their ratings. From these come the means, the
    covariances of observed pairs, and the model x = μ + Λf + e of k components. New rows are completed
    where they are.

    Parameters
    ----------
    n_components : int
        k, at most: components that noise alone could show are not used.
    level : float, default=0.95
        Of the intervals of predictions.

    Attributes
    ----------
    items_ : ndarray of str of shape (d,)
        What is rated.
    mean_, covariance_ : ndarray
        Of ratings in their own units: of all who rated an item, and of all who rated both, about the
        items' means. Noised, and not floored; means are drawn towards their average where noise is all
        that sets them apart.
    weight_ : ndarray of shape (d,)
        The share of all ratings that each item has; items count by its root among the components.
    components_ : ndarray of shape (n_used, d)
        Axes of the weighted covariance.
    explained_variance_ : ndarray of shape (n_used,)
        Its eigenvalues, in units of half the ratings' range.
    loadings_ : ndarray of shape (d, n_used)
        Λ, in the ratings' units: their products are the fitted covariances.
    noise_variance_ : ndarray of shape (d,)
        The variances of e, in the ratings' units squared.
    n_used_ : int
        How many components are used: k, or those before the first that noise alone could show. With none,
        means are all that is known.
    moment_ : Moment
        What it was computed from.
    """

    kind = "complete"
    needs_covariance = False
    options = (replace(N_COMPONENTS, help="Number of components, at most."), LEVEL)
    facts = ("mean", "loadings", "noise_variance", "weight", "explained_variance", "n_used")

    def __init__(self, n_components: int, *, level: float = 0.95) -> None:
        self.n_components = n_components
        self.level = level

    def _fit(self, moment: Moment) -> None:
        spans = _spans(moment)
        d = len(spans)
        k = require_count("n_components", self.n_components, d - 1, upto=f"{d - 1}, below the {d} items")
        bound = moment.treatment.row_norm or 1.0
        self._raw, self._sigma = _about_the_middle(moment, spans), moment.noise_std * bound**2
        # Less than two standard deviations of a count are not told from nobody.
        self._least = max(2.0 * self._sigma / KNOWN**2, _LEAST_COUNT)
        ends = np.array(list(spans.values()))
        self._middle, self._half = ends.mean(axis=1), (ends[:, 1] - ends[:, 0]) / 2
        pairs = self._pairs(self._raw)
        root = np.sqrt(pairs.weight / np.mean(pairs.weight))
        noised = [self._pairs(self._raw + each) for each in self._noise()]
        weights = np.outer(root, root)
        self._edge = (
            float(np.quantile(np.concatenate([
                np.linalg.eigvalsh((each.covariance - pairs.covariance) * weights)[:, -1]
                for each in noised]), _EDGE))
            if noised else 0.0
        )  # fmt: skip
        values, vectors = np.linalg.eigh(pairs.covariance * weights)
        values, vectors = values[::-1], fix_signs(vectors[:, ::-1])
        self.n_used_ = min(k, _n_clear(values, self._edge))
        self._steady(pairs, noised)
        self._model = self._modelled(pairs, root, values, vectors)
        self._draws = [
            self._solved(_Pairs(mean=mean, covariance=covariance, weight=pairs.weight), root)
            for each in noised
            for mean, covariance in zip(each.mean, each.covariance, strict=True)
        ]
        half = self._half
        self.items_ = np.asarray(list(spans), dtype=object)
        self.mean_ = self._middle + half * self._model.mean
        self.covariance_ = pairs.covariance * np.outer(half, half)
        self.weight_ = pairs.weight / np.sum(pairs.weight)
        self.components_ = np.asarray(vectors[:, : self.n_used_].T)
        self.explained_variance_ = values[: self.n_used_].copy()
        self.loadings_ = self._model.loadings * half[:, None]
        self.noise_variance_ = self._model.unique * half**2
        self.spectrum_ = values
        self.feature_names_in_, self.n_features_in_ = self.items_, d

    def transform(self, X: ArrayLike) -> Array:
        """Return rows with their empty cells filled in: a local computation.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            Ratings in their own units, NaN where there is none; a table's columns are found by name.
        """
        return self.intervals(X).values

    def intervals(self, X: ArrayLike) -> Filled:
        """Return rows with their empty cells filled in, and intervals for these.

        An interval holds what a person's rating varies beside the components, how little her ratings say
        about them, and the noise of the release. Cells that were not empty are as they were.

        Parameters
        ----------
        X : array-like of shape (n_samples, n_items)
            As of `transform`.
        """
        check_is_fitted(self)
        given = new_rows(X, self.items_, what="items of the moment", advice="bring them")
        known = ~np.isnan(given)
        scaled = (np.where(known, given, 0.0) - self._middle) / self._half
        scaled = np.clip(scaled, -1.0, 1.0)
        found, variance = self._model.predict(scaled, known)
        if self._draws:
            moved = sum((each.predict(scaled, known)[0] - found) ** 2 for each in self._draws)
            variance = variance + moved / len(self._draws)
        width = quantile(self.level) * np.sqrt(variance)
        ends = (found, found - width, found + width)
        return Filled(
            *(np.where(known, given, self._middle + self._half * np.clip(each, -1.0, 1.0)) for each in ends)
        )

    def decoded(self, features: ArrayLike) -> Array:
        """Return ratings in their own units, NaN where there is none, from what rules made of a table."""
        check_is_fitted(self)
        rows = np.asarray(features, dtype=np.float64)
        known = rows[:, 1::2] > 0
        return np.where(known, self._middle + self._half * rows[:, ::2], np.nan)

    def _pairs(self, raw: Array) -> _Pairs:
        """Return what the moment of ratings and of their presence says of items and of pairs."""
        d = raw.shape[-1] // 2
        xx, xm, mm = raw[..., :d, :d], raw[..., :d, d:], raw[..., d:, d:]
        counts = np.maximum(mm, self._least)
        weight = np.diagonal(counts, axis1=-2, axis2=-1)
        mean = np.clip(np.diagonal(xm, axis1=-2, axis2=-1) / weight, -1.0, 1.0)
        one, other = mean[..., :, None], mean[..., None, :]
        crossed = one * np.swapaxes(xm, -1, -2)
        sums = xx - crossed - np.swapaxes(crossed, -1, -2) + one * other * mm
        own = np.diagonal(xx, axis1=-2, axis2=-1) / weight - mean**2
        covariance = np.where(np.eye(d, dtype=bool), own[..., None], sums / counts)
        return _Pairs(mean=mean, covariance=covariance, weight=weight)

    def _steady(self, pairs: _Pairs, noised: list[_Pairs]) -> None:
        """Find how far means and variances of single items may be kept, by the noise in them."""
        d = len(pairs.mean)
        sums = _diagonal(self._raw)
        told = sums[d:] > self._least
        total = max(float(np.sum(sums[d:])), self._least)
        mean = float(np.clip(np.sum(np.diagonal(self._raw[:d, d:])) / total, -1.0, 1.0))
        own = max(float(np.sum(sums[:d])) / total - mean**2, 0.0)
        self._means = _Steady.of(pairs.mean, [each.mean for each in noised], average=mean, told=told)
        self._own = _Steady.of(
            _diagonal(pairs.covariance),
            [_diagonal(each.covariance) for each in noised],
            average=own,
            told=told,
        )

    def _noise(self) -> list[Array]:
        """Return blocks of draws of the noise: public, and always the same; none without noise."""
        if self._sigma == 0:
            return []
        size = len(self._raw)
        scale = np.ones(size)
        scale[size // 2 :] = KNOWN
        rng = np.random.default_rng(_SEED)
        left = int(np.clip(_NUMBERS / size**2, _LEAST_DRAWS, _MOST_DRAWS))
        blocks = []
        while left:
            many = min(left, max(1, int(4e6 / size**2)))
            left -= many
            drawn = rng.standard_normal((many, size, size))
            drawn = (drawn + drawn.transpose(0, 2, 1)) / 2.0 * self._sigma
            blocks.append(drawn / np.outer(scale, scale))
        return blocks

    def _solved(self, pairs: _Pairs, root: Array) -> _Model:
        """Return the model of one draw, with as many components as the release has."""
        values, vectors = np.linalg.eigh(pairs.covariance * np.outer(root, root))
        return self._modelled(pairs, root, values[::-1], vectors[:, ::-1])

    def _modelled(self, pairs: _Pairs, root: Array, values: Array, vectors: Array) -> _Model:
        """Return Λ and ψ: eigenvalues less the average of those left out, and less what noise adds."""
        used = self.n_used_
        rest = max(float(np.mean(values[used:])), 0.0)
        shown = np.maximum(values[:used] - rest, 0.0)
        kept = (shown + np.sqrt(np.maximum(shown**2 - self._edge**2, 0.0))) / 2.0
        loadings = vectors[:, :used] * np.sqrt(kept) / root[:, None]
        own = self._own.drawn_together(_diagonal(pairs.covariance))
        least = _LEAST_VARIANCE * max(float(np.mean(own)), _LEAST_COUNT)
        unique = np.maximum(own - np.sum(loadings**2, axis=1), least)
        mean = self._means.drawn_together(pairs.mean)
        return _Model(mean=mean, loadings=loadings, unique=unique)

    def _title(self) -> str:
        return f"Completion of {count(len(self.items_), 'item')} through {count(self.n_used_, 'component')}"

    @property
    def _deviations(self) -> tuple[Array, Array]:
        """Standard deviations of the items' ratings, and of what the components leave of them."""
        whole = self.noise_variance_ + np.sum(self.loadings_**2, axis=1)
        return np.sqrt(whole), np.sqrt(self.noise_variance_)

    def _sentences(self) -> Iterator[str]:
        used, asked = self.n_used_, self.n_components
        if used == asked:
            yield f"{'The component is' if asked == 1 else f'All {asked} components are'} used."
        elif used:
            yield (
                f"{used} of {count(asked, 'component')} {'is' if used == 1 else 'are'} used: noise alone "
                "could show the others."
            )
        else:
            yield (
                "No component is used, for noise alone could show any: empty cells are filled with the "
                "items' means. Take a larger epsilon, fewer items or more persons."
            )
        deviation, left = (number(float(np.median(values)), 3) for values in self._deviations)
        yield (
            f"A rating is told to within {left} of one who rated much, and to within {deviation} of one who "
            "rated nothing: standard deviations, medians over items."
        )
        yield (
            "A row that the bound shortens is shortened as a whole: its pairs count for less, in sums and "
            "counts alike. Extreme ratings make longer rows: where rows are shortened and items are few, "
            "means are nearer to the middle, and deviations and intervals are too small."
        )
        yield f"New rows are completed where they are, with intervals of {percent(self.level)}."

    def _tables(self) -> Iterator[Table]:
        names, (deviation, left) = [str(item) for item in self.items_], self._deviations
        items = {
            "Item": names,
            "Mean": self.mean_,
            "Deviation": deviation,
            "Beside components": left,
            "Share of ratings": self.weight_,
        }
        yield table_of("Items", "items.csv", items)
        if self.n_used_:
            loadings = {f"pc{place}": values for place, values in enumerate(self.loadings_.T, start=1)}
            yield table_of("Loadings", "loadings.csv", {"Item": names, **loadings})

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        used = self.n_used_
        chart = scree(
            self.spectrum_[:used].tolist(),
            determined=[True] * used,
            beyond=self.spectrum_[used : self.n_components + 20].tolist(),
        )
        yield chart, "Variances, items weighed by how often they are rated; squares are not used."
        if used > 1:
            first, second = self.loadings_[:, :2].T.tolist()
            plane = biplot(first, second, [str(item) for item in self.items_], ("pc1", "pc2"))
            yield plane, "Items by their loadings on the first two components."

    def _more_facts(self) -> dict[str, Any]:
        return {"items": [str(item) for item in self.items_]}


def _diagonal(matrices: Array) -> Array:
    return np.diagonal(matrices, axis1=-2, axis2=-1)


def _spans(moment: Moment) -> Mapping[str, tuple[float, float]]:
    """Return the rated items and what their ratings lie between; refuse a moment of anything else."""
    rules = moment.record.table_rules
    spans = {} if rules is None else rules.spans
    if not spans or 2 * len(spans) != moment.n_features:
        raise InputError(
            "a moment must be of ratings for this analysis, every column with a rule of kind 'rating', "
            f"got {'none' if not spans else 'other columns too'}; release them with a code book "
            "that has such rules"
        )
    rule = moment.treatment
    if rule.center is not None or rule.scale is not None:
        raise InputError(
            "a moment of ratings must be released without offsets and scales of columns, for their rules "
            "bring them to one range, got some; release it without"
        )
    return spans


def _about_the_middle(moment: Moment, spans: Mapping[str, Any]) -> Array:
    """Return the moment about the middle of the ranges, ratings first, then whether there is one."""
    middle = moment.pooled.center
    values = moment.pooled.moment if middle is None else moment.pooled.moment + np.outer(middle, middle)
    values = values * (moment.treatment.row_norm or 1.0) ** 2
    order = [2 * place + part for part in range(2) for place in range(len(spans))]
    scale = np.ones(len(order))
    scale[len(spans) :] = KNOWN
    return np.asarray(values[np.ix_(order, order)] / np.outer(scale, scale))


def _n_clear(values: Array, edge: float) -> int:
    """Return how many eigenvalues, less what noise may add, exceed the average of those after them."""
    for place in range(len(values)):
        rest = float(np.mean(values[place + 1 :])) if place + 1 < len(values) else 0.0
        if values[place] - edge <= max(rest, 0.0):
            return place
    return len(values)
