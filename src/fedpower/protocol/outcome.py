"""What a run ends with: the solution, the record of its rounds, the promise about the rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedpower.privacy.publication import smoothing
from fedpower.privacy.statement import PrivacyStatement
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import Enrolment
from fedpower.protocol.private_study import (
    PUBLISHED,
    budget_of,
    noise_law,
    noise_shift,
    pooled_std,
    state_privacy,
)
from fedpower.protocol.solvers import (
    ClippedSettings,
    SecureSettings,
    Solution,
    SolverSettings,
    UploadSettings,
)
from fedpower.protocol.study import Study
from fedpower.protocol.weights import masses


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What a federation ends with."""

    solution: Solution
    rounds: list[Round]
    study: Study
    privacy: PrivacyStatement
    kernels: dict[str, str] = field(default_factory=dict)
    absent: tuple[str, ...] = ()


def with_noise(settings: SolverSettings, study: Study, *, run: str) -> SolverSettings:
    """Return the settings of a solver that knows its run and how noisy the silos' answers will be."""
    budget = budget_of(study)
    if isinstance(settings, SecureSettings | ClippedSettings):
        return replace(settings, run=run)
    if budget is None:
        return settings
    if isinstance(settings, UploadSettings):
        return replace(
            settings,
            noise=lambda sizes: pooled_std(budget, sizes, study.weights),
            # The public sees the code book too, which is no part of that sum.
            smoothing=None
            if study.preparation
            else lambda sizes: smoothing(budget, sizes.values(), masses(sizes, study.weights).values()),
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
    enrolled = coordinator.history[0].answers
    privacy = state_privacy(
        study,
        budget_of(study),
        # Noise of a secure sum is shared by those in it. Otherwise a silo that was lost on the way may
        # have released something too.
        solution.sizes
        if study.aggregation == "secure"
        else {name: each.n_rows for name, each in enrolled.items()},
        rounds,
        sampled=getattr(settings, "n_participants", None) is not None,
        used_before=used_before,
    )
    if solution.pooled is not None:
        privacy = _with_the_moment(privacy)
    declared = _declared_versions(enrolled)
    return Outcome(
        solution=solution,
        rounds=rounds,
        study=study,
        privacy=replace(privacy, public=(*privacy.public, *declared)),
        absent=tuple(name for name in coordinator.silos if name not in solution.sizes),
    )


def _with_the_moment(privacy: PrivacyStatement) -> PrivacyStatement:
    """Return a statement that says that the moment is published too: nothing else changes."""
    said = (PUBLISHED, "the published moment and all that is computed from it")
    told = (replace(each, sees=each.sees.replace(*said)) for each in privacy.protections)
    return replace(privacy, protections=tuple(told))


def _declared_versions(enrolled: Mapping[str, Enrolment]) -> tuple[str, ...]:
    """Return the public fact of which versions of their data the silos declared; none where none did."""
    named = [f"{name} {each.data_version}" for name, each in enrolled.items() if each.data_version]
    if not named:
        return ()
    return (f"the version of its data that each silo declared ({', '.join(named)})",)


def _made_before(answer: Any, run: str) -> bool:
    """Return whether an answer comes from a noised moment that an earlier run was given."""
    return getattr(answer, "made_for", "") not in ("", run)
