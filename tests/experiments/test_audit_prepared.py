"""The audit of private preparation: the promise is met exactly, and an error in it is caught."""

from dataclasses import replace

import numpy as np
import pytest

from fedpower.experiments.audit import AUDITED_SHARES, Game, audit_mode, audit_scores, study_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import query as queries
from fedpower.sums.survey import STAGES

TERMS = {"epsilon": 4.0, "delta": 1e-5, "n_rows": 20, "n_features": 6}


def test_the_attacker_of_preparation_and_moment_sees_all_that_is_promised_and_no_more():
    report = audit_mode("prepared", n_runs=20, source=SeededNoiseForExperiments(1), **TERMS)
    # Scales of counts are rounded up to whole numbers, of which there are few at such an epsilon.
    assert 3.6 < report.reachable_epsilon <= 4.0 * (1 + 1e-4)


@pytest.mark.audits
def test_preparation_keeps_its_promise_and_a_third_of_the_noise_is_caught():
    """With confidence 0.999 of the first; μ is 2.5 for 0.87 in the second, beyond ten standard errors."""
    kept = audit_mode("prepared", n_runs=300, confidence=0.999, source=SeededNoiseForExperiments(2), **TERMS)
    assert not kept.violation
    halved = audit_mode(
        "prepared",
        n_runs=300,
        noise_factor=0.35,
        confidence=0.999,
        source=SeededNoiseForExperiments(3),
        **TERMS,
    )
    assert halved.violation


SIZES = [
    (terms.label, terms.size)
    for terms in study_of("prepared", epsilon=4.0, delta=1e-5, n_steps=1, n_features=12).queries
]


@pytest.mark.audits
@pytest.mark.parametrize("kind", ["octaves", "bins", "zoom", "means"])
def test_a_sensitivity_that_forgets_the_number_of_columns_is_caught(kind, monkeypatch):
    """What endless runs would show is over the promise for each, and 600 runs show it of the means."""
    name = "of_means" if kind == "means" else "of_counts"
    right = getattr(queries, name)

    def wrong(size, **how):
        found = right(size, **how)
        asked = kind == "means" or (how.get("counted", 1) > 1 and size == dict(SIZES)[kind])
        return replace(found, squared=found.squared / 12) if asked else found

    monkeypatch.setattr(queries, name, wrong)
    report = audit_mode(
        "prepared",
        n_runs=600 if kind == "means" else 20,
        confidence=0.999,
        source=SeededNoiseForExperiments(4),
        **{**TERMS, "n_features": 12},
    )
    assert report.reachable_epsilon > 1.2 * report.claimed_epsilon
    assert kind != "means" or report.violation


def test_every_stage_is_asked_in_the_game():
    study = study_of("prepared", epsilon=4.0, delta=1e-5, n_steps=1, n_features=3)
    game = Game(study, 20, SeededNoiseForExperiments(0))
    assert len(game.weights) == len(STAGES) + 1
    assert all(abs(weight).max() > 0 for weight in game.weights)
    assert study.preparation == AUDITED_SHARES


GONE, ONE_GONE = np.full(6, np.nan), np.array([np.nan, 1.0, 1.0, 1.0, 1.0, 1.0])
MISSING = {
    "every cell, or as large as can be": (GONE, np.full(6, 1e300)),
    "every cell, or as small as can be": (np.full(6, -1e300), GONE),
    "every cell, or infinitesimal": (GONE, np.full(6, 5e-324)),
    "one cell, or large": (ONE_GONE, np.array([1e300, 1.0, 1.0, 1.0, 1.0, 1.0])),
    "one cell, or all others": (ONE_GONE, np.array([-1.0, *GONE[1:]])),
}
"""The row in either world: of which cells are missing, and what they are in the other."""


def game_of(pair, seed=0, unit=None):
    study = study_of("prepared", epsilon=4.0, delta=1e-5, n_steps=1, n_features=6)
    study = study if unit is None else replace(study, unit=unit)
    game = Game(study, 20, SeededNoiseForExperiments(seed), pair=pair)
    return game, game.budget


@pytest.mark.parametrize("unit", [None, "person"])
@pytest.mark.parametrize("pair", MISSING.values(), ids=MISSING)
def test_a_missing_cell_is_told_from_an_extreme_one_no_better_than_each_stage_promises(pair, unit):
    game, budget = game_of(pair, unit=unit)
    promised = [budget.price(kind).mu for kind in (*STAGES, "moment")]
    for seen, most in zip(game.mus, promised, strict=True):
        assert seen <= most * (1 + 1e-9)
    assert game.mu <= budget.total_mu * (1 + 1e-9)


def test_rows_without_any_cell_move_the_counts_by_all_that_their_noise_is_made_for():
    """And means by √3/2 of it: noise on the number of cells is rounded up from 9.7 to 10."""
    game, _ = game_of(MISSING["every cell, or as small as can be"])
    parts = []
    for (_, query), noise, seen in zip(game.asked, game.noises, game.mus, strict=True):
        place = 1 if query.label == "means" else 0
        parts.append(seen * noise.scales[place] / float(query.sensitivity.squared) ** 0.5)
    assert parts[: len(STAGES)] == pytest.approx([1.0, 1.0, 1.0, 3**0.5 / 2, 1.0], rel=0.05)


@pytest.mark.audits
def test_missing_cells_keep_the_promise_and_too_little_noise_on_their_number_is_caught(monkeypatch):
    pair = MISSING["every cell, or as small as can be"]
    game, _ = game_of(pair, seed=5)
    terms = {"delta": 1e-5, "confidence": 0.999}
    assert audit_scores(*game.play(300), **terms).epsilon_lower <= 4.0
    right = queries.of_means

    def wrong(n_features, **how):
        found = right(n_features, **how)
        *others, cells = found.groups
        return replace(found, groups=(*others, cells._replace(weight=cells.weight * 32**2)))

    monkeypatch.setattr(queries, "of_means", wrong)
    game, budget = game_of(pair, seed=6)
    assert game.mus[STAGES.index("means")] > 2.0 * budget.price("means").mu
    assert audit_scores(*game.play(300), **terms).epsilon_lower > 4.0
