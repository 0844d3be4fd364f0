"""`open_source`: one door for arrays, tables, files and queries; and silos inside one table."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from fedpower.data.arrays import (
    ColumnsByPlace,
    PositionalSource,
    array_source,
    npy_source,
    sparse_source,
)
from fedpower.data.columns import shown
from fedpower.data.dask_source import dask_source, is_dask
from fedpower.data.device import is_tensor, tensor_source
from fedpower.data.files import csv_reader, ipc_reader, parquet_reader
from fedpower.data.h5ad import anndata_source, h5ad_source, is_anndata
from fedpower.data.plink import PlinkSource, plink_source
from fedpower.data.source import Extra, RowSource
from fedpower.data.sparse import npz_source, svmlight_source
from fedpower.data.sql import QuerySource, QueryTable, SqlQuery, query_file, query_of, query_table
from fedpower.data.tables import (
    Group,
    TableReader,
    TableSource,
    arrow,
    plain,
    table_reader,
    table_source,
)
from fedpower.errors import InputError

_Readers: TypeAlias = dict[str, Callable[[Path, str], TableReader]]

_TABLE_FILES: _Readers = {
    ".csv": csv_reader,
    ".csv.gz": csv_reader,
    ".tsv": lambda path, name: csv_reader(path, name, delimiter="\t"),
    ".tsv.gz": lambda path, name: csv_reader(path, name, delimiter="\t"),
    ".parquet": parquet_reader,
    ".feather": ipc_reader,
    ".arrow": ipc_reader,
    ".toml": query_file,
}
_ARRAY_FILES: dict[str, Callable[[Path, str], PositionalSource | PlinkSource]] = {
    ".npy": npy_source,
    ".npz": npz_source,
    ".h5ad": h5ad_source,
    ".bed": plink_source,
}
_SVMLIGHT_FILES = tuple(
    f".{kind}{gz}" for kind in ("svm", "libsvm", "svmlight") for gz in ("", ".gz")
)


def open_source(
    data: Any,
    *,
    name: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    extra: Extra = "refuse",
    n_features: int | None = None,
    zero_based: bool = False,
) -> RowSource:
    """Return a source of rows over an array, a table, a file, a query or another source.

    Parameters
    ----------
    data : a 2-d NumPy array, SciPy sparse matrix or PyTorch tensor; a pandas data frame, an Arrow
        table or what exports itself as one; a Dask array or data frame; an AnnData; a path ending in
        .npy, .npz, .h5ad, .bed (of PLINK, with .bim and .fam), .csv, .tsv, .parquet, .feather, .arrow,
        .svm, .libsvm or .svmlight (text also with .gz); a `SqlQuery`, or a .toml file that holds one; or
        a `RowSource`.
    name : what error sentences call it; the path, or the kind of object, by default.
    columns : where columns have names, the ones to use, in this order; where they have none, their
        names.
    drop : named columns to leave out (labels, identifiers), before `columns` is looked at.
    extra : whether columns beyond `columns` are refused or dropped.
    n_features : the number of columns; checked, and for svmlight files it saves the pass that finds
        it.
    zero_based : whether svmlight indices count from 0 (they count from 1 by default, as LIBSVM's
        do).
    """
    source = _open(data, name, n_features, zero_based)
    if isinstance(source, ColumnsByPlace) and source.columns is None and columns:
        source, columns = source.named(tuple(columns)), None
    if drop:
        source = _without(source, drop)
    if columns is not None:
        source = source.select(tuple(columns), extra=extra)
    if n_features is not None and source.n_features != n_features:
        raise InputError(
            "{source} must have {n_features:{wanted}} columns, got {width}; correct {n_features} or "
            "the data",
            source=source.name,
            wanted=n_features,
            width=source.n_features,
        )
    return source


def open_query(
    data: Mapping[str, Any], *, name: str | None = None, folder: Path | None = None
) -> RowSource:
    """Return the source of the query that a mapping describes, as in the table ``[data]`` of a file.

    Parameters
    ----------
    data : the parameters of `SqlQuery` by name.
    name : what error sentences call it.
    folder : where relative paths in it begin; the working directory by default.
    """
    query = query_of(data, name=name or "the query", folder=folder)
    return open_source(query, name=name)


def _open_table(data: Any, name: str | None = None) -> TableReader | None:
    """Return the reader of a data frame, an Arrow table, a table file or a query; else None."""
    if isinstance(data, SqlQuery):
        return query_table(data, name or "the query")
    if isinstance(data, str | os.PathLike):
        path = existing(data)
        reader = _TABLE_FILES.get(_kind_of(path))
        return None if reader is None else reader(path, name or str(path))
    return table_reader(data, name)


def _source_of(reader: TableReader) -> TableSource:
    """Return the source of all rows and columns of a table."""
    return table_source(reader, QuerySource if isinstance(reader, QueryTable) else TableSource)


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists, or refuse it."""
    found = Path(path)
    if found.is_dir():
        raise InputError(f"{found} must be a file, got a folder; name one file per silo")
    if not found.is_file():
        raise InputError(f"{found} must be a file that exists, got none there; check the path")
    if not os.access(found, os.R_OK):
        raise InputError(f"{found} must be readable, got no permission; ask its owner for it")
    return found


