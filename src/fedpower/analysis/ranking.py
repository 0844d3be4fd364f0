"""``Ranking``: items in order, from a release of pairwise comparisons."""

from dataclasses import KW_ONLY
from itertools import pairwise
from typing import Any, Literal, NamedTuple

import numpy as np
import scipy.optimize
from sklearn.utils.validation import check_is_fitted

from fedpower.analysis import base
from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.options import setting
from fedpower.report.covariance import Covariance
from fedpower.report.page import Table
from fedpower.report.text import count, percent
from fedpower.rules.rules import Rule

_SEED, _DRAWS = 19, 4000
_CLOSE = 1e-11  # of the largest sum of outcomes, as near as mean outcomes are brought to it
_FINITE = 1e-7  # of an exact Laplacian's least eigenvalue: below, an item wins or loses all that ties it
_CONNECTED = 1e-9  # of an exact Laplacian's largest eigenvalue: smaller ones are 0, and the graph falls apart
_STEEPEST = 0.5  # the largest derivative of Bradley and Terry's mean outcome, tanh(x/2)


class _Graph(NamedTuple):
    """Comparisons as released, per comparison: means over all rows."""

    laplacian: Array
    wins: Array
    square: float
    noise: float
    wins_noise: float

    @property
    def weights(self) -> Array:
        """The share of comparisons that each pair has, noised, with 0 on the diagonal."""
        return np.diag(np.diagonal(self.laplacian)) - self.laplacian


