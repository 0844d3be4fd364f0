"""Power steps on averaged products: for products that are noised, each paid for out of the budget."""

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.rayleigh_ritz import product_noise
from fedpower.protocol.exchange import Exchange
from fedpower.protocol.solvers.products import Product, Products
from fedpower.protocol.solvers.signal import compressed, eigenvalues

Array = NDArray[np.float64]

RIDGE = 10.0
CLEAR = 6.0
"""See :func:`averaged_product`."""


def averaged(products: Products, start: Array, rank: int, n_steps: int) -> Exchange:
    """Return what a :class:`Solution` needs after exactly T noised products.

    The power method forgets all products but the last, and with them all but one T-th of the budget.
    Here every step asks for the product with the best basis so far, and a combination of all of them
    averages their noise: nearly √T less of it once the basis has settled. New orthogonal blocks, as
    without noise, would each bring noise of their own.
    """
    basis, blocks, values_of = start, [], []
    for _ in range(n_steps):
        before = basis
        found: Product = yield from products.multiply(basis)
        blocks.append(basis)
        values_of.append(found.value)
        product = averaged_product(np.hstack(blocks), np.hstack(values_of), rank, basis.shape[1])
        basis = orth(product)
        _, vectors = ritz_pairs(basis, product)
        change = sin_theta(before, vectors[:, :rank])
        found.closed.notes["change"] = change
        if products.exhausted:
            break
    # Variance is told by the last product alone, whose noise is newer than its basis; the combination
    # holds noise that bases have taken up.
    return {
        "told_by": (before, found.value, found.heard),
        "basis": basis,
        "values": eigenvalues(compressed(before, found.value)),
        "vectors": vectors,
        "rank": rank,
        "n_steps": products.step,
        "change": change,
        "converged": False,
    }


def averaged_product(blocks: Array, products: Array, rank: int, width: int) -> Array:
    """Return an estimate of A·X from all noisy products, X spanning the last one's columns.

    With W the stacked questions and Y = AW + N the answers, WG = X solved for G gives YG = AX + NG. The
    ridge min ‖WG − X‖² + λ‖G‖² weighs what WG misses against the noise NG: a direction asked about n
    times has the noise of one answer over √n. λ = 10·dν²/σ_k², within a factor of ten of the best over
    the spectra and noise levels tried; without noise it is zero.

    Where the k-th singular value is not `CLEAR` times the noise's, the bases asked about are noise for a
    good part and G would fit it. Then G = WᵀZ with Z the last basis: power steps with the operator
    Σ Y_sZ_sᵀ, in which an old answer counts as far as its question was the present one. It errs where
    bases still move, which is less than the noise there: planted rank 2 of d = 300, noise .6 of σ_k:
    sin θ .24, and .95 by the ridge, .61 by the last answer alone.

    ν is told by the answers themselves (:func:`product_noise`).

    Parameters
    ----------
    blocks, products
        W and Y, d×(rT).
    rank, width
        k and r.
    """
    noise = product_noise(blocks, products) ** 2
    latest = products[:, -width:]
    signal = float(np.linalg.svd(latest, compute_uv=False)[rank - 1]) ** 2
    reach = np.sqrt(noise) * (np.sqrt(len(blocks)) + np.sqrt(width))
    if signal < (CLEAR * reach) ** 2:
        return np.asarray(products @ (blocks.T @ blocks[:, -width:]))
    ridge = RIDGE * len(blocks) * noise / signal if signal > 0 else 0.0
    target = orth(latest)
    left, sizes, right_t = np.linalg.svd(blocks, full_matrices=False)
    kept = sizes > 1e-7 * sizes[0]
    gains = sizes[kept] / (sizes[kept] ** 2 + ridge)
    combination = right_t[kept].T @ (gains[:, np.newaxis] * (left[:, kept].T @ target))
    # The ridge shrinks: in the span of X the combination is scaled back to one.
    shrunk = target.T @ (blocks @ combination)
    return np.asarray(products @ combination @ np.linalg.pinv(shrunk, rcond=1e-3))
