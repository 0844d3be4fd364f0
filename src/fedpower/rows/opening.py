"""`open_source`: one door for arrays, tables, files and queries; and silos inside one table."""

import os
import tomllib
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.array_files import (
    anndata_source,
    h5ad_source,
    is_anndata,
    npy_source,
    npz_source,
    svmlight_source,
)
from fedpower.rows.arrays import ColumnsByPlace, PositionalSource, array_source, sparse_source
from fedpower.rows.columns import shown
from fedpower.rows.dask_source import dask_source, is_dask
from fedpower.rows.files import (
    SHEETS,
    TextForm,
    base_of,
    csv_part,
    folder_table,
    ipc_part,
    is_pattern,
    ndjson_part,
    parquet_part,
    parts_of,
    sheet_of,
    sheet_table,
)
from fedpower.rows.plink import PlinkSource, pgen_source, plink_source
from fedpower.rows.source import Extra, RowSource
from fedpower.rows.sql import QuerySource, SqlQuery, query_of, query_table
from fedpower.rows.tables import Group, Part, Table, TableSource, as_labels, frame_table, table_source
from fedpower.rules.harmonise import Harmony, harmonised
from fedpower.sums.device import is_tensor, tensor_source

_tsv_part = partial(csv_part, usual="\t")
_TEXT_FILES: dict[str, Callable[[Path, str, TextForm], Part]] = {
    ".csv": csv_part,
    ".csv.gz": csv_part,
    ".tsv": _tsv_part,
    ".tsv.gz": _tsv_part,
}
_TABLE_FILES: dict[str, Callable[[Path, str], Part]] = {
    ".parquet": parquet_part,
    ".feather": ipc_part,
    ".arrow": ipc_part,
    ".ndjson": ndjson_part,
    ".jsonl": ndjson_part,
}
_OTHER_TABLES = (SHEETS, ".toml")
"""Endings of a workbook, which has several tables, and of a file that says where one is."""

_ARRAY_FILES: dict[str, Callable[[Path, str], PositionalSource | PlinkSource]] = {
    ".npy": npy_source,
    ".npz": npz_source,
    ".h5ad": h5ad_source,
    ".bed": plink_source,
    ".pgen": pgen_source,
}
_SVMLIGHT_FILES = tuple(f".{kind}{gz}" for kind in ("svm", "libsvm", "svmlight") for gz in ("", ".gz"))


class Reading(TypedDict, total=False):
    """How a table is written, and what its columns are called and measured in elsewhere."""

    separator: str | None
    decimal: str | None
    encoding: str | None
    rename: Mapping[str, str] | None
    factors: Mapping[str, float] | None
    offsets: Mapping[str, float] | None


_FORM, _HARMONY = ("separator", "decimal", "encoding"), ("rename", "factors", "offsets")


def open_source(
    data: Any,
    *,
    name: str | None = None,
    columns: Sequence[str] | None = None,
    drop: Sequence[str] = (),
    extra: Extra = "refuse",
    n_features: int | None = None,
    zero_based: bool = False,
    **reading: Unpack[Reading],
) -> RowSource:
    """Return a source of rows over an array, a table, a file, a query or another source."""
    source = _open(data, name, n_features, zero_based, reading)
    if isinstance(source, ColumnsByPlace) and source.columns is None and columns:
        source, columns = source.named(tuple(columns)), None
    if drop:
        source = _without(source, drop)
    if columns is not None:
        source = source.select(tuple(columns), extra=extra)
    if n_features is not None and source.n_features != n_features:
        raise InputError(
            f"{source.name} must have n_features={n_features} columns, got "
            f"{source.n_features}; correct n_features or the data"
        )
    return source


def open_query(
    data: Mapping[str, Any],
    *,
    name: str | None = None,
    folder: Path | None = None,
    **reading: Unpack[Reading],
) -> RowSource:
    """Return the source of the query that a mapping describes, as in the table ``[data]`` of a file."""
    query = query_of(data, name=name or "the query", folder=folder)
    return open_source(query, name=name, **reading)


def _open_table(data: Any, name: str | None, reading: Reading) -> Table | None:
    """Return the table of a data frame, a file, a folder or a query; else None."""
    form = TextForm(**{key: reading.get(key) for key in _FORM})  # type: ignore[arg-type]
    harmony = Harmony(**{key: reading.get(key) or {} for key in _HARMONY})  # type: ignore[arg-type]
    if isinstance(data, str | os.PathLike) and is_text(data):
        table = _path_table(Path(data), name, form)
    elif form.is_given:
        raise InputError(
            "separator, decimal and encoding must go with text files, got "
            f"{name or (data if isinstance(data, str | os.PathLike) else type(data).__name__)}; "
            "leave them out"
        )
    elif isinstance(data, SqlQuery):
        table = query_table(data, name or "the query")
    elif isinstance(data, str | os.PathLike):
        table = _path_table(Path(data), name, form)
    else:
        table = frame_table(data, name)
    if table is None and harmony.is_given:
        raise InputError(
            f"{name or (data if isinstance(data, str | os.PathLike) else type(data).__name__)} "
            "must be a table with names of columns to rename or convert them, got "
            "another kind of data; leave out rename, factors and offsets"
        )
    return None if table is None else harmonised(table, harmony)


