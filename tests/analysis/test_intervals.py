"""Intervals hold what they should, noise and sampling together, over releases at ε = 1."""

from dataclasses import replace

import numpy as np
import pytest
from sklearn.base import clone

from benchmarks.derived import LEVEL, Law, drawn_release, held, release, truths
from benchmarks.fits import congruence
from fedpower.analysis import AdjustedPCA, Correlations, ProcessMonitor, Regression, factor
from fedpower.analysis.base import draws
from fedpower.report.covariance import Covariance

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")


@pytest.fixture(scope="module")
def law() -> Law:
    return Law()


@pytest.mark.slow
def test_intervals_of_every_analysis_hold_as_often_as_they_say(law):
    """Fails with probability below 1e-4.

    At worst, all intervals of a release hold or fail together: then the share over 200 releases has a
    standard deviation of 1.5 points, and 6.5 points below 95% is 4.2 of them.
    """
    rng = np.random.default_rng(11)
    template, wanted = release(law.rows(rng)), truths(law)
    shares = {name: [] for name in wanted}
    for _ in range(200):
        drawn = drawn_release(law, template, rng)
        for name, (make, numbers) in wanted.items():
            shares[name].append(held(make().fit(drawn), numbers))
    for name, found in shares.items():
        assert abs(np.mean(found) - LEVEL) < 0.065, name


def test_limits_let_pass_as_many_rows_as_they_say(law):
    """Fails with probability below 1e-8: 6 deviations of a share of 20,000 rows are below 1 point."""
    rng = np.random.default_rng(12)
    found = ProcessMonitor(2, level=0.95).fit(release(law.rows(rng)))
    within = found.statistics(law.rows(rng, 20_000)) <= [found.t2_limit_, found.spe_limit_]
    assert within.mean(axis=0) == pytest.approx(0.95, abs=0.02)


@pytest.mark.slow
@pytest.mark.parametrize("model", [ProcessMonitor(2), AdjustedPCA(2, covariates=[0])])
def test_angles_hold_in_nine_of_ten_releases(law, model):
    """Fails with probability below 1e-3: fewer than 72 of 100 where 90 are expected, held together."""
    rng = np.random.default_rng(15)
    rows = law.rows(rng)
    template = release(rows)
    # Noise only: rows are the same and none is shortened.
    template = template.with_record(clipping=None)
    units = template.units
    inner = np.cov(rows.T) / np.outer(units, units)
    exact = replace(template, pooled=replace(template.pooled, covariance=inner, noise_std=0.0))
    wanted = clone(model).fit(exact).components_
    held = []
    for _ in range(100):
        drawn = rng.standard_normal(inner.shape) * (template.noise_std / 2.0)
        pooled = replace(template.pooled, covariance=inner + drawn + drawn.T)
        found = clone(model).fit(replace(template, pooled=pooled))
        cosines = np.abs(np.sum(found.components_ * wanted, axis=1))
        held.append(np.degrees(np.arccos(np.minimum(cosines, 1.0))) <= found.component_angles_)
    assert np.mean(held, axis=0).min() >= 0.72


def test_noise_of_columns_with_missing_cells_is_larger(law):
    whole = release(law.rows(np.random.default_rng(16)))
    present = np.r_[0.5, np.ones(whole.n_features - 1)]
    gappy = replace(whole, pooled=replace(whole.pooled, present=present))
    ratio = [
        np.concatenate([each for each, _ in draws(one, one.covariance, sampling=False, count=500)]).std(0)
        for one in (gappy, whole)
    ]
    grown = ratio[0] / ratio[1]
    assert grown[0, 0] == pytest.approx(2.0, rel=0.02)
    assert grown[0, 1:] == pytest.approx(2.0, rel=0.02)
    assert grown[1:, 1:] == pytest.approx(1.0)


def questionnaire() -> Law:
    rng = np.random.default_rng(4)
    loadings = np.kron(np.eye(5), np.ones((5, 1))) * rng.uniform(0.4, 0.8, (25, 1))
    loadings += 0.05 * rng.standard_normal((25, 5))
    return Law(loadings, 1.0 - np.sum(loadings**2, axis=1))


def noised(law: Law, sigma: float, rng: np.random.Generator) -> Covariance:
    """Return a moment of the law's own covariance with noise, nothing clipped and no sampling."""
    template = release(law.rows(rng, 2000))
    drawn = rng.standard_normal(law.covariance.shape) * (sigma / 2.0)
    inner = law.covariance / law.bound**2 + drawn + drawn.T
    pooled = replace(template.pooled, covariance=inner, center=np.zeros(len(inner)), noise_std=sigma)
    return replace(template, pooled=pooled)


def test_shrunk_correlations_are_nearer_to_the_exact_ones():
    law, rng = questionnaire(), np.random.default_rng(15)
    exact, sigma = law.covariance, 0.1 / law.bound**2
    for _ in range(2):
        found = Correlations(sampling=False).fit(noised(law, sigma, rng))
        errors = [np.linalg.norm(each - exact) for each in (found.correlation_, found.released_)]
        assert errors[0] < 0.8 * errors[1]
        assert (np.diagonal(found.correlation_) == 1).all()
        assert np.mean((found.low_ <= exact) & (exact <= found.high_)) > 0.9


def test_factors_of_noised_correlations_are_found():
    law, rng = questionnaire(), np.random.default_rng(16)
    fitted = factor._fit(noised(law, 0.12 / law.bound**2, rng), 5).loadings
    turned = [each @ factor._varimax(each, np.eye(5)) for each in (fitted, law.loadings)]
    assert congruence(*turned).min() > 0.9


def test_intervals_name_the_clipping_bias_that_they_exclude(law):
    bounded = release(law.rows(np.random.default_rng(18), 4000), bound=3.0)
    model = Regression(0, alpha=400.0).fit(bounded)
    assert model.clipping_share_ is not None
    assert model.clipping_share_ > 0.05
    told = model.account()
    assert told.facts["clipping_share"] == model.clipping_share_
    assert any(each.startswith("Intervals and tests do not cover clipping") for each in told.sentences)
