"""What every source of rows offers, what is checked of it, and how silos' columns are matched."""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import CellError, InputError, NoRowsError, require
from fedpower.rules.treatment import RowTreatment, row_norms
from fedpower.values import (
    LARGEST,
    LARGEST_EXACT,
    Block,
    is_sparse,
    label_of,
    no_column,
    require_distinct,
    shown,
)

Extra: TypeAlias = Literal["refuse", "drop"]

_BLOCK_BYTES, _MOST_BLOCK_BYTES = 2**22, 2**26
_LEAST_ROWS, _MOST_ROWS = 256, 2**16


def block_rows(n_features: int, *, density: float = 1.0) -> int:
    """Return how many rows make a block of about 4 MiB."""
    per_row = 8 * max(1.0, n_features * min(1.0, 2 * density))
    rows = max(int(_BLOCK_BYTES / per_row), _LEAST_ROWS)
    return max(1, min(rows, _MOST_ROWS, int(_MOST_BLOCK_BYTES / per_row)))


@runtime_checkable
class RowSource(Protocol):
    """One silo's rows, read in blocks as often as needed and never held whole.

    A source is immutable and every call of `blocks` reads from the first row again. Rows are
    secret: the errors a source raises name files, columns and row numbers, never a cell's value.
    """

    @property
    def name(self) -> str:
        """What messages call it: a path, or ``silo 'north'``."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns in order; None where they are known by their place, as in arrays."""

    @property
    def n_features(self) -> int: ...

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where only a pass finds it."""

    @property
    def sparse(self) -> bool: ...

    @property
    def density(self) -> float | None:
        """Share of stored entries: 1 for dense sources, None where unknown."""

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows in order, finite, in nonempty float64 blocks of at most `max_rows` rows.

        A dense block is contiguous, by rows or by columns, and may be a read-only view; a sparse one is a
        canonical ``csr_array``. At least one row is yielded, or `InputError` is raised.
        """
        ...

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> "RowSource":
        """Return the source with exactly these columns; others are refused or dropped."""
        ...


class OverRows:
    """A source that reads another one and has its description."""

    def __init__(self, rows: RowSource) -> None:
        self.rows = rows
        self.name, self.columns, self.n_features = rows.name, rows.columns, rows.n_features
        self.sparse, self.density = rows.sparse, rows.density

    @property
    def n_rows(self) -> int | None:
        return self.rows.n_rows

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> RowSource:
        raise NotImplementedError("columns are selected before rows are read")


class Stopped(BaseException):
    """Reading was stopped from outside; no error, so nothing that handles errors may take it for one."""


class Watch:
    """Counts the rows of each block, and ends the reading once it was stopped."""

    def __init__(self, on_rows: Callable[[int], None] | None = None) -> None:
        self._on_rows = on_rows
        self._stopped = False

    def stop(self) -> None:
        """Let every pass over the rows end at its next block."""
        self._stopped = True

    def saw(self, n_rows: int) -> None:
        """Take note of a block that was read."""
        if self._stopped:
            raise Stopped
        if self._on_rows is not None:
            self._on_rows(n_rows)


UNWATCHED = Watch()
"""For readings without a progress display or a stop."""


def largest_row_norm(source: RowSource, treatment: RowTreatment) -> float:
    """Return the largest norm of a treated row; a bound made from it is not a public one."""
    largest = 0.0
    for block in source.blocks(block_rows(source.n_features)):
        # Blocks of persons' rows have a column more (`units`).
        features = block[:, : source.n_features] if not is_sparse(block) else block
        largest = max(largest, float(row_norms(treatment.apply(features)[0]).max()))
    return largest if math.isfinite(largest) else LARGEST


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
        f"{name} must not change while it is in use, got other rows than before; nothing was released "
        "or charged for them, so start again"
    )


def require_count(name: str, known: int | None, counted: int) -> None:
    """Refuse a pass over another number of rows than is known: noise is made for that number."""
    if known not in (None, counted):
        raise other_rows(name)


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
        place, column, value = _first(block, wrong, name, columns, rows)
        what = "a missing value (empty, null or NaN)" if np.isnan(value) else "an infinite value"
        raise CellError(
            f"{column} must hold finite numbers, got {what} at row {place}; leave that row out, or give the "
            "column a rule in a code book"
        )


