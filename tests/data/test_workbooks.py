"""Sheets of .xlsx workbooks, as another program writes them."""

import datetime as dt
from pathlib import Path

import openpyxl
import pytest
from row_forms import read_all
from test_bad_data import refused

from fedpower.rows.opening import open_source, split_by_group
from workbooks import write_xlsx


@pytest.fixture
def book(tmp_path: Path) -> Path:
    made = openpyxl.Workbook()
    first = made.active
    first.title = "Visits"
    first.append(["id", "site", "age", "smokes", "seen", "double"])
    for number in range(1, 5):
        seen = dt.date(2024, 1, number)
        first.append([number, "ns"[number % 2], 40.5 + number, number > 2, seen, f"=2*{number}"])
    other = made.create_sheet("Ward 2")
    other.append(["a", "b"])
    other.append([1, 2])
    other.append([None, None])
    other.append([3, 4])
    made.create_sheet("Empty")
    path = tmp_path / "ward.xlsx"
    made.save(path)
    return path


def test_the_first_sheet_is_read_unless_another_is_named(book: Path) -> None:
    source = open_source(book, columns=["age", "smokes"], extra="drop")
    assert read_all(source).tolist() == [[41.5, 0], [42.5, 0], [43.5, 1], [44.5, 1]]
    assert read_all(open_source(f"{book}#Ward 2")).tolist() == [[1, 2], [3, 4]]


def test_silos_can_be_told_by_a_column_of_a_sheet(book: Path) -> None:
    silos = split_by_group(book, "site", columns=["id", "age"])
    assert {name: len(read_all(silo)) for name, silo in silos.items()} == {"n": 2, "s": 2}
    assert sorted(split_by_group(book, "id", columns=["age"])) == ["1", "2", "3", "4"]


def test_text_dates_and_formulas_without_a_value_are_refused(book: Path) -> None:
    assert "column 'site' of" in refused(book)
    assert "must hold numbers, got text at row 1" in refused(book)
    assert "got text at row 1" in refused(book, columns=["seen"], extra="drop")
    assert "got a missing value" in refused(book, columns=["double"], extra="drop")


def test_a_sheet_must_be_there_and_hold_something(book: Path, tmp_path: Path) -> None:
    assert "one of 'Visits', 'Ward 2', 'Empty'" in refused(f"{book}#Ward 3")
    assert "got an empty sheet; name another one" in refused(f"{book}#Empty")
    assert "must be a file that exists" in refused(tmp_path / "none.xlsx#A")
    (tmp_path / "bad.xlsx").write_bytes(book.read_bytes()[:900])
    assert "must be a complete .xlsx workbook, got one that is truncated" in refused(tmp_path / "bad.xlsx")
    write_xlsx(tmp_path / "numbers.xlsx", A=[[1.5, 7.25], [3, 4]])
    assert "the first line of" in refused(tmp_path / "numbers.xlsx")
    write_xlsx(tmp_path / "heading.xlsx", A=[["a", "b"]])
    assert "must have at least one row, got none" in refused(tmp_path / "heading.xlsx")
