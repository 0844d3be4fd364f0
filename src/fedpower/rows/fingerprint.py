"""The identity of what a source's rows are stored as, whatever a study makes of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from scipy import sparse

from fedpower.rows.arrays import PositionalSource, array_source, canonical
from fedpower.rows.columns import other_rows
from fedpower.rows.dask_source import DaskSource
from fedpower.rows.source import Block, OverRows, RowSource, SparseBlock, is_sparse, pl
from fedpower.rows.sql import StoredQuery
from fedpower.rows.tables import Table, TableSource, frame_table
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.kernel import block_rows

_MAX_DENSE_FEATURES = 4096
"""Up to this width rows are hashed as dense float64, beyond it as their nonzero entries."""

CHUNK = 2**15
"""Numbers that are hashed together."""

_FILE_BYTES = 2**20
"""Bytes of a file that are hashed together."""

_CELL_ROWS = 2**14
"""Rows of a table whose cells are hashed together."""


def fingerprint(source: RowSource, watch: Watch = UNWATCHED) -> str:
    """Return the SHA-256 of what is stored where a source reads its rows."""
    kept = getattr(source, "fingerprint", None)
    return str(kept()) if callable(kept) else stored_under(source).digest(watch)


class StoredData(Protocol):
    """What a source's rows are stored as."""

    def digest(self, watch: Watch = UNWATCHED) -> str:
        """Return its SHA-256."""
        ...


def stored_under(source: RowSource) -> StoredData:
    """Return what is stored beneath everything that a source makes of it."""
    while isinstance(source, OverRows):
        source = source.rows
    opened_from = getattr(source, "stored_data", None)
    if opened_from is not None:
        return opened_from  # type: ignore[no-any-return]
    if isinstance(source, TableSource):
        return _under(source.table, source.name)
    paths = stored_paths(source)
    if paths:
        return StoredFiles.of(paths, name=source.name)
    return _StoredRows(source=source)


def reading_of(source: RowSource) -> str:
    """Return a digest of how a silo reads what it stores: its names and units, group and sheet."""
    while isinstance(source, OverRows):
        source = source.rows
    said: dict[str, Any] = {}
    if isinstance(source, TableSource):
        cells = source.table.cells
        if source.table.long_of is not None:
            source = source.table.long_of[0]
            cells = source.table.cells
        renamed = {name: each.own for name, each in cells.items() if name != each.own}
        linear = {name: (each.factor, each.offset) for name, each in cells.items() if each.converts}
        said = {"rename": renamed, "linear": linear, "sheet": source.table.sheet}
        said["group"] = source.group and source.group.column
    elif not stored_paths(source):
        said["keep"] = getattr(source, "keep", None)
    if not any(said.values()):
        return ""
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()


def stored_paths(source: RowSource) -> tuple[Path, ...]:
    """Return the files that a source of arrays reads; none where its rows are not in files."""
    path = getattr(source, "path", None)
    beside = getattr(source, "beside", ())
    return () if path is None else (path, *beside)


def _under(table: Table, name: str) -> StoredData:
    """Return what is stored beneath a table."""
    if table.long_of is not None:
        table = table.long_of[0].table
    if table.query is not None:
        return _StoredQuery(query=table.query)
    paths = [part.path for part in table.parts if part.path is not None]
    if paths:
        keys = [{key: str(value) for key, value in part.keys.items()} for part in table.parts]
        return StoredFiles.of(paths, name=name, keys=keys if any(keys) else ())
    return _StoredTable(table=table)


def _mark(path: Path) -> tuple[int, ...]:
    """Return what changes when a file is replaced or written to."""
    found = path.stat()
    return found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredFiles:
    """Files, in their order; those that change after this was made are refused."""

    name: str
    paths: tuple[Path, ...]
    marks: tuple[tuple[int, ...], ...]
    keys: tuple[dict[str, str], ...] = ()

    @classmethod
    def of(cls, paths: Iterable[Path], *, name: str, keys: Iterable[dict[str, str]] = ()) -> StoredFiles:
        """Return these files as they are now."""
        kept = tuple(paths)
        return cls(name=name, paths=kept, marks=tuple(map(_mark, kept)), keys=tuple(keys))

    def digest(self, watch: Watch = UNWATCHED) -> str:
        """Return the SHA-256 of the files' bytes."""
        head = json.dumps(["fedpower.files/1", len(self.paths), self.keys], sort_keys=True)
        state = hashlib.sha256(head.encode())
        room = memoryview(bytearray(_FILE_BYTES))
        try:
            for path in self.paths:
                part = hashlib.sha256()
                with path.open("rb", buffering=0) as stream:
                    while count := stream.readinto(room):
                        watch.saw(0)
                        part.update(room[:count])
                state.update(part.digest())
            unchanged = self.marks == tuple(map(_mark, self.paths))
        except OSError:
            unchanged = False
        if not unchanged:
            raise other_rows(self.name)
        return state.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredRows:
    """All rows and columns of arrays, or of a source of another kind as it gives them."""

    source: RowSource

    def digest(self, watch: Watch = UNWATCHED) -> str:
        """Return the SHA-256 of width, number of rows and rows."""
        source = self.source
        if isinstance(source, DaskSource):
            return _dask_digest(source, watch)
        width = source.width if isinstance(source, PositionalSource) else source.n_features
        read = source.read if isinstance(source, PositionalSource) else source.blocks
        hashed = RowHash(width)
        for block in read(block_rows(width)):
            watch.saw(int(block.shape[0]))
            hashed.add(block)
        return hashed.digest()


