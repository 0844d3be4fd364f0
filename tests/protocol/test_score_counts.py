"""Counts of rows by their scores: what a silo lets out of them, and what it costs."""

import math

import numpy as np
import pytest
from msgspec.structs import replace
from private_silos import ask_in_bytes as ask
from private_silos import message, private_study, refused

from budgets import priced
from federations import ASK_MOMENT
from fedpower.exceptions import InputError
from fedpower.privacy.budget import SCORES, scores_share
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.messages import AskQuery, QueryAnswer
from fedpower.protocol.receiving import problem_with
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers.sums import bins_for
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import local_moment
from fedpower.sums.survey import MOST_BINS, SCORE_CELLS, ScoreQuestion, count_scores

D = 4
RULE = RowTreatment(row_norm=5.0)
SHARE = scores_share(0.3, 1.0, 1e-6)


def study(**changed):
    return private_study(D, **{"treatment": RULE.digest(), "scores": SHARE} | changed)


def rows(n=500, seed=0):
    return np.random.default_rng(seed).standard_normal((n, D))


def silo(agreed, ledger, seed=1, X=None):
    on_lattice = agreed.noise == "covariance"
    read = local_moment(
        open_source(rows() if X is None else X), RULE, rank=D, steps=1, on_lattice=on_lattice, rereads=True
    )
    source = SeededNoiseForExperiments(seed) if agreed.is_private else None
    return assemble("north", read, agreed, ledger=ledger, source=source)


def question(**changed):
    """The question, its grid as it is and not checked."""
    terms = {"axes": np.eye(D)[:, :2], "offset": np.zeros(2), "reach": np.full(2, 0.6), "n_bins": 6}
    return AskQuery(index=1, label=SCORES, public=ScoreQuestion(**{**terms, **changed}).to_bytes())


def read(asked):
    return ScoreQuestion.from_bytes(asked.public, D)


def test_moment_and_scores_spend_the_studys_epsilon_together_and_no_other_question_is_answered():
    agreed, alone = study(), study(scores=0.0)
    assert agreed.digest != alone.digest
    assert agreed.moment_terms != alone.moment_terms  # its moment has less noise
    with Ledger.in_memory(9.0, 1e-6, silo="north") as ledger:
        party = silo(agreed, ledger)
        assert isinstance(ask(party, ASK_MOMENT), QueryAnswer)
        before = ledger.spent()
        assert before.epsilon < 1.0
        assert isinstance(ask(party, question()), QueryAnswer)
        spent = ledger.spent()
        assert spent.epsilon == pytest.approx(1.0, rel=1e-5)
        assert spent.epsilon <= 1.0 * (1 + 1e-9)
        alone = math.sqrt(spent.mu**2 - before.mu**2)
        assert alone == pytest.approx(agreed.budget.mu(SCORES), rel=1e-9)
        assert [entry.purpose for entry in ledger.entries()][-1] == SCORES
        assert refused(ask(party, question(reach=np.full(2, 0.7))), "its agreed epsilon")
        assert ledger.spent().n_releases == 2


def test_counts_have_noise_of_the_right_size_and_are_otherwise_exact():
    """36·40 draws: their spread is off by 8% with a chance below 1e-4."""
    agreed, X, off = study(), rows(), []
    exact = count_scores(open_source(X), RULE, read(question()))
    for seed in range(40):
        with Ledger.in_memory(1.0, 1e-6, silo="north") as fresh:
            answer = ask(silo(agreed, fresh, seed, X), question())
            off.append(answer.words.view(np.int64)[:36] - exact)
    scale = math.sqrt(2) / agreed.budget.mu(SCORES)
    assert np.std(off) == pytest.approx(scale, rel=0.08)
    assert abs(np.mean(off)) < 5 * scale / math.sqrt(np.size(off))


def test_exact_counts_are_those_of_numpy_and_huge_numbers_are_counted_like_others():
    X = rows(777, 3)
    asked = ScoreQuestion(
        axes=np.random.default_rng(1).standard_normal((D, 2)),
        offset=np.array([0.3, -0.2]),
        reach=np.array([2.0, 1.0]),
        n_bins=MOST_BINS,
    )
    scores = X / 5.0 @ asked.axes - asked.offset
    inside = [np.clip(scores[:, axis], -asked.reach[axis], asked.reach[axis]) for axis in (0, 1)]
    ranges = [(-reach, reach) for reach in asked.reach]
    wanted = np.histogram2d(*inside, bins=MOST_BINS, range=ranges)[0]
    found = count_scores(open_source(X), RULE, asked)
    assert np.array_equal(found.reshape(MOST_BINS, MOST_BINS), wanted)
    assert found.sum() == 777
    X[3] = 1e308  # a refusal would tell others that there is such a row
    huge = question(axes=np.full((D, 2), 1e100))
    assert count_scores(open_source(X), RULE, read(huge)).sum() == 777


@pytest.mark.parametrize(
    "wrong",
    [
        {"axes": np.eye(D)},
        {"axes": np.full((D, 2), np.nan)},
        {"axes": np.full((D, 2), 1e200)},
        {"offset": np.zeros(3)},
        {"reach": np.zeros(2)},
        {"reach": np.array([1.0, np.inf])},
        {"n_bins": 0},
        {"n_bins": MOST_BINS + 1},
    ],
)
def test_a_question_that_is_no_grid_is_refused_before_a_row_is_read(wrong, ledger):
    party, public = silo(study(), ledger), question().public
    assert refused(ask(party, question(**wrong)))
    for other in (b"", public[:-8], public + bytes(8)):
        assert refused(ask(party, replace(question(), public=other)))
    assert ledger.spent().n_releases == 0


@pytest.mark.parametrize("wrong", [{"scores": 1.0}, {"scores": -0.1}, {"noise": "paper", "n_steps": 3}])
def test_terms_that_cannot_be_are_refused(wrong):
    with pytest.raises(InputError):
        study(**wrong)


@pytest.mark.parametrize(
    "counts", [np.zeros(35), np.full(SCORE_CELLS, 10**9), np.full(SCORE_CELLS, -(10**9))]
)
def test_counts_that_cannot_be_are_set_aside(counts):
    agreed, words = study(), counts.astype(np.int64).view(np.uint64)
    told = problem_with(QueryAnswer(words=words), message(agreed, question()), agreed, n_rows=500)
    assert told is not None


def test_the_share_of_scores_is_never_more_than_was_asked_for():
    for part in (1e-3, 0.01, 0.1, 0.37, 0.5):
        agreed = study(scores=scores_share(part, 1.0, 1e-6))
        alone = priced("covariance", epsilon=part, n_features=D, iteration_rank=D, center=True).total_mu
        assert 0.99 * alone < agreed.budget.mu(SCORES) <= alone * (1 + 1e-6)


def test_the_grid_is_as_fine_as_the_noise_allows():
    assert bins_for(10_000, 0.0) == MOST_BINS
    assert bins_for(100, 0.0) == 8
    assert bins_for(10, 1000.0) == 4
    assert bins_for(10**9, 10.0) == MOST_BINS
    assert bins_for(10_000, 50.0) < bins_for(40_000, 50.0)
