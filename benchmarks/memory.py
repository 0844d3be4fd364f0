"""Peak memory of a FedPCA fit over silos larger than memory should be, each in a process of its own.

Files are made in a temporary folder and removed. Peaks are the kernel's high-water marks (VmHWM) of
the fitting process: getrusage would start from the parent's peak.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet

from benchmarks.common import parser, peak_mb, report
from benchmarks.processes import bare_mb, measured_apart
from fedpower import FedPCA
from fedpower.experiments.models import Model, spiked_covariance
from fedpower.experiments.writing import write_model

HERE = "benchmarks.memory"
LIMIT_MB = 500
N_FEATURES = 100
GROUP_ROWS = 2**20
"""Rows in a group as pyarrow writes them unless told otherwise."""
CSV_BYTES_PER_VALUE = 20.1  # measured on these rows: enough to hit the size asked for


def main() -> None:
    """Measure every kind of file and fit."""
    options = _options()
    found = []
    bare = bare_mb()
    with tempfile.TemporaryDirectory(dir=options.folder, prefix="fedpower-memory-") as name:
        folder = Path(name)
        for kind, gigabytes in (
            ("npy", options.gigabytes),
            ("parquet", options.gigabytes),
            ("parquet, 2²⁰-row groups", options.gigabytes),
            ("csv", options.csv_gigabytes),
        ):
            path = folder / f"silo.{kind.partition(',')[0]}"
            n_rows = _rows(kind, gigabytes)
            measured_apart(f"{HERE}:make", path=str(path), n_rows=n_rows, n_features=N_FEATURES, kind=kind)
            for epsilon in ("inf", "1"):
                measured = measured_apart(f"{HERE}:fit", path=str(path), epsilon=epsilon)
                measured |= {
                    "kind": kind,
                    "epsilon": epsilon,
                    "file_gb": path.stat().st_size / 1e9,
                    "above_mb": measured["peak_mb"] - bare,
                }
                found.append(measured)
                print(
                    f"{kind}, epsilon {epsilon}: {measured['above_mb']:.0f} MB above the bare "
                    f"interpreter, {measured['seconds']:.0f} s",
                    flush=True,
                )
            path.unlink()
    report(
        options,
        name="memory",
        settings={
            "gigabytes": options.gigabytes,
            "csv_gigabytes": options.csv_gigabytes,
            "columns": N_FEATURES,
            "bare_interpreter_mb": round(bare, 1),
            "limit_mb": LIMIT_MB,
            "fit": "FedPCA(4, epsilon=..., row_norm=1.0, random_state=0).fit_silos([path])",
        },
        columns=["file", "GB", "epsilon", "rows", "MB above the bare interpreter", "of which libraries"],
        rows=[
            [
                each["kind"],
                f"{each['file_gb']:.1f}",
                each["epsilon"],
                f"{each['n_rows']:,}",
                f"{each['above_mb']:.0f}",
                f"{each['imports_mb'] - bare:.0f}",
            ]
            for each in found
        ],
        raw=found,
        notes=[
            f"The bound is {LIMIT_MB} MB above the bare interpreter ({bare:.0f} MB); the largest "
            f"seen is {max(each['above_mb'] for each in found):.1f} MB.",
            "2²⁰-row groups: Parquet as pyarrow and pandas write it unless told otherwise, with "
            "dictionaries. A reader then holds a dictionary and a page of every column, about 3 MB "
            "a column whatever the file's size; `fedpower simulate` writes 32 MiB groups without "
            "dictionaries.",
        ],
    )
    if max(each["above_mb"] for each in found) >= LIMIT_MB:
        sys.exit(f"a fit took {LIMIT_MB} MB or more")


def _rows(kind: str, gigabytes: float) -> int:
    per_value = CSV_BYTES_PER_VALUE if kind == "csv" else 8
    return int(gigabytes * 1e9 / (N_FEATURES * per_value))


def make(*, path: str, n_rows: int, n_features: int, kind: str) -> dict[str, Any]:
    """Write one silo of Model I as a file."""
    place = Path(path)
    model = spiked_covariance(n_rows=n_rows, n_features=n_features, n_silos=1, seed=0)
    if "groups" in kind:
        _write_large_groups(place, model)
    else:
        folder = place.parent / f"made-{kind}"
        (written,) = write_model(model, folder, kind=kind)  # type: ignore[arg-type]
        written.rename(place)
    return {}


def fit(*, path: str, epsilon: str) -> dict[str, Any]:
    """Return the peaks of a fit over one file."""
    imports = peak_mb()
    started = time.perf_counter()
    model = FedPCA(4, epsilon=float(epsilon), row_norm=1.0, standardize=False, random_state=0).fit_silos(
        [path]
    )
    return {
        "n_rows": model.n_samples_,
        "imports_mb": imports,
        "peak_mb": peak_mb(),
        "seconds": time.perf_counter() - started,
        "kernel": next(iter(model.kernels_.values())),
    }


def _write_large_groups(path: Path, model: Model) -> None:
    """Write Parquet with pyarrow's defaults: dictionaries, and groups of a million rows."""
    schema = pa.schema([(column, pa.float64()) for column in model.columns])
    held: list[Any] = []
    with pyarrow.parquet.ParquetWriter(path, schema) as writer:
        for block in model.blocks(0, GROUP_ROWS):
            columns = [pa.array(column.copy()) for column in block.T]
            held.append(pa.record_batch(columns, schema=schema))
            if sum(len(batch) for batch in held) >= GROUP_ROWS:
                writer.write_table(pa.Table.from_batches(held), row_group_size=2 * GROUP_ROWS)
                held = []
        if held:
            writer.write_table(pa.Table.from_batches(held), row_group_size=2 * GROUP_ROWS)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--gigabytes", type=float, default=4.0, help="size of .npy and Parquet files")
    made.add_argument("--csv-gigabytes", type=float, default=1.0, help="size of the CSV file")
    made.add_argument("--folder", type=Path, help="where to make the files; the system's by default")
    return made.parse_args()


if __name__ == "__main__":
    main()
