"""Parameters that cannot be, whatever the data, are refused here in one sentence each."""

from collections.abc import Iterator
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np

from fedpower.errors import InputError
from fedpower.linalg import ALIGNMENTS
from fedpower.protocol.choice import SOLVERS
from fedpower.protocol.schedule import Schedule, explicit
from fedpower.protocol.weights import WEIGHTS

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedPCA

DECAYS: dict[str, Literal["constant", "linear", "halving"]] = {
    "every": "constant",
    "decaying": "linear",
    "halving": "halving",
}

PAPER_ONLY: dict[str, object] = {
    "schedule": "every",
    "local_steps": 1,
    "drift_correction": False,
    "n_steps": None,
    "alignment": "procrustes",
    "reference": "first",
    "n_participants": None,
}
"""Parameters that only the paper's method has, with the values that leave them alone."""


def check_parameters(model: "FedPCA") -> None:
    """Refuse in one sentence any parameter that cannot be, whatever the data."""
    _one_of("noise", model.noise, ("auto", "moment", "step", "paper"))
    _one_of("solver", model.solver, ("auto", *SOLVERS))
    _one_of("aggregation", model.aggregation, ("plain", "secure"))
    _one_of("weights", model.weights, WEIGHTS)
    _one_of("alignment", model.alignment, tuple(ALIGNMENTS))
    _one_of("reference", model.reference, ("first", "active", "broadcast"))
    _one_of("participation", model.participation, ("sampled", "first"))
    _one_of("extra_columns", model.extra_columns, ("refuse", "drop"))
    for name in ("iteration_rank", "n_steps", "n_participants", "min_silos"):
        _whole(name, getattr(model, name), optional=True)
    if (
        not isinstance(model.n_jobs, Integral | None)
        or isinstance(model.n_jobs, bool)
        or (model.n_jobs == 0)
    ):
        raise InputError(
            f"n_jobs must be a whole number other than 0, got {model.n_jobs!r}; -1 takes all cores"
        )
    for name in ("local_steps", "max_rounds", "colluders"):
        _whole(name, getattr(model, name))
    if not isinstance(model.epsilon, Real) or not model.epsilon > 0:
        raise InputError(
            f"epsilon must be above 0, got {model.epsilon!r}; 1 is usual, and float('inf') means "
            "no privacy"
        )
    if model.delta is not None and not (
        isinstance(model.delta, Real) and 0 < float(model.delta) < 1
    ):
        raise InputError(f"delta must lie between 0 and 1, got {model.delta!r}; 1e-6 is usual")
    if not isinstance(model.tol, Real) or not 0 <= float(model.tol) < 1:
        raise InputError(f"tol must lie in [0, 1), got {model.tol!r}; 0 never stops early")
    if model.deadline is not None and not (
        isinstance(model.deadline, Real) and float(model.deadline) > 0
    ):
        raise InputError(
            f"deadline must be a positive number of seconds, got {model.deadline!r}; "
            "None waits for every silo"
        )
    if model.device is not None and not isinstance(model.device, str):
        raise InputError(
            f"device must be the name of a PyTorch device, got {model.device!r}; give e.g. 'cuda', or "
            "None for the CPU"
        )
    schedule_of(model)


def paper_settings(model: "FedPCA") -> tuple[str, ...]:
    """Return the names of parameters that were given and that only the paper's method has."""
    return tuple(
        name
        for name, default in PAPER_ONLY.items()
        if np.ndim(cast("Any", getattr(model, name))) or getattr(model, name) != default
    )


def schedule_of(model: "FedPCA") -> Schedule:
    """Return the schedule of rounds."""
    schedule = model.schedule
    if isinstance(schedule, Schedule):
        return schedule
    if isinstance(schedule, str):
        _one_of("schedule", schedule, tuple(DECAYS))
        return Schedule(local_steps=model.local_steps, decay=DECAYS[schedule])
    try:
        if isinstance(schedule, Iterator):
            raise TypeError("an iterator is used up by the first look at it")
        return explicit(schedule)
    except (TypeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"schedule must be 'every', 'decaying', 'halving' or whole steps, got {schedule!r}; "
            "give e.g. [2, 4, 5]"
        ) from error


def _one_of(name: str, value: object, options: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in options:
        listed = ", ".join(repr(option) for option in options)
        raise InputError(f"{name} must be one of {listed}, got {value!r}; choose one")


def _whole(name: str, value: object, *, optional: bool = False) -> None:
    if optional and value is None:
        return
    if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
        raise InputError(f"{name} must be a whole number of at least 1, got {value!r}; give one")
