"""The distinguishing game over any queries: two neighbouring worlds, real silos, scored answers."""

import math
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from decimal import Decimal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.privacy.budget import Budget
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments
from fedpower.privacy.sensitivity import MEAN_WEIGHT, Noise
from fedpower.protocol.coordinator import Coordinator, drive, in_turn
from fedpower.protocol.messages import (
    AskMean,
    AskQuery,
    AskSteps,
    LocalSteps,
    MeanRow,
    Message,
    QueryAnswer,
    Question,
    read_only,
)
from fedpower.protocol.query import (
    Product,
    Query,
    Rows,
    ScoreCounts,
    StepMean,
    StepProduct,
    Tally,
    moment_of,
    vectors_to_bytes,
)
from fedpower.protocol.secure import Identity, total
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.solvers.upload import SecureSettings, secure
from fedpower.protocol.study import Study, budget_of
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import with_ids
from fedpower.sums.clipped_product import ClippedQuestion
from fedpower.sums.local import LocalMoment, local_moment
from fedpower.sums.score_counts import ScoreQuestion
from fedpower.sums.survey import STAGES, Stage, Survey

Array = NDArray[np.float64]
Progress = Callable[[int, int], None]
"""Called with the runs played and the runs to play."""

SILO, HONEST, COLLUDER = "audited", "honest", "colluder"
RUN = "audit"
_PROGRESS_EVERY = 50

BOUND = 0.5
"""B of the prepared moment that is asked for: every row is longer."""

CLIP, WIDTH = 0.25, 2
"""α and the width of every clipped product."""


class Game:
    """Both worlds of a study, the queries that are asked of each, and how answers are scored."""

    def __init__(
        self,
        study: Study,
        n_rows: int,
        source: NoiseSource,
        *,
        pair: tuple[Array, Array] | None = None,
        long: bool = False,
    ) -> None:
        self._study = study
        self._budget = budget_for(study)
        self._source = source
        self._asked = _asked(study, self._budget, n_rows)
        rows = _clipped_neighbours(study.n_features, n_rows, long=long) if study.design else None
        held = rows or neighbours(study, n_rows, pair)
        self._worlds = [rows_as_held(each, study, world) for world, each in enumerate(held)]
        self._noises = [
            self._budget.noise(query.label, query.sensitivity, (n_rows,)) for _, query in self._asked
        ]
        apart = [
            _apart(query, noise, *self._worlds)
            for (_, query), noise in zip(self._asked, self._noises, strict=True)
        ]
        stds = [_spread(noise) for noise in self._noises]
        self.weights = [moved / std**2 for moved, std in zip(apart, stds, strict=True)]
        self.mus = [float(np.linalg.norm(moved / std)) for moved, std in zip(apart, stds, strict=True)]
        self.mu = math.hypot(*self.mus)

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        """Return the score of one run: a fresh silo and a fresh ledger, asked everything once."""
        budget, study = self._budget, self._study
        with Ledger.in_memory(budget.epsilon, budget.delta, silo=SILO) as ledger:
            silo = assemble(SILO, self._worlds[world], study, ledger=ledger, source=self._source)
            score = 0.0
            for place, ((body, _), noise) in enumerate(zip(self._asked, self._noises, strict=True)):
                message = Message(study=study.digest, run=RUN, round=place, silo=SILO, body=body)
                score += float(self.weights[place] @ _seen(silo.answer(message).body, noise))
        return score


