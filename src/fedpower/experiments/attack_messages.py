"""The federation that is attacked: real silos, Algorithm 1, and an ear on the first silo's line."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.data import LocalMoment, RowTreatment, local_moment, open_source
from fedpower.experiments.driven import ledgers_for, silos_of
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.messages import AskSteps, LocalSteps
from fedpower.protocol.outcome import with_noise
from fedpower.protocol.solvers import PowerSettings, start
from fedpower.protocol.study import NoiseMode, Study

Array = NDArray[np.float64]

TARGET = "silo-1"
RUN = "attack"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSetting:
    """The federation that is read along; the attacker knows all of it but the rows.

    Attributes
    ----------
    n_silos, n_rows
        m, and s of each silo.
    n_features, iteration_rank, n_steps
        d, r and T. Without noise the equations determine the moment from rT ≥ d on.
    delta
        δ of the private modes.
    """

    n_silos: int = 3
    n_rows: int = 1000
    n_features: int = 20
    iteration_rank: int = 4
    n_steps: int = 10
    delta: float = 1e-5


def overhear(
    mode: NoiseMode, epsilon: float, setting: AttackSetting, seed: int, source: NoiseSource
) -> tuple[list[Array], list[Array]]:
    """Return the bases and products that pass between the coordinator and the first silo.

    Algorithm 1 as it is: real silos, real releases, a coordinator that follows the protocol.
    """
    study = study_of(mode, epsilon, setting)
    settings = with_noise(
        PowerSettings(
            n_features=setting.n_features,
            rank=setting.iteration_rank,
            iteration_rank=setting.iteration_rank,
            n_steps=setting.n_steps,
        ),
        study,
        run=RUN,
    )
    moments = {
        f"silo-{number}": moment_of(rows, mode)
        for number, rows in enumerate(silo_rows(setting, seed), start=1)
    }
    charged = moments if mode != "none" else ()
    bases, products = [], []
    with ledgers_for(charged, epsilon=study.epsilon, delta=study.delta) as ledgers:
        silos = silos_of(moments, study, ledgers=ledgers, noise=lambda name: source)
        solver = start(settings, np.random.default_rng(seed))
        coordinator = Coordinator(solver, list(silos), study=study, run=RUN)
        while not coordinator.done:
            for question in coordinator.next():
                answer = silos[question.silo].answer(question)
                coordinator.receive(answer)
                asked, told = question.body, answer.body
                if (
                    question.silo == TARGET
                    and isinstance(asked, AskSteps)
                    and isinstance(told, LocalSteps)
                ):
                    bases.append(asked.basis)
                    products.append(told.product - asked.shift * asked.basis)
    return bases, products


def silo_rows(setting: AttackSetting, seed: int) -> list[Array]:
    """Return the rows of all silos, of norm at most 1; the planted row is the first silo's first."""
    rng = np.random.default_rng(seed)
    d = setting.n_features
    strengths = np.append(np.linspace(1.0, 0.2, d - 1), 0.0)
    silos = []
    for _ in range(setting.n_silos):
        rows = rng.standard_normal((setting.n_rows, d)) * strengths
        silos.append(rows / np.linalg.norm(rows, axis=1, keepdims=True))
    planted = rng.standard_normal(d)
    planted[-1] = np.linalg.norm(planted[:-1])  # the rare code is half of the row
    silos[0][0] = planted / np.linalg.norm(planted)
    return silos


def study_of(mode: NoiseMode, epsilon: float, setting: AttackSetting) -> Study:
    """Return the terms that the silos agree to."""
    private = mode != "none"
    return Study(
        columns=None,
        n_features=setting.n_features,
        iteration_rank=setting.iteration_rank,
        noise=mode,
        epsilon=epsilon,
        delta=setting.delta if private else 0.0,
        n_steps=setting.n_steps if mode in ("step", "paper") else None,
    )


def moment_of(rows: Array, mode: NoiseMode = "none") -> LocalMoment:
    """Return rows as a silo holds them in a study of this mode."""
    return local_moment(
        open_source(rows),
        RowTreatment(row_norm=1.0),
        rank=4,
        steps=10,
        on_lattice=mode == "moment",
    )
