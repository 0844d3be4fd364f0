"""Persons with several rows each: what protecting a whole person costs, in accuracy and in time.

Accuracy: simulated visits of persons, sin θ₃ to the truth of fits that protect persons (`unit`), beside
fits to one visit of each, and beside group privacy: fits that protect single visits so well that the most
visits of anybody are protected together. Time: a Parquet file of visits in no order, fitted with and
without a unit, in processes of their own.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from benchmarks.common import parser, report
from fedpower import FedPCA
from fedpower.privacy import epsilon_of, mu_of

Array = NDArray[np.float64]

RANK = 3
DELTA = 1e-6
MEAN_VISITS, MOST_VISITS = 2.9, 36
SPIKES = (2.0, 1.6, 1.3)
BETWEEN = 0.5
"""Of a visit's variance, what is the person's own and the same in all of them."""


def axes(n_features: int) -> Array:
    """Return the truth: the leading directions of every visit."""
    return np.linalg.qr(np.random.default_rng(7).standard_normal((n_features, RANK)))[0]


def visits(n_persons: int, n_features: int, seed: int) -> tuple[Array, NDArray[np.int64]]:
    """Return rows and whose they are: geometric numbers of visits, cut at the most."""
    rng = np.random.default_rng(seed)
    counts = np.minimum(rng.geometric(1 / MEAN_VISITS, n_persons), MOST_VISITS)
    ids = np.repeat(np.arange(n_persons), counts)

    def draw(n: int) -> Array:
        spiked = rng.standard_normal((n, RANK)) * SPIKES @ axes(n_features).T
        return np.asarray(spiked + rng.standard_normal((n, n_features)))

    rows = np.sqrt(BETWEEN) * draw(n_persons)[ids] + np.sqrt(1 - BETWEEN) * draw(ids.size)
    return rows, ids


def sine(model: FedPCA, n_features: int) -> float:
    """Return sin θ₃ to the truth."""
    return float(np.sin(subspace_angles(model.components_.T, axes(n_features))[0]))


def accuracy(options: argparse.Namespace) -> list[dict[str, float]]:
    """Return the errors of the three ways, for each seed."""
    d, found = options.columns, []
    told: dict[str, Any] = {"delta": DELTA, "row_norm": 1.2 * d**0.5, "noise": "moment"}
    together = epsilon_of(mu_of(options.epsilon, DELTA) / MOST_VISITS, DELTA)
    for seed in range(options.seeds):
        rows, ids = visits(options.persons, d, seed)
        first = np.unique(ids, return_index=True)[1]
        person = FedPCA(RANK, epsilon=options.epsilon, standardize=False, **told).fit(rows, units=ids)
        one = FedPCA(RANK, epsilon=options.epsilon, standardize=False, **told).fit(rows[first])
        group = FedPCA(RANK, epsilon=together, standardize=False, **told).fit(rows)
        found.append(
            {
                "person": sine(person, d),
                "one": sine(one, d),
                "group": sine(group, d),
                "visits": len(rows) / options.persons,
            }
        )
    return found


TIMED = """
import json, resource, sys, time
from fedpower import FedPCA
from fedpower.rows.opening import open_source
unit = sys.argv[2] or None
begun, idle = time.perf_counter(), time.process_time()
model = FedPCA(3, epsilon=1.0, row_norm=8.0, unit=unit, extra_columns="drop",
    standardize=False)
