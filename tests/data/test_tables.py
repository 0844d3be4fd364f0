"""Tables: agreement on columns, silos inside one, folders, sheets, queries and new formats."""

import datetime as dt
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from row_forms import in_parts, read_all, sample_rows, saved, write_xlsx
from test_bad_data import refused

from fedpower import FedPCA
from fedpower.exceptions import InputError
from fedpower.rows.files import FORMATS, register
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import is_text, name_of_silo, open_source, rows_at, split_by_group
from fedpower.rows.source import match_columns

ROWS = sample_rows()


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


NORTH = frame(a=[1.0, 2], b=[3.0, 4], c=[5.0, 6])


BARE = open_source(np.ones((2, 3)), name="one.npy")
TOGETHER: dict[str, tuple[list[Any], dict[str, Any], Any]] = {
    "the first sets the order": ([NORTH, frame(c=[9.0], a=[7.0], b=[8.0])], {}, ("a", "b", "c")),
    "a column is missing": ([NORTH, frame(a=[7.0], d=[8.0])], {}, "has no column 'b', 'c'; rename"),
    "there is one more": ([frame(a=[1.0]), frame(a=[7.0], d=[8.0])], {}, "also 'd'; .*extra_columns=\"dro"),
    "shared columns": ([NORTH, frame(a=[7.0], d=[8.0])], {"extra": "drop"}, ("a",)),
    "none in common": ([NORTH, frame(d=[8.0])], {"extra": "drop"}, "share at least one column, got none"),
    "no names": ([BARE, BARE], {}, None),
    "other widths": ([BARE, np.ones((2, 4))], {}, "must have 3 columns, like one.npy, got 4"),
    "some have names": ([NORTH, BARE], {}, "got names in the data frame and none in one.npy; give"),
    "all have names": ([NORTH, open_source(BARE, columns=["c", "b", "a"])], {}, ("a", "b", "c")),
    "none at all": ([], {}, "at least one silo"),
}


@pytest.mark.parametrize("case", TOGETHER)
def test_columns_are_matched_by_name_or_place(case):
    data, options, wanted = TOGETHER[case]
    sources = [open_source(each) for each in data]
    if isinstance(wanted, str):
        with pytest.raises(InputError, match=wanted):
            match_columns(sources, **options)
    else:
        assert match_columns(sources, **options)[0] == wanted


PATIENTS = frame(
    id=[1, 2, 3, 4, 5],
    site=["west", "NA", "west", "east", "NA"],
    x=[1.0, 2, 3, 4, 5],
    y=[True, False, True, True, False],
)


