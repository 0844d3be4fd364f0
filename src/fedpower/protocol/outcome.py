"""What a run ends with: the solution, the record of its rounds, the promise about the rows."""

from dataclasses import dataclass, field, replace
from typing import Any

from fedpower.privacy.statement import PrivacyStatement
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.exchange import Round
from fedpower.protocol.private_study import (
    budget_of,
    noise_law,
    noise_shift,
    pooled_std,
    state_privacy,
)
from fedpower.protocol.solvers import SecureSettings, Solution, SolverSettings, UploadSettings
from fedpower.protocol.study import Study


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a federation ends with.

    Attributes
    ----------
    solution
        Basis, values and the rest.
    rounds
        The record of every round, enrolment left out.
    study
        The terms.
    privacy
        What is promised about the rows.
    kernels
        By silo: how its products were computed, and why; empty where only the silos know.
    """

    solution: Solution
    rounds: list[Round]
    study: Study
    privacy: PrivacyStatement
    kernels: dict[str, str] = field(default_factory=dict)


def with_noise(
    settings: SolverSettings, study: Study, *, run: str, kept: bool = True
) -> SolverSettings:
    """Return the settings of a solver that knows its run and how noisy the silos' answers will be.

    ``kept``: whether the silos' ledgers outlive the run.
    """
    budget = budget_of(study)
    if isinstance(settings, SecureSettings):
        return replace(settings, run=run)
    if budget is None:
        return settings
    if isinstance(settings, UploadSettings):
        return replace(
            settings, noise=lambda sizes: pooled_std(budget, sizes, study.weights), kept=kept
        )
    return replace(
        settings,
        shift=noise_shift(budget, study.weights),
        noise=lambda sizes, norm: noise_law(budget, sizes, norm, study.weights),
    )


def conclude(coordinator: Coordinator, study: Study, settings: SolverSettings) -> Outcome:
    """Return the outcome of a coordinator that is done."""
    assert coordinator.done, "a run is concluded once"
    solution: Solution = coordinator.outcome
    rounds = [each for each in coordinator.history if each.kind != "enrol"]
    used_before = any(
        _made_before(answer, coordinator.run) for each in rounds for answer in each.answers.values()
    )
    return Outcome(
        solution=solution,
        rounds=rounds,
        study=study,
        privacy=state_privacy(
            study,
            budget_of(study),
            solution.sizes,
            rounds,
            sampled=getattr(settings, "n_participants", None) is not None,
            used_before=used_before,
        ),
    )


def _made_before(answer: Any, run: str) -> bool:
    """Return whether an answer comes from a noised moment that an earlier run was given."""
    return getattr(answer, "made_for", "") not in ("", run)
