"""Two silos at once with bounded BLAS threads, against one after the other and against unbounded BLAS.

Repetitions are interleaved in a random order, so that whatever else the machine does falls on all
three alike; what counts are the ratios within a repetition.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from unittest.mock import patch

import numpy as np
import threadpoolctl

from benchmarks.common import parser, report
from benchmarks.measuring import in_turn
from fedpower import FedPCA
from fedpower.engines.inprocess import available_cores
from fedpower.experiments.models import spiked_covariance

WAYS = {"two at once, BLAS bounded": 2, "one after the other": 1, "two at once, BLAS unbounded": 2}
OURS, TURNS, UNBOUNDED = WAYS


def main() -> None:
    """Time the three ways and report their ratios."""
    options = _options()
    model = spiked_covariance(n_rows=2 * options.rows, n_features=options.features, n_silos=2, seed=0)
    silos = [np.vstack(list(model.blocks(silo, 2**16))) for silo in range(2)]
    found: dict[str, list[float]] = {way: [] for way in WAYS}
    for repetition, way in in_turn(list(WAYS), 1 + options.repetitions):
        with _unbounded() if way == UNBOUNDED else nullcontext():
            started = time.perf_counter()
            fit(silos, WAYS[way])
            taken = time.perf_counter() - started
        if repetition:  # the first round warms up
            found[way].append(taken)
    report(
        options,
        name="parallel_silos",
        settings={
            "rows_per_silo": options.rows,
            "columns": options.features,
            "repetitions": options.repetitions,
            "cores": available_cores(),
            "fit": "FedPCA(4, epsilon=inf, solver='fedpower', n_steps=20, tol=0, n_jobs=2 or 1)",
            "seed": 0,
        },
        columns=["way", "seconds, median", "range", "times as long as ours, median", "range "],
        rows=[[way, *_summary(found[way]), *_summary(_ratios(found, way))] for way in WAYS],
        raw=found,
        notes=[
            f"{options.repetitions} repetitions, interleaved; ratios are within a repetition, to "
            f"'{OURS}', which is what FedPCA does. 'One after the other' gives each silo every core."
        ],
    )


def fit(silos: list[np.ndarray], n_jobs: int) -> None:
    """Fit once: the moments of both silos, then twenty rounds."""
    FedPCA(
        4,
        epsilon=float("inf"),
        center=False,
        standardize=False,
        solver="fedpower",
        n_steps=20,
        tol=0.0,
        n_jobs=n_jobs,
        random_state=0,
    ).fit_silos(silos)


@contextmanager
def _unbounded() -> Iterator[None]:
    """Let every silo's BLAS use every core, as it would if nobody looked."""

    @contextmanager
    def every_core(limit: int) -> Iterator[None]:
        del limit
        with threadpoolctl.threadpool_limits(limits=available_cores(), user_api="blas"):
            yield

    with (
        patch("fedpower.engines.embedded.blas_threads", every_core),
        patch("fedpower.engines.inprocess.blas_threads", every_core),
    ):
        yield


def _ratios(found: dict[str, list[float]], way: str) -> list[float]:
    return [taken / ours for taken, ours in zip(found[way], found[OURS], strict=True)]


def _summary(values: list[float]) -> tuple[str, str]:
    return f"{statistics.median(values):.2f}", f"{min(values):.2f} to {max(values):.2f}"


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=100_000, help="rows of each silo")
    made.add_argument("--features", type=int, default=400)
    made.add_argument("--repetitions", type=int, default=9)
    return made.parse_args()


if __name__ == "__main__":
    main()
