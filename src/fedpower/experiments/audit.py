"""Does a silo keep its promise? Two neighbouring worlds, real silos, and how well answers separate them."""

import math
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from decimal import Decimal
from typing import Any, Literal

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betaincinv, ndtri

from fedpower.engines.inprocess import run_in_process
from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.privacy.accounting import NoiseMode, epsilon_of, mu_of, noise_multiplier
from fedpower.privacy.budget import COVARIANCE, PRODUCT, QueryTerms
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments, SystemNoise
from fedpower.privacy.sensitivity import MEAN_WEIGHT, Noise
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.messages import (
    AskMoment,
    AskQuery,
    AskSteps,
    LocalSteps,
    Message,
    MomentPart,
    QueryAnswer,
    Question,
    read_only,
)
from fedpower.protocol.query import Product, Query, ScoreCounts, Step, Tally, moment_of, vectors_to_bytes
from fedpower.protocol.secure import Identity, total
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import PREPARED, Study
from fedpower.rows.opening import open_source
from fedpower.rows.units import with_ids
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import ClippedQuestion
from fedpower.sums.local import local_moment
from fedpower.sums.survey import STAGES, Rows, ScoreQuestion, Stage, Survey

Progress = Callable[[int], None]
"""Called with how many more runs were played."""

_Mode = NoiseMode | Literal["secure", "prepared", "clipped", "scores"]
"""A noise mode; ``secure``: the noise of `covariance` that silos of a secure sum share; ``prepared``:
private preparation and the covariance after it; ``clipped``: clipped products; or ``scores``: the covariance
and the counts of scores after it.
"""

AUDITED_SHARES = (0.15, 0.15, 0.1, 0.3, 0.2)
AUDITED_SCORES = 0.5
"""Shares of preparation and of scores under audit: far more than in a fit, so that any error shows."""

CLIP, WIDTH = 0.25, 2
"""α and the width of every clipped product."""

_BOUND = 0.5  # of the prepared covariance that is asked for: every row is longer
_AUDITED, _HONEST, _COLLUDER, _RUN = "audited", "honest", "colluder", "audit"
_N_THRESHOLDS = 200

# --- bounds from scores ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditReport:
    """What an audit of one noise mode found; bounds hold with probability `confidence` over the runs."""

    epsilon_lower: float
    mu_lower: float
    n_runs: int
    delta: float
    confidence: float
    mode: _Mode
    center: bool
    n_steps: int
    n_rows: int
    noise_factor: float
    claimed_epsilon: float
    exact_epsilon: float
    reachable_epsilon: float
    seconds: float
    unit: Literal["row", "person"] = "row"

    @property
    def violation(self) -> bool:
        return self.epsilon_lower > self.claimed_epsilon

    @property
    def exceeds_accounting(self) -> bool:
        """Whether more was lost than exact accounting of the product's own noise allows."""
        return self.epsilon_lower > self.exact_epsilon

    def as_dict(self) -> dict[str, Any]:
        more = ("violation", "exceeds_accounting", "verdict")
        return asdict(self) | {name: getattr(self, name) for name in more}

    @property
    def verdict(self) -> str:
        return "VIOLATION" if self.violation else "no violation found"


