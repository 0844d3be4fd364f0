"""Sums over silos as a solver asks for them: in plain or in a secure session, noised or exact."""

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import ProtocolError
from fedpower.linalg import Array, fix_signs, symmetric_of
from fedpower.privacy.budget import SCORES
from fedpower.privacy.sensitivity import LEAST_SUMMED, Noise, of_counts
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import (
    AskMoment,
    AskQuery,
    KeyGone,
    Member,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Session,
    SessionKey,
    read_only,
)
from fedpower.protocol.pooled import Pooled, varying
from fedpower.protocol.query import Integers, Query, ScoreCounts, moment_of, tally_parts
from fedpower.protocol.secure import total
from fedpower.protocol.solvers.shared import POOLED, ScoreRecord, Solution, enrol
from fedpower.protocol.study import Study, Weights, masses, pooled_std
from fedpower.sums.lattice import Words
from fedpower.sums.survey import MOST_BINS, SCORE_CELLS, ScoreQuestion

Found = TypeVar("Found")
Moments = tuple[Array, Array | None, float]
"""A moment about its mean, that mean, and the trace."""

MOST_FREE_SESSIONS = 20
"""So many sessions of a run that failed at no cost, and something else is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sum of silos' noised answers to a query, with the noise in each group: all that a solver sees."""

    values: Array
    stds: tuple[float, ...]
    n_rows: int


class _LostError(Exception):
    """A silo of the session did not upload: the attempt is lost."""

    def __init__(self, opened: Round, uploads: Iterable[str]) -> None:
        super().__init__()
        self.opened = opened
        self.uploads = set(uploads)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Asks for the queries of a study, in its order; a script of a solver asks it and nothing else."""

    study: Study
    sizes: dict[str, int]
    """Rows by silo, of those whose numbers are summed: public."""
    session: Session | None = None
    n_done: int = 0
    hides_silos: bool = True
    """Whether every total so far is a function of the exact sum over all silos [proof, section 8]."""

    @property
    def n_rows(self) -> int:
        return sum(self.sizes.values())

    def total(self, query: Query, *, weights: Weights = "rows") -> Generator[Ask, Round, Total]:
        """Return the sum of all answers; a silo that misses one of a plain study is asked nothing more."""
        n_asked = len(self.sizes)
        answers = yield from self.answers(query)
        noises = [noise for _, noise in answers.values() if noise is not None]
        assert len(noises) == len(answers), "only a private study sums answers"
        one_lattice = weights == "rows" and len({noise.exponents for noise in noises}) == 1
        if one_lattice:  # added up in float64, the last digits would depend on single answers
            exact = Words.sum_of(integers for integers, _ in answers.values())
            values = noises[0].values(exact.to_float())
        else:
            mass = masses(self.sizes, weights)
            unit = sum(mass.values()) / self.n_rows
            values = np.zeros(query.sensitivity.size)
            for (name, (integers, _)), noise in zip(answers.items(), noises, strict=True):
                values += mass[name] / (self.sizes[name] * unit) * noise.values(integers)
        is_wide = all(min(noise.scales) >= LEAST_SUMMED for noise in noises)
        self.hides_silos &= one_lattice and is_wide and len(self.sizes) == n_asked
        stds = tuple(math.hypot(*group) for group in zip(*(noise.stds for noise in noises), strict=True))
        return Total(values=values, stds=stds, n_rows=self.n_rows)

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, Pooled]:
        """Return the pooled moment about its mean, of rows treated as ``public`` describes."""
        study, remarks = self.study, []
        if study.is_private:
            query = moment_of(study, public)
            sums = yield from self.total(query, weights=study.weights)
            below, center, trace = query.read(sums.values, self.n_rows)
            covariance = symmetric_of(below, study.n_features)  # about 0
            if center is not None:
                covariance, trace = covariance - np.outer(center, center), trace - float(center @ center)
                center = read_only(center)
        else:
            opened = yield self._ask(AskMoment(label="covariance"))
            answers: dict[str, MomentPart] = opened.answers
            self._close(opened, answers)
            remarks = _copies(answers, self.sizes)
            covariance, center, trace = pool(answers, masses(self.sizes, study.weights), study.n_features)
            if center is not None:
                constant = varying(np.diagonal(covariance), center, self.n_rows) == 0
                covariance = np.where(constant | constant[:, np.newaxis], 0.0, covariance)
        return Pooled(
            covariance=covariance,
            center=center,
            total_variance=trace,
            noise_std=pooled_std(study, self.sizes),
            mean_weight=study.mean_weight,
            remarks=tuple(remarks),
        )

    def answers(self, query: Query) -> Generator[Ask, Round, dict[str, tuple[Integers, Noise | None]]]:
        """Return each silo's answer and its noise; under "" their sum, where only that can be read."""
        words, study = (yield from self._answers(query)), self.study
        sizes: dict[str, tuple[int, ...]] = {name: (size,) for name, size in self.sizes.items()}
        if self.session is not None:
            sizes, words = {"": tuple(self.sizes.values())}, {"": total(words.values()).view(np.uint64)}
        return {
            name: (
                answer.view(np.int64),
                study.budget.noise(query.label, query.sensitivity, sizes[name]) if study.is_private else None,
            )
            for name, answer in words.items()
        }

    def _answers(self, query: Query) -> Generator[Ask, Round, dict[str, NDArray[np.uint64]]]:
        index = [terms.label for terms in self.study.queries].index(query.label)
        assert self.session is None or index == self.n_done, "sums come in the study's order"
        ask = AskQuery(index=index, label=query.label, public=query.public, session=self.session)
        opened = yield self._ask(ask)
        found = {
            name: opened.answers[name].words
            for name in self.sizes
            if isinstance(opened.answers.get(name), QueryAnswer)
        }
        if self.session is not None and len(found) < len(self.sizes):
            raise _LostError(opened, found)
        self._close(opened, found)
        return found

    def _ask(self, body: AskMoment | AskQuery) -> Ask:
        return Ask(body=body, silos=tuple(self.sizes), step=self.n_done + 1)

    def _close(self, opened: Round, answered: Iterable[str]) -> None:
        opened.notes["change"] = 0.0
        self.n_done += 1
        self.sizes = {name: self.sizes[name] for name in answered}


