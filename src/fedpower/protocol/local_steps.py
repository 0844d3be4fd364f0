"""The silo's half of the method: power steps on its own moment [FP Alg. 2, lines 5–10]."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import misalignment, orth, rotation
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only

Array = NDArray[np.float64]
Multiply = Callable[[Array], Array]
"""Z ↦ A_i Z, with or without noise: the one seam through which noise enters the iteration."""


def take_local_steps(
    multiply: Multiply, ask: AskSteps, total_variance: float | None = None
) -> LocalSteps:
    """Return Y_{t+1} after ``ask.n_local_steps`` steps from the broadcast basis, and Z_t beside it.

    Z_t is left out where the coordinator holds it already (a single step starts from the broadcast
    basis) or does not need it (the silo aligns by itself). What is returned is computed from the
    products alone: with noised products it is post-processing of them [FP Remark 1].

    Where ``ask.pooled`` is there, steps are corrected for drift: A_iZ + (AZ_τ − A_iZ_τ)Z_τᵀZ agrees with
    AZ at Z_τ, however far this silo's moment is from the pooled one. It takes one more product.
    """
    drift = None if ask.pooled is None else ask.pooled - multiply(ask.basis)

    def step(basis: Array) -> Array:
        plain = multiply(basis) + ask.shift * basis
        return plain if drift is None else plain + drift @ (ask.basis.T @ basis)

    basis = ask.basis
    for _ in range(ask.n_local_steps - 1):
        basis = orth(step(basis))
    product = step(basis)
    spread = None
    if ask.align is not None:
        turn = rotation(ask.align, basis, ask.basis)
        product = product @ turn
        spread = misalignment([basis @ turn], ask.basis)
    needs_basis = ask.align is None and ask.n_local_steps > 1
    return LocalSteps(
        product=read_only(product),
        basis=read_only(basis) if needs_basis else None,
        total_variance=total_variance,
        misalignment=spread,
    )