def audit_scores(scores0: ArrayLike, scores1: ArrayLike, *, confidence: float = 0.95) -> float:
    """Return the lower bound of μ that scores in both worlds show."""
    worlds = [np.asarray(scores, dtype=np.float64).ravel() for scores in (scores0, scores1)]
    n = min(world.size for world in worlds)
    if n < 20 or not all(np.isfinite(world).all() for world in worlds):
        raise InputError(f"an audit must have 20 finite scores of each data set, got {n}; run it longer")
    require(0 < confidence < 1, "confidence", "between 0 and 1", confidence, "use 0.95")
    # One half of the runs chooses the threshold, the other is counted: a bound must not be tuned.
    tuning = [np.sort(world[: n // 2]) for world in worlds]
    counted = [np.sort(world[n // 2 :]) for world in worlds]
    thresholds = np.quantile(np.concatenate(tuning), np.linspace(0, 1, _N_THRESHOLDS + 2)[1:-1])
    best = int(np.argmax(_mu_bounds(tuning, thresholds, confidence)))
    return max(0.0, float(_mu_bounds(counted, thresholds[[best]], confidence)[0]))


def _mu_bounds(worlds: list[Array], thresholds: Array, confidence: float) -> Array:
    """Return by threshold a lower bound of μ, from upper bounds of both rates of errors."""
    level = 1 - (1 - confidence) / 2
    below = [np.searchsorted(world, thresholds, side="right") for world in worlds]
    # False positives are above in world 0, false negatives not above in world 1.
    bounds = []
    for errors, world in zip((worlds[0].size - below[0], below[1]), worlds, strict=True):
        most = np.minimum(errors, world.size - 1)  # all wrong: the bound is 1, set below
        upper = betaincinv(most + 1.0, (world.size - most).astype(np.float64), level)
        bounds.append(np.where(errors == world.size, 1.0, upper))
    return np.asarray(-ndtri(bounds[0]) - ndtri(bounds[1]))


# --- the game --------------------------------------------------------------------------------------


class Game:
    """Both worlds of a study, the queries that are asked of each, and how answers are scored.

    In a secure sum of three silos, one reveals its noise. ``pair`` has the row in question in either world.
    """

    def __init__(
        self,
        study: Study,
        n_rows: int,
        source: NoiseSource,
        *,
        is_secure: bool = False,
        pair: tuple[Array, Array] | None = None,
    ) -> None:
        self._names = (_AUDITED, _HONEST, _COLLUDER) if is_secure else (_AUDITED,)
        self._keys = {name: Identity.new() for name in self._names} if is_secure else {}
        self.study = study
        if is_secure:
            identities = tuple((name, key.public) for name, key in self._keys.items())
            self.study = replace(
                study, aggregation="secure", colluders=1, identities=identities, min_silos=len(identities)
            )
        self._source = source
        self._played = 0
        n_silos = len(self._names)
        self.asked = _asked(self.study, n_rows)
        self._worlds = [
            _as_held(rows, self.study, world) for world, rows in enumerate(_neighbours(study, n_rows, pair))
        ]
        self.noises = [
            self.study.budget.noise(query.label, query.sensitivity, (n_rows,) * n_silos)
            for _, query in self.asked
        ]
        self.weights, self.mus = [], []
        for (_, query), noise in zip(self.asked, self.noises, strict=True):
            lengths = [group.length for group in noise.sensitivity.groups]
            # The colluder's noise is subtracted: that of the others is left.
            std = np.repeat(noise.stds, lengths) * math.sqrt(max(1, n_silos - 1) / n_silos)
            before, after = (
                noise.values(noise.bounded(query.evaluate(rows, noise.exponents), rows.n_rows))
                for rows in self._worlds
            )
            self.weights.append((after - before) / std**2)
            self.mus.append(float(np.linalg.norm((after - before) / std)))
        self.mu = math.hypot(*self.mus)

    def play(self, n_runs: int, on_progress: Progress | None = None) -> tuple[Array, Array]:
        scores = np.empty((n_runs, 2))
        for run in range(n_runs):
            for world in (0, 1):
                pairs = zip(self.weights, self._seen(world), strict=True)
                scores[run, world] = sum(float(weight @ values) for weight, values in pairs)
            if on_progress:
                on_progress(2)
        return scores[:, 0], scores[:, 1]

    def _seen(self, world: int) -> list[Array]:
        """Return what the attacker reads of a run: each sum of answers, less what the colluder added."""
        self._played += 1
        others = self._worlds[0]  # rows that the attacker knows
        with ExitStack() as stack:
            silos = {}
            for name in self._names:  # fresh silos with fresh ledgers
                rows = self._worlds[world] if name == _AUDITED else others
                source = SeededNoiseForExperiments(self._played) if name == _COLLUDER else self._source
                made = Ledger.in_memory(self.study.epsilon, self.study.delta, silo=name)
                ledger, identity = stack.enter_context(made), self._keys.get(name)
                silos[name] = assemble(
                    name, rows, self.study, ledger=ledger, identity=identity, source=source
                )
            if not self._keys:
                facts: dict[str, Any] = {"study": self.study.digest, "run": _RUN, "silo": _AUDITED}
                messages = [Message(**facts, round=n, body=body) for n, (body, _) in enumerate(self.asked)]
                answers = [silos[_AUDITED].answer(message).body for message in messages]
                return [_numbers(*pair) for pair in zip(answers, self.noises, strict=True)]
            solver = start(SolverSettings(study=self.study, rank=1), np.random.default_rng(0), _RUN)
            coordinator = Coordinator(solver, self._names, study=self.study, run=_RUN)
            run_in_process(coordinator, silos, n_jobs=1)
        seen, known = [], SeededNoiseForExperiments(self._played)  # the colluder reveals its seed
        rounds = coordinator.history[-len(self.asked) :]
        for (_, query), noise, closed in zip(self.asked, self.noises, rounds, strict=True):
            colluder = query.evaluate(others, noise.exponents) + noise.draw(known)
            uploads = [answer.words for answer in closed.answers.values()]
            seen.append(noise.values(total(uploads) - colluder))
        return seen


def _numbers(answer: object, noise: Noise) -> Array:
    if isinstance(answer, QueryAnswer):
        return noise.values(answer.words.view(np.int64))
    if isinstance(answer, LocalSteps):
        trace = [] if answer.total_variance is None else [answer.total_variance]
        return np.append(answer.product, trace)
    if isinstance(answer, MomentPart) and answer.mean is not None:
        return answer.mean
    raise InputError(f"an audited silo must answer, got {answer}; audit a study that the silo agrees to")


# --- what is asked: whatever shows the row in question best ----------------------------------------


def _asked(study: Study, n_rows: int) -> list[tuple[Question, Query]]:
    asked: list[tuple[Question, Query]] = []
    if study.noise in ("step", "paper"):
        for step in range(study.n_steps or 0):
            # Radians: no two turns agree up to sign.
            basis = _in_plane(study.n_features, study.iteration_rank, step / (study.n_steps or 1))
            query = Step(study=study, n_rows=n_rows, basis=basis)
            asked.append((AskSteps(basis=basis, n_local_steps=1), query))
        mean = AskMoment(label="mean"), Step(study=study, n_rows=n_rows)
        return [*asked, mean] if study.center else asked
    for place, terms in enumerate(study.queries):
        found = _query(study, terms.label, place)
        asked.append((AskQuery(index=place, label=found.label, public=found.public), found))
    return asked


def _query(study: Study, label: str, place: int) -> Query:
    d = study.n_features
    ones = np.ones(d)
    if label == COVARIANCE:
        away = math.sqrt(d) * np.eye(d)[0]
        return moment_of(
            study, vectors_to_bytes((-ones, ones, away, ones), _BOUND) if study.preparation else b""
        )
    if study.design:  # another question of the same plane each time
        return Product(label=label, question=ClippedQuestion.of(_in_plane(d, WIDTH, 0.3 * place), CLIP))
    if label in STAGES:
        given: dict[str, Any] = {} if label == "octaves" else {"low": -ones, "high": ones}
        given |= {"offset": ones} if label in ("zoom", "norms") else {}
        given |= {"scale": ones} if label == "norms" else {}
        stage = Stage(kind=label, n_features=d, open_columns=np.arange(d), **given)
        return Tally(stage=stage, per_unit=study.counted_per_unit)
    # Scores: the two worlds' rows are in different cells of the grid.
    grid = ScoreQuestion(axes=np.eye(d, 2), offset=np.zeros(2), reach=np.ones(2), n_bins=4)
    return ScoreCounts(question=grid, per_unit=study.counted_per_unit)


def _in_plane(n_features: int, width: int, angle: float) -> Array:
    """Return the first axes, of which two are turned in their plane."""
    basis = np.eye(n_features)
    basis[:2, :2] = [[math.cos(angle), -math.sin(angle)], [math.sin(angle), math.cos(angle)]]
    return read_only(basis[:, :width])


# --- the rows of both worlds -----------------------------------------------------------------------


def _neighbours(study: Study, n_rows: int, pair: tuple[Array, Array] | None) -> tuple[Array, Array]:
    """Return s rows of both worlds, the last of which differs: by default as far as a row can."""
    unit = np.eye(study.n_features)
    others = np.zeros(study.n_features)  # so that no total is near its limit
    if study.design:
        others = unit[2]
        rest = math.sqrt(1 - CLIP**2) * others
        worst = rest + CLIP * unit[0], rest - CLIP * unit[0]
    elif study.preparation:
        worst = unit.sum(0), -unit.sum(0)
    else:
        overlap = 0.0
        if study.center:
            overlap = -(MEAN_WEIGHT**2) if study.noise == "covariance" else -1 / (4 * (study.n_steps or 1))
        worst = unit[0], overlap * unit[0] + math.sqrt(1 - overlap**2) * unit[1]
    before, after = (np.vstack([np.tile(others, (n_rows - 1, 1)), row]) for row in pair or worst)
    return before, after


def _as_held(rows: Array, study: Study, world: int) -> Rows:
    """Return rows as a silo holds them in any fit; a person, where that is the unit, has several rows."""
    source = open_source(rows)
    if study.unit:
        counts = 1 + np.arange(len(rows)) % 3
        counts[-1] = 4 - world
        persons = np.repeat(np.arange(len(rows)), counts)
        ids = np.empty(len(persons), dtype=object)
        # Each row spells its person's id in another type, which must not make them two.
        ids[:] = [
            (person, float(person), f"{person}", Decimal(person).quantize(Decimal("0.01")))[row % 4]
            for row, person in enumerate(persons.tolist())
        ]
        source = with_ids(open_source(rows[persons]), ids, study.rows_per_unit)
    if study.preparation:
        return Survey(source)
    return local_moment(
        source,
        RowTreatment(row_norm=1.0),
        rank=WIDTH,
        steps=10,
        on_lattice=study.noise == "covariance",
        rereads=bool(study.design),
    )


# --- an audit --------------------------------------------------------------------------------------


def audit_mode(
    mode: _Mode,
    *,
    epsilon: float,
    delta: float,
    n_runs: int,
    n_rows: int = 50,
    n_features: int = 3,
    n_steps: int = 10,
    iteration_rank: int = 2,
    center: bool = False,
    noise_factor: float = 1.0,
    source: NoiseSource | None = None,
    confidence: float = 0.95,
    on_progress: Progress | None = None,
    unit: Literal["row", "person"] = "row",
) -> AuditReport:
    least = max(2, iteration_rank)
    require(n_features >= least, "n_features", "at least 2 and iteration_rank", n_features, f"use {least}")
    if not (math.isfinite(epsilon) and noise_factor > 0):
        raise InputError("an audit must have noise, got none; use a finite epsilon and noise_factor > 0")
    study = study_of(mode, epsilon, delta, n_steps, n_features, iteration_rank=iteration_rank, center=center)
    if unit == "person":
        study = replace(study, unit="person")
    real = epsilon
    if noise_factor != 1 and mode != "paper":
        real = epsilon_of(mu_of(epsilon, delta) / noise_factor, delta)
    elif noise_factor != 1:
        level = noise_factor * noise_multiplier("paper", epsilon=epsilon, delta=delta, n_steps=n_steps)
        real = max(n_steps / level**2, 2 * math.sqrt(2 * n_steps * math.log(1 / delta)) / level)
    is_secure = mode == "secure"
    game = Game(replace(study, epsilon=real), n_rows, source or SystemNoise(), is_secure=is_secure)
    promised = replace(game.study, epsilon=epsilon).budget
    started = time.perf_counter()
    mu_lower = audit_scores(*game.play(n_runs, on_progress), confidence=confidence)
    return AuditReport(
        epsilon_lower=epsilon_of(mu_lower, delta),
        mu_lower=mu_lower,
        n_runs=n_runs,
        delta=delta,
        confidence=confidence,
        mode=mode,
        center=center,
        n_steps=n_steps if mode in ("step", "paper", "clipped") else 1,
        n_rows=n_rows,
        noise_factor=noise_factor,
        claimed_epsilon=epsilon,
        exact_epsilon=epsilon_of(promised.study_mu, promised.left_delta),
        reachable_epsilon=epsilon_of(game.mu, promised.left_delta),
        seconds=time.perf_counter() - started,
        unit=unit,
    )


def control_factor(mode: _Mode, *, epsilon: float, delta: float, n_steps: int) -> float:
    """Return how much of its noise a control keeps, to be wrong for certain: half of what is needed."""
    if mode != "paper":
        return 0.5
    return 0.5 * study_of(mode, epsilon, delta, n_steps).budget.study_mu / mu_of(epsilon, delta)


def study_of(
    mode: _Mode,
    epsilon: float,
    delta: float,
    n_steps: int,
    n_features: int = 3,
    *,
    iteration_rank: int = 2,
    center: bool = False,
) -> Study:
    terms: dict[str, Any] = {"noise": "covariance", "iteration_rank": n_features, "center": center}
    if mode in ("step", "paper"):
        terms |= {"noise": mode, "iteration_rank": iteration_rank, "n_steps": n_steps}
    elif mode == "prepared":
        terms |= {"treatment": PREPARED, "preparation": AUDITED_SHARES, "ranges": (None,) * n_features}
    elif mode == "scores":
        terms |= {"scores": AUDITED_SCORES}
    elif mode == "clipped":
        size = WIDTH * n_features + 1
        design = [QueryTerms(f"{PRODUCT} {step}", size, 1.0 / n_steps) for step in range(1, n_steps + 1)]
        terms |= {"noise": "clipped", "iteration_rank": WIDTH, "design": tuple(design)}
    return Study(columns=None, n_features=n_features, epsilon=epsilon, delta=delta, **terms)
