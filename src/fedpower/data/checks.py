"""The sentences about bad data: they name source, column and row, and never a cell's value."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.data.source import Block, is_sparse
from fedpower.errors import InputError, is_showable

MAX_NAMES = 5

LARGEST_EXACT = 2.0**53
"""Up to here float64 holds every integer; what a larger one was is not known from its float64."""


def shown(names: Sequence[str]) -> str:
    """Return the names quoted and joined, the first few when there are many."""
    quoted = ", ".join(f"'{name}'" for name in names[:MAX_NAMES])
    return quoted if len(names) <= MAX_NAMES else f"{quoted} and {len(names) - MAX_NAMES} more"


def column_label(columns: tuple[str, ...] | None, index: int) -> str:
    """Return how a sentence calls a column: by name, or by its place counted from 1."""
    return f"column {index + 1}" if columns is None else f"column '{columns[index]}'"


def require_shape(name: str, n_rows: int | None, n_features: int) -> None:
    """Refuse a source without columns or, where the number of rows is known, without rows."""
    if n_features == 0:
        raise InputError(f"{name} must have at least one column, got none; give it feature columns")
    if n_rows == 0:
        raise InputError(f"{name} must have at least one row, got none; leave this silo out")


def require_matrix(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse anything but a nonempty 2-d array of real numbers."""
    if dtype.names is not None:
        raise InputError(
            f"{name} must be a 2-d array of rows by columns, got a structured array of named fields; "
            "give a table, for instance pandas.DataFrame(array)"
        )
    if len(shape) != 2:
        raise InputError(
            f"{name} must be a 2-d array of rows by columns, got {len(shape)}-d with shape "
            f"{shape}; "
            "reshape it so that each row is one record"
        )
    if dtype.kind not in "fiub":
        kind = {"c": "complex", "O": "object"}.get(dtype.kind, "non-numeric")
        raise InputError(
            f"{name} must hold real numbers, got {kind} dtype {dtype.name}; convert it to float64"
        )
    require_shape(name, *shape)


def other_rows(name: str) -> InputError:
    """Return the error for a pass over other rows than those before, or than were counted."""
    return InputError(
        f"{name} must hold the same rows whenever it is read, got others than before; nothing was "
        "released or charged for them: leave the data alone while it is in use, then start again"
    )


def require_count(name: str, known: int | None, found: int) -> None:
    """Refuse a pass over another number of rows than is known: noise is made for that number."""
    if known not in (None, found):
        raise other_rows(name)


def require_block_size(max_rows: int) -> None:
    """Refuse a block size below one row."""
    if max_rows < 1:
        raise InputError(f"max_rows must be at least 1, got {max_rows}; ask for larger blocks")


def require_distinct(name: str, columns: Sequence[str]) -> None:
    """Refuse column names that cannot be shown, or occur twice."""
    for column in columns:
        if not is_showable(str(column)):
            raise InputError(
                f"{name} must have column names without control characters, got {str(column)!a}; "
                "rename the column"
            )
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InputError(
            f"{name} must have distinct column names, got {shown(twice)} more than "
            "once; "
            "rename the columns"
        )


def without(column: str) -> str:
    """Return how a column is left out: of a table in memory, and of a file that is streamed."""
    return f"table.drop(columns='{column}'), or open_source(path, drop=['{column}']) for a file"


def not_a_number(name: str, column: str, dtype: str, row: int) -> InputError:
    """Return the error for a cell or column that is not numeric; `row` counts from 0."""
    return InputError(
        f"column '{column}' of {name} must hold numbers, got {dtype} at row {row + 1}; "
        f"drop the column ({without(column)}) or turn it into numbers"
    )


def require_finite(
    block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int | NDArray[np.int64]
) -> None:
    """Refuse a block with a missing or infinite value, naming the first such row.

    Parameters
    ----------
    block : the rows to check.
    name, columns : of the source, for the sentence.
    rows : the first row's number counted from 0, or the number of each row.
    """
    values = block.data if is_sparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):  # a finite sum has finite terms, and costs no second array
            return
    finite = np.isfinite(values)
    if finite.all():  # the sum itself overflowed
        return
    row, column, value = _first(block, ~finite)
    number = rows + row if isinstance(rows, int) else int(rows[row])
    what = "a missing value (empty, null or NaN)" if np.isnan(value) else "an infinite value"
    raise InputError(
        f"{column_label(columns, column)} of {name} must hold finite numbers, got {what} at row "
        f"{number + 1}; fill it in or leave that row out"
    )


def is_wide(dtype: Any) -> bool:
    """Return whether a dtype, NumPy's or pandas', is of integers of which float64 does not hold all."""
    return getattr(dtype, "kind", "") in ("i", "u") and dtype.itemsize > 4


def require_exact(
    block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int | NDArray[np.int64]
) -> None:
    """Refuse integers that float64 may have rounded: their small differences would be gone.

    Parameters
    ----------
    block : what integers became in float64; NaN where one is missing.
    name, columns, rows : see `require_finite`.
    """
    values = block.data if is_sparse(block) else block
    large = np.abs(values) >= LARGEST_EXACT
    if not large.any():
        return
    row, column, _ = _first(block, large)
    number = rows + row if isinstance(rows, int) else int(rows[row])
    raise InputError(
        f"{column_label(columns, column)} of {name} must hold integers that are exact in float64, below "
        f"2^53 in size, got a larger one at row {number + 1}; subtract a public number beforehand, or "
        "leave the column out"
    )


def _first(block: Block, found: NDArray[np.bool_]) -> tuple[int, int, float]:
    """Return row, column and value of the first stored entry that was found."""
    if is_sparse(block):
        entry = int(np.flatnonzero(found)[0])
        row = int(np.searchsorted(block.indptr, entry, side="right")) - 1
        return row, int(block.indices[entry]), float(block.data[entry])
    row, column = (int(index) for index in np.argwhere(found)[0])
    return row, column, float(block[row, column])
