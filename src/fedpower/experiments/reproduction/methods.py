"""From a curve to a study and a solver's settings."""

from collections.abc import Mapping
from dataclasses import replace

from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.terms import agree
from fedpower.experiments.kept import TREATMENT
from fedpower.experiments.reproduction.curves import Curve
from fedpower.experiments.reproduction.settings import DELTA, N_STEPS, Size
from fedpower.protocol.outcome import with_noise
from fedpower.protocol.schedule import decaying, every
from fedpower.protocol.solvers import KrylovSettings, PowerSettings, SolverSettings
from fedpower.protocol.study import Study


def terms_of(curve: Curve, size: Size, sizes: Mapping[str, int]) -> tuple[Study, SolverSettings]:
    """Return the study of a curve and how the coordinator iterates.

    FedPower is set up as [FP §5] says, the rest as an estimator with these parameters would. Nothing is
    centred: the paper's A is about the origin.

    Parameters
    ----------
    curve
        What is run.
    size
        The model's.
    sizes
        Rows by silo.
    """
    if curve.solver == "fedpower":
        study, settings = _fedpower(curve, size, len(sizes))
    else:
        study, settings = _ours(curve, size, sizes)
    return study, with_noise(settings, study, run="reproduction")


def _fedpower(curve: Curve, size: Size, n_silos: int) -> tuple[Study, SolverSettings]:
    every_step = curve.noise in ("step", "paper")
    rank = curve.iteration_rank or size.iteration_rank
    study = Study(
        columns=None,
        n_features=size.n_features,
        iteration_rank=rank,
        treatment=TREATMENT.digest(),
        noise=curve.noise,
        epsilon=curve.epsilon,
        delta=0.0 if curve.noise == "none" else DELTA,
        n_steps=curve.n_steps if every_step else None,
    )
    schedule = decaying if curve.schedule == "decaying" else every
    return study, PowerSettings(
        n_features=size.n_features,
        rank=size.rank,
        iteration_rank=rank,
        schedule=schedule(curve.local_steps),
        n_steps=curve.n_steps,
        alignment=curve.alignment,
        n_participants=_participants(curve, n_silos),
    )


def _ours(curve: Curve, size: Size, sizes: Mapping[str, int]) -> tuple[Study, SolverSettings]:
    chosen = curve.solver == "default"
    model = FedPCA(
        size.rank,
        epsilon=curve.epsilon,
        delta=DELTA,
        row_norm=1.0,
        center=False,
        solver="auto" if curve.solver == "default" else curve.solver,
        noise="auto" if chosen else curve.noise,  # type: ignore[arg-type]  # never none here
        iteration_rank=None if chosen else size.iteration_rank,
        n_participants=_participants(curve, len(sizes)),
    )
    study, settings, _ = agree(
        model, n_rows=sum(sizes.values()), n_features=size.n_features, treatment=TREATMENT
    )
    if isinstance(settings, KrylovSettings):
        settings = replace(settings, max_rounds=N_STEPS)
    return study, settings


def _participants(curve: Curve, n_silos: int) -> int | None:
    """Return K; None where every silo takes part."""
    return None if curve.participation == 1 else round(curve.participation * n_silos)
