"""The places of a symmetric matrix that are sent."""

import numpy as np
import pytest

from fedpower.linalg import lower_triangle


def test_the_lower_triangle_is_numpys_and_cannot_be_changed_for_the_next_caller():
    for size in (1, 5, 4):
        rows, columns = lower_triangle(size)
        expected = np.tril_indices(size)
        assert np.array_equal(rows, expected[0])
        assert np.array_equal(columns, expected[1])
        with pytest.raises(ValueError, match="read-only"):
            rows[0] = 1
