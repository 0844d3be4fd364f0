"""One task of the memory benchmark, in a process of its own: make a file, or fit one."""

import json
import sys
import time
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute
import pyarrow.csv
import pyarrow.parquet

from benchmarks.common import peak_mb
from fedpower import FedPCA
from fedpower.experiments.models import Model, spiked_covariance
from fedpower.experiments.writing import write_model

GROUP_ROWS = 2**20
"""Rows in a group as pyarrow writes them unless told otherwise."""


def main() -> None:
    """Do what the arguments say and print what was measured as JSON."""
    task, path, *rest = sys.argv[1:]
    print(json.dumps({"make": make, "fit": fit}[task](Path(path), *rest)))


def make(path: Path, n_rows: str, n_features: str, kind: str) -> dict[str, Any]:
    """Write one silo of Model I as a file."""
    model = spiked_covariance(n_rows=int(n_rows), n_features=int(n_features), n_silos=1, seed=0)
    if "groups" in kind:
        _write_large_groups(path, model)
    else:
        folder = path.parent / f"made-{kind}"
        (written,) = write_model(model, folder, kind=kind)  # type: ignore[arg-type]
        written.rename(path)
    return {}


def fit(path: Path, epsilon: str) -> dict[str, Any]:
    """Return the peaks of a fit over one file."""
    imports = peak_mb()
    started = time.perf_counter()
    model = FedPCA(4, epsilon=float(epsilon), row_norm=1.0, random_state=0).fit_silos([path])
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


if __name__ == "__main__":
    main()