# --- exact covariances ---------------------------------------------------------------------------


def pool(answers: Mapping[str, MomentPart], sizes: Mapping[str, int], n_features: int) -> Moments:
    """Return the pooled covariance of the silos that answered, about the pooled mean."""
    weights = np.array([sizes[name] for name in answers], dtype=np.float64)
    weights /= weights.sum()
    triangle = np.zeros(n_features * (n_features + 1) // 2)
    for weight, answer in zip(weights, answers.values(), strict=True):
        triangle += weight * answer.values
    total_variance = float(weights @ [answer.total_variance for answer in answers.values()])
    covariance = symmetric_of(triangle, n_features)
    means = [answer.mean for answer in answers.values() if answer.mean is not None]
    if len(means) < len(answers):
        return covariance, None, total_variance
    center = weights @ np.array(means)
    shifts = np.array(means) - center
    covariance += (shifts.T * weights) @ shifts
    between = float(weights @ np.einsum("ij,ij->i", shifts, shifts))
    return covariance, read_only(center), total_variance + between


def _copies(answers: Mapping[str, MomentPart], sizes: Mapping[str, int]) -> list[str]:
    """Return a remark for each silo whose exact moment equals another's, unless it is zero."""
    first: dict[tuple[int, bytes], str] = {}
    known = (
        (first.setdefault((sizes[name], answer.values.tobytes()), name), name)
        for name, answer in answers.items()
        if answer.values.any()
    )
    return [same_rows(one, other) for one, other in known if one != other]


def same_rows(one: str, other: str) -> str:
    """Return the remark on two silos that hold the same rows."""
    return f"silos {one!r} and {other!r} hold the same rows, which count twice; leave one out"


# --- sessions ---------------------------------------------------------------------------------------

Script = Callable[[Sums], Generator[Ask, Round, Found]]
"""Asks for the queries of a study one by one; run again in each attempt at a secure sum."""


def summed(study: Study, script: Script[Found], *, run: str = "") -> Generator[Ask, Round, Found]:
    """Return what ``script`` makes of the sums of a study, by the aggregation that it agrees on."""
    enrolled = yield from enrol()
    if study.aggregation == "plain":
        return (yield from script(Sums(study=study, sizes=enrolled)))
    everyone = there = tuple(enrolled)
    attempts = free = 0
    for number in itertools.count():
        called = yield Ask(body=OpenSession(attempt=number), silos=there, step=0)
        session = _session(called.answers, study, run=run, attempt=number)
        if len(session.members) < study.min_silos:
            break
        sums = Sums(study=study, sizes=session.sizes, session=session)
        try:
            return (yield from script(sums))
        except _LostError as lost:
            opened, uploads = lost.opened, lost.uploads
        gone = {name for name, body in opened.answers.items() if isinstance(body, KeyGone)}
        # A silent silo may have uploaded, and been charged.
        if sums.n_done or set(opened.asked) - gone - set(opened.refused):
            attempts += 1
        else:
            free += 1
        if attempts == study.attempts or free == MOST_FREE_SESSIONS:
            break
        there = tuple(name for name in opened.answers if name in uploads | gone)
        if len(there) < study.min_silos:
            there = everyone
    raise ProtocolError(
        f"a secure sum must have uploads of {study.min_silos} silos within {study.attempts} attempts, got "
        "fewer; reconnect the others, or agree on a smaller min_silos"
    )


def _session(answers: dict[str, SessionKey], study: Study, *, run: str, attempt: int) -> Session:
    """Return the session of those who can be charged once more; their signatures are checked already."""
    members = tuple(
        Member(silo=name, n_rows=answer.n_rows, key=answer.key, signature=answer.signature)
        for name, answer in ((name, answers.get(name)) for name, _ in study.identities)
        if answer is not None and answer.charged < study.attempts
    )
    return Session(study=study.digest, run=run, attempt=attempt, members=members)


# --- where rows are on the first two components: counted last ----------------------------------------

_REACH = 3.0  # standard deviations that the grid goes to either side
_LEAST_BINS = 4
_CLEAR = 4.0  # standard deviations of its noise that a place holds on average, of those a normal cloud fills


def with_scores(solver: Exchange, study: Study) -> Exchange:
    """Return the :class:`Solution` of a solver that does not sum, with the counts of each silo."""
    solution: Solution = yield from solver
    sums = Sums(study=study, sizes=dict(solution.sizes), n_done=solution.n_steps)
    return (yield from counted_scores(sums, solution))


def counted_scores(sums: Sums, solution: Solution) -> Generator[Ask, Round, Solution]:
    """Return the solution with the counts of its scores, which are the study's last query, if it has one."""
    study = sums.study
    if not study.scores:
        return solution
    parts, sizes, std = tally_parts(study), tuple(sums.sizes.values()), 0.0
    # The grid is over the counts that can be read: of the sum, or of one silo.
    read = sizes if sums.session is not None else sizes[:1]
    if study.is_private:
        change = of_counts(SCORE_CELLS, per_unit=study.counted_per_unit)
        std = study.budget.noise(SCORES, change, read).stds[0] / parts
    usual = sum(sizes) * len(read) / len(sizes)
    question = score_question(solution, study, n_rows=usual, std=std)
    answers = yield from sums.answers(ScoreCounts(question=question, per_unit=study.counted_per_unit))
    counts, bins = {}, question.n_bins
    for name, (integers, noise) in answers.items():
        values = integers.astype(np.float64) if noise is None else noise.values(integers)
        counts[name or POOLED] = (values[: bins**2].reshape(bins, bins) / parts).tolist()
    reach: tuple[float, float] = tuple(question.reach.tolist())
    return replace(solution, scores=ScoreRecord(reach=reach, counts=counts, noise_std=std))


def score_question(solution: Solution, study: Study, *, n_rows: float, std: float) -> ScoreQuestion:
    """Return the axes of the first two components and a grid over the scores on them."""
    axes = fix_signs(solution.vectors[:, :2])
    if solution.gains is not None:
        axes = axes * solution.gains[:, np.newaxis]
    offset = np.zeros(2) if solution.center is None else solution.center @ axes
    book = solution.code_book
    if study.preparation:
        assert book is not None, "a run that prepares rows finds a code book"
        axes = axes / (book.scale * book.bound)[:, np.newaxis]
        offset = offset + book.offset @ axes
    reach = _REACH * np.sqrt(_variances(solution))
    if study.is_private:
        # So that the last bits of an eigendecomposition do not make it another question.
        axes, offset, reach = (each.astype(np.float32).astype(np.float64) for each in (axes, offset, reach))
    return ScoreQuestion(axes=axes, offset=offset, reach=reach, n_bins=bins_for(n_rows, std))


def bins_for(n_rows: float, std: float) -> int:
    """Return how many bins a side has, from public facts."""
    most = math.sqrt(_REACH**2 * n_rows / (math.pi * _CLEAR * max(std, 1.0)))
    return min(MOST_BINS, max(_LEAST_BINS, 2 * int(most / 2)))


def _variances(solution: Solution) -> Array:
    """Return the variances of the two scores as far as they are known; positive."""
    values = np.array(solution.values[:2], dtype=np.float64)
    if solution.directions is not None:
        values = solution.directions.variances[:2].copy()
    level = solution.total_variance / len(solution.vectors)
    least = level if math.isfinite(level) and level > 0 else 1.0
    largest = max(float(values.max()), 0.0) or least
    if solution.law is not None:  # what noise leaves of it may be nothing
        return np.maximum(values, min(least, largest))
    return np.maximum(values, 1e-12 * largest)
