"""How much noise a promised (ε, δ) needs, in the three modes."""

from __future__ import annotations

import math
from typing import Literal, get_args

from fedpower.errors import InputError
from fedpower.privacy.accounting import check_promise, multiplier_of
from fedpower.privacy.sensitivity import (
    moment_sensitivity,
    paper_sensitivity,
    product_sensitivity,
    whole,
)

NoiseMode = Literal["paper", "step", "moment"]


def noise_std(
    mode: NoiseMode,
    *,
    epsilon: float,
    delta: float,
    n_rows: int,
    n_steps: int,
    iteration_rank: int,
) -> float:
    """Return the standard deviation of the noise of one release in `mode`.

    - `paper`: ν of [FP Thm 2] as printed, for each of T products:
      2√r/s · max{√(T/ε), 2√(2T ln(1/δ))/ε}.
    - `step`: the same releases, exactly accounted: `product_sensitivity` · √T · σ₁(ε, δ), because
      T adaptive Gaussian releases of multiplier σ are one of multiplier σ/√T [DRS22 Cor. 3.3].
    - `moment`: τ = `moment_sensitivity` · σ₁(ε, δ), once; T and r do not enter.

    σ₁ is `multiplier_of` [BW18 Thm 9]. This is the ideal level; a silo adds a little more to pay
    for its lattice (`mechanism.Noised.std`), except in `paper`, which has √(2r) to spare.

    Parameters
    ----------
    mode
        What is noised: see above.
    epsilon, delta
        The promise for all releases of one silo together; ε = ∞ gives 0.
    n_rows
        s, the silo's public number of rows.
    n_steps
        T, the number of noised products.
    iteration_rank
        r, the number of columns of a product.
    """
    if mode not in get_args(NoiseMode):
        raise InputError(
            f"the noise mode must be 'paper', 'step' or 'moment', got {mode!r}; use 'moment' "
            "unless a d×d matrix does not fit"
        )
    multiplier = noise_multiplier(mode, epsilon=epsilon, delta=delta, n_steps=n_steps)
    sensitivity = {
        "paper": paper_sensitivity(n_rows, iteration_rank),
        "step": product_sensitivity(n_rows, iteration_rank),
        "moment": moment_sensitivity(n_rows),
    }[mode]
    return sensitivity * multiplier


def noise_multiplier(mode: NoiseMode, *, epsilon: float, delta: float, n_steps: int) -> float:
    """Return standard deviation / sensitivity of one release in `mode`: see `noise_std`.

    In `paper` the sensitivity meant is `paper_sensitivity`, and the value is σ_g of [FP (A.2)].
    """
    whole("n_steps", n_steps)
    if mode == "moment" or epsilon == math.inf:
        return multiplier_of(epsilon, delta)
    if mode == "step":
        return math.sqrt(n_steps) * multiplier_of(epsilon, delta)
    check_promise(epsilon, delta)
    return max(
        math.sqrt(n_steps / epsilon),
        2.0 * math.sqrt(2.0 * n_steps * math.log(1.0 / delta)) / epsilon,
    )


def default_delta(n_rows: int) -> float:
    """Return min(10⁻⁶, n^−1.1), the δ used when a study names none; n is the public number of rows.

    δ bounds the chance that the promise fails for a row, and a mechanism that publishes each row
    with probability δ keeps it: about nδ rows would be lost, so δ must be well below 1/n
    [DR14 §2.3]. A power just above 1 lets nδ go to 0 and costs little, as the noise grows only like
    √ln(1/δ); 10⁻⁶ keeps small studies from a promise that fails once in a few thousand.
    """
    return min(1e-6, math.pow(whole("n_rows", n_rows), -1.1))
