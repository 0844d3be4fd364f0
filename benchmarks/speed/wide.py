"""Data too wide for a moment: a noised step against a read, an exact fit against a pooled one."""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, in_turn, most, of_way, reported, times, values
from benchmarks.processes import Runner, scratch
from benchmarks.speed.methods import fed_pca
from benchmarks.speed.rows import timed
from benchmarks.speed.sizes import PRIVATE_FIT, RANK, SEED, WIDE_RANK, Sizes

TITLE = "Wide data"
STRIPE = 64
"""Rows written and read at once."""

OVERSAMPLING = 10
"""Columns of a basis beside the components."""

EXACT = "exact"


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return time a step, time of a read and peak for each file, and times of exact fits."""
    found = []
    with scratch("wide") as folder:
        run.say(f"writing rows of {sizes.wide_columns:,} columns")
        places = _written(sizes, folder)
        for repeat, kind in in_turn(list(places), sizes.wide_repeats):
            label = f"{kind}, repeat {repeat + 1} of {sizes.wide_repeats}"
            measured = run("benchmarks.speed.wide:steps", label=label, path=str(places[kind]))
            file_mb = places[kind].stat().st_size / 1e6
            found.append({"kind": kind, "repeat": repeat, "file_mb": file_mb} | measured)
        run.say("writing genotypes")
        silos = _genotypes(sizes, folder)
        for repeat in range(sizes.wide_repeats):
            label = f"exact fits, repeat {repeat + 1} of {sizes.wide_repeats}"
            measured = run("benchmarks.speed.wide:exact", label=label, paths=[str(each) for each in silos])
            found.append({"kind": EXACT, "repeat": repeat} | measured)
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured."""
    lines = []
    for kind in sorted({each["kind"] for each in measured} - {EXACT}):
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
                reported(values(here, "bases")),
                reported(values(here, "bases_beside")),
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
            "in bases",
            "beside a block and its copy",
        ],
        rows=lines,
        more=[_exact_table(sizes, of_way(measured, kind=EXACT))],
        notes=[
            f"Median (range) of {sizes.wide_repeats} repeats, in turn, each in a process of its own. "
            "A step is a product of the file's rows with a basis, its noise and the coordinator's part; "
            "the time of a step is that from the first closed round to the last, shared among them. "
            "A read is the sum of all values of the same file, block by block, by NumPy and SciPy. "
            f"A basis is d × {RANK + OVERSAMPLING} numbers of float64. "
            f"A d × d matrix would take {8e-9 * sizes.wide_columns**2:,.3g} GB."
        ],
    )


def _exact_table(sizes: Sizes, here: Sequence[Measured]) -> tuple[str, list[str], list[list[str]]]:
    rows, columns = sizes.wide_exact
    title = (
        f"Exact fits of {rows:,} × {columns:,} genotypes, k = {WIDE_RANK}, {sizes.wide_exact_silos} "
        "silos, beside scikit-learn's arpack on the pooled rows; all in one process a repeat"
    )
    lines = [
        [
            place,
            reported(values(here, f"{place}_pooled_seconds")),
            reported(values(here, f"{place}_seconds")),
            reported(values(here, f"{place}_over_pooled")),
            most(here, "rounds", "d"),
            most(here, "up_mb", ",.0f"),
            most(here, "apart", ".1e"),
        ]
        for place in PLACES
    ]
    heads = ["from", "pooled s", "fedpower s", "ratio", "rounds", "MB up", "sin θ between the two"]
    return title, heads, lines


PLACES = ("memory", "Parquet")


