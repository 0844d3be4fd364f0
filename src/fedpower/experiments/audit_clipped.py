"""The worlds of an audit of clipped products: bases that a row lies in as far as it counts."""

import math

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.experiments.audit_worlds import SILO, Progress, budget_for, play_worlds
from fedpower.privacy.clipped import STEP
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.clipped_releases import ClippedReleases
from fedpower.protocol.clipped_sums import ClippedSums, plain_noise
from fedpower.protocol.messages import AskNoisedSum, Message, NoisedSum
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study, SumTerms
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.clipped_product import ClippedQuestion
from fedpower.sums.local import LocalMoment, local_moment

Array = NDArray[np.float64]

CLIP = 0.25
"""α of every question."""

_WIDTH = 2


def clipped_terms(n_features: int, n_steps: int) -> tuple[SumTerms, ...]:
    """Return the sums of a study under audit: so many clipped products, of equal shares."""
    size = _WIDTH * n_features + 1
    return tuple(SumTerms(f"{STEP} {number}", size, 1.0 / n_steps) for number in range(1, n_steps + 1))


class ClippedGame:
    """Both worlds of a clipped study, what is asked of each, and how answers are scored."""

    def __init__(self, study: Study, n_rows: int, source: NoiseSource, *, long: bool = False) -> None:
        self._study = study
        self._budget = budget_for(study)
        self._source = source
        self._asked = [
            AskNoisedSum(index=place, label=label, public=_basis(study.n_features, place).to_bytes())
            for place, (label, _, _) in enumerate(study.sums)
        ]
        self._worlds = [_held(rows) for rows in _neighbours(study.n_features, n_rows, long=long)]
        noises = [plain_noise(study, ask, n_rows) for ask in self._asked]
        self._weights = []
        together = 0.0
        for ask, noise in zip(self._asked, noises, strict=True):
            before, after = (_truth(world, study, ask) for world in self._worlds)
            apart = (after - before) * 2.0**noise.fineness
            self._weights.append(apart / float(noise.share) ** 2)
            together = math.hypot(together, float(np.linalg.norm(apart)) / noise.share)
        self.mu = together

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        budget = self._budget
        with Ledger.in_memory(budget.epsilon, budget.delta, silo=SILO) as ledger:
            releases = ClippedReleases(
                self._worlds[world], self._study, budget, ledger=ledger, source=self._source, data=None
            )
            silo = Silo(SILO, self._study, releases)
            answers = [
                silo.answer(
                    Message(study=self._study.digest, run="audit", round=place, silo=SILO, body=body)
                ).body
                for place, body in enumerate(self._asked)
            ]
        return sum(
            float(weight @ _seen(answer)) for weight, answer in zip(self._weights, answers, strict=True)
        )


def _basis(n_features: int, place: int) -> ClippedQuestion:
    """Return a turn of the plane of e₁ and e₂: another question of the same plane."""
    angle = 0.3 * place
    basis = np.zeros((n_features, _WIDTH))
    basis[:2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    return ClippedQuestion.of(basis, CLIP)


def _neighbours(n_features: int, n_rows: int, *, long: bool) -> tuple[Array, Array]:
    rows = np.tile(np.eye(n_features)[2], (n_rows, 1))
    other = rows.copy()
    if long:
        rows[-1], other[-1] = np.eye(n_features)[0], np.eye(n_features)[1]
        return rows, other
    rows[-1, 2] = other[-1, 2] = math.sqrt(1 - CLIP**2)
    rows[-1, 0], other[-1, 0] = CLIP, -CLIP
    return rows, other


def _held(rows: Array) -> LocalMoment:
    return local_moment(open_source(rows), RowTreatment(row_norm=1.0), rank=_WIDTH, steps=10, rereads=True)


def _truth(world: LocalMoment, study: Study, ask: AskNoisedSum) -> Array:
    """Return what the answer would be without noise."""
    return ClippedSums(world, study).summand(ask.label, ask.public).integers.astype(np.float64)


def _seen(answer: object) -> Array:
    if not isinstance(answer, NoisedSum):
        raise InputError(f"an audited silo must answer, got {answer}; audit a clipped study")
    return answer.words.view(np.int64).astype(np.float64)
