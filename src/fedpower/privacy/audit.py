"""Does the mechanism keep its promise? An empirical lower bound on ε from playing against it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv, ndtri

from fedpower.errors import InputError
from fedpower.privacy.accounting import epsilon_of

_N_THRESHOLDS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditResult:
    """What an audit found; each bound holds with probability `confidence` over the runs."""

    epsilon_lower: float
    epsilon_lower_any: float
    mu_lower: float
    threshold: float
    false_positive_rate: float
    false_negative_rate: float
    n_runs: int
    delta: float
    confidence: float


def audit_scores(
    scores0: ArrayLike, scores1: ArrayLike, *, delta: float, confidence: float = 0.95
) -> AuditResult:
    """Return lower bounds on μ and ε from the scores of two neighbouring worlds."""
    worlds = [np.asarray(scores, dtype=np.float64).ravel() for scores in (scores0, scores1)]
    n = min(world.size for world in worlds)
    if n < 20 or not all(np.isfinite(world).all() for world in worlds):
        raise InputError(f"an audit needs 20 finite scores from each world, got {n}; run it longer")
    if not (0 < confidence < 1 and 0 < delta < 1):
        raise InputError(
            f"confidence and delta must be between 0 and 1, got {confidence!r} and {delta!r}; "
            "use for example 0.95 and 1e-06"
        )
    tuning = [np.sort(world[: n // 2]) for world in worlds]
    counted = [np.sort(world[n // 2 :]) for world in worlds]
    thresholds = np.quantile(np.concatenate(tuning), np.linspace(0, 1, _N_THRESHOLDS + 2)[1:-1])

    guess = _error_bounds(tuning, thresholds, confidence)
    for_mu = thresholds[[int(np.argmax(_mu_bound(*guess)))]]
    for_any = thresholds[[int(np.argmax(_epsilon_bound(*guess, delta)))]]

    mu_lower = max(0.0, float(_mu_bound(*_error_bounds(counted, for_mu, confidence))[0]))
    any_lower = float(_epsilon_bound(*_error_bounds(counted, for_any, confidence), delta)[0])
    false_positives, false_negatives = _errors(counted, for_mu)
    return AuditResult(
        epsilon_lower=epsilon_of(mu_lower, delta),
        epsilon_lower_any=max(0.0, any_lower),
        mu_lower=mu_lower,
        threshold=float(for_mu[0]),
        false_positive_rate=float(false_positives[0]) / counted[0].size,
        false_negative_rate=float(false_negatives[0]) / counted[1].size,
        n_runs=n,
        delta=delta,
        confidence=confidence,
    )


def _errors(
    worlds: list[NDArray[np.float64]], thresholds: NDArray[np.float64]
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return counts of false positives (world 0 above) and false negatives (world 1 not above)."""
    false_positives = worlds[0].size - np.searchsorted(worlds[0], thresholds, side="right")
    false_negatives = np.searchsorted(worlds[1], thresholds, side="right")
    return false_positives.astype(np.int64), false_negatives.astype(np.int64)


def _error_bounds(
    worlds: list[NDArray[np.float64]], thresholds: NDArray[np.float64], confidence: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return Clopper–Pearson upper bounds on both error rates, together at `confidence`."""
    level = 1 - (1 - confidence) / 2
    bounds = []
    for errors, world in zip(_errors(worlds, thresholds), worlds, strict=True):
        most = np.minimum(errors, world.size - 1)  # all wrong: the bound is 1, set below
        upper = betaincinv(most + 1.0, (world.size - most).astype(np.float64), level)
        bounds.append(np.where(errors == world.size, 1.0, upper))
    return bounds[0], bounds[1]


def _mu_bound(alpha: NDArray[np.float64], beta: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(-ndtri(alpha) - ndtri(beta))


def _epsilon_bound(
    alpha: NDArray[np.float64], beta: NDArray[np.float64], delta: float
) -> NDArray[np.float64]:
    tiny = np.finfo(np.float64).tiny
    one = np.log(np.maximum(1 - delta - beta, tiny)) - np.log(alpha)
    other = np.log(np.maximum(1 - delta - alpha, tiny)) - np.log(beta)
    return np.asarray(np.maximum(one, other))
