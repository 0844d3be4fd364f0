"""The places of a symmetric matrix that are sent."""

import numpy as np
import pytest

from fedpower.linalg import lower_of, lower_triangle, symmetric_of


def test_the_lower_triangle_is_numpys_and_cannot_be_changed_for_the_next_caller():
    for size in (1, 5, 4):
        rows, columns = lower_triangle(size)
        expected = np.tril_indices(size)
        assert np.array_equal(rows, expected[0])
        assert np.array_equal(columns, expected[1])
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 1


@pytest.mark.parametrize("size", [1, 5, 512, 513])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_symmetric_matrix_is_told_by_its_lower_triangle_at_any_width(size: int, dtype: type):
    half = np.random.default_rng(size).integers(-(2**40), 2**40, (size, size)).astype(dtype)
    matrix = half + half.T
    below = lower_of(matrix)
    assert np.array_equal(below, matrix[np.tril_indices(size)])
    assert np.array_equal(symmetric_of(below, size), matrix)
    assert below.dtype == symmetric_of(below, size).dtype == dtype
    assert not np.shares_memory(below, matrix)
