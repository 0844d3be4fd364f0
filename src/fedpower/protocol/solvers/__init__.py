"""Solvers: generators of questions, one file per method; what they need to know is one frozen value."""

from collections.abc import Callable
from typing import Any

import numpy as np

from fedpower import options
from fedpower.protocol.coordinator import Exchange
from fedpower.protocol.solvers import clipped, krylov, power, upload
from fedpower.protocol.solvers.shared import Solution, SolverSettings
from fedpower.protocol.solvers.sums import with_scores

__all__ = ["GENERATORS", "Solution", "SolverSettings", "register", "start"]

Solve = Callable[[SolverSettings, np.random.Generator, str], Exchange]

GENERATORS: dict[str, Solve] = {
    "upload": upload.solve,
    "krylov": krylov.solve,
    "fedpower": power.solve,
    "clipped": clipped.solve,
}
"""By name of the solver; the values that users give are in `options.SOLVERS`."""


def register(option: type[Any], solve: Solve) -> None:
    """Add a solver: the value that users give, and the generator that solves."""
    options.register_solver(option)
    GENERATORS[option.name] = solve


def start(settings: SolverSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the solver of a run that ``settings`` are for, ready to be driven by a coordinator."""
    solver = GENERATORS[settings.method](settings, rng, run)
    if settings.study.scores and not settings.is_summed:
        return with_scores(solver, settings.study)
    return solver
