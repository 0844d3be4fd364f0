"""A public centre or scale: by place, or by name where it has labels."""

from typing import Any

import numpy as np
import pandas as pd
import pytest

from fedpower.errors import InputError
from fedpower.values import public_vector

COLUMNS = ("a", "b", "c")


def test_labels_are_matched_to_the_columns() -> None:
    values = pd.Series({"c": 3.0, "a": 1.0, "b": 2.0})
    assert public_vector("scale", values, columns=COLUMNS).tolist() == [1, 2, 3]


@pytest.mark.parametrize("values", [[1, 2, 3], (1, 2, 3), np.array([1, 2, 3]), pd.Series([1.0, 2.0, 3.0])])
@pytest.mark.parametrize("columns", [None, COLUMNS])
def test_values_without_labels_are_taken_by_place(values: Any, columns: tuple[str, ...] | None) -> None:
    vector = public_vector("scale", values, columns=columns)
    assert vector.tolist() == [1, 2, 3]
    assert not vector.flags.writeable


@pytest.mark.parametrize(
    ("values", "columns", "sentence"),
    [
        (pd.Series({"a": 1.0, "b": 2.0}), COLUMNS, "got 'c' on one side only"),
        (pd.Series({"a": 1.0, "b": 2.0, "c": 1.0, "d": 1.0}), COLUMNS, "got 'd' on one side only"),
        (pd.Series([1.0, 2, 3, 4], index=list("abca")), COLUMNS, "got a name twice"),
        (pd.Series({"a": 1.0}), None, "without labels where columns have no names"),
        (pd.Series([1.0, 2.0], index=[4, 2]), None, "without labels"),
        ([1.0, np.nan, 2.0], COLUMNS, "must be finite in every column, got nan for column 'b'"),
        ([1.0, np.inf], None, "must be finite in every column, got inf for column 2"),
        ([1.0, 0.0, 2.0], COLUMNS, "must be positive in every column, got 0 for column 'b'"),
        ([1.0, 1e200], None, "must be between 1e-150 and 1e+150 in every column, got 1e+200"),
        ([[1.0]], None, "must be a vector of finite numbers"),
        (["x"], None, "must be a vector of finite numbers"),
    ],
)
def test_what_fits_no_column_is_refused(values: Any, columns: tuple[str, ...] | None, sentence: str) -> None:
    with pytest.raises(InputError) as caught:
        public_vector("scale", values, columns=columns, positive=True)
    assert sentence in str(caught.value)
