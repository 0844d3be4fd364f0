"""Parquet, Feather and CSV files, streamed in blocks."""

import atexit
import codecs
import csv
import ctypes
import functools
import re
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.columns import not_a_number, require_distinct, require_shape
from fedpower.rows.parquet_pages import plain_rows
from fedpower.rows.source import Matrix
from fedpower.rows.tables import NotPlainError, arrow, feature_names, sliced

_READ_BYTES = 2**20
"""Bytes buffered over all the column chunks of a Parquet file."""

BATCH_ROWS, BATCH_BYTES = 2**14, 16 * 2**20
"""Rows decoded at once at least, within these bytes: every batch of a column has a cost of its own."""

_FEWEST_IN_PAGES = 2**11
"""Rows of a row group, on average, from which on its pages are worth being read one by one."""


@contextmanager
def _readable(name: str, kind: str) -> Iterator[None]:
    """Turn Arrow's errors about a damaged file into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (arrow().ArrowException, OSError, EOFError, ValueError):
        raise InputError(
            f"{name} must be a complete {kind} file, got one that is truncated or damaged; "
            "write or copy it again"
        ) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class _ParquetTable:
    """A Parquet file as a reader of batches."""

    name: str
    columns: tuple[str, ...]
    n_rows: int
    n_groups: int
    path: Path

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only."""
        names = [*columns, *labels]
        buffer = min(max(_READ_BYTES // len(names), 2**12), 2**20)
        with _readable(self.name, "Parquet"), _parquet(self.path, buffer_size=buffer) as file:
            size = max(max_rows, min(BATCH_ROWS, BATCH_BYTES // (8 * len(names))))
            batches = file.iter_batches(batch_size=size, columns=names, use_threads=False)
            for batch in batches:
                yield from sliced(batch.select(names), max_rows)

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield blocks of rows as far as the file's pages hold plain numbers, and none is missing."""
        if self.n_rows < _FEWEST_IN_PAGES * self.n_groups:
            raise NotPlainError
        return plain_rows(self.path, columns, max_rows)


def _parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file without read-ahead."""
    return arrow("parquet").ParquetFile(path, pre_buffer=False, memory_map=False, **options)


def parquet_reader(path: Path, name: str) -> _ParquetTable:
    """Return the reader of a Parquet file."""
    with _readable(name, "Parquet"), _parquet(path) as file:
        schema, n_rows, n_groups = file.schema_arrow, file.metadata.num_rows, file.num_row_groups
    require_distinct(name, schema.names)
    return _ParquetTable(
        name=name, columns=feature_names(schema), n_rows=n_rows, n_groups=n_groups, path=path
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class _IpcTable:
    """An Arrow IPC file or stream (Feather version 2) as a reader of batches."""

    name: str
    columns: tuple[str, ...]
    n_rows: int | None
    path: Path
    stream: bool

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield slices of the stored record batches."""
        names = [*columns, *labels]
        with _readable(self.name, "Arrow"):
            for batch in self._stored(names):
                yield from sliced(batch.select(names), max_rows)
                del batch  # and with it its mapping

    def _stored(self, names: list[str]) -> Iterator[Any]:
        """Yield the record batches as they were written."""
        pa = arrow()
        if self.stream:
            with pa.OSFile(str(self.path)) as file:
                yield from arrow("ipc").open_stream(file)
            return
        with pa.memory_map(str(self.path)) as file:
            reader = arrow("ipc").open_file(file)
            count = reader.num_record_batches
            places = sorted(reader.schema.get_field_index(column) for column in names)
            del reader
        options = arrow("ipc").IpcReadOptions(included_fields=places, use_threads=False)
        for index in range(count):
            with pa.memory_map(str(self.path)) as file:
                yield arrow("ipc").open_file(file, options=options).get_batch(index)


def ipc_reader(path: Path, name: str) -> _IpcTable:
    """Return the reader of a Feather or Arrow file."""
    with path.open("rb") as file:
        stream = file.read(6) != b"ARROW1"
    with _readable(name, "Arrow"), arrow().memory_map(str(path)) as file:
        ipc = arrow("ipc")
        reader = ipc.open_stream(file) if stream else ipc.open_file(file)
        schema = reader.schema
        count = None if stream or not hasattr(reader, "count_rows") else int(reader.count_rows())
        del reader
    require_distinct(name, schema.names)
    return _IpcTable(name=name, columns=feature_names(schema), n_rows=count, path=path, stream=stream)


BLOCK_BYTES = 2**20
"""Bytes of text parsed at once, more when single lines are long."""


_MOST_GATHERED = 32 * 2**20
"""Bytes of rows that a text is gathered into at most."""

_FURTHEST = 60
"""Powers of ten, either way, that the compiled loop multiplies by: FURTHEST in native/text.c."""

_MOST_LINES = 64
"""So many times as much text as is parsed at once may be without an end of a line."""


_SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "bars"}
"""What separates cells, where nothing is said, and its name."""

_SEPARATOR_WORDS = {name.rstrip("s"): sign for sign, name in _SEPARATORS.items()} | {"\\t": "\t"}
"""How a separator may be called where it is awkward to type."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextForm:
    """How a text file writes its cells; what is None is found out from its beginning, or refused."""

    separator: str | None = None
    decimal: str | None = None
    encoding: str | None = None

    def __post_init__(self) -> None:
        if self.separator is not None:
            sign = _SEPARATOR_WORDS.get(self.separator, self.separator)
            if not (isinstance(sign, str) and len(sign) == 1 and _separates(sign)):
                raise InputError.about(
                    "separator",
                    must="be one character that is no letter, digit, quote or point",
                    got=repr(self.separator),
                    advice="give e.g. ';', ',' or tab",
                )
            object.__setattr__(self, "separator", sign)
        if self.decimal not in (None, ".", ","):
            raise InputError.about(
                "decimal", must="be a point or a comma", got=repr(self.decimal), advice="give one"
            )
        if self.decimal == "," and self.separator == ",":
            raise InputError.about(
                "decimal",
                must="be another sign than the one between cells",
                got="commas for both",
                advice="give one of them otherwise",
            )
        if self.encoding is not None and not _is_encoding(self.encoding):
            raise InputError.about(
                "encoding",
                must="be the name of a text encoding",
                got=repr(self.encoding),
                advice="give e.g. utf-8, cp1252 or latin-1",
            )
        if self.encoding is not None:
            name = codecs.lookup(self.encoding).name.removesuffix("-sig")
            object.__setattr__(self, "encoding", name)

    @property
    def is_given(self) -> bool:
        """Whether anything is said at all."""
        return self != TextForm()


def _separates(sign: str) -> bool:
    """Return whether a character may stand between cells."""
    return sign.isascii() and not sign.isalnum() and sign not in "\"'.+-_\r\n\0"


def _is_encoding(name: object) -> bool:
    """Return whether Python can read text in an encoding of that name."""
    try:
        return isinstance(name, str) and isinstance(b"a".decode(name, "replace"), str)
    except (LookupError, ValueError):  # no such codec, or none from bytes to text
        return False


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvTable:
    """A delimited text file as a reader of batches."""

    name: str
    path: Path
    delimiter: str
    decimal: str = "."
    encoding: str = "utf-8"
    columns: tuple[str, ...] = ()
    logical: frozenset[str] = frozenset()
    block_bytes: int = BLOCK_BYTES

    @property
    def n_rows(self) -> None:
        """Unknown until the file has been read."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches with numbers in every column that is no label."""
        pa = arrow()
        types = {column: pa.bool_() if column in self.logical else pa.float64() for column in columns}
        types |= dict.fromkeys(labels, pa.string())
        try:
            with self._open(types) as reader:
                for batch in reader:
                    yield from sliced(batch.select([*columns, *labels]), max_rows)
            return
        except pa.ArrowException:
            pass  # its message quotes the cell: what follows must not carry it as context
        self._refuse_text(columns)
        raise _unreadable(self.name, self.encoding)

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield blocks of rows as far as the text is numbers, delimiters and line ends and nothing else."""
        if self.logical.intersection(columns) or not self._is_plain:
            raise NotPlainError
        places = [self.columns.index(column) for column in columns]
        order = np.argsort(places)
        cells = _Cells(ord(self.delimiter), len(self.columns), np.array(places)[order])
        found = _Gathered(max_rows, len(columns), np.argsort(order))
        try:
            with arrow().input_stream(str(self.path), compression="detect") as text:
                for lines in _whole_lines(text, self.block_bytes, self._is_heading):
                    yield from found.add(cells.numbers(lines))
        except (arrow().ArrowException, OSError, EOFError):
            yield from found.rest()
            raise NotPlainError from None
        except NotPlainError:
            yield from found.rest()
            raise
        yield from found.rest()

    @property
    def _is_plain(self) -> bool:
        """Whether numbers are written as in English, and what separates them comes before digits."""
        return self.delimiter in ",\t" and self.decimal == "." and self.encoding == "utf-8"

    def _is_heading(self, line: bytes) -> bool:
        """Return whether a line is the one that the columns were named by."""
        try:
            text = line.decode("utf-8-sig").rstrip("\r\n")
            return next(csv.reader([text], delimiter=self.delimiter), []) == list(self.columns)
        except (UnicodeDecodeError, csv.Error):
            return False

    @contextmanager
    def _open(self, types: dict[str, Any] | None) -> Iterator[Any]:
        """Open a streaming reader of the typed columns, or of all columns with inferred types."""
        pa, arrow_csv = arrow(), arrow("csv")
        # No function of Python's is given to Arrow (an invalid_row_handler, an encoding) but one that can
        # be brought to a standstill: its thread that reads ahead would need the interpreter to let go of
        # it, and end the process if that is gone by then.
        ragged: tuple[int, ...] = ()
        try:
            with (
                pa.input_stream(str(self.path), compression="detect") as text,
                _in_utf8(text, self.encoding) as recoded,
                # left open, its thread may outlive the interpreter
                arrow_csv.open_csv(
                    recoded.stream,
                    read_options=arrow_csv.ReadOptions(use_threads=False, block_size=self.block_bytes),
                    parse_options=arrow_csv.ParseOptions(
                        delimiter=self.delimiter,
                        newlines_in_values=True,
                        ignore_empty_lines=len(self.columns) != 1,
                    ),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=types,
                        include_columns=list(types) if types else None,
                        decimal_point=self.decimal,
                    ),
                ) as reader,
                recoded.ending(reader),
            ):
                yield reader
            return
        except pa.ArrowInvalid as error:
            ragged = _ragged_row(str(error))
            if not ragged:
                raise
        except (OSError, EOFError, UnicodeDecodeError):
            raise _unreadable(self.name, self.encoding) from None
        number, expected, got = ragged
        raise InputError(
            f"every row of {self.name} must have {expected} cells like its first line, got "
            f"{got} at row {number - 1}; repair that row"
        ) from None  # Arrow's own words quote the row

    def _refuse_text(self, columns: tuple[str, ...]) -> None:
        """Refuse the first row with a cell that is neither a number nor empty."""
        pa = arrow()
        row = 0
        with self._open(dict.fromkeys(columns, pa.string())) as reader:
            for batch in reader:
                found = [
                    (place, column)
                    for column in columns
                    if (place := self._first_text(batch.column(column), column in self.logical)) >= 0
                ]
                if found:
                    place, column = min(found)
                    cell = batch.column(column)[place].as_py().strip()
                    raise self._text_at(column, row + place, cell)
                row += batch.num_rows

    def _text_at(self, column: str, row: int, cell: str) -> InputError:
        """Return the error for a cell that is no number, which is not quoted."""
        other = {".": ",", ",": "."}[self.decimal]
        if self.delimiter != "," and _DECIMALS[other].fullmatch(cell):
            got, before = ("comma", "point") if other == "," else ("point", "comma")
            return InputError(
                "column '{column}' of {source} must hold numbers with a decimal {before}, got one with a "
                "{got} at row {row}; say which it is with {decimal}, and write all of them so",
                column=column,
                source=self.name,
                before=before,
                got=got,
                row=row + 1,
            )
        return not_a_number(self.name, column, "text", row)

    def _first_text(self, cells: Any, logical: bool) -> int:
        """Return the place of the first cell that Arrow cannot read as a number, or -1."""
        if self.decimal == "," and not logical:
            cells = with_points(cells)
        return _first_text(cells, logical)


def with_points(cells: Any) -> Any:
    """Return texts with points for decimal commas; one that has a point is no number, and is "text"."""
    compute = arrow("compute")
    pointed = compute.match_substring(cells, ".")
    return compute.if_else(pointed, "text", compute.replace_substring(cells, ",", "."))


_STANDSTILL_S = 1.0
"""How long Arrow's thread may take to find the end of a text after an error in it."""

_LEAVE_S = 0.1
"""How long it may take to leave Python after that: in it when Python ends, it aborts the process."""


class _Utf8:
    """A text that Arrow reads as it is."""

    def __init__(self, stream: Any) -> None:
        self.stream = stream

    @contextmanager
    def ending(self, reader: Any) -> Iterator[None]:
        """Let a reader of it be given up."""
        yield


class _Recoded:
    """A text in UTF-8 for Arrow's thread that reads ahead, which ends as soon as nobody wants more of it."""

    closed = False  # Arrow asks

    def __init__(self, text: Any, encoding: str) -> None:
        self._text, self._decoder = text, codecs.getincrementaldecoder(encoding)()
        self._held, self._over = b"", False
        self._ended = threading.Event()
        self.stream = arrow().PythonFile(self, mode="r")

    def read(self, size: int) -> bytes:
        """Return at most so many bytes, none at the end."""
        try:
            while not self._held and not self._over:
                part = self._text.read(size)
                self._over = self._over or not part
                self._held = self._decoder.decode(part, final=not part).encode()
        except BaseException:
            self._ended.set()
            raise
        found, self._held = self._held[:size], self._held[size:]
        if not found:
            self._ended.set()
        return found

    @contextmanager
    def ending(self, reader: Any) -> Iterator[None]:
        """Let a reader of it be given up: Arrow's thread must not want Python after its end."""
        atexit.register(self.end, reader)  # an error that nobody caught may keep it open until then
        try:
            yield
        finally:
            self.end(reader)
            atexit.unregister(self.end)

    def end(self, reader: Any = None) -> None:
        """End the text, and wait until Arrow's thread knows."""
        given_up = not self._ended.is_set()
        self._over, self._held = True, b""
        with suppress(Exception):  # whatever half a row may mean to it
            while reader is not None and not self._ended.is_set():
                reader.read_next_batch()
        self._ended.wait(_STANDSTILL_S)
        if given_up:
            time.sleep(_LEAVE_S)  # Arrow's thread has read the end, and has yet to leave Python


@contextmanager
def _in_utf8(text: Any, encoding: str) -> Iterator[_Utf8 | _Recoded]:
    """Give a text as Arrow reads it: itself where it is in UTF-8."""
    if encoding == "utf-8":
        yield _Utf8(text)
        return
    recoded = _Recoded(text, encoding)
    try:
        yield recoded
    finally:
        recoded.end()


def _ragged_row(said: str) -> tuple[int, ...]:
    """Return the line, the cells it should have and has, where Arrow stopped at such a row."""
    found = re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", said)
    return tuple(map(int, found.groups())) if found else ()


def _whole_lines(text: Any, size: int, is_heading: Callable[[bytes], bool]) -> Iterator[bytes]:
    """Yield the lines after the first one, some at a time, each with its end; refuse quotes."""
    held, first = b"", True
    while part := text.read(size):
        held = held + part if held else part
        if first:
            line, end, rest = held.partition(b"\n")
            if not end or not is_heading(line):
                raise NotPlainError
            held, first = rest, False
        if b'"' in held:
            raise NotPlainError
        stop = held.rfind(b"\n") + 1
        if stop:
            yield held[:stop]
            held = held[stop:]
        elif len(held) > _MOST_LINES * size:
            raise NotPlainError
    if held:
        yield held + b"\n"


class _Cells:
    """Where the cells of whole lines are, and their numbers."""

    def __init__(self, delimiter: int, width: int, wanted: NDArray[np.intp]) -> None:
        self._delimiter = delimiter
        self._width = width
        self._wanted = None if wanted.size == width else wanted

    def numbers(self, lines: bytes) -> Matrix:
        """Return the wanted cells as float64, a view of rows by columns, or refuse what is not plain."""
        found = self._in_one_go(lines)
        return self._in_passes(lines) if found is None else found

    def _in_one_go(self, lines: bytes) -> Matrix | None:
        """Return the same by the compiled loop, or None where that does not tell."""
        loops = native.loops()
        if loops is None:
            return None
        wanted = np.arange(self._width) if self._wanted is None else self._wanted
        places = np.full(self._width, -1, dtype=np.int32)
        places[wanted] = np.arange(wanted.size)
        out = np.empty((lines.count(b"\n"), wanted.size))
        powers = _powers_of_five()
        places_at, powers_at, out_at = (ctypes.c_void_p(each.ctypes.data) for each in (places, powers, out))
        run = loops.fedpower_plain_numbers
        run.restype = ctypes.c_int64
        n_lines = run(
            ctypes.c_char_p(lines),
            ctypes.c_int64(len(lines)),
            ctypes.c_int32(self._delimiter),
            ctypes.c_int64(self._width),
            places_at,
            ctypes.c_int64(wanted.size),
            powers_at,
            out_at,
            ctypes.c_int64(len(out)),
        )
        return out if n_lines == len(out) else None

    def _in_passes(self, lines: bytes) -> Matrix:
        """Return the same, cells found by NumPy and numbers read by Arrow."""
        starts, ends = self._bounds(lines)
        size = starts.size
        # Every second string is a cell, and what is between two of them is null: no text is moved.
        bounds = np.empty(2 * size, dtype=np.int32)
        bounds[0::2], bounds[1::2] = starts, ends
        present = np.full(size // 4 + 1, 0b01010101, dtype=np.uint8)
        pa = arrow()
        buffers = [pa.py_buffer(each) for each in (present, bounds, lines)]
        strings = pa.Array.from_buffers(pa.string(), 2 * size - 1, buffers)
        floats = strings.cast(pa.float64()).buffers()[1]
        found = np.frombuffer(floats, dtype=np.float64, count=2 * size - 1)[::2]
        with np.errstate(over="ignore", invalid="ignore"):
            if not (np.isfinite(found.sum()) or np.isfinite(found).all()):
                raise NotPlainError
        width = self._width if self._wanted is None else self._wanted.size
        return found.reshape(-1, width)

    def _bounds(self, lines: bytes) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return where the wanted cells begin and end."""
        text = np.frombuffer(lines, dtype=np.uint8)
        # Below the digits there are few signs beside the delimiter and the line's end: one comparison.
        ends = np.flatnonzero(text < ord("-"))
        signs = text[ends]
        is_end = signs == ord("\n")
        between = is_end | (signs == self._delimiter)
        if not between.all():
            ends, is_end = ends[between], is_end[between]
        n_lines = int(np.count_nonzero(is_end))
        if n_lines * self._width != ends.size or not is_end[self._width - 1 :: self._width].all():
            raise NotPlainError
        starts = np.empty_like(ends)
        starts[0] = 0
        np.add(ends[:-1], 1, out=starts[1:])
        before, after = starts.reshape(n_lines, -1), ends.reshape(n_lines, -1)
        last = after[:, -1]
        last -= text[last - 1] == ord("\r")  # a line's end in two characters
        if self._wanted is not None:
            before, after = before[:, self._wanted], after[:, self._wanted]
        return before.ravel(), after.ravel()


@functools.cache
def _powers_of_five() -> NDArray[np.uint64]:
    """Return 5^q for q = −60 … 60, 128 bits from the first one on, in two words, the upper one first."""
    found = []
    for q in range(-_FURTHEST, _FURTHEST + 1):
        power = 5 ** abs(q)
        bits = power.bit_length()
        if q >= 0:
            whole = power << 128 >> bits
        elif q >= -27:  # exact enough to tell ties
            whole = (1 << ((power - 1).bit_length() + 127)) // power + 1
        else:
            whole = (1 << (2 * bits + 128)) // power + 1
            whole >>= whole.bit_length() - 128
        found += [whole >> 64, whole & (2**64 - 1)]
    return np.array(found, dtype=np.uint64)


class _Gathered:
    """Rows that are gathered until they make a block."""

    def __init__(self, max_rows: int, width: int, order: NDArray[np.intp]) -> None:
        self._shape = (max(1, min(max_rows, _MOST_GATHERED // (8 * width))), width)
        self._order = None if np.array_equal(order, np.arange(width)) else order
        self._block: Matrix | None = None
        self._count = 0

    def add(self, rows: Matrix) -> Iterator[Matrix]:
        """Yield the blocks that rows make full."""
        while len(rows):
            if self._block is None:
                self._block, self._count = np.empty(self._shape), 0
            part = rows[: self._shape[0] - self._count]
            room = self._block[self._count : self._count + len(part)]
            room[:] = part if self._order is None else part[:, self._order]
            self._count += len(part)
            rows = rows[len(part) :]
            if self._count == self._shape[0]:
                yield from self.rest()

    def rest(self) -> Iterator[Matrix]:
        """Yield the rows of a block that is not full."""
        if self._block is not None:
            block, self._block = self._block[: self._count], None
            yield block


def _first_text(cells: Any, logical: bool) -> int:
    """Return the place of the first cell that Arrow cannot read as a number, or -1."""
    pa, compute = arrow(), arrow("compute")
    trimmed = compute.utf8_trim_whitespace(cells)
    empty = compute.is_in(trimmed, pa.array(arrow("csv").ConvertOptions().null_values))
    present = compute.if_else(empty, pa.scalar(None, pa.string()), trimmed)
    kind = pa.bool_() if logical else pa.float64()
    try:
        present.cast(kind)
    except pa.ArrowInvalid:
        for place, cell in enumerate(present):
            try:
                cell.cast(kind)
            except pa.ArrowInvalid:
                return place
    return -1


def _unreadable(name: str, encoding: str) -> InputError:
    """Return the error for a file that is not delimited text in its encoding."""
    return InputError(
        "{source} must be delimited text in {encoding_name}, got one that cannot be parsed to its end; "
        "write it again as plain CSV, or say with {encoding} how it is written, e.g. as cp1252",
        source=name,
        encoding_name=encoding.upper(),
    )


def csv_reader(
    path: Path,
    name: str,
    form: TextForm = TextForm(),  # noqa: B008
    *,
    usual: str = ",",
) -> CsvTable:
    """Return the reader of a CSV or TSV file, gzipped or not, after a look at its first block."""
    pa = arrow()
    encoding = form.encoding or _marked_encoding(path, name)
    try:
        lines, longest = _first_lines(path, encoding)
    except (pa.ArrowException, OSError, EOFError, UnicodeError):
        raise _unreadable(name, encoding) from None
    if longest == 0:
        raise InputError(
            f"{name} must have a line of column names and rows, got an empty file; write it again"
        )
    delimiter = _separator(name, lines[0], form, usual)
    decimal = form.decimal or _decimal(name, lines[1:], delimiter)
    if decimal == delimiter:
        raise InputError.about(
            "decimal",
            must="be another sign than the one between cells",
            got=f"commas for both in {name}",
            advice="give {separator} too",
        )
    size = max(BLOCK_BYTES, 16 * longest)
    probe = CsvTable(
        name=name, path=path, delimiter=delimiter, decimal=decimal, encoding=encoding, block_bytes=size
    )
    try:
        with probe._open(None) as reader:
            schema = reader.schema
            schema.names  # noqa: B018  (decodes them: Arrow does not check that they are UTF-8)
    except (pa.ArrowException, UnicodeError):
        raise _unreadable(name, encoding) from None
    require_header(name, schema.names)
    if all(pa.types.is_null(kind) for kind in schema.types):
        require_shape(name, _count_first(probe), len(schema.names))
    logical = frozenset(field.name for field in schema if pa.types.is_boolean(field.type))
    return replace(probe, columns=tuple(schema.names), logical=logical)


def _count_first(table: CsvTable) -> int:
    """Return the number of rows in the first block."""
    with table._open(None) as reader:
        return next((batch.num_rows for batch in reader), 0)


_MARKS = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""What a text in another encoding than UTF-8 may begin with, to say so."""

_LOOKED_AT = 2**16
"""Characters of a text from which the sign before decimals is told."""


def _marked_encoding(path: Path, name: str) -> str:
    """Return the encoding that a text's first bytes tell; UTF-8 where they tell nothing."""
    try:
        with arrow().input_stream(str(path), compression="detect") as text:
            return _MARKS.get(text.read(2), "utf-8")
    except (arrow().ArrowException, OSError, EOFError):
        raise _unreadable(name, "utf-8") from None


def _first_lines(path: Path, encoding: str) -> tuple[list[str], int]:
    """Return the whole lines at the beginning, and the bytes of the longer of the first two."""
    with arrow().input_stream(str(path), compression="detect") as text:
        # its end may be half a character
        decoder, found, size = codecs.getincrementaldecoder(encoding)(), "", 0
        while found.count("\n") < 2 and (part := text.read(_LOOKED_AT)):
            found += decoder.decode(part)
            size += len(part)
    lines = found.split("\n")
    wide = size / max(len(found), 1)  # bytes a character
    longest = int(wide * max((len(line) for line in lines[:2]), default=0))
    whole = lines[:-1] if len(lines) > 2 else lines
    return [line.removesuffix("\r").removeprefix("\ufeff") for line in whole], longest


def _separator(name: str, heading: str, form: TextForm, usual: str) -> str:
    """Return what separates cells: what was said, or the only sign of its kind in the first line."""
    bare = re.sub(r'"[^"]*"', "", heading)
    if form.separator is not None:
        if form.separator not in bare and any(sign in bare for sign in _SEPARATORS):
            raise InputError(
                "the first line of {source} must have the separator between its names, got {said!r} "
                "nowhere in it; correct {separator}, or leave it out",
                source=name,
                said=form.separator,
            )
        return form.separator
    if usual != "," and usual in bare:  # a comma is in many a name, and in a CSV file of semicolons
        return usual
    found = [sign for sign in ",;\t" if sign in bare]
    if len(found) > 1:
        raise InputError(
            "the first line of {source} must show what separates its cells, got {signs} in it; say which "
            "it is with {separator}",
            source=name,
            signs=" and ".join(_SEPARATORS[sign] for sign in found),
        )
    if found:
        return found[0]
    return "|" if "|" in bare else ","


_DECIMALS = {
    ",": re.compile(r"[+-]?\d*,\d+(?:[eE][+-]?\d+)?"),
    ".": re.compile(r"[+-]?\d*\.\d+(?:[eE][+-]?\d+)?"),
}
_THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2},\d{3}")


def _decimal(name: str, lines: list[str], delimiter: str) -> str:
    """Return the sign before decimals: a comma where the first rows have no point, nor thousands."""
    if delimiter == ",":
        return "."
    cells = [cell.strip(' "') for line in lines for cell in line.split(delimiter) if "," in cell]
    commas = [cell for cell in cells if _DECIMALS[","].fullmatch(cell)]
    if not commas:
        return "."
    points = any(
        _DECIMALS["."].fullmatch(cell.strip(' "')) for line in lines for cell in line.split(delimiter)
    )
    if points or all(_THOUSANDS.fullmatch(cell) for cell in commas):
        raise InputError(
            "numbers in {source} must show which sign their decimals begin with, got {got}; say which it "
            "is with {decimal}",
            source=name,
            got="both points and commas" if points else "commas that may part thousands",
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