KINDS = {
    "frame": lambda data, folder: data,
    "arrow table": lambda data, folder: pa.Table.from_pandas(data),
    "csv": saved("p.csv", lambda path, data: data.to_csv(path, index=False)),
    "parquet": saved("p.parquet", lambda path, data: data.to_parquet(path, row_group_size=2)),
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_value_of_a_column_is_a_silo(kind, tmp_path):
    silos = split_by_group(KINDS[kind](PATIENTS, tmp_path), "site", drop=["id"])
    assert list(silos) == ["NA", "east", "west"]
    assert [silo.n_rows for silo in silos.values()] == [2, 1, 2]
    assert silos["west"].columns == ("x", "y")
    assert read_all(silos["west"], 1).tolist() == [[1, 1], [3, 1]]
    assert read_all(silos["NA"]).tolist() == [[2, 0], [5, 0]]
    assert len({fingerprint(silo) for silo in silos.values()}) == 1  # that of the whole table
    assert read_all(silos["west"].select(("y",), extra="drop")).tolist() == [[1], [1]]
    gaps = PATIENTS.assign(site=["west", "east", None, "west", None])
    with pytest.raises(InputError, match=r"column 'site' of .* a missing value at row 3"):
        split_by_group(KINDS[kind](gaps, tmp_path), "site", drop=["id"])


@pytest.mark.parametrize(
    ("data", "options", "sentence"),
    [
        (np.ones((2, 2)), {"column": "site"}, "got ndarray"),
        (PATIENTS, {"column": "clinic"}, "has no column 'clinic' to split by"),
        (PATIENTS, {"column": "site", "drop": ["label"]}, "has no column 'label' to drop"),
        (PATIENTS[["site"]], {"column": "site"}, "at least one column"),
        (frame(a=np.arange(10_001), b=np.ones(10_001)), {"column": "a"}, "must name silos, got 10001 values"),
    ],
)
def test_a_split_needs_a_table_and_one_of_its_columns(data, options, sentence):
    with pytest.raises(InputError, match=sentence):
        split_by_group(data, **options)


def test_a_nameless_column_is_refused_only_where_it_is_used(tmp_path):
    path = tmp_path / "index.csv"
    path.write_text(",a,b\n0,1,3\n1,2,5\n")
    with pytest.raises(InputError, match=r"must have a name, got an unnamed"):
        match_columns([open_source(path)])
    columns, _ = match_columns([open_source(path, drop=[""])])
    assert columns == ("a", "b")
    columns, (chosen,) = match_columns([open_source(path, columns=["b", "a"], extra="drop")])
    with pytest.raises(InputError, match="got 'a' more than once"):
        open_source(path, columns=["a", "a"], extra="drop")
    assert columns == ("b", "a")
    assert np.vstack(list(chosen.blocks(7))).tolist() == [[3, 1], [5, 2]]


def hive(folder: Path) -> Path:
    """Write a table whose folders tell the year and the ward, and return where it is."""
    table = pa.table(
        {"year": [2020, 2020, 2019, 2019], "ward": ["a b", "c/d", "c/d", "a b"], "x": [1.0, 2, 3, 4]}
    )
    pq.write_to_dataset(table, folder / "hive", partition_cols=["year", "ward"])
    return folder / "hive"


def test_what_folders_tell_are_columns_and_rows_come_in_the_order_of_paths(tmp_path):
    source = open_source(hive(tmp_path), columns=["year", "x"], extra="drop")
    assert read_all(source).tolist() == [[2019, 4], [2019, 3], [2020, 1], [2020, 2]]
    assert source.n_rows == 4
    assert set(open_source(tmp_path / "hive").columns or ()) == {"x", "year", "ward"}
    assert read_all(source.select(("year",), extra="drop")).ravel().tolist() == [2019] * 2 + [2020] * 2
    assert "column 'ward' of" in refused(tmp_path / "hive")
    chosen = open_source(tmp_path / "hive" / "year=2019" / "*" / "*.parquet", columns=["x"], extra="drop")
    assert read_all(chosen).ravel().tolist() == [4, 3]


def test_the_fingerprint_of_a_folder_is_of_its_parts_and_of_what_its_folders_tell(tmp_path):
    folder = hive(tmp_path)
    before = fingerprint(open_source(folder))
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(open_source(moved)) == before
    (moved / "year=2019").rename(moved / "year=2018")
    assert fingerprint(open_source(moved)) != before


def test_parts_that_are_no_parts_are_refused(tmp_path):
    folder = tmp_path / "p"
    folder.mkdir()
    assert "must hold CSV, TSV, Parquet, Feather or Arrow files, got nothing" in refused(folder)
    (folder / "1.csv").write_text("a,b\n1,2\n")
    (folder / "2.csv").write_text("a,c\n1,2\n")
    assert f"2.csv must have the columns of {folder / '1.csv'}" in refused(folder)
    assert "got none named 'b'" in refused(folder)
    (folder / "2.csv").write_text("a,b,c\n1,2,3\n")
    assert "got also 'c'" in refused(folder)
    (folder / "2.csv").write_text("a,b\n1,77z\n")
    assert f"column 'b' of {folder / '2.csv'} must hold numbers, got text at row 1" in refused(folder)
    (folder / "2.csv").unlink()
    (folder / "notes.txt").write_text("")
    message = refused(folder)
    assert "got 1.csv and notes.txt" in message
    assert f"give a pattern in quotes such as '{folder}/*.csv'" in message
    assert read_all(open_source(folder / "*.csv")).tolist() == [[1, 2]]
    (folder / "y=1").mkdir()
    (folder / "y=1" / "3.csv").write_text("a,b\n1,2\n")
    (folder / "notes.txt").unlink()
    assert "must be in folders of the same keys" in refused(folder)
    assert "must hold CSV" in refused(folder / "*.parquet")


def test_silos_are_called_by_their_folder_file_or_sheet(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"a/north.csv.gz": "north", "north.d": "north", "a/*.csv": "a", "w.xlsx#Ost": "Ost"}
    assert {path: name_of_silo(path) for path in names} == names
    assert name_of_silo(".") == tmp_path.name.split(".")[0]


def test_a_file_and_its_folder_hold_the_same_rows(tmp_path):
    parts = in_parts(ROWS, tmp_path, pyarrow.csv.write_csv, ".csv")
    assert rows_at(parts / "a.csv") < rows_at(parts) == rows_at(f"{parts}/**/*.csv")
    assert rows_at("w.xlsx#A").isdisjoint(rows_at("w.xlsx#B"))


def test_a_registered_format_is_read_like_all_others(tmp_path, monkeypatch):
    rows = pl.DataFrame(np.random.default_rng(0).standard_normal((90, 3)), schema=["a", "b", "c"])
    (tmp_path / "north.avro").write_bytes(b"")
    with pytest.raises(InputError, match=r"must end in one of .*\.parquet, .* got '\.avro'"):
        open_source(tmp_path / "north.avro")
    monkeypatch.setitem(FORMATS, ".avro", FORMATS[".parquet"])  # taken out again after the test
    register(".avro", lambda path: pl.read_avro(path).lazy(), kind="Avro")
    with pytest.raises(InputError, match="must be a complete Avro file"):
        open_source(tmp_path / "north.avro")
    rows[:50].write_avro(tmp_path / "north.avro")
    rows[50:].write_avro(tmp_path / "south.avro")
    fit = FedPCA(2, epsilon=float("inf")).fit_silos([tmp_path / "north.avro", tmp_path / "south.avro"])
    pooled = FedPCA(2, epsilon=float("inf")).fit_silos([tmp_path])
    np.testing.assert_allclose(fit.explained_variance_, pooled.explained_variance_, rtol=1e-10)
    assert open_source(tmp_path).columns == ("a", "b", "c")
    assert len({fingerprint(open_source(tmp_path / name)) for name in ("north.avro", "south.avro")}) == 2
    assert not is_text(tmp_path)


@pytest.fixture
def book(tmp_path: Path) -> Path:
    heading = ["id", "site", "age", "smokes", "seen", "double"]
    rows = ([n, "ns"[n % 2], 40.5 + n, n > 2, dt.date(2024, 1, n), f"=2*{n}"] for n in range(1, 5))
    ward = [["a", "b"], [1, 2], [None, None], [3, 4]]
    return write_xlsx(tmp_path / "ward.xlsx", **{"Visits": [heading, *rows], "Ward 2": ward, "Empty": []})


def test_the_first_sheet_is_read_unless_another_is_named(book):
    source = open_source(book, columns=["age", "smokes"], extra="drop")
    assert read_all(source).tolist() == [[41.5, 0], [42.5, 0], [43.5, 1], [44.5, 1]]
    assert read_all(open_source(f"{book}#Ward 2")).tolist() == [[1, 2], [3, 4]]


def test_text_dates_and_formulas_without_a_value_are_refused(book):
    assert "column 'site' of" in refused(book)
    assert "must hold numbers, got text at row 1" in refused(book)
    assert "got text at row 1" in refused(book, columns=["seen"], extra="drop")
    assert "got a missing value" in refused(book, columns=["double"], extra="drop")


def test_a_sheet_must_be_there_and_hold_something(book, tmp_path):
    assert "one of 'Visits', 'Ward 2', 'Empty'" in refused(f"{book}#Ward 3")
    assert "got an empty sheet; name another one" in refused(f"{book}#Empty")
    assert "no such file" in refused(tmp_path / "none.xlsx#A")
    (tmp_path / "bad.xlsx").write_bytes(book.read_bytes()[:900])
    assert "must be a complete .xlsx workbook, got one that is truncated" in refused(tmp_path / "bad.xlsx")
    write_xlsx(tmp_path / "numbers.xlsx", A=[[1.5, 7.25], [3, 4]])
    assert "the first line of" in refused(tmp_path / "numbers.xlsx")
    write_xlsx(tmp_path / "heading.xlsx", A=[["a", "b"]])
    assert "must have at least one row, got none" in refused(tmp_path / "heading.xlsx")


def test_a_query_is_run_in_batches_and_in_order():
    rows = np.arange(30_000.0).reshape(-1, 3)
    frame = pl.DataFrame(rows, schema=["a", "b", "c"]).lazy().with_columns(pl.col("b") * 2)
    source = open_source(frame.filter(pl.col("a") > 30))
    blocks = list(source.blocks(1000))
    assert max(len(np.asarray(block)) for block in blocks) <= 1000
    expected = rows[rows[:, 0] > 30] * [1, 2, 1]
    np.testing.assert_array_equal(np.vstack([np.asarray(block) for block in blocks]), expected)
