"""The compiled loop turns columns of a table into the rows that NumPy makes of them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from compiled import both_ways, needs_loops

from fedpower.errors import InputError
from fedpower.rows.opening import open_source

pytestmark = needs_loops

KINDS = (pa.float64(), pa.float32(), pa.int64(), pa.uint8(), pa.bool_(), pa.decimal128(9, 3))


def table_of(n_rows: int, width: int) -> Any:
    """A table whose columns have all kinds of numbers in turn, most of them float64."""
    rng = np.random.default_rng(width)
    columns = {}
    for place in range(width):
        kind = KINDS[place % len(KINDS)] if place % 3 == 2 else pa.float64()
        values = rng.integers(0, 2, n_rows).astype(float)
        if pa.types.is_floating(kind):
            values = rng.standard_normal(n_rows)
        columns[f"c{place}"] = pa.array(values).cast(kind)
    return pa.table(columns)


def rows_of(data: Any, max_rows: int) -> Any:
    return np.vstack(list(open_source(data).blocks(max_rows)))


@pytest.mark.parametrize("width", [1, 2, 7, 8, 9, 16, 23])
@pytest.mark.parametrize("n_rows", [1, 2, 63, 64, 65, 300])
def test_rows_are_those_of_numpy(n_rows: int, width: int) -> None:
    table = table_of(n_rows + 5, width).slice(3, n_rows)
    one, two = both_ways(lambda: rows_of(table, 100))
    assert one.shape == (n_rows, width)
    assert np.array_equal(one, two)


@pytest.mark.parametrize("cell", [None, np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [(0, 0), (63, 7), (64, 8), (98, 9), (99, 3), (41, 10)])
def test_a_cell_that_is_no_number_is_refused_as_without_it(
    place: tuple[int, int], cell: float | None
) -> None:
    row, column = place
    values = [[1.0] * 100 for _ in range(11)]
    values[column][row] = cell  # type: ignore[call-overload]
    table = pa.table({f"c{number}": each for number, each in enumerate(values)})

    def refused() -> str:
        with pytest.raises(InputError) as error:
            rows_of(table, 1000)
        return str(error.value)

    one, two = both_ways(refused)
    assert one == two
    assert f"'c{column}'" in one
    assert f"row {row + 1}" in one
