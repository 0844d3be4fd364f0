"""Rows of a table with named columns: read as Arrow record batches, turned into float64 blocks."""

import ctypes
import functools
import sys
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from importlib import import_module
from numbers import Real
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.columns import (
    not_a_number,
    pick_columns,
    require_block_size,
    require_distinct,
    require_exact,
    require_finite,
    require_shape,
    shown,
)
from fedpower.rows.source import Block, Extra, Matrix


@functools.cache
def arrow(module: str = "") -> Any:
    """Return pyarrow or one of its modules, imported on first use."""
    return import_module(f"pyarrow.{module}" if module else "pyarrow")


class TableReader(Protocol):
    """What a kind of table must offer: its names, and the wanted columns batch by batch."""

    @property
    def name(self) -> str:
        """What error sentences call it."""
        ...

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of all columns."""
        ...

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where known."""
        ...

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield record batches of exactly these columns, in this order, of at most `max_rows` rows."""
        ...


class NotPlainError(Exception):
    """A text goes on in a way that only its `batches` can tell."""


@runtime_checkable
class PlainReader(Protocol):
    """A table that may have its rows in a form that is read faster than as record batches."""

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield blocks of finite rows; `NotPlainError` where the rest must be read as batches."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rows whose column `column` equals the Arrow scalar `value`."""

    column: str
    value: Any


@dataclass(frozen=True, kw_only=True, eq=False)
class TableSource:
    """The rows of a table, or of one group in it, as float64 blocks."""

    name: str
    reader: TableReader
    columns: tuple[str, ...]
    n_rows: int | None
    group: Group | None = None
    gaps: bool = False

    def __post_init__(self) -> None:
        require_distinct(self.name, self.columns)
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        """Number of feature columns."""
        return len(self.columns)

    @property
    def in_memory(self) -> bool:
        """Whether its rows are in this process."""
        return isinstance(self.reader, _ArrowTable | _PandasFrame)

    @property
    def sparse(self) -> bool:
        """Always false."""
        return False

    @property
    def density(self) -> float | None:
        """Always 1."""
        return 1.0

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows, checked to be finite; row numbers in sentences are the table's."""
        require_block_size(max_rows)
        row = seen = 0
        if self.group is None and isinstance(self.reader, PlainReader):
            try:
                for block in self.reader.plain_rows(self.columns, max_rows):
                    seen += len(block)
                    yield block
                    del block  # or two blocks are held while the next one is read
            except NotPlainError:
                pass
            else:
                require_shape(self.name, seen, self.n_features)
                return
        past = seen
        labels = (self.group.column,) if self.group else ()
        for batch in self.reader.batches(self.columns, max_rows, labels=labels):
            rows: int | NDArray[np.int64] = row
            row += batch.num_rows
            if row <= past:
                continue
            if rows < past:
                batch, rows = batch.slice(past - rows), past  # noqa: PLW2901
            if self.group is not None:
                places = np.flatnonzero(same_as(batch.column(len(self.columns)), self.group.value))
                if places.size == 0:
                    continue
                rows = row - batch.num_rows + places
                batch = batch.take(arrow().array(places))  # noqa: PLW2901
            seen += batch.num_rows
            block = self._block(batch, rows)
            del batch  # or two batches are held while the next one is read
            yield block
        require_shape(self.name, seen, self.n_features)

    def labelled(self, column: str, max_rows: int) -> Iterator[tuple[Any, Block]]:
        """Return the cells of a column that is no feature, as an Arrow array, beside each block of rows."""
        require_block_size(max_rows)
        if column not in self.reader.columns:
            raise InputError(
                f"{self.name} must have the column '{column}' to label its rows, got "
                f"{shown(self.reader.columns)}; name one of its columns"
            )
        return self._labelled(column, max_rows)

    def _labelled(self, column: str, max_rows: int) -> Iterator[tuple[Any, Block]]:
        for batch, rows in self._picked(self.columns, column, max_rows):
            yield plain(batch.column(len(self.columns))), self._block(batch, rows)

    def labels(self, column: str, max_rows: int) -> Iterator[tuple[Any, int | NDArray[np.int64]]]:
        """Yield the cells of such a column alone, and the number of their first row or of each."""
        for batch, rows in self._picked((), column, max_rows):
            yield plain(batch.column(0)), rows

    def _picked(
        self, columns: tuple[str, ...], label: str, max_rows: int
    ) -> Iterator[tuple[Any, int | NDArray[np.int64]]]:
        """Yield batches of the rows that are meant, a label column appended, and their numbers."""
        row = seen = 0
        names = tuple(dict.fromkeys((label, *((self.group.column,) if self.group else ()))))
        for batch in self.reader.batches(columns, max_rows, labels=names):
            rows: int | NDArray[np.int64] = row
            row += batch.num_rows
            if self.group is not None:
                place = len(columns) + names.index(self.group.column)
                chosen = np.flatnonzero(same_as(batch.column(place), self.group.value))
                if chosen.size == 0:
                    continue
                rows = row - batch.num_rows + chosen
                batch = batch.take(arrow().array(chosen))  # noqa: PLW2901
            seen += batch.num_rows
            yield batch, rows
            del batch  # or two batches are held while the next one is read
        require_shape(self.name, seen, self.n_features)

    def _block(self, batch: Any, rows: int | NDArray[np.int64]) -> Matrix:
        """Return the feature columns of a batch as a matrix of finite numbers."""
        numbers = []
        double = arrow().lib.Type_DOUBLE
        for place, column in enumerate(self.columns):
            cells = batch.column(place)
            if cells.type.id != double:  # asked for itself, for it is every column of most tables
                cells = plain(cells)
                if not is_numeric(cells.type):
                    first = rows if isinstance(rows, int) else int(rows[0])
                    raise not_a_number(self.name, column, f"type {cells.type}", first)
                if _is_wide_integer(cells.type):
                    whole = floats(cells)[:, np.newaxis]
                    require_exact(whole, name=self.name, columns=(column,), rows=rows)
            numbers.append(cells)
        block, finite = _side_by_side(numbers, batch.num_rows)
        if not finite:
            require_finite(block, name=self.name, columns=self.columns, rows=rows, gaps=self.gaps)
        return block

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> "TableSource":
        """Return the source with exactly these columns in this order; the others are not read."""
        pick_columns(self.name, self.columns, columns, extra=extra)
        return replace(self, columns=columns)


