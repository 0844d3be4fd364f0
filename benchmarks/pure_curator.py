"""The exponential mechanism for eigenvectors by a trusted curator: what pure ε can do [ADKMV19].

The method that OpenDP's and diffprivlib's PCA implement, with all of ε spent on eigenvectors and with
the sampler of [KGM18], whose acceptance does not vanish in many columns. It stands in the table where
those two do not finish.
"""

import numpy as np
import scipy.optimize
from numpy.typing import NDArray

Array = NDArray[np.float64]


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
