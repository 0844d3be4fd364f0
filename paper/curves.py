"""Every curve of every figure, and the study and solver settings that it stands for."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fedpower import CodeBook
from fedpower.estimator.fedpca import FedPCA
from fedpower.estimator.terms import build_study, options_of
from fedpower.linalg import Alignment
from fedpower.options import SOLVERS, Auto, PowerMethod
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.study import NoiseMode, Study
from paper.driven import TREATMENT
from paper.settings import (
    DELTA,
    EPSILON,
    EPSILONS_SHOWN,
    FIGURES,
    LOCAL_STEPS,
    LOCAL_STEPS_SHOWN,
    N_STEPS,
    PARTICIPATIONS_SHOWN,
    ModelName,
    Settings,
    Size,
)

SolverName = Literal["fedpower", "krylov", "upload", "default"]
MODES: tuple[NoiseMode, ...] = ("paper", "step", "covariance")

ROUNDS_WITHOUT_NOISE: dict[ModelName, int] = {"I": 12, "II": 8}
"""Enough for p = 1 to be past what constant p settles at, and not so many that it is rounding."""

ALIGNED_LOCAL_STEPS = (2, 4, 8, 16)
ALIGNED_ROUNDS = 4
"""ρ_t has settled by then: local steps start from a basis that hardly moves any more."""

SILO_SHARES = (0.25, 0.5, 1.0)
SILO_EPSILON = 10.0
"""The largest of the paper's ε: there the printed noise leaves errors small enough to scale."""

COPIES = (1, 3, 10, 30, 100, 1000)


@dataclass(frozen=True, slots=True, kw_only=True)
class Curve:
    """One way to run a model, repeated with other rows, starts and noise.

    Attributes
    ----------
    figure, panels
        Where it is shown.
    model
        Whose rows.
    solver, noise, epsilon
        The method, what is noised, and ε of each silo (∞ without noise). ``default`` is what FedPCA
        does when solver and noise are left to it.
    local_steps, schedule, n_steps
        p, whether it decays [FP eq. 3.11], and T.
    alignment
        How FedPower rotates local bases.
    participation
        K/m, drawn with replacement [FP Alg. 3].
    iteration_rank
        r where it is not the paper's.
    silo_share
        The share of the silos that there are; the others play no part, in the truth either.
    copies
        How many times each silo holds each of its rows.
    """

    figure: str
    panels: tuple[str, ...]
    model: ModelName
    solver: SolverName = "fedpower"
    noise: NoiseMode = "none"
    epsilon: float = math.inf
    local_steps: int = LOCAL_STEPS
    schedule: Literal["decaying", "constant"] = "decaying"
    n_steps: int = N_STEPS
    alignment: Alignment = "procrustes"
    participation: float = 1.0
    iteration_rank: int | None = None
    silo_share: float = 1.0
    copies: int = 1
    name: str = field(init=False, default="")

    def __post_init__(self) -> None:
        object.__setattr__(self, "name", _name(self))

    @property
    def key(self) -> str:
        """What the curve's noise is derived from, with seed, repetition and silo."""
        return f"{self.figure}/{self.model}/{self.name}"

    @property
    def label(self) -> str:
        """What distinguishes the curve from others of its solver, noise and ε."""
        parts = self.name.split(", ")[2:]
        return " ".join(part for part in parts if not part.startswith("epsilon="))

    @property
    def release(self) -> tuple[object, ...]:
        """Curves that agree in this are post-processing of the same noised covariances, or stand alone."""
        if self.noise != "covariance":
            return (self.key,)
        return ("covariance", self.epsilon, self.copies, self.silo_share)


def curves_of(settings: Settings) -> list[Curve]:
    """Return the curves of the figures asked for."""
    made = {
        "3": lambda: _panels("3", "I"),
        "4": lambda: _panels("4", "II"),
        "schedules": _schedules,
        "alignment": lambda: _alignment(settings),
        "silos": _silos,
        "rows": _rows,
    }
    return [curve for name in FIGURES if name in settings.figures for curve in made[name]()]


def _panels(figure: str, model: ModelName) -> Iterator[Curve]:
    for noise in MODES:
        base = Curve(figure=figure, panels=("a", "b", "c"), model=model, noise=noise, epsilon=EPSILON)
        yield base
        for local_steps in LOCAL_STEPS_SHOWN:
            if local_steps != LOCAL_STEPS:
                yield replace(base, panels=("a",), local_steps=local_steps)
        yield from _over_epsilon(base)
        yield from _over_participation(base)
        if noise != "paper":  # the printed noise belongs to the printed method
            ours = replace(base, solver="krylov", local_steps=1)
            yield ours
            yield from _over_epsilon(ours)
            yield from _over_participation(ours)
    for solver in ("upload", "default"):
        upload = replace(base, solver=solver, local_steps=1)
        yield upload
        yield from _over_epsilon(upload)


