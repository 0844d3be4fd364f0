"""Tables held in memory: pandas data frames, Arrow tables, and what exports itself as one."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from numbers import Real
from typing import Any

from fedpower.data.checks import not_a_number, require_distinct
from fedpower.data.tables import arrow, sliced, with_key
from fedpower.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class ArrowTable:
    """An Arrow table as a reader of batches."""

    name: str
    columns: tuple[str, ...]
    table: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return int(self.table.num_rows)

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield slices of the wanted columns, without copying."""
        for batch in self.table.select(with_key(columns, key)).to_batches():
            yield from sliced(batch, max_rows)


@dataclass(frozen=True, kw_only=True, eq=False)
class PandasFrame:
    """A pandas data frame as a reader of batches; its index is not a column."""

    name: str
    columns: tuple[str, ...]
    frame: Any

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return len(self.frame)

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield slices of the wanted columns, converted one slice at a time."""
        names = with_key(columns, key)
        places = [self.columns.index(column) for column in names]
        series = [self.frame.iloc[:, place] for place in places]
        for start in range(0, self.n_rows, max_rows):
            cells = [
                self._cells(values.iloc[start : start + max_rows], column, start, column == key)
                for column, values in zip(names, series, strict=True)
            ]
            yield arrow().RecordBatch.from_arrays(cells, names=names)

    def _cells(self, values: Any, column: str, first_row: int, is_key: bool) -> Any:
        """Return a slice of one column as an Arrow array."""
        pa = arrow()
        if values.dtype == object and is_key:
            missing = values.isna()
            return pa.array(
                [None if gone else str(value) for value, gone in zip(values, missing, strict=True)]
            )
        if values.dtype == object:
            for offset, value in enumerate(values):
                if not (value is None or isinstance(value, Real | Decimal) or value != value):  # noqa: PLR0124
                    kind = type(value).__name__
                    raise not_a_number(self.name, column, f"type {kind}", first_row + offset)
            return pa.array([None if value is None else float(value) for value in values])
        try:
            return pa.array(values, from_pandas=True)
        except (pa.ArrowException, TypeError, ValueError, NotImplementedError):
            raise not_a_number(self.name, column, f"dtype {values.dtype}", first_row) from None


def frame_reader(frame: Any, name: str) -> PandasFrame:
    """Return a data frame's reader; column labels become strings."""
    columns = tuple(str(label) for label in frame.columns)
    require_distinct(name, columns)
    return PandasFrame(name=name, columns=columns, frame=frame)


def arrow_reader(data: Any, name: str) -> ArrowTable:
    """Return the reader of an Arrow table, record batch, or object with ``__arrow_c_stream__``."""
    pa = arrow()
    if isinstance(data, pa.RecordBatchReader):
        raise InputError(
            f"{name} must be readable more than once, got a stream of record batches; "
            "give a table (reader.read_all()) or a file"
        )
    table = _table_of(data, name)
    require_distinct(name, table.column_names)
    return ArrowTable(name=name, columns=feature_names(table.schema), table=table)


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


def is_pandas(data: Any) -> bool:
    """Whether the object is a pandas data frame, without importing pandas."""
    pandas = sys.modules.get("pandas")
    return pandas is not None and isinstance(data, pandas.DataFrame)