@functools.cache
def _is_wide_integer(kind: Any) -> bool:
    """Return whether an Arrow type is of integers of which float64 does not hold all."""
    types = arrow().types
    return bool(types.is_int64(kind) or types.is_uint64(kind))


@functools.cache
def is_numeric(kind: Any) -> bool:
    """Return whether an Arrow type holds numbers; booleans do, and so does a column of nulls."""
    types = arrow().types
    return bool(
        types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_decimal(kind)
        or types.is_boolean(kind)
        or types.is_null(kind)
    )


def floats(cells: Any) -> NDArray[np.float64]:
    """Return an Arrow array of numbers as float64, nulls as NaN."""
    number = arrow().float64()
    values = cells if cells.type == number else cells.cast(number, safe=False)
    return np.asarray(values.to_numpy(zero_copy_only=False), dtype=np.float64)


def _side_by_side(columns: Sequence[Any], n_rows: int) -> tuple[Matrix, bool]:
    """Return Arrow arrays of numbers as a matrix, and whether it is known that all are finite."""
    loops = native.loops()
    if loops is None:
        block = np.empty((n_rows, len(columns)), order="F")
        for place, cells in enumerate(columns):
            block[:, place] = floats(cells)
        return block, False
    block = np.empty((n_rows, len(columns)))
    places = np.empty(len(columns), dtype=np.uintp)
    held = []
    for place, cells in enumerate(columns):
        if cells.type.id == arrow().lib.Type_DOUBLE and cells.null_count == 0:
            places[place] = cells.buffers()[1].address + cells.offset * block.itemsize
        else:
            held.append(np.ascontiguousarray(floats(cells)))
            places[place] = held[-1].ctypes.data
    finite = loops.fedpower_side_by_side(
        ctypes.c_void_p(places.ctypes.data),
        *(ctypes.c_int64(size) for size in block.shape),
        ctypes.c_void_p(block.ctypes.data),
    )
    return block, bool(finite)


def same_as(cells: Any, value: Any) -> NDArray[np.bool_]:
    """Return which cells equal a scalar of their type; none that is null does."""
    compute = arrow("compute")
    mask = compute.fill_null(compute.equal(plain(cells), value), False)
    return np.asarray(mask.to_numpy(zero_copy_only=False), dtype=np.bool_)


def plain(cells: Any) -> Any:
    """Return the cells with dictionary encoding undone."""
    types = arrow().types
    if not types.is_dictionary(cells.type):
        return cells
    if types.is_string_view(cells.type.value_type):  # which Arrow cannot decode
        words = cells.dictionary.cast(arrow().large_string())
        cells = arrow().DictionaryArray.from_arrays(cells.indices, words)
    return cells.dictionary_decode()


def as_texts(values: Iterable[Any]) -> Any:
    """Return Python objects as an Arrow array of texts; what is missing as null."""
    texts = [None if _is_missing(value) else _as_text(value) for value in values]
    return arrow().array(texts, arrow().string())


def _as_text(value: Any) -> str:
    return value.decode(errors="backslashreplace") if isinstance(value, bytes) else str(value)


