"""The identity of what a source's rows are stored as, whatever a study makes of them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.rows.arrays import ArraySource, DaskSource, canonical
from fedpower.rows.source import UNWATCHED, OverRows, RowSource, Watch, block_rows, other_rows
from fedpower.rows.tables import TableSource
from fedpower.values import is_sparse, pl

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
    query = source.table.query if isinstance(source, TableSource) else None
    if query is not None:
        query.is_watched = True  # passes from now on are over the same cells
        digest: StoredData = query.digest
        return digest
    paths = _paths(source)
    if not paths:
        return partial(_digest_of, source)
    keys: list[dict[str, str]] = []
    if isinstance(source, TableSource):
        keys = [{key: str(value) for key, value in part.keys.items()} for part in source.table.parts]
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
            "group": source.group and source.group[0],
        }
        if words := {name: dict(own.words) for name, own in cells.items() if own.words}:
            reading["words"] = words
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
    if isinstance(source, TableSource):
        stored = source.table.parts or (source.table,)
        return [part.path for part in stored if part.path is not None]
    path = getattr(source, "path", None)
    return [] if path is None else [path, *getattr(source, "companions", ())]


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


# --- rows and cells in memory -----------------------------------------------------------------------------


def _digest_of(source: RowSource, watch: Watch = UNWATCHED) -> str:
    """Return the SHA-256 of named streams of bytes, whatever blocks of rows they come in."""
    streams: dict[str, Any] = {}
    n_rows = sum(_fed(source, streams, watch))
    head = json.dumps(["fedpower.cells/2", n_rows, list(streams)])
    state = hashlib.sha256(head.encode())
    for stream in streams.values():
        state.update(stream.digest())
    return state.hexdigest()


def _fed(source: RowSource, streams: dict[str, Any], watch: Watch) -> Iterator[int]:
    """Feed all stored columns of rows to streams; yield the numbers of rows of blocks."""

    def add(**parts: Any) -> None:
        for name, data in parts.items():
            streams.setdefault(name, hashlib.sha256()).update(data)

    if isinstance(source, TableSource):
        # Which cells are there, the lengths of texts, and the cells, column by column.
        for _, _, batch in source.table.batches(source.table.columns, _CELL_ROWS):
            watch.saw(0)
            yield len(batch)
            for name in source.table.columns:
                there, sizes, cells = _bytes_of(batch[name])
                add(**{f"there {name}": there, f"sizes {name}": sizes, f"cells {name}": cells})
        return
    if isinstance(source, DaskSource):
        for partition, opener in replace(source, columns=None, keep=None).openers():
            opened = opener(partition.compute())
            if opened is not None:
                yield from _fed(opened, streams, watch)
        return
    # All columns of rows of numbers: dense, or of wide rows what is not 0.
    width, read = source.n_features, source.blocks
    if isinstance(source, ArraySource):
        width, read = source.width, source.read
    if "width" not in streams:
        add(width=str(width).encode())
    buffer = np.empty((max(1, CHUNK // width), width), dtype="<f8")  # the same few pages of memory
    for block in read(block_rows(width)):
        watch.saw(int(block.shape[0]))
        yield int(block.shape[0])
        if width > _MAX_DENSE_FEATURES:
            nonzero = canonical(block)
            counts, places = (np.astype(x, "<i8") for x in (np.diff(nonzero.indptr), nonzero.indices))
            add(counts=counts.data, places=places.data, cells=nonzero.data.astype("<f8").data)
            continue
        rows = block.toarray() if is_sparse(block) else np.asarray(block)
        for start in range(0, len(rows), len(buffer)):
            some = rows[start : start + len(buffer)]
            add(cells=np.add(some, 0.0, out=buffer[: len(some)]).data)


def _bytes_of(cells: pl.Series) -> tuple[bytes, bytes, bytes]:
    there = cells.is_not_null().to_numpy().tobytes()
    if cells.dtype.is_integer() or cells.dtype.is_float():
        return there, b"", cells.fill_null(0).to_numpy().tobytes()
    try:
        texts = cells.cast(pl.String).fill_null("")
    except pl.exceptions.PolarsError:  # lists, structures, other bytes than text
        texts = pl.Series(values=[repr(cell) for cell in cells.to_list()], dtype=pl.String)
    return there, texts.str.len_bytes().to_numpy().tobytes(), "".join(texts.to_list()).encode()
