"""Pages of a Parquet file put side by side as rows, where they hold plain numbers and none is missing."""

import ctypes
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.rows.columns import LARGEST_EXACT
from fedpower.rows.source import Matrix
from fedpower.rows.tables import NotPlainError, arrow

_DOUBLE = np.dtype("<f8")
_INTEGERS = {"int64": (2, "<i8")} | dict.fromkeys(("int32", "int16", "int8"), (1, "<i4"))
_NUMBERS = {"double": (5, "<f8"), "float": (4, "<f4")} | _INTEGERS
"""Parquet's number of what pages hold for an Arrow type, and how; other types are not read here."""

_UNCOMPRESSED, _SNAPPY, _ZSTD = 0, 1, 6
"""Parquet's numbers of compressions; Arrow's other codecs do not tell of a page that is too short."""

_PLAIN, _OLD_DICTIONARY, _DICTIONARY = 0, 2, 8
"""Parquet's numbers of encodings: numbers themselves, and places in a dictionary, which have two."""

_LEVELS = (4, 3)
"""Encodings of what says which cells are there; none is written by the first where all must be."""

_DATA_PAGE, _DICTIONARY_PAGE, _DATA_PAGE_2 = 0, 2, 3

_STRUCTURES, _FIELDS, _OF_CHUNK = 9, 8, 6
"""Of a page's header: STRUCTURES and FIELDS in native/pages.c; and numbers in its `struct chunk`."""

_HEADER_BYTES = 512
"""Room for a page's header: that of a page of numbers takes some 80, its statistics among them."""

_MOST_PAGE_BYTES, _MOST_VALUES, _MOST_FOOTER_BYTES = 2**28, 2**25, 2**30
"""No writer makes larger pages of numbers, and nothing damaged may ask for more memory."""

_SMALL_BYTES = 2**18
"""Pages up to this size, as writers make them, lie where NumPy's arrays do: Arrow's own memory goes back
to the system, and is asked for again, while blocks are summed. Larger pages would leave gaps there."""

_TAIL = 8
"""Bytes after the metadata: how many these are, and Parquet's mark."""


def plain_rows(path: Path, columns: Sequence[str], max_rows: int) -> Iterator[Matrix]:
    """Yield blocks of the file's rows, finite, as far as its pages are plain; then `NotPlainError`."""
    loops = native.loops()
    if loops is None or sys.byteorder != "little" or not hasattr(os, "preadv"):
        raise NotPlainError
    try:
        with path.open("rb", buffering=0) as file:
            with arrow("parquet").ParquetFile(path, pre_buffer=False) as table:
                groups = _groups(file.fileno(), loops, table, columns)
            yield from _side_by_side(loops, _Pages(file.fileno(), loops), groups, max_rows)
    except (arrow().ArrowException, OSError, ValueError):
        raise NotPlainError from None


class _Form(NamedTuple):
    """How a column is stored: its place in the file, its Arrow type, and whether cells may be missing."""

    place: int
    kind: str
    optional: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Chunk:
    """Where the pages of one column lie in one row group, and how they store its numbers."""

    start: int
    stop: int
    n_values: int
    compression: int
    kind: str
    optional: bool


def _groups(file: int, loops: Any, table: Any, columns: Sequence[str]) -> list[list[_Chunk]]:
    """Return the wanted columns' chunks in every row group that has rows."""
    forms = _forms(table, columns)
    found = _chunks(file, loops, table.num_row_groups, len(table.schema))
    groups = [[_chunk(group[form.place], form) for form in forms] for group in found]
    groups = [group for group in groups if group[0].n_values]
    if not groups or sum(group[0].n_values for group in groups) != table.metadata.num_rows:
        raise NotPlainError
    size = os.fstat(file).st_size
    if any(chunk.stop > size for group in groups for chunk in group):
        raise NotPlainError
    return groups


