"""The distinguishing game against a real silo, to see whether its releases keep their promise."""

import math
import time
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from fedpower.errors import InputError
from fedpower.experiments.audit_worlds import WIDTH, Game, Progress, SecureGame, budget_for, secured
from fedpower.privacy.accounting import NoiseMode, epsilon_of, mu_of, noise_multiplier
from fedpower.privacy.audit import AuditResult, audit_scores
from fedpower.privacy.budget import PRODUCT, QueryTerms
from fedpower.privacy.noise import NoiseSource, SystemNoise
from fedpower.protocol.study import PREPARED, Study

_DEFAULT_ROWS = 50

_AuditMode = NoiseMode | Literal["secure", "prepared", "clipped", "scores"]
"""A noise mode; ``secure``: the noise of `moment` that silos of a secure sum share; ``prepared``:
private preparation and the moment after it; ``clipped``: clipped products; or ``scores``: the moment and
the counts of scores after it.
"""

AUDITED_SHARES = (0.15, 0.15, 0.1, 0.3, 0.2)
"""Of preparation under audit: most of the budget, so that an error of any stage shows."""


AUDITED_SCORES = 0.5
"""Of the counts of scores under audit, far more than they have in a fit, for the same reason."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit of one noise mode found."""

    mode: _AuditMode
    center: bool
    n_steps: int
    n_rows: int
    noise_factor: float
    claimed_epsilon: float
    exact_epsilon: float
    reachable_epsilon: float
    found: AuditResult
    seconds: float
    unit: Literal["row", "person"] = "row"

    @property
    def epsilon_lower(self) -> float:
        """ε is at least this, with the confidence asked for."""
        return self.found.epsilon_lower

    @property
    def violation(self) -> bool:
        """Whether more privacy was lost than the study promises."""
        return self.epsilon_lower > self.claimed_epsilon

    @property
    def exceeds_accounting(self) -> bool:
        """Whether more was lost than exact accounting of the product's own noise allows."""
        return self.epsilon_lower > self.exact_epsilon

    @property
    def verdict(self) -> str:
        """The finding in a word or three."""
        return "VIOLATION" if self.violation else "no violation found"

    def as_dict(self) -> dict[str, Any]:
        """Return the report for JSON."""
        return {
            **{name: value for name, value in asdict(self).items() if name != "found"},
            **asdict(self.found),
            "violation": self.violation,
            "exceeds_accounting": self.exceeds_accounting,
            "verdict": self.verdict,
        }


def audit_mode(
    mode: _AuditMode,
    *,
    epsilon: float,
    delta: float,
    n_runs: int,
    n_rows: int = _DEFAULT_ROWS,
    n_features: int = 3,
    n_steps: int = 10,
    iteration_rank: int = 2,
    center: bool = False,
    noise_factor: float = 1.0,
    source: NoiseSource | None = None,
    confidence: float = 0.95,
    on_progress: Progress | None = None,
    unit: Literal["row", "person"] = "row",
) -> AuditReport:
    """Return what the game against a real silo in ``mode`` shows about its ε."""
    if n_features < max(2, iteration_rank):
        raise InputError(
            f"n_features must be at least 2 and at least iteration_rank, got {n_features}; "
            f"use {max(2, iteration_rank)}"
        )
    if not (math.isfinite(epsilon) and noise_factor > 0):
        raise InputError("an audit needs noise, got none; use a finite epsilon and noise_factor > 0")
    study = _study(
        mode,
        epsilon=epsilon,
        delta=delta,
        n_steps=n_steps,
        n_features=n_features,
        iteration_rank=iteration_rank,
        center=center,
    )
    if unit == "person":
        study = replace(study, unit="person")
    promised = budget_for(secured(study)[0] if mode == "secure" else study)
    real = _calibrated_for(mode, epsilon, delta, noise_factor, n_steps)
    kind = SecureGame if mode == "secure" else Game
    game = kind(replace(study, epsilon=real), n_rows, source or SystemNoise())
    started = time.perf_counter()
    scores = game.play(n_runs, on_progress)
    allowed = promised.left_delta
    return AuditReport(
        mode=mode,
        center=center,
        n_steps=1 if mode in ("moment", "secure", "prepared", "scores") else n_steps,
        n_rows=n_rows,
        noise_factor=noise_factor,
        claimed_epsilon=epsilon,
        exact_epsilon=epsilon_of(promised.study_mu, allowed),
        reachable_epsilon=epsilon_of(game.mu, allowed),
        found=audit_scores(*scores, delta=delta, confidence=confidence),
        seconds=time.perf_counter() - started,
        unit=unit,
    )


def control_factor(
    mode: _AuditMode, *, epsilon: float, delta: float, n_steps: int, of_needed: float = 0.5
) -> float:
    """Return how much of its noise a control keeps, to be wrong for certain: half of what is needed."""
    if not 0 < of_needed < 1:
        raise InputError(
            f"a control must keep a part of the noise between 0 and 1, got {of_needed:g}; 0.5 is usual"
        )
    if mode != "paper":
        return of_needed
    study = _study(mode, epsilon=epsilon, delta=delta, n_steps=n_steps)
    promised = budget_for(study)
    return of_needed * promised.study_mu / mu_of(epsilon, delta)


def clipped_design(n_features: int, n_steps: int) -> tuple[QueryTerms, ...]:
    """Return the queries of a clipped study under audit: so many products, of equal shares."""
    size = WIDTH * n_features + 1
    return tuple(QueryTerms(f"{PRODUCT} {number}", size, 1.0 / n_steps) for number in range(1, n_steps + 1))


def _study(
    mode: _AuditMode,
    *,
    epsilon: float,
    delta: float,
    n_steps: int,
    n_features: int = 3,
    iteration_rank: int = 2,
    center: bool = False,
) -> Study:
    """Return the terms; the whole moment can be asked for where it is what was noised."""
    noise: NoiseMode = (
        "moment" if mode in ("secure", "prepared", "scores") else mode  # type: ignore[assignment]
    )
    if mode == "prepared":
        return Study(
            columns=None,
            n_features=n_features,
            iteration_rank=n_features,
            treatment=PREPARED,
            noise="moment",
            epsilon=epsilon,
            delta=delta,
            preparation=AUDITED_SHARES,
            ranges=(None,) * n_features,
        )
    if mode == "clipped":
        return Study(
            columns=None,
            n_features=n_features,
            iteration_rank=2,
            noise="clipped",
            epsilon=epsilon,
            delta=delta,
            design=clipped_design(n_features, n_steps),
        )
    return Study(
        columns=None,
        n_features=n_features,
        iteration_rank=n_features if noise == "moment" else iteration_rank,
        center=center,
        noise=noise,
        epsilon=epsilon,
        delta=delta,
        n_steps=None if noise == "moment" else n_steps,
        scores=AUDITED_SCORES if mode == "scores" else 0.0,
    )


def _calibrated_for(
    mode: _AuditMode, epsilon: float, delta: float, noise_factor: float, n_steps: int
) -> float:
    """Return the ε whose noise is ``noise_factor`` times that of ``epsilon``."""
    if noise_factor == 1:
        return epsilon
    if mode != "paper":
        return epsilon_of(mu_of(epsilon, delta) / noise_factor, delta)
    level = noise_factor * noise_multiplier("paper", epsilon=epsilon, delta=delta, n_steps=n_steps)
    return max(n_steps / level**2, 2 * math.sqrt(2 * n_steps * math.log(1 / delta)) / level)
