"""Rows in memory that are no numbers, told in our own words before scikit-learn quotes a cell."""

from itertools import chain
from typing import Any

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.columns import not_a_number
from fedpower.rows.source import pl

_KINDS = {"U": "text", "S": "text", "T": "text", "M": "dates", "m": "durations"}
"""By NumPy's letter: what is no number, and is not called so by scikit-learn."""


def require_numbers(X: Any) -> None:
    """Refuse text, dates and durations in rows, by column and row and never by the cell."""
    columns = getattr(X, "columns", None)
    if columns is not None and hasattr(X, "dtypes") and hasattr(X, "iloc"):
        for place, column in enumerate(columns):
            _require_column(X.iloc[:, place], str(column))
        return
    if hasattr(X, "__arrow_c_stream__"):
        _require_schema(X)
        return
    dtype = getattr(X, "dtype", None)
    if dtype is None and isinstance(X, list | tuple):
        if any(isinstance(cell, str | bytes) for cell in chain.from_iterable(_rows(X))):
            X = np.array([list(row) for row in X], dtype=object)
        else:
            return
    if getattr(X, "ndim", None) == 2 and getattr(X.dtype, "kind", "") in ("O", *_KINDS):
        for place in range(X.shape[1]):
            _require_cells(X[:, place], None, place)


def _require_schema(X: Any) -> None:
    """Refuse a column of an Arrow table, or of what exports itself as one."""
    schema = (X if isinstance(X, pl.DataFrame) else pl.DataFrame(X)).schema
    for name, kind in schema.items():
        if not (kind.is_numeric() or kind in (pl.Boolean, pl.Null)):
            raise not_a_number("X", name, f"type {kind}", 0)


def _rows(X: Any) -> list[Any]:
    """Return the rows of a list that are lists."""
    return [row for row in X if isinstance(row, list | tuple)]


def _require_column(values: Any, column: str) -> None:
    """Refuse a column of a data frame."""
    dtype = values.dtype
    if dtype.name == "category":
        dtype = dtype.categories.dtype
    kind = getattr(dtype, "kind", "")
    if dtype.name in ("string", "str") or kind in _KINDS:
        raise _refusal(column, None, _KINDS.get(kind, "text"), 0)
    if kind == "O":
        _require_cells(np.asarray(values, dtype=object), column)


def _require_cells(cells: Any, column: str | None, place: int | None = None) -> None:
    """Refuse the cells of a column; of objects, those that are text or dates."""
    kind = cells.dtype.kind
    if kind in _KINDS:
        raise _refusal(column, place, _KINDS[kind], 0)
    if kind != "O":
        return
    for row, cell in enumerate(cells):
        if isinstance(cell, str | bytes):
            raise _refusal(column, place, "text", row)
        if hasattr(cell, "isoformat") or isinstance(cell, np.datetime64):
            raise _refusal(column, place, "a date", row)


def _refusal(column: str | None, place: int | None, kind: str, row: int) -> InputError:
    """Return the error for a cell or a column that is no number."""
    if column is not None:
        return not_a_number("X", column, kind, row)
    assert place is not None, "a column has a name or a place"
    return InputError(
        f"column {place + 1} of X must hold numbers, got {kind} at row {row + 1}; leave the column out "
        "or turn it into numbers"
    )
