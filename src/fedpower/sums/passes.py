"""Passes over rows: each is counted and digested as it streams, and compared with the first one."""

import mmap
import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from typing import IO, Any, cast

import numpy as np
from numpy.typing import NDArray

from fedpower.rows.arrays import ArraySource, DaskSource
from fedpower.rows.fingerprint import stored_under
from fedpower.rows.source import OverRows, RowSource, other_rows, require_count
from fedpower.rows.tables import TableSource
from fedpower.rows.units import unit_of
from fedpower.sums.device import TensorSource
from fedpower.values import Block, is_sparse

Words = NDArray[np.uint64]

_CHUNK = 2**15  # numbers that are mixed together: they stay in a core's own cache
_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a pass, or a part of one, read: the number of rows and, where asked for, their digest."""

    n_rows: int
    digest: int = 0

    def __add__(self, other: "Seen") -> "Seen":
        total = (self.digest + other.digest) % 2**64
        return Seen(n_rows=self.n_rows + other.n_rows, digest=total)


def digest_key(n_features: int) -> Words:
    """Return a new secret multiplier for each column, so that no one can construct a digest."""
    words = np.random.default_rng(secrets.randbits(128))
    return words.integers(2**64, size=n_features, dtype=np.uint64)


def seen_in(block: Block, key: Words | None) -> Seen:
    """Return the number of a block's rows and, with a key, their digest."""
    count = int(block.shape[0])
    if key is None:
        return Seen(n_rows=count)
    if is_sparse(block):
        words = _mixed(np.ascontiguousarray(block.data).view(np.uint64))
        sums = np.concatenate([np.zeros(1, np.uint64), np.cumsum(words * key[block.indices])])
        rows = sums[block.indptr[1:]] - sums[block.indptr[:-1]]
    else:
        dense, step = np.asarray(block), max(1, _CHUNK // block.shape[1])
        by_columns = dense.flags.f_contiguous
        words = dense.T.view(np.uint64).T if by_columns else np.ascontiguousarray(dense).view(np.uint64)
        rows = np.empty(count, np.uint64)
        for start in range(0, count, step):
            part = slice(start, start + step)
            np.einsum("ij,j->i", _mixed(words[part]), key, out=rows[part])
    rows ^= rows >> np.uint64(32)
    rows *= _ODD
    rows ^= rows >> np.uint64(29)
    return Seen(n_rows=count, digest=int(rows.sum(dtype=np.uint64)))


def _mixed(words: Words) -> Words:
    mixed = words >> np.uint64(32)
    mixed ^= words
    return mixed


class EnrolledRows(OverRows):
    """A source whose every pass is over the rows of the first one, or refused at its end."""

    def __init__(self, source: RowSource, *, contents: bool, fingerprinted: bool = False) -> None:
        super().__init__(source)
        self._fingerprinted, self._fingerprint = fingerprinted, ""
        self._known, self._first = source.n_rows, cast("Seen | None", None)
        # With persons, blocks have a column more: how many rows each one's person has.
        width = source.n_features + int(unit_of(source) is not None)
        self.key = digest_key(width) if contents else None
        # Files that change from now on are refused.
        self._stored_data = stored_under(source) if fingerprinted else None

    def blocks(self, max_rows: int) -> Iterator[Block]:
        seen = Seen(n_rows=0)
        for block in self.rows.blocks(max_rows):
            seen += seen_in(block, self.key)
            yield block
            del block  # or two blocks are held while the next one is read
        self.hold(seen)

    def hold(self, seen: Seen) -> None:
        """Record the first complete pass, and its fingerprint where wanted; refuse one over other rows."""
        require_count(self.rows.name, self._known, seen.n_rows)
        if seen != (self._first or seen):
            raise other_rows(self.rows.name)
        self._first = seen
        if self._fingerprinted:
            self.fingerprint()

    def fingerprint(self) -> str:
        """Return the fingerprint of what is stored where the rows are read."""
        self._fingerprint = self._fingerprint or (self._stored_data or stored_under(self.rows))()
        return self._fingerprint


def enrolled(source: RowSource, *, contents: bool, fingerprinted: bool = False) -> RowSource:
    """Return a source whose passes are held to be over the same rows."""
    if isinstance(source, EnrolledRows) or _in_memory(source):
        return source
    contents = contents or (isinstance(source, TableSource) and source.table.query is not None)
    return EnrolledRows(source, contents=contents, fingerprinted=fingerprinted)


class SpooledRows(OverRows):
    """A source that is parsed once: later passes read its numbers from an unnamed file."""

    def __init__(self, source: RowSource) -> None:
        super().__init__(source)
        self._file: IO[bytes] | None = None
        self._shape = (0, 0)
        self._refused = False

    @property
    def n_rows(self) -> int | None:
        return self.rows.n_rows if self._file is None else self._shape[0]

    def blocks(self, max_rows: int) -> Iterator[Block]:
        if self._file is not None:
            count, width = self._shape
            for start in range(0, count, max_rows):
                self._file.seek(8 * width * start)
                size = min(max_rows, count - start)
                yield np.fromfile(self._file, np.float64, size * width).reshape(size, width)
            return
        file: IO[bytes] | None = None if self._refused else tempfile.TemporaryFile()  # noqa: SIM115 - later passes read it
        count = width = 0
        for block in self.rows.blocks(max_rows):
            count, width = count + int(block.shape[0]), int(block.shape[1])
            try:
                if file is not None:
                    file.write(np.ascontiguousarray(block).data)
            except OSError:  # the disk is full: rows are parsed at every pass
                assert file is not None
                file.close()
                file, self._refused = None, True
            yield block
            del block
        self._file, self._shape = file, (count, width)


def spooled(source: RowSource) -> RowSource:
    """Return a source that is parsed once, where it is not in memory anyway."""
    again = _in_memory(source) or source.sparse or isinstance(source, DaskSource)
    return source if again else SpooledRows(source)


def _in_memory(source: RowSource) -> bool:
    """Whether no other process can change the rows: a tensor, or an array that is not mapped from a file."""
    if isinstance(source, TensorSource):
        return True
    if not isinstance(source, ArraySource) or source.array is None:
        return False
    array: Any = source.array.data if source.sparse else source.array
    while array is not None:
        if isinstance(array, np.memmap | mmap.mmap):
            return False
        array = getattr(array, "base", None)
    return True
