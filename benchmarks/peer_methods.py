"""The methods that are compared in this process: federations, trusted curators, one-shot averages.

All work on the same rows of norm at most 1 and their second moment, not centred, so that none of them
spends on a mean, and all are scored by the same `Truth`.
"""

import functools
import time
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.a9a_baselines import local_eigenspaces, unweighted_average, weighted_average
from benchmarks.analyze_gauss import analyze_gauss
from benchmarks.data_sets import DataSet, Loaders, a9a_unit, breast_cancer, digits, mnist, model1
from benchmarks.private_fits import Federation
from benchmarks.pure_curator import exponential_eigenvectors
from benchmarks.scoring import Truth
from benchmarks.splits import split
from fedpower.privacy import default_delta

Array = NDArray[np.float64]

EPSILONS = (0.5, 1.0, 4.0)
NOBODY, CURATOR = "nobody but each silo", "a trusted curator"
ABOUT = {  # method: who sees rows, what is promised
    "fedpower": (NOBODY, "(ε, δ)"),
    "paper": (NOBODY, "(ε, δ)"),
    "Analyze-Gauss": (CURATOR, "(ε, δ)"),
    "exponential mechanism": (CURATOR, "pure ε"),
    "OpenDP": (CURATOR, "pure ε"),
    "diffprivlib": (CURATOR, "pure ε"),
    "UDA": (NOBODY, "none"),
    "WDA": (NOBODY, "none"),
}


class Task(NamedTuple):
    """One random split of one data set."""

    data: str
    a9a: str
    seed: int


def loaders(a9a: Path) -> Loaders:
    """Return the data sets of the comparison by name."""
    return {
        "Model I": model1,
        "a9a, unit rows": lambda: a9a_unit(a9a),
        "digits": digits,
        "breast cancer": breast_cancer,
        "MNIST": mnist,
    }


@functools.lru_cache(maxsize=1)
def loaded(name: str, a9a: str) -> tuple[DataSet, Truth]:
    """Return a data set as every method gets it, and the truth about it."""
    data = plain(loaders(Path(a9a))[name]())
    return data, Truth.of(data.rows, data.rank)


def plain(data: DataSet) -> DataSet:
    """Return the data with rows of norm at most 1 and no centring on their mean.

    Where a set is centred elsewhere its mean becomes a leading direction, and counts as one.
    """
    return replace(
        data,
        rows=data.bounded(),
        rank=data.rank + data.centred(),
        parameters={"row_norm": 1.0, "center": False},
        treatment="unit rows, not centred" if data.centred() else data.treatment,
    )


def fit_here(task: Task) -> list[dict[str, Any]]:
    """Return a row of measurements for every method of this module and every ε on one split."""
    data, truth = loaded(task.data, task.a9a)
    rng = np.random.default_rng(task.seed)
    places = split("at random", data.labels, data.n_silos, rng)
    silos = Federation(data, places)
    moment, reading_seconds = _timed(lambda rows: rows.T @ rows / len(rows), data.rows)
    rows = []
    for epsilon in EPSILONS:
        for method in ("fedpower", "paper"):
            fit = silos.fit(method, epsilon=epsilon, seed=task.seed)
            rows.append((method, epsilon, fit.basis, silos.reading_seconds + fit.seconds))
        for method in ("Analyze-Gauss", "exponential mechanism"):
            basis, seconds = _timed(_curator, method, moment, data, epsilon, task.seed)
            rows.append((method, epsilon, basis, reading_seconds + seconds))
    parts = [data.rows[each] for each in places]
    local, seconds = _timed(local_eigenspaces, parts, data.rank)
    for method, average in (("UDA", unweighted_average), ("WDA", weighted_average)):
        basis = average(local, data.rank)
        rows += [(method, epsilon, basis, seconds) for epsilon in EPSILONS]
    return [
        measurement(
            data=task.data,
            method=method,
            epsilon=epsilon,
            seed=task.seed,
            seconds=seconds,
            score=truth.score(basis),
        )
        for method, epsilon, basis, seconds in rows
    ]


def measurement(
    *, data: str, method: str, epsilon: float, seed: int, seconds: float, score: dict[str, float]
) -> dict[str, Any]:
    """Return one line of what was measured."""
    about = {"data": data, "method": method, "epsilon": epsilon, "seed": seed}
    return about | {"seconds": round(seconds, 4)} | score


def _curator(method: str, moment: Array, data: DataSet, epsilon: float, seed: int) -> Array:
    """Return what somebody who holds all rows would publish; the same draws for every ε."""
    rng, n_rows = np.random.default_rng([seed, 1]), len(data.rows)
    if method == "Analyze-Gauss":
        delta = default_delta(n_rows)
        return analyze_gauss(
            moment, data.rank, n_rows=n_rows, epsilon=epsilon, delta=delta, rng=rng
        )
    return exponential_eigenvectors(moment, data.rank, n_rows=n_rows, epsilon=epsilon, rng=rng)


def _timed(function: Any, *arguments: Any) -> tuple[Any, float]:
    """Return what the function gives and the seconds of a core it took."""
    began = time.process_time()
    found = function(*arguments)
    return found, time.process_time() - began
