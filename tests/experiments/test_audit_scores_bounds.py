"""The statistics of an audit: from scores to bounds. `test_audit_game` plays against real silos."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower.errors import InputError
from fedpower.experiments.audit import audit_scores
from fedpower.privacy.accounting import epsilon_of

SURE = 1 - 1e-6


def test_scores_of_a_known_gap_give_that_mu():
    rng = np.random.default_rng(0)
    found = audit_scores(rng.normal(size=50_000), rng.normal(1.0, 1, size=50_000), delta=1e-5)
    assert 0.93 < found.mu_lower <= 1.0
    assert found.epsilon_lower == epsilon_of(found.mu_lower, 1e-5)
    assert found.false_positive_rate == pytest.approx(stats.norm.sf(found.threshold), abs=0.02)


def test_equal_worlds_give_nothing():
    rng = np.random.default_rng(1)
    found = audit_scores(rng.normal(size=4000), rng.normal(size=4000), delta=1e-5, confidence=SURE)
    assert (found.mu_lower, found.epsilon_lower, found.epsilon_lower_any) == (0.0, 0.0, 0.0)


def test_worlds_that_never_overlap_give_what_the_runs_can_show():
    """With no error in n runs the rates are below ln(2/(1 − confidence))/n, and no more is said."""
    found = audit_scores(np.zeros(2000), np.ones(2000), delta=1e-9, confidence=0.95)
    rate = 1 - (0.05 / 2) ** (1 / 1000)
    assert found.epsilon_lower_any == pytest.approx(math.log((1 - 1e-9 - rate) / rate), rel=1e-9)
    assert found.mu_lower == pytest.approx(-2 * stats.norm.ppf(rate), rel=1e-9)


@pytest.mark.slow
def test_the_stated_confidence_is_kept():
    """300 audits of mu = 1 at 80%: at most 60 too high are expected; 100 has probability < 1e-6."""
    rng = np.random.default_rng(2)
    high = sum(
        audit_scores(rng.normal(size=400), rng.normal(1, 1, size=400), delta=1e-5, confidence=0.8).mu_lower
        > 1.0
        for _ in range(300)
    )
    assert stats.binom.sf(99, 300, 0.2) < 1e-6
    assert high < 100


@pytest.mark.parametrize(
    ("call", "sentence"),
    [
        (lambda: audit_scores([1.0] * 5, [2.0] * 50, delta=1e-5), "20 finite scores"),
        (lambda: audit_scores([np.nan] * 50, [2.0] * 50, delta=1e-5), "20 finite scores"),
        (
            lambda: audit_scores([1.0] * 50, [2.0] * 50, delta=1e-5, confidence=95),
            "confidence and delta must be between 0 and 1",
        ),
    ],
)
def test_an_audit_that_cannot_be_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