def _kind_of(path: Path) -> str:
    """Return the known ending of a path, or refuse it."""
    known = [*_TABLE_FILES, *_ARRAY_FILES, *_SVMLIGHT_FILES]
    endings = [kind for kind in known if path.name.lower().endswith(kind)]
    if not endings:
        raise InputError(
            f"{path} must end in one of {', '.join(known)}, got '{path.suffix}'; "
            "rename or convert the file"
        )
    return max(endings, key=len)


def _open(data: Any, name: str | None, n_features: int | None, zero_based: bool) -> RowSource:
    """Return the source of everything the object holds."""
    if isinstance(data, np.ndarray):
        return array_source(data, name or "the array")
    if is_dask(data):  # before what follows: Dask's delayed objects have every attribute
        return dask_source(data, name)
    if isinstance(data, RowSource):
        renames = name is not None and is_dataclass(data)
        return replace(data, name=name) if renames else data  # type: ignore[type-var]
    reader = _open_table(data, name)
    if reader is not None:
        return _source_of(reader)
    if isinstance(data, str | os.PathLike):
        path = existing(data)
        if _kind_of(path) in _ARRAY_FILES:
            return _ARRAY_FILES[_kind_of(path)](path, name or str(path))
        return svmlight_source(
            path, name or str(path), n_features=n_features, zero_based=zero_based
        )
    if sparse.issparse(data):
        return sparse_source(data, name or "the sparse matrix")
    if is_anndata(data):
        return anndata_source(data, name or "the AnnData")
    if is_tensor(data):
        return tensor_source(data, name or "the tensor")
    raise InputError(
        f"{name or 'a source'} must be an array, a sparse matrix, a table, a path or a query, got "
        f"{type(data).__name__}; convert it, for instance with numpy.asarray"
    )


def _without(source: RowSource, drop: Sequence[str]) -> RowSource:
    """Return the source less the named columns."""
    unwanted = (drop,) if isinstance(drop, str) else tuple(drop)
    if source.columns is None:
        raise InputError(
            "{source} must have column names to drop {unwanted}, got none; name them with "
            "{with_columns}",
            source=source.name,
            unwanted=shown(unwanted),
        )
    unknown = [column for column in unwanted if column not in source.columns]
    if unknown:
        raise InputError(
            "{source} must have the columns to drop, got none named {unknown}; correct {drop}",
            source=source.name,
            unknown=shown(unknown),
        )
    kept = tuple(column for column in source.columns if column not in unwanted)
    if not kept:
        raise InputError(
            f"{source.name} must keep at least one column, got drop for all; drop fewer"
        )
    return source.select(kept, extra="drop")


_MAX_GROUPS = 10_000
"""More distinct values than this are taken for a measurement, not for the names of silos."""

_FEW_GROUPS = 5
"""Beyond so many, values that mostly occur once are taken for a measurement too."""

_KEY_ROWS = 2**16
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
    reader = _open_table(data)
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
            _source_of(reader),
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
    for batch in reader.batches((), _KEY_ROWS, labels=(column,)):
        cells = plain(batch.column(0))
        _refuse_missing(reader.name, column, cells, row)
        for entry in compute.value_counts(cells):
            value = entry["values"]
            label = str(value.as_py())
            groups[label] = (value, groups.get(label, (value, 0))[1] + entry["counts"].as_py())
        if len(groups) > _MAX_GROUPS:
            raise InputError(
                f"column '{column}' of {reader.name} must name silos, got more than {_MAX_GROUPS} "
                "distinct values; split by another column"
            )
        row += batch.num_rows
    if not groups:
        raise InputError(f"{reader.name} must have at least one row, got none; check the file")
    alone = sum(count == 1 for _, count in groups.values())
    if len(groups) > _FEW_GROUPS and 2 * alone > len(groups):
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
