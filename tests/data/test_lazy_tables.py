"""Arrow datasets and Polars queries are streamed; what cannot be is refused."""

from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow.csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest
from row_forms import in_parts, read_all, sample_rows, table

from fedpower.errors import InputError
from fedpower.rows.opening import open_source

ROWS = sample_rows()
CELL = "4711"


def refused(data: Any, **options: Any) -> str:
    with pytest.raises(InputError) as caught:
        read_all(open_source(data, **options))
    assert CELL not in str(caught.value)
    return str(caught.value)


def test_a_dataset_of_parquet_knows_its_rows_and_one_of_csv_does_not(tmp_path: Path) -> None:
    parts = in_parts(ROWS, tmp_path, pq.write_table, ".parquet")
    assert open_source(ds.dataset(parts)).n_rows == len(ROWS)
    (tmp_path / "c").mkdir()
    texts = in_parts(ROWS, tmp_path / "c", pyarrow.csv.write_csv, ".csv")
    source = open_source(ds.dataset(texts, format="csv"))
    assert source.n_rows is None
    np.testing.assert_array_equal(read_all(source, 7), ROWS)


def test_a_query_is_run_in_batches_and_in_order() -> None:
    rows = np.arange(30_000.0).reshape(-1, 3)
    frame = pl.DataFrame(rows, schema=["a", "b", "c"]).lazy().with_columns(pl.col("b") * 2)
    source = open_source(frame.filter(pl.col("a") > 30))
    blocks = list(source.blocks(1000))
    assert max(len(np.asarray(block)) for block in blocks) <= 1000
    expected = rows[rows[:, 0] > 30] * [1, 2, 1]
    np.testing.assert_array_equal(np.vstack([np.asarray(block) for block in blocks]), expected)


def test_a_query_that_holds_all_rows_at_once_is_refused() -> None:
    frame = pl.from_arrow(table(ROWS)).lazy()
    assert "must be a query that Polars can stream" in refused(frame.map_batches(lambda part: part))


def test_a_query_that_fails_is_told_without_the_cell() -> None:
    frame = pl.LazyFrame({"x": ["1", f"{CELL}z"]})
    failing = frame.select(pl.col("x").cast(pl.Float64))
    assert "got InvalidOperationError from Polars" in refused(failing)
    assert "got ColumnNotFoundError from Polars" in refused(frame.select("nothing"))
    assert "must hold numbers, got type String" in refused(frame)
