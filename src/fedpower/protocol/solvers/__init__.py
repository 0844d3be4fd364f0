"""Solvers: frozen values whose ``solve`` is a generator of questions; one file per method."""

from typing import Any

import numpy as np

from fedpower import options
from fedpower.protocol.coordinator import Exchange
from fedpower.protocol.solvers.clipped import ClippedSettings
from fedpower.protocol.solvers.krylov import KrylovSettings
from fedpower.protocol.solvers.power import PowerSettings
from fedpower.protocol.solvers.preparation import PrepareSettings
from fedpower.protocol.solvers.shared import Solution, StepSettings
from fedpower.protocol.solvers.sums import with_scores
from fedpower.protocol.solvers.upload import UploadSettings

__all__ = [
    "SETTINGS",
    "ClippedSettings",
    "KrylovSettings",
    "PowerSettings",
    "PrepareSettings",
    "Solution",
    "SolverSettings",
    "UploadSettings",
    "register",
    "start",
]


SolverSettings = UploadSettings | KrylovSettings | PowerSettings | ClippedSettings
"""What ``solve`` needs to know; `estimator.terms` fills fields in by name."""

SETTINGS: dict[str, Any] = {
    "upload": UploadSettings,
    "krylov": KrylovSettings,
    "fedpower": PowerSettings,
    "clipped": ClippedSettings,
}
"""By name of the solver; the values that users give are in `options.SOLVERS`."""


def register(option: type[Any], settings: type[Any]) -> None:
    """Add a solver: the value that users give, and the settings that solve."""
    options.register_solver(option)
    SETTINGS[option.name] = settings


def start(settings: SolverSettings | PrepareSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the solver of a run that ``settings`` are for, ready to be driven by a coordinator."""
    solver = settings.solve(rng, run)
    if settings.study.scores and isinstance(settings, StepSettings):
        return with_scores(solver, settings.study)
    return solver
