"""Gaussian differential privacy: what releases cost together, and to whom [DRS22]."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable
from typing import Literal

import numpy as np

from fedpower.exceptions import require
from fedpower.linalg import Array
from fedpower.privacy.sensitivity import Moved, moved_by_row, whole

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
    """Return √(Σ μ_j²): adaptive releases of μ_j together are one release of this [DRS22 Cor. 3.3]."""
    return math.hypot(*(_mu(mu) for mu in mus))


def delta_of(mu: float, epsilon: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of a μ-GDP release [BW18 Thm 8], rounded up."""
    mu, epsilon = _mu(mu), _epsilon(epsilon)
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    return min(1.0, math.exp(_log_delta(mu, epsilon) + _DELTA_MARGIN))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε at which a μ-GDP release is (ε, δ)-DP, rounded up."""
    mu, delta = _mu(mu), check_delta(delta)
    if mu == math.inf:
        return math.inf
    allowed = math.log(delta) - _DELTA_MARGIN
    if mu == 0 or _log_delta(mu, 0.0) <= allowed:
        return 0.0
    # δ(ε) ≤ Φ(−u) ≤ exp(−u²/2) with u = ε/μ − μ/2, which is δ at the upper end.
    enough = mu * (mu / 2 + math.sqrt(-2 * allowed)) * (1 + 1e-12)
    return _bisect(lambda epsilon: _log_delta(mu, epsilon) <= allowed, enough, 0.0)


def multiplier_of(epsilon: float, delta: float) -> float:
    """Return σ₁(ε, δ), the smallest noise multiplier of one (ε, δ)-DP Gaussian release."""
    epsilon, delta = _epsilon(epsilon), check_delta(delta)
    if epsilon == math.inf:
        return 0.0
    return (1 + _MULTIPLIER_MARGIN) / _largest_mu(epsilon, delta)


@functools.lru_cache(maxsize=1024)
def _largest_mu(epsilon: float, delta: float) -> float:
    """Return the calibrated μ: a root that is asked for again whenever a silo starts."""
    allowed = math.log(delta) - _DELTA_MARGIN
    # The μ at which the bound of `epsilon_of` is ε: δ(μ) keeps to δ there, and twice it may not.
    tail = math.sqrt(-2 * allowed)
    little = 2 * epsilon / (tail + math.sqrt(tail * tail + 2 * epsilon)) * (1 - 1e-12)
    much = 2 * little
    while _log_delta(much, epsilon) <= allowed:
        little, much = much, 2 * much
    return _bisect(lambda mu: _log_delta(mu, epsilon) <= allowed, little, much)


def _log_delta(mu: float, epsilon: float) -> float:
    from scipy.special import log_ndtr  # noqa: PLC0415 - exact studies start without it

    u, v = epsilon / mu - mu / 2, epsilon / mu + mu / 2
    if u > _FAR:
        return float(log_ndtr(-u))  # more than δ, and smaller than any request
    log_density = -u * u / 2 - math.log(2 * math.pi) / 2
    if mu < _NARROW:
        x = epsilon / mu + mu / 2 * _NODES
        return log_density + math.log(mu / 2 * float(_WEIGHTS @ (1 - x * _mills(x))))
    if u < 0:
        return math.log(math.exp(float(log_ndtr(-u))) - math.exp(log_density) * float(_mills(v)))
    return log_density + math.log(float(_mills(u)) - float(_mills(v)))


def _mills(x: float | Array) -> Array:
    from scipy.special import erfcx  # noqa: PLC0415

    return np.asarray(math.sqrt(math.pi / 2) * erfcx(np.asarray(x) / math.sqrt(2)))


def _bisect(keeps: Callable[[float], bool], good: float, bad: float) -> float:
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
    """Return δ + (1 + e^ε)·t: what (ε, δ)-DP becomes when outputs move by total variation t."""
    if tv == 0:
        return delta
    log_total = math.log(tv) + max(epsilon, 0.0) + math.log1p(math.exp(-max(epsilon, 0.0)))
    return min(1.0, delta + math.exp(min(log_total, 0.0)))


def _mu(mu: float) -> float:
    require(mu >= 0, "mu", "a number of at least 0", mu, "use 1/noise_multiplier")
    return float(mu)


def _epsilon(epsilon: float) -> float:
    require(epsilon > 0, "epsilon", "above 0", epsilon)
    return float(epsilon)


def check_delta(delta: float) -> float:
    """Return δ as a float, or refuse it."""
    require(0 < delta < 1, "delta", "between 0 and 1", float(delta), "1e-6 is usual")
    return float(delta)


NoiseMode = Literal["paper", "step", "covariance"]
_NOISED: dict[str, Moved] = {"paper": "paper", "step": "product", "covariance": "covariance"}


def noise_std(
    mode: NoiseMode, *, epsilon: float, delta: float, n_rows: int, n_steps: int, iteration_rank: int
) -> float:
    """Return the standard deviation of the noise of one release in `mode`."""
    require(mode in _NOISED, "the noise mode", "'paper', 'step' or 'covariance'", mode)
    multiplier = noise_multiplier(mode, epsilon=epsilon, delta=delta, n_steps=n_steps)
    return moved_by_row(_NOISED[mode], iteration_rank) / whole("n_rows", n_rows) * multiplier


def noise_multiplier(mode: NoiseMode, *, epsilon: float, delta: float, n_steps: int) -> float:
    """Return standard deviation / sensitivity of one release in `mode`: see `noise_std`."""
    whole("n_steps", n_steps)
    if mode == "covariance" or epsilon == math.inf:
        return multiplier_of(epsilon, delta)
    if mode == "step":
        return math.sqrt(n_steps) * multiplier_of(epsilon, delta)
    _epsilon(epsilon)
    check_delta(delta)
    return max(math.sqrt(n_steps / epsilon), 2.0 * math.sqrt(2.0 * n_steps * math.log(1.0 / delta)) / epsilon)


def default_delta(n_rows: int) -> float:
    """Return min(10⁻⁶, n^−1.1), the δ used when a study names none; n is the public number of rows."""
    return min(1e-6, math.pow(whole("n_rows", n_rows), -1.1))
