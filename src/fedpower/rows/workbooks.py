"""Sheets of workbooks: ``ward.xlsx`` is its first sheet, ``ward.xlsx#Visits`` the one of that name."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from numbers import Real
from pathlib import Path
from typing import Any

from fedpower.errors import InputError, installing
from fedpower.rows.columns import not_a_number, shown
from fedpower.rows.files import require_header
from fedpower.rows.tables import arrow

ENDING = ".xlsx"
_Row = list[Any]


def sheet_of(path: Path) -> tuple[Path, str | None]:
    """Return the file of a path, and the sheet that is named after it; None for the first."""
    text = str(path)
    at = text.lower().rfind(f"{ENDING}#")
    if at < 0 or path.exists():
        return path, None
    cut = at + len(ENDING)
    return Path(text[:cut]), text[cut + 1 :]


@dataclass(frozen=True, kw_only=True, eq=False)
class SheetTable:
    """A sheet as a reader of batches."""

    name: str
    columns: tuple[str, ...]
    path: Path
    sheet: str | None

    @property
    def n_rows(self) -> None:
        """Unknown until the sheet has been read."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches with numbers in every column that is no label."""
        pa = arrow()
        names = [*columns, *labels]
        places = [self.columns.index(column) for column in names]
        first = 0
        with _opened(self.path, self.name, self.sheet) as rows:
            next(rows)
            while part := list(islice(rows, max_rows)):
                cells = [
                    self._numbers(column, [row[place] for row in part], first)
                    for column, place in zip(columns, places, strict=False)
                ]
                cells += [
                    pa.array([_as_written(row[place]) for row in part], pa.string())
                    for place in places[len(columns) :]
                ]
                yield pa.RecordBatch.from_arrays(cells, names=names)
                first += len(part)

    def _numbers(self, column: str, cells: list[Any], first: int) -> Any:
        """Return cells as numbers, what is empty as null."""
        for place, cell in enumerate(cells):
            if cell != "" and not isinstance(cell, Real):
                kind = "text" if isinstance(cell, str) else f"a {type(cell).__name__}"
                raise not_a_number(self.name, column, kind, first + place)
        values = [None if cell == "" else float(cell) for cell in cells]
        return arrow().array(values, arrow().float64())


def _as_written(cell: Any) -> str | None:
    """Return a cell as text, a whole number without decimals as sheets show it; None if empty."""
    if cell == "":
        return None
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


@contextmanager
def _opened(path: Path, name: str, sheet: str | None) -> Iterator[Iterator[_Row]]:
    """Give the rows of a sheet that hold anything, the heading first."""
    try:
        calamine: Any = import_module("python_calamine")
    except ImportError:
        raise InputError(
            f"{name} must be read with the package python-calamine, got none installed; run "
            + installing("excel")
        ) from None
    try:
        with calamine.CalamineWorkbook.from_path(path) as book:
            if sheet is not None and sheet not in book.sheet_names:
                raise InputError(
                    f"{name} must name a sheet of {path}, got none of that name; its sheets are "
                    f"{shown(book.sheet_names)}"
                )
            found = book.get_sheet_by_index(0) if sheet is None else book.get_sheet_by_name(sheet)
            yield (row for row in found.iter_rows() if any(cell != "" for cell in row))
    except calamine.PasswordError:
        raise InputError(
            f"{name} must be a workbook without a password, got one that has it; save it without, or as CSV"
        ) from None
    except (calamine.CalamineError, OSError):
        raise InputError(
            f"{name} must be a complete .xlsx workbook, got one that is truncated or damaged; write or "
            "copy it again"
        ) from None


def sheet_reader(path: Path, name: str, sheet: str | None = None) -> SheetTable:
    """Return the reader of a sheet, after a look at its first row."""
    with _opened(path, name, sheet) as rows:
        heading = next(rows, None)
    if heading is None:
        raise InputError(
            f"{name} must have a row of column names and rows, got an empty sheet; name another sheet "
            f"({path}#SHEET), or write it again"
        )
    columns = tuple(_as_written(cell) or "" for cell in heading)
    require_header(name, columns)
    return SheetTable(name=name, columns=columns, path=path, sheet=sheet)
