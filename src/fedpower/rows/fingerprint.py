"""The identity of what a source's rows are stored as, whatever a study makes of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedpower.rows.arrays import ArraySource, array_source, canonical
from fedpower.rows.dask_source import DaskSource
from fedpower.rows.source import UNWATCHED, OverRows, RowSource, Watch, block_rows, other_rows
from fedpower.rows.tables import Table, TableSource, frame_table
from fedpower.values import Block, SparseBlock, is_sparse, pl

_MAX_DENSE_FEATURES = 4096
"""Up to this width rows are hashed as dense float64, beyond it as their nonzero entries."""

CHUNK = 2**15
"""Numbers that are hashed together."""

_FILE_BYTES = 2**20
_CELL_ROWS = 2**14


StoredData = Callable[..., str]
"""Returns the SHA-256 of what a source's rows are stored as, under a `Watch` or none."""


def fingerprint(source: RowSource, watch: Watch = UNWATCHED) -> str:
    """Return the SHA-256 of what is stored where a source reads its rows."""
    kept = getattr(source, "fingerprint", None)
    return str(kept()) if callable(kept) else stored_under(source)(watch)


def stored_under(source: RowSource) -> StoredData:
    """Return what is stored beneath everything that a source makes of it."""
    source = _innermost(source)
    opened_from: StoredData | None = getattr(source, "stored_data", None)
    if opened_from is not None:
        return opened_from
    if not isinstance(source, TableSource):
        paths = _paths(source)
        return stored_files(paths, source.name) if paths else partial(_rows_digest, source)
    table = source.table
    query = table.query
    if query is not None:
        query.watch_cells()  # passes from now on are over the same cells
        return lambda watch=UNWATCHED: query.digest(watch)
    paths = [part.path for part in table.parts if part.path is not None]
    if not paths:
        return partial(_table_digest, table)
    keys = [{key: str(value) for key, value in part.keys.items()} for part in table.parts]
    return stored_files(paths, source.name, keys if any(keys) else ())


def reading_of(source: RowSource) -> str:
    """Return a digest of how a silo reads what it stores: its names and units, group and sheet."""
    source = _innermost(source)
    reading: dict[str, Any] = {}
    if isinstance(source, TableSource):
        cells = source.table.cells
        reading = {
            "rename": {name: stored.own for name, stored in cells.items() if name != stored.own},
            "linear": {name: (own.factor, own.offset) for name, own in cells.items() if own.converts},
            "sheet": source.table.sheet,
            "group": source.group and source.group.column,
        }
    elif not _paths(source):
        reading["keep"] = getattr(source, "keep", None)
    if not any(reading.values()):
        return ""
    return hashlib.sha256(json.dumps(reading, sort_keys=True).encode()).hexdigest()


def _innermost(source: RowSource) -> RowSource:
    while isinstance(source, OverRows):
        source = source.rows
    if isinstance(source, TableSource) and source.table.long_of is not None:
        return source.table.long_of[0]
    return source


def _paths(source: RowSource) -> list[Path]:
    path = getattr(source, "path", None)
    return [] if path is None else [path, *getattr(source, "beside", ())]


def _mark(path: Path) -> tuple[int, ...]:
    stat = path.stat()
    return stat.st_dev, stat.st_ino, stat.st_size, stat.st_mtime_ns


def stored_files(paths: Sequence[Path], name: str, keys: Sequence[dict[str, str]] = ()) -> StoredData:
    """Return files as they are now, in their order; those that change after this are refused."""
    marks = tuple(map(_mark, paths))

    def digest(watch: Watch = UNWATCHED) -> str:
        head = json.dumps(["fedpower.files/1", len(paths), keys], sort_keys=True)
        state = hashlib.sha256(head.encode())
        buffer = memoryview(bytearray(_FILE_BYTES))
        try:
            for path in paths:
                part = hashlib.sha256()
                with path.open("rb", buffering=0) as stream:
                    while count := stream.readinto(buffer):
                        watch.saw(0)
                        part.update(buffer[:count])
                state.update(part.digest())
            unchanged = marks == tuple(map(_mark, paths))
        except OSError:
            unchanged = False
        if not unchanged:
            raise other_rows(name)
        return state.hexdigest()

    return digest


