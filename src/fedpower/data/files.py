"""Parquet, Feather and CSV files, streamed in blocks."""

import codecs
import csv
import ctypes
import functools
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.data.columns import not_a_number, require_distinct, require_shape
from fedpower.data.source import Matrix
from fedpower.data.tables import NotPlainError, arrow, feature_names, sliced
from fedpower.errors import InputError

_READ_BYTES = 2**20
"""Bytes buffered over all the column chunks of a Parquet file."""

BATCH_ROWS, BATCH_BYTES = 2**14, 16 * 2**20
"""Rows decoded at once at least, within these bytes: every batch of a column has a cost of its own."""


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
    """A Parquet file as a reader of batches.

    Column chunks are read through small buffers, without read-ahead, so that a pass holds about one
    data page per column and one batch of some MiB, whatever the size of the row groups.
    """

    name: str
    columns: tuple[str, ...]
    n_rows: int
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


def _parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file without read-ahead."""
    return arrow("parquet").ParquetFile(path, pre_buffer=False, memory_map=False, **options)


def parquet_reader(path: Path, name: str) -> _ParquetTable:
    """Return the reader of a Parquet file."""
    with _readable(name, "Parquet"), _parquet(path) as file:
        schema, n_rows = file.schema_arrow, int(file.metadata.num_rows)
    require_distinct(name, schema.names)
    return _ParquetTable(name=name, columns=feature_names(schema), n_rows=n_rows, path=path)


@dataclass(frozen=True, kw_only=True, eq=False)
class _IpcTable:
    """An Arrow IPC file or stream (Feather version 2) as a reader of batches.

    The file is mapped and opened anew for every record batch, so that a pass holds one of them.
    """

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
    return _IpcTable(
        name=name, columns=feature_names(schema), n_rows=count, path=path, stream=stream
    )


BLOCK_BYTES = 2**20
"""Bytes of text parsed at once, more when single lines are long."""


_MOST_GATHERED = 32 * 2**20
"""Bytes of rows that a text is gathered into at most."""

_FURTHEST = 60
"""Powers of ten, either way, that the compiled loop multiplies by: FURTHEST in loops.c."""

_MOST_LINES = 64
"""So many times as much text as is parsed at once may be without an end of a line."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CsvTable:
    """A delimited text file as a reader of batches.

    Parameters
    ----------
    name, path : the file.
    delimiter : what separates cells.
    columns : the names in the first line.
    logical : columns of true and false, which count as 1 and 0.
    block_bytes : bytes of text parsed at once.
    """

    name: str
    path: Path
    delimiter: str
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
        types = {
            column: pa.bool_() if column in self.logical else pa.float64() for column in columns
        }
        types |= dict.fromkeys(labels, pa.string())
        try:
            with self._open(types) as reader:
                for batch in reader:
                    yield from sliced(batch.select([*columns, *labels]), max_rows)
            return
        except pa.ArrowException:
            pass  # its message quotes the cell: what follows must not carry it as context
        self._refuse_text(columns)
        raise _unreadable(self.name)

    def plain_rows(self, columns: tuple[str, ...], max_rows: int) -> Iterator[Matrix]:
        """Yield blocks of rows as far as the text is numbers, delimiters and line ends and nothing else.

        Arrow's reader finds cells one character at a time and hands out columns; here NumPy finds them
        and Arrow only reads the numbers, by the routine that its reader calls: the same bits in half the
        time. Whatever is not as plain as that (quotes, blanks, an empty cell, a line of another length)
        ends it with `NotPlainError` after the rows before, so that `batches` decides what it is.
        """
        if self.logical.intersection(columns):
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
        ragged: list[tuple[int, int, int]] = []

        def note(row: Any) -> str:
            ragged.append((row.number - 1, row.expected_columns, row.actual_columns))
            return "error"

        try:
            with (
                pa.input_stream(str(self.path), compression="detect") as text,
                # left open, its thread may outlive the interpreter
                arrow_csv.open_csv(
                    text,
                    read_options=arrow_csv.ReadOptions(
                        use_threads=False, block_size=self.block_bytes
                    ),
                    parse_options=arrow_csv.ParseOptions(
                        delimiter=self.delimiter,
                        newlines_in_values=True,
                        ignore_empty_lines=len(self.columns) != 1,
                        invalid_row_handler=note,
                    ),
                    convert_options=arrow_csv.ConvertOptions(
                        column_types=types, include_columns=list(types) if types else None
                    ),
                ) as reader,
            ):
                yield reader
        except pa.ArrowInvalid:
            if not ragged:
                raise
            row, expected, got = ragged[0]
            raise InputError(
                f"every row of {self.name} must have {expected} cells like its first line, got "
                f"{got} at row {row}; repair that row"
            ) from None
        except (OSError, EOFError, UnicodeDecodeError):
            raise _unreadable(self.name) from None

    def _refuse_text(self, columns: tuple[str, ...]) -> None:
        """Refuse the first row with a cell that is neither a number nor empty."""
        pa = arrow()
        row = 0
        with self._open(dict.fromkeys(columns, pa.string())) as reader:
            for batch in reader:
                found = [
                    (place, column)
                    for column in columns
                    if (place := _first_text(batch.column(column), column in self.logical)) >= 0
                ]
                if found:
                    place, column = min(found)
                    raise not_a_number(self.name, column, "text", row + place)
                row += batch.num_rows


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
    """Where the cells of whole lines are, and their numbers.

    Parameters
    ----------
    delimiter : the code of the character between cells.
    width : cells in a line.
    wanted : places of the columns to read, ascending.
    """

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
        places_at, powers_at, out_at = (
            ctypes.c_void_p(each.ctypes.data) for each in (places, powers, out)
        )
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
    """Return 5^q for q = −60 … 60, 128 bits from the first one on, in two words, the upper one first.

    Cut off for positive q, and one more than cut off for negative ones, as [L21] takes them.
    """
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
    """Rows that are gathered until they make a block.

    Parameters
    ----------
    max_rows, width : of a block.
    order : where each of its columns is in what is added.
    """

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


