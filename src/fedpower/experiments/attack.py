"""The attack of a curious coordinator on Algorithm 1, played against real silos."""

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Literal

import numpy as np
from scipy.stats import beta

from fedpower.engines.inprocess import run_in_process
from fedpower.exceptions import InputError
from fedpower.linalg import Array
from fedpower.options import PowerMethod
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SystemNoise
from fedpower.protocol.coordinator import Answers, Coordinator
from fedpower.protocol.messages import AskSteps, LocalSteps, Message
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import NoiseMode, Study
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import LocalMoment, local_moment

_TARGET = "silo-1"
RUN = "attack"


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackSetting:
    """The federation that is observed; the attacker knows all of it but the rows."""

    n_silos: int = 3
    n_rows: int = 1000
    n_features: int = 20
    iteration_rank: int = 4
    n_steps: int = 10
    delta: float = 1e-5


def overhear(
    mode: NoiseMode, epsilon: float, setting: AttackSetting, seed: int, source: NoiseSource
) -> tuple[list[Array], list[Array]]:
    """Return the bases and products that pass between the coordinator and the first silo."""
    study = study_of(mode, epsilon, setting)
    option = PowerMethod(n_steps=setting.n_steps, tol=0.0)
    settings = SolverSettings(study=study, rank=setting.iteration_rank, solver=option)
    silos: dict[str, Answers] = {}
    with ExitStack() as stack:
        for number, rows in enumerate(silo_rows(setting, seed), start=1):
            name, ledger = f"silo-{number}", None
            if study.is_private:
                ledger = stack.enter_context(Ledger.in_memory(study.epsilon, study.delta, silo=name))
            silos[name] = assemble(name, moment_of(rows, mode), study, ledger=ledger, source=source)
        solver = start(settings, np.random.default_rng(seed))
        silos[_TARGET] = target = _Overheard(silos[_TARGET])
        coordinator = Coordinator(solver, list(silos), study=study, run=RUN)
        run_in_process(coordinator, silos, n_jobs=1)
    return target.bases, target.products


class _Overheard:
    """A silo that an attacker listens to."""

    def __init__(self, silo: Answers) -> None:
        self._silo, self.bases, self.products = silo, list[Array](), list[Array]()

    def answer(self, message: Message) -> Message:
        answer = self._silo.answer(message)
        match message.body, answer.body:
            case AskSteps() as asked, LocalSteps() as answered:
                self.bases.append(asked.basis)
                self.products.append(answered.product - asked.shift * asked.basis)
        return answer


def silo_rows(setting: AttackSetting, seed: int) -> list[Array]:
    """Return the rows of all silos, of norm at most 1; the planted row is the first silo's first."""
    rng = np.random.default_rng(seed)
    d = setting.n_features
    strengths = np.append(np.linspace(1.0, 0.2, d - 1), 0.0)
    drawn = [rng.standard_normal((setting.n_rows, d)) * strengths for _ in range(setting.n_silos)]
    silos = [rows / np.linalg.norm(rows, axis=1, keepdims=True) for rows in drawn]
    planted = rng.standard_normal(d)
    planted[-1] = np.linalg.norm(planted[:-1])  # the rare code is half of the row
    silos[0][0] = planted / np.linalg.norm(planted)
    return silos


def study_of(mode: NoiseMode, epsilon: float, setting: AttackSetting) -> Study:
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
    return local_moment(
        open_source(rows), RowTreatment(row_norm=1.0), rank=4, steps=10, on_lattice=mode == "covariance"
    )


MODES: tuple[Literal["paper", "step", "covariance"], ...] = ("paper", "step", "covariance")


@dataclass(frozen=True, slots=True)
class _AttackResult:
    mode: NoiseMode
    epsilon: float
    error: float
    row_cosine: float


def attack(
    epsilons: Sequence[float],
    *,
    setting: AttackSetting,
    seeds: Sequence[int] = range(15),
    source: NoiseSource | None = None,
    on_progress: Callable[[int], None] | None = None,
) -> list[_AttackResult]:
    if not seeds or not all(0 < epsilon < math.inf for epsilon in epsilons):
        raise InputError("an attack must have at least one seed and finite epsilons above 0, got others")
    cases: list[tuple[NoiseMode, float]] = [("none", math.inf)]
    cases += [(mode, epsilon) for mode in MODES for epsilon in epsilons]
    results = []
    for mode, epsilon in cases:
        outcomes = np.empty((len(seeds), 2))
        for count, seed in enumerate(seeds):
            outcomes[count] = _play(mode, epsilon, setting, seed, source or SystemNoise())
            if on_progress:
                on_progress(1)
        error, cosine = np.median(outcomes, axis=0).tolist()
        results.append(_AttackResult(mode, epsilon, error, cosine))
    return results


def chance_cosine(setting: AttackSetting) -> float:
    """Return the median |cos| between a row's d − 1 other entries and a random direction."""
    return math.sqrt(float(beta.ppf(0.5, 0.5, (setting.n_features - 2) / 2)))


def rebuild(bases: Sequence[Array], products: Sequence[Array], ridge: float = 0.0) -> Array:
    """Return the symmetric Â that fits Â Z_t = Y_t best, in least squares plus ridge/2·‖Â‖_F²."""
    left, sizes, right = np.linalg.svd(np.hstack(bases), full_matrices=True)
    d = left.shape[0]
    seen = np.zeros(d)
    seen[: sizes.size] = np.where(sizes > sizes[0] * d * np.finfo(np.float64).eps, sizes, 0.0)
    mixed = (left.T @ np.hstack(products) @ right.T)[:, : sizes.size]
    fitted = np.zeros((d, d))
    fitted[:, : sizes.size] = mixed * seen[: sizes.size]
    weight = seen[:, None] ** 2 + seen[None, :] ** 2
    inside = np.divide(fitted + fitted.T, weight + ridge, out=np.zeros((d, d)), where=weight > 0)
    return np.asarray(left @ inside @ left.T)


def _play(
    mode: NoiseMode, epsilon: float, setting: AttackSetting, seed: int, source: NoiseSource
) -> tuple[float, float]:
    """Return the error of the rebuilt covariance, and the cosine of the row read off it."""
    rows = silo_rows(setting, seed)[0]
    exact = moment_of(rows).moment()
    bases, products = overhear(mode, epsilon, setting, seed, source)
    expected = setting.n_features**-3.0  # d² entries share ‖A‖_F² ≥ 1/d, as tr A = 1
    study = study_of(mode, epsilon, setting)
    noise = study.budget.std(setting.n_rows) ** 2 if study.is_private else 0.0
    if mode == "covariance":  # the same noised covariance every time: solve for it, then shrink
        guess = rebuild(bases, products) / (1 + noise / 2 / expected)
    else:
        guess = rebuild(bases, products, ridge=noise / expected)
    read, row = guess[:-1, -1], rows[0, :-1]
    sizes = float(np.linalg.norm(read) * np.linalg.norm(row))
    return _relative_error(guess, exact), abs(float(read @ row)) / sizes if sizes > 0 else 0.0


def _relative_error(guess: Array, exact: Array) -> float:
    return float(np.linalg.norm(guess - exact) / np.linalg.norm(exact))