def _rows_digest(source: RowSource, watch: Watch = UNWATCHED) -> str:
    if isinstance(source, DaskSource):
        return _dask_digest(source, watch)
    width, read = source.n_features, source.blocks
    if isinstance(source, ArraySource):
        width, read = source.width, source.read
    rows = _RowHash(width)
    for block in read(block_rows(width)):
        watch.saw(int(block.shape[0]))
        rows.add(block)
    return rows.digest()


def _dask_digest(source: DaskSource, watch: Watch) -> str:
    rows, cells = _RowHash(source.width), _CellHash()
    for partition in source.partitions:
        part = partition.compute()
        watch.saw(len(part))
        if not len(part):
            continue
        table = frame_table(part, source.name)
        if table is not None:
            cells.add(table, UNWATCHED)
        else:
            for block in array_source(part, source.name).read(block_rows(source.width)):
                rows.add(block)
    return cells.digest() if cells.n_rows else rows.digest()


def _table_digest(table: Table, watch: Watch = UNWATCHED) -> str:
    cells = _CellHash()
    cells.add(table, watch)
    return cells.digest()


class _CellHash:
    """The SHA-256 of a table's cells as they are, whatever batches they come in."""

    def __init__(self) -> None:
        self.n_rows = 0
        self._streams: dict[str, list[Any]] = {}

    def add(self, table: Table, watch: Watch) -> None:
        for part, _, batch in table.batches((), _CELL_ROWS, words=table.columns):
            watch.saw(0)
            self.n_rows += len(batch)
            for name in table.columns:
                streams = self._streams.setdefault(name, [hashlib.sha256() for _ in range(3)])
                for stream, data in zip(streams, _bytes_of(batch[part.cells[name].own]), strict=True):
                    stream.update(data)

    def digest(self) -> str:
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
        texts = pl.Series(values=[repr(cell) for cell in cells.to_list()], dtype=pl.String)
    yield texts.str.len_bytes().to_numpy().tobytes()
    yield "".join(texts.to_list()).encode()


class _RowHash:
    """The SHA-256 of rows of numbers, from the blocks of a pass in their order."""

    def __init__(self, width: int) -> None:
        self._head = json.dumps(["fedpower.rows/1", width, None])
        self._streams = [hashlib.sha256() for _ in range(3 if width > _MAX_DENSE_FEATURES else 1)]
        self._total = 0

    def add(self, block: Block) -> None:
        self._total += int(block.shape[0])
        if len(self._streams) == 1:
            rows = block.toarray() if is_sparse(block) else np.asarray(block)
            step = max(1, CHUNK // int(rows.shape[1]))
            buffer = np.empty((step, rows.shape[1]), dtype="<f8")  # the same few pages of memory
            for start in range(0, int(rows.shape[0]), step):
                part = rows[start : start + step]
                self._streams[0].update(np.add(part, 0.0, out=buffer[: len(part)]).data)
            return
        nonzero: SparseBlock = canonical(block if is_sparse(block) else sparse.csr_array(block))
        nonzero.eliminate_zeros()
        parts: Any = (np.diff(nonzero.indptr), "<i8"), (nonzero.indices, "<i8"), (nonzero.data, "<f8")
        for stream, (numbers, dtype) in zip(self._streams, parts, strict=True):
            stream.update(numbers.astype(dtype).tobytes())

    def digest(self) -> str:
        state = hashlib.sha256(self._head.encode())
        state.update(self._total.to_bytes(8, "little"))
        for stream in self._streams:
            state.update(stream.digest())
        return state.hexdigest()
