"""Data too wide for a moment: the time of a step over files against a read of them."""

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.measuring import (
    Measured,
    Tables,
    in_turn,
    most,
    of_way,
    reported,
    times,
    values,
)
from benchmarks.speed.methods import fed_pca
from benchmarks.speed.rows import timed
from benchmarks.speed.running import Runner, scratch
from benchmarks.speed.sizes import PRIVATE_FIT, SEED, Sizes

TITLE = "Wide data"
STRIPE = 64
"""Rows written and read at once."""


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return time a step, time of a read and peak, for dense and sparse files."""
    found = []
    with scratch("wide") as folder:
        run.say(f"writing rows of {sizes.wide_columns:,} columns")
        places = _written(sizes, folder)
        for repeat, kind in in_turn(list(places), sizes.wide_repeats):
            label = f"{kind}, repeat {repeat + 1} of {sizes.wide_repeats}"
            measured = run("steps over wide rows", label=label, path=str(places[kind]))
            file_mb = places[kind].stat().st_size / 1e6
            found.append({"kind": kind, "repeat": repeat, "file_mb": file_mb} | measured)
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured."""
    lines = []
    for kind in sorted({each["kind"] for each in measured}):
        here = of_way(measured, kind=kind)
        lines.append(
            [
                kind,
                most(here, "file_mb", ",.0f"),
                most(here, "steps", "d"),
                times(here),
                reported(values(here, "step_seconds")),
                reported(values(here, "step_over_read")),
                most(here, "above_mb", ",.0f"),
                most(here, "rise_mb", ",.0f"),
            ]
        )
    return Tables(
        settings={
            "columns": f"{sizes.wide_columns:,}",
            "fit": f"{PRIVATE_FIT}, noise: step",
            "repeats": sizes.wide_repeats,
            "seed": SEED,
        },
        columns=[
            "rows",
            "file MB",
            "steps",
            "seconds of the fit",
            "seconds a step",
            "step / read",
            "peak MB above the interpreter",
            "of which the fit's own",
        ],
        rows=lines,
        notes=[
            f"Median (range) of {sizes.wide_repeats} repeats, in turn, each in a process of its own. "
            "A step is a product of the file's rows with a basis, its noise and the coordinator's part; "
            "the time of a step is that from the first closed round to the last, shared among them. "
            "A read is the sum of all values of the same file, block by block, by NumPy and SciPy. "
            f"A d × d matrix would take {8e-9 * sizes.wide_columns**2:,.3g} GB.",
        ],
    )


def steps(*, path: str) -> dict[str, Any]:
    """Return time and peak of a private fit over the file, and the time of a read."""
    read_seconds = _read(path)
    closed: list[float] = []
    found, fitted = timed(
        lambda: fed_pca(private=True, noise="step").fit_silos(
            [path], on_round=lambda _: closed.append(time.perf_counter())
        )
    )
    step_seconds = (closed[-1] - closed[0]) / (len(closed) - 1)
    return found | {
        "read_seconds": read_seconds,
        "steps": fitted.n_steps_,
        "step_seconds": step_seconds,
        "step_over_read": step_seconds / read_seconds,
    }


def _read(path: str) -> float:
    """Return the seconds that a sum over the file takes, the second time."""
    from scipy import sparse

    for _ in range(2):
        started = time.perf_counter()
        if path.endswith(".npz"):
            sparse.load_npz(path).sum()
        else:
            rows = np.load(path, mmap_mode="r")
            for start in range(0, len(rows), STRIPE):
                rows[start : start + STRIPE].sum()
        taken = time.perf_counter() - started
    return taken


def _written(sizes: Sizes, folder: Path) -> dict[str, Path]:
    """Return the files by what they hold."""
    from scipy import sparse

    rng = np.random.default_rng(SEED)
    width = sizes.wide_columns
    dense, thin = folder / "dense.npy", folder / "sparse.npz"
    rows = np.lib.format.open_memmap(
        dense, mode="w+", dtype=np.float32, shape=(sizes.wide_rows, width)
    )
    for start in range(0, sizes.wide_rows, STRIPE):
        part = rows[start : start + STRIPE]
        part[:] = rng.standard_normal(part.shape, dtype=np.float32) / np.sqrt(width)
    rows.flush()
    shape = (sizes.wide_sparse_rows, width)
    matrix = sparse.random_array(shape, density=sizes.wide_density, format="csr", rng=rng)
    sparse.save_npz(thin, matrix, compressed=False)
    return {
        f"float32 .npy, {sizes.wide_rows:,} × {width:,}": dense,
        f"sparse .npz, {shape[0]:,} × {width:,}, {sizes.wide_density:.2%} stored": thin,
    }