class SecureGame:
    """Both worlds of the audited silo in a secure sum: a coordinator's view, helped by a colluding silo."""

    def __init__(self, study: Study, n_rows: int, source: NoiseSource) -> None:
        self._study, self._keys = secured(study)
        self._budget = budget_for(self._study)
        self._source = source
        self._query = moment_of(self._study)
        sizes = (n_rows,) * len(self._keys)
        self._noise = self._budget.noise(self._query.label, self._query.sensitivity, sizes)
        before, after = (
            rows_as_held(rows, study, world) for world, rows in enumerate(neighbours(study, n_rows))
        )
        self._worlds = (before, after)
        self._others = before  # rows that the attacker knows
        honest = len(self._keys) - 1
        std = _spread(self._noise) * math.sqrt(honest / len(self._keys))
        moved = _apart(self._query, self._noise, before, after)
        self._weights = moved / std**2
        self.mu = float(np.linalg.norm(moved / std))
        self._played = 0

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        """Return the score of one run of the whole protocol, with fresh silos, keys and ledgers."""
        self._played += 1
        held = {SILO: self._worlds[world], HONEST: self._others, COLLUDER: self._others}
        known = self._played  # the colluder's noise, which it tells the coordinator
        settings = SecureSettings(study=self._study, rank=1, run=RUN)
        with ExitStack() as stack:
            silos = {name: self._silo(name, rows, known, stack) for name, rows in held.items()}
            coordinator = Coordinator(
                secure(settings, np.random.default_rng(0)), list(silos), study=self._study, run=RUN
            )
            drive(coordinator, in_turn(silos))
        uploads = [answer.words for answer in coordinator.history[-1].answers.values()]
        told = self._query.evaluate(self._others, self._noise.exponents)
        told = told + self._noise.draw(SeededNoiseForExperiments(known))
        return float(self._weights @ self._noise.values(total(uploads) - told))

    def _silo(self, name: str, rows: "LocalMoment | Survey", known: int, stack: ExitStack) -> Silo:
        budget = self._budget
        ledger = Ledger.in_memory(budget.epsilon, budget.delta, silo=name)
        return assemble(
            name,
            rows,
            self._study,
            ledger=stack.enter_context(ledger),
            identity=self._keys[name],
            source=SeededNoiseForExperiments(known) if name == COLLUDER else self._source,
        )


def secured(study: Study) -> tuple[Study, dict[str, Identity]]:
    """Return a moment study as that of a secure sum over three silos, of which one colludes."""
    keys = {name: Identity.new() for name in (SILO, HONEST, COLLUDER)}
    terms = replace(
        study,
        aggregation="secure",
        colluders=1,
        identities=tuple((name, key.public) for name, key in keys.items()),
        min_silos=len(keys),
    )
    return terms, keys


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


def _spread(noise: Noise) -> Array:
    """Return the standard deviation of the noise in each number."""
    return np.repeat(noise.stds, [group.length for group in noise.sensitivity.groups])


def _apart(query: Query, noise: Noise, before: "Rows | Survey", after: "Rows | Survey") -> Array:
    """Return by how much the answers of both worlds differ before noise is added."""
    one, other = (
        noise.values(noise.bounded(query.evaluate(rows, noise.exponents), rows.n_rows))
        for rows in (before, after)
    )
    return other - one


def _seen(answer: object, noise: Noise) -> Array:
    """Return the numbers of an answer."""
    if isinstance(answer, QueryAnswer):
        return noise.values(answer.words.view(np.int64))
    if isinstance(answer, LocalSteps):
        trace = [] if answer.total_variance is None else [answer.total_variance]
        return np.append(answer.product, trace)
    if isinstance(answer, MeanRow):
        return answer.mean
    raise InputError(f"an audited silo must answer, got {answer}; audit a study that it agrees to")


def _asked(study: Study, budget: Budget, n_rows: int) -> list[tuple[Question, Query]]:
    """Return what is asked, as messages and as the queries that these ask."""
    if study.noise in ("step", "paper"):
        steps = [_turned(study, step) for step in range(study.n_steps or 0)]
        products: list[tuple[Question, Query]] = [
            (
                AskSteps(basis=basis, n_local_steps=1),
                StepProduct(budget=budget, n_rows=n_rows, basis=basis, center=None, public=b""),
            )
            for basis in steps
        ]
        mean: list[tuple[Question, Query]] = [(AskMean(), StepMean(budget=budget, n_rows=n_rows))]
        return [*products, *(mean if study.center else [])]
    queries: list[Query] = []
    for terms in study.queries:
        if terms.label in STAGES or terms.label == "moment":
            queries.append(_prepared(study, terms.label))
        elif study.design:
            queries.append(Product(label=terms.label, question=_plane(study.n_features, len(queries))))
        else:
            queries.append(ScoreCounts(question=_grid(study), per_unit=study.counted_per_unit))
    return [
        (AskQuery(index=index, label=query.label, public=query.public), query)
        for index, query in enumerate(queries)
    ]


