"""What LocalPower is compared with on a9a: plain NumPy, no protocol [LocalPower §5]."""

import functools
from collections.abc import Iterable, Sequence

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

Array = NDArray[np.float64]


def leading(moment: Array, rank: int) -> tuple[Array, Array]:
    """Return the leading eigenvalues and eigenvectors of a symmetric matrix, largest first."""
    width = len(moment)
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=[width - rank, width - 1])
    return values[::-1], vectors[:, ::-1]


def local_eigenspaces(parts: Sequence[Array], rank: int) -> list[tuple[Array, Array]]:
    """Return Λ_i and V_i of each silo: all that a one-shot method sends."""
    return [leading(part.T @ part, rank) for part in parts]


def unweighted_average(local: Sequence[tuple[Array, Array]], rank: int) -> Array:
    """Return UDA: the leading eigenvectors of the average of local projections V_iV_iᵀ."""
    return leading(sum_of(vectors @ vectors.T for _, vectors in local), rank)[1]


def weighted_average(local: Sequence[tuple[Array, Array]], rank: int) -> Array:
    """Return WDA: the leading eigenvectors of the sum of local V_iΛ_iV_iᵀ."""
    return leading(sum_of(vectors * values @ vectors.T for values, vectors in local), rank)[1]


def sum_of(matrices: Iterable[Array]) -> Array:
    """Return the sum of matrices, of which there is at least one."""
    return functools.reduce(np.add, matrices)


def randomized_svd(
    parts: Sequence[Array], rank: int, *, sketch: int, powers: int, rng: np.random.Generator
) -> Array:
    """Return DR-SVD: the leading right vectors of QQᵀM, with Q a basis of the sketch (MMᵀ)^q MΩ.

    Distributed, each silo sends its rows' part of the sketch; pooling them gives the same numbers.
    """
    rows = np.vstack(parts)
    sketched = rows @ rng.standard_normal((rows.shape[1], sketch))
    for _ in range(powers):
        sketched = rows @ (rows.T @ sketched)
    basis, _ = np.linalg.qr(sketched)
    return np.linalg.svd(basis.T @ rows, full_matrices=False)[2][:rank].T


def raw_identity_power(
    parts: Sequence[Array], start: Array, *, local_steps: int, n_rounds: int
) -> Array:
    """Return LocalPower without alignment, with column signs as LAPACK's QR leaves them.

    The product fixes signs by a positive diagonal of R; this shows what that is worth where local
    bases are averaged as they are.
    """
    moments = [part.T @ part for part in parts]
    basis = start
    for _ in range(n_rounds):
        total = np.zeros_like(basis)
        for moment in moments:
            local = basis
            for step in range(local_steps):
                product = moment @ local
                if step < local_steps - 1:
                    local = np.linalg.qr(product)[0]
            total += product
        basis = np.linalg.qr(total)[0]
    return basis