def _path_table(path: Path, name: str | None, form: TextForm) -> Table | None:
    """Return the table at a path; None where there are arrays, or nothing."""
    file, sheet = sheet_of(path)
    name = name or str(path)
    if path.is_dir() or is_pattern(path):
        return folder_table(path, name, kind_of=_table_kind, read=partial(_file_part, form=form))
    kind = _kind_of(existing(file))
    if kind == SHEETS:
        return sheet_table(file, name, sheet)
    if kind == ".toml":
        return _described(file, name)
    return Table(name=name, parts=(_file_part(file, name, form=form),)) if _table_kind(file) else None


def _table_kind(path: Path) -> str | None:
    """Return the ending of a file that is one table; None for others."""
    known = (*_TEXT_FILES, *_TABLE_FILES)
    endings = [kind for kind in known if path.name.lower().endswith(kind)]
    return max(endings, key=len) if endings else None


def _file_part(path: Path, name: str, *, form: TextForm) -> Part:
    """Return a file that is one table."""
    kind = _kind_of(existing(path))
    return _TEXT_FILES[kind](path, name, form) if kind in _TEXT_FILES else _TABLE_FILES[kind](path, name)


def is_text(path: str | os.PathLike[str]) -> bool:
    """Return whether there is text at a path: a CSV or TSV file, or a folder or pattern of them."""
    found = Path(path)
    files = parts_of(found) if found.is_dir() or is_pattern(found) else [found]
    return any(_table_kind(each) in _TEXT_FILES for each in files)


def _described(path: Path, name: str) -> Table:
    """Return what a TOML file describes: where rows are, and what columns are called."""
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError):
        raise InputError(
            f"{name} must be a TOML file in UTF-8, got one that cannot be parsed; correct it"
        ) from None
    data, columns = found.get("data"), found.get("columns", {})
    if not isinstance(data, dict):
        raise InputError(
            f"{name} must have a table [data] with query and database, or path, got none; add it"
        )
    if not isinstance(columns, dict) or not columns.keys() <= set(_HARMONY):
        raise InputError(
            f"[columns] of {name} must have only the keys {', '.join(_HARMONY)}, got another; remove it"
        )
    if "path" not in data:
        query = query_of(data, name=f"[data] of {name}", folder=path.parent)
        table = _open_table(query, name, cast("Reading", columns))
    else:
        unknown = [key for key in data if key not in ("path", *_FORM)]
        if unknown or not isinstance(data["path"], str):
            raise InputError(
                f"[data] of {name} must have only path and {', '.join(_FORM)}, each of them text, got "
                f"{shown(unknown) if unknown else 'another path'}; correct it"
            )
        form = {key: data[key] for key in _FORM if key in data}
        place = path.parent / data["path"]
        if place.suffix == ".toml":
            raise InputError(
                f"path in [data] of {name} must be that of the rows, got another .toml file; name them"
            )
        table = _open_table(place, name, cast("Reading", {**form, **columns}))
    if table is None:
        raise InputError(
            f"path in [data] of {name} must be that of a table, got a file of arrays; give it by itself"
        )
    return table


