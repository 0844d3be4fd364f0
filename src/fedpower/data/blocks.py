"""Blocks of a size worth computing on, whatever the source yields."""

from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from fedpower.data.source import Block, RowSource, is_sparse
from fedpower.data.watch import UNWATCHED, Watch


def full_blocks(source: RowSource, max_rows: int, watch: Watch = UNWATCHED) -> Iterator[Block]:
    """Yield the rows in order, in blocks of at most ``max_rows`` and on average at least half of it.

    Files with many small row groups, and groups scattered over a file, come in slivers: joined, they cost
    less time, and no row's contribution passes through more additions than the accounting of rounding
    errors supposes (`privacy.budget.longest_sum`). The ``watch`` is told of every block as it is read.
    """
    held: list[Block] = []
    count = 0
    for block in source.blocks(max_rows):
        size = int(block.shape[0])
        watch.saw(size)
        if held and count + size > max_rows:
            yield _joined(held)
            held, count = [], 0
        if not held and 2 * size >= max_rows:
            yield block
        else:
            held.append(block)
            count += size
    if held:
        yield _joined(held)


def _joined(blocks: list[Any]) -> Block:
    if len(blocks) == 1:
        return blocks[0]  # type: ignore[no-any-return]
    if is_sparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")  # type: ignore[no-any-return]
    return np.vstack(blocks)
