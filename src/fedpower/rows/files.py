"""Files of tables: text, Parquet, Arrow, JSON lines, sheets of workbooks, and folders of their parts."""

from __future__ import annotations

import codecs
import csv
import glob
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import IO, Any
from urllib.parse import unquote

from fedpower.errors import InputError, installing
from fedpower.rows.columns import require_distinct, require_shape, shown
from fedpower.rows.source import pl
from fedpower.rows.tables import Part, Read, Table, cells_of, lazy_read, pandas_index
from fedpower.rules.expressions import Cells

# --- text -------------------------------------------------------------------------------------------------

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What separates cells, where nothing is said, and its name."""

_SEPARATOR_WORDS = {name.rstrip("s"): sign for sign, name in _SEPARATORS.items()} | {"\\t": "\t"}
"""How a separator may be called where it is awkward to type."""

_SAMPLE = 2**16
"""Characters at the beginning of a text from which its form is found."""

_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """How a text file writes its cells; what is None is found from its beginning, or refused."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            sign = _SEPARATOR_WORDS.get(self.separator, self.separator)
            if not (isinstance(sign, str) and len(sign) == 1 and _separates(sign)):
                raise InputError(
                    "separator must be one character that is no letter, digit, quote or "
                    f"point, got {self.separator!r}; give e.g. ';', ',' or tab"
                )
            object.__setattr__(self, "separator", sign)
        if self.decimal not in (None, ".", ","):
            raise InputError(f"decimal must be a point or a comma, got {self.decimal!r}; give one")
        if self.decimal == "," and self.separator == ",":
            raise InputError(
                "decimal must be another sign than the one between cells, got commas for "
                "both; give one of them otherwise"
            )
        if self.encoding is not None:
            if not _is_encoding(self.encoding):
                raise InputError(
                    f"encoding must be the name of a text encoding, got {self.encoding!r}; "
                    "give e.g. utf-8, cp1252 or latin-1"
                )
            name = codecs.lookup(self.encoding).name.removesuffix("-sig")
            object.__setattr__(self, "encoding", name)

    @property
    def is_given(self) -> bool:
        """Whether anything is said at all."""
        return self != TextForm()


def _separates(sign: str) -> bool:
    return sign.isascii() and not sign.isalnum() and sign not in "\"'.+-_\r\n\0"


def _is_encoding(name: object) -> bool:
    """Return whether Python can read text in an encoding of that name."""
    try:
        return isinstance(name, str) and isinstance(b"a".decode(name, "replace"), str)
    except (LookupError, ValueError):  # no such codec, or none from bytes to text
        return False


def csv_part(path: Path, name: str, form: TextForm = TextForm(), *, usual: str = ",") -> Part:  # noqa: B008
    """Return a CSV or TSV file, gzipped or not, after a look at its beginning."""
    try:
        with _opened_text(path) as stream:
            encoding = form.encoding or _MARKS.get(stream.read(2), "utf-8")
        sample = _sample(path, encoding)
    except (OSError, EOFError, UnicodeError):
        raise _unreadable(name, form.encoding or "utf-8") from None
    if not sample.strip("\ufeff\r\n"):
        raise InputError(
            f"{name} must have a line of column names and rows, got an empty file; write it again"
        )
    lines = sample.splitlines()
    separator = _separator(name, lines[0], form, usual)
    decimal = form.decimal or _decimal(name, lines[1:], separator)
    if decimal == separator:
        raise InputError(
            "decimal must be another sign than the one between cells, got commas for "
            f"both in {name}; give separator too"
        )
    heading, *rows = _records(sample, separator)
    require_header(name, heading)
    if not rows:
        require_shape(name, 0, len(heading))
    logical = {
        column
        for place, column in enumerate(heading)
        if (words := {row[place].strip().lower() for row in rows if len(row) > place} - {""})
        and words <= {"true", "false"}
    }
    cells = {
        column: Cells(
            own=column, dtype=pl.String(), decimal=decimal, separator=separator, logical=column in logical
        )
        for column in heading
    }
    text = _Text(path, name, heading, TextForm(separator=separator, decimal=decimal, encoding=encoding))
    return Part(name=name, cells=cells, read=text.read, path=path)


