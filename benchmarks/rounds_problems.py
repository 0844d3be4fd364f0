"""Problems for the benchmark of rounds: silos' moments with a known pooled spectrum, and a network."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import scipy.stats
from numpy.typing import NDArray

from fedpower.experiments.driven import drive_silos, silos_of
from fedpower.linalg import heterogeneity, sin_theta
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import Coordinator, Silo, Study
from fedpower.protocol.messages import AskMoment, Message, PackedMoment
from fedpower.protocol.releases import ExactReleases
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import NoiseMode

Array = NDArray[np.float64]

EPSILON, DELTA = 0.5, 1e-4


@dataclass(frozen=True)
class HeldMoment:
    """A silo that is its moment: what a silo's rows are to the protocol."""

    matrix: Array
    n_rows: int = 1000

    def mean(self) -> Array:
        """Return zero: nothing here centres."""
        return np.zeros(len(self.matrix))

    def moment(self, center: Array | None = None) -> Array:
        """Return A_i."""
        assert center is None
        return self.matrix

    def product(self, basis: Array, center: Array | None = None) -> Array:
        """Return A_i Z."""
        assert center is None
        return self.matrix @ basis

    def trace(self, center: Array | None = None) -> float:
        """Return tr A_i."""
        assert center is None
        return float(np.trace(self.matrix))


@dataclass(frozen=True, kw_only=True)
class Problem:
    """Silos, what they agreed on, and the leading eigenvectors of their pooled moment."""

    silos: Mapping[str, Silo]
    study: Study
    truth: Array
    measured_heterogeneity: float


def family(
    *, ratio: float, eta: float, seed: int, d: int = 120, k: int = 5, r: int = 6, m: int = 10
) -> Problem:
    """Return m silos with η ≈ ``eta`` and exactly the pooled spectrum 1 … .6, then .6·ratio·.95^j.

    A_i = A^½[(1 − t)I + tG_i]A^½ with G_i the moments of the parts of a matrix with orthonormal columns:
    they average to I exactly, and t sets η. G_i has fewer rows than columns, so that at t = 1 each silo
    sees half the space only.
    """
    rng = np.random.default_rng(seed)
    tail = 0.6 * ratio * 0.95 ** np.arange(d - k)
    spectrum = np.concatenate([np.linspace(1.0, 0.6, k), tail])
    vectors = np.linalg.qr(rng.standard_normal((d, d)))[0]
    half = vectors * np.sqrt(spectrum)
    rows = d // 2
    stacked = np.linalg.qr(rng.standard_normal((rows * m, d)))[0] * np.sqrt(rows * m)
    pooled = half @ half.T
    full = [half @ (part.T @ part / rows) @ half.T for part in np.split(stacked, m)]
    share = min(1.0, eta / heterogeneity(full, pooled))
    moments = [(1 - share) * pooled + share * each for each in full]
    study = Study(columns=None, n_features=d, iteration_rank=r)
    return Problem(
        silos={
            f"silo-{place:02}": Silo(
                f"silo-{place:02}", study, ExactReleases(HeldMoment((each + each.T) / 2), study)
            )
            for place, each in enumerate(moments)
        },
        study=study,
        truth=vectors[:, :k],
        measured_heterogeneity=heterogeneity(moments, pooled),
    )


def model_one(seed: int, *, d: int = 100, k: int = 4, m: int = 20, s: int = 100_000) -> list[Array]:
    """Return the moments of m silos of s rows like Model I's: Wishart, with its population spectrum.

    Normalising rows to norm 1 is left out but for the trace, which is 1.
    """
    rng = np.random.default_rng(seed)
    spectrum = np.full(d, 0.36)
    spectrum[:k] += 1.0
    vectors = np.linalg.qr(rng.standard_normal((d, d)))[0]
    half = vectors * np.sqrt(spectrum / spectrum.sum())
    drawn = [scipy.stats.wishart.rvs(s, np.eye(d), random_state=rng) / s for _ in range(m)]
    return [half @ each @ half.T for each in drawn]


def private_problem(
    moments: list[Array], mode: NoiseMode, *, seed: int, n_steps: int | None = None
) -> tuple[Problem, float]:
    """Return silos over ``moments`` with seeded noise, and the noise floor of ``moment`` mode.

    The floor is sin θ_k of the exact leading eigenspace of the pooled noised moment.
    """
    d, k, s = len(moments[0]), 4, 100_000
    study = Study(
        columns=None,
        n_features=d,
        iteration_rank=k + 1,
        noise=mode,
        epsilon=EPSILON,
        delta=DELTA,
        n_steps=n_steps,
    )
    noise = SeededNoiseForExperiments(10_000 + seed)
    held = {f"silo-{place:02}": HeldMoment(each, s) for place, each in enumerate(moments)}
    ledgers = {name: Ledger.in_memory(EPSILON, DELTA, silo=name) for name in held}
    silos = silos_of(held, study, ledgers=ledgers, noise=lambda silo: noise)
    truth = np.linalg.eigh(np.mean(moments, axis=0))[1][:, -k:]
    floor = float("nan")
    if mode == "moment":
        lower = np.tril_indices(d)
        pooled = np.zeros((d, d))
        uploads = [upload_of(silo) for silo in silos.values()]
        pooled[lower] = np.mean(uploads, axis=0)
        floor = sin_theta(np.linalg.eigh(pooled, UPLO="L")[1][:, -k:], truth)
    return Problem(silos=silos, study=study, truth=truth, measured_heterogeneity=0.0), floor


def upload_of(silo: Silo) -> Array:
    """Return the noised moment that a silo releases, as it is packed."""
    asked = Message(study=silo.study.digest, run="", round=0, silo=silo.name, body=AskMoment())
    body = silo.answer(asked).body
    assert isinstance(body, PackedMoment)
    return body.triangle


def drive(
    problem: Problem, settings: SolverSettings, *, seed: int, late: bool = False
) -> tuple[Coordinator, list[Array]]:
    """Return the finished coordinator and the basis asked about in each round of steps.

    ``late`` delivers answers in a new random order every round, so that who comes first changes.
    """
    order = np.random.default_rng(1000 + seed)

    def shuffled(questions: list[Message]) -> list[Message]:
        order.shuffle(questions)  # type: ignore[arg-type]
        return questions

    return drive_silos(
        start(settings, np.random.default_rng(seed)),
        problem.silos,
        study=problem.study,
        reorder=shuffled if late else None,
    )


def bytes_by_round(coordinator: Coordinator) -> Array:
    """Return the bytes sent both ways up to each round of steps, enrolment left out."""
    steps = [each for each in coordinator.history if each.kind == "steps"]
    return np.cumsum([each.bytes_up + each.bytes_down for each in steps])
