"""Silos inside one table: each distinct value of a column is a silo."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from fedpower.data.columns import shown
from fedpower.data.opening import open_source, open_table, source_of
from fedpower.data.source import RowSource
from fedpower.data.tables import Group, TableReader, arrow, plain
from fedpower.errors import InputError

MAX_GROUPS = 10_000
"""More distinct values than this are taken for a measurement, not for the names of silos."""

FEW_GROUPS = 5
"""Beyond so many, values that mostly occur once are taken for a measurement too."""

KEY_ROWS = 2**16
"""Rows of the key column looked at together."""


def split_by_group(
    data: Any, column: str, *, drop: Sequence[str] = (), columns: Sequence[str] | None = None
) -> dict[str, RowSource]:
    """Return one source per distinct value of a column, keyed and sorted by the value as a string.

    One pass over that column counts the groups; each source then streams the table and keeps its
    own rows, so a pass over every group reads the table once per group. The column itself is no
    feature.

    Parameters
    ----------
    data : a data frame, an Arrow table, a CSV, TSV, Parquet, Feather or Arrow file, or a query.
    column : the column whose values name the silos. In text files and queries its cells are taken as
        they are written.
    drop : further columns that are no features.
    columns : the features, in this order; all other columns by default.
    """
    reader = open_table(data)
    if reader is None:
        raise InputError(
            f"a table with column names must be given to split by '{column}', got "
            f"{type(data).__name__} without them; give a data frame, CSV, Parquet or Feather file"
        )
    if column not in reader.columns:
        raise InputError(
            f"{reader.name} must have the column '{column}' to split by, got "
            f"{shown(reader.columns)}; "
            "name one of its columns"
        )
    unwanted = {column, *((drop,) if isinstance(drop, str) else drop)}
    features = tuple(name for name in reader.columns if name not in unwanted)
    unknown = [name for name in unwanted if name not in reader.columns]
    if unknown:
        raise InputError(
            "{source} must have the columns to drop, got none named {unknown}; correct {drop}",
            source=reader.name,
            unknown=shown(unknown),
        )
    sources = {}
    for label, (value, count) in sorted(_count(reader, column).items()):
        source = replace(
            source_of(reader),
            name=f"silo '{label}' of {reader.name}",
            columns=features,
            n_rows=count,
            group=Group(column=column, value=value),
        )
        sources[label] = open_source(source, columns=columns, extra="drop")
    return sources


def _count(reader: TableReader, column: str) -> dict[str, tuple[Any, int]]:
    """Return each distinct value as a string with its Arrow scalar and number of rows."""
    compute = arrow("compute")
    groups: dict[str, tuple[Any, int]] = {}
    row = 0
    for batch in reader.batches((), KEY_ROWS, key=column):
        cells = plain(batch.column(0))
        _refuse_missing(reader.name, column, cells, row)
        for entry in compute.value_counts(cells):
            value = entry["values"]
            label = str(value.as_py())
            groups[label] = (value, groups.get(label, (value, 0))[1] + entry["counts"].as_py())
        if len(groups) > MAX_GROUPS:
            raise InputError(
                f"column '{column}' of {reader.name} must name silos, got more than {MAX_GROUPS} "
                "distinct values; split by another column"
            )
        row += batch.num_rows
    if not groups:
        raise InputError(f"{reader.name} must have at least one row, got none; check the file")
    alone = sum(count == 1 for _, count in groups.values())
    if len(groups) > FEW_GROUPS and 2 * alone > len(groups):
        raise InputError(
            f"column '{column}' of {reader.name} must name silos, got {len(groups)} values for {row} "
            "rows, most of them once; split by a column that says whose each row is"
        )
    return groups


def _refuse_missing(name: str, column: str, cells: Any, first_row: int) -> None:
    """Refuse a batch of labels with a null, NaN or empty one."""
    compute, types = arrow("compute"), arrow().types
    missing = compute.is_null(cells, nan_is_null=True)
    if types.is_string(cells.type) or types.is_large_string(cells.type):
        missing = compute.or_kleene(missing, compute.equal(cells, ""))
    places = np.flatnonzero(missing.to_numpy(zero_copy_only=False))
    if places.size:
        raise InputError(
            f"column '{column}' of {name} must name a silo in every row, got a missing value at "
            "row "
            f"{first_row + int(places[0]) + 1}; fill it in or leave that row out"
        )
