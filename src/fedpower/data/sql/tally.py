"""A digest of rows that does not depend on their order, summed up while they pass."""

import hashlib
import json

import numpy as np

from fedpower.data.source import Matrix

LANES = 8


class RowTally:
    """The number of rows, and the sum of a 512-bit digest of each.

    A database promises no order of rows, so the digests are added, in eight lanes modulo 2⁶⁴: a multiset
    hash [CDDGS03 §5]. Rows that occur twice count twice. Tables that differ by accident agree with
    probability 2⁻²⁵⁶. Somebody who may write rows of his choice could make two tables agree by a search
    over some 2⁴⁵ digests [Wag02]; he would gain that the earlier table's release is given again.

    Parameters
    ----------
    columns : the columns' names, part of the digest.
    """

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self.n_rows = 0
        self._sum = np.zeros(LANES, dtype=np.uint64)

    def add(self, block: Matrix) -> None:
        """Count a block of rows, −0 as +0."""
        data = memoryview((block + 0.0).astype("<f8").tobytes())
        width = 8 * block.shape[1]
        digests = b"".join(
            [hashlib.blake2b(data[at : at + width]).digest() for at in range(0, len(data), width)]
        )
        self._sum += np.frombuffer(digests, dtype="<u8").reshape(-1, LANES).sum(axis=0, dtype="<u8")
        self.n_rows += int(block.shape[0])

    def digest(self) -> str:
        """Return the SHA-256 of columns, number of rows and sum."""
        head = json.dumps(["fedpower.rows in any order/1", self._columns], ensure_ascii=False)
        state = hashlib.sha256(head.encode())
        state.update(self.n_rows.to_bytes(8, "little"))
        state.update(self._sum.astype("<u8").tobytes())
        return state.hexdigest()
