"""Bad data: one sentence each, with file, column and row, and never a cell's value."""

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from row_forms import FORMS, forms, read_all, sample_rows
from scipy import sparse

from fedpower.exceptions import InputError
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
    assert " must " in message or message.startswith("no such file: ")
    assert ", got " in message or message.startswith("no such file: ")
    return message


def refused(data: Any, **options: Any) -> str:
    return refusal(lambda: read_all(open_source(data, **options), 7))


SEVERAL = ("array", "csr", "csv", "parquet", "sqlite", "npy")
PLACED = [
    pytest.param(form.values[0], value, marks=form.marks)
    for form in forms(FORMS)
    if form.values[0] not in ("pandas of many dtypes", "source")
    for value in ((np.nan, np.inf, -np.inf) if form.values[0] in SEVERAL else (np.nan,))
]


@pytest.mark.parametrize(("form", "value"), PLACED)
def test_a_missing_or_infinite_value_is_refused_with_its_column_and_row(form, value, tmp_path):
    rows = sample_rows()
    rows[16, 1] = rows[16, 3] = rows[40, 0] = value
    message = refused(FORMS[form](rows, tmp_path))
    assert "at row 17" in message
    assert "column 'dose' of" in message or "column 2 of" in message
    assert ("a missing value" if np.isnan(value) else "an infinite value") in message


def frame(*cells: Any, **options: Any) -> pd.DataFrame:
    return pd.DataFrame({"a": pd.Series(cells, **options)})


FLAWED: dict[str, tuple[Any, dict[str, Any], str]] = {
    "nulls": (pa.table({"a": [1, 2], "b": [True, None]}), {},
              "column 'b' of the table must hold finite numbers, got a missing value .* at row 2"),
    "a column of nulls": (pa.table({"c": pa.nulls(3)}), {}, "column 'c'"),
    "a masked entry": (np.ma.masked_array([[1.0, 2.0], [3.0, 4.0]], mask=[[0, 0], [1, 0]]), {},
                       "column 1 of the array"),
    "a missing integer": (frame(1, 2, None, dtype="Int64"), {"name": "silo 'n'"}, "silo 'n' .*at row 3"),
    "an object among numbers": (frame(1, 2.5, f"{CELL}x", "z", dtype=object), {},
                                "column 'a' of the data frame must hold numbers, got text at row 3"),
    "complex numbers": (frame(1 + 2j), {}, "got text at row 1"),
    "text": (frame(CELL, "b"), {}, "column 'a' of .* must hold numbers, got .* at row 1;"),
    "a date": (frame(*pd.to_datetime(["2020-01-01"])), {}, "must hold numbers, got dates .* at row 1;"),
    "a category": (frame(CELL, dtype="category"), {}, "must hold numbers, got .* at row 1;"),
    "a series": (pd.Series([1.0, 2.0]), {}, "must be a 2-d table of rows by columns, got a Series of one"),
    "an Arrow array": (pa.array([1.0, 2.0]), {}, "got a DoubleArray of one"),
    "a chunked array": (pa.chunked_array([[1.0, 2.0]]), {}, "got a ChunkedArray of one"),
    "a frame with a name twice": (pd.DataFrame([[1, 2]], columns=["u", "u"]), {},
                                  "distinct column names, got 'u' more than once"),
    "a table with a name twice": (pa.table([[1], [2]], names=["u", "u"]), {}, "got 'u' more than once"),
    "no rows": (np.empty((0, 3)), {}, "at least one row"),
    "no columns": (np.empty((3, 0)), {}, "at least one column"),
    "no sparse rows": (sparse.csr_array((0, 3)), {}, "at least one row"),
    "an empty frame": (pd.DataFrame({"a": []}), {}, "at least one row"),
    "a frame of an index": (pd.DataFrame(index=[1, 2]), {}, "at least one column"),
    "a vector": (np.ones(3), {}, "must be a 2-d array of rows by columns, got 1-d"),
    "a complex array": (np.ones((2, 2), dtype=complex), {}, "complex dtype complex128"),
    "a sparse complex array": (sparse.csr_array(np.ones((2, 2), dtype=complex)), {}, "complex"),
    "an object array": (np.array([[CELL, None]], dtype=object), {}, "object dtype object"),
    "an array of texts": (np.array([["a", "b"]]), {}, "non-numeric dtype str"),
    "a list": ([[1, 2]], {}, "got list"),
    "a stream": (pa.RecordBatchReader.from_batches(pa.schema([("a", pa.int64())]), []), {}, "more than once"),
    "another width": (np.ones((2, 3)), {"n_features": 4}, "n_features=4 columns, got 3"),
    "too few names": (np.ones((2, 3)), {"columns": ["a", "b"]}, "got 2 names"),
    "nothing to drop by": (np.ones((2, 3)), {"drop": ["a"]}, "must have column names to drop 'a'"),
    "nothing left": (frame(1), {"drop": ["a"]}, "keep at least one column"),
    "another word for extra": (frame(1), {"columns": ["a"], "extra": "keep"}, "extra must be 'refuse' or"),
    "a separator for a frame": (frame(1.0), {"separator": ";"}, "must be used with text files"),
    "rename is no mapping": (frame(1.0), {"rename": ["a"]}, "rename must be a mapping from names"),
    "an unknown name": (frame(1.0), {"rename": {"weight": "w"}},
                        "rename must be of columns of the data frame, got 'weight', not 'a'"),
    "an old name": (frame(1.0), {"rename": {"a": "w"}, "factors": {"a": 2.2}}, "got 'a', not 'w'"),
    "one name for two": (pd.DataFrame({"a": [1], "b": [2]}), {"rename": {"a": "b"}}, "'b' more than once"),
    "units of text": (frame("x"), {"factors": {"a": 2.0}}, "column 'a' of .* must hold numbers"),
    "a query that holds all rows at once": (pl.LazyFrame({"a": [1]}).map_batches(lambda part: part), {},
                                            "must be a query that Polars can stream"),
    "a query that fails": (pl.LazyFrame({"x": [f"{CELL}z"]}).select(pl.col("x").cast(pl.Float64)), {},
                           "got InvalidOperationError from Polars"),
    "a query of nothing": (pl.LazyFrame({"x": [1]}).select("b"), {}, "got ColumnNotFoundError from Polars"),
    "a query of text": (pl.LazyFrame({"x": [CELL]}), {}, "must hold numbers, got type String"),
}  # fmt: skip


