"""Files of tables: text, Parquet, Arrow, JSON lines, sheets of workbooks, and folders of their parts.

A format is one entry of `FORMATS`: `register` a function from a path to a lazy frame, and its files are
opened, found in folders, fingerprinted and fitted like all others.
"""

from __future__ import annotations

import codecs
import csv
import functools
import glob
import gzip
import io
import json
import os
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple
from urllib.parse import unquote

from fedpower.exceptions import InputError, needed, require
from fedpower.rows.source import require_shape
from fedpower.rows.tables import Table, cells_of, lazy_read, polars_runs
from fedpower.rules.expressions import Cells
from fedpower.values import pl, require_distinct, shown

# --- formats ----------------------------------------------------------------------------------------------


class Format(NamedTuple):
    """How files with a suffix are read."""

    open: Callable[..., Any]  # from path, name and options, to a table or a source
    is_part: bool = True  # of a folder
    is_text: bool = False


FORMATS: dict[str, Format] = {}
"""By suffix."""


def register(suffix: str, scan: Callable[[Path], pl.LazyFrame], *, kind: str, counted: bool = False) -> None:
    """Make files with a suffix tables: what a function returns a lazy frame of, in every pass again."""

    def table(path: Path, name: str, **_: Any) -> Table:
        must = f"a complete {kind} file"
        with polars_runs(name, must):
            frame = scan(path)
            schema = frame.collect_schema()
            n_rows = int(frame.select(pl.len()).collect().item()) if counted else None
            pandas = {"index_columns": [name for name in schema if name.startswith("__index_level_")]}
            if kind == "Parquet":
                pandas = json.loads(pl.read_parquet_metadata(path).get("pandas") or "null")
        read = lazy_read(lambda: scan(path), name, must)
        return Table(name=name, cells=cells_of(schema, pandas), read=read, n_rows=n_rows, path=path)

    FORMATS[suffix] = Format(table)


def format_of(path: Path) -> tuple[str, Format | None]:
    """Return the longest known suffix of a path and its format; None where it has none."""
    suffix = max((known for known in FORMATS if path.name.lower().endswith(known)), key=len, default="")
    return suffix, FORMATS.get(suffix)


def _scan_parquet(path: Path) -> pl.LazyFrame:
    # Polars reads up to 128 row groups ahead by default, and a file of few hundred megabytes whole.
    os.environ.setdefault("POLARS_ROW_GROUP_PREFETCH_SIZE", "1")
    return pl.scan_parquet(path, glob=False, hive_partitioning=False, low_memory=True)


def _scan_arrow(path: Path) -> pl.LazyFrame:
    with path.open("rb") as file:
        if file.read(6) != b"ARROW1":  # written as a stream
            return pl.read_ipc_stream(path).lazy()
    return pl.scan_ipc(path, glob=False, hive_partitioning=False)


register(".parquet", _scan_parquet, kind="Parquet", counted=True)
register(".feather", _scan_arrow, kind="Arrow", counted=True)
register(".arrow", _scan_arrow, kind="Arrow", counted=True)
for _suffix in (".jsonl", ".ndjson"):
    register(_suffix, lambda path: pl.scan_ndjson(path, infer_schema_length=10_000), kind="JSON lines")

# --- text -------------------------------------------------------------------------------------------------

_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What separates cells where nothing is given, and its name."""

_SEPARATOR_WORDS = {name.rstrip("s"): sign for sign, name in _SEPARATORS.items()} | {"\\t": "\t"}
"""What a separator may be called where it is awkward to type."""

_SAMPLE = 2**16
"""Characters at the beginning of a text from which its form is found."""

_COMMA = re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?")
_POINT = re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?")
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """How a text file writes its cells; what is None is found from its beginning, or refused."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            sign = _SEPARATOR_WORDS.get(self.separator, self.separator)
            good = len(sign) == 1 and sign.isascii() and not sign.isalnum() and sign not in "\"'.+-_\r\n\0"
            must = "one character that is not a letter, digit, quote or point"
            require(good, "separator", must, self.separator)
            object.__setattr__(self, "separator", sign)
        require(self.decimal in (None, ".", ","), "decimal", "a point or a comma", self.decimal)
        both = self.decimal == "," == self.separator
        require(not both, "decimal", "another sign than separator", ",")
        if self.encoding is not None:
            known = False
            with suppress(LookupError, ValueError):  # no such codec, or none from bytes to text
                known = isinstance(b"a".decode(self.encoding, "replace"), str)
            require(known, "encoding", "the name of a text encoding", self.encoding, "give e.g. cp1252")
            name = codecs.lookup(self.encoding).name.removesuffix("-sig")
            object.__setattr__(self, "encoding", name)


