"""Columns: their names matched between silos, their values checked, public numbers one per column."""

from collections import Counter
from collections.abc import Mapping, Sequence
from numbers import Real
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import CellError, InputError, NoRowsError, is_showable
from fedpower.rows.source import Block, Extra, RowSource, Vector, is_sparse

_MAX_NAMES = 5

LARGEST_EXACT = 2.0**53
"""Up to here float64 holds every integer; what a larger one was is not known from its float64."""


def shown(names: Sequence[str]) -> str:
    """Return the names quoted and joined, the first few when there are many."""
    quoted = ", ".join(f"'{name}'" for name in names[:_MAX_NAMES])
    return quoted if len(names) <= _MAX_NAMES else f"{quoted} and {len(names) - _MAX_NAMES} more"


def _column_label(columns: tuple[str, ...] | None, index: int) -> str:
    """Return how a sentence calls a column: by name, or by its place counted from 1."""
    return f"column {index + 1}" if columns is None else f"column '{columns[index]}'"


def require_shape(name: str, n_rows: int | None, n_features: int) -> None:
    """Refuse a source without columns or, where the number of rows is known, without rows."""
    if n_features == 0:
        raise InputError(f"{name} must have at least one column, got none; give it feature columns")
    if n_rows == 0:
        raise NoRowsError(f"{name} must have at least one row, got none; leave this silo out")


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
            f"{name} must have distinct column names, got {shown(twice)} more than once; rename the columns"
        )


def not_a_number(name: str, column: str, dtype: str, row: int) -> InputError:
    """Return the error for a cell or column that is not numeric; `row` counts from 0."""
    return CellError(
        "column '{column}' of {source} must hold numbers, got {dtype} at row {row}; drop the "
        "column{without_column:{column}}, or turn it into numbers, by a rule in a code book for instance",
        column=column,
        source=name,
        dtype=dtype,
        row=row + 1,
    )


def require_finite(
    block: Block,
    *,
    name: str,
    columns: tuple[str, ...] | None,
    rows: int | NDArray[np.int64],
    gaps: bool = False,
) -> None:
    """Refuse a block with a missing or infinite value, naming the first such row."""
    values = block.data if is_sparse(block) else block
    with np.errstate(over="ignore", invalid="ignore"):
        if np.isfinite(np.sum(values)):  # a finite sum has finite terms, and costs no second array
            return
    finite = ~np.isinf(values) if gaps else np.isfinite(values)
    if finite.all():  # the sum itself overflowed
        return
    row, column, value = _first(block, ~finite)
    number = rows + row if isinstance(rows, int) else int(rows[row])
    what = "a missing value (empty, null or NaN)" if np.isnan(value) else "an infinite value"
    advice = "leave that row out"
    if np.isnan(value) and columns is not None:
        advice = "give the column a rule for missing cells in a code book"
    raise CellError(
        f"{_column_label(columns, column)} of {name} must hold finite numbers, got {what} at row "
        f"{number + 1}; fill it in or {advice}"
    )


