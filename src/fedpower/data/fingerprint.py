"""The identity of a source's rows, the same for every file format and block size."""

import hashlib
import json
from typing import Any, Protocol, runtime_checkable

import numpy as np
from scipy import sparse

from fedpower.data.arrays import canonical
from fedpower.data.kernel import block_rows
from fedpower.data.source import Block, RowSource, SparseBlock, is_sparse
from fedpower.data.watch import UNWATCHED, Watch

_MAX_DENSE_FEATURES = 4096
"""Up to this width rows are hashed as dense float64, beyond it as their nonzero entries."""

CHUNK = 2**15
"""Numbers that are hashed together."""


def fingerprint(source: RowSource, watch: Watch = UNWATCHED) -> str:
    """Return the SHA-256 of a source's columns and untreated rows, from one pass.

    The encoding depends on the rows alone: little-endian float64 in row order, −0 as +0. Rows wider
    than 4096 columns are hashed by their nonzero entries, dense and sparse alike, as three streams
    (entries per row, indices, values), so that neither block size nor storage shows. Column names
    are part of it; a source without names differs from one with names. A query's rows have no order
    and an encoding of their own (`RowTally`): the same rows from a file are another question.

    The digest of rows tells whoever can guess them whether the guess is right: it is for the silo's
    own files. The ``watch`` is told of every block; the own pass of a query, or of rows that are enrolled
    (`passes`), is not watched.
    """
    if isinstance(source, _Fingerprinted):
        return source.fingerprint()
    hashed = RowHash(source)
    for block in source.blocks(block_rows(source.n_features)):
        watch.saw(int(block.shape[0]))
        hashed.add(block)
    return hashed.digest()


@runtime_checkable
class _Fingerprinted(Protocol):
    """A source that makes its fingerprint in a pass of its own: a query, and enrolled rows."""

    def fingerprint(self) -> str:
        """Return it."""


class RowHash:
    """The fingerprint of a source's rows, from the blocks of a pass in their order.

    Parameters
    ----------
    source : for its columns and its width; the caller reads it.
    """

    def __init__(self, source: RowSource) -> None:
        width = source.n_features
        self._head = json.dumps(["fedpower.rows/1", width, source.columns], ensure_ascii=False)
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
        """Return the SHA-256 of columns, number of rows and rows."""
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
    return (
        counts.tobytes(),
        nonzero.indices.astype("<i8").tobytes(),
        nonzero.data.astype("<f8").tobytes(),
    )
