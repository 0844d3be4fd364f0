"""Secure sums: as accurate as a trusted curator, and what they cost against plain uploads."""

import math
import statistics
from typing import Any

import numpy as np

from benchmarks.data_sets import Truth, model_one
from benchmarks.fits import fed_pca
from benchmarks.models import AS_IS, blocks_of
from benchmarks.runner import Table, case, compare, having, median_range, ratios, say, standard_error, values
from fedpower.linalg import sin_theta

EPSILONS = (10.0, 1.0, 0.5)
WAYS = ("curator", "secure", "local")
GIVEN = {"delta": 1e-4, **AS_IS}


@case(
    "secure_spiked",
    about="secure sums against a trusted curator on Model I, with a hundred seeds",
    models=("Model I",),
    seeds=100,
    draws=25,
    columns=(),
    quick={"rows": 2_000, "seeds": 1},
)
@case(
    "secure",
    quick={"models": ("Model I",), "rows": 2_000, "seeds": 1, "columns": (8,), "silos": (3,), "repeats": 1},
)
def secure(
    *,
    models: tuple[str, ...] = ("Model I", "Model II"),
    rows: int = 2_000_000,
    nodes: int = 1000,
    seeds: int = 20,
    draws: int = 5,
    columns: tuple[int, ...] = (100, 1000, 3000),
    silos: tuple[int, ...] = (5, 20, 100),
    repeats: int = 3,
) -> Table:
    """Compare secure sums with a trusted curator in accuracy, with plain uploads in bytes and time."""
    found = {name: _accuracy(name, rows if name == "Model I" else nodes, seeds, draws) for name in models}
    costs = [each for d in columns for m in silos for each in _cost(d, m, repeats)]
    lines = []
    for name, errors in found.items():
        for epsilon, by_way in errors.items():
            means = {way: f"{statistics.mean(e):.4g} ± {standard_error(e):.1g}" for way, e in by_way.items()}
            ratio = statistics.mean(by_way["secure"]) / statistics.mean(by_way["curator"])
            lines.append([name, epsilon, means["curator"], means["secure"], f"{ratio:.3f}", means["local"]])
    return Table(
        columns=["model", "ε", "curator", "secure", "secure / curator", "each silo by itself"],
        rows=lines,
        measured={"accuracy": found, "cost": costs},
        notes=[
            "Mean sin θ_k to the pooled rows' own eigenspace and its standard error. The curator holds all "
            "rows and adds the noise of one release at the same (ε, δ). With one colluder among 20 the "
            f"secure sum has √(20/19) = {math.sqrt(20 / 19):.3f} times its noise."
        ],
        more=[
            (
                f"Whole fits of {COST_ROWS} rows a silo in one process: bytes a silo, and processor time",
                ["d", "silos", "MB up", "plain", "kB down", "plain", "processor s", "plain", "ratio"],
                [_cost_row(costs, d, m) for d in columns for m in silos],
            )
        ]
        * bool(costs),
        settings={"delta": GIVEN["delta"], "colluders": 1},
    )


def _accuracy(name: str, size: int, seeds: int, draws: int) -> dict[str, dict[str, list[float]]]:
    errors: dict[str, Any] = {f"{epsilon:g}": {way: [] for way in WAYS} for epsilon in EPSILONS}
    for seed in range(seeds):
        if seed % draws == 0:
            drawn = seed // draws
            if name == "Model I":
                parts, rank = np.array_split(model_one(size, 100, seed=drawn), 20), 4
            else:
                parts, rank = blocks_of(size, seed=drawn), 2
            pooled = np.vstack(parts)
            truth = Truth.of(pooled, rank).basis
        for epsilon in EPSILONS:
            for way in WAYS:
                sums = {"aggregation": "secure"} if way == "secure" else {}
                model = fed_pca(rank, epsilon=epsilon, noise="covariance", **GIVEN, **sums)
                model.fit_silos([pooled] if way == "curator" else parts)
                errors[f"{epsilon:g}"][way].append(sin_theta(model.components_.T, truth))
        say(f"{name}, seed {seed}")
    return errors


COST_ROWS = 100


def _cost(width: int, count: int, repeats: int) -> list[dict[str, Any]]:
    parts = np.array_split(model_one(COST_ROWS * count, width), count)

    def fit(way: str) -> dict[str, float]:
        model = fed_pca(4, epsilon=1.0, noise="covariance", aggregation=way, **GIVEN)
        history = model.fit_silos(parts).history_
        return {key: sum(each[key] for each in history) / count for key in ("bytes_up", "bytes_down")}

    ways = {way: lambda way=way: fit(way) for way in ("secure", "plain")}
    return compare(ways, repeats, d=width, silos=count)


def _cost_row(costs: list[dict[str, Any]], width: int, count: int) -> list[str]:
    both = [having(costs, d=width, silos=count, way=way) for way in ("secure", "plain")]
    return [
        f"{width:,}",
        str(count),
        *(f"{each[0]['bytes_up'] / 1e6:.3g}" for each in both),
        *(f"{each[0]['bytes_down'] / 1e3:.3g}" for each in both),
        *(f"{statistics.median(values(each, 'cpu_seconds')):.3g}" for each in both),
        median_range(ratios(both[0], both[1], "cpu_seconds")),
    ]
