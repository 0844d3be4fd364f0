"""Exact fits of genotypes over secure sums: how far from the pooled PCA, and what masks cost.

People of four peoples in each of five regions, whose tenth component has a small gap; three silos in one
process. Each way is timed in turn; the pooled PCA is the eigendecomposition of all rows' inner products.
"""

import argparse
import statistics
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from benchmarks.speed.wide import people
from fedpower import FedPCA
from fedpower.linalg import sin_theta

Array = NDArray[np.float64]

RANK = 10
SILOS = 3
WAYS: dict[str, dict[str, Any]] = {
    "secure sums, krylov": {"aggregation": "secure", "solver": "krylov"},
    "plain, krylov's products alone": {"solver": "krylov", "one_shot_start": False},
    "plain, as auto takes it": {},
}


def main() -> None:
    """Measure every way."""
    options = _options()
    rng = np.random.default_rng(options.seed)
    rows = people(options.rows, options.variants, rng).astype(np.float64)
    parts = np.array_split(rows, SILOS)
    truth = _pooled(rows)
    found: dict[str, list[dict[str, float]]] = {name: [] for name in WAYS}
    for _ in range(options.repeats):
        for name, way in WAYS.items():
            found[name].append(_measured(parts, truth, way))
    secure = statistics.median(each["seconds"] for each in found[next(iter(WAYS))])
    report(
        options,
        name="exact_secure",
        settings={
            "rows": options.rows,
            "variants": options.variants,
            "silos": SILOS,
            "k": RANK,
            "seed": options.seed,
            "repeats": options.repeats,
        },
        columns=["way", "sin θ", "rounds", "s", "secure / this", "MB up a silo", "MB down a silo"],
        rows=[_row(name, each, secure) for name, each in found.items()],
        raw=found,
        notes=[
            "Largest sin θ_k to the pooled PCA, median seconds, all silos and the coordinator in one "
            "process. Plain, few wide rows are sent whole, by a factor of each silo's moment, in one "
            "round; secure sums ask for products, of which nobody reads more than the sum.",
        ],
    )


def _measured(parts: list[Array], truth: Array, way: dict[str, Any]) -> dict[str, float]:
    started = time.perf_counter()
    model = FedPCA(RANK, epsilon=float("inf"), random_state=0, **way).fit_silos(parts)
    seconds = time.perf_counter() - started
    return {
        "seconds": seconds,
        "error": sin_theta(model.components_.T, truth),
        "rounds": len(model.history_),
        "up_mb": sum(each["bytes_up"] for each in model.history_) / SILOS / 1e6,
        "down_mb": sum(each["bytes_down"] for each in model.history_) / SILOS / 1e6,
    }


def _pooled(rows: Array) -> Array:
    """Return the leading components of all rows together, d×k."""
    about = rows - rows.mean(axis=0)
    vectors = np.linalg.eigh(about @ about.T)[1][:, : -RANK - 1 : -1]
    components = about.T @ vectors
    return np.asarray(components / np.linalg.norm(components, axis=0))


def _row(name: str, here: list[dict[str, float]], secure: float) -> list[str]:
    seconds = statistics.median(each["seconds"] for each in here)
    return [
        name,
        f"{max(each['error'] for each in here):.1e}",
        f"{here[0]['rounds']:.0f}",
        f"{seconds:.1f}",
        f"{secure / seconds:.2f}",
        f"{here[0]['up_mb']:.1f}",
        f"{here[0]['down_mb']:.1f}",
    ]


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--rows", type=int, default=1500)
    options.add_argument("--variants", type=int, default=14_000)
    options.add_argument("--repeats", type=int, default=3)
    options.add_argument("--seed", type=int, default=0)
    return options.parse_args()


if __name__ == "__main__":
    main()