def _is_missing(value: Any) -> bool:
    """Return whether a cell is None, NaN, NaT or NA, of which the last will not be compared."""
    try:
        return value is None or bool(value != value)  # noqa: PLR0124
    except (TypeError, ValueError):
        return True


def sliced(batch: Any, max_rows: int) -> Iterator[Any]:
    """Yield a batch in nonempty slices of at most `max_rows` rows."""
    for start in range(0, batch.num_rows, max_rows):
        yield batch.slice(start, max_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class _ArrowTable:
    """An Arrow table as a reader of batches."""

    name: str
    columns: tuple[str, ...]
    table: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield slices of the wanted columns, without copying."""
        for batch in self.table.select([*columns, *labels]).to_batches():
            yield from sliced(batch, max_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class _PandasFrame:
    """A pandas data frame as a reader of batches; its index is not a column."""

    name: str
    columns: tuple[str, ...]
    frame: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.frame)

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield slices of the wanted columns, converted one slice at a time."""
        names = [*columns, *labels]
        places = [self.columns.index(column) for column in names]
        series = [self.frame.iloc[:, place] for place in places]
        for start in range(0, self.n_rows, max_rows):
            cells = [
                self._cells(values.iloc[start : start + max_rows], column, start, place >= len(columns))
                for place, (column, values) in enumerate(zip(names, series, strict=True))
            ]
            yield arrow().RecordBatch.from_arrays(cells, names=names)

    def _cells(self, values: Any, column: str, first_row: int, is_label: bool) -> Any:
        """Return a slice of one column as an Arrow array."""
        pa = arrow()
        if values.dtype == object and is_label:
            return as_texts(values)
        if values.dtype == object:
            for offset, value in enumerate(values):
                if not (value is None or isinstance(value, Real | Decimal) or value != value):  # noqa: PLR0124
                    kind = type(value).__name__
                    raise not_a_number(self.name, column, f"type {kind}", first_row + offset)
            return pa.array([None if value is None else float(value) for value in values])
        try:
            cells = pa.array(values, from_pandas=True)
            # Text that pandas holds in Arrow's own form may lie in several pieces.
            return cells.combine_chunks() if isinstance(cells, pa.ChunkedArray) else cells
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
            if is_label:
                return as_texts(values)
            raise not_a_number(self.name, column, f"dtype {values.dtype}", first_row) from None


def table_reader(data: Any, name: str | None = None) -> TableReader | None:
    """Return the reader of a data frame or of what exports itself as an Arrow table; else None."""
    if _is_pandas(data):
        return _frame_reader(data, name or "the data frame")
    if hasattr(data, "__arrow_c_stream__") or hasattr(data, "__arrow_c_array__"):
        return _arrow_reader(data, name or "the table")
    return None


def table_source(reader: TableReader, kind: type[TableSource] = TableSource) -> TableSource:
    """Return the source of all rows and columns of a table."""
    return kind(name=reader.name, reader=reader, columns=reader.columns, n_rows=reader.n_rows)


def _frame_reader(frame: Any, name: str) -> _PandasFrame:
    """Return a data frame's reader; column labels become strings."""
    columns = tuple(str(label) for label in frame.columns)
    require_distinct(name, columns)
    return _PandasFrame(name=name, columns=columns, frame=frame)


def _arrow_reader(data: Any, name: str) -> _ArrowTable:
    """Return the reader of an Arrow table, record batch, or object with ``__arrow_c_stream__``."""
    pa = arrow()
    if isinstance(data, pa.RecordBatchReader):
        raise InputError(
            f"{name} must be readable more than once, got a stream of record batches; "
            "give a table (reader.read_all()) or a file"
        )
    table = _table_of(data, name)
    require_distinct(name, table.column_names)
    return _ArrowTable(name=name, columns=feature_names(table.schema), table=table)


def _table_of(data: Any, name: str) -> Any:
    """Return what exports itself as a table as one; a single column is none."""
    pa = arrow()
    try:
        return pa.Table.from_batches([data]) if isinstance(data, pa.RecordBatch) else pa.table(data)
    except (pa.ArrowException, TypeError, ValueError):
        raise InputError(
            f"{name} must be a 2-d table of rows by columns, got a {type(data).__name__} of one "
            "dimension; give a table that holds it, such as df[['a']] in place of df['a']"
        ) from None


def feature_names(schema: Any) -> tuple[str, ...]:
    """Return a schema's columns less those that pandas stored as the index."""
    metadata = schema.pandas_metadata or {}
    stored: Sequence[Any] = metadata.get("index_columns", ())
    index = {label for label in stored if isinstance(label, str)}
    return tuple(column for column in schema.names if column not in index)


def _is_pandas(data: Any) -> bool:
    """Whether the object is a pandas data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)
