"""The two worlds of an audit: neighbouring rows in real silos, what is asked, how it is scored."""

import math
from collections.abc import Callable
from decimal import Decimal
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.privacy.budget import Budget
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.privacy.preparation import SCORES
from fedpower.privacy.sensitivity import MEAN_WEIGHT, pack
from fedpower.protocol.messages import (
    AskMean,
    AskScores,
    AskSteps,
    LocalSteps,
    MeanRow,
    Message,
    Question,
    Refusal,
    Tally,
    read_only,
)
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.releases import ExactReleases, MomentReleases, StepReleases
from fedpower.protocol.silo import Silo
from fedpower.protocol.study import Study
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import with_ids
from fedpower.sums.local import LocalMoment, local_moment

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with the runs played and the runs to play."""

SILO = "audited"
_PROGRESS_EVERY = 50


class Game:
    """Both worlds of a study, what is asked of each, and how answers are scored."""

    def __init__(self, study: Study, n_rows: int, source: NoiseSource) -> None:
        self._study = study
        self._digest = study.digest
        self._budget = budget_for(study)
        self._source = source
        self._questions = [
            Message(study=self._digest, run="audit", round=number, silo=SILO, body=body)
            for number, body in enumerate(_questions(study))
        ]
        self._worlds = [
            rows_as_held(rows, study, world) for world, rows in enumerate(neighbours(study, n_rows))
        ]
        truths = [self._truth(world) for world in self._worlds]
        stds = self._stds(n_rows)
        self._weights = [(after - before) / std**2 for before, after, std in zip(*truths, stds, strict=True)]
        self.mu = math.hypot(
            *(float(np.linalg.norm(weight)) * std for weight, std in zip(self._weights, stds, strict=True))
        )

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        """Return the score of one run: a fresh silo and a fresh ledger, asked everything once."""
        budget = self._budget
        kind = MomentReleases if budget.mode == "moment" else StepReleases
        with Ledger.in_memory(budget.epsilon, budget.delta, silo=SILO) as ledger:
            releases = kind(
                self._worlds[world], self._study, budget, ledger=ledger, source=self._source, data=None
            )
            seen = self._seen(Silo(SILO, self._study, releases))
        return sum(float(w @ values) for w, values in zip(self._weights, seen, strict=True))

    def _seen(self, silo: Silo) -> list[Array]:
        """Return the releases in a silo's answers, each in coordinates of equal noise."""
        answers: list[Any] = [silo.answer(question).body for question in self._questions]
        for answer in answers:
            if isinstance(answer, Refusal):
                raise InputError(f"an audited silo must answer, got a refusal: {answer.reason}")
        steps = [answer for answer in answers if isinstance(answer, LocalSteps)]
        means = [answer.mean for answer in answers if isinstance(answer, MeanRow)]
        if self._budget.mode == "moment":
            trace = steps[0].total_variance
            assert trace is not None
            counts = [answer.counts for answer in answers if isinstance(answer, Tally)]
            return [pack(steps[0].product, means[0] if means else None, trace), *counts]
        return [*(_numbers(answer) for answer in steps), *means]

    def _truth(self, world: LocalMoment) -> list[Array]:
        """Return what the same answers would be without noise."""
        seen = self._seen(Silo(SILO, self._study, ExactReleases(world)))
        if self._budget.with_trace:
            return seen
        return [*(each[: self._study.n_features] for each in seen)]

    def _stds(self, n_rows: int) -> list[float]:
        """Return the noise of each of those releases."""
        budget = self._budget
        if budget.mode == "moment":
            counts = [float(budget.stage_scales(SCORES, 1)[0])] if budget.scores else []
            return [budget.std(n_rows), *counts]
        mean = [budget.mean_sensitivity(n_rows) * budget.multiplier] if budget.center else []
        return [budget.std(n_rows)] * budget.n_steps + mean


def play_worlds(
    score: Callable[[int], float], n_runs: int, on_progress: Progress | None
) -> tuple[Array, Array]:
    """Return the scores of so many runs of world 0 and of world 1, in turn."""
    scores = np.empty((n_runs, 2))
    for run in range(n_runs):
        scores[run] = [score(world) for world in (0, 1)]
        if on_progress and ((run + 1) % _PROGRESS_EVERY == 0 or run + 1 == n_runs):
            on_progress(run + 1, n_runs)
    return scores[:, 0], scores[:, 1]


def _numbers(answer: LocalSteps) -> Array:
    """Return all that left with one product."""
    trace = [] if answer.total_variance is None else [answer.total_variance]
    return np.append(answer.product, trace)


def _questions(study: Study) -> list[Question]:
    """Return what is asked: the whole moment, or T products with turns of the worst plane."""
    mean: list[Question] = [AskMean()] if study.center else []
    if study.noise == "moment":
        whole = AskSteps(basis=read_only(np.eye(study.n_features)), n_local_steps=1)
        return [whole, *mean, *([_scores(study)] if study.scores else [])]
    bases = []
    for step in range(study.n_steps or 0):
        angle = step / (study.n_steps or 1)  # radians: no two turns agree up to sign
        turned = np.eye(study.n_features)
        cos, sin = math.cos(angle), math.sin(angle)
        turned[:2, :2] = [[cos, -sin], [sin, cos]]
        bases.append(turned[:, : study.iteration_rank])
    return [*(AskSteps(basis=read_only(basis), n_local_steps=1) for basis in bases), *mean]


def _scores(study: Study) -> Question:
    """Return a grid in which the two worlds' rows lie in different places."""
    return AskScores(
        axes=read_only(np.eye(study.n_features)[:, :2]),
        offset=read_only(np.zeros(2)),
        reach=read_only(np.ones(2)),
        n_bins=4,
    )


def neighbours(study: Study, n_rows: int) -> tuple[Array, Array]:
    """Return s rows of both worlds: x or y, and the others the same in both."""
    overlap = 0.0
    if study.center:
        overlap = -(MEAN_WEIGHT**2) if study.noise == "moment" else -1 / (4 * (study.n_steps or 1))
    rows = np.tile(np.eye(study.n_features)[0], (n_rows, 1))
    other = rows.copy()
    other[-1, :2] = overlap, math.sqrt(1 - overlap**2)
    return rows, other


def source_of(rows: Array, study: Study, world: int = 0) -> RowSource:
    """Return a source of the rows; where a person is the unit, each is that of a person and repeated."""
    if not study.unit:
        return open_source(rows)
    counts = 1 + np.arange(len(rows)) % 3
    counts[-1] = 4 - world
    persons = np.repeat(np.arange(len(rows)), counts)
    ids = np.empty(len(persons), dtype=object)
    ids[:] = [_spelled(person, row) for row, person in enumerate(persons.tolist())]
    return with_ids(open_source(rows[persons]), ids, study.rows_per_unit)


def _spelled(person: int, row: int) -> int | float | str | Decimal:
    """Return an id in the type and spelling that a row has."""
    return (person, float(person), f"{person}", Decimal(person).quantize(Decimal("0.01")))[row % 4]


def rows_as_held(rows: Array, study: Study, world: int = 0) -> LocalMoment:
    """Return the rows as a silo holds them: read, bounded and summed by the data layer."""
    return local_moment(
        source_of(rows, study, world),
        RowTreatment(row_norm=1.0),
        rank=2,
        steps=10,
        on_lattice=study.noise == "moment",
    )


def budget_for(study: Study) -> Budget:
    """Return the price list of a private study."""
    budget = budget_of(study)
    assert budget is not None, "an audited study is private"
    return budget
