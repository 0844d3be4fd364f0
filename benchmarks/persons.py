"""Persons with several rows each: what protecting a whole person costs, in accuracy and in time."""

import statistics
from pathlib import Path
from typing import Any

import numpy as np
from scipy.linalg import subspace_angles

from benchmarks.data_sets import Array
from benchmarks.fits import fed_pca
from benchmarks.runner import Record, Table, case, compare, in_own_process, say, scratch, timed, timing_table
from fedpower import CodeBook, FedPCA
from fedpower.privacy import epsilon_of, mu_of

RANK, DELTA = 3, 1e-6
MEAN_VISITS, MOST_VISITS = 2.9, 36
BETWEEN = 0.5
"""The share of a visit's variance that is the person's own and the same in all visits."""


def visits(persons: int, axes: Array, seed: int) -> tuple[Array, Any]:
    rng = np.random.default_rng(seed)
    ids = np.repeat(np.arange(persons), np.minimum(rng.geometric(1 / MEAN_VISITS, persons), MOST_VISITS))

    def draw(n: int) -> Array:
        spiked = rng.standard_normal((n, RANK)) * (2.0, 1.6, 1.3) @ axes.T
        return np.asarray(spiked + rng.standard_normal((n, len(axes))))

    return np.sqrt(BETWEEN) * draw(persons)[ids] + np.sqrt(1 - BETWEEN) * draw(ids.size), ids


@case(
    "persons",
    quick={"persons": 200, "columns": 5, "seeds": 1, "timed_rows": 500, "timed_persons": 50, "repeats": 1},
)
def persons(
    *,
    persons: int = 20_000,
    columns: int = 40,
    epsilon: float = 1.0,
    seeds: int = 20,
    timed_rows: int = 10_000_000,
    timed_persons: int = 1_000_000,
    repeats: int = 3,
) -> Table:
    """Protect persons: accuracy against one row of each and group privacy, and time."""
    axes = np.linalg.qr(np.random.default_rng(7).standard_normal((columns, RANK)))[0]
    given: Record = {
        "delta": DELTA,
        "row_norm": 1.2 * columns**0.5,
        "noise": "covariance",
        "standardize": False,
    }
    together = epsilon_of(mu_of(epsilon, DELTA) / MOST_VISITS, DELTA)
    errors: dict[str, list[float]] = {}
    for seed in range(seeds):
        rows, ids = visits(persons, axes, seed)
        first = np.unique(ids, return_index=True)[1]
        fits = {
            "persons, all their visits (`unit`)": fed_pca(RANK, epsilon=epsilon, **given).fit(
                rows, units=ids
            ),
            "one visit of each person": fed_pca(RANK, epsilon=epsilon, **given).fit(rows[first]),
            "group privacy": fed_pca(RANK, epsilon=together, **given).fit(rows),
        }
        for name, model in fits.items():
            error = float(np.sin(subspace_angles(model.components_.T, axes)[0]))
            errors.setdefault(name, []).append(error)
        say(f"seed {seed}")
    middle = {name: statistics.median(found) for name, found in errors.items()}
    ours = next(iter(middle.values()))
    times = _times(timed_rows, timed_persons, repeats)
    table = timing_table(times, base="without a unit", columns=TIMES)
    title = f"{timed_rows:,} rows of {timed_persons:,} persons in no order, one Parquet file"
    return Table(
        columns=("what is protected, and fitted", "sin θ₃", "the first over it"),
        rows=[[name, f"{error:.3f}", f"{ours / error:.2f}"] for name, error in middle.items()],
        measured={"errors": errors, "times": times},
        more=[(title, table.columns, table.rows)],
        settings={"visits": f"{MEAN_VISITS} each, {MOST_VISITS} at most", "delta": DELTA},
    )


TIMES = ("seconds", "ratio", "processor s", "processor ratio", "peak MB above a bare interpreter")


def _times(rows: int, persons: int, repeats: int) -> list[Record]:
    with scratch() as folder:
        files = {
            kind: _write(folder / f"{kind}.parquet", rows, persons, kind) for kind in ("numbers", "texts")
        }
        ways = {
            "without a unit": ("numbers", None),
            "by person, ids are numbers": ("numbers", "person"),
            "by person, ids are texts": ("texts", "person"),
        }
        works = {
            name: lambda kind=kind, unit=unit: in_own_process(
                "benchmarks.persons:fit", path=str(files[kind]), unit=unit
            )
            for name, (kind, unit) in ways.items()
        }
        return compare(works, repeats, warm=False)


def fit(*, path: str, unit: str | None) -> Record:
    import polars as pl

    silo = path if unit else pl.scan_parquet(path).drop("person")
    model = FedPCA(3, epsilon=1.0, standardize=False, codebook=CodeBook(row_norm=8.0), unit=unit)
    return timed(lambda: model.fit_silos({"a": silo}))[0]


def _write(path: Path, rows: int, persons: int, kind: str, columns: int = 20) -> Path:
    import polars as pl

    rng = np.random.default_rng(0)
    ids = pl.Series("person", rng.integers(persons, size=rows))
    cells = {f"x{place}": rng.standard_normal(rows, dtype=np.float32) for place in range(columns)}
    texts = (
        pl.lit("P") + pl.col("person").cast(pl.String).str.zfill(8) if kind == "texts" else pl.col("person")
    )
    pl.DataFrame({"person": ids, **cells}).with_columns(texts.alias("person")).write_parquet(path)
    return path
