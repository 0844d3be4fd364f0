"""One way to sum rows: blocks of a source are added to sums, and sums are merged."""

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar, cast

import numpy as np

from fedpower.exceptions import InputError
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import UNWATCHED, RowSource, Watch, block_rows, require_count
from fedpower.rows.units import Weights, unit_of
from fedpower.values import Block, Matrix, Vector, is_sparse, sparse

S = TypeVar("S", bound="Sum")

SPARSE_LIMIT = 0.1
"""Share of stored entries above which dense arithmetic is faster than sparse."""

_GRAM_BYTES = 2**25
_MOST_SHARED = 1024


def gram_rows(n_features: int) -> int:
    """Return how many rows of a dense block are squared together."""
    return max(block_rows(n_features), min(8 * n_features, _GRAM_BYTES // (8 * n_features)))


def shares_blocks(n_features: int) -> bool:
    """Return whether a silo's cores are better given a block each than a product together."""
    return n_features <= _MOST_SHARED


class Sum(Protocol):
    """What is added up over rows. A sum of one block merged in is that block added, to the bit."""

    def add(self, block: Any, weights: Weights | None = None) -> None:
        """Add the rows of a block; where persons count, with what each row weighs."""

    def merge(self, other: Any) -> None:
        """Add what another sum holds, which is not used afterwards."""


class NotFiniteError(InputError):
    """A sum met a value that is not finite, in rows that were not checked as they were read."""


def reduce(
    source: RowSource,
    make: Callable[[], S],
    max_rows: int,
    *,
    workers: int = 1,
    watch: Watch = UNWATCHED,
    checked: bool = False,
) -> S:
    """Return the sum over all rows; the result does not depend on the number of workers."""
    unit = unit_of(source)

    def blocks() -> Iterator[tuple[Any, Weights | None]]:
        for block in full_blocks(source, max_rows, watch, checked=checked):
            yield (block, None) if unit is None else unit.parted(block)

    if source.n_rows is not None:
        workers = min(workers, max(1, -(-source.n_rows // max_rows)))
    with naming_places(source):
        return merged(blocks(), make, workers=workers)


@contextmanager
def naming_places(source: RowSource) -> Iterator[None]:
    """Name the place of a value that is not finite: by reading the rows again, checked."""
    try:
        yield
    except NotFiniteError:
        deque(source.blocks(block_rows(source.n_features)), maxlen=0)
        raise


def merged(blocks: Iterable[tuple[Any, Weights | None]], make: Callable[[], S], *, workers: int = 1) -> S:
    """Return the sum of blocks, each with its weights: in their order, whichever thread adds them."""
    total = make()
    if workers == 1:
        for block, weights in blocks:
            total.add(block, weights)
            del block  # or two blocks are held while the next one is read
        vars(_memory).clear()
        return total

    def part(block: Any, weights: Weights | None) -> S:
        own = make()
        own.add(block, weights)
        return own

    pending: deque[Future[S]] = deque()
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rows") as pool:
        try:
            for block, weights in blocks:
                pending.append(pool.submit(part, block, weights))
                del block
                if len(pending) > workers:
                    total.merge(pending.popleft().result())
            while pending:
                total.merge(pending.popleft().result())
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return total


def full_blocks(
    source: RowSource, max_rows: int, watch: Watch = UNWATCHED, *, checked: bool = True
) -> Iterator[Block]:
    """Yield the rows in order, in blocks of at most ``max_rows`` and on average at least half of it."""
    held: list[Block] = []
    count = total = 0
    plain = (
        isinstance(source, ArraySource) and source.is_dense_array and source.keep is None and not source.wide
    )
    # Rows in memory are read unchecked where their sum shows whether they are finite.
    blocks = cast("ArraySource", source).read if plain and not checked else source.blocks
    for block in blocks(max_rows):
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


def _joined(blocks: list[Any]) -> Block:
    if len(blocks) == 1:
        return blocks[0]  # type: ignore[no-any-return]
    if is_sparse(blocks[0]):
        return sparse.vstack(blocks, format="csr")  # type: ignore[no-any-return]
    return np.vstack(blocks)


_memory = threading.local()


def room(use: str, shape: tuple[int, ...]) -> Matrix:
    """Return this thread's memory for a use: the same again at the next call."""
    size = int(np.prod(shape))
    held: Vector = vars(_memory).get(use, np.zeros(0))
    if held.size < size:
        held = np.empty(size)
        setattr(_memory, use, held)
    return held[:size].reshape(shape)