def is_wide(dtype: Any) -> bool:
    """Return whether a dtype is of integers that float64 does not all hold."""
    return getattr(dtype, "kind", "") in ("i", "u") and dtype.itemsize > 4


def require_exact(block: Block, *, name: str, columns: tuple[str, ...] | None, rows: int) -> None:
    """Refuse integers that float64 may have rounded, which loses their small differences."""
    with np.errstate(invalid="ignore"):
        large = np.abs(block.data if is_sparse(block) else block) >= LARGEST_EXACT
    if large.any():
        place, column, _ = _first(block, large, name, columns, rows)
        raise CellError(
            f"{column} must hold integers that are exact in float64, below 2^53 in size, got a larger one at "
            f"row {place}; subtract a public number first"
        )


def _first(
    block: Block, chosen: NDArray[np.bool_], name: str, columns: tuple[str, ...] | None, rows: int
) -> tuple[int, str, float]:
    """Return the first chosen cell: its row from 1, what its column is called, and its value."""
    places: Any = np.unravel_index(int(np.argmax(chosen)), chosen.shape)
    if is_sparse(block):
        entry = int(places[0])
        places = int(np.searchsorted(block.indptr, entry, side="right")) - 1, int(block.indices[entry])
    row, column = int(places[0]), int(places[1])
    value = block.data[entry] if is_sparse(block) else block[row, column]
    return rows + row + 1, f"{label_of(columns, column)} of {name}", float(value)


# --- agreement between silos ------------------------------------------------------------------------------


def pick_columns(name: str, have: tuple[str, ...], want: tuple[str, ...], *, extra: Extra) -> list[int]:
    """Return the place of each wanted column in `have`."""
    require(extra in ("refuse", "drop"), "extra", "'refuse' or 'drop'", extra)
    require_distinct("columns", want)
    if not want:
        raise InputError("columns must name at least one column, got none")
    places = {column: place for place, column in enumerate(have)}
    missing = [column for column in want if column not in places]
    if missing:
        common = '; rename a column, or use only common ones (extra_columns="drop")'
        raise no_column(name, missing, have, common if extra == "refuse" else "")
    surplus = [column for column in have if column not in set(want)]
    if surplus and extra == "refuse":
        raise surplus_columns(name, "columns", surplus)
    return [places[column] for column in want]


def surplus_columns(name: str, what: str, surplus: Sequence[str]) -> InputError:
    """Return the error for columns that no silo agreed on."""
    return InputError(
        f"{name} must have only the agreed {what}, got also {shown(surplus)}; "
        'remove them, or leave them out with extra_columns="drop"'
    )


def match_columns(
    sources: Sequence[RowSource], *, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, list[RowSource]]:
    """Return the agreed columns and the sources with exactly these, in this order."""
    if not sources:
        raise InputError("at least one silo must be given, got none")
    first, names = sources[0], [source.columns for source in sources]
    agreed = first.columns
    if None in names:
        named = next((source.name for source in sources if source.columns is not None), None)
        if named:
            raise InputError(
                f"every silo must have column names or none, got names in {named} and none in "
                f"{sources[names.index(None)].name}; give it names (columns=['a', 'b', ...])"
            )
        width = first.n_features
        for source in sources:
            if source.n_features != width:
                raise InputError(
                    f"{source.name} must have {width} columns, like {first.name}, got {source.n_features}"
                )
        return None, list(sources)
    if extra == "drop":
        agreed = tuple(name for name in agreed or () if all(name in have for have in names if have))
        if not agreed:
            raise InputError(f"the silos must share at least one column, got none shared with {first.name}")
    if "" in (agreed or ()):
        raise InputError(f"every column of {first.name} must have a name, got an unnamed column; drop it")
    return agreed, [
        source if source.columns == agreed else source.select(agreed or (), extra=extra) for source in sources
    ]


def columns_of_fit(source: RowSource, names: tuple[str, ...] | None, n_features: int) -> RowSource:
    """Return a source of new rows with the columns of a fit: by name where both have names."""
    if names is not None and source.columns is not None:
        missing = [name for name in names if name not in source.columns]
        if missing:
            columns = f"column{'' if len(missing) == 1 else 's'} of the fit"
            raise InputError(f"{source.name} lacks {len(missing)} {columns}: {shown(missing)}")
        return source.select(names, extra="drop")
    if source.n_features != n_features:
        raise InputError(
            f"{source.name} must have the {n_features} columns of the fit, got {source.n_features}"
        )
    return source
