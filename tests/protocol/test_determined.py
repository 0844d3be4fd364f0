"""Which components of an exact result are determined by the rows."""

import numpy as np
import pytest

from fedpower import FedPCA
from fedpower.protocol.solvers.shared import determined_exactly


def test_components_beyond_the_rank_of_the_rows_are_not_determined() -> None:
    rng = np.random.default_rng(0)
    rows = rng.normal(size=(200, 3)) @ rng.normal(size=(3, 6))
    values = FedPCA(6, epsilon=float("inf"), solver="moment").fit(rows).explained_variance_
    assert determined_exactly(values, 6) == [True] * 3 + [False] * 3


def test_small_variances_above_rounding_are_determined() -> None:
    assert determined_exactly(np.array([1.0, 1e-12, 1e-17]), 10) == [True, True, False]


@pytest.mark.parametrize("values", [np.zeros(3), np.empty(0)])
def test_constant_columns_determine_nothing(values: np.ndarray) -> None:
    assert not any(determined_exactly(values, 3))
