"""`open_source`: one door for arrays, tables, files and queries; and silos inside one table."""

import csv
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypedDict, Unpack, cast

import numpy as np

from fedpower.exceptions import InputError
from fedpower.rows.arrays import (
    ArraySource,
    anndata_source,
    array_source,
    dask_source,
    h5ad_source,
    is_dask,
    npy_source,
    npz_source,
    sparse_source,
    svmlight_source,
)
from fedpower.rows.files import (
    FORMATS,
    Format,
    TextForm,
    base_of,
    files_at,
    folder_table,
    format_of,
    is_pattern,
    sheet_of,
)
from fedpower.rows.plink import pgen_source, plink_source
from fedpower.rows.source import Extra, RowSource, require_shape
from fedpower.rows.sql import SqlQuery, query_table
from fedpower.rows.tables import Table, TableSource, as_labels, frame_table, harmonised, is_a, table_source
from fedpower.sums.device import tensor_source
from fedpower.toml import Part, read_toml
from fedpower.values import is_sparse, no_column, shown

_ARRAYS: dict[str, Callable[[Path, str], RowSource]] = {
    ".npy": npy_source,
    ".npz": npz_source,
    ".h5ad": h5ad_source,
    ".bed": plink_source,
    ".pgen": pgen_source,
}
for _suffix, _open_array in _ARRAYS.items():
    FORMATS[_suffix] = Format(lambda path, name, make=_open_array, **_: make(path, name), is_part=False)
FORMATS[".toml"] = Format(lambda path, name, **_: _described(path, name), is_part=False)
for _suffix in (".svm", ".libsvm", ".svmlight"):
    for _gz in ("", ".gz"):
        FORMATS[_suffix + _gz] = Format(svmlight_source, is_part=False)


class Reading(TypedDict, total=False):
    """How a table is written, and what its columns are called and measured in elsewhere."""

    separator: str | None
    decimal: str | None
    encoding: str | None
    rename: Mapping[str, str] | None
    factors: Mapping[str, float] | None
    offsets: Mapping[str, float] | None
    words: Mapping[str, Mapping[str, str]] | None


_FORM, _HARMONY = ("separator", "decimal", "encoding"), ("rename", "factors", "offsets", "words")
_QUERY = ("query", "database", "user", "password_env", "password_file")


class DataPlace(Part, frozen=True):
    """Where rows are: a path, or a query to a database."""

    path: str | None = None
    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None
    query: str | None = None
    database: str | None = None
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None

    def place(self, where: str, folder: Path) -> Path | SqlQuery:
        """Return the path or the query, with paths relative to a folder; errors call this ``where``."""
        given = [key for key in ("path", *_FORM, *_QUERY) if getattr(self, key) is not None]
        form = "path" if {"query", "database"}.isdisjoint(given) else "query"
        for key in ("path",) if form == "path" else ("query", "database"):
            if key not in given:
                raise InputError(f"{where} must have {key!r}, got none")
        odd = [key for key in given if key in (_QUERY if form == "path" else ("path", *_FORM))]
        if odd:
            raise InputError(f"{where} must be a path or a query, got {odd[0]} with {form}")
        if form == "path":
            return folder / str(self.path)
        return SqlQuery(**{key: getattr(self, key) for key in _QUERY}).within(folder)


class Columns(Part, frozen=True):
    """What columns are called in the study, and how they come to be in its units and words."""

    rename: dict[str, str] | None = None
    factors: dict[str, float] | None = None
    offsets: dict[str, float] | None = None
    words: dict[str, dict[str, str]] | None = None


class _Description(Part, frozen=True):
    data: DataPlace
    columns: Columns = Columns()


def reading_of(data: DataPlace, columns: Columns | None = None) -> Reading:
    """Return how a table is read that files describe."""
    parts = ((data, _FORM), (columns, _HARMONY))
    return cast("Reading", {key: getattr(part, key) for part, keys in parts if part for key in keys})


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
    opened = _open(data, name, reading, n_features=n_features, zero_based=zero_based)
    source = table_source(opened) if isinstance(opened, Table) else opened
    if isinstance(source, ArraySource) and source.columns is None and columns:
        source, columns = source.named(tuple(columns)), None
    if drop:
        if source.columns is None:
            raise InputError(f"{source.name} must have column names to drop {shown(list(drop))}, got none")
        kept = _less(source.name, source.columns, drop)
        if not kept:
            raise InputError(f"{source.name} must keep at least one column, got drop for all")
        source = source.select(kept, extra="drop")
    if columns is not None:
        source = source.select(tuple(columns), extra=extra)
    if n_features is not None and source.n_features != n_features:
        raise InputError(f"{source.name} must have n_features={n_features} columns, got {source.n_features}")
    return source


