"""The moment kernel against a bare product and against a read of the same rows.

A moment here is that of a private fit: checked, bounded and summed with its mean in whole numbers;
``X.T @ X`` is none of it. Everything is timed in turn in one process.
"""

import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, in_turn, of_way, ratios, reported, times
from benchmarks.processes import Runner
from benchmarks.speed.sizes import SEED, Sizes

TITLE = "The moment kernel"
PLAIN, READ = "X.T @ X", "X.sum()"
OURS = ("bounded, none too long", "bounded, half clipped", "normalised")
EXACT = tuple(f"exact, {way}" for way in OURS)
"""The same in whole numbers, as private fits sum them."""

BOUND = 1.0
LOOSE_BOUND = 2.0
"""Rows have norms of about 1: about half of them exceed the first bound, none the second."""


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return the seconds of every way on every array."""
    found: list[dict[str, Any]] = []
    for width in sizes.kernel_columns:
        for dtype in ("float64", "float32"):
            n_rows = sizes.kernel_values // width
            found += run(
                "benchmarks.speed.kernel:dense",
                label=f"{n_rows:,} × {width:,} {dtype}",
                n_rows=n_rows,
                n_features=width,
                dtype=dtype,
                repeats=sizes.kernel_repeats,
            ).get("times", [])
    for n_rows, width, density in sizes.sparse:
        found += run(
            "benchmarks.speed.kernel:sparse",
            label=f"{n_rows:,} × {width:,}, {density:.1%} stored",
            n_rows=n_rows,
            n_features=width,
            density=density,
            repeats=sizes.kernel_repeats,
        ).get("times", [])
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured as a table of ratios."""
    arrays = dict.fromkeys((each["rows"], each["shape"]) for each in measured)
    lines = []
    for rows, shape in arrays:
        here = of_way(measured, rows=rows, shape=shape)
        plain, read = of_way(here, way=PLAIN), of_way(here, way=READ)
        for way in (way for way in (*OURS, *EXACT) if of_way(here, way=way)):
            ours = of_way(here, way=way)
            lines.append(
                [
                    rows,
                    shape,
                    way,
                    times(ours),
                    reported(ratios(ours, plain)),
                    reported(ratios(ours, read)),
                    reported(ratios(ours, plain, "cpu_seconds")),
                    times(plain),
                ]
            )
    return Tables(
        settings={
            "moment": "accumulate_moment(open_source(X), RowTreatment(row_norm=2.0 | row_norm=1.0 | "
            "normalize=True)), or exact_moment of the same, the cores shared out as in a fit",
            "values": f"{sizes.kernel_values:,}",
            "repeats": sizes.kernel_repeats,
            "seed": SEED,
        },
        columns=[
            "rows",
            "shape",
            "way",
            "seconds",
            f"× {PLAIN}",
            f"× {READ}",
            f"× {PLAIN}, processor time",
            f"{PLAIN}, seconds",
        ],
        rows=lines,
        notes=[
            f"Median (range) of {sizes.kernel_repeats} repeats, all ways in turn in one process that "
            "uses every core once; ratios are within a repeat. Where threads of one BLAS are held up by "
            f"other work, the processor time tells more. For float32 rows {PLAIN} is float32's product, "
            "ours float64's; for sparse rows it is SciPy's, whose result is sparse."
        ],
    )


def dense(*, n_rows: int, n_features: int, dtype: str, repeats: int) -> dict[str, Any]:
    """Return the times of all ways on a dense array of rows of norm about 1."""
    rng = np.random.default_rng(SEED)
    rows = rng.standard_normal((n_rows, n_features), dtype=np.dtype(dtype))  # type: ignore[arg-type]
    rows /= np.sqrt(n_features)
    about = {"rows": dtype, "shape": f"{n_rows:,} × {n_features:,}"}
    return {"times": [about | each for each in _compare(rows, repeats)]}


def sparse(*, n_rows: int, n_features: int, density: float, repeats: int) -> dict[str, Any]:
    """Return the times of all ways on a sparse matrix of rows of norm about 1."""
    from scipy import sparse as scipy_sparse

    rng = np.random.default_rng(SEED)
    rows = scipy_sparse.random_array(
        (n_rows, n_features),
        density=density,
        format="csr",
        rng=rng,
        data_sampler=lambda size: rng.standard_normal(size) / np.sqrt(density * n_features),
    )
    about = {"rows": f"CSR, {density:.1%} stored", "shape": f"{n_rows:,} × {n_features:,}"}
    return {"times": [about | each for each in _compare(rows, repeats)]}


def moment_pass(kernel: Callable[..., object], rows: Any, treatment: Any) -> Callable[[], object]:
    """Return the pass over rows as a fit of one silo makes it: every core is used once."""
    from fedpower.engines.inprocess import available_cores, blas_threads
    from fedpower.rows.opening import open_source
    from fedpower.sums.exact_moment import exact_moment
    from fedpower.sums.kernel import shares_blocks

    source, shared, cores = open_source(rows), shares_blocks(rows.shape[1]), available_cores()

    def run() -> object:
        with blas_threads(1 if shared else cores):
            # Whole numbers are made by every core, whatever the width.
            spread = shared or kernel is exact_moment
            return kernel(source, treatment, workers=cores if spread else 1)

    return run


def _compare(rows: Any, repeats: int) -> list[dict[str, Any]]:
    """Return a line a way and repeat, after one round that is not counted."""
    from fedpower.rows.treatment import RowTreatment
    from fedpower.sums.exact_moment import exact_moment
    from fedpower.sums.moment import accumulate_moment

    treatments = (
        RowTreatment(row_norm=LOOSE_BOUND),
        RowTreatment(row_norm=BOUND),
        RowTreatment(normalize=True),
    )
    ways: dict[str, Callable[[], object]] = {
        **{
            way: moment_pass(kernel, rows, treatment)
            for kernel, names in ((accumulate_moment, OURS), (exact_moment, EXACT))
            for way, treatment in zip(names, treatments, strict=True)
        },
        PLAIN: lambda: rows.T @ rows,
        READ: rows.sum,
    }
    found = []
    for repeat, way in in_turn(list(ways), 1 + repeats):
        started, worked = time.perf_counter(), time.process_time()
        ways[way]()
        taken, worked = time.perf_counter() - started, time.process_time() - worked
        if repeat:
            found.append({"way": way, "repeat": repeat, "seconds": taken, "cpu_seconds": worked})
    return found