class Ranking(Analysis):
    """Rank items from comparisons of two items, with intervals of scores and places.

    The code book of the comparisons is ``{"winner": {"items": [...], "against": "loser"}}``. Least
    squares finds the scores whose differences are nearest to the outcomes [JLYY11], and ``"bradley-terry"``
    finds log odds [H04]. Scores have mean 0.

    Attributes
    ----------
    items_ : tuple of str
        The items, in the order of all other attributes.
    scores_, standard_error_, low_, high_ : ndarray of shape (d,)
        Scores with standard errors and intervals from sampling and privacy noise. Errors are NaN if
        ``determined_`` is False, and so are the scores of Bradley and Terry.
    covariance_, difference_error_ : ndarray of shape (d, d)
        Covariance of the scores' errors, and standard error of the difference of two scores.
    rank_ : ndarray of int of shape (d,)
        Places; 1 is the best. If ``determined_`` is False they are a guess by least squares.
    rank_low_, rank_high_ : ndarray of int of shape (d,)
        Best and worst place of each item, with confidence ``level`` or more.
    distinct_ : ndarray of bool of shape (d, d)
        Which items differ, all tests together at ``level`` [MRSW24].
    determined_ : bool
        Whether there are enough comparisons for intervals.
    comparisons_ : ndarray of shape (d,)
        Number of comparisons of each item, with noise.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedpower import FedCovariance
    >>> from fedpower.analysis import Ranking
    >>> games = pd.DataFrame({"winner": ["a", "b", "a", "b"], "loser": ["b", "c", "c", "a"]})
    >>> book = {"winner": {"items": ["a", "b", "c"], "against": "loser"}}
    >>> release = FedCovariance(epsilon=float("inf"), codebook=book).fit_silos([games])
    >>> Ranking().fit(release).rank_.tolist()
    [1, 2, 3]
    """

    kind = "ranking"
    needs_covariance = False

    method: Literal["least-squares", "bradley-terry"] = setting(
        "least-squares",
        "Scores in units of the outcome, or log odds of comparisons without margin.",
        ("least-squares", "bradley-terry"),
    )
    _: KW_ONLY
    level: float = base.level(help="Level of intervals, ranks and tests.")
    sampling: bool = base.sampling()

    def _fit(self, release: Covariance) -> None:
        rule, odds = _rule_of(release), self.method == "bradley-terry"
        if odds and rule.margin:
            raise InputError(
                f"comparisons must be won or lost, got margins in '{rule.margin}'; use least squares"
            )
        graph, steepest = _graph(release, rule), _STEEPEST if odds else 1.0
        d, least = len(graph.wins), _least(graph.laplacian)
        if graph.noise == 0 and least <= _CONNECTED * float(np.abs(graph.laplacian).max()):
            raise InputError(
                "comparisons must connect all items, got groups of items without a connection; "
                "rank each group by itself"
            )
        edge = base.CLEAR * graph.noise * float(np.sqrt(2.0 * (d - 1)))
        solved = _odds(graph) if odds else (_inverse(graph.laplacian) @ graph.wins, graph.laplacian)
        if solved is not None and min(least, _least(solved[1]) / steepest) <= (edge or _FINITE * least):
            solved = None
        if solved is None and graph.noise == 0 and odds:
            raise InputError(
                "scores must be finite, got an item that wins or loses nearly always; use least squares"
            )
        self.determined_, self._rule, self.items_ = solved is not None, rule, rule.levels
        if solved is None:  # least squares with the Laplacian's eigenvalues raised to the noise's deviation
            guess = np.linalg.solve(base.floored(graph.laplacian + graph.noise, graph.noise), graph.wins)
            scores = guess - guess.mean()
            self.scores_ = np.full(d, np.nan) if odds else scores  # which are no log odds
            self.covariance_ = np.full((d, d), np.nan)
        else:
            scores, bread = solved
            self.scores_ = scores
            self.covariance_ = self._errors(graph, bread, release.n_samples)
        own = np.maximum(np.diagonal(self.covariance_), 0.0)
        squares = own[:, None] + own[None, :] - 2.0 * self.covariance_
        self.difference_error_ = np.asarray(np.sqrt(np.maximum(squares, 0.0)))
        self._set_intervals(scores, np.sqrt(own))
        self.comparisons_ = np.asarray(np.diagonal(graph.laplacian) * release.n_samples)
        self.rank_ = np.argsort(np.argsort(-scores, kind="stable")) + 1
        self._set_places()

    def _errors(self, graph: _Graph, bread: Array, n: int) -> Array:
        """Return the covariance of the scores' errors: H⁺(M/n + N)H⁺."""
        d = len(graph.wins)
        means, flat = self._outcome(self.scores_[:, None] - self.scores_[None, :]), np.eye(d) - 1.0 / d
        crossed = means @ flat
        noise = flat * (means @ crossed.T) + crossed * crossed.T
        errors = graph.wins_noise**2 * flat + graph.noise**2 / 2.0 * noise
        if self.sampling:
            if self._rule.margin:
                left = max(graph.square - float(graph.wins @ self.scores_), 0.0)
                sampled = left * graph.laplacian
            else:
                sampled = _laplacian(graph.weights * np.maximum(1.0 - means**2, 0.0))
            errors = errors + base.floored(sampled, 0.0) / n
        inverse = _inverse(bread)
        made = inverse @ errors @ inverse
        return np.asarray((made + made.T) / 2.0)

    def _outcome(self, differences: Array) -> Array:
        """Return the mean outcomes that differences of scores predict."""
        return differences if self.method == "least-squares" else np.tanh(differences / 2.0)

    def _set_places(self) -> None:
        """Find which items differ, and the places that each may have, by draws of the errors."""
        d = len(self.scores_)
        self.distinct_ = np.zeros((d, d), dtype=np.bool_)
        self.rank_low_, self.rank_high_ = np.ones(d, np.int64), np.full(d, d, np.int64)
        if not self.determined_:
            return
        normal = np.random.default_rng(_SEED).standard_normal((_DRAWS, d))
        drawn = normal @ base.root_of(self.covariance_).T
        deviations, largest = self.difference_error_, np.zeros(_DRAWS)
        differences = self.scores_[:, None] - self.scores_[None, :]
        for place in range(d):
            others = np.arange(d) != place
            scale = np.where(deviations[place, others] > 0, deviations[place, others], np.inf)
            most = np.max(np.abs(drawn[:, [place]] - drawn[:, others]) / scale, axis=1, initial=0.0)
            largest = np.maximum(largest, most)
            beyond = float(np.quantile(most, self.level)) * deviations[place]
            self.rank_low_[place] = 1 + int(np.count_nonzero(differences[place] < -beyond))
            self.rank_high_[place] = d - int(np.count_nonzero(differences[place] > beyond))
        self.distinct_ = np.abs(differences) > float(np.quantile(largest, self.level)) * deviations
        np.fill_diagonal(self.distinct_, False)

    def win_probability(self, first: str, second: str) -> tuple[float, float, float]:
        """Return the probability that one item wins against another, and its interval."""
        check_is_fitted(self)
        if self._rule.margin:
            got = f"margins in '{self._rule.margin}'"
            raise InputError(f"comparisons must be won or lost, got {got}; use the difference of scores")
        for name in (first, second):
            require(name in self.items_, "an item", "one of the ranked items", name)
        i, j = self.items_.index(first), self.items_.index(second)
        width = base.quantile(self.level) * self.difference_error_[i, j]
        ends = self.scores_[i] - self.scores_[j] + np.array([0.0, -width, width])
        chances = np.clip((1.0 + self._outcome(ends)) / 2.0, 0.0, 1.0)
        return float(chances[0]), float(chances[1]), float(chances[2])

    def _page(self) -> Contents:
        order = np.argsort(self.rank_)
        names = [self.items_[place] for place in order]
        distinct = [bool(self.distinct_[i, j]) for i, j in pairwise(order)]
        method = "least squares" if self.method == "least-squares" else "Bradley and Terry's model"
        ending = "" if self.determined_ else ": not determined"
        yield f"Ranking of {count(len(names), 'item')} by {method}{ending}"
        if self.determined_:
            yield (
                f"{sum(distinct)} of {len(distinct)} neighbours differ, all tests together at "
                f"{percent(self.level)}. Intervals and ranks have a level of {percent(self.level)} per item "
                f"and include privacy noise{' and that of the outcomes' if self.sampling else ' only'}."
            )
            numbers = (values[order] for values in (self.scores_, self.low_, self.high_))
            caption = "Lines are intervals; a cross marks one that contains 0, the mean of all items."
            yield base.interval_chart("Scores with their intervals", names, *numbers, caption=caption)
        else:
            yield (
                "Scores are not determined: noise hides how comparisons connect the items. Ranks are a "
                "guess, without intervals. Rank fewer items, add comparisons, or use a larger epsilon."
            )
        if self._rule.margin:
            yield f"The difference of two scores is the expected {self._rule.margin}; the mean score is 0."
        else:
            yield "The mean score is 0."
            first, last = names[0], names[-1]
            chance, low, high = self.win_probability(first, last)
            if self.determined_ and chance not in (0.0, 1.0):  # beyond what a difference of outcomes can be
                yield (
                    f"{first} would win against {last} in {percent(chance)} of comparisons "
                    f"({percent(low)} to {percent(high)})."
                )
        places = zip(self.rank_low_[order], self.rank_high_[order], strict=True)
        columns = {
            "Item": names,
            "Rank": self.rank_[order],
            "Score": self.scores_[order],
            **self._interval_columns(order),
            "Possible ranks": [f"{low} to {high}" if low < high else f"{low}" for low, high in places],
            "Differs from next": [*distinct, ""],
        }
        yield Table("Ranking", "ranking.csv", columns)


