"""One table with all that scoring a row takes: a line a feature, a column a component.

The scores of a row x are Σ_j pc_j·(x_j − mean_j)/scale_j over the features j. Where rows were scaled to
norm 1 there is a column ``center`` too, and they are Σ_j pc_j·(u_j − mean_j) of the unit row u along
(x − center)/scale.
"""

import csv
import json
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.report.export.provenance import provenance
from fedpower.report.findings import Findings
from fedpower.report.spreadsheet import as_text

METADATA = b"fedpower"
"""The key of a Parquet file's metadata under which `provenance` stands as JSON."""


def loadings(result: Findings) -> dict[str, Any]:
    """Return the columns of the table by name, in order."""
    width = result.n_features
    names = result.feature_names or tuple(f"x{place}" for place in range(width))
    center = np.zeros(width) if result.center is None else result.center
    return {
        "feature": list(names),
        **({"center": center} if result.normalize else {}),
        "mean": result.mean,
        "scale": np.ones(width) if result.scale is None else result.scale,
        **dict(zip(result.score_names, result.components, strict=True)),
    }


def write_csv(result: Findings, path: Path) -> None:
    """Write the table as text that reads back to the same numbers."""
    columns = loadings(result)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        names = map(as_text, columns.pop("feature"))
        numbers = (values.tolist() for values in columns.values())
        writer.writerows(zip(names, *numbers, strict=True))


def write_parquet(result: Findings, path: Path) -> None:
    """Write the table as Parquet, with variances and where it is from in the file's metadata."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    table = pa.table({name: pa.array(values) for name, values in loadings(result).items()})
    told = json.dumps(provenance(result), allow_nan=False).encode()
    pq.write_table(table.replace_schema_metadata({METADATA: told}), path)