def exact(*, paths: list[str]) -> dict[str, Any]:
    """Return times of exact fits from memory and from Parquet, each beside that of the pooled rows."""
    import pandas as pd
    from sklearn.decomposition import PCA

    from fedpower import FedPCA
    from fedpower.linalg import sin_theta

    parts = [pd.read_parquet(path).to_numpy() for path in paths]
    rows = np.vstack(parts)

    def pooled(data: Any) -> Any:
        return PCA(WIDE_RANK, svd_solver="arpack", random_state=SEED).fit(data)

    def federated(silos: list[Any]) -> Any:
        return FedPCA(WIDE_RANK, epsilon=float("inf"), standardize=False, random_state=SEED).fit_silos(silos)

    few = [part[: WIDE_RANK + 2, : WIDE_RANK + 2] for part in parts]
    pooled(few[0])
    federated(few)
    theirs: dict[str, Callable[[], Any]] = {
        "memory": lambda: pooled(rows),
        "Parquet": lambda: pooled(pd.concat([pd.read_parquet(path) for path in paths]).to_numpy()),
    }
    ours: dict[str, Callable[[], Any]] = {
        "memory": lambda: federated(parts),
        "Parquet": lambda: federated(paths),
    }
    found: dict[str, Any] = {"apart": 0.0}
    for place in PLACES:
        beside, known = timed(theirs[place])
        here, model = timed(ours[place])
        found[f"{place}_pooled_seconds"] = beside["seconds"]
        found[f"{place}_seconds"] = here["seconds"]
        found[f"{place}_over_pooled"] = here["seconds"] / beside["seconds"]
        apart = sin_theta(model.components_.T, known.components_.T)
        found["apart"] = max(found["apart"], apart)
        found["rounds"] = len(model.history_)
        found["up_mb"] = sum(each["bytes_up"] for each in model.history_) / 1e6
    return found


def steps(*, path: str) -> dict[str, Any]:
    """Return time and peak of a private fit over the file, and the time of a read."""
    read_seconds = _read(path)
    few = np.random.default_rng(SEED).standard_normal((20, 100))
    fed_pca(private=True, noise="step").fit_silos([few])  # what the libraries take is not the fit's
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
        "bases": found["rise_mb"] * 1e6 / (8 * fitted.n_features_in_ * (RANK + OVERSAMPLING)),
        "bases_beside": _beside_blocks(path, found["rise_mb"] * 1e6, fitted.n_features_in_),
    }


def _beside_blocks(path: str, rise: float, width: int) -> float:
    """Return the memory of a fit in bases, less a block of dense rows in float64 and its bounded copy."""
    from fedpower.sums.product import WIDE_BLOCK_BYTES

    if path.endswith(".npy"):
        n_rows = len(np.load(path, mmap_mode="r"))
        rise -= 2 * 8 * width * min(n_rows, max(1, WIDE_BLOCK_BYTES // (8 * width)))
    return rise / (8 * width * (RANK + OVERSAMPLING))


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
    rows = np.lib.format.open_memmap(dense, mode="w+", dtype=np.float32, shape=(sizes.wide_rows, width))
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


def _genotypes(sizes: Sizes, folder: Path) -> list[Path]:
    """Return Parquet files of people's counts of alleles."""
    import pandas as pd

    rng = np.random.default_rng(SEED)
    count, width = sizes.wide_exact
    likely = _peoples(width, rng)
    files = []
    for place, part in enumerate(np.array_split(np.arange(count), sizes.wide_exact_silos)):
        rows = _counts(len(part), likely, rng).astype(np.float64)
        files.append(folder / f"genotypes-{place}.parquet")
        pd.DataFrame(rows, columns=[f"v{j}" for j in range(width)]).to_parquet(files[-1])
    return files


def people(count: int, width: int, rng: np.random.Generator) -> Any:
    """Return counts of alleles of people of four peoples in each of five regions.

    Regions have drifted apart far, peoples in a region little: four components stand alone, the next
    fifteen are close to each other, and the tenth of them has a small gap.
    """
    return _counts(count, _peoples(width, rng), rng)


def _counts(count: int, likely: Any, rng: np.random.Generator) -> Any:
    return rng.binomial(2, likely[rng.integers(len(likely), size=count)])


def _peoples(width: int, rng: np.random.Generator) -> Any:
    """Return allele frequencies, a row for each people."""
    ancestral = rng.uniform(0.05, 0.95, width)
    peoples = []
    for _ in range(5):
        region = _drifted(ancestral, 0.08, rng)
        peoples += [_drifted(region, 0.015, rng) for _ in range(4)]
    return np.array(peoples)


def _drifted(frequencies: Any, drift: float, rng: np.random.Generator) -> Any:
    """Return allele frequencies after drift F_ST [Balding & Nichols 1995]."""
    kept = np.clip(frequencies, 0.01, 0.99)
    scale = (1 - drift) / drift
    return rng.beta(kept * scale, (1 - kept) * scale)
