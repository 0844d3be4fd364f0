"""Rows held in memory: NumPy arrays and SciPy sparse matrices of any format."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.data.checks import is_wide, require_matrix
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block, Matrix, SparseBlock


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySource(PositionalSource):
    """The rows of a 2-d NumPy array of any real dtype; masked entries count as missing."""

    array: NDArray[Any]

    def read(self, max_rows: int) -> Iterator[Matrix]:
        """Yield slices: views where the array is float64 and C-contiguous, copies elsewhere."""
        for start in range(0, self.array.shape[0], max_rows):
            part = self.array[start : start + max_rows]
            if isinstance(part, np.ma.MaskedArray):
                part = np.ma.filled(part.astype(np.float64), np.nan)
            with np.errstate(over="ignore"):
                block = np.ascontiguousarray(part, dtype=np.float64).view()
            block.flags.writeable = False
            yield block


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseSource(PositionalSource):
    """The rows of a sparse matrix in CSR form."""

    array: "sparse.csr_array[Any, tuple[int, int]]"

    @property
    def sparse(self) -> bool:
        """Always true."""
        return True

    @property
    def density(self) -> float | None:
        """Share of stored entries; unknown once columns were left out."""
        rows, width = self.array.shape
        return None if self.keep is not None else float(self.array.nnz) / (rows * width)

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield row slices as canonical float64 CSR."""
        for start in range(0, self.array.shape[0], max_rows):
            yield canonical(self.array[start : start + max_rows])


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
    return ArraySource(
        name=name, width=width, n_rows=rows, array=values, wide=is_wide(values.dtype)
    )


def sparse_source(matrix: Any, name: str) -> SparseSource:
    """Return the source of a sparse matrix's rows; formats other than CSR are converted once."""
    require_matrix(name, tuple(matrix.shape), matrix.dtype)
    rows, width = matrix.shape
    return SparseSource(
        name=name,
        width=width,
        n_rows=rows,
        array=sparse.csr_array(matrix),
        wide=is_wide(matrix.dtype),
    )
