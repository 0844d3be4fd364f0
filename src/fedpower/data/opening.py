"""`open_source`: one door for arrays, tables, files and queries."""

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from scipy import sparse

from fedpower.data.arrays import PositionalSource, array_source, npy_source, sparse_source
from fedpower.data.columns import shown
from fedpower.data.dask_source import DaskSource, dask_source, is_dask
from fedpower.data.device import is_tensor, tensor_source
from fedpower.data.files import csv_reader, ipc_reader, parquet_reader
from fedpower.data.h5ad import anndata_source, h5ad_source, is_anndata
from fedpower.data.source import Extra, RowSource
from fedpower.data.sparse import npz_source, svmlight_source
from fedpower.data.sql import QuerySource, QueryTable, SqlQuery, query_file, query_of, query_table
from fedpower.data.tables import TableReader, TableSource, arrow_reader, frame_reader, is_pandas
from fedpower.errors import InputError

Readers: TypeAlias = dict[str, Callable[[Path, str], TableReader]]

TABLE_FILES: Readers = {
    ".csv": csv_reader,
    ".csv.gz": csv_reader,
    ".tsv": lambda path, name: csv_reader(path, name, delimiter="\t"),
    ".tsv.gz": lambda path, name: csv_reader(path, name, delimiter="\t"),
    ".parquet": parquet_reader,
    ".feather": ipc_reader,
    ".arrow": ipc_reader,
    ".toml": query_file,
}
ARRAY_FILES: dict[str, Callable[[Path, str], PositionalSource]] = {
    ".npy": npy_source,
    ".npz": npz_source,
    ".h5ad": h5ad_source,
}
SVMLIGHT_FILES = tuple(
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
        .npy, .npz, .h5ad, .csv, .tsv, .parquet, .feather, .arrow, .svm, .libsvm or .svmlight (text also
        with .gz); a `SqlQuery`, or a .toml file that holds one; or a `RowSource`.
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
    if isinstance(source, PositionalSource | DaskSource) and source.columns is None and columns:
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


def open_table(data: Any, name: str | None = None) -> TableReader | None:
    """Return the reader of a data frame, an Arrow table, a table file or a query; else None."""
    if isinstance(data, SqlQuery):
        return query_table(data, name or "the query")
    if isinstance(data, str | os.PathLike):
        path = existing(data)
        reader = TABLE_FILES.get(kind_of(path))
        return None if reader is None else reader(path, name or str(path))
    if is_pandas(data):
        return frame_reader(data, name or "the data frame")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return arrow_reader(data, name or "the table")
    return None


def source_of(reader: TableReader) -> TableSource:
    """Return the source of all rows and columns of a table."""
    kind = QuerySource if isinstance(reader, QueryTable) else TableSource
    return kind(name=reader.name, reader=reader, columns=reader.columns, n_rows=reader.n_rows)


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


def kind_of(path: Path) -> str:
    """Return the known ending of a path, or refuse it."""
    known = [*TABLE_FILES, *ARRAY_FILES, *SVMLIGHT_FILES]
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
    reader = open_table(data, name)
    if reader is not None:
        return source_of(reader)
    if isinstance(data, str | os.PathLike):
        path = existing(data)
        if kind_of(path) in ARRAY_FILES:
            return ARRAY_FILES[kind_of(path)](path, name or str(path))
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