def _over_epsilon(base: Curve) -> Iterator[Curve]:
    for epsilon in EPSILONS_SHOWN:
        if epsilon != base.epsilon:
            yield replace(base, panels=("b",), epsilon=epsilon)


def _over_participation(base: Curve) -> Iterator[Curve]:
    for share in PARTICIPATIONS_SHOWN:
        if share != base.participation:
            yield replace(base, panels=("c",), participation=share)


def _schedules() -> Iterator[Curve]:
    models: tuple[ModelName, ...] = ("I", "II")
    for model in models:
        n_rounds = ROUNDS_WITHOUT_NOISE[model]
        for p in LOCAL_STEPS_SHOWN:
            constant = Curve(
                figure="schedules",
                panels=(model,),
                model=model,
                local_steps=p,
                schedule="constant",
                n_steps=p * n_rounds,
            )
            yield constant
            if p > 1:
                n_steps = n_rounds + p * (p - 1) // 2
                yield replace(constant, schedule="decaying", n_steps=n_steps)


def _alignment(settings: Settings) -> Iterator[Curve]:
    size = settings.sizes["I"]
    panels: tuple[tuple[str, ModelName, int | None], ...] = (
        (f"I r={size.iteration_rank}", "I", None),
        (f"I r={size.rank}", "I", size.rank),
        ("II", "II", None),
    )
    alignments: tuple[Alignment, ...] = ("procrustes", "identity")
    for panel, model, iteration_rank in panels:
        for alignment in alignments:
            for p in ALIGNED_LOCAL_STEPS:
                yield Curve(
                    figure="alignment",
                    panels=(panel,),
                    model=model,
                    local_steps=p,
                    schedule="constant",
                    n_steps=p * ALIGNED_ROUNDS,
                    alignment=alignment,
                    iteration_rank=iteration_rank,
                )


def _silos() -> Iterator[Curve]:
    for noise in ("paper", "step"):
        for share in SILO_SHARES:
            yield Curve(
                figure="silos", panels=("I",), model="I", noise=noise, epsilon=SILO_EPSILON, silo_share=share
            )


def _rows() -> Iterator[Curve]:
    ways: tuple[tuple[SolverName, NoiseMode], ...] = (
        ("fedpower", "paper"),
        ("fedpower", "step"),
        ("krylov", "step"),
        ("default", "covariance"),
    )
    for solver, noise in ways:
        for copies in COPIES:
            yield Curve(
                figure="rows",
                panels=("II",),
                model="II",
                solver=solver,
                noise=noise,
                epsilon=EPSILON,
                local_steps=LOCAL_STEPS if solver == "fedpower" else 1,
                copies=copies,
            )


def _name(curve: Curve) -> str:
    parts: list[str] = [curve.solver, curve.noise]
    if curve.solver == "fedpower":
        parts.append(f"p={curve.local_steps} {curve.schedule}")
    if curve.noise != "none":
        parts.append(f"epsilon={curve.epsilon:g}")
    if curve.participation != 1:
        parts.append(f"K/m={curve.participation:g}")
    if curve.alignment != "procrustes":
        parts.append(curve.alignment)
    if curve.iteration_rank is not None:
        parts.append(f"r={curve.iteration_rank}")
    if curve.silo_share != 1:
        parts.append(f"m x {curve.silo_share:g}")
    if curve.copies != 1:
        parts.append(f"rows x {curve.copies}")
    return ", ".join(parts)


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
        return _fedpower(curve, size, len(sizes))
    return _ours(curve, size, sizes)


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
    option = PowerMethod(
        tol=0.0,
        schedule="decaying" if curve.schedule == "decaying" else "every",
        local_steps=curve.local_steps,
        n_steps=curve.n_steps,
        alignment=curve.alignment,
        n_participants=_participants(curve, n_silos),
    )
    return study, SolverSettings(study=study, rank=size.rank, solver=option)


def _ours(curve: Curve, size: Size, sizes: Mapping[str, int]) -> tuple[Study, SolverSettings]:
    chosen = curve.solver == "default"
    drawn: dict[str, Any] = {}
    if curve.solver != "upload":
        drawn = {"n_participants": _participants(curve, len(sizes))}
    model = FedPCA(
        size.rank,
        epsilon=curve.epsilon,
        delta=DELTA,
        center=False,
        standardize=False,
        codebook=CodeBook(row_norm=1.0),
        noise="auto" if chosen or curve.noise == "none" else curve.noise,
        solver=(Auto if chosen else SOLVERS[curve.solver])(
            iteration_rank=None if chosen else size.iteration_rank, **drawn
        ),
    )
    study, settings, _ = build_study(
        options_of(model), n_rows=sum(sizes.values()), n_features=size.n_features, treatment=TREATMENT
    )
    if settings.method == "krylov":
        settings = replace(settings, solver=replace(settings.solver, max_rounds=N_STEPS))
    return study, settings


def _participants(curve: Curve, n_silos: int) -> int | None:
    return None if curve.participation == 1 else round(curve.participation * n_silos)
