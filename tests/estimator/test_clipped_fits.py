"""``noise="clipped"``: wide rows by clipped products, plain and over secure sums."""

import math

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import FedPCA, load
from fedpower.estimator.plan import planned
from fedpower.estimator.terms import noise_of, options_of
from fedpower.linalg import sin_theta

WIDE = {"epsilon": 4.0, "delta": 1e-6, "normalize": True}


@pytest.fixture(scope="module")
def rows():
    stds = np.sqrt([0.06, 0.06, *[0.88 / 58] * 58])
    return np.split(np.random.default_rng(3).standard_normal((9_000, 60)) * stds, 3)


@pytest.fixture(scope="module")
def truth(rows):
    moment = sum(each.T @ each for each in rows)
    return np.linalg.eigh(moment)[1][:, ::-1][:, :2]


@pytest.mark.parametrize(
    ("aggregation", "given"),
    [
        *((way, {"center": center}) for way in ("plain", "secure") for center in (False, True)),
        ("secure", {"energy": 0.017}),
    ],
)
def test_a_fit_finds_the_components_and_says_what_it_spent(rows, truth, aggregation, given, tmp_path):
    """The error is about 0.1; 0.5 would be ten standard deviations away. A guess of 1.7% makes a moment
    useless by prediction."""
    model = fed_pca(2, noise="clipped", aggregation=aggregation, **given, **WIDE)
    model.fit_silos(rows)
    assert sin_theta(model.components_.T, truth) < (0.5 if "energy" in given else 0.4)
    assert model.privacy_.mode == "clipped"
    assert max(each.epsilon for each in model.privacy_.protections) == pytest.approx(4.0, abs=0.01)
    assert math.fsum(terms.share for terms in model.study_.design) == pytest.approx(1.0, rel=1e-12)
    assert ("covariance" in [terms.label for terms in model.study_.design]) == ("energy" not in given)
    if "energy" in given:
        return
    assert model.subspace_angles_[1] < 20.0  # the two are tied
    assert model.explained_variance_ratio_.sum() == pytest.approx(0.12, abs=0.05)
    folder = model.save(tmp_path / "result")
    assert np.array_equal(load(folder).components, model.components_)
    page = (folder / "report.html").read_text(encoding="utf-8")
    assert "Sums of clipped products" in page
    assert ("masked sums" in page) == (aggregation == "secure")


def test_components_that_hold_most_of_few_columns_are_not_mixed_up_with_the_least():
    """Variances 9, 4, 1, 1, 0.25: about a level of a fifth of them all, the least would stand out more
    than the second. The error is about 0.01."""
    rows = np.random.default_rng(4).standard_normal((20_000, 5)) * [3.0, 2.0, 1.0, 1.0, 0.5]
    told = {"epsilon": 20.0, "delta": 1e-6, "row_norm": 8.0, "standardize": False, "center": False}
    model = fed_pca(2, noise="clipped", energy=0.8, **told).fit_silos(np.split(rows, 2))
    assert sin_theta(model.components_.T, np.eye(5, 2)) < 0.2


def test_auto_clips_only_where_a_guess_lets_a_gain_be_predicted():
    def taken(**more):
        model = fed_pca(**{"n_components": 2, "center": False, **WIDE, **more})
        return noise_of(options_of(model), 1000, 2_000_000)

    assert taken() == "covariance"
    assert taken(energy=0.01) == "clipped"
    assert taken(energy=0.6) == "covariance"
    assert taken(energy=0.01, noise="covariance") == "covariance"
    assert taken(energy=0.01, n_components="auto") == "covariance"


@pytest.mark.slow
def test_a_plan_tells_of_ways_that_are_clearly_better():
    spectrum = [0.012] * 4 + [0.952 / 296]
    model = fed_pca(4, epsilon=1.0, delta=1e-06, center=False, normalize=True, aggregation="secure")
    made = planned(options_of(model), sizes=[3_000] * 20, n_features=300, spectrum=spectrum, n_rehearsals=1)
    ways = {(way.noise, way.aggregation): way for way in made.candidates if way.solver != "krylov"}
    clipped, moment = ways["clipped", "secure"], ways["covariance", "secure"]
    assert clipped.error < 0.8 * moment.error
    assert clipped.rounds == 8
    assert any("clipped" in remark for remark in made.remarks)
    facts = {"sizes": [4000, 4000], "n_features": 30, "spectrum": [0.3, 0.2, 0.01]}
    (better,) = planned(
        options_of(FedPCA(2, noise="step", center=False, standardize=False)), **facts
    ).remarks[:1]
    assert "noise='covariance' should be more accurate" in better
    assert planned(options_of(FedPCA(2, center=False)), **facts).remarks == ()