def _forms(table: Any, columns: Sequence[str]) -> list[_Form]:
    """Return how the wanted columns are stored."""
    schema, types = table.schema, table.schema_arrow
    places: dict[str, list[int]] = {}
    for place in range(len(schema)):
        places.setdefault(schema.column(place).path, []).append(place)
    forms = []
    for name in columns:
        found = places.get(name, [])
        if len(found) != 1:  # a part of a nested column may be called as another is
            raise NotPlainError
        stored, kind = schema.column(found[0]), str(types.field(name).type)
        levels = int(stored.max_definition_level)
        if kind not in _NUMBERS or levels > 1 or stored.max_repetition_level:
            raise NotPlainError
        forms.append(_Form(found[0], kind, levels == 1))
    return forms


def _chunks(file: int, loops: Any, n_groups: int, n_columns: int) -> list[list[list[int]]]:
    """Return what the end of the file says of each column in each group."""
    size = os.fstat(file).st_size
    tail = os.pread(file, _TAIL, max(0, size - _TAIL))
    length = int.from_bytes(tail[:4], "little")
    if tail[4:] != b"PAR1" or not 0 < length <= min(size - _TAIL, _MOST_FOOTER_BYTES):
        raise NotPlainError
    footer = os.pread(file, length, size - _TAIL - length)
    found = np.empty((n_groups, n_columns, _OF_CHUNK), dtype=np.int64)
    if len(footer) < length or not loops.fedpower_chunks(
        footer,
        *(ctypes.c_int64(each) for each in (length, n_groups, n_columns)),
        ctypes.c_void_p(found.ctypes.data),
    ):
        raise NotPlainError
    groups: list[list[list[int]]] = found.tolist()
    return groups


def _chunk(found: list[int], form: _Form) -> _Chunk:
    """Return a chunk of numbers of this form."""
    stored, compression, n_values, size, start, dictionary = found
    if stored != _NUMBERS[form.kind][0] or compression not in (_UNCOMPRESSED, _SNAPPY, _ZSTD):
        raise NotPlainError
    if 0 < dictionary < start:
        start = dictionary
    return _Chunk(
        start=start,
        stop=start + size,
        n_values=n_values,
        compression=compression,
        kind=form.kind,
        optional=form.optional,
    )


def _side_by_side(loops: Any, pages: "_Pages", groups: list[list[_Chunk]], max_rows: int) -> Iterator[Matrix]:
    """Yield blocks of rows, as wide as a group has chunks."""
    left = sum(group[0].n_values for group in groups)
    block, filled = np.empty((min(max_rows, left), len(groups[0]))), 0
    for group in groups:
        width, of_group = len(group), group[0].n_values
        columns = [pages.of(chunk) for chunk in group]
        held: list[Any] = [None] * width
        addresses, ready = np.zeros(width, dtype=np.uintp), np.zeros(width, dtype=np.int64)
        while of_group:
            for place in np.flatnonzero(ready == 0).tolist():
                held[place] = None  # or two pages of a column are held
                held[place], addresses[place], ready[place] = next(columns[place])
            count = min(int(ready.min()), len(block) - filled)
            if not loops.fedpower_side_by_side(
                ctypes.c_void_p(addresses.ctypes.data),
                *(ctypes.c_int64(size) for size in (count, width)),
                ctypes.c_void_p(block.ctypes.data + filled * block.strides[0]),
            ):
                raise NotPlainError
            addresses += np.uintp(count * block.itemsize)
            ready -= count
            of_group -= count
            filled += count
            if filled == len(block):
                yield block
                left -= filled
                del block  # or two blocks are held while the next one is read
                block, filled = np.empty((min(max_rows, left), width)), 0


class _Numbers(NamedTuple):
    """Numbers in float64: who holds them, their address and how many they are."""

    held: Any
    address: int
    n_values: int


class _Page(NamedTuple):
    """A page without its compression."""

    memory: Any
    start: int
    n_values: int
    encoding: int
    is_dictionary: bool = False


