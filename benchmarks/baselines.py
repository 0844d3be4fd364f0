"""What fedpower is compared with: one-shot averages, sketches and trusted curators, in plain NumPy."""

from collections.abc import Sequence

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray

from fedpower.privacy import noise_std

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
    return leading(sum(vectors @ vectors.T for _, vectors in local), rank)[1]


def weighted_average(local: Sequence[tuple[Array, Array]], rank: int) -> Array:
    """Return WDA: the leading eigenvectors of the sum of local V_iΛ_iV_iᵀ."""
    return leading(sum(vectors * values @ vectors.T for values, vectors in local), rank)[1]


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


def raw_identity_power(parts: Sequence[Array], start: Array, *, local_steps: int, n_rounds: int) -> Array:
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


def analyze_gauss(
    moment: Array, rank: int, *, n_rows: int, epsilon: float, delta: float, rng: np.random.Generator
) -> Array:
    """Return the leading eigenvectors of the noised pooled covariance.

    Neighbours: replace one row of norm at most 1; the covariance's Frobenius sensitivity is √2/n.
    """
    std = curator_noise(n_rows=n_rows, epsilon=epsilon, delta=delta)
    return leading(moment + symmetric_noise(len(moment), std, rng), rank)[1]


def curator_noise(*, n_rows: int, epsilon: float, delta: float) -> float:
    """Return τ = (√2/n)·σ₁(ε, δ); 0 for ε = ∞."""
    return noise_std("covariance", epsilon=epsilon, delta=delta, n_rows=n_rows, n_steps=1, iteration_rank=1)


def symmetric_noise(width: int, std: float, rng: np.random.Generator) -> Array:
    """Return symmetric noise: N(0, τ²) on the diagonal, N(0, τ²/2) elsewhere.

    S ↦ (S_jj, √2·S_jl) is an isometry of the Frobenius norm, so this is noise of standard deviation
    τ in every coordinate of what is released.
    """
    drawn = rng.standard_normal((width, width)) * std
    return (drawn + drawn.T) / 2.0


def exponential_eigenvectors(
    moment: Array, rank: int, *, n_rows: int, epsilon: float, rng: np.random.Generator
) -> Array:
    """Return k orthonormal directions, one after the other, for ε/k each.

    Neighbours: replace one row of norm at most 1. A unit direction u has the utility n·uᵀAu, which
    moves by at most 1; so u drawn with density ∝ exp(ε₁·n·uᵀAu/2) costs ε₁. The next one is drawn in
    the complement of those before it, from rows projected there, whose norm is at most 1 again.
    """
    basis = np.zeros((len(moment), 0))
    for _ in range(rank):
        rest = np.linalg.qr(basis, mode="complete")[0][:, basis.shape[1] :]
        utility = 0.5 * epsilon / rank * n_rows * (rest.T @ moment @ rest)
        basis = np.column_stack([basis, rest @ bingham(utility, rng)])
    return basis


def bingham(utility: Array, rng: np.random.Generator) -> Array:
    """Return a unit vector drawn with density ∝ exp(uᵀSu), S symmetric.

    [KGM18 §3]: with A = λ_max I − S and Ω = I + 2A/b, the angular central Gaussian density
    ∝ (uᵀΩu)^(−d/2) envelops exp(−uᵀAu); b solves Σ 1/(b + 2λ_j(A)) = 1 for the tightest envelope.
    """
    values, vectors = np.linalg.eigh(utility)
    slopes = values[-1] - values
    width = len(slopes)
    if width == 1:
        return np.ones(1)
    tight = scipy.optimize.brentq(lambda b: float(np.sum(1 / (b + 2 * slopes))) - 1, 1, width)
    stretch = 1 + 2 * slopes / tight
    log_bound = -(width - tight) / 2 + width / 2 * np.log(width / tight)
    while True:
        drawn = rng.standard_normal(width) / np.sqrt(stretch)
        squares = drawn**2 / float(drawn @ drawn)
        log_ratio = -float(slopes @ squares) + width / 2 * np.log(float(stretch @ squares))
        if np.log(rng.random()) < log_ratio - log_bound:
            return np.asarray(vectors @ (drawn / np.linalg.norm(drawn)))
