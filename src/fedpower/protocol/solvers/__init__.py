"""Solvers: what the coordinator asks, and what it makes of the answers. One file per method."""

import numpy as np

from fedpower.protocol.coordinator import Exchange
from fedpower.protocol.solvers.clipped import ClippedSettings, clipped
from fedpower.protocol.solvers.krylov import KrylovSettings, krylov
from fedpower.protocol.solvers.power import PowerSettings, fedpower
from fedpower.protocol.solvers.scores import with_scores
from fedpower.protocol.solvers.shared import Solution
from fedpower.protocol.solvers.upload import (
    PrepareSettings,
    SecureSettings,
    UploadSettings,
    preparation,
    secure,
    upload,
)
from fedpower.protocol.study import Study

SolverSettings = PowerSettings | KrylovSettings | UploadSettings | SecureSettings | ClippedSettings

__all__ = [
    "ClippedSettings",
    "KrylovSettings",
    "PowerSettings",
    "PrepareSettings",
    "SecureSettings",
    "Solution",
    "SolverSettings",
    "UploadSettings",
    "clipped",
    "fedpower",
    "krylov",
    "preparation",
    "secure",
    "start",
    "upload",
]


def start(
    settings: SolverSettings | PrepareSettings, rng: np.random.Generator, study: Study | None = None
) -> Exchange:
    """Return the solver that ``settings`` are for, ready to be driven by a coordinator."""
    if (
        study is not None
        and study.scores
        and study.aggregation == "plain"
        and not isinstance(settings, PrepareSettings)
    ):
        return with_scores(start(settings, rng), study)
    match settings:
        case PowerSettings():
            return fedpower(settings, rng)
        case KrylovSettings():
            return krylov(settings, rng)
        case UploadSettings():
            return upload(settings, rng)
        case SecureSettings():
            return secure(settings, rng)
        case ClippedSettings():
            return clipped(settings, rng)
        case PrepareSettings():
            return preparation(settings, rng)
