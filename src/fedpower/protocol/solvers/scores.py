"""Where rows lie on the first two components: asked last, once these are known."""

import math
from collections.abc import Generator, Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import fix_signs
from fedpower.privacy.preparation import SCORES
from fedpower.protocol.exchange import Ask, Exchange, Round
from fedpower.protocol.messages import AskScores, Tally, read_only
from fedpower.protocol.prepared_sums import moved_by_a_row, tally_parts
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.score_sums import ScoreCounts
from fedpower.protocol.solvers.shared import Solution
from fedpower.protocol.solvers.sums import Sums
from fedpower.protocol.study import Study
from fedpower.sums.score_counts import MOST_BINS, ScoreQuestion

Array = NDArray[np.float64]

_REACH = 3.0
"""The grid goes so many standard deviations to either side."""

_LEAST_BINS = 4

_CLEAR = 4.0
"""As many standard deviations of its noise a place holds on average that a normal cloud fills."""


def with_scores(solver: Exchange, study: Study) -> Exchange:
    """Return the :class:`Solution` of a solver, with the counts that silos noise by themselves."""
    solution: Solution = yield from solver
    budget = budget_of(study)
    parts = tally_parts(study)
    std = 0.0 if budget is None else budget.stage_scales(SCORES, 1)[0] / parts
    usual = sum(solution.sizes.values()) / len(solution.sizes)
    question = score_question(solution, study, n_rows=usual, std=std)
    opened = yield Ask(
        body=AskScores(
            axes=read_only(question.axes),
            offset=read_only(question.offset),
            reach=read_only(question.reach),
            n_bins=question.n_bins,
        ),
        silos=tuple(solution.sizes),
        step=solution.n_steps + 1,
    )
    opened.notes["change"] = 0.0
    answers: dict[str, Tally] = opened.answers
    return _found(solution, question, {name: each.counts / parts for name, each in answers.items()}, std)


def summed_scores(sums: Sums, solution: Solution) -> Generator[Ask, Round, Solution]:
    """Return the solution with the counts over all silos, which are the study's last secure sum."""
    study = sums.study
    if not study.scores:
        return solution
    parts, n_rows = tally_parts(study), sum(sums.sizes.values())
    moved, per_row = moved_by_a_row(study, SCORES)
    noise = sums.noise(len(study.sums) - 1, sensitivity=moved, per_row=per_row)
    std = noise.std / parts
    question = score_question(solution, study, n_rows=n_rows, std=std)
    public = question.to_bytes()
    found = yield from sums.total(SCORES, public, sensitivity=moved, per_row=per_row)
    return _found(solution, question, {"": found.values[: question.n_bins**2] / parts}, std)


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
    if solution.angles is not None:
        values = solution.angles.variances[:2].copy()
    level = solution.total_variance / len(solution.vectors)
    least = level if math.isfinite(level) and level > 0 else 1.0
    largest = max(float(values.max()), 0.0) or least
    if solution.law is not None:  # what noise leaves of it may be nothing
        return np.maximum(values, min(least, largest))
    return np.maximum(values, 1e-12 * largest)


def _found(solution: Solution, question: ScoreQuestion, counts: Mapping[str, Array], std: float) -> Solution:
    bins = question.n_bins
    made = ScoreCounts(
        reach=question.reach,
        counts={name: each.reshape(bins, bins) for name, each in counts.items()},
        noise_std=std,
    )
    return replace(solution, scores=made)
