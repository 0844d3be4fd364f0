"""Gaussian differential privacy: what releases cost together, and to whom [DRS22].

A Gaussian release of noise multiplier σ (standard deviation / sensitivity) is exactly μ-GDP with
μ = 1/σ. Everything a silo releases is such a release, so one number per silo says it all.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable

from scipy.special import log_ndtr

from fedpower.errors import InputError

# These margins exceed the errors of dp_accounting's root finders, and the first exceeds the others:
# so no promise is broken, and epsilon_of(mu_of(epsilon, delta), delta) <= epsilon.
_MULTIPLIER_MARGIN = 1e-9
_EPSILON_MARGIN = 1e-10
_EPSILON_STEP = 1e-14


def compose(mus: Iterable[float]) -> float:
    """Return √(Σ μ_j²): adaptive releases of μ_j together are one release of this [DRS22 Cor. 3.3].

    Exact, not only a bound, for Gaussian releases.
    """
    return math.hypot(*(_mu(mu) for mu in mus))


def delta_of(mu: float, epsilon: float) -> float:
    """Return δ(ε) = Φ(μ/2 − ε/μ) − e^ε Φ(−μ/2 − ε/μ) of a μ-GDP release [BW18 Thm 8].

    Evaluated through logarithms, so that large ε and small δ keep their relative accuracy.
    """
    mu, epsilon = _mu(mu), _epsilon(epsilon)
    if mu == 0 or epsilon == math.inf:
        return 0.0
    if mu == math.inf:
        return 1.0
    log_first = float(log_ndtr(mu / 2 - epsilon / mu))
    log_second = epsilon + float(log_ndtr(-mu / 2 - epsilon / mu))
    return math.exp(log_first) * max(0.0, -math.expm1(log_second - log_first))


def epsilon_of(mu: float, delta: float) -> float:
    """Return the smallest ε at which a μ-GDP release is (ε, δ)-DP, rounded up by about 1e-10."""
    mu, delta = _mu(mu), _delta(delta)
    if mu == 0:
        return 0.0
    if mu == math.inf:
        return math.inf
    from dp_accounting import get_epsilon_gaussian  # noqa: PLC0415  (heavy)

    epsilon = float(get_epsilon_gaussian(1.0 / mu, delta, tol=_EPSILON_STEP / 10))
    return epsilon * (1 + _EPSILON_MARGIN) + _EPSILON_STEP if epsilon > 0 else 0.0


def multiplier_of(epsilon: float, delta: float) -> float:
    """Return σ₁(ε, δ), the smallest noise multiplier of one (ε, δ)-DP Gaussian release.

    The analytic calibration of [BW18 Thm 9] by `dp_accounting.get_sigma_gaussian`, rounded up by a
    relative 1e-9, which is more than its root finder's error. 0 for ε = ∞.
    """
    epsilon, delta = _epsilon(epsilon), _delta(delta)
    if epsilon == math.inf:
        return 0.0
    return _sigma(epsilon, delta) * (1 + _MULTIPLIER_MARGIN)


@functools.lru_cache(maxsize=1024)
def _sigma(epsilon: float, delta: float) -> float:
    """Return the calibrated multiplier: a root that is asked for again whenever a silo starts."""
    from dp_accounting import get_sigma_gaussian  # noqa: PLC0415  (heavy)

    return float(get_sigma_gaussian(epsilon, delta))


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
    _delta(delta)


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


def _delta(delta: float) -> float:
    if not 0 < delta < 1:
        raise InputError(f"delta must be between 0 and 1, got {delta!r}; use for example 1e-06")
    return float(delta)
