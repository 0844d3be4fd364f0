"""Arrays and sparse matrices: rows whose columns are known by their place."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.source import (
    Extra,
    is_wide,
    pick_columns,
    require_block_size,
    require_exact,
    require_finite,
    require_matrix,
    require_shape,
)
from fedpower.values import Block, SparseBlock, is_sparse, require_distinct


@dataclass(frozen=True, kw_only=True, eq=False)
class ColumnsByPlace:
    """Columns that are known by their place, and can be given names and then selected."""

    name: str
    width: int
    n_rows: int | None
    columns: tuple[str, ...] | None = None
    keep: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        return self.width if self.keep is None else len(self.keep)

    @property
    def sparse(self) -> bool:
        return False

    @property
    def density(self) -> float | None:
        return 1.0

    def named(self, columns: tuple[str, ...]) -> Self:
        """Return the source with names for its columns, given by position."""
        require_distinct("columns", columns)
        if len(columns) != self.n_features:
            raise InputError(
                f"columns must name each of the {self.n_features} columns of {self.name}, got "
                f"{len(columns)} names"
            )
        return replace(self, columns=columns)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> Self:
        if self.columns is None:
            raise InputError(
                f"{self.name} must have column names to select by name, got none; "
                "name them with open_source(data, columns=[...])"
            )
        places = pick_columns(self.name, self.columns, columns, extra=extra)
        keep = range(self.width) if self.keep is None else self.keep
        return replace(self, columns=columns, keep=tuple(keep[place] for place in places))


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionalSource(ColumnsByPlace, ABC):
    """A source read by column position."""

    wide: bool = False
    gaps: bool = False

    @abstractmethod
    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield all columns of the rows as float64, unchecked, at most `max_rows` at once."""

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the kept columns of the rows, checked to be finite and, as integers, exact."""
        require_block_size(max_rows)
        row = 0
        for stored in self.read(max_rows):
            block = stored
            if self.keep is not None:
                kept = np.array(self.keep)
                block = stored[:, kept] if is_sparse(stored) else np.take(stored, kept, axis=1)
            require_finite(block, name=self.name, columns=self.columns, rows=row, gaps=self.gaps)
            if self.wide:
                require_exact(block, name=self.name, columns=self.columns, rows=row)
            row += int(block.shape[0])
            yield block
            del stored, block  # or two blocks are held while the next one is read
        require_shape(self.name, row, self.n_features)


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySource(PositionalSource):
    """The rows of a 2-d NumPy array of any real dtype; masked entries count as missing."""

    array: NDArray[Any]

    def read(self, max_rows: int) -> Iterator[Block]:
        for start in range(0, self.array.shape[0], max_rows):
            part = self.array[start : start + max_rows]
            if isinstance(part, np.ma.MaskedArray):
                part = np.ma.filled(part.astype(np.float64), np.nan)
            block = as_float64(part).view()
            block.flags.writeable = False
            yield block


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseSource(PositionalSource):
    """The rows of a sparse matrix in CSR form."""

    array: "sparse.csr_array[Any, tuple[int, int]]"

    @property
    def sparse(self) -> bool:
        return True

    @property
    def density(self) -> float | None:
        """Share of stored entries; unknown once columns were left out."""
        rows, width = self.array.shape
        return None if self.keep is not None else float(self.array.nnz) / (rows * width)

    def read(self, max_rows: int) -> Iterator[Block]:
        for start in range(0, self.array.shape[0], max_rows):
            yield canonical(self.array[start : start + max_rows])


def as_float64(part: Any) -> NDArray[np.float64]:
    """Return an array as contiguous float64; what is beyond its range becomes infinite, to be refused."""
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(part, dtype=np.float64)


def canonical(block: Any) -> SparseBlock:
    """Return a float64 CSR copy of the rows with sorted indices and no index twice."""
    rows: Any = sparse.csr_array(block, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    return rows  # type: ignore[no-any-return]


def array_source(array: NDArray[Any], name: str) -> ArraySource:
    """Return the source of an array's rows."""
    values = array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    require_matrix(name, values.shape, values.dtype)
    rows, width = values.shape
    return ArraySource(name=name, width=width, n_rows=rows, array=values, wide=is_wide(values.dtype))


def sparse_source(matrix: Any, name: str) -> SparseSource:
    """Return the source of a sparse matrix's rows; formats other than CSR are converted once."""
    require_matrix(name, tuple(matrix.shape), matrix.dtype)
    rows, width = matrix.shape
    stored = sparse.csr_array(matrix)
    return SparseSource(name=name, width=width, n_rows=rows, array=stored, wide=is_wide(matrix.dtype))