@pytest.mark.parametrize("case", FLAWED)
def test_what_is_in_memory_is_refused_by_what_is_wrong(case):
    data, options, sentence = FLAWED[case]
    assert re.search(sentence, refused(data, **options))


SVM = "every line of .* must be a label and index:value pairs in order"
TEXTS: dict[str, tuple[str, str, dict[str, Any], str]] = {
    **{f"a cell with {cell or 'nothing'}": (
        "t.csv", f"a,b\n1,2\n\n3,{cell}\n4,5\n", {},
        "column 'b' of .*t.csv must hold finite numbers, got a missing value .* at row 2",
    ) for cell in ("", "NA", "nan", "null", "N/A")},
    "an empty cell in another unit": ("t.csv", "a,b\n1,x\n,y\n", {"drop": ["b"], "factors": {"a": 2.0}},
                                      "column 'a' of .* got a missing value .* at row 2"),
    "text": ("t.csv", "a,b\n" + "1.5,2\n" * 17 + f"1,x{CELL}\n1,{CELL}y\n", {},
             "column 'b' of .* must hold numbers, got text at row 18; drop the column"),
    "too many cells": ("t.csv", f"a,b\n1,2\n3,4\n5,6,{CELL}\n", {},
                       "every row of .*t.csv must have 2 cells like its first line, got 3 at row 3"),
    "too few cells": ("t.csv", 'a,b\n1,2\n\n"3\n",4\n1\n', {}, "got 1 at row 3"),
    "no names": ("t.csv", f"1.5,{CELL}\n3,4\n", {}, "the first line of"),
    "a name twice": ("t.csv", "a,b,a\n1,2,3\n", {}, "must have distinct column names, got 'a' more than"),
    "nothing": ("t.csv", "", {}, "must have a line of column names and rows, got an empty file"),
    "no rows": ("t.csv", "a,b\n", {}, "must have at least one row, got none"),
    "two separators": ("t.csv", "a;b,c\n3;4,5\n", {}, "got commas and semicolons; give separator"),
    "two decimal signs": ("t.csv", "a;b\n1,5;2.5\n", {}, "got both points and commas; give decimal"),
    "thousands": ("t.csv", "a;b\n1,500;2\n", {}, "got commas that may separate thousands; give decimal"),
    "text among decimal commas": ("t.csv", f"a;b\n1,5;2\n{CELL}x;2\n", {},
                                  "column 'a' of .* must hold numbers, got text at row 2"),
    "an unknown encoding": ("t.csv", "a,b\n1,2\n", {"encoding": "UTF 9"}, "got 'UTF 9'"),
    "an encoding of bytes": ("t.csv", "a,b\n1,2\n", {"encoding": "zlib_codec"}, "got 'zlib_codec'"),
    "a digit to separate": ("t.csv", "a,b\n1,2\n", {"separator": "1"}, "separator must be one character"),
    "another decimal sign": ("t.csv", "a,b\n1,2\n", {"decimal": ";"}, "must be a point or a comma, got ';'"),
    "one sign for both": ("t.csv", "a,b\n1,2\n", {"separator": ",", "decimal": ","}, "another sign than"),
    "a separator that is nowhere": ("t.csv", "a,b\n1,2\n", {"separator": "|"}, "got '|' nowhere in it"),
    "no svmlight rows": ("t.svm", "# nothing\n", {}, "at least one"),
    "no svmlight rows of a width": ("t.svm", "# nothing\n", {"n_features": 3}, "at least one row"),
    **{f"svmlight with {bad}": ("t.svm", f"1 1:2\n0 1:1\n{bad}\n1 1:1\n", {}, SVM)
       for bad in (f"1 x{CELL}", f"1 2:{CELL}z", "1 1:2:3", "1 a:2", "1 3:", "1 1.5:2")},
    "svmlight of a width": ("t.svm", "1 1:2\n0 1:1\n1 a:2\n", {"n_features": 4}, SVM),
    "another ending": ("t.ods", "", {}, r"must end in one of .*\.parquet, .* got '\.ods'"),
    "TOML that is none": ("t.toml", "query = ", {}, "must be TOML, got something else"),
    "TOML without data": ("t.toml", "data = 5", {}, "data in .* must be a table, got a whole number"),
    "TOML with an unknown key": ("t.toml", "[data]\npath = 'a.csv'\nsep = ','", {}, "got 'sep'"),
    "TOML of an array": ("t.toml", "[data]\npath = 'none.npy'", {}, "no such file"),
}  # fmt: skip


