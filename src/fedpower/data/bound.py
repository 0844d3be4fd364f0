"""Rows brought to norm at most 1, with the rounding of floating point inside the bound."""

import numpy as np

from fedpower.data.source import Block, SparseBlock, Vector, is_sparse

TINY = 1e-140
"""Below this a norm's square loses digits to underflow."""


def margin(n_features: int) -> float:
    """Return how far below 1 a bounded row's norm is kept.

    A sum of d squares, taken in any order, is off by at most d·2⁻⁵³ of itself; the square root, the
    division and the product that follow add a few times 2⁻⁵³. The margin (d + 8)·2⁻⁵² covers that
    once for our own computation and once for a reader who computes the norm again.
    """
    return (n_features + 8) * 2.0**-52


def bound_rows(block: Block, *, normalize: bool) -> tuple[Block, int]:
    """Return the rows clipped to norm at most 1 and how many were longer, or all rows of norm 1.

    Parameters
    ----------
    block : rows, finite.
    normalize : scale every nonzero row to norm 1 (less the margin) instead of only the longer ones.
    """
    slack = margin(int(block.shape[1]))
    norms = row_norms(block)
    extreme = ~np.isfinite(norms)
    if normalize:
        extreme |= norms < TINY
    if extreme.any():
        peaks = row_peaks(block)
        extreme &= peaks > 0
        block = divide_rows(block, np.where(extreme, peaks, 1.0))
        norms = row_norms(block)
    if normalize:
        chosen, n_clipped = norms > 0, 0
    else:
        chosen = norms > 1 - slack
        n_clipped = int(np.count_nonzero(extreme | (norms > 1 + slack)))
    if not chosen.any():
        return block, n_clipped
    return scale_rows(
        block, np.where(chosen, (1 - slack) / np.where(chosen, norms, 1.0), 1.0)
    ), n_clipped


def row_norms(block: Block) -> Vector:
    """Return each row's Euclidean norm; infinite where the squares overflow."""
    with np.errstate(over="ignore", under="ignore"):
        if is_sparse(block):
            squares = np.bincount(
                entry_rows(block), weights=block.data * block.data, minlength=block.shape[0]
            )
        else:
            squares = np.einsum("ij,ij->i", block, block)
        return np.asarray(np.sqrt(squares), dtype=np.float64)


def row_peaks(block: Block) -> Vector:
    """Return each row's largest absolute value."""
    if is_sparse(block):
        peaks = np.zeros(block.shape[0])
        np.maximum.at(peaks, entry_rows(block), np.abs(block.data))
        return peaks
    return np.asarray(np.max(np.abs(block), axis=1), dtype=np.float64)


def scale_rows(block: Block, factors: Vector) -> Block:
    """Return the block with each row multiplied by its factor."""
    if is_sparse(block):
        return with_data(block, block.data * factors[entry_rows(block)])
    return block * factors[:, None]


def divide_rows(block: Block, divisors: Vector) -> Block:
    """Return the block with each row divided by its divisor."""
    if is_sparse(block):
        return with_data(block, block.data / divisors[entry_rows(block)])
    return block / divisors[:, None]


def divide_columns(block: Block, divisors: Vector) -> Block:
    """Return the block with each column divided by its divisor."""
    if is_sparse(block):
        return with_data(block, block.data / divisors[block.indices])
    return block / divisors


def entry_rows(block: SparseBlock) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row of each stored entry of a sparse block."""
    return np.repeat(np.arange(block.shape[0], dtype=np.int64), np.diff(block.indptr))


def with_data(block: SparseBlock, data: Vector) -> SparseBlock:
    """Return a sparse block of the same pattern with other values."""
    return type(block)((data, block.indices, block.indptr), shape=block.shape)
