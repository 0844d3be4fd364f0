"""What LocalPower is compared with on a9a: plain NumPy, no protocol [LocalPower §5]."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def leading(moment: Array, rank: int) -> tuple[Array, Array]:
    """Return the leading eigenvalues and eigenvectors of a symmetric matrix, largest first."""
    values, vectors = np.linalg.eigh(moment)
    return values[::-1][:rank], vectors[:, ::-1][:, :rank]


def unweighted_average(parts: Sequence[Array], rank: int) -> Array:
    """Return UDA: the leading eigenvectors of the average of local projections V_iV_iᵀ."""
    total = np.zeros((parts[0].shape[1],) * 2)
    for part in parts:
        _, vectors = leading(part.T @ part, rank)
        total += vectors @ vectors.T
    return leading(total, rank)[1]


def weighted_average(parts: Sequence[Array], rank: int) -> Array:
    """Return WDA: the leading eigenvectors of the sum of local V_iΛ_iV_iᵀ."""
    total = np.zeros((parts[0].shape[1],) * 2)
    for part in parts:
        values, vectors = leading(part.T @ part, rank)
        total += vectors * values @ vectors.T
    return leading(total, rank)[1]


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
