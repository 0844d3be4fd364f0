"""Exact sums over bounded rows, and today's kernel, against a bare ``X.T @ X`` of the same rows.

All ways run in turn in one process, each repeat in an order of its own; the least of the repeats counts.
``X.T @ X`` has a BLAS of as many threads as there are cores; ours share the cores out as a fit does.
"""

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from benchmarks.common import parser, report
from benchmarks.speed.measuring import in_turn
from fedpower.data import RowTreatment, accumulate_moment, open_source, shares_blocks
from fedpower.data.exact_moment import exact_moment
from fedpower.engines.inprocess import available_cores, blas_threads

PLAIN = "X.T @ X"
RULES = {
    "none too long": RowTreatment(row_norm=2.0),
    "half clipped": RowTreatment(row_norm=1.0),
    "normalised": RowTreatment(normalize=True),
}
"""Rows have norms of about 1."""


def main() -> None:
    """Time every way on every shape and report ratios to the bare product."""
    options = _options()
    cores = options.cores
    found: list[dict[str, Any]] = []
    for width in options.columns:
        rng = np.random.default_rng(0)
        rows = rng.standard_normal((options.values // width, width), dtype=options.dtype)
        rows /= np.sqrt(width)
        ways = _ways(rows, cores)
        least: dict[str, tuple[float, float]] = {}
        for repeat, way in in_turn(list(ways), 1 + options.repeats):
            started, worked = time.perf_counter(), time.process_time()
            ways[way]()
            taken = time.perf_counter() - started, time.process_time() - worked
            if repeat:  # the first round warms up
                before = least.get(way, taken)
                least[way] = min(before[0], taken[0]), min(before[1], taken[1])
        found += [
            {"columns": width, "way": way, "seconds": least[way][0], "cpu_seconds": least[way][1]}
            for way in ways
        ]
    report(
        options,
        name="exact_moment",
        settings={
            "values": options.values,
            "dtype": options.dtype,
            "repeats": options.repeats,
            "cores": cores,
            "seed": 0,
        },
        columns=["columns", "way", "seconds", f"× {PLAIN}", f"× {PLAIN}, processor time"],
        rows=[_line(each, found) for each in found],
        raw=found,
        notes=[
            f"Least of {options.repeats} repeats of each way, all in turn in one process. Mean, trace "
            f"and checks are part of every way but {PLAIN}. Where other work holds threads up, the "
            "processor time tells more.",
        ],
    )


def _ways(rows: Any, cores: int) -> dict[str, Callable[[], object]]:
    source, shared = open_source(rows), shares_blocks(rows.shape[1])

    def summed(kernel: Callable[..., object], rule: RowTreatment) -> Callable[[], object]:
        def run() -> object:
            with blas_threads(1 if shared else cores):
                return kernel(source, rule, workers=cores)

        return run

    def plain() -> object:
        with blas_threads(cores):
            return rows.T @ rows

    kernels = {"exact": exact_moment, "float64": accumulate_moment}
    return {
        PLAIN: plain,
        **{
            f"{name}, {label}": summed(kernel, rule)
            for name, kernel in kernels.items()
            for label, rule in RULES.items()
        },
    }


def _line(each: dict[str, Any], found: list[dict[str, Any]]) -> list[object]:
    plain = next(one for one in found if one["columns"] == each["columns"] and one["way"] == PLAIN)
    ratios = [each[key] / plain[key] for key in ("seconds", "cpu_seconds")]
    return [
        f"{each['columns']:,}",
        each["way"],
        f"{each['seconds']:.3f}",
        *(f"{ratio:.2f}" for ratio in ratios),
    ]


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--columns", type=int, nargs="+", default=[64, 100, 512, 2048])
    made.add_argument("--values", type=int, default=50_000_000, help="rows times columns")
    made.add_argument("--repeats", type=int, default=7)
    made.add_argument("--cores", type=int, default=available_cores())
    made.add_argument("--dtype", choices=["float64", "float32"], default="float64")
    return made.parse_args()


if __name__ == "__main__":
    main()