def _source_of(table: Table) -> TableSource:
    """Return the source of all rows and columns of a table."""
    return table_source(table, TableSource if table.query is None else QuerySource)


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists, or refuse it."""
    found = Path(path)
    if not found.is_file():
        raise InputError(f"{found} must be a file that exists, got none there; check the path")
    if not os.access(found, os.R_OK):
        raise InputError(f"{found} must be readable, got no permission; ask its owner for it")
    return found


def name_of_silo(path: str | os.PathLike[str]) -> str:
    """Return what a silo is called by its path: a file or folder up to the first dot, or a sheet."""
    found = Path(path)
    _, sheet = sheet_of(found)
    if sheet:
        return sheet
    place = Path(os.path.normpath(base_of(found).absolute()))  # a link has a name of its own
    return place.name.split(".")[0]


def rows_at(path: str | os.PathLike[str]) -> frozenset[tuple[object, ...]]:
    """Return what two paths to the same rows have in common: files, by whatever path, and sheets."""
    file, sheet = sheet_of(Path(path))
    files = parts_of(file) if file.is_dir() or is_pattern(file) else [file]
    stats = [each.stat() for each in files if each.exists()]  # what is not there is refused later
    return frozenset((each.st_dev, each.st_ino, sheet) for each in stats)


def _kind_of(path: Path) -> str:
    """Return the known ending of a path, or refuse it."""
    known = [*_TEXT_FILES, *_TABLE_FILES, *_OTHER_TABLES, *_ARRAY_FILES, *_SVMLIGHT_FILES]
    endings = [kind for kind in known if path.name.lower().endswith(kind)]
    if not endings:
        raise InputError(
            f"{path} must end in one of {', '.join(known)}, got '{path.suffix}'; rename or convert the file"
        )
    return max(endings, key=len)


def _open(
    data: Any, name: str | None, n_features: int | None, zero_based: bool, reading: Reading
) -> RowSource:
    """Return the source of everything the object holds."""
    if not any(reading.values()):
        if isinstance(data, np.ndarray):
            return array_source(data, name or "the array")
        if is_dask(data):  # before what follows: Dask's delayed objects have every attribute
            return dask_source(data, name)
        if callable(getattr(data, "blocks", None)) and isinstance(data, RowSource):
            renames = name is not None and is_dataclass(data)
            return replace(data, name=name) if renames else data  # type: ignore[type-var]
    table = _open_table(data, name, reading)
    if table is not None:
        return _source_of(table)
    if isinstance(data, str | os.PathLike):
        path = existing(data)
        if _kind_of(path) in _ARRAY_FILES:
            return _ARRAY_FILES[_kind_of(path)](path, name or str(path))
        return svmlight_source(path, name or str(path), n_features=n_features, zero_based=zero_based)
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
            f"{source.name} must have column names to drop {shown(unwanted)}, got none; "
            "name them with open_source(data, columns=[...])"
        )
    unknown = [column for column in unwanted if column not in source.columns]
    if unknown:
        raise InputError(
            f"{source.name} must have the columns to drop, got none named {shown(unknown)}; correct drop"
        )
    kept = tuple(column for column in source.columns if column not in unwanted)
    if not kept:
        raise InputError(f"{source.name} must keep at least one column, got drop for all; drop fewer")
    return source.select(kept, extra="drop")


_MAX_GROUPS = 10_000
"""More distinct values than this are taken for a measurement, not for the names of silos."""

_FEW_GROUPS = 5
"""Beyond so many, values that mostly occur once are taken for a measurement too."""

_KEY_ROWS = 2**16
"""Rows of the key column looked at together."""


def split_by_group(
    data: Any,
    column: str,
    *,
    drop: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    **reading: Unpack[Reading],
) -> dict[str, RowSource]:
    """Return one source per distinct value of a column, keyed and sorted by the value as a string."""
    table = _open_table(data, None, reading)
    if table is None:
        raise InputError(
            f"a table with column names must be given to split by '{column}', got "
            f"{type(data).__name__} without them; give a data frame, CSV, Parquet or Feather file"
        )
    if column not in table.columns:
        raise InputError(
            f"{table.name} must have the column '{column}' to split by, got "
            f"{shown(table.columns)}; "
            "name one of its columns"
        )
    unwanted = {column, *((drop,) if isinstance(drop, str) else drop)}
    features = tuple(name for name in table.columns if name not in unwanted)
    unknown = [name for name in unwanted if name not in table.columns]
    if unknown:
        raise InputError(
            f"{table.name} must have the columns to drop, got none named {shown(unknown)}; correct drop"
        )
    sources = {}
    for label, count in sorted(_count(table, column).items()):
        source = replace(
            _source_of(table),
            name=f"silo '{label}' of {table.name}",
            columns=features,
            n_rows=count,
            group=Group(column=column, value=label),
        )
        sources[label] = open_source(source, columns=columns, extra="drop")
    return sources


def _count(table: Table, column: str) -> dict[str, int]:
    """Return how many rows each distinct value has, by its text."""
    groups: Counter[str] = Counter()
    seen = 0
    for part, row, batch in table.batches((), _KEY_ROWS, words=(column,)):
        labels = as_labels(batch[part.cells[column].own])
        missing = (labels.is_null() | (labels == "")).fill_null(value=True)
        if missing.any():
            first = row + int(missing.arg_max() or 0) + 1
            raise InputError(
                f"column '{column}' of {table.called(part, table.name)} must name a silo in every row, got a "
                f"missing value at row {first}; fill it in or leave that row out"
            )
        counts = labels.value_counts(name="n")
        groups.update(dict(zip(counts.to_series(0).to_list(), counts["n"].to_list(), strict=True)))
        if len(groups) > _MAX_GROUPS:
            raise InputError(
                f"column '{column}' of {table.name} must name silos, got more than {_MAX_GROUPS} "
                "distinct values; split by another column"
            )
        seen += len(batch)
    if not groups:
        raise InputError(f"{table.name} must have at least one row, got none; check the file")
    alone = sum(count == 1 for count in groups.values())
    if len(groups) > _FEW_GROUPS and 2 * alone > len(groups):
        raise InputError(
            f"column '{column}' of {table.name} must name silos, got {len(groups)} values for {seen} "
            "rows, most of them once; split by a column that says whose each row is"
        )
    return groups
