"""Bad data: one sentence each, with file, column and row, and never a cell's value."""

import gzip
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pytest
from row_forms import FORMS, forms, read_all, sample_rows
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.opening import open_source

CELL = "31337"


def refusal(make: Callable[[], Any]) -> str:
    with pytest.raises(InputError) as caught:
        make()
    message = str(caught.value)
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    assert "\n" not in message
    assert CELL not in message
    assert " must " in message
    assert ", got " in message
    return message


def refused(data: Any, **options: Any) -> str:
    return refusal(lambda: read_all(open_source(data, **options), 7))


FLOAT_FORMS = [form for form in FORMS if form not in ("pandas of many dtypes", "source")]


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("form", forms(FLOAT_FORMS))
def test_a_missing_or_infinite_value_is_refused_with_its_column_and_row(
    form: str, value: float, tmp_path: Path
) -> None:
    rows = sample_rows()
    rows[16, 1] = value
    rows[16, 3] = value
    rows[40, 0] = value
    message = refused(FORMS[form](rows, tmp_path))
    assert "at row 17" in message
    assert "column 'dose' of" in message or "column 2 of" in message
    what = "a missing value" if np.isnan(value) else "an infinite value"
    assert what in message


def test_nulls_and_masked_entries_are_missing_values(tmp_path: Path) -> None:
    data = pa.table({"a": [1, 2, None], "b": [True, None, False]})
    assert "column 'b' of the table must hold finite numbers, got a missing" in refused(data)
    assert "at row 2" in refused(data)
    assert "column 'c'" in refused(pa.table({"c": pa.nulls(3)}))
    masked = np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [1, 0]])
    assert "column 1 of the array" in refused(masked)
    frame = pd.DataFrame({"a": pd.array([1, 2, None], dtype="Int64")})
    assert "at row 3" in refused(frame, name="silo 'north'")
    assert "silo 'north'" in refused(frame, name="silo 'north'")


@pytest.mark.parametrize("cell", ["", "NA", "nan", "null", "N/A"])
def test_an_empty_csv_cell_is_refused(tmp_path: Path, cell: str) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b\n1,2\n\n3," + cell + "\n4,5\n")
    message = refused(path)
    assert f"column 'b' of {path} must hold finite numbers, got a missing value" in message
    assert "at row 2" in message


@pytest.mark.slow
@pytest.mark.parametrize("early", [True, False])
def test_text_in_a_csv_column_is_refused_without_quoting_it(tmp_path: Path, early: bool) -> None:
    path = tmp_path / "a.csv"
    good = "1.5,2\n" * (17 if early else 20_000)
    path.write_text("a,b\n" + good + f"1,x{CELL}\n1,{CELL}y\n")
    row = 18 if early else 20_001
    expected = f"column 'b' of {path} must hold numbers, got text at row {row}; drop the column"
    assert expected in refused(path)


@pytest.mark.parametrize(
    "values",
    [[CELL, "b"], pd.to_datetime(["2020-01-01", "2020-01-02"]), pd.Categorical([CELL, "b"])],
    ids=["text", "date", "category"],
)
@pytest.mark.parametrize("kind", ["frame", "parquet", "feather"])
def test_a_column_that_is_not_numeric_is_refused(tmp_path: Path, values: Any, kind: str) -> None:
    data: Any = pd.DataFrame({"a": [1.0, 2.0], "city": values})
    if kind == "parquet":
        data.to_parquet(tmp_path / "a.parquet")
        data = tmp_path / "a.parquet"
    elif kind == "feather":
        pyarrow.feather.write_feather(pa.Table.from_pandas(data), tmp_path / "a.feather")
        data = tmp_path / "a.feather"
    message = refused(data)
    assert "column 'city' of" in message
    assert "must hold numbers, got" in message
    assert "at row 1;" in message


def test_an_object_among_numbers_is_refused_at_its_row() -> None:
    frame = pd.DataFrame({"a": [1, 2.5, f"{CELL}x", "z"]}, dtype=object)
    assert "column 'a' of the data frame must hold numbers, got text at row 3" in refused(frame)
    assert "got text at row 1" in refused(pd.DataFrame({"a": [1 + 2j]}))


def test_a_ragged_csv_is_refused_at_its_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"a,b\n1,2\n3,4\n5,6,{CELL}\n")
    message = refused(path)
    assert f"every row of {path} must have 2 cells like its first line, got 3 at row 3" in message
    path.write_text("a,b\n" + "1,2\n" * 20_000 + f"{CELL}\n")
    assert "must have 2 cells like its first line, got 1 at row 20001" in refused(path)
    path.write_text('a,b\n1,2\n\n"3\n",4\n1\n')
    assert "got 1 at row 3" in refused(path)