def _prepared(study: Study, label: str) -> Query:
    """Return a stage of preparation, or the moment, that shows the row in question as far as can be."""
    d = study.n_features
    ones, away = np.ones(d), np.zeros(d)
    away[0] = math.sqrt(d)
    if label == "moment":
        public = vectors_to_bytes((-ones, ones, away, ones), BOUND) if study.preparation else b""
        return moment_of(study, public)
    stage = Stage(kind="octaves", n_features=d, open_columns=np.arange(d))
    given = {
        "octaves": stage,
        "bins": replace(stage, kind="bins", low=-ones, high=ones),
        "zoom": replace(stage, kind="zoom", low=-ones, high=ones, offset=ones),
        "means": replace(stage, kind="means", low=-ones, high=ones),
        "norms": replace(stage, kind="norms", low=-ones, high=ones, offset=ones, scale=ones),
    }
    return Tally(stage=given[label], per_unit=study.counted_per_unit)


def _turned(study: Study, step: int) -> Array:
    """Return a turn of the worst plane."""
    angle = step / (study.n_steps or 1)  # radians: no two turns agree up to sign
    turned = np.eye(study.n_features)
    cos, sin = math.cos(angle), math.sin(angle)
    turned[:2, :2] = [[cos, -sin], [sin, cos]]
    return read_only(turned[:, : study.iteration_rank])


def _plane(n_features: int, place: int) -> ClippedQuestion:
    """Return a turn of the plane of e₁ and e₂: another question of the same plane."""
    angle = 0.3 * place
    basis = np.zeros((n_features, WIDTH))
    basis[:2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    return ClippedQuestion.of(basis, CLIP)


def _grid(study: Study) -> ScoreQuestion:
    """Return a grid in which the two worlds' rows lie in different places."""
    axes = np.eye(study.n_features)[:, :2].copy()
    return ScoreQuestion(axes=axes, offset=np.zeros(2), reach=np.ones(2), n_bins=4)


def _clipped_neighbours(n_features: int, n_rows: int, *, long: bool) -> tuple[Array, Array]:
    rows = np.tile(np.eye(n_features)[2], (n_rows, 1))
    other = rows.copy()
    if long:
        rows[-1], other[-1] = np.eye(n_features)[0], np.eye(n_features)[1]
        return rows, other
    rows[-1, 2] = other[-1, 2] = math.sqrt(1 - CLIP**2)
    rows[-1, 0], other[-1, 0] = CLIP, -CLIP
    return rows, other


def neighbours(study: Study, n_rows: int, pair: tuple[Array, Array] | None = None) -> tuple[Array, Array]:
    """Return s rows of both worlds: x or y, and zeros in both, so that no total is near its limit."""
    rows = np.zeros((n_rows, study.n_features))
    if study.preparation:
        ones = np.ones(study.n_features)
        other = rows.copy()
        rows[-1], other[-1] = pair or (ones, -ones)
        return rows, other
    overlap = 0.0
    if study.center:
        overlap = -(MEAN_WEIGHT**2) if study.noise == "moment" else -1 / (4 * (study.n_steps or 1))
    rows[-1, 0] = 1.0
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


def rows_as_held(rows: Array, study: Study, world: int = 0) -> LocalMoment | Survey:
    """Return the rows as a silo holds them: read, bounded and summed by the data layer."""
    source = source_of(rows, study, world)
    if study.preparation:
        return Survey(source)
    return local_moment(
        source,
        RowTreatment(row_norm=1.0),
        rank=WIDTH,
        steps=10,
        on_lattice=study.noise == "moment",
        rereads=bool(study.design),
    )


def budget_for(study: Study) -> Budget:
    """Return the price list of a private study."""
    budget = budget_of(study)
    assert budget is not None, "an audited study is private"
    return budget