@pytest.mark.parametrize("case", TEXTS)
def test_a_text_is_refused_by_what_is_wrong(case, tmp_path):
    file, text, options, sentence = TEXTS[case]
    (tmp_path / file).write_text(text)
    assert re.search(sentence, refused(tmp_path / file, **options))


@pytest.mark.parametrize(
    ("ending", "text", "rows"),
    [
        (".csv", "0,1\n3,4\n", [[3, 4]]),
        (".csv", "a;b\n3;4\n", [[3, 4]]),
        (".csv", "a;b\n1,5;2\n3;4\n", [[1.5, 2], [3, 4]]),
        (".csv", "a;b\n1.5;2\n3;4\n", [[1.5, 2], [3, 4]]),
        (".csv", '"a,b";"c"\n1,5;-,25e1\n', [[1.5, -2.5]]),
        (".csv", "a\tb\n3\t4\n", [[3, 4]]),
        (".csv", "a|b\n3|4,25\n", [[3, 4.25]]),
        (".tsv", "a,b\n3,4\n", [[3, 4]]),
        (".tsv", "a, in kg\tb\n3,1\t4\n", [[3.1, 4]]),
        (".csv", "a,b\nTRUE,1\nfalse,2\n", [[1, 1], [0, 2]]),
    ],
)
def test_how_a_text_is_written_is_seen_in_its_beginning(ending, text, rows, tmp_path):
    path = tmp_path / f"a{ending}"
    path.write_text(text)
    assert read_all(open_source(path)).tolist() == rows


