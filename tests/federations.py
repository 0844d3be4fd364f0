"""Federations over the protocol alone, in every noise mode: parties that outlive their processes."""

import io
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs

from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.messages import AskMoment, AskQuery, AskSteps, Message, decode_as, encode
from fedpower.protocol.outcome import Outcome, conclude
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import NoiseMode, Study
from problems import Array, silo_of, spiked_rows, split
from runs import krylov_settings, power_settings

D, K, R, T = 6, 2, 3, 4
SIZES = [60, 80, 100, 110]
CAP = (2.0, 1e-5)
NAMES = ("north", "south", "east", "west")


def _study(noise: NoiseMode) -> Study:
    return Study(
        columns=None,
        n_features=D,
        iteration_rank=R,
        center=True,
        noise=noise,
        epsilon=float("inf") if noise == "none" else 1.0,
        delta=0.0 if noise == "none" else 1e-6,
        n_steps=T if noise in ("step", "paper") else None,
    )


def _power(noise: NoiseMode = "none", **options: Any) -> SolverSettings:
    return power_settings(_study(noise), K, n_steps=T, local_steps=2, **options)


def _krylov(noise: NoiseMode = "none", **options: Any) -> SolverSettings:
    return krylov_settings(_study(noise), K, tol=1e-6, max_rounds=8, **options)


CASES: dict[str, SolverSettings] = {
    "fedpower": _power(),
    "fedpower, partial": _power(n_participants=2),
    "fedpower, first": _power(n_participants=2, participation="first"),
    "drift-corrected": _power(drift_correction=True),
    "krylov": _krylov(),
    "upload": SolverSettings(study=_study("none"), rank=K),
    "fedpower, step": _power("step"),
    "fedpower, step, partial": _power("step", n_participants=2),
    "krylov, step": _krylov("step"),
    "fedpower, paper": _power("paper"),
    "fedpower, covariance": _power("covariance"),
    "fedpower, covariance, partial": _power("covariance", n_participants=2),
    "drift-corrected, covariance": _power("covariance", drift_correction=True),
    "krylov, covariance": _krylov("covariance"),
    "upload, covariance": SolverSettings(study=_study("covariance"), rank=K),
}
"""How the coordinator iterates, by name; every one centres on the pooled mean."""


def study_of(case: str) -> Study:
    return CASES[case].study


def silo_rows() -> list[Array]:
    rows = spiked_rows(n_rows=sum(SIZES), n_features=D, rank=K)
    return split(rows / np.linalg.norm(rows, axis=1).max(), SIZES)


ASK_MOMENT = AskQuery(index=0, label="covariance")


@dataclass
class Party:
    """What an organisation keeps when its silo's process dies: rows, ledger, and noise not yet drawn.

    ``asked`` holds the questions that reached a silo of it, by round, in the order of arrival. With a
    ``folder`` the ledger is a file there and is opened anew with every process, else in memory.
    """

    name: str
    study: Study
    rows: Array
    noise: NoiseSource
    folder: Path | None = None

    def __post_init__(self) -> None:
        self.asked: dict[int, Message] = {}
        self.n_asked = 0
        self.ledger: Ledger | None = None
        if self.study.is_private and self.folder is None:
            self.ledger = Ledger.in_memory(*CAP, silo=self.name)
        self.restart()

    def restart(self) -> None:
        if self.study.is_private and self.folder is not None:
            path = self.folder / f"{self.name}.ledger"
            if self.ledger is None:
                Ledger.create(
                    path, epsilon=CAP[0], delta=CAP[1], silo=self.name, for_experiments=True
                ).close()
            self.stop()
            self.ledger = Ledger.open(path)
        how = {"ledger": self.ledger, "source": self.noise, "fingerprint": self.name}
        self.silo = silo_of(self.name, self.rows, self.study, **how)

    def stop(self) -> None:
        if self.ledger is not None:
            self.ledger.close()

    def answer(self, message: Message) -> Message:
        known = self.asked.setdefault(message.round, message)
        assert encode(structs.replace(known, run="")) == encode(structs.replace(message, run="")), (
            "a round asks one thing"
        )
        self.n_asked += 1
        return self.silo.answer(message)

    @property
    def n_charged(self) -> int:
        return 0 if self.ledger is None else self.ledger.spent().n_releases

    def n_due(self) -> int:
        """Return how many releases the questions that came here are worth: equal ones are one."""
        charged = {
            encode(structs.replace(each, round=0))
            for each in self.asked.values()
            if isinstance(each.body, AskMoment | AskSteps | AskQuery)
        }
        if not self.study.is_private:
            return 0
        return len(charged) if self.study.noise != "covariance" else min(1, len(charged))


def parties_of(case: str, *, seed: int = 0, folder: Path | None = None) -> dict[str, Party]:
    study = study_of(case)
    return {
        name: Party(name, study, rows, SeededNoiseForExperiments(1000 * seed + place), folder)
        for place, (name, rows) in enumerate(zip(NAMES, silo_rows(), strict=True))
    }


def coordinator_of(case: str, **options: Any) -> Coordinator:
    options = {"run": "a-run", "silos": NAMES, **options}
    return Coordinator(start(CASES[case], np.random.default_rng(0), "a-run"), study=study_of(case), **options)


def deliver(coordinator: Coordinator, parties: Mapping[str, Party], *, rounds: int = 10**6) -> None:
    """Deliver every message once and in order, for so many rounds at most."""
    while not coordinator.done and len(coordinator.history) <= rounds:
        for question in coordinator.next():
            coordinator.receive(parties[question.silo].answer(question))


def outcome_of(case: str, coordinator: Coordinator) -> Outcome:
    return conclude(coordinator, CASES[case])


def result_bytes(case: str, coordinator: Coordinator) -> bytes:
    outcome = outcome_of(case, coordinator)
    solution, kept = outcome.solution, io.BytesIO()
    np.savez(kept, basis=solution.basis, values=solution.values)
    rows = [each.as_row() for each in coordinator.history]
    reported = (rows, solution.sizes, outcome.privacy, [each.refused for each in coordinator.history])
    return kept.getvalue() + repr(reported).encode()


def closed_rounds(coordinator: Coordinator) -> list[Round]:
    closed = coordinator.history if coordinator.done else coordinator.history[:-1]
    return [decode_as(encode(each), Round) for each in closed]
