"""What a value costs: processor time of the single passes of which a fit from memory or Parquet is made.

The least that a fit can take is what cannot be left out: the product of the rows, and decoding a file.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import Tables
from benchmarks.measuring import Measured, in_turn, of_way, reported, values
from benchmarks.processes import Runner, scratch
from benchmarks.speed.rows import Array, drawn
from benchmarks.speed.sizes import SEED, Sizes

TITLE = "What a value costs"
HERE = "benchmarks.speed.passes"
KEY = "ns"
PRODUCT, ALL_CORES = "X.T @ X, one thread", "X.T @ X of the whole array, every core"
SCALE = "rows times factors, NumPy's broadcasting"


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return the processor time of every pass."""
    n_rows, n_features = sizes.passes_shape
    found: list[dict[str, Any]] = []
    with scratch("passes") as folder:
        for task, threads in ((f"{HERE}:one_thread", 1), (f"{HERE}:every_core", None)):
            found += run(
                task,
                label=task,
                threads=threads,
                folder=str(folder),
                n_rows=n_rows,
                n_features=n_features,
                repeats=sizes.kernel_repeats,
            ).get("times", [])
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return a line a pass."""
    ways = dict.fromkeys((each["of"], each["way"]) for each in measured)
    return Tables(
        settings={
            "shape": " × ".join(f"{size:,}" for size in sizes.passes_shape),
            "repeats": sizes.kernel_repeats,
            "seed": SEED,
        },
        columns=["of", "pass", "ns of processor time a value"],
        rows=[[kind, way, reported(values(of_way(measured, of=kind, way=way), KEY))] for kind, way in ways],
        notes=[
            f"Median (range) of {sizes.kernel_repeats} repeats, in turn, in blocks as a fit takes them. "
            "Parquet as pyarrow writes it by default."
        ],
    )


def one_thread(*, folder: str, n_rows: int, n_features: int, repeats: int) -> dict[str, Any]:
    """Return what passes cost a thread, over rows in memory and over a Parquet file of them."""
    rows = drawn(n_rows, n_features)
    path = Path(folder) / "rows.parquet"
    _write(rows, path)
    ways = {
        **{("memory", way): each for way, each in _over_blocks(rows).items()},
        **{("Parquet", way): each for way, each in _over_file(path).items()},
    }
    return {"times": _timed(ways, rows.size, repeats)}


def every_core(*, folder: str, n_rows: int, n_features: int, repeats: int) -> dict[str, Any]:
    """Return what the product of the whole array costs all threads together."""
    del folder
    rows = drawn(n_rows, n_features)
    return {"times": _timed({("memory", ALL_CORES): lambda: rows.T @ rows}, rows.size, repeats)}


def _over_blocks(rows: Array) -> dict[str, Callable[[], object]]:
    """Return the passes over blocks of an array, one after the other."""
    from fedpower.sums.kernel import block_rows

    size = min(block_rows(rows.shape[1]), len(rows))
    blocks = [rows[start : start + size] for start in range(0, len(rows), size)]
    room, ones = np.empty((size, rows.shape[1])), np.ones(size)
    factors = np.full((size, 1), 0.5)

    def over(work: Callable[[Array], object]) -> Callable[[], object]:
        return lambda: [work(block) for block in blocks]

    return {
        PRODUCT: over(lambda x: x.T @ x),
        "norms": over(lambda x: np.einsum("ij,ij->i", x, x)),
        "mean": over(lambda x: ones[: len(x)] @ x),
        SCALE: over(lambda x: np.multiply(x, factors[: len(x)], out=room[: len(x)])),
        "rows times one number": over(lambda x: np.multiply(x, 0.5, out=room[: len(x)])),
        "rows divided by one number": over(lambda x: np.divide(x, 3.0, out=room[: len(x)])),
        "check for missing values": over(lambda x: np.isfinite(x).all()),
    }


def _over_file(path: Path) -> dict[str, Callable[[], object]]:
    """Return the ways to read a Parquet file."""
    from pyarrow import parquet

    from fedpower.rows.files import parquet_reader
    from fedpower.rows.opening import open_source
    from fedpower.sums.kernel import block_rows

    reader, source = parquet_reader(path, "rows"), open_source(path)
    size = block_rows(source.n_features)
    return {
        "the whole table decoded at once": lambda: parquet.read_table(path, use_threads=False),
        "decoded in bounded memory, by Arrow": lambda: _used(reader.batches(reader.columns, size)),
        "blocks of rows, as a fit reads them": lambda: _used(source.blocks(size)),
    }


def _used(items: Iterator[Any]) -> None:
    for _ in items:
        pass


def _timed(
    ways: dict[tuple[str, str], Callable[[], object]], n_values: int, repeats: int
) -> list[dict[str, Any]]:
    """Return a line a way and repeat, after one round that is not counted."""
    found = []
    for repeat, (kind, way) in in_turn(list(ways), 1 + repeats):
        started = time.process_time()
        ways[kind, way]()
        taken = (time.process_time() - started) / n_values * 1e9
        if repeat:
            found.append({"of": kind, "way": way, "repeat": repeat, KEY: taken})
    order = list(ways)
    return sorted(found, key=lambda each: (each["repeat"], order.index((each["of"], each["way"]))))


def _write(rows: Array, path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    parquet.write_table(pa.table({f"x{j}": rows[:, j] for j in range(rows.shape[1])}), path)