def _text_table(path: Path, name: str, *, form: TextForm, usual: str, **_: Any) -> Table:
    """Return a CSV or TSV file, gzipped or not; its form is found from its beginning."""
    try:
        with _opened_text(path) as stream:
            marks = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)
            encoding = form.encoding or ("utf-16" if stream.read(2) in marks else "utf-8")
        sample = _sample(path, encoding)
    except (OSError, EOFError, UnicodeError):
        raise _unreadable(name, form.encoding or "utf-8") from None
    if not sample.strip("\ufeff\r\n"):
        raise InputError(f"{name} must have a line of column names and rows, got an empty file")
    lines = sample.splitlines()
    separator = _separator(name, lines[0], form, usual)
    decimal = form.decimal or _decimal(name, lines[1:], separator)
    if decimal == separator:
        raise InputError(f"decimal must be another sign than separator, got commas for both in {name}")
    records: list[list[str]] = []
    with suppress(csv.Error):  # the last row of the sample may be half of one
        reader = csv.reader(io.StringIO(sample, newline=""), delimiter=separator)
        records.extend(row for row in reader if row)
    heading, *rows = records
    _require_header(name, heading)
    if not rows:
        require_shape(name, 0, len(heading))
    columns = ([row[place] for row in rows if len(row) > place] for place in range(len(heading)))
    cells = {
        column: text_cells(column, words, decimal=decimal, separator=separator)
        for column, words in zip(heading, columns, strict=True)
    }
    # With decimal commas Polars would take a point for one too.
    text = _Text(path, name, heading, separator, encoding, as_text=decimal == ",")
    return Table(name=name, cells=cells, read=text.read, path=path)


def text_cells(column: str, words: Iterable[str | None], *, decimal: str, separator: str = ",") -> Cells:
    """Return a column of text whose cells are read as numbers without a rule, or as true and false."""
    found = {word.strip().lower() for word in words if word} - {""}
    logical = bool(found) and found <= {"true", "false"}
    return Cells(own=column, dtype=pl.String(), decimal=decimal, separator=separator, logical=logical)


for _suffix, _usual in ((".csv", ","), (".tsv", "\t")):
    for _gz in ("", ".gz"):
        FORMATS[_suffix + _gz] = Format(partial(_text_table, usual=_usual), is_text=True)


@dataclass
class _Text:
    """A delimited text: numbers are parsed while it is read, and come as text once one of them is none."""

    path: Path
    name: str
    columns: list[str]
    separator: str
    encoding: str
    as_text: bool
    blank: list[int] | None = None

    def read(self, columns: list[str], numbers: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        past, last = 0, self.columns[-1]
        wanted = list(dict.fromkeys([*columns, last]))
        if len(wanted) < len(self.columns) and not self._is_even:
            wanted = self.columns  # Polars overlooks lines that are too long where it reads only some
        while True:
            typed = () if self.as_text else numbers
            schema = {name: pl.Float64 if name in typed else pl.String for name in self.columns}
            row = 0
            try:
                frame = self._scan(schema, self.separator).select(wanted)
                for batch in frame.collect_batches(chunk_size=max_rows, maintain_order=True):
                    start, row = row, row + len(batch)
                    if row > past:
                        some = batch[max(past - start, 0) :]
                        past = row
                        # Lines that are blank or too short end in a null.
                        if some[last].null_count() and (blank := self._blank_rows()):
                            places = pl.int_range(row - len(some), row, eager=True)
                            some = some.filter(~places.is_in(blank))
                        yield some.select(columns)
                return
            except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError):
                if not typed:  # or again as text: Polars' own words quote the cell
                    break
                self.as_text = True
        with suppress(csv.Error, OSError, EOFError, UnicodeError):
            self._irregular()
        raise _unreadable(self.name, self.encoding)

    def _scan(self, schema: Mapping[str, Any], separator: str, **more: Any) -> pl.LazyFrame:
        source = self.path if self.encoding == "utf-8" else _bytes_in(self.path, self.encoding).read()
        options = {"has_header": False, "skip_rows": 1, "glob": False, **more}
        return pl.scan_csv(source, schema=schema, separator=separator, **options)

    def _blank_rows(self) -> list[int]:
        """Return the numbers of lines without a cell; a row of another length than the heading is refused."""
        if self.blank is None:
            self.blank = [] if len(self.columns) == 1 or self._is_even else self._irregular()
        return self.blank

    @functools.cached_property
    def _is_even(self) -> bool:
        """Whether every line has as many separators as the heading, and no quotes, found in a fast pass."""
        line = pl.col("line")
        count = line.str.count_matches(self.separator, literal=True)
        odd = line.is_null() | line.str.contains('"', literal=True) | (count != len(self.columns) - 1)
        try:
            lines = self._scan({"line": pl.String}, "\0", quote_char=None).select(odd.any())
            return not lines.collect(engine="streaming").item()
        except (pl.exceptions.PolarsError, OSError, EOFError, UnicodeError):
            return False

    def _irregular(self) -> list[int]:
        blank: list[int] = []
        stream = _bytes_in(self.path, self.encoding)
        with io.TextIOWrapper(stream, encoding="utf-8", newline="") as text:
            rows = csv.reader(text, delimiter=self.separator)
            next(rows)
            for number, row in enumerate(rows):
                if not row:
                    blank.append(number)
                elif len(row) != len(self.columns):
                    raise InputError(
                        f"every row of {self.name} must have {len(self.columns)} cells like its first line, "
                        f"got {len(row)} at row {number - len(blank) + 1}"
                    )
        return blank