class _Text:
    """A delimited text: numbers are parsed while it is read, and come as text once one of them is none."""

    def __init__(self, path: Path, name: str, columns: list[str], form: TextForm) -> None:
        self._path, self._name, self._columns = path, name, columns
        self._separator, self._decimal = form.separator or ",", form.decimal
        self._encoding = form.encoding or "utf-8"
        self._as_text: frozenset[str] = frozenset()
        self._has_blank_lines: bool | None = None

    def read(self, numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        """Yield raw batches; lines without any cell are no rows."""
        past, wanted = 0, [*numbers, *words]
        # With decimal commas Polars would take a point for one too.
        typed = [] if self._decimal == "," or self._as_text.intersection(numbers) else numbers
        while True:
            row = 0
            try:
                for batch in self._scan(typed, wanted, max_rows):
                    start, row = row, row + len(batch)
                    if row > past:
                        fresh = batch[max(past - start, 0) :]
                        if self._may_be_blank(fresh):
                            break  # to be read again with all columns, by which blank lines are told
                        past = row
                        yield self._rows(fresh, wanted)
                else:
                    return
            except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError):
                if not typed:
                    break
                self._as_text |= set(typed)  # Polars' own words quote the cell
                typed = []
        self._refuse_long_rows()
        raise _unreadable(self._name, self._encoding)

    def _scan(self, typed: list[str], wanted: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        schema = {name: pl.Float64 if name in typed else pl.String for name in self._columns}
        frame = pl.scan_csv(
            self._path if self._encoding == "utf-8" else self._bytes().read(),
            has_header=False,
            skip_rows=1,
            schema=schema,
            separator=self._separator,
            glob=False,
        )
        frame = frame if self._has_blank_lines else frame.select(wanted)
        yield from frame.collect_batches(chunk_size=max_rows, maintain_order=True)

    def _rows(self, batch: pl.DataFrame, wanted: list[str]) -> pl.DataFrame:
        if self._has_blank_lines:
            return batch.filter(~pl.all_horizontal(pl.all().is_null())).select(wanted)
        return batch

    def _may_be_blank(self, batch: pl.DataFrame) -> bool:
        """Find out whether there are blank lines, once a row has nothing in the wanted columns."""
        if self._has_blank_lines is not None or not all(each.null_count() for each in batch.iter_columns()):
            return False
        if batch.select(pl.all_horizontal(pl.all().is_null()).any()).item():
            self._has_blank_lines = len(self._columns) > 1 and _has_blank_lines(self._bytes())
        return bool(self._has_blank_lines)

    def _bytes(self) -> IO[bytes]:
        """Return the text in UTF-8: one in another encoding whole, in memory."""
        if self._encoding == "utf-8":
            return _opened_text(self._path)
        with _opened_text(self._path) as stream:
            return io.BytesIO(stream.read().decode(self._encoding).encode())

    def _refuse_long_rows(self) -> None:
        """Refuse the first row with more cells than the heading, where there is one."""
        expected, got, number = len(self._columns), 0, 0
        try:
            with io.TextIOWrapper(self._bytes(), encoding="utf-8", newline="") as stream:
                rows = (row for row in csv.reader(stream, delimiter=self._separator) if row)
                number, got = next(
                    ((place, len(row)) for place, row in enumerate(rows) if len(row) > expected), (0, 0)
                )
        except (csv.Error, OSError, EOFError, UnicodeError):
            return
        if got:
            raise InputError(
                f"every row of {self._name} must have {expected} cells like its first line, got {got} at "
                f"row {number}; repair that row"
            )


def _opened_text(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _has_blank_lines(stream: IO[bytes]) -> bool:
    with stream:
        end = b""
        while part := stream.read(2**22):
            joined = end + part
            if b"\n\n" in joined or b"\n\r\n" in joined:
                return True
            end = joined[-2:]
    return False


def _sample(path: Path, encoding: str) -> str:
    """Return the beginning of a text, with two lines at least where there are."""
    with _opened_text(path) as stream:
        decoder, found = codecs.getincrementaldecoder(encoding)(), ""
        while found.count("\n") < 2 and (part := stream.read(_SAMPLE)):
            found += decoder.decode(part)
        if stream.read(1):
            found = found[: found.rfind("\n") + 1]  # its last line may be half of one
    return found.removeprefix("\ufeff")


def _records(sample: str, separator: str) -> list[list[str]]:
    """Return the rows of the sample, the last of which may be half of one."""
    rows: list[list[str]] = []
    with suppress(csv.Error):
        rows.extend(row for row in csv.reader(io.StringIO(sample, newline=""), delimiter=separator) if row)
    return rows


def _unreadable(name: str, encoding: str) -> InputError:
    """Return the error for a file that is not delimited text in its encoding."""
    return InputError(
        f"{name} must be delimited text in {encoding.upper()}, got one that cannot be "
        "parsed to its end; write it again as plain CSV, or say with encoding how it is "
        "written, e.g. as cp1252"
    )


def _separator(name: str, heading: str, form: TextForm, usual: str) -> str:
    """Return what separates cells: what was said, or the only sign of its kind in the first line."""
    bare = re.sub(r'"[^"]*"', "", heading)
    if form.separator is not None:
        if form.separator not in bare and any(sign in bare for sign in _SEPARATORS):
            raise InputError(
                f"the first line of {name} must have the separator between its names, got "
                f"{form.separator!r} nowhere in it; correct separator, or leave it out"
            )
        return form.separator
    if usual != "," and usual in bare:  # a comma is in many a name, and in a CSV file of semicolons
        return usual
    found = [sign for sign in ",;\t" if sign in bare]
    if len(found) > 1:
        raise InputError(
            f"the first line of {name} must show what separates its cells, got "
            f"{' and '.join(_SEPARATORS[sign] for sign in found)} in it; say which it "
            "is with separator"
        )
    if found:
        return found[0]
    return "|" if "|" in bare else ","


_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def _decimal(name: str, lines: list[str], separator: str) -> str:
    """Return the sign before decimals: a comma where the first rows have no point, nor thousands."""
    if separator == ",":
        return "."
    cells = [cell.strip(' "') for line in lines for cell in line.split(separator)]
    commas = [cell for cell in cells if _COMMA.fullmatch(cell)]
    if not commas:
        return "."
    points = any(_POINT.fullmatch(cell) for cell in cells)
    if points or all(_THOUSANDS.fullmatch(cell) for cell in commas):
        raise InputError(
            f"numbers in {name} must show which sign their decimals begin with, got "
            f"{'both points and commas' if points else 'commas that may part thousands'}; "
            "say which it is with decimal"
        )
    return ","


def require_header(name: str, columns: Sequence[str]) -> None:
    """Refuse a first line that is a row of numbers (never quoted), or names that cannot be used."""
    try:
        numbers = [float(column) for column in columns]
    except ValueError:
        numbers = []
    if numbers and any(number != numbers[0] + place for place, number in enumerate(numbers)):
        raise InputError(
            f"the first line of {name} must name the columns, got only numbers; add a line of names"
        )
    require_distinct(name, columns)


# --- typed files ------------------------------------------------------------------------------------------


@contextmanager
def _complete(name: str, kind: str) -> Iterator[None]:
    """Turn what Polars says of a damaged file into one sentence."""
    try:
        yield
    except InputError:
        raise
    except pl.exceptions.DuplicateError:
        raise InputError(
            f"{name} must have distinct column names, got one more than once; rename the columns"
        ) from None
    except (pl.exceptions.PolarsError, pl.exceptions.PanicException, OSError, EOFError, ValueError):
        raise InputError(
            f"{name} must be a complete {kind} file, got one that is truncated or damaged; write or copy it "
            "again"
        ) from None


def _typed_part(path: Path, name: str, kind: str, scan: Callable[[], pl.LazyFrame], *, counted: bool) -> Part:
    with _complete(name, kind):
        schema = scan().collect_schema()
        n_rows = int(scan().select(pl.len()).collect().item()) if counted else None
        index = [column for column in schema if column.startswith("__index_level_")]
        if kind == "Parquet":
            metadata = json.loads(pl.read_parquet_metadata(path).get("pandas") or "null")
            index = pandas_index(metadata)
    read = lazy_read(scan)

    def reading(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        with _complete(name, kind):
            yield from read(numbers, words, max_rows)

    return Part(name=name, cells=cells_of(schema, without=index), read=reading, n_rows=n_rows, path=path)


def parquet_part(path: Path, name: str) -> Part:
    """Return a Parquet file."""

    def scan() -> pl.LazyFrame:
        # Polars reads up to 128 row groups ahead by default, and a file of few hundred megabytes whole.
        os.environ.setdefault("POLARS_ROW_GROUP_PREFETCH_SIZE", "1")
        return pl.scan_parquet(path, glob=False, hive_partitioning=False, low_memory=True)

    return _typed_part(path, name, "Parquet", scan, counted=True)


def ipc_part(path: Path, name: str) -> Part:
    """Return a Feather or Arrow file; one written as a stream is read whole."""
    with path.open("rb") as file:
        is_stream = file.read(6) != b"ARROW1"

    def scan() -> pl.LazyFrame:
        if is_stream:
            return pl.read_ipc_stream(path).lazy()
        return pl.scan_ipc(path, glob=False, hive_partitioning=False)

    return _typed_part(path, name, "Arrow", scan, counted=not is_stream)


def ndjson_part(path: Path, name: str) -> Part:
    """Return a file of one JSON object a line."""
    return _typed_part(
        path, name, "JSON lines", lambda: pl.scan_ndjson(path, infer_schema_length=10_000), counted=False
    )


# --- sheets -----------------------------------------------------------------------------------------------

SHEETS = ".xlsx"


def sheet_of(path: Path) -> tuple[Path, str | None]:
    """Return the file of a path, and the sheet that is named after it; None for the first."""
    text = str(path)
    at = text.lower().rfind(f"{SHEETS}#")
    if at < 0 or path.exists():
        return path, None
    cut = at + len(SHEETS)
    return Path(text[:cut]), text[cut + 1 :]


def sheet_table(path: Path, name: str, sheet: str | None = None) -> Table:
    """Return a sheet of a workbook, after a look at its first row."""
    with _opened_sheet(path, name, sheet) as rows:
        heading = next(rows, None)
    if heading is None:
        raise InputError(
            f"{name} must have a row of column names and rows, got an empty sheet; name another sheet "
            f"({path}#SHEET), or write it again"
        )
    columns = [_as_written(cell) or "" for cell in heading]
    require_header(name, columns)

    def read(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        places = [columns.index(name) for name in (*numbers, *words)]
        with _opened_sheet(path, name, sheet) as rows:
            next(rows)
            while part := list(islice(rows, max_rows)):
                made = {columns[at]: [row[at] for row in part] for at in places}
                yield pl.DataFrame(
                    {column: _sheet_cells(some, is_word=column in words) for column, some in made.items()}
                )

    cells = {column: Cells(own=column, decimal=".") for column in columns}
    return Table(name=name, parts=(Part(name=name, cells=cells, read=read, path=path),), sheet=sheet)


def _sheet_cells(cells: list[Any], *, is_word: bool) -> pl.Series:
    """Return cells of a sheet as numbers where all of them are, else as text as it is written."""
    if not is_word and all(isinstance(cell, int | float) or cell == "" for cell in cells):
        return pl.Series(values=[None if cell == "" else float(cell) for cell in cells], dtype=pl.Float64)
    return pl.Series(values=[_as_written(cell) for cell in cells], dtype=pl.String)


def _as_written(cell: Any) -> str | None:
    """Return a cell as text, a whole number without decimals as sheets show it; None if empty."""
    if cell == "":
        return None
    return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)


@contextmanager
def _opened_sheet(path: Path, name: str, sheet: str | None) -> Iterator[Iterator[list[Any]]]:
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


# --- folders ----------------------------------------------------------------------------------------------

_HIDDEN = (".", "_")
"""Files and folders that begin so are a writer's own (_SUCCESS, .crc), and no parts."""


def is_pattern(path: Path) -> bool:
    """Return whether a path that does not exist names files by a pattern: with * or ? or [ ]."""
    return glob.has_magic(str(path)) and not path.exists()


def parts_of(path: Path) -> list[Path]:
    """Return the files of a folder, at whatever depth, or of a pattern, in the order of their paths."""
    if is_pattern(path):
        found = [Path(each) for each in glob.glob(str(path), recursive=True)]  # noqa: PTH207
    else:
        found = list(path.rglob("*"))
    base = base_of(path)
    kept = [each for each in found if each.is_file() and not _is_hidden(each.relative_to(base))]
    return sorted(kept, key=lambda each: each.as_posix())


def base_of(path: Path) -> Path:
    """Return the folder under which all parts are, a pattern's where its signs begin; else the path."""
    while is_pattern(path):
        path = path.parent
    return path


def _is_hidden(path: Path) -> bool:
    return any(name.startswith(_HIDDEN) and name.strip(".") != "" for name in path.parts)


def folder_table(
    path: Path, name: str, *, kind_of: Callable[[Path], str | None], read: Callable[[Path, str], Part]
) -> Table:
    """Return the parts that a folder or a pattern holds, of one kind and with the same columns."""
    files = parts_of(path)
    kinds = {each: kind_of(each) for each in files}
    tables = [each for each in files if kinds[each]]
    if not tables:
        raise InputError(
            f"{name} must hold CSV, TSV, Parquet, Feather or Arrow files, got "
            f"{'none of them' if files else 'nothing'}; check the path"
        )
    odd = next((each for each in files if kinds[each] != kinds[tables[0]]), None)
    if odd is not None:
        first = tables[0]
        raise InputError(
            f"{name} must hold the parts of one table and nothing else, got {first.name} and {odd.name}; "
            f"move the others out, or give a pattern in quotes such as '{first.parent}/*{kinds[first]}'"
        )
    parts = [read(each, str(each)) for each in tables]
    for part in parts[1:]:
        _require_same(parts[0], part)
    keys = _folder_keys(tables, base_of(path), tuple(parts[0].cells), name)
    return Table(
        name=name, parts=tuple(_with_keys(part, parts[0], own) for part, own in zip(parts, keys, strict=True))
    )


def _require_same(first: Part, part: Part) -> None:
    """Refuse a part with other columns than the first; their order may differ."""
    missing = [column for column in first.cells if column not in part.cells]
    more = [column for column in part.cells if column not in first.cells]
    if missing or more:
        got = f"none named {shown(missing)}" if missing else f"also {shown(more)}"
        raise InputError(
            f"{part.name} must have the columns of {first.name}, of whose table it is a part, got {got}; "
            "write the parts with the same columns, or give them as silos of their own"
        )


def _folder_keys(
    files: Sequence[Path], base: Path, columns: tuple[str, ...], name: str
) -> list[dict[str, Any]]:
    """Return for each file what the folders on its way say, as Hive writes it: ``year=2024``."""
    ways = [dict(_key(word) for word in each.relative_to(base).parent.parts if "=" in word) for each in files]
    odd = next((place for place, way in enumerate(ways) if list(way) != list(ways[0])), None)
    if odd is not None:
        first, other = (shown(list(ways[place])) or "none" for place in (0, odd))
        raise InputError(
            f"every part of {name} must lie in folders of the same keys, got {first} for {files[0]} and "
            f"{other} for {files[odd]}; move it"
        )
    wanted = [key for key in ways[0] if key not in columns]
    whole = {key for key in wanted if all(_is_whole(way[key]) for way in ways)}
    return [
        {key: int(word) if key in whole and (word := way[key]) is not None else way[key] for key in wanted}
        for way in ways
    ]


def _key(word: str) -> tuple[str, str | None]:
    key, _, value = word.partition("=")
    return key, None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)


def _is_whole(word: str | None) -> bool:
    return word is None or (word.removeprefix("-").isdecimal() and len(word) < 16)


def _with_keys(part: Part, first: Part, keys: Mapping[str, Any]) -> Part:
    """Return a part with columns in the order of the first, and with those that its folders name."""
    cells = {name: part.cells[name] for name in first.cells}
    if not keys:
        return replace(part, cells=cells)
    read: Read = part.read
    known = {key: pl.Int64() if isinstance(value, int) else pl.String() for key, value in keys.items()}

    def reading(numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        own, beside = ([name for name in names if name not in keys] for names in (numbers, words))
        if not own and not beside:  # the number of rows is wanted still, of whatever column
            beside = [next(iter(cells.values())).own]
        added = [pl.lit(keys[key], dtype=kind).alias(key) for key, kind in known.items()]
        for batch in read(own, beside, max_rows):
            yield batch.with_columns(added).select([*numbers, *words])

    cells |= {key: Cells(own=key, dtype=kind) for key, kind in known.items()}
    return replace(part, cells=cells, read=reading, keys=keys)
