"""How a silo multiplies: by a d×d moment made once, or by its rows at every step."""

from dataclasses import dataclass
from typing import Literal

BLOCK_BYTES = 4 * 2**20
MIN_ROWS, MAX_ROWS = 256, 2**16
_MAX_BLOCK_BYTES = 64 * 2**20
_GRAM_BYTES = 32 * 2**20

MOST_SHARED_FEATURES = 1024

MOST_SQUARE_FEATURES = 8192
"""The widest data whose d×d moment is made, noised, sent and decomposed unless somebody asks for more."""

MEMORY_LIMIT = 4 * 8 * MOST_SQUARE_FEATURES**2
"""Bytes of d×d arrays a silo may hold: the four that sparse rows of that width take, 2 GiB."""

MOST_FACTOR_BYTES = 2**28
"""Of all silos' moments sent by their factors; a silo holds its own part of it twice."""

SPARSE_LIMIT = 0.1
"""Share of stored entries above which dense arithmetic is faster than sparse."""

# Operations of a dense matrix product in the time that one takes:
_SPARSE_SLOWNESS = 150  # of a product of two sparse matrices
_SPARSE_TIMES_DENSE = 13  # of a product of a sparse matrix with a basis
_SQUARE_COST = 220  # entry of a d×d array, for each block of sparse rows
_READ_COST = 40  # value that is read and checked


def block_rows(n_features: int, *, density: float = 1.0) -> int:
    """Return how many rows make a block of about 4 MiB."""
    per_row = 8 * max(1.0, n_features * min(1.0, 2 * density))
    rows = max(int(BLOCK_BYTES / per_row), MIN_ROWS)
    return max(1, min(rows, MAX_ROWS, int(_MAX_BLOCK_BYTES / per_row)))


def gram_rows(n_features: int) -> int:
    """Return how many rows of a dense block are squared together."""
    return max(block_rows(n_features), min(8 * n_features, _GRAM_BYTES // (8 * n_features)))


def shares_blocks(n_features: int) -> bool:
    """Return whether a silo's cores are better given a block each than a product together."""
    return n_features <= MOST_SHARED_FEATURES


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelChoice:
    kind: Literal["moment", "product"]
    reason: str


def moment_bytes(n_features: int, *, density: float | None = 1.0) -> int:
    """Return the bytes of the d×d arrays that making and using a moment takes."""
    arrays = 2 if density is not None and density > SPARSE_LIMIT else 4
    return arrays * 8 * n_features**2


def choose_kernel(
    *,
    n_rows: int | None,
    n_features: int,
    rank: int,
    steps: int,
    density: float | None = 1.0,
    memory_limit: int = MEMORY_LIMIT,
) -> KernelChoice:
    """Return the cheaper kernel by estimated operations and reads, within the memory limit."""
    need = moment_bytes(n_features, density=density)
    if need > memory_limit:
        return KernelChoice(
            kind="product",
            reason=f"the moment of d={n_features} columns needs {size_text(need)}, more than the limit of "
            f"{size_text(memory_limit)}: rows are read at every step",
        )
    share = 0.01 if density is None else density
    rows = 10 * n_features if n_rows is None else n_rows
    entries = rows * n_features * share
    once, slowness = (n_features + _READ_COST) * entries, 1
    if share <= SPARSE_LIMIT:
        n_blocks = -(-rows // block_rows(n_features, density=share))
        once = (n_features * share * _SPARSE_SLOWNESS + _READ_COST) * entries
        once += _SQUARE_COST * n_blocks * n_features**2
        slowness = _SPARSE_TIMES_DENSE
    moment = once + steps * 2.0 * n_features**2 * rank
    product = steps * entries * (4.0 * rank * slowness + _READ_COST)
    kind: Literal["moment", "product"] = "moment" if moment <= product else "product"
    shape = f"{'unknown' if n_rows is None else n_rows} rows, d={n_features}, rank {rank} and {steps} steps"
    verdict = "the moment is made once" if kind == "moment" else "rows are read at every step"
    return KernelChoice(
        kind=kind,
        reason=f"with {shape}, a moment of {size_text(need)} costs about {moment:.1e} operations and "
        f"products over the rows {product:.1e}: {verdict}",
    )


def size_text(count: float) -> str:
    return f"{count / 2**20:.3g} MiB"