model.fit_silos({"a": open_source(sys.argv[1], drop=["person"])})
print(json.dumps({"seconds": time.perf_counter() - begun, "cpu": time.process_time() - idle,
    "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024, "n": model.n_samples_}))
"""


def write(path: Path, n_rows: int, n_persons: int, n_features: int, *, texts: bool) -> None:
    """Write visits in no order, as many for everybody on average, whose ids are texts or numbers."""
    import pyarrow as pa
    from pyarrow import parquet

    rng = np.random.default_rng(0)
    names = [f"x{place}" for place in range(n_features)]
    schema = pa.schema(
        [("person", pa.string() if texts else pa.int64()), *((name, pa.float32()) for name in names)]
    )
    with parquet.ParquetWriter(path, schema) as writer:
        for start in range(0, n_rows, 2**18):
            count = min(2**18, n_rows - start)
            ids = rng.integers(n_persons, size=count)
            cells = [pa.array(rng.standard_normal(count, dtype=np.float32)) for _ in names]
            people = pa.array([f"P{place:08d}" for place in ids] if texts else ids)
            writer.write_table(pa.table([people, *cells], schema=schema))


def timed(options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return seconds and peak memory with and without a unit, in turn."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for kind in KINDS:
            path = Path(folder) / f"{kind}.parquet"
            shape = (options.timed_rows, options.timed_persons, options.timed_columns)
            write(path, *shape, texts=kind == "texts")
            for repeat in range(options.repeats):
                for unit in ("", "person"):
                    done = subprocess.run(
                        [sys.executable, "-W", "ignore", "-c", TIMED, str(path), unit],
                        capture_output=True,
                        text=True,
                        check=True,
                    )
                    said = json.loads(done.stdout)
                    found.append({"ids": kind, "unit": unit, "repeat": repeat, **said})
    return found


KINDS = ("texts", "numbers")


def compared(times: list[dict[str, Any]]) -> list[tuple[str, ...]]:
    """Return a line for each kind of ids, and one for no unit, with ratios to that."""
    lines = []
    alone: dict[str, float] = {}
    for name, kind, unit in (
        ("without a unit", KINDS[0], ""),
        ("by person, ids are numbers", KINDS[1], "person"),
        ("by person, ids are texts", KINDS[0], "person"),
    ):
        those = [each for each in times if (each["ids"], each["unit"]) == (kind, unit)]
        least = {key: min(each[key] for each in those) for key in ("seconds", "cpu")}
        alone = alone or least
        cells = [f"{least[key]:.1f} ({least[key] / alone[key]:.2f})" for key in least]
        lines.append((name, *cells, f"{max(each['mb'] for each in those):.0f}"))
    return lines


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=20, help="data sets, and fits of each kind")
    made.add_argument("--persons", type=int, default=20_000)
    made.add_argument("--columns", type=int, default=40)
    made.add_argument("--epsilon", type=float, default=1.0)
    made.add_argument("--timed-rows", type=int, default=10_000_000)
    made.add_argument("--timed-persons", type=int, default=1_000_000)
    made.add_argument("--timed-columns", type=int, default=20)
    made.add_argument("--repeats", type=int, default=3, help="times each is timed; 0 leaves it out")
    options: argparse.Namespace = made.parse_args()
    errors = accuracy(options)
    middle = {name: statistics.median(each[name] for each in errors) for name in errors[0]}
    rows = [
        ("persons, all their visits (`unit`)", f"{middle['person']:.3f}", "1"),
        ("one visit of each person", f"{middle['one']:.3f}", f"{middle['person'] / middle['one']:.2f}"),
        ("group privacy", f"{middle['group']:.3f}", f"{middle['person'] / middle['group']:.2f}"),
    ]
    times, more = timed(options), []
    if times:
        more = [
            (
                f"{options.timed_rows:,} rows of {options.timed_persons:,} persons and "
                f"{options.timed_columns} columns in no order, one Parquet file, least of "
                f"{options.repeats}, in brackets over the first:",
                ("", "seconds", "of a processor", "peak memory, MB"),
                compared(times),
            )
        ]
    report(
        options,
        name="persons",
        settings={
            "persons": options.persons,
            "columns": options.columns,
            "visits": f"{middle['visits']:.2f} each, {MOST_VISITS} at most",
            "epsilon": options.epsilon,
            "delta": DELTA,
            "seeds": options.seeds,
        },
        columns=("what is protected, and fitted", "sin θ₃", "the first over it"),
        rows=rows,
        raw={"errors": errors, "times": times},
        more=more,
    )


if __name__ == "__main__":
    main()
