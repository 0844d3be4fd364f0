"""Blocks of a size worth computing on, whatever the source yields."""

from collections.abc import Callable, Iterator
from typing import Any, cast

import numpy as np
from scipy import sparse

from fedpower.rows.arrays import ArraySource
from fedpower.rows.columns import require_count
from fedpower.rows.source import Block, Matrix, RowSource, is_sparse
from fedpower.rows.watch import UNWATCHED, Watch


def full_blocks(source: RowSource, max_rows: int, watch: Watch = UNWATCHED) -> Iterator[Block]:
    """Yield the rows in order, in blocks of at most ``max_rows`` and on average at least half of it."""
    held: list[Block] = []
    count = total = 0
    for block in source.blocks(max_rows):
        size = int(block.shape[0])
        watch.saw(size)
        total += size
        if held and count + size > max_rows:
            yield _joined(held)
            held, count = [], 0
        if not held and 2 * size >= max_rows:
            yield block
        else:
            held.append(block)
            count += size
        del block  # or two blocks are held while the next one is read
    require_count(source.name, source.n_rows, total)
    if held:
        yield _joined(held)


def dense_blocks(
    source: RowSource, max_rows: int, watch: Watch = UNWATCHED
) -> tuple[Iterator[Matrix], Callable[[], None]]:
    """Return the blocks of a dense source, and what to call when a sum over them is not finite."""
    if isinstance(source, ArraySource) and source.keep is None and not source.wide:
        return _watched(source, max_rows, watch), lambda: _look_through(source, max_rows)
    return cast("Iterator[Matrix]", full_blocks(source, max_rows, watch)), lambda: None


def _watched(source: ArraySource, max_rows: int, watch: Watch) -> Iterator[Matrix]:
    total = 0
    for block in source.read(max_rows):
        watch.saw(int(block.shape[0]))
        total += int(block.shape[0])
        yield block
    require_count(source.name, source.n_rows, total)


def _look_through(source: ArraySource, max_rows: int) -> None:
    """Refuse a missing or infinite value, by the check that names its place."""
    for _ in source.blocks(max_rows):
        pass


def _joined(blocks: list[Any]) -> Block:
    if len(blocks) == 1:
        return blocks[0]  # type: ignore[no-any-return]
    if is_sparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")  # type: ignore[no-any-return]
    return np.vstack(blocks)