def test_a_csv_needs_a_line_of_names(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(f"1.5,{CELL}\n3,4\n")
    assert "the first line" in refused(path)
    path.write_text("0,1\n3,4\n")
    assert open_source(path).columns == ("0", "1")


@pytest.mark.parametrize(
    ("ending", "text", "rows"),
    [
        (".csv", "a;b\n3;4\n", [[3, 4]]),
        (".csv", "a;b\n1,5;2\n3;4\n", [[1.5, 2], [3, 4]]),
        (".csv", "a;b\n1.5;2\n3;4\n", [[1.5, 2], [3, 4]]),
        (".csv", '"a,b";"c"\n1,5;-,25e1\n', [[1.5, -2.5]]),
        (".csv", "a\tb\n3\t4\n", [[3, 4]]),
        (".csv", "a|b\n3|4,25\n", [[3, 4.25]]),
        (".tsv", "a,b\n3,4\n", [[3, 4]]),
        (".tsv", "a, in kg\tb\n3,1\t4\n", [[3.1, 4]]),
    ],
)
def test_another_separator_is_seen_in_the_heading(
    ending: str, text: str, rows: list[list[float]], tmp_path: Path
) -> None:
    path = tmp_path / f"a{ending}"
    path.write_text(text)
    assert read_all(open_source(path)).tolist() == rows


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("a;b,c\n3;4,5\n", "got commas and semicolons; give separator"),
        ("a;b\n1,5;2.5\n", "got both points and commas; give decimal"),
        ("a;b\n1,500;2\n", "got commas that may separate thousands; give decimal"),
        ("a;b\n" + "1;2\n" * 20_000 + "1;2,5\n", "got one with a comma at row 20001; give decimal"),
        ("a;b\n1,5;2\n" + "1;2\n" * 20_000 + f"1.{CELL};2\n", "got one with a point at row 20002"),
        (f"a;b\n1,5;2\n{CELL}x;2\n", "column 'a' of .* must hold numbers, got text at row 2"),
    ],
)
def test_what_a_text_leaves_in_doubt_is_asked_for(text: str, sentence: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text(text)
    assert re.search(sentence, refused(path))


def test_a_separator_decimal_and_encoding_may_be_told(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("Größe, cm;b\n1,500;2\n", encoding="cp1252")
    assert "delimited text in UTF-8" in refused(path)
    assert "give its encoding" in refused(path)
    told = open_source(path, separator="semicolon", decimal=",", encoding="windows-1252")
    assert told.columns == ("Größe, cm", "b")
    assert read_all(told).tolist() == [[1.5, 2.0]]
    assert "got 'UTF 9'" in refused(path, encoding="UTF 9")
    assert "got 'zlib_codec'" in refused(path, encoding="zlib_codec")
    assert "separator must be one character" in refused(path, separator="1")
    assert "decimal must be a point or a comma, got ';'" in refused(path, decimal=";")
    assert "decimal must be another sign than separator" in refused(path, separator=",", decimal=",")
    assert "got '|' nowhere in it" in refused(path, encoding="cp1252", separator="|")
    assert "must go with text files" in refused(pd.DataFrame({"a": [1.0]}), separator=";")


@pytest.mark.parametrize(
    "column", [pd.Series([1.0, 2.0]), pa.array([1.0, 2.0]), pa.chunked_array([[1.0, 2.0]])]
)
def test_a_single_column_is_no_table(column: Any) -> None:
    kind = type(column).__name__
    assert f"must be a 2-d table of rows by columns, got a {kind} of one" in refused(column)


def test_duplicate_names_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a,b,a\n1,2,3\n")
    assert f"{path} must have distinct column names, got 'a' more than once" in refused(path)
    frame = pd.DataFrame([[1, 2]], columns=["u", "u"])
    assert "got 'u' more than once" in refused(frame)
    double = pa.table([[1], [2]], names=["u", "u"])
    assert "got 'u' more than once" in refused(double)
    pa.parquet.write_table(double, tmp_path / "a.parquet")
    assert "must have distinct column names, got one more than once" in refused(tmp_path / "a.parquet")


def test_empty_files_and_tables_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("")
    assert f"{path} must have a line of column names and rows, got an empty file" in refused(path)
    path.write_text("a,b\n")
    assert f"{path} must have at least one row, got none" in refused(path)
    assert "at least one row" in refused(np.empty((0, 3)))
    assert "at least one column" in refused(np.empty((3, 0)))
    assert "at least one row" in refused(sparse.csr_array((0, 3)))
    assert "at least one row" in refused(pd.DataFrame({"a": []}))
    assert "at least one column" in refused(pd.DataFrame(index=[1, 2]))
    svm = tmp_path / "a.svm"
    svm.write_text("# nothing\n")
    assert "at least one" in refused(svm)
    assert "at least one row" in refused(svm, n_features=3)


@pytest.mark.parametrize("form", ["npy", "npz", "csr npz", "parquet", "feather", "csv.gz"])
@pytest.mark.parametrize("share", [0.0, 0.02, 0.6, 0.97])
def test_a_truncated_file_is_refused(form: str, share: float, tmp_path: Path) -> None:
    path = FORMS[form](sample_rows(), tmp_path)
    data = path.read_bytes()
    path.write_bytes(data[: int(share * len(data))])
    assert str(path) in refused(path)


@pytest.mark.parametrize("form", ["npz", "parquet", "feather", "csr npz"])
def test_a_damaged_file_is_refused(form: str, tmp_path: Path) -> None:
    path = FORMS[form](sample_rows(), tmp_path)
    data = bytearray(path.read_bytes())
    if form in ("parquet", "feather"):
        data[:8] = data[-8:] = b"\x00" * 8
    else:
        middle = len(data) // 4
        data[middle : middle + 40] = b"\xff" * 40
    path.write_bytes(bytes(data))
    assert str(path) in refused(path)


def test_arrays_must_be_real_and_two_dimensional(tmp_path: Path) -> None:
    assert "must be a 2-d array of rows by columns, got 1-d" in refused(np.ones(3))
    assert "complex dtype complex128" in refused(np.ones((2, 2), dtype=complex))
    assert "object dtype object" in refused(np.array([[CELL, None]], dtype=object))
    assert "non-numeric dtype str" in refused(np.array([["a", "b"]]))
    assert "complex" in refused(sparse.csr_array(np.ones((2, 2), dtype=complex)))
    np.save(tmp_path / "o.npy", np.array([[CELL, None]], dtype=object), allow_pickle=True)
    assert "object dtype" in refused(tmp_path / "o.npy")
    np.save(tmp_path / "c.npy", np.ones((2, 2), dtype=complex))
    assert "complex dtype" in refused(tmp_path / "c.npy")
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    assert "an array named X or exactly one 2-d array, got 2" in refused(tmp_path / "two.npz")
    np.savez(tmp_path / "flat.npz", a=np.ones(3))
    assert "got 1-d" in refused(tmp_path / "flat.npz")


def test_paths_must_be_files_of_a_known_kind(tmp_path: Path) -> None:
    assert "must be a file that exists" in refused(tmp_path / "none.csv")
    assert "must hold CSV, TSV, Parquet, Feather or Arrow files, got nothing" in refused(tmp_path)
    (tmp_path / "a.ods").write_text("")
    assert ".parquet" in refused(tmp_path / "a.ods")
    assert "got '.ods'" in refused(str(tmp_path / "a.ods"))
    assert "got list" in refused([[1, 2]])
    reader = pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), [])
    assert "more than once" in refused(reader)


def test_svmlight_lines_must_be_pairs(tmp_path: Path) -> None:
    for bad in (f"1 x{CELL}", f"1 2:{CELL}z", "1 1:2:3", "1 a:2", "1 3:", "1 1.5:2"):
        path = tmp_path / "a.svm.gz"
        path.write_bytes(gzip.compress(f"1 1:2\n0 1:1\n{bad}\n1 1:1\n".encode()))
        assert "at row 3" in refused(path)
        assert "at row 3" in refused(path, n_features=4)


def test_options_must_fit_the_source() -> None:
    rows = np.ones((2, 3))
    assert "n_features=4 columns, got 3" in refused(rows, n_features=4)
    assert "got 2 names" in refused(rows, columns=["a", "b"])
    assert "must have column names to drop 'a'" in refused(rows, drop=["a"])
    assert "keep at least one column" in refused(pd.DataFrame({"a": [1]}), drop=["a"])
    assert "column names to select" in refusal(lambda: open_source(rows).select(("a",)))
    assert "max_rows must be at least 1" in refusal(lambda: list(open_source(rows).blocks(0)))
    frame = pd.DataFrame({"a": [1]})
    message = refused(frame, columns=["a"], extra="keep")
    assert "extra must be 'refuse' or 'drop'" in message