def _opened_text(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")  # type: ignore[return-value]


def _bytes_in(path: Path, encoding: str) -> IO[bytes]:
    """Return a text in UTF-8; one in another encoding is held whole."""
    if encoding == "utf-8":
        return _opened_text(path)
    with _opened_text(path) as stream:
        return io.BytesIO(stream.read().decode(encoding).encode())


def _sample(path: Path, encoding: str) -> str:
    with _opened_text(path) as stream:
        decoder, text = codecs.getincrementaldecoder(encoding)(), ""
        while text.count("\n") < 2 and (part := stream.read(_SAMPLE)):
            text += decoder.decode(part)
        if stream.read(1):
            text = text[: text.rfind("\n") + 1]  # its last line may be half of one
    return text.removeprefix("\ufeff")


def _unreadable(name: str, encoding: str) -> InputError:
    return InputError(
        f"{name} must be delimited text in {encoding.upper()}, got one that cannot be parsed to its end; "
        "write it again, or give its encoding, e.g. cp1252"
    )


def _separator(name: str, heading: str, form: TextForm, usual: str) -> str:
    """Return what separates cells: what was given, or the only sign of its kind in the first line."""
    bare = re.sub(r'"[^"]*"', "", heading)
    if form.separator is not None:
        if form.separator not in bare and any(sign in bare for sign in _SEPARATORS):
            raise InputError(
                f"separator must be in the first line of {name}, got {form.separator!r} nowhere in it"
            )
        return form.separator
    if usual != "," and usual in bare:  # a comma is in many a name, and in a CSV file of semicolons
        return usual
    signs = [sign for sign in ",;\t" if sign in bare]
    if len(signs) > 1:
        got = " and ".join(_SEPARATORS[sign] for sign in signs)
        raise InputError(
            f"the first line of {name} must have one kind of separator, got {got}; give separator"
        )
    return signs[0] if signs else "|" if "|" in bare else ","


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
        got = "both points and commas" if points else "commas that may separate thousands"
        raise InputError(f"numbers in {name} must have one decimal sign, got {got}; give decimal")
    return ","


def _require_header(name: str, columns: Sequence[str]) -> None:
    """Refuse a first line that is a row of numbers (never quoted), or names that cannot be used."""
    numbers: list[float] = []
    with suppress(ValueError):
        numbers = [float(column) for column in columns]
    if numbers and any(number != numbers[0] + place for place, number in enumerate(numbers)):
        raise InputError(f"the first line of {name} must name the columns, got only numbers")
    require_distinct(name, columns)


# --- sheets -----------------------------------------------------------------------------------------------


def sheet_of(path: Path) -> tuple[Path, str | None]:
    """Return the file of a path, and the sheet that is named after it; None for the first."""
    named = re.fullmatch(r"(.*\.xlsx)#(.*)", str(path), re.IGNORECASE | re.DOTALL)
    return (path, None) if named is None or path.exists() else (Path(named[1]), named[2])


def sheet_table(path: Path, name: str, *, sheet: str | None, **_: Any) -> Table:
    """Return a sheet of a workbook, whose first row names its columns, as text."""
    frame = _sheet(path, name, sheet)
    cells = {column: text_cells(column, frame[column], decimal=".") for column in frame.columns}
    read = lazy_read(lambda: _sheet(path, name, sheet).lazy(), name, "a workbook that stays as it is")
    return Table(name=name, cells=cells, read=read, path=path, sheet=sheet)


FORMATS[".xlsx"] = Format(sheet_table, is_part=False)


def _sheet(path: Path, name: str, sheet: str | None) -> pl.DataFrame:
    calamine = needed("python_calamine", "excel", f"{name} must be read with")
    try:
        with calamine.CalamineWorkbook.from_path(path) as book:
            if sheet is not None and sheet not in book.sheet_names:
                have = shown(book.sheet_names)
                raise InputError(f"{name} must name a sheet of {path}, one of {have}, got another")
            opened = book.get_sheet_by_index(0) if sheet is None else book.get_sheet_by_name(sheet)
            rows = [row for row in opened.iter_rows() if any(cell != "" for cell in row)]
    except calamine.PasswordError:
        raise InputError(f"{name} must be a workbook without a password, got one that has it") from None
    except (calamine.CalamineError, OSError):
        raise InputError(
            f"{name} must be a complete .xlsx workbook, got one that is truncated or damaged"
        ) from None
    if not rows:
        raise InputError(
            f"{name} must have a row of column names and rows, got an empty sheet; name another one"
        )

    def written(cell: Any) -> str | None:  # a whole number without decimals, as sheets show it
        if cell == "":
            return None
        return str(int(cell)) if isinstance(cell, float) and cell.is_integer() else str(cell)

    columns = [written(cell) or "" for cell in rows[0]]
    _require_header(name, columns)
    cells = [[written(cell) for cell in row] for row in rows[1:]]
    return pl.DataFrame(cells, dict.fromkeys(columns, pl.String), orient="row")


# --- folders ----------------------------------------------------------------------------------------------


def is_pattern(path: Path) -> bool:
    """Return whether a path that does not exist names files by a pattern: with * or ? or [ ]."""
    return glob.has_magic(str(path)) and not path.exists()


def base_of(path: Path) -> Path:
    """Return the folder under which all parts are, a pattern's where its signs begin; else the path."""
    while is_pattern(path):
        path = path.parent
    return path


def files_at(path: Path) -> list[Path]:
    """Return the files of a folder, at whatever depth, or of a pattern, sorted; else the path itself."""
    if not path.is_dir() and not is_pattern(path):
        return [path]
    files = map(Path, glob.glob(str(path), recursive=True)) if is_pattern(path) else path.rglob("*")  # noqa: PTH207
    base = base_of(path)

    def is_hidden(file: Path) -> bool:  # _SUCCESS and .crc are a writer's own files
        return any(name.startswith((".", "_")) and name.strip(".") for name in file.relative_to(base).parts)

    return sorted((file for file in files if file.is_file() and not is_hidden(file)), key=Path.as_posix)


def folder_table(path: Path, name: str, form: TextForm) -> Table:
    """Return the parts that a folder or a pattern holds, of one kind and with the same columns."""
    files = files_at(path)
    kinds = {file: format_of(file) for file in files}
    tables = [file for file, (_, kind) in kinds.items() if kind is not None and kind.is_part]
    if not tables:
        raise InputError(
            f"{name} must hold CSV, TSV, Parquet, Feather or Arrow files, got "
            f"{'none of them' if files else 'nothing'}"
        )
    first = tables[0]
    suffix, kind = kinds[first]
    assert kind is not None, "it is a table"
    odd = next((file for file in files if kinds[file] != kinds[first]), None)
    if odd is not None:
        raise InputError(
            f"{name} must hold the parts of one table and nothing else, got {first.name} and {odd.name}; "
            f"give a pattern in quotes such as '{first.parent}/*{suffix}'"
        )
    parts: list[Table] = [kind.open(file, str(file), form=form) for file in tables]
    for part in parts[1:]:
        missing = [column for column in parts[0].cells if column not in part.cells]
        more = [column for column in part.cells if column not in parts[0].cells]
        if missing or more:
            got = f"none named {shown(missing)}" if missing else f"also {shown(more)}"
            raise InputError(f"{part.name} must have the columns of {parts[0].name}, got {got}")
    made = []
    for part, file in zip(parts, tables, strict=True):  # in one order, with the keys of folders: year=2024
        words = [word.partition("=") for word in file.relative_to(base_of(path)).parent.parts if "=" in word]
        keys = {key: None if value == "__HIVE_DEFAULT_PARTITION__" else unquote(value)
                for key, _, value in words if key not in part.cells}  # fmt: skip
        cells = {column: part.cells[column] for column in parts[0].cells}
        cells |= {key: text_cells(key, (), decimal=".") for key in keys}
        made.append(replace(part, cells=cells, keys=keys))
    odd = next((part.path for part in made if list(part.keys) != list(made[0].keys)), None)
    if odd is not None:
        raise InputError(f"every part of {name} must be in folders of the same keys, got others for {odd}")
    counts = [part.n_rows for part in parts]
    n_rows = None if None in counts else sum(count or 0 for count in counts)
    return Table(name=name, cells=made[0].cells, parts=tuple(made), n_rows=n_rows)
