"""Intervals hold what they should, noise and sampling together, over releases at ε = 1."""

import numpy as np
import pytest

from benchmarks.derived import LEVEL, N_ROWS, Law, drawn_release, held, release, truths
from fedpower.analyses import FactorAnalysis, ProcessMonitor

RELEASES = 200


@pytest.fixture(scope="module")
def law() -> Law:
    return Law()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_intervals_of_every_analysis_hold_as_often_as_they_say(law: Law):
    """Fails with probability below 1e-4.

    At worst, all intervals of a release hold or fail together: then the share over 200 releases has a
    standard deviation of 1.5 points, and 6.5 points below 95% is 4.2 of them.
    """
    rng = np.random.default_rng(11)
    template, wanted = release(law.rows(rng)), truths(law)
    shares = {name: [] for name in wanted}
    for _ in range(RELEASES):
        moment = drawn_release(law, template, rng)
        for name, (make, numbers) in wanted.items():
            shares[name].append(held(make().fit(moment), numbers))
    for name, found in shares.items():
        assert abs(np.mean(found) - LEVEL) < 0.065, name


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_limits_let_pass_as_many_rows_as_they_say(law: Law):
    """Fails with probability below 1e-8: 6 deviations of a share of 20,000 rows are below 1 point."""
    rng = np.random.default_rng(12)
    found = ProcessMonitor(2, level=0.95).fit(release(law.rows(rng)))
    within = found.statistics(law.rows(rng, 20_000)) <= [found.t2_limit_, found.spe_limit_]
    assert within.mean(axis=0) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_error_of_a_drawn_release_is_that_of_a_real_one(law: Law):
    """Fails with probability below 1e-6: ratios of variances of 60 draws of 36 numbers, within half."""
    rng = np.random.default_rng(13)
    template = release(law.rows(rng))
    lower = np.tril_indices(len(law.covariance))
    real = np.array([release(law.rows(rng)).covariance[lower] for _ in range(60)])
    drawn = np.array([drawn_release(law, template, rng).covariance[lower] for _ in range(60)])
    assert np.mean(real.var(0) / drawn.var(0)) == pytest.approx(1.0, abs=0.5)
    assert np.abs(real.mean(0) - drawn.mean(0)).max() < 6 * real.std(0).max() / np.sqrt(30)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_errors_grow_with_the_noise(law: Law):
    rows = law.rows(np.random.default_rng(14), N_ROWS // 6)
    little, much = (FactorAnalysis(2).fit(release(rows, epsilon)) for epsilon in (8.0, 1.0))
    assert np.median(much.standard_error_ / little.standard_error_) > 1.1
