"""Columns: names matched between silos, values checked, public numbers given one per column."""

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import CellError, InputError, NoRowsError, is_showable
from fedpower.rows.source import Block, Extra, RowSource, Vector, is_sparse

LARGEST_EXACT = 2.0**53
"""float64 holds every integer up to here."""

LARGEST = 1e150
"""Bounds and divisors are between this and its inverse, so that squares of both stay in float64."""


def shown(names: Sequence[str], most: int = 5) -> str:
    """Return the names quoted and joined, the first few when there are many."""
    quoted = ", ".join(f"'{name}'" for name in names[:most])
    return quoted if len(names) <= most else f"{quoted} and {len(names) - most} more"


def _label(columns: tuple[str, ...] | None, index: int) -> str:
    return f"column {index + 1}" if columns is None else f"column '{columns[index]}'"


# --- checks of a source -----------------------------------------------------------------------------------


def require_shape(name: str, n_rows: int | None, n_features: int) -> None:
    """Refuse a source without columns or, where the number of rows is known, without rows."""
    if n_features == 0:
        raise InputError(f"{name} must have at least one column, got none")
    if n_rows == 0:
        raise NoRowsError(f"{name} must have at least one row, got none")


def require_matrix(name: str, shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> None:
    """Refuse anything but a nonempty 2-d array of real numbers."""
    if dtype.names is not None:
        raise InputError(f"{name} must be a 2-d array, got a structured one; give pandas.DataFrame(array)")
    if len(shape) != 2:
        raise InputError(f"{name} must be a 2-d array of rows by columns, got {len(shape)}-d")
    if dtype.kind not in "fiub":
        kind = {"c": "complex", "O": "object"}.get(dtype.kind, "non-numeric")
        raise InputError(f"{name} must hold real numbers, got {kind} dtype {dtype.name}")
    require_shape(name, *shape)


def other_rows(name: str) -> InputError:
    """Return the error for a pass over other rows than before, or than were counted."""
    return InputError(
        f"{name} must hold the same rows whenever it is read, got others than before; nothing was "
        "released or charged for them: do not change the data while it is in use, then start again"
    )


def require_count(name: str, known: int | None, counted: int) -> None:
    """Refuse a pass over another number of rows than is known: noise is made for that number."""
    if known not in (None, counted):
        raise other_rows(name)


def require_block_size(max_rows: int) -> None:
    """Refuse a block size below one row."""
    if max_rows < 1:
        raise InputError(f"max_rows must be at least 1, got {max_rows}")


def require_distinct(name: str, columns: Sequence[str]) -> None:
    """Refuse column names that cannot be shown or occur twice."""
    odd = next((column for column in columns if not is_showable(str(column))), None)
    if odd is not None:
        raise InputError(f"{name} must have column names without control characters, got {odd!a}")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InputError(f"{name} must have distinct column names, got {shown(twice)} more than once")


def not_a_number(name: str, column: str, dtype: str, row: int) -> InputError:
    """Return the error for a cell or column that is not numeric; `row` counts from 0."""
    return CellError(
        f"column '{column}' of {name} must hold numbers, got {dtype} at row {row + 1}; "
        f"drop the column (drop=['{column}']), or give it a rule in a code book"
    )


def require_finite(
    block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int, gaps: bool = False
) -> None:
    """Refuse a block with a missing or infinite value, naming the first such row."""
    values = block.data if is_sparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):  # a finite sum has finite terms, and costs no second array
            return
    wrong = np.isinf(values) if gaps else ~np.isfinite(values)
    if wrong.any():  # else the sum itself overflowed
        row, column, value = _first(block, wrong)
        what = "a missing value (empty, null or NaN)" if np.isnan(value) else "an infinite value"
        raise CellError(
            f"{_label(columns, column)} of {name} must hold finite numbers, got {what} at row "
            f"{rows + row + 1}; leave that row out, or give the column a rule in a code book"
        )


def is_wide(dtype: Any) -> bool:
    """Return whether a dtype is of integers that float64 does not all hold."""
    return getattr(dtype, "kind", "") in ("i", "u") and dtype.itemsize > 4


def require_exact(block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int) -> None:
    """Refuse integers that float64 may have rounded, which loses their small differences."""
    with np.errstate(invalid="ignore"):
        large = np.abs(block.data if is_sparse(block) else block) >= LARGEST_EXACT
    if large.any():
        row, column, _ = _first(block, large)
        raise CellError(
            f"{_label(columns, column)} of {name} must hold integers that are exact in float64, below 2^53 "
            f"in size, got a larger one at row {rows + row + 1}; subtract a public number first"
        )


def _first(block: Block, chosen: NDArray[np.bool_]) -> tuple[int, int, float]:
    if is_sparse(block):
        entry = int(np.flatnonzero(chosen)[0])
        row = int(np.searchsorted(block.indptr, entry, side="right")) - 1
        return row, int(block.indices[entry]), float(block.data[entry])
    row, column = (int(index) for index in np.argwhere(chosen)[0])
    return row, column, float(block[row, column])


# --- agreement between silos ------------------------------------------------------------------------------


