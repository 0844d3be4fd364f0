"""Bounding rows and summing up their moment, against the bare product X.T @ X of the same array.

Repetitions take the ways in turn, forwards and backwards. On a machine that others use too, compare
processor time: a BLAS whose threads wait for each other stands still when one of them is held up.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import parser, report
from benchmarks.speed.kernel import moment_pass
from fedpower.data import RowTreatment
from fedpower.engines.inprocess import available_cores

BARE = "X.T @ X"


def main() -> None:
    """Time every way at every width and report ratios to the bare product."""
    options = _options()
    lines: list[list[str]] = []
    raw: dict[int, Any] = {}
    for width in options.features:
        rows = np.random.default_rng(0).standard_normal((options.values // width, width))
        found = _measured(_ways(rows), options.repetitions)
        raw[width] = found
        best = {way: (min(wall), min(cpu)) for way, (wall, cpu) in found.items()}
        for way, (wall, cpu) in best.items():
            lines.append(
                [
                    f"{width:,}",
                    way,
                    f"{wall:.3f} s",
                    f"{wall / best[BARE][0]:.2f}",
                    f"{cpu / rows.size * 1e9:.1f} ns",
                ]
            )
    report(
        options,
        name="moment_kernel",
        settings={
            "values": options.values,
            "repetitions": options.repetitions,
            "cores": available_cores(),
            "seed": 0,
        },
        columns=["columns", "way", "best time", "ratio", "processor time a value"],
        rows=lines,
        raw=raw,
    )


def _ways(rows: Any) -> dict[str, Callable[[], object]]:
    """Return what is timed; a row's usual norm is √d."""
    length = float(np.sqrt(rows.shape[1]))
    unit = rows / np.linalg.norm(rows, axis=1)[:, np.newaxis]
    return {
        BARE: lambda: rows.T @ rows,
        "no row too long": moment_pass(rows, RowTreatment(row_norm=10 * length)),
        "few rows clipped": moment_pass(rows, RowTreatment(row_norm=1.25 * length)),
        "half of them clipped": moment_pass(rows, RowTreatment(row_norm=length)),
        "normalised": moment_pass(rows, RowTreatment(normalize=True)),
        "unit rows, normalised": moment_pass(unit, RowTreatment(normalize=True)),
        "not bounded": moment_pass(rows, RowTreatment()),
    }


def _measured(
    ways: dict[str, Callable[[], object]], repetitions: int
) -> dict[str, tuple[list[float], list[float]]]:
    """Return seconds and processor seconds of each repetition, by way."""
    found: dict[str, tuple[list[float], list[float]]] = {way: ([], []) for way in ways}
    for repetition in range(repetitions):
        for way in list(ways)[:: 1 if repetition % 2 else -1]:
            wall, cpu = time.perf_counter(), time.process_time()
            ways[way]()
            found[way][0].append(time.perf_counter() - wall)
            found[way][1].append(time.process_time() - cpu)
    return found


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--features", type=int, nargs="+", default=[64, 100, 512, 2048])
    made.add_argument("--values", type=int, default=60_000_000, help="rows times columns")
    made.add_argument("--repetitions", type=int, default=7)
    return made.parse_args()


if __name__ == "__main__":
    main()
