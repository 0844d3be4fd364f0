"""Text that is plain numbers is read the fast way, all other text as Arrow's reader reads it."""

import gzip
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedpower.errors import InputError
from fedpower.rows.files import CsvTable
from fedpower.rows.opening import open_source
from fedpower.rows.tables import NotPlainError, TableSource

NAMES = ("a", "b", "c")
HEADING = "a,b,c\n"


def numbers(count: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((count, 3)) * 10.0 ** rng.integers(-300, 300, (count, 3))
    rows[::7] = rng.integers(-9, 9, rows[::7].shape)
    return rows


def lines(rows: Any) -> list[str]:
    return [",".join(repr(float(value)) for value in row) + "\n" for row in rows]


ROWS = numbers(400)
LINES = lines(ROWS)


def changed(place: int, line: str) -> str:
    """The text with another line in a place far behind what is parsed at once."""
    return HEADING + "".join([*LINES[:place], line, *LINES[place:]])


TEXTS = {
    "plain": HEADING + "".join(LINES),
    "no last line end": HEADING + "".join(LINES)[:-1],
    "two characters a line end": (HEADING + "".join(LINES)).replace("\n", "\r\n"),
    "some line ends of two": changed(200, "1,2,3\r\n"),
    "signed exponents": changed(200, "1e+05,-2E-3,3e5\n"),
    "short cells": HEADING + "1,2,3\n.5,-1,7.\n" * 300,
    "quoted names": '"a","b",c\n' + "".join(LINES),
    "a mark of the byte order": "\ufeff" + HEADING + "".join(LINES),
    "one row": HEADING + "1,2,3\n",
    "a quoted cell": changed(200, '1,"2",3\n'),
    "blanks": changed(200, " 1, 2 ,3\n"),
    "an empty line": changed(200, "\n"),
    "empty lines first": "\n\n" + HEADING + "".join(LINES),
    "line ends of old": (HEADING + "".join(LINES)).replace("\n", "\r"),
    "a plus": changed(200, "+1,2,3\n"),
    "an empty cell": changed(200, "1,,3\n"),
    "text": changed(200, "1,two,3\n"),
    "not a number": changed(200, "1,nan,3\n"),
    "infinite": changed(200, "1,inf,3\n"),
    "too large": changed(200, "1,1e999,3\n"),
    "a cell too few": changed(200, "1,2\n"),
    "a cell too many": changed(200, "1,2,3,4\n"),
    "one too few and one too many": changed(200, "1,2\n1,2,3,4\n"),
    "true and false": HEADING + "1,true,2\n0,false,3\n" * 300,
    "another language": HEADING.replace("b", "é") + "".join(LINES),
    "no rows": HEADING,
}


def opened(path: Path) -> TableSource:
    source = open_source(str(path))
    assert isinstance(source, TableSource)
    assert isinstance(source.reader, CsvTable)
    return replace(source, reader=replace(source.reader, block_bytes=2**11))


def found(source: TableSource, max_rows: int) -> tuple[list[list[float]], str]:
    rows: list[list[float]] = []
    try:
        for block in source.blocks(max_rows):
            assert 0 < len(block) <= max_rows
            rows += block.tolist()
    except InputError as refused:
        return rows, str(refused)
    return rows, ""


def both(path: Path, monkeypatch: pytest.MonkeyPatch, columns: tuple[str, ...] | None) -> Any:
    """What is read the usual way, and what by Arrow's reader alone."""

    def never(*_: object) -> Any:
        raise NotPlainError

    source = opened(path)
    if columns is not None:
        source = source.select(columns, extra="drop")
    usual = [found(source, max_rows) for max_rows in (1, 17, 10**9)]
    monkeypatch.setattr(CsvTable, "plain_rows", never)
    return usual, found(source, 10**9)


@pytest.mark.parametrize("name", TEXTS)
def test_every_text_is_read_or_refused_as_by_the_reader_of_any_text(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "rows.csv"
    path.write_bytes(TEXTS[name].encode())
    columns = ("c", "a") if name != "no rows" else None
    for wanted in (None, columns):
        with monkeypatch.context() as patch:
            try:
                usual, alone = both(path, patch, wanted)
            except InputError:  # its head is refused before any row is read
                continue
            for rows, refusal in usual:
                assert refusal == alone[1]
                if not refusal:
                    assert rows == alone[0]


@pytest.mark.parametrize(
    "name", ["plain", "no last line end", "two characters a line end", "signed exponents", "quoted names"]
)
@pytest.mark.parametrize("ending", [".csv", ".tsv", ".csv.gz"])
def test_numbers_are_read_without_the_slow_reader_to_the_last_bit(
    name: str, ending: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = TEXTS[name].replace(",", "\t" if ending == ".tsv" else ",").encode()
    path = tmp_path / f"rows{ending}"
    path.write_bytes(gzip.compress(text) if ending.endswith("gz") else text)
    source = opened(path)
    monkeypatch.delattr(CsvTable, "batches")
    rows, refusal = found(source, 50)
    assert not refusal
    kept = [row for row in rows if row not in ([1e5, -2e-3, 3e5],)]
    assert kept == ROWS.tolist()


def test_a_refusal_names_the_row_of_the_table_wherever_reading_changed(tmp_path: Path) -> None:
    path = tmp_path / "rows.csv"
    path.write_text(changed(333, "1,,3\n"))
    rows, refusal = found(opened(path), 10)
    assert "at row 334" in refusal
    assert rows == ROWS[: len(rows)].tolist()
