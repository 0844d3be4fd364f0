"""The worlds of an audit of private preparation: five tallies and the moment."""

import math

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.experiments.audit_worlds import SILO, Progress, budget_for, play_worlds, source_of
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.privacy.sensitivity import pack
from fedpower.protocol.messages import AskPreparedMoment, AskTally, Message, PackedMoment, Question, Tally
from fedpower.protocol.releases import PreparedReleases, packed
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.survey import CELL_SIDE, STAGES, Stage, Survey

Array = NDArray[np.float64]

BOUND = 0.5
"""B of the moment that is asked for: every row is longer."""


class PreparedGame:
    """Both worlds of a study that prepares, what is asked of each, and how answers are scored."""

    def __init__(
        self, study: Study, n_rows: int, source: NoiseSource, pair: tuple[Array, Array] | None = None
    ) -> None:
        d = study.n_features
        self._study = study
        self._budget = budget_for(study)
        self._source = source
        ones = np.ones(d)
        away = np.zeros(d)
        away[0] = math.sqrt(d)
        ranges = {"low": -ones, "high": ones}
        self._asked: list[Question] = [
            AskTally(stage="octaves"),
            AskTally(stage="bins", **ranges),
            AskTally(stage="zoom", **ranges, offset=ones),
            AskTally(stage="means", **ranges),
            AskTally(stage="norms", **ranges, offset=ones, scale=ones),
            AskPreparedMoment(**ranges, offset=away, scale=ones, bound=BOUND),
        ]
        rows = np.tile(ones, (n_rows, 1))
        other = rows.copy()
        rows[-1], other[-1] = pair or (ones, -ones)
        self._worlds = [Survey(source_of(each, study, world)) for world, each in enumerate((rows, other))]
        truths = [self._truth(world) for world in self._worlds]
        self._stds = self._noise(n_rows)
        self._weights = [
            (after - before) / std**2 for before, after, std in zip(*truths, self._stds, strict=True)
        ]
        self.mus = [
            float(np.linalg.norm(weight * std)) for weight, std in zip(self._weights, self._stds, strict=True)
        ]
        self.mu = math.hypot(*self.mus)

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        budget = self._budget
        with Ledger.in_memory(budget.epsilon, budget.delta, silo=SILO) as ledger:
            silo = Silo(
                SILO,
                self._study,
                PreparedReleases(
                    self._worlds[world], self._study, budget, ledger=ledger, source=self._source, data=None
                ),
            )
            answers = [
                silo.answer(
                    Message(study=self._study.digest, run="audit", round=place, silo=SILO, body=body)
                ).body
                for place, body in enumerate(self._asked)
            ]
        return sum(
            float(weight @ _seen(answer, self._study.n_features))
            for weight, answer in zip(self._weights, answers, strict=True)
        )

    def _truth(self, world: Survey) -> list[Array]:
        """Return what the same answers would be without noise."""
        d = self._study.n_features
        tallies = []
        for kind, body in zip(STAGES, self._asked, strict=False):
            assert isinstance(body, AskTally)
            stage = Stage(
                kind=kind,
                n_features=d,
                open_columns=np.arange(d),
                low=body.low,
                high=body.high,
                offset=body.offset,
                scale=body.scale,
            )
            tallies.append(world.tally(stage).astype(np.float64))
        last = self._asked[-1]
        assert isinstance(last, AskPreparedMoment)
        moment = world.treated(
            RowTreatment(
                center=last.offset, scale=last.scale, row_norm=last.bound, low=last.low, high=last.high
            )
        )
        return [*tallies, _seen(packed(moment.moment(), None, moment.trace()), d)]

    def _noise(self, n_rows: int) -> list[Array]:
        """Return the standard deviations of each answer's numbers."""
        found = []
        for kind, weight in zip(STAGES, self._sizes(), strict=True):
            scales = self._budget.stage_scales(kind, CELL_SIDE)
            found.append(np.repeat(np.array(scales, dtype=np.float64), weight // len(scales)))
        d = self._study.n_features
        return [*found, np.full(d * (d + 1) // 2 + 1, self._budget.std(n_rows))]

    def _sizes(self) -> list[int]:
        d = self._study.n_features
        return [Stage(kind=kind, n_features=d, open_columns=np.arange(d)).size for kind in STAGES]


def _seen(answer: object, n_features: int) -> Array:
    """Return the numbers of an answer, those of a moment in coordinates of equal noise."""
    if isinstance(answer, Tally):
        return answer.counts
    if not isinstance(answer, PackedMoment):
        raise InputError(f"an audited silo must answer, got {answer}; audit a study that prepares")
    moment = np.zeros((n_features, n_features))
    moment[np.tril_indices(n_features)] = answer.triangle
    return pack(moment + np.tril(moment, -1).T, None, answer.total_variance)