def pick_columns(name: str, have: tuple[str, ...], want: tuple[str, ...], *, extra: Extra) -> list[int]:
    """Return the place of each wanted column in `have`."""
    if extra not in ("refuse", "drop"):
        raise InputError(f"extra must be 'refuse' or 'drop', got '{extra}'")
    require_distinct("columns", want)
    if not want:
        raise InputError("columns must name at least one column, got none")
    places = {column: place for place, column in enumerate(have)}
    missing = [column for column in want if column not in places]
    if missing:
        raise InputError(
            f"{name} must have the columns every silo agreed on, got a source without {shown(missing)}; "
            'rename a column, or keep what every silo has (extra_columns="drop")'
        )
    surplus = [column for column in have if column not in set(want)]
    if surplus and extra == "refuse":
        raise surplus_columns(name, "columns", surplus)
    return [places[column] for column in want]


def surplus_columns(name: str, what: str, surplus: Sequence[str]) -> InputError:
    """Return the error for columns that no silo agreed on."""
    return InputError(
        f"{name} must have only the {what} every silo agreed on, got also {shown(surplus)}; "
        'remove them, or leave them out with extra_columns="drop"'
    )


def match_columns(
    sources: Sequence[RowSource], *, columns: Sequence[str] | None = None, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, list[RowSource]]:
    """Return the agreed columns and the sources with exactly these, in this order."""
    if not sources:
        raise InputError("at least one source must be given, got none")
    first, names = sources[0], [source.columns for source in sources]
    agreed = names[0] if columns is None else tuple(columns)
    if None in names:
        named = next((source.name for source in sources if source.columns is not None), None)
        if named:
            raise InputError(
                f"either every source or none must have column names, got names in {named} and none in "
                f"{sources[names.index(None)].name}; name them with open_source(data, columns=[...])"
            )
        width = first.n_features if agreed is None else len(agreed)
        for source in sources:
            if source.n_features != width:
                raise InputError(
                    f"{source.name} must have {width} columns as {first.name} has, got {source.n_features}"
                )
        return agreed, list(sources)
    if columns is None and extra == "drop":
        agreed = tuple(name for name in agreed or () if all(name in have for have in names if have))
        if not agreed:
            raise InputError(f"the silos must share a column at least, got none in common with {first.name}")
    if "" in (agreed or ()):
        raise InputError(f"every column of {first.name} must have a name, got one without; drop it")
    return agreed, [
        source if source.columns == agreed else source.select(agreed or (), extra=extra) for source in sources
    ]


def columns_of_fit(source: RowSource, names: tuple[str, ...] | None, n_features: int) -> RowSource:
    """Return a source of new rows with the columns of a fit: by name where both have names."""
    if names is not None and source.columns is not None:
        missing = [name for name in names if name not in source.columns]
        if missing:
            raise InputError(
                f"{source.name} must have every column of the fit, got none named {shown(missing, 1)}"
            )
        return source.select(names, extra="drop")
    if source.n_features != n_features:
        raise InputError(
            f"{source.name} must have the {n_features} columns of the fit, got {source.n_features}"
        )
    return source


# --- public numbers ---------------------------------------------------------------------------------------


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def public_vector(
    label: str, values: Any, *, columns: tuple[str, ...] | None = None, positive: bool = False
) -> Vector:
    """Return public numbers in the order of the columns, as a read-only float64 vector without −0."""
    index = list(values) if isinstance(values, Mapping) else getattr(values, "index", None)
    if isinstance(values, Mapping):
        values = list(values.values())
    elif callable(index) or (index is not None and list(index) == list(range(len(index)))):
        index = None  # a list has a method of that name; a Series without labels has places
    if index is not None:
        labels = [str(name) for name in index]
        if columns is None:
            raise InputError(f"{label} must come without labels where columns have no names, got labels")
        odd = [name for name in (*columns, *labels) if (name in columns) != (name in labels)]
        if odd or len(labels) != len(columns):
            got = f"{odd[0]!r} on one side only" if odd else "a name twice"
            raise InputError(f"{label} must have a value for every column and no others by name, got {got}")
        values = np.asarray(values)[[labels.index(name) for name in columns]]
    try:
        vector = np.array(values, dtype=np.float64) + 0.0
    except (TypeError, ValueError):
        vector = np.array(np.nan)
    if vector.ndim != 1 or vector.size == 0:
        raise InputError(
            f"{label} must be a vector of finite numbers, one per column, got shape {vector.shape}"
        )
    checks = [(np.isfinite(vector), "be finite")]
    if positive:
        within = (vector <= LARGEST) & (vector >= 1 / LARGEST)
        checks += [(vector > 0, "be positive"), (within, f"be between {1 / LARGEST:g} and {LARGEST:g}")]
    for holds, must in checks:
        if not holds.all():
            place = int(np.argmin(holds))
            named = columns if columns is not None and len(columns) == vector.size else None
            raise InputError(
                f"{label} must {must} in every column, got {vector[place]:g} for {_label(named, place)}"
            )
    vector.flags.writeable = False
    return vector
