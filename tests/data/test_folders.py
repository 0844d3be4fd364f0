"""A folder or a pattern is one table in parts, in the order of their paths."""

from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from row_forms import in_parts, read_all, sample_rows
from test_bad_data import refused

from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import name_of_silo, open_source, rows_at

ROWS = sample_rows()


def hive(folder: Path) -> Path:
    """Write a table whose folders tell the year and the ward, and return where it is."""
    table = pa.table(
        {"year": [2020, 2020, 2019, 2019], "ward": ["a b", "c/d", "c/d", "a b"], "x": [1.0, 2, 3, 4]}
    )
    pq.write_to_dataset(table, folder / "hive", partition_cols=["year", "ward"])
    return folder / "hive"


def test_what_folders_tell_are_columns_and_rows_come_in_the_order_of_paths(tmp_path: Path) -> None:
    source = open_source(hive(tmp_path), columns=["year", "x"], extra="drop")
    assert read_all(source).tolist() == [[2019, 4], [2019, 3], [2020, 1], [2020, 2]]
    assert source.n_rows == 4
    assert set(open_source(tmp_path / "hive").columns or ()) == {"x", "year", "ward"}
    assert read_all(source.select(("year",), extra="drop")).ravel().tolist() == [2019] * 2 + [2020] * 2
    assert "column 'ward' of" in refused(tmp_path / "hive")
    chosen = open_source(tmp_path / "hive" / "year=2019" / "*" / "*.parquet", columns=["x"], extra="drop")
    assert read_all(chosen).ravel().tolist() == [4, 3]


def test_the_fingerprint_of_a_folder_is_of_its_parts_and_of_what_its_folders_tell(tmp_path: Path) -> None:
    folder = hive(tmp_path)
    before = fingerprint(open_source(folder))
    moved = folder.rename(tmp_path / "elsewhere")
    assert fingerprint(open_source(moved)) == before
    (moved / "year=2019").rename(moved / "year=2018")
    assert fingerprint(open_source(moved)) != before


def test_parts_that_are_no_parts_are_refused(tmp_path: Path) -> None:
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


def test_silos_are_called_by_their_folder_file_or_sheet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    names = {"a/north.csv.gz": "north", "north.d": "north", "a/*.csv": "a", "w.xlsx#Ost": "Ost"}
    assert {path: name_of_silo(path) for path in names} == names
    assert name_of_silo(".") == tmp_path.name.split(".")[0]


def test_a_file_and_its_folder_hold_the_same_rows(tmp_path: Path) -> None:
    parts = in_parts(ROWS, tmp_path, pyarrow.csv.write_csv, ".csv")
    assert rows_at(parts / "a.csv") < rows_at(parts) == rows_at(f"{parts}/**/*.csv")
    assert rows_at("w.xlsx#A").isdisjoint(rows_at("w.xlsx#B"))
