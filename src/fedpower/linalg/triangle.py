"""The lower triangle of a symmetric matrix: the numbers of it that are sent."""

import functools

import numpy as np
from numpy.typing import NDArray


@functools.lru_cache(maxsize=1)
def lower_triangle(size: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    """Return row and column of each place on or below the diagonal, row by row; read-only."""
    rows, columns = np.tril_indices(size)
    rows.setflags(write=False)
    columns.setflags(write=False)
    return rows, columns
