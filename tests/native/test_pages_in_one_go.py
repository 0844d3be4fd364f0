"""Pages of Parquet are made into the rows that Arrow's reader gives, or are left to it."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from compiled import both_ways, needs_loops

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.parquet_pages import plain_rows
from fedpower.rows.tables import NotPlainError
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.exact_moment import exact_moment

pytestmark = needs_loops

N_ROWS = 5000
KINDS = (pa.float64(), pa.float32(), pa.int64(), pa.int32(), pa.int16(), pa.int8())

LAID_OUT: dict[str, dict[str, Any]] = {
    "as it is written by default": {},
    "no dictionaries": {"use_dictionary": False},
    "not compressed": {"compression": "none", "use_dictionary": False},
    "zstd": {"compression": "zstd"},
    "pages of the second version": {"data_page_version": "2.0"},
    "not compressed, the second version": {"data_page_version": "2.0", "compression": "none"},
    "small pages": {"data_page_size": 999, "write_batch_size": 61},
    "small pages of numbers": {**{"use_dictionary": False, "data_page_size": 999}, "write_batch_size": 61},
    "growing pages": {"use_dictionary": False, "row_group_size": 4100},
    "small dictionaries": {"dictionary_pagesize_limit": 700, "write_batch_size": 100},
    "pages with checksums": {"write_page_checksum": True},
    "an old version": {"version": "1.0"},
    "no statistics": {"write_statistics": False},
    "row groups that fill no block": {"row_group_size": 4600},
}
LEFT_TO_ARROW: dict[str, dict[str, Any]] = {
    "gzip": {"compression": "gzip"},
    "lz4": {"compression": "lz4"},
    "another encoding": {"use_dictionary": False, "use_byte_stream_split": ["c0"]},
}


def table_of(n_rows: int = N_ROWS) -> Any:
    """A table of all kinds of numbers, of few and many values, with runs of one, none missing."""
    rng = np.random.default_rng(n_rows)
    columns = {}
    for place in range(19):
        kind = KINDS[place % len(KINDS)] if place % 3 == 1 else pa.float64()
        values = rng.integers(-(2 ** (place % 7)), 2 ** (place % 7), n_rows).astype(float)
        if place % 4 == 0 and pa.types.is_floating(kind):
            values = rng.standard_normal(n_rows) * 10.0 ** rng.integers(-30, 30, n_rows)
        if place % 5 == 0:
            values[n_rows // 3 : n_rows // 2] = 7.0
        columns[f"c{place}"] = pa.array(values).cast(kind)
    return pa.table(columns)


def written(path: Path, table: Any, **options: Any) -> Path:
    pyarrow.parquet.write_table(table, path, **options)
    return path


def rows_of(path: Path, max_rows: int = 1111) -> Any:
    return np.vstack(list(open_source(path).blocks(max_rows)))


def are_plain(path: Path) -> bool:
    names = pyarrow.parquet.read_schema(path).names
    try:
        return sum(len(block) for block in plain_rows(path, names, 1000)) == N_ROWS
    except NotPlainError:
        return False


@pytest.mark.parametrize("layout", LAID_OUT)
def test_pages_give_the_rows_that_arrow_gives(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table_of(), **LAID_OUT[layout])
    assert are_plain(path)
    one, two = both_ways(lambda: rows_of(path))
    assert one.shape == (N_ROWS, 19)
    assert one.tobytes() == two.tobytes()


@pytest.mark.parametrize("layout", LEFT_TO_ARROW)
def test_what_is_not_plain_is_left_to_arrow(layout: str, tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table_of(), **LEFT_TO_ARROW[layout])
    assert not are_plain(path)
    assert np.array_equal(rows_of(path), np.column_stack(list(map(np.asarray, table_of().columns))))


@pytest.mark.parametrize("writer", ["pandas", "polars", "duckdb"])
def test_others_files_are_plain_too(writer: str, tmp_path: Path) -> None:
    library, table, path = pytest.importorskip(writer), table_of(), tmp_path / "a.parquet"
    if writer == "pandas":
        table.to_pandas().to_parquet(path)
    elif writer == "polars":
        library.from_arrow(table).write_parquet(path)
    else:
        library.from_arrow(table).write_parquet(str(path))
    assert are_plain(path)
    one, two = both_ways(lambda: rows_of(path))
    assert one.tobytes() == two.tobytes()


def test_integers_are_the_same_for_any_row_groups_and_workers(tmp_path: Path) -> None:
    rows = np.random.default_rng(3).standard_normal((20_000, 7))
    treatment = RowTreatment(row_norm=2.0)
    expected = exact_moment(open_source(rows), treatment)
    table = pa.table({f"c{place}": column for place, column in enumerate(rows.T)})
    for size in (2_048, 5_000, 20_000):
        path = written(tmp_path / f"{size}.parquet", table, row_group_size=size)
        for workers in (1, 2, 3):
            found = exact_moment(open_source(path), treatment, block_rows=999, workers=workers)
            assert found == expected


def test_columns_may_be_few_in_another_order_required_and_beside_nested_ones(tmp_path: Path) -> None:
    table = table_of()
    fields = [pa.field(name, table.schema.field(name).type, nullable=False) for name in ("c5", "c1")]
    table = table.select(["c5", "c1"]).cast(pa.schema(fields))
    table = table.append_column("a", pa.array([{"b": 1.0, "c1": 2.0}] * N_ROWS))
    table = table.append_column("a.d", pa.array(np.arange(N_ROWS, dtype=float)))
    path = written(tmp_path / "a.parquet", table)
    found = np.vstack(list(plain_rows(path, ["c1", "a.d", "c5"], 700)))
    assert np.array_equal(found, np.column_stack([table[name] for name in ("c1", "a.d", "c5")]))


@pytest.mark.parametrize("cell", [None, np.nan, np.inf])
@pytest.mark.parametrize("place", [(0, 0), (2500, 4), (4999, 18)])
@pytest.mark.parametrize("dictionary", [True, False])
def test_a_cell_that_is_no_number_is_refused_as_by_arrow(
    cell: float | None, place: tuple[int, int], dictionary: bool, tmp_path: Path
) -> None:
    row, column = place
    table = table_of()
    values = table.column(column).cast(pa.float64()).to_pylist()
    values[row] = cell
    table = table.set_column(column, f"c{column}", pa.array(values, pa.float64()))
    path = written(tmp_path / "a.parquet", table, use_dictionary=dictionary, row_group_size=2600)

    def refused() -> str:
        with pytest.raises(InputError) as error:
            rows_of(path)
        return str(error.value)

    one, two = both_ways(refused)
    assert one == two
    assert f"column 'c{column}' of {path}" in one
    assert f"at row {row + 1};" in one


@pytest.mark.slow
@pytest.mark.parametrize("layout", ["as it is written by default", "no dictionaries", "zstd"])
def test_damaged_files_are_read_or_refused_as_by_arrow(layout: str, tmp_path: Path) -> None:
    """A byte is changed in headers of pages, in pages and in what the end of the file says of them."""
    path = written(tmp_path / "a.parquet", table_of().select(["c0", "c1", "c2"]), **LAID_OUT[layout])
    raw = path.read_bytes()
    chunks = pyarrow.parquet.read_metadata(path).row_group(0)
    starts = [4, *(chunks.column(place).data_page_offset for place in range(3))]
    rng = np.random.default_rng(7)
    places = [start + offset for start in starts for offset in range(0, 60, 2)]
    places += [len(raw) - back for back in range(9, 500, 7)]
    places += rng.integers(4, len(raw), 30).tolist()
    outcomes = set()
    for place in places:
        damaged = bytearray(raw)
        damaged[place] ^= int(rng.integers(1, 256))
        path.write_bytes(damaged)
        one, two = both_ways(lambda: _read_or_refused(path))
        outcomes.add(one is None)
        assert one == two, place
    assert outcomes == {True, False}


def _read_or_refused(path: Path) -> bytes | None:
    try:
        return bytes(rows_of(path).tobytes())
    except InputError:
        return None


def test_a_file_that_is_cut_short_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path / "a.parquet", table_of())
    source = open_source(path)
    path.write_bytes(path.read_bytes()[:-2000])
    with pytest.raises(InputError, match="truncated or damaged"):
        list(source.blocks(1000))