def _less(name: str, columns: Sequence[str], drop: Sequence[str]) -> tuple[str, ...]:
    unwanted = (drop,) if isinstance(drop, str) else tuple(drop)
    unknown = [column for column in unwanted if column not in columns]
    if unknown:
        raise no_column(name, unknown, columns, " to drop")
    return tuple(column for column in columns if column not in unwanted)


_KINDS: tuple[tuple[Callable[[Any], bool], str, Callable[[Any, str], Any]], ...] = (
    (lambda data: isinstance(data, np.ndarray), "the array", array_source),
    # Before what looks at attributes: a query's columns may fail.
    (lambda data: is_a(data, "polars", "LazyFrame"), "the query", frame_table),
    (is_dask, "", dask_source),  # before what follows: Dask's delayed objects have every attribute
    (lambda data: isinstance(data, RowSource), "",
     lambda data, name: replace(data, name=name) if name and hasattr(data, "__dataclass_fields__") else data),
    (lambda data: isinstance(data, SqlQuery), "the query", query_table),
    (is_sparse, "the sparse matrix", sparse_source),
    (lambda data: is_a(data, "anndata", "AnnData"), "the AnnData", anndata_source),
    (lambda data: is_a(data, "torch", "Tensor"), "the tensor", tensor_source),
)  # fmt: skip
"""What rows in memory may be: how they are known, what sentences call them, and what opens them."""


def _open(data: Any, name: str | None, reading: Reading, **svmlight: Any) -> Table | RowSource:
    form = TextForm(**{key: reading.get(key) for key in _FORM})  # type: ignore[arg-type]
    harmony = [reading.get(key) or {} for key in _HARMONY]
    is_path = isinstance(data, str | os.PathLike)
    called = name or (data if is_path else type(data).__name__)
    if form != TextForm() and not (is_path and is_text(data)):
        raise InputError(f"separator, decimal and encoding must be used with text files, got {called}")
    if is_path:
        opened: Table | RowSource | None = _at(Path(data), name, form, svmlight)
    else:
        kind = next((kind for kind in _KINDS if kind[0](data)), None)
        opened = frame_table(data, name) if kind is None else kind[2](data, name or kind[1])
    if opened is None:
        raise InputError(
            f"{name or 'the data'} must be an array, a sparse matrix, a table, a path or a query, got "
            f"{type(data).__name__}"
        )
    if not any(harmony):
        return opened
    if not isinstance(opened, Table):
        raise InputError(f"rename, factors, offsets and words must be used with tables, got {called}")
    return harmonised(opened, *harmony)  # type: ignore[arg-type]


def _at(path: Path, name: str | None, form: TextForm, svmlight: Mapping[str, Any]) -> Table | RowSource:
    file, sheet = sheet_of(path)
    name = name or str(path)
    if path.is_dir() or is_pattern(path):
        return folder_table(path, name, form)
    _, kind = format_of(existing(file))
    if kind is None:
        raise InputError(f"{path} must end in one of {', '.join(FORMATS)}, got '{path.suffix}'")
    opened: Table | RowSource = kind.open(file, name, form=form, sheet=sheet, **svmlight)
    return opened


def _described(path: Path, name: str) -> Table:
    """Return the table that a TOML file describes: a query or a path, and the names and units of columns."""
    file = read_toml(path, _Description, "the description of data")
    if str(file.data.path).endswith(".toml"):
        raise InputError(f"path in [data] of {name} must be a file of rows, got another description")
    place = file.data.place(f"[data] of {name}", path.parent)
    opened = _open(place, name, reading_of(file.data, file.columns))
    if not isinstance(opened, Table):
        raise InputError(f"path in [data] of {name} must be a table, got a file of arrays")
    return opened


# --- paths ------------------------------------------------------------------------------------------------


