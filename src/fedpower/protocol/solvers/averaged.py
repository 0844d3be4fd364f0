"""Power steps on averaged products: for products that are noised, each paid for out of the budget."""

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth, ritz_pairs, sin_theta
from fedpower.linalg.rayleigh_ritz import product_noise
from fedpower.protocol.exchange import Exchange
from fedpower.protocol.solvers.products import Product, Products

Array = NDArray[np.float64]

RIDGE = 10.0
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
        values, vectors = ritz_pairs(basis, product)
        change = sin_theta(before, vectors[:, :rank])
        found.closed.notes["change"] = change
        if products.exhausted:
            break
    return {
        "basis": basis,
        "values": values,
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
    ridge = RIDGE * len(blocks) * noise / signal if signal > 0 else 0.0
    target = orth(latest)
    left, sizes, right_t = np.linalg.svd(blocks, full_matrices=False)
    kept = sizes > 1e-7 * sizes[0]
    gains = sizes[kept] / (sizes[kept] ** 2 + ridge)
    combination = right_t[kept].T @ (gains[:, np.newaxis] * (left[:, kept].T @ target))
    # The ridge shrinks: in the span of X the combination is scaled back to one.
    shrunk = target.T @ (blocks @ combination)
    return np.asarray(products @ combination @ np.linalg.pinv(shrunk, rcond=1e-3))