def test_a_separator_decimal_and_encoding_may_be_given(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("Größe, cm;b\n1,500;2\n", encoding="cp1252")
    assert "delimited text in UTF-8" in refused(path)
    assert "give its encoding" in refused(path)
    read = open_source(path, separator="semicolon", decimal=",", encoding="windows-1252")
    assert read.columns == ("Größe, cm", "b")
    assert read_all(read).tolist() == [[1.5, 2.0]]


@pytest.mark.parametrize("ending", [".parquet", ".feather"])
def test_a_typed_file_is_refused_by_its_columns(ending, tmp_path):
    path = tmp_path / f"a{ending}"
    write = pa.parquet.write_table if ending == ".parquet" else pyarrow.feather.write_feather
    write(pa.table({"a": [1.0], "city": [CELL]}), path)
    assert re.search("column 'city' of .* must hold numbers, got .* at row 1;", refused(path))
    if ending == ".parquet":
        write(pa.table([[1], [2]], names=["u", "u"]), path)
        assert "must have distinct column names, got a repeated name" in refused(path)


@pytest.mark.parametrize("form", ["npy", "npz", "csr npz", "parquet", "feather", "csv.gz"])
def test_a_truncated_or_damaged_file_is_refused(form, tmp_path):
    path = FORMS[form](sample_rows(), tmp_path)
    data = path.read_bytes()
    for share in (0.0, 0.02, 0.6, 0.97):
        path.write_bytes(data[: int(share * len(data))])
        assert str(path) in refused(path)
    if form in ("parquet", "feather"):
        path.write_bytes(b"\x00" * 8 + data[8:-8] + b"\x00" * 8)
    elif form.endswith("npz"):
        middle = len(data) // 4
        path.write_bytes(data[:middle] + b"\xff" * 40 + data[middle + 40 :])
    assert str(path) in refused(path)


def test_files_of_arrays_must_be_real_and_two_dimensional(tmp_path):
    np.save(tmp_path / "o.npy", np.array([[CELL, None]], dtype=object), allow_pickle=True)
    assert "object dtype" in refused(tmp_path / "o.npy")
    np.save(tmp_path / "c.npy", np.ones((2, 2), dtype=complex))
    assert "complex dtype" in refused(tmp_path / "c.npy")
    np.savez(tmp_path / "two.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    assert "an array named X or exactly one 2-d array, got 2" in refused(tmp_path / "two.npz")
    np.savez(tmp_path / "flat.npz", a=np.ones(3))
    assert "got 1-d" in refused(tmp_path / "flat.npz")


def test_rows_without_names_are_not_selected_by_name():
    assert "column names to select" in refusal(lambda: open_source(np.ones((2, 3))).select(("a",)))


@pytest.mark.parametrize("drop", [(), ("a",), ("b",), ("d",), ("a", "b", "c")])
@pytest.mark.parametrize("cell", ["2", '"2"'])
def test_a_row_with_too_many_cells_is_refused_whichever_columns_are_read(tmp_path, drop, cell):
    """Of a few columns Polars would read the cells one place further, and say nothing."""
    path = tmp_path / "north.csv"
    path.write_text(f"a,b,c,d\n1,{cell},3,4\n1,500,{cell},3,4\n1,2,3,4\n")
    with pytest.raises(InputError, match="must have 4 cells like its first line, got 5 at row 2"):
        list(open_source(path, drop=drop).blocks(10))
