"""Gaussian differential privacy: what releases cost together, and to whom [DRS22].

A Gaussian release of noise multiplier σ (standard deviation / sensitivity) is exactly μ-GDP with
μ = 1/σ. Everything a silo releases is such a release, so one number per silo says it all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.special import erfcx, log_ndtr

from fedpower.errors import InputError
from fedpower.privacy.sensitivity import (
    moment_sensitivity,
    paper_sensitivity,
    product_sensitivity,
    whole,
)

Array = NDArray[np.float64]

_DELTA_MARGIN = 2e-13
"""More than the relative error of δ as computed here, for ε to 10³ and δ from 10⁻³⁰ (tested)."""

# Far more than σ₁ is off by, so that epsilon_of(mu_of(ε, δ), δ) <= ε. It stays what it was when
# another library found σ₁: a charge that a ledger holds is compared with today's to a relative 1e-9.
_MULTIPLIER_MARGIN = 1e-9

_NARROW = 1.0
_FAR = 39.0
"""Φ(−39) < 10⁻³³²: no δ that a float holds is as small."""

_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(12)


def compose(mus: Iterable[float]) -> float:
    """Return √(Σ μ_j²): adaptive releases of μ_j together are one release of this [DRS22 Cor. 3.3].

    Exact, not only a bound, for Gaussian releases.
    """
    return math.hypot(*(_mu(mu) for mu in mus))


def delta_of(mu: float, epsilon: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of a μ-GDP release [BW18 Thm 8], rounded up.

    Never too small, and too large by a relative 4·10⁻¹³ at most for ε from 10⁻⁴ to 10³ and δ from
    10⁻³⁰ to ½.
    """
    mu, epsilon = _mu(mu), _epsilon(epsilon)
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return min(1.0, math.exp(_log_delta(mu, epsilon) + _DELTA_MARGIN))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε at which a μ-GDP release is (ε, δ)-DP, rounded up.

    Never too small, and too large by 10⁻¹² and a relative 10⁻¹² at most for ε from 10⁻⁴ to 10³ and δ
    from 10⁻³⁰ to ½: the ε of a δ that is smaller by a relative 4·10⁻¹³.
    """
    mu, delta = _mu(mu), check_delta(delta)
    if mu == math.inf:
        return math.inf
    allowed = _allowed(delta)
    if mu == 0 or _log_delta(mu, 0.0) <= allowed:
        return 0.0
    # δ(ε) ≤ Φ(−u) ≤ exp(−u²/2) with u = ε/μ − μ/2, which is δ at the upper end.
    enough = mu * (mu / 2 + math.sqrt(-2 * allowed)) * (1 + 1e-12)
    return _bisect(lambda epsilon: _log_delta(mu, epsilon) <= allowed, enough, 0.0)


def multiplier_of(epsilon: float, delta: float) -> float:
    """Return σ₁(ε, δ), the smallest noise multiplier of one (ε, δ)-DP Gaussian release.

    The analytic calibration of [BW18], rounded up: never too small, and too large by a relative
    1.001·10⁻⁹ at most for ε from 10⁻⁴ to 10³ and δ from 10⁻³⁰ to ½. 0 for ε = ∞.
    """
    epsilon, delta = _epsilon(epsilon), check_delta(delta)
    if epsilon == math.inf:
        return 0.0
    return (1 + _MULTIPLIER_MARGIN) / _largest_mu(epsilon, delta)


@functools.lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    """Return the calibrated μ: a root that is asked for again whenever a silo starts."""
    allowed = _allowed(delta)
    # The μ at which the bound of `epsilon_of` is ε: δ(μ) keeps to δ there, and twice it may not.
    tail = math.sqrt(-2 * allowed)
    little = 2 * epsilon / (tail + math.sqrt(tail * tail + 2 * epsilon)) * (1 - 1e-12)
    much = 2 * little
    while _log_delta(much, epsilon) <= allowed:
        little, much = much, 2 * much
    return _bisect(lambda mu: _log_delta(mu, epsilon) <= allowed, little, much)


def _log_delta(mu: float, epsilon: float) -> float:
    """Return ln δ(ε) of a μ-GDP release, for 0 < μ < ∞ and 0 ≤ ε < ∞.

    With u = ε/μ − μ/2, v = ε/μ + μ/2 and Mills' ratio R(x) = Φ(−x)/φ(x), [BW18 Thm 8] is

        δ = φ(u)·(R(u) − R(v))        because v² − u² = 2ε, so e^ε φ(v) = φ(u).

    No e^ε is left, and nothing overflows. For a small μ the two ratios are nearly equal; their
    difference is ∫ (1 − xR(x)) dx over [u, v], since R′(x) = xR(x) − 1. Twelve nodes give that integral
    of an entire function, over a length of at most 1, to the last digits.
    """
    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if u > _FAR:
        return float(log_ndtr(-u))  # more than δ, and nobody can ask for as little
    log_density = -u * u / 2 - math.log(2 * math.pi) / 2
    if mu < _NARROW:
        x = epsilon / mu + mu / 2 * _NODES
        return log_density + math.log(mu / 2 * float(_WEIGHTS @ (1 - x * _mills(x))))
    if u < 0:
        return math.log(math.exp(float(log_ndtr(-u))) - math.exp(log_density) * float(_mills(v)))
    return log_density + math.log(float(_mills(u)) - float(_mills(v)))


def _mills(x: float | Array) -> Array:
    return np.asarray(math.sqrt(math.pi / 2) * erfcx(np.asarray(x) / math.sqrt(2)))


def _allowed(delta: float) -> float:
    """Return the ln δ that a computed one must not exceed, so that the true one stays within δ."""
    return math.log(delta) - _DELTA_MARGIN


def _bisect(keeps: Callable[[float], bool], good: float, bad: float) -> float:
    """Return the float nearest to ``bad`` that keeps a promise, where ``good`` keeps it."""
    while (middle := (good + bad) / 2) not in (good, bad):
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return good


def mu_of(epsilon: float, delta: float) -> float:
    """Return the largest μ whose release is (ε, δ)-DP: 1/σ₁(ε, δ), rounded down; ∞ for ε = ∞."""
    multiplier = multiplier_of(epsilon, delta)
    return math.inf if multiplier == 0 else 1.0 / multiplier


def delta_with_distance(delta: float, epsilon: float, tv: float) -> float:
    """Return δ + (1 + e^ε)·t: what (ε, δ)-DP becomes when outputs move by total variation t.

    Proof. P[M′(D) ∈ S] ≤ P[M(D) ∈ S] + t ≤ e^ε P[M(D′) ∈ S] + δ + t
    ≤ e^ε P[M′(D′) ∈ S] + e^ε t + δ + t. ∎
    """
    if tv == 0:
        return delta
    log_total = math.log(tv) + max(epsilon, 0.0) + math.log1p(math.exp(-max(epsilon, 0.0)))
    return min(1.0, delta + math.exp(min(log_total, 0.0)))


def check_promise(epsilon: float, delta: float) -> None:
    """Refuse an (ε, δ) that cannot be promised."""
    _epsilon(epsilon)
    check_delta(delta)


def _mu(mu: float) -> float:
    if not mu >= 0:
        raise InputError(f"mu must be a number of at least 0, got {mu!r}; use 1/noise_multiplier")
    return float(mu)


def _epsilon(epsilon: float) -> float:
    if not epsilon > 0:
        raise InputError(
            f"epsilon must be above 0, got {epsilon!r}; use for example 1, or inf for no privacy"
        )
    return float(epsilon)


def check_delta(delta: float) -> float:
    """Return δ as a float, or refuse it."""
    if not 0 < delta < 1:
        raise InputError.about(
            "delta", must="lie between 0 and 1", got=f"{delta:g}", advice="1e-6 is usual"
        )
    return float(delta)


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
