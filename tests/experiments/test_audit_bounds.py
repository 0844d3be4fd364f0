"""From scores to bounds, and how far apart the worlds of each game are. `test_audit_games` plays them."""

from dataclasses import replace

import numpy as np
import pytest
from scipy import stats

from fedpower.exceptions import InputError
from fedpower.experiments.audit import Game, audit_mode, audit_scores, study_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.sums.survey import STAGES

SURE = 1 - 1e-6


def test_scores_give_the_mu_of_their_gap_as_far_as_the_runs_can_show():
    rng = np.random.default_rng(0)
    assert 0.93 < audit_scores(rng.normal(size=50_000), rng.normal(1.0, 1, size=50_000)) <= 1.0
    assert audit_scores(rng.normal(size=4000), rng.normal(size=4000), confidence=SURE) == 0.0
    # With no error in n runs the rates are below ln(2/(1 − confidence))/n, and no more is said.
    found = audit_scores(np.zeros(2000), np.ones(2000), confidence=0.95)
    rate = 1 - (0.05 / 2) ** (1 / 1000)
    assert found == pytest.approx(-2 * stats.norm.ppf(rate), rel=1e-9)


@pytest.mark.slow
def test_the_stated_confidence_is_kept():
    """300 audits of mu = 1 at 80%: at most 60 too high are expected; 100 has probability < 1e-6."""
    rng = np.random.default_rng(2)
    high = sum(
        audit_scores(rng.normal(size=400), rng.normal(1, 1, size=400), confidence=0.8) > 1.0
        for _ in range(300)
    )
    assert stats.binom.sf(99, 300, 0.2) < 1e-6
    assert high < 100


@pytest.mark.parametrize(
    ("scores", "confidence", "sentence"),
    [
        ([1.0] * 5, 0.95, "20 finite scores"),
        ([np.nan] * 50, 0.95, "20 finite scores"),
        ([1.0] * 50, 95, "confidence must be between 0 and 1"),
    ],
)
def test_scores_that_show_nothing_are_refused(scores, confidence, sentence):
    with pytest.raises(InputError, match=sentence):
        audit_scores(scores, [2.0] * 50, confidence=confidence)


@pytest.mark.parametrize(
    ("mode", "least", "terms"),
    [
        ("clipped", 0.97, {"epsilon": 4.0, "n_steps": 5}),
        # Scales of counts are rounded up to whole numbers, of which there are few at such an epsilon.
        ("prepared", 0.9, {"epsilon": 4.0, "n_rows": 20, "n_features": 6}),
        ("scores", 0.95, {"epsilon": 1.0, "n_rows": 20}),
    ],
)
def test_the_attacker_sees_nearly_all_that_is_promised_and_no_more(mode, least, terms):
    report = audit_mode(mode, delta=1e-5, n_runs=20, source=SeededNoiseForExperiments(1), **terms)
    assert least < report.reachable_epsilon / report.claimed_epsilon <= 1 + 1e-4


GONE, ONE_GONE = np.full(6, np.nan), np.array([np.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
EMPTY_OR_SMALL = np.full(6, -1e300), GONE
MISSING = {
    "every cell, or as large as can be": (GONE, np.full(6, 1e300)),
    "every cell, or as small as can be": EMPTY_OR_SMALL,
    "every cell, or infinitesimal": (GONE, np.full(6, 5e-324)),
    "one cell, or large": (ONE_GONE, np.array([1e300, 1.0, 1.0, 1.0, 1.0, 1.0])),
    "one cell, or all others": (ONE_GONE, np.array([-1.0, *GONE[1:]])),
}
"""The row in either world: of which cells are missing, and what they are in the other."""


def game_with(pair, seed=0, unit=""):
    study = replace(study_of("prepared", epsilon=4.0, delta=1e-5, n_steps=1, n_features=6), unit=unit)
    return Game(study, 20, SeededNoiseForExperiments(seed), pair=pair)


@pytest.mark.parametrize("unit", ["", "person"])
@pytest.mark.parametrize("pair", MISSING.values(), ids=MISSING)
def test_a_missing_cell_is_told_from_an_extreme_one_no_better_than_each_stage_promises(pair, unit):
    game = game_with(pair, unit=unit)
    promised = [game.study.budget.price(kind).mu for kind in (*STAGES, "covariance")]
    for seen, most in zip(game.mus, promised, strict=True):
        assert seen <= most * (1 + 1e-9)
    assert game.mu <= game.study.budget.total_mu * (1 + 1e-9)


def test_rows_without_any_cell_move_the_counts_by_all_that_their_noise_is_made_for():
    """And means by √3/2 of it: noise on the number of cells is rounded up from 9.7 to 10."""
    game = game_with(EMPTY_OR_SMALL)
    parts = []
    for (_, query), noise, seen in zip(game.asked, game.noises, game.mus, strict=True):
        place = 1 if query.label == "means" else 0
        parts.append(seen * noise.scales[place] / float(query.sensitivity.squared) ** 0.5)
    assert parts[: len(STAGES)] == pytest.approx([1.0, 1.0, 1.0, 3**0.5 / 2, 1.0], rel=0.05)
