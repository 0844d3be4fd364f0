"""The audit finds a broken mechanism and clears a sound one.

Seeds are fixed, so these tests do not vary; with fresh noise a sound mechanism would be flagged
with probability at most 1 − confidence = 1e-6 per audit.
"""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower.errors import InputError
from fedpower.privacy.accounting import epsilon_of, mu_of
from fedpower.privacy.audit import audit_scores, worst_case_scores
from fedpower.privacy.noise import SeededNoiseForExperiments

SURE = 1 - 1e-6


def audit(mode, epsilon, delta=1e-4, *, n_runs=20_000, seed=0, **changes):
    scores = worst_case_scores(
        mode,
        epsilon=epsilon,
        delta=delta,
        n_rows=changes.pop("n_rows", 1000),
        n_runs=n_runs,
        source=SeededNoiseForExperiments(seed),
        **changes,
    )
    return audit_scores(*scores, delta=delta, confidence=SURE)


@pytest.mark.parametrize("mode", ["paper", "step", "moment"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_a_sound_mechanism_is_not_flagged(mode, epsilon):
    found = audit(mode, epsilon)
    assert found.epsilon_lower <= epsilon
    assert found.epsilon_lower_any <= epsilon


@pytest.mark.parametrize("mode", ["step", "moment"])
@pytest.mark.parametrize("epsilon", [0.5, 2.0, 8.0])
def test_halved_noise_is_caught(mode, epsilon):
    assert audit(mode, epsilon, noise_factor=0.5).epsilon_lower > epsilon


@pytest.mark.parametrize("mode", ["step", "moment"])
def test_halved_noise_is_caught_without_supposing_a_gaussian(mode):
    """This bound needs more runs: its best thresholds are where errors are rare."""
    assert audit(mode, 2.0, n_runs=100_000, noise_factor=0.5).epsilon_lower_any > 2.0


@pytest.mark.parametrize("rank", [1, 2, 4])
def test_the_worst_case_attains_the_calibrated_mu_at_every_rank(rank):
    """The scores' distance in standard deviations is mu itself: within 4% at 20000 runs."""
    scores0, scores1 = worst_case_scores(
        "step",
        epsilon=3.0,
        delta=1e-5,
        n_rows=500,
        n_runs=20_000,
        source=SeededNoiseForExperiments(1),
        n_features=4,
        iteration_rank=rank,
    )
    mu = (scores1.mean() - scores0.mean()) / scores0.std()
    assert mu == pytest.approx(mu_of(3.0, 1e-5), rel=0.04)


def test_half_of_the_papers_noise_is_sound_and_an_eighteenth_is_caught():
    """A 9.2th of it would be exactly enough."""
    assert audit("paper", 0.5, noise_factor=0.5).epsilon_lower < 0.5
    assert audit("paper", 0.5, noise_factor=1 / 18).epsilon_lower > 0.5


def test_the_bound_comes_close_to_the_truth():
    found = audit("moment", 4.0, n_runs=100_000)
    assert 0.9 * 4.0 < found.epsilon_lower <= 4.0
    assert found.n_runs == 100_000


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


def test_the_stated_confidence_is_kept():
    """300 audits of mu = 1 at 80%: at most 60 too high are expected; 100 has probability < 1e-6."""
    rng = np.random.default_rng(2)
    high = sum(
        audit_scores(
            rng.normal(size=400), rng.normal(1, 1, size=400), delta=1e-5, confidence=0.8
        ).mu_lower
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
        (lambda: audit("step", math.inf), "an audit needs noise"),
        (lambda: audit("step", 1.0, n_features=3, iteration_rank=4), "n_features must be"),
    ],
)
def test_an_audit_that_cannot_be_is_refused(call, sentence):
    with pytest.raises(InputError, match=sentence):
        call()
