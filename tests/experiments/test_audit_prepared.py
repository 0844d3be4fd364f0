"""The audit of private preparation: the promise is met exactly, and an error in it is caught."""

import pytest

from fedpower.experiments.audit_game import audit_mode
from fedpower.experiments.audit_prepared import PreparedGame
from fedpower.privacy import preparation
from fedpower.privacy.noise import SeededNoiseForExperiments

TERMS = {"epsilon": 4.0, "delta": 1e-5, "n_rows": 20, "n_features": 6}


def test_the_attacker_of_preparation_and_moment_sees_all_that_is_promised_and_no_more():
    report = audit_mode("prepared", n_runs=20, source=SeededNoiseForExperiments(1), **TERMS)
    # Scales of counts are rounded up to whole numbers, of which there are few at such an epsilon.
    assert 3.6 < report.reachable_epsilon <= 4.0 * (1 + 1e-4)


@pytest.mark.audits
def test_preparation_keeps_its_promise_and_a_third_of_the_noise_is_caught():
    """With confidence 0.999 of the first; μ is 2.5 for 0.87 in the second, beyond ten standard errors."""
    kept = audit_mode(
        "prepared", n_runs=300, confidence=0.999, source=SeededNoiseForExperiments(2), **TERMS
    )
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


@pytest.mark.audits
@pytest.mark.parametrize("kind", ["octaves", "bins", "zoom", "means"])
def test_a_sensitivity_that_forgets_the_number_of_columns_is_caught(kind, monkeypatch):
    """What endless runs would show is over the promise for each, and 600 runs show it of the means."""
    right = preparation.squared_sensitivity

    def wrong(asked, n_features, *more):
        return right(asked, n_features, *more) // (n_features if asked == kind else 1)

    monkeypatch.setattr(preparation, "squared_sensitivity", wrong)
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
    from fedpower.data.survey import STAGES
    from fedpower.experiments.audit_game import AUDITED_SHARES, _study

    study = _study("prepared", epsilon=4.0, delta=1e-5, n_steps=1, n_features=3)
    game = PreparedGame(study, 20, SeededNoiseForExperiments(0))
    assert len(game._weights) == len(STAGES) + 1
    assert all(abs(weight).max() > 0 for weight in game._weights)
    assert study.preparation == AUDITED_SHARES