def is_text(path: str | os.PathLike[str]) -> bool:
    """Return whether there is text at a path: a CSV or TSV file, or a folder or pattern of them."""
    formats = (format_of(file)[1] for file in files_at(Path(path)))
    return any(kind is not None and kind.is_text for kind in formats)


def existing(path: str | os.PathLike[str]) -> Path:
    """Return the path of a file that exists, or refuse it."""
    file = Path(path)
    if not file.is_file():
        raise InputError(f"no such file: {file}")
    if not os.access(file, os.R_OK):
        raise InputError(f"{file} must be readable, got no permission")
    return file


_HEADINGS = ("node", "nodes", "name", "names", "id", "column", "feature")


def read_pairs(path: Path) -> dict[str, str]:
    """Return the lines of name,value of a public CSV file; its first line may be a heading."""
    pairs: dict[str, str] = {}
    with existing(path).open(newline="", encoding="utf-8-sig") as stream:
        for place, row in enumerate(csv.reader(stream), start=1):
            if row and (len(row) != 2 or row[0].strip() in pairs):
                raise InputError(
                    f"{path} must have lines of name,value, each name once, got another in line {place}"
                )
            if row and (place > 1 or row[0].strip().lower() not in _HEADINGS):
                pairs[row[0].strip()] = row[1].strip()
    return pairs


def name_of_silo(path: str | os.PathLike[str]) -> str:
    """Return what a silo is called by its path: a file or folder up to the first dot, or a sheet."""
    _, sheet = sheet_of(Path(path))
    place = Path(os.path.normpath(base_of(Path(path)).absolute()))  # a link has a name of its own
    return sheet or place.name.split(".")[0]


def rows_at(path: str | os.PathLike[str]) -> frozenset[tuple[object, ...]]:
    """Return what two paths to the same rows have in common: files, by whatever path, and sheets."""
    file, sheet = sheet_of(Path(path))
    stats = [part.stat() for part in files_at(file) if part.exists()]  # what is not there is refused later
    return frozenset((stat.st_dev, stat.st_ino, sheet) for stat in stats)


# --- silos in one table -----------------------------------------------------------------------------------

_MAX_GROUPS = 10_000
"""More distinct values than this are taken for a measurement, not for the names of silos."""

_FEW_GROUPS = 5
"""Beyond so many, values that mostly occur once are taken for a measurement too."""

_KEY_ROWS = 2**16


def split_by_group(
    data: Any,
    column: str,
    *,
    drop: Sequence[str] = (),
    columns: Sequence[str] | None = None,
    **reading: Unpack[Reading],
) -> dict[str, RowSource]:
    """Return one source per distinct value of a column, keyed and sorted by the value as a string."""
    table = _open(data, None, reading)
    if not isinstance(table, Table):
        raise InputError(f"a table must be given to split by '{column}', got {type(data).__name__}")
    if column not in table.columns:
        raise no_column(table.name, [column], table.columns, " to split by")
    features = tuple(name for name in _less(table.name, table.columns, drop) if name != column)
    sources: dict[str, RowSource] = {}
    for label, count in sorted(_count(table, column).items()):
        name, group = f"silo '{label}' of {table.name}", (column, label)
        source = TableSource(name=name, table=table, columns=features, n_rows=count, group=group)
        sources[label] = source if columns is None else source.select(tuple(columns), extra="drop")
    return sources


def _count(table: Table, column: str) -> dict[str, int]:
    groups: Counter[str] = Counter()
    for _, row, batch in table.batches([column], _KEY_ROWS):
        labels = as_labels(batch[column])
        missing = (labels.is_null() | (labels == "")).fill_null(value=True)
        if missing.any():
            got = f"a missing value at row {row + int(missing.arg_max() or 0) + 1}"
            raise InputError(f"column '{column}' of {table.name} must name a silo in every row, got {got}")
        groups.update(dict(labels.value_counts(name="n").iter_rows()))
        if len(groups) > _MAX_GROUPS:
            break
    require_shape(table.name, groups.total(), len(table.columns))
    single = sum(count == 1 for count in groups.values())
    if len(groups) > _MAX_GROUPS or (len(groups) > _FEW_GROUPS and 2 * single > len(groups)):
        most = ", most of them once" if len(groups) <= _MAX_GROUPS else ""
        raise InputError(
            f"column '{column}' of {table.name} must name silos, got {len(groups)} values for "
            f"{groups.total()} rows{most}"
        )
    return groups