def _dask_digest(source: DaskSource, watch: Watch) -> str:
    """Return the SHA-256 of a Dask collection's rows, which come here a partition at a time."""
    rows, cells = RowHash(source.width), CellHash()
    for partition in source.partitions:
        found = partition.compute()
        watch.saw(len(found))
        if not len(found):
            continue
        table = frame_table(found, source.name)
        if table is not None:
            cells.add_all(table)
            continue
        opened = array_source(found, source.name)
        for block in opened.read(block_rows(opened.width)):
            rows.add(block)
    return cells.digest() if cells.n_rows else rows.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredTable:
    """All cells of a table that lies in memory, or that another library reads."""

    table: Table

    def digest(self, watch: Watch = UNWATCHED) -> str:
        """Return the SHA-256 of names and cells."""
        hashed = CellHash()
        hashed.add_all(self.table, lambda: watch.saw(0))
        return hashed.digest()


@dataclass(frozen=True, slots=True, kw_only=True)
class _StoredQuery:
    """All cells that a query gives, in any order; passes after this was made are over the same."""

    query: StoredQuery

    def __post_init__(self) -> None:
        self.query.watch_cells()

    def digest(self, watch: Watch = UNWATCHED) -> str:
        """Return the digest of names and rows, of a pass that was made or of one for it."""
        watch.saw(0)
        return self.query.digest()


class CellHash:
    """The SHA-256 of a table's cells as they are, whatever batches they come in."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._streams: dict[str, list[Any]] = {}

    def add_all(self, table: Table, seen: Callable[[], None] = lambda: None) -> None:
        """Take in all rows of a table."""
        for part, _, batch in table.batches((), _CELL_ROWS, words=table.columns):
            seen()
            self.n_rows += len(batch)
            for name in table.columns:
                streams = self._streams.setdefault(name, [hashlib.sha256() for _ in range(3)])
                for stream, data in zip(streams, _bytes_of(batch[part.cells[name].own]), strict=True):
                    stream.update(data)

    def digest(self) -> str:
        """Return the SHA-256 of names, number of rows and cells."""
        head = json.dumps(["fedpower.cells/1", self.n_rows, list(self._streams)])
        state = hashlib.sha256(head.encode())
        for streams in self._streams.values():
            for stream in streams:
                state.update(stream.digest())
        return state.hexdigest()


def _bytes_of(cells: pl.Series) -> Iterator[bytes]:
    """Yield which cells are there, the lengths of texts, and the cells."""
    yield cells.is_not_null().to_numpy().tobytes()
    if cells.dtype.is_integer() or cells.dtype.is_float():
        yield b""
        yield cells.fill_null(0).to_numpy().tobytes()
        return
    try:
        texts = cells.cast(pl.String).fill_null("")
    except pl.exceptions.PolarsError:  # lists, structures, other bytes than text
        texts = pl.Series(values=[repr(each) for each in cells.to_list()], dtype=pl.String)
    yield texts.str.len_bytes().to_numpy().tobytes()
    yield "".join(texts.to_list()).encode()


class RowHash:
    """The SHA-256 of rows of numbers, from the blocks of a pass in their order."""

    def __init__(self, width: int) -> None:
        self._head = json.dumps(["fedpower.rows/1", width, None])
        self._streams = [hashlib.sha256() for _ in range(3 if width > _MAX_DENSE_FEATURES else 1)]
        self._total = 0

    def add(self, block: Block) -> None:
        """Take in the next block."""
        self._total += int(block.shape[0])
        if len(self._streams) == 1:
            _hash_dense(self._streams[0], block)
            return
        for stream, part in zip(self._streams, _entries(block), strict=True):
            stream.update(part)

    def digest(self) -> str:
        """Return the SHA-256 of width, number of rows and rows."""
        state = hashlib.sha256(self._head.encode())
        state.update(self._total.to_bytes(8, "little"))
        for stream in self._streams:
            state.update(stream.digest())
        return state.hexdigest()


def _hash_dense(stream: Any, block: Block) -> None:
    """Hash the rows as float64, some at a time in the same few pages of memory."""
    rows = block.toarray() if is_sparse(block) else np.asarray(block)
    step = max(1, CHUNK // int(rows.shape[1]))
    room = np.empty((step, rows.shape[1]), dtype="<f8")
    for start in range(0, int(rows.shape[0]), step):
        part = rows[start : start + step]
        stream.update(np.add(part, 0.0, out=room[: len(part)]))


def _entries(block: Block) -> tuple[bytes, bytes, bytes]:
    """Return nonzero entries per row, their columns and their values as bytes."""
    rows: SparseBlock = block if is_sparse(block) else sparse.csr_array(block)
    nonzero = canonical(rows)
    nonzero.eliminate_zeros()
    counts = np.diff(nonzero.indptr).astype("<i8")
    return (counts.tobytes(), nonzero.indices.astype("<i8").tobytes(), nonzero.data.astype("<f8").tobytes())