def _unreadable(name: str) -> InputError:
    """Return the error for a file that is not delimited text."""
    return InputError(
        f"{name} must be delimited text in UTF-8, got one that cannot be parsed to its end; "
        "write it again as plain CSV"
    )


def csv_reader(path: Path, name: str, *, delimiter: str = ",") -> CsvTable:
    """Return the reader of a CSV or TSV file, gzipped or not, after a look at its first block."""
    pa = arrow()
    try:
        heading, longest = _first_lines(path)
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError):
        raise _unreadable(name) from None
    if longest == 0:
        raise InputError(
            f"{name} must have a line of column names and rows, got an empty file; write it again"
        )
    _require_separator(name, heading, delimiter)
    size = max(BLOCK_BYTES, 16 * longest)
    probe = CsvTable(name=name, path=path, delimiter=delimiter, block_bytes=size)
    try:
        with probe._open(None) as reader:
            schema = reader.schema
            schema.names  # noqa: B018  (decodes them: Arrow does not check that they are UTF-8)
    except (pa.ArrowException, UnicodeDecodeError):
        raise _unreadable(name) from None
    _require_header(name, schema.names)
    if all(pa.types.is_null(kind) for kind in schema.types):
        require_shape(name, _count_first(probe), len(schema.names))
    logical = frozenset(field.name for field in schema if pa.types.is_boolean(field.type))
    return CsvTable(
        name=name,
        path=path,
        delimiter=delimiter,
        columns=tuple(schema.names),
        logical=logical,
        block_bytes=size,
    )


def _count_first(table: CsvTable) -> int:
    """Return the number of rows in the first block."""
    with table._open(None) as reader:
        return next((batch.num_rows for batch in reader), 0)


def _first_lines(path: Path) -> tuple[str, int]:
    """Return the first line, and the length of the longer of the first two; what is not UTF-8 raises."""
    with arrow().input_stream(str(path), compression="detect") as text:
        head, lines = b"", 0
        while lines < 2 and (part := text.read(2**16)):
            head += part
            lines = head.count(b"\n")
        # its end may be half a character
        decoded = codecs.getincrementaldecoder("utf-8")().decode(head)
        longest = max((len(line) for line in head.split(b"\n")[:2]), default=0)
        return decoded.partition("\n")[0], longest


def _require_separator(name: str, heading: str, delimiter: str) -> None:
    """Refuse a first line that is separated by something else than its file's ending says."""
    bare = re.sub(r'"[^"]*"', "", heading)
    if delimiter in bare:
        return
    wanted, other = ("commas", "\t") if delimiter == "," else ("tabs", ",")
    if ";" in bare:
        raise InputError(
            f"cells of {name} must be separated by {wanted}, got semicolons; save it with {wanted} "
            "between cells and points in numbers"
        )
    if other in bare:
        got, ending = ("tabs", ".tsv") if other == "\t" else ("commas", ".csv")
        raise InputError(
            f"cells of {name} must be separated by {wanted} as its ending says, got {got}; let its name "
            f"end in {ending}"
        )


def _require_header(name: str, columns: list[str]) -> None:
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
