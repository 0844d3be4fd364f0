"""Whole fits against scikit-learn on the pooled rows: from memory, from Parquet, from CSV."""

import functools
import itertools
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, in_turn, most, of_way, ratios, reported, times, values
from benchmarks.processes import Runner, scratch
from benchmarks.speed.methods import READERS, fed_pca, scikit_learn
from benchmarks.speed.rows import WARM_ROWS, Array, leading, model, timed
from benchmarks.speed.sizes import PRIVATE_FIT, SEED, Sizes

TITLE = "Whole fits"
PRIVATE, EXACT = "fedpower, private", "fedpower, exact"
PLACES = ("memory", "Parquet", "CSV")
SOLVERS = ("covariance_eigh", "randomized", "arpack")
"""scikit-learn's; ``full`` is slower than these on long arrays by far (see the other libraries)."""


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return every fit's time, peak and error, from memory first."""
    found: list[dict[str, Any]] = []
    for kind, n_rows in (("npy", sizes.fit_rows), ("parquet", sizes.fit_rows), ("csv", sizes.csv_rows)):
        with scratch(kind) as folder:
            paths, truth = _written(kind, n_rows, sizes, folder, run)
            if kind == "npy":
                ways = [PRIVATE, EXACT, *(f"PCA, {solver}" for solver in SOLVERS)]
                task = "benchmarks.speed.end_to_end:fit_pooled"
            else:
                solver = fastest(found).removeprefix("PCA, ")
                ways = [PRIVATE, EXACT, *(f"{name} + PCA, {solver}" for name in sizes.readers)]
                task = "benchmarks.speed.end_to_end:fit_files"
            for repeat, way in in_turn(ways, sizes.repeats):
                label = f"{_place(kind)}, {way}, repeat {repeat + 1} of {sizes.repeats}"
                measured = run(task, label=label, way=way, paths=paths, truth=truth)
                about = {"from": _place(kind), "way": way, "repeat": repeat, "n_rows": n_rows}
                found.append(about | measured)
    return found


def fastest(measured: Sequence[Measured]) -> str:
    """Return scikit-learn's way with the least median time from memory."""
    here = of_way(measured, **{"from": "memory"})
    seconds = {f"PCA, {solver}": values(of_way(here, way=f"PCA, {solver}")) for solver in SOLVERS}
    return min(
        (way for way, found in seconds.items() if found), key=lambda way: statistics.median(seconds[way])
    )


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured, with the ratio to fedpower's private fit."""
    lines = []
    order = sorted({(PLACES.index(each["from"]), each["way"]) for each in measured})
    for place, way in ((PLACES[number], way) for number, way in order):
        here = of_way(measured, way=way, **{"from": place})
        ours = of_way(measured, way=PRIVATE, **{"from": place})
        lines.append(
            [
                f"{place}, {here[0]['n_rows']:,} rows",
                way,
                times(here),
                reported(ratios(here, ours)),
                most(here, "error", ".1e"),
                most(here, "above_mb", ",.0f"),
                most(here, "rise_mb", ",.0f"),
            ]
        )
    return Tables(
        settings={
            "rows": f"Model I, {sizes.fit_columns} columns, {sizes.fit_silos} silos",
            "private": PRIVATE_FIT,
            "repeats": sizes.repeats,
            "seed": SEED,
        },
        columns=[
            "rows from",
            "way",
            "seconds",
            f"× {PRIVATE}",
            "sin θ to the exact subspace",
            "peak MB above the interpreter",
            "of which the fit's own",
        ],
        rows=lines,
        notes=[
            f"Median (range) of {sizes.repeats} repeats, in turn, every fit in a process of its own "
            f"that fitted {WARM_ROWS:,} rows before, so that libraries are loaded; ratios are within a "
            "repeat, above 1 where fedpower is faster. fedpower fits the silos without pooling them, "
            "scikit-learn the pooled array. From files the clock starts before they are opened and the "
            "operating system has them in memory; scikit-learn's solver there is the one that was "
            "fastest from memory."
        ],
    )


def fit_pooled(*, way: str, paths: list[str], truth: str) -> dict[str, Any]:
    """Return time, peak and error of a fit of rows that are in memory, pooled or as silos."""
    shapes = [np.load(path, mmap_mode="r").shape for path in paths]
    edges = np.cumsum([0, *(rows for rows, _ in shapes)])
    pooled = np.empty((edges[-1], shapes[0][1]))
    silos = [pooled[start:stop] for start, stop in itertools.pairwise(edges)]
    for silo, path in zip(silos, paths, strict=True):
        silo[:] = np.load(path, mmap_mode="r")
    if way in (PRIVATE, EXACT):
        fed_pca(private=way == PRIVATE).fit_silos([pooled[:WARM_ROWS]])
        found, basis = timed(lambda: _fed(way, silos))
    else:
        solver = way.removeprefix("PCA, ")
        scikit_learn(pooled[:WARM_ROWS], solver=solver)()
        found, basis = timed(scikit_learn(pooled, solver=solver))
    return found | {"error": _error(basis, truth)}


def fit_files(*, way: str, paths: list[str], truth: str) -> dict[str, Any]:
    """Return time, peak and error of a fit from files, reading included."""
    warm = str(Path(paths[0]).with_name(f"warm{Path(paths[0]).suffix}"))
    if way in (PRIVATE, EXACT):
        _fed(way, [warm])
        found, basis = timed(lambda: _fed(way, paths))
    else:
        reader, _, solver = way.replace(" + PCA", "").partition(", ")
        _read_and_fit(reader, [warm], solver)
        found, basis = timed(lambda: _read_and_fit(reader, paths, solver))
    return found | {"error": _error(basis, truth)}


def _fed(way: str, silos: Sequence[Any]) -> Array:
    return np.asarray(fed_pca(private=way == PRIVATE).fit_silos(silos).components_.T)


def _read_and_fit(reader: str, paths: list[str], solver: str) -> Array:
    return scikit_learn(READERS[reader](paths), solver=solver)()


def _error(basis: Array, truth: str) -> float:
    from fedpower.linalg import sin_theta

    return sin_theta(basis, np.load(truth))


def _place(kind: str) -> str:
    return {"npy": "memory", "parquet": "Parquet", "csv": "CSV"}[kind]


def _written(kind: str, n_rows: int, sizes: Sizes, folder: Path, run: Runner) -> tuple[list[str], str]:
    """Return the silos' files and that of the exact subspace; beside them a small file to warm up."""
    from fedpower.experiments.writing import write_model

    run.say(f"writing {n_rows:,} rows as {kind}")
    drawn = model(n_rows, sizes.fit_columns, sizes.fit_silos)
    paths = write_model(drawn, folder / "silos", kind=kind)  # type: ignore[arg-type]
    (small,) = write_model(model(WARM_ROWS, sizes.fit_columns), folder / "small", kind=kind)  # type: ignore[arg-type]
    small.rename(paths[0].with_name(f"warm.{kind}"))
    truth = folder / "truth.npy"
    np.save(truth, _exact(n_rows, sizes.fit_columns, sizes.fit_silos))
    return [str(path) for path in paths], str(truth)


@functools.lru_cache(maxsize=1)
def _exact(n_rows: int, n_features: int, n_silos: int) -> Array:
    """Return the exact leading eigenspace of the pooled rows; memory and Parquet have the same."""
    drawn = model(n_rows, n_features, n_silos)
    return leading(block for silo in range(n_silos) for block in drawn.blocks(silo, 2**16))