def _rule_of(release: Covariance) -> Rule:
    """Return the rule that rows of comparisons were made by, or refuse a covariance of others."""
    rules = release.record.table_rules
    rule = None if rules is None else rules.comparison
    if rule is None or release.feature_names != rule.features:
        raise InputError(
            "the release must be of comparisons, got another; give a code book with items and against"
        )
    return rule


def _graph(release: Covariance, rule: Rule) -> _Graph:
    """Return the comparisons of a release: about the origin, whether it was centred or not."""
    d, units = len(rule.levels), release.units
    middle = np.zeros(d + 1) if release.pooled.center is None else release.pooled.center
    whole = (release.pooled.covariance + np.outer(middle, middle)) * np.outer(units, units)
    flat = np.eye(d) - 1.0 / d
    laplacian = flat @ whole[:d, :d] @ flat
    return _Graph(
        laplacian=(laplacian + laplacian.T) / 2.0,
        wins=flat @ whole[:d, d],
        square=float(whole[d, d]),
        noise=release.noise_std * float(units[0]) ** 2,
        wins_noise=release.noise_std * float(units[0] * units[d]) / np.sqrt(2.0),
    )


def _laplacian(weights: Array) -> Array:
    return np.diag(weights.sum(axis=1)) - weights


def _inverse(matrix: Array) -> Array:
    """Return the inverse among vectors of sum zero."""
    return np.asarray(np.linalg.inv(matrix + 1.0 / len(matrix)) - 1.0 / len(matrix))


def _least(matrix: Array) -> float:
    """Return the least eigenvalue among vectors of sum zero, of a matrix that sends 1 to 0."""
    return float(np.linalg.eigvalsh(matrix + np.abs(matrix).sum() / len(matrix))[0])


def _odds(graph: _Graph) -> tuple[Array, Array] | None:
    """Return the scores whose mean outcomes give the wins, and the derivative there; None for none."""
    weights, d = graph.weights, len(graph.wins)

    def halves(scores: Array) -> Array:
        return np.clip((scores[:, None] - scores[None, :]) / 2.0, -300.0, 300.0)

    def bread(scores: Array) -> Array:
        return _laplacian(weights * _STEEPEST / np.cosh(halves(scores)) ** 2)

    def left(scores: Array) -> Array:  # outcomes and wins add up to 0, so the mean is 0 where all of it is
        return np.asarray(np.sum(weights * np.tanh(halves(scores)), axis=1) - graph.wins + scores.mean())

    root: Any = scipy.optimize.root
    scores = root(left, np.zeros(d), jac=lambda at: bread(at) + 1.0 / d, tol=_CLOSE).x
    if float(np.abs(left(scores)).max()) > _CLOSE * float(np.abs(graph.wins).max()):
        return None
    return scores - scores.mean(), bread(scores)
