"""Other libraries' PCA on one array in memory, each fit in a process of its own."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, in_turn, most, of_way, ratios, reported, times
from benchmarks.processes import Runner, scratch
from benchmarks.speed.methods import EXACT, FULL_SVD_COPIES, METHODS, ONE_BLAS_THREAD, PRIVATE
from benchmarks.speed.rows import WARM_ROWS, drawn, leading, timed
from benchmarks.speed.sizes import PRIVATE_FIT, RANK, SEED, Sizes

TITLE = "Other libraries on one array"
MOST_GB = 12.0
"""Memory that the benchmark may take."""


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return every fit's time, peak and error."""
    names = list(METHODS) if sizes.peers is None else list(sizes.peers)
    found: list[dict[str, Any]] = []
    with scratch("peers") as folder:
        rows = drawn(*sizes.peer_shape)
        size_gb = rows.nbytes / 1e9
        data, truth = folder / "rows.npy", folder / "truth.npy"
        np.save(data, rows)
        np.save(truth, leading([rows]))
        del rows
        ended: dict[str, str] = {}
        for repeat, name in in_turn(names, sizes.repeats):
            need = FULL_SVD_COPIES * size_gb if name == "PCA, full" else 0.0
            if need > MOST_GB or need > _available_gb():
                ended[name] = f"not run: needs {need:.3g} GB"
            if name not in ended:
                measured = run(
                    "benchmarks.speed.peers:fit_array",
                    label=f"{name}, repeat {repeat + 1} of {sizes.repeats}",
                    threads=1 if name.startswith(ONE_BLAS_THREAD) else None,
                    limit_s=sizes.peer_limit_s,
                    method=name,
                    data=str(data),
                    truth=str(truth),
                )
                if "ended" in measured:
                    ended[name] = measured["ended"]
            outcome = {"ended": ended[name]} if name in ended else measured
            found.append({"way": name, "repeat": repeat} | outcome)
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured, with the ratio to fedpower's exact fit."""
    ours, private = of_way(measured, way=EXACT), of_way(measured, way=PRIVATE)
    lines = []
    for name in (name for name in METHODS if of_way(measured, way=name)):
        here = of_way(measured, way=name)
        lines.append(
            [
                name,
                times(here),
                reported(ratios(here, ours)),
                reported(ratios(here, private)),
                most(here, "error", ".1e"),
                most(here, "above_mb", ",.0f"),
                most(here, "rise_mb", ",.0f"),
            ]
        )
    shape = " × ".join(f"{size:,}" for size in sizes.peer_shape)
    return Tables(
        settings={
            "rows": f"Model I, {shape} float64, {8e-6 * np.prod(sizes.peer_shape):,.0f} MB",
            "components": RANK,
            "private": PRIVATE_FIT,
            "repeats": sizes.repeats,
            "limit_s": sizes.peer_limit_s,
            "seed": SEED,
        },
        columns=[
            "method",
            "seconds",
            "× fedpower, exact, 1 silo",
            "× fedpower, private, 20 silos",
            "sin θ to the exact subspace",
            "peak MB above the interpreter",
            "of which the fit's own",
        ],
        rows=lines,
        notes=[
            f"Median (range) of {sizes.repeats} repeats, the methods in turn; ratios are within a "
            "repeat, above 1 where fedpower is faster. Every fit is a process of its own with a BLAS "
            f"thread for every core (Dask: its own threads), which has loaded the rows and fitted "
            f"{WARM_ROWS:,} of them before the clock starts. Error: the largest of the repeats; that of "
            "the private fits is the privacy noise's. The fit's own memory is the peak above what the "
            "process held before it, the rows among it."
        ],
    )


def fit_array(*, method: str, data: str, truth: str) -> dict[str, Any]:
    """Return time, peak and error of one fit of the array in a file, read before."""
    rows = np.load(data)
    make = METHODS[method]
    make(rows[:WARM_ROWS])()
    found, basis = timed(make(rows))
    del rows
    from fedpower.linalg import sin_theta

    return found | {"error": sin_theta(basis, np.load(truth))}


def _available_gb() -> float:
    """Return the memory that is free for use now (Linux)."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    line = next(line for line in lines if line.startswith("MemAvailable"))
    return int(line.split()[1]) * 1024 / 1e9