class _Pages:
    """The pages of a file's chunks, one at a time."""

    def __init__(self, file: int, loops: Any) -> None:
        self._file, self._loops = file, loops
        loops.fedpower_page_header.restype = ctypes.c_int64
        loops.fedpower_after_levels.restype = ctypes.c_int64
        self._fields = (ctypes.c_int64 * (_STRUCTURES * _FIELDS))()
        self._zstd = arrow().Codec("zstd")
        self._snappy = arrow().Codec("snappy")
        self._pool = arrow().system_memory_pool()
        self._usual = self._plain_size = 0
        self._found = (ctypes.c_int64 * 4)()
        self._make_room(_HEADER_BYTES)

    def of(self, chunk: _Chunk) -> Iterator[_Numbers]:
        """Yield a chunk's numbers, page by page."""
        place, left = chunk.start, chunk.n_values
        known: _Numbers | None = None
        held: _Numbers | None = None
        while left:
            if held is None and chunk.kind == "double" and self._plain_size:
                held = _in_array(np.empty(-(-self._plain_size // _DOUBLE.itemsize)))
            if held is not None and self._plain(place, chunk, held):
                place, start, n_values, self._usual = self._found
                if n_values > left or place > chunk.stop:
                    raise NotPlainError
                left -= n_values
                yield _Numbers(held.held, held.address + start, n_values)
                continue
            page, place = self._next(place, chunk)
            if page.is_dictionary:
                known = _numbers(page, chunk)
                continue
            if not 0 < page.n_values <= min(left, _MOST_VALUES) or place > chunk.stop:
                raise NotPlainError
            left -= page.n_values
            if page.encoding == _PLAIN:
                known = None  # no writer goes back to its dictionary
                if page.memory.size <= _SMALL_BYTES:
                    self._plain_size = max(self._plain_size, page.memory.size)
                found = _numbers(page, chunk)
            else:
                found = self._looked_up(page, known)
            del page
            yield found

    def _plain(self, place: int, chunk: _Chunk, into: _Numbers) -> bool:
        """Return whether the page at a place is of the usual kind, in one call, and put it there."""
        if len(self._room) < self._usual + _HEADER_BYTES:
            self._make_room(self._usual + _HEADER_BYTES)
        return bool(
            self._loops.fedpower_plain_page(
                self._file,
                ctypes.c_int64(place),
                chunk.compression,
                chunk.optional,
                ctypes.c_void_p(self._address),
                ctypes.c_int64(self._usual + _HEADER_BYTES),
                ctypes.c_void_p(into.address),
                ctypes.c_int64(into.n_values * _DOUBLE.itemsize),
                self._found,
            )
        )

    def _next(self, place: int, chunk: _Chunk) -> tuple[_Page, int]:
        """Return the page at a place of the file, and the place after it."""
        found = self._read(place, self._usual + _HEADER_BYTES)
        length = self._loops.fedpower_page_header(
            ctypes.c_void_p(self._address), ctypes.c_int64(found), self._fields
        )
        kind, whole, stored = self._fields[1:4]
        if length < 0 or not (0 <= stored <= _MOST_PAGE_BYTES and 0 <= whole <= _MOST_PAGE_BYTES):
            raise NotPlainError
        self._usual, stop = stored, length + stored
        if found < stop and self._read(place, stop) < stop:
            raise NotPlainError
        body = self._room[length:stop]
        if kind == _DATA_PAGE:
            page = self._data(body, whole, chunk)
        elif kind == _DATA_PAGE_2:
            page = self._data_2(body, whole, chunk)
        elif kind == _DICTIONARY_PAGE:
            page = self._dictionary(body, whole, chunk)
        else:
            raise NotPlainError
        return page, place + stop

    def _of(self, structure: int) -> list[int]:
        """Return the numbers of a structure of the header, the first one being that of field 1."""
        return self._fields[structure * _FIELDS + 1 : (structure + 1) * _FIELDS]

    def _data(self, body: NDArray[np.uint8], whole: int, chunk: _Chunk) -> _Page:
        n_values, encoding, levels, repeated, *_ = self._of(5)
        if levels not in _LEVELS[chunk.optional :] or repeated not in _LEVELS:
            raise NotPlainError
        memory, start = self._inflated(body, whole, chunk.compression), 0
        if chunk.optional:
            start = self._loops.fedpower_after_levels(
                ctypes.c_void_p(memory.address), ctypes.c_int64(memory.size), ctypes.c_int64(n_values)
            )
            if start < 0:
                raise NotPlainError
        return _Page(memory, start, n_values, encoding)

    def _data_2(self, body: NDArray[np.uint8], whole: int, chunk: _Chunk) -> _Page:
        """Return a page of the second version, whose levels are not compressed."""
        n_values, n_missing, n_rows, encoding, levels, repeated, is_compressed = self._of(8)
        if n_missing or repeated or n_rows != n_values or not 0 <= levels <= min(len(body), whole):
            raise NotPlainError
        if chunk.optional and not self._loops.fedpower_all_there(
            ctypes.c_void_p(body.ctypes.data), ctypes.c_int64(levels), ctypes.c_int64(n_values)
        ):
            raise NotPlainError
        compression = chunk.compression if is_compressed else _UNCOMPRESSED
        memory = self._inflated(body[levels:], whole - levels, compression)
        return _Page(memory, 0, n_values, encoding)

    def _dictionary(self, body: NDArray[np.uint8], whole: int, chunk: _Chunk) -> _Page:
        n_values, encoding, *_ = self._of(7)
        if n_values < 0 or encoding not in (_PLAIN, _OLD_DICTIONARY):
            raise NotPlainError
        memory = self._inflated(body, whole, chunk.compression)
        return _Page(memory, 0, n_values, _PLAIN, is_dictionary=True)

    def _make_room(self, size: int) -> None:
        self._room = np.empty(size, dtype=np.uint8)
        self._address = self._room.ctypes.data

    def _read(self, place: int, size: int) -> int:
        """Return how many bytes of the file were read, fewer at its end; they are in ``_room``."""
        if len(self._room) < size:
            self._make_room(size)
        return os.preadv(self._file, [self._room[:size].data], place)

    def _inflated(self, body: NDArray[np.uint8], size: int, compression: int) -> Any:
        """Return bytes without their compression, in memory of their own."""
        if compression == _UNCOMPRESSED:
            if len(body) != size:
                raise NotPlainError
            return arrow().py_buffer(body.tobytes())
        if compression == _SNAPPY and _snappy_size(body) != size:
            raise NotPlainError
        codec = self._snappy if compression == _SNAPPY else self._zstd
        pool = self._pool if size <= _SMALL_BYTES else None
        return codec.decompress(body, size, memory_pool=pool)

    def _looked_up(self, page: _Page, known: _Numbers | None) -> _Numbers:
        """Return the numbers of the dictionary that a page stands for."""
        if known is None or page.encoding not in (_DICTIONARY, _OLD_DICTIONARY):
            raise NotPlainError
        found = _in_array(np.empty(page.n_values))
        if not self._loops.fedpower_looked_up(
            ctypes.c_void_p(page.memory.address + page.start),
            ctypes.c_int64(page.memory.size - page.start),
            ctypes.c_void_p(known.address),
            *(ctypes.c_int64(size) for size in (known.n_values, found.n_values)),
            ctypes.c_void_p(found.address),
        ):
            raise NotPlainError
        return found


def _snappy_size(body: NDArray[np.uint8]) -> int:
    """Return the size that compressed bytes begin with, seven bits a byte."""
    found = 0
    for place, byte in enumerate(bytes(body[:5])):
        found |= (byte & 127) << 7 * place
        if byte < 128:
            return found
    return -1


def _numbers(page: _Page, chunk: _Chunk) -> _Numbers:
    """Return a page's numbers as float64, which holds them all exactly."""
    if chunk.kind == "double":  # which may lie where no double may
        if page.memory.size < page.start + page.n_values * _DOUBLE.itemsize:
            raise NotPlainError
        return _Numbers(page.memory, page.memory.address + page.start, page.n_values)
    values = np.frombuffer(page.memory, dtype=_NUMBERS[chunk.kind][1], count=page.n_values, offset=page.start)
    if chunk.kind in _INTEGERS and len(values):
        bounds = np.iinfo(chunk.kind)
        least, most = max(bounds.min, 1 - LARGEST_EXACT), min(bounds.max, LARGEST_EXACT - 1)
        if values.min() < least or values.max() > most:
            raise NotPlainError
    return _in_array(values.astype(np.float64))


def _in_array(values: NDArray[np.float64]) -> _Numbers:
    return _Numbers(values, values.ctypes.data, len(values))