def is_number(value: object) -> bool:
    """Return whether a value is a number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool)


def is_wide(dtype: Any) -> bool:
    """Return whether a dtype, NumPy's or pandas', is of integers of which float64 does not hold all."""
    return getattr(dtype, "kind", "") in ("i", "u") and dtype.itemsize > 4


def require_exact(
    block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int | NDArray[np.int64]
) -> None:
    """Refuse integers that float64 may have rounded: their small differences would be gone."""
    values = block.data if is_sparse(block) else block
    with np.errstate(invalid="ignore"):
        large = np.abs(values) >= LARGEST_EXACT
    if not large.any():
        return
    row, column, _ = _first(block, large)
    number = rows + row if isinstance(rows, int) else int(rows[row])
    raise CellError(
        f"{_column_label(columns, column)} of {name} must hold integers that are exact in float64, below "
        f"2^53 in size, got a larger one at row {number + 1}; subtract a public number first, or "
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


def pick_columns(name: str, have: tuple[str, ...], want: tuple[str, ...], *, extra: Extra) -> list[int]:
    """Return where each wanted column stands in `have`."""
    if extra not in ("refuse", "drop"):
        raise InputError(f"extra must be 'refuse' or 'drop', got '{extra}'; choose one of the two")
    require_distinct("columns", want)
    if not want:
        raise InputError("columns must name at least one column, got none; name the features")
    places = {column: place for place, column in enumerate(have)}
    missing = [column for column in want if column not in places]
    if missing:
        raise InputError(
            "{source} must have the columns every silo agreed on, got a source without {missing}; rename "
            "the column that holds it{by_renaming}, or leave it out of the fit"
            + "{by_sharing}"
            * (extra == "refuse"),
            source=name,
            missing=shown(missing),
        )
    wanted = set(want)
    surplus = [column for column in have if column not in wanted]
    if surplus and extra == "refuse":
        raise InputError(
            "{source} must have only the columns every silo agreed on, got also {surplus}; remove "
            "them, or leave them out with {without_extra}",
            source=name,
            surplus=shown(surplus),
        )
    return [places[column] for column in want]


def match_columns(
    sources: Sequence[RowSource], *, columns: Sequence[str] | None = None, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, list[RowSource]]:
    """Return the agreed columns and the sources with exactly these, in this order."""
    if not sources:
        raise InputError("at least one source must be given, got none; name the silos' data")
    named = [source for source in sources if source.columns is not None]
    unnamed = [source for source in sources if source.columns is None]
    if named and unnamed:
        raise InputError(
            "either every source or none must have column names, got names in {one} and none in "
            "{other}; name the columns of {other} with {with_columns}",
            one=named[0].name,
            other=unnamed[0].name,
        )
    agreed = sources[0].columns if columns is None else tuple(columns)
    if columns is None and extra == "drop" and agreed is not None and not unnamed:
        shared = tuple(name for name in agreed if all(name in s.columns for s in named if s.columns))
        if not shared:
            raise InputError(
                f"the silos must share a column at least, got none in common with {sources[0].name}; "
                "check that the files hold the same table"
            )
        agreed = shared
    if unnamed:
        _require_equal_width(unnamed, agreed)
        return agreed, list(unnamed)
    wanted = agreed or ()
    if "" in wanted:
        raise InputError(
            "every column of {source} must have a name, got none for column {place}; name it, or "
            "leave it out{without_column}",
            source=sources[0].name,
            place=wanted.index("") + 1,
        )
    return agreed, [
        source if source.columns == agreed else source.select(wanted, extra=extra) for source in named
    ]


def columns_of_fit(source: RowSource, names: tuple[str, ...] | None, n_features: int) -> RowSource:
    """Return a source of new rows with the columns of a fit: by name where both have names."""
    if names is not None and source.columns is not None:
        missing = [name for name in names if name not in source.columns]
        if missing:
            raise InputError(
                f"{source.name} must have every column of the fit, got none named "
                f"{missing[0]!r}{f' and {len(missing) - 1} more' if missing[1:] else ''}; "
                "add it, or fit without it"
            )
        return source.select(names, extra="drop")
    if source.n_features != n_features:
        raise InputError(
            f"{source.name} must have the {n_features} columns of the fit, got "
            f"{source.n_features}; give the same columns in the same order"
        )
    return source


def _require_equal_width(sources: Sequence[RowSource], agreed: tuple[str, ...] | None) -> None:
    """Refuse unnamed sources that differ in width, from each other or from the agreed columns."""
    width = sources[0].n_features if agreed is None else len(agreed)
    origin = f"{width} in {sources[0].name}" if agreed is None else f"{width} agreed"
    for source in sources:
        if source.n_features != width:
            raise InputError(
                "sources without column names must have equally many columns, got {origin} and "
                "{width} in {source}; give every silo the same columns ({with_n_features} for "
                "svmlight files)",
                origin=origin,
                width=source.n_features,
                source=source.name,
            )


LARGEST = 1e150
"""Bounds and divisors lie between this and its inverse, so that squares of both stay in float64."""


def public_vector(
    label: str, values: Any, *, columns: tuple[str, ...] | None = None, positive: bool = False
) -> Vector:
    """Return public numbers in the order of the columns, as a read-only float64 vector without −0."""
    labels = _labels(values)
    if isinstance(values, Mapping):
        values = list(values.values())
    if labels is not None:
        values = _in_order(label, values, labels, columns)
    try:
        vector = np.array(values, dtype=np.float64) + 0.0
    except (TypeError, ValueError):
        vector = np.array(np.nan)
    if vector.ndim != 1 or vector.size == 0:
        raise InputError(
            f"{label} must be a vector of finite numbers, got shape {vector.shape}; "
            "give one number per column"
        )
    _require(np.isfinite(vector), f"{label} must be finite in every column", vector, columns)
    if positive:
        _require(vector > 0, f"{label} must be positive in every column", vector, columns)
        within = (vector <= LARGEST) & (vector >= 1 / LARGEST)
        limits = f"{label} must lie between {1 / LARGEST:g} and {LARGEST:g} in every column"
        _require(within, limits, vector, columns)
    vector.flags.writeable = False
    return vector


def _labels(values: Any) -> list[str] | None:
    """Return the labels of a labelled vector; None where it has none but its places."""
    if isinstance(values, Mapping):
        return [str(each) for each in values]
    index = getattr(values, "index", None)
    if index is None or callable(index):  # lists have a method of that name
        return None
    labels = list(index)
    return None if labels == list(range(len(labels))) else [str(each) for each in labels]


def _in_order(label: str, values: Any, labels: list[str], columns: tuple[str, ...] | None) -> Any:
    """Return the values in the order of the columns, found by their labels."""
    if columns is None:
        raise InputError(
            f"{label} must come without labels where columns have no names, got {shown(labels)}; give "
            "the values alone, in the order of the columns"
        )
    odd = [name for name in columns if name not in labels] or [each for each in labels if each not in columns]
    if odd or len(labels) != len(columns):
        what = f"{odd[0]!r} on one side only" if odd else "a name twice"
        raise InputError(
            f"{label} must have a value for every column and no others by name, got {what}; label it as "
            "the columns are named, or give the values alone, in their order"
        )
    places = {each: place for place, each in enumerate(labels)}
    return np.asarray(values)[[places[name] for name in columns]]


def _require(
    holds: np.ndarray[Any, np.dtype[np.bool_]], must: str, vector: Vector, columns: tuple[str, ...] | None
) -> None:
    """Refuse the first value that does not hold, by the name of its column where that is known."""
    if holds.all():
        return
    place = int(np.flatnonzero(~holds)[0])
    named = columns if columns is not None and len(columns) == vector.size else None
    raise InputError(f"{must}, got {vector[place]:g} for {_column_label(named, place)}; give public numbers")
