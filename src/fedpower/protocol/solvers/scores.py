"""Where rows are on the first two components: counted last, once these are known."""

import math
from collections.abc import Generator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import fix_signs
from fedpower.privacy.budget import SCORES
from fedpower.privacy.sensitivity import of_counts
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.query import ScoreCounts, tally_parts
from fedpower.protocol.solvers.shared import CountedScores, Solution
from fedpower.protocol.solvers.sums import Sums
from fedpower.protocol.study import Study, budget_of
from fedpower.sums.survey import MOST_BINS, SCORE_CELLS, ScoreQuestion

Array = NDArray[np.float64]

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
    study, budget = sums.study, budget_of(sums.study)
    if not study.scores:
        return solution
    parts, sizes, std = tally_parts(study), tuple(sums.sizes.values()), 0.0
    # The grid is over the counts that can be read: of the sum, or of one silo.
    read = sizes if sums.session is not None else sizes[:1]
    if budget is not None:
        moved = of_counts(SCORE_CELLS, per_unit=study.counted_per_unit)
        std = budget.noise(SCORES, moved, read).stds[0] / parts
    usual = sum(sizes) * len(read) / len(sizes)
    question = score_question(solution, study, n_rows=usual, std=std)
    found = yield from sums.total(ScoreCounts(question=question, per_unit=study.counted_per_unit))
    bins = question.n_bins
    counts = {name: each[: bins**2].reshape(bins, bins) / parts for name, each in found.by_silo.items()}
    return replace(solution, scores=CountedScores(reach=question.reach, counts=counts, noise_std=std))


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
