"""Angles hold as often as they say, and nothing is determined where rows have no directions."""

import math
from dataclasses import replace

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, Person
from fedpower.exceptions import NoiseWarning
from fedpower.protocol.pooled import FLOOR_STDS, Pooled, unit_variances
from fedpower.protocol.solvers.angles import (
    DETERMINED,
    Angles,
    Directions,
    between,
    exact_angles,
    moment_angles,
)
from problems import Array

RANK = 3


def released(moment: Array, std: float, rng: np.random.Generator) -> Pooled:
    """Return a moment with the noise of a release: ``std`` on the diagonal, √2 times less off it."""
    half = rng.standard_normal(moment.shape) * std / 2.0
    return Pooled(
        covariance=moment + half + half.T, center=None, total_variance=float(np.trace(moment)), noise_std=std
    )


def directions_of(pooled: Pooled, *, gains: bool, cut: Array | None = None) -> tuple[Directions, Array]:
    rule = unit_variances(pooled.noise_std) if gains else None
    drawn = unit_variances(pooled.noise_std, clear=FLOOR_STDS) if gains else None
    factor = np.ones(len(pooled.covariance)) if rule is None else rule(np.diagonal(pooled.covariance))
    values, vectors = np.linalg.eigh(pooled.covariance * np.outer(factor, factor))
    pairs = (values[::-1], vectors[:, ::-1])
    return moment_angles(pooled, RANK, pairs=pairs, gains=rule, drawn=drawn, cut=cut), pairs[1][:, :RANK]


def factors(d: int) -> Array:
    """Return the moment of rows with three factors of unequal strength, of columns of unequal scale."""
    rng = np.random.default_rng(d)
    basis = np.linalg.qr(rng.standard_normal((d, RANK)))[0]
    moment = (basis * [0.4, 0.25, 0.15]) @ basis.T + 0.2 / d * np.eye(d)
    scale = rng.uniform(0.8, 1.25, d)
    return np.asarray(moment * np.outer(scale, scale))


@pytest.mark.parametrize(
    ("d", "releases", "gains"),
    [
        (5, 60, True),
        pytest.param(5, 120, False, marks=pytest.mark.slow),
        pytest.param(25, 60, True, marks=pytest.mark.slow),
        pytest.param(25, 60, False, marks=pytest.mark.slow),
        pytest.param(100, 40, True, marks=pytest.mark.slow),
        pytest.param(100, 40, False, marks=pytest.mark.slow),
    ],
)
def test_angles_hold_in_nine_of_ten_releases(d, releases, gains):
    """Of claims below 45°; the limits are 85% and 97%, and three standard errors of so many releases."""
    moment, rng = factors(d), np.random.default_rng(1)
    factor = 1.0 / np.sqrt(np.diagonal(moment)) if gains else np.ones(d)
    truth = np.linalg.eigh(moment * np.outer(factor, factor))[1][:, ::-1][:, :RANK]
    std, held = 0.06 / (d if gains else math.sqrt(d)), []
    for _ in range(releases):
        directions, reported = directions_of(released(moment, std, rng), gains=gains)
        claimed = directions.angles
        alone, together = between(truth.T @ reported)
        for claim, true in ((claimed.components, alone), (claimed.subspaces, together)):
            held += (true <= claim)[claim <= DETERMINED].tolist()
    error = 3.0 * math.sqrt(0.09 / releases)
    assert len(held) > releases
    assert 0.85 - error <= np.mean(held) <= 0.97 + error


def test_angles_hold_where_a_column_has_little_variance():
    """A range much wider than the cells leaves a variance of a few standard deviations of its noise."""
    factor, rng, held = (
        np.kron(np.eye(2), np.ones((3, 3))) * 0.6 + 0.4 * np.eye(6),
        np.random.default_rng(5),
        [],
    )
    factor[3:, 3:] *= 0.9  # no tie
    small = np.array([1.0, 1.0, 1.0, 1.0, 1.0, 0.15])
    wanted = np.linalg.eigh(factor / np.sqrt(np.outer(np.diagonal(factor), np.diagonal(factor))))[1]
    for _ in range(60):
        directions, reported = directions_of(
            released(factor * np.outer(small, small), 0.004, rng), gains=True
        )
        held += (
            between(wanted[:, :-3:-1].T @ reported[:, :2])[1][1:] <= directions.angles.subspaces[1]
        ).tolist()
    assert np.mean(held) >= 0.85


@pytest.mark.parametrize(
    ("determined", "kept"), [([], 1), ([1, 2, 12], 2), ([3, 4, 7, 8], 8), ([9], 1), ([5, 9], 5)]
)
def test_auto_keeps_components_that_few_others_are_mixed_with(determined, kept):
    angles = np.full(12, 90.0)
    angles[np.array(determined, dtype=int) - 1] = 10.0
    assert Angles(angles, angles, angles, angles).n_kept == kept


def test_tied_components_are_determined_together():
    """Noise splits a tie, now and then so far that it seems none: in about a fifth of releases."""
    moment, rng = np.diag([0.4, 0.2, 0.2, 0.01, 0.01, 0.01]), np.random.default_rng(2)
    found = [directions_of(released(moment, 0.005, rng), gains=False)[0].angles for _ in range(40)]
    assert all(each.components[0] < 5.0 and each.subspaces[2] < 5.0 for each in found)
    assert all(each.n_determined == RANK for each in found)
    tied = np.array([each.components[1:] for each in found])
    assert np.mean(tied <= DETERMINED) < 0.4
    assert np.median(tied) > 60.0


@pytest.mark.parametrize("gains", [False, True], ids=["covariance", "correlation"])
@pytest.mark.parametrize("level", [0.0, 0.05])
def test_rows_without_a_direction_determine_nothing(level, gains):
    rng = np.random.default_rng(3)
    for _ in range(20):
        found = directions_of(released(level * np.eye(8), 0.01, rng), gains=gains)[0].angles
        assert found.n_determined == 0
        assert found.components.min() > DETERMINED


def test_a_cut_widens_angles_and_leaves_those_of_noise():
    pooled = released(factors(12), 0.01, np.random.default_rng(4))
    plain, cut = (directions_of(pooled, gains=False, cut=cut)[0].angles for cut in (None, np.full(12, 0.1)))
    assert (cut.components > plain.components).all()
    np.testing.assert_allclose(cut.noise_components, plain.components, rtol=0.25)
    np.testing.assert_array_equal(plain.noise_components, plain.components)


WAYS = {
    "covariance": {},
    "correlation": {"standardize": True},
    "secure": {"aggregation": "secure"},
    "krylov": {"solver": "krylov"},
    "clipped": {"noise": "clipped", "energy": 0.5},
    "step": {"noise": "step"},
    "step by power": {"noise": "step", "solver": "fedpower"},
}


@pytest.mark.parametrize(
    ("way", "d"), [*((way, 5) for way in WAYS), ("covariance", 100), ("clipped", 100), ("step", 100)]
)
def test_rows_of_zeros_determine_nothing_in_any_mode(way, d):
    terms = {"epsilon": 1.0, "row_norm": 1.0, "standardize": False, "random_state": 0}
    with pytest.warns(NoiseWarning, match="no component is determined"):
        model = fed_pca(2, **terms | WAYS[way]).fit_silos([*np.zeros((2, 200, d))])
    assert min(*model.component_angles_, *model.subspace_angles_) > DETERMINED


def test_persons_of_zeros_determine_nothing():
    model = FedPCA(2, epsilon=1.0, standardize=False, codebook=CodeBook(row_norm=1.0), unit=Person(None, 2))
    with pytest.warns(NoiseWarning, match="no component is determined"):
        model.fit(np.zeros((400, 5)), units=np.repeat(np.arange(200), 2))
    assert min(model.component_angles_) > DETERMINED


def test_exact_components_without_variance_or_with_the_same_are_not_determined():
    found = exact_angles(np.array([3.0, 2.0, 2.0, 1.0, 0.0]), 5, n_features=5).angles
    np.testing.assert_array_equal(found.components, [0, 90, 90, 0, 90])
    np.testing.assert_array_equal(found.subspaces, [0, 90, 0, 0, 90])
    rows = np.random.default_rng(0).standard_normal((50, 3)) @ np.ones((3, 6))
    model = FedPCA(3, epsilon=math.inf, standardize=False).fit(rows)
    np.testing.assert_array_equal(model.component_angles_, [0, 90, 90])
    assert model.result_.determined == [True, False, False]


@pytest.mark.parametrize("gains", [True, False])
@pytest.mark.parametrize("d", [5, 30, pytest.param(80, marks=pytest.mark.slow)])
def test_what_a_few_draws_settle_all_draws_confirm(d, gains):
    """Over noise from negligible to overwhelming, with a mean and a bound that shortens rows."""
    moment, rng, verdicts = factors(d), np.random.default_rng(2), []
    for std in np.geomspace(1e-5, 1.0, 12):
        pooled = replace(released(moment, std, rng), center=np.full(d, 0.3 / math.sqrt(d)))
        directions, _ = directions_of(pooled, gains=gains, cut=np.full(d, std**2))
        verdicts.append(directions.settle())
        angles = directions.angles
        found = angles.n_determined > 0 or bool((angles.components <= DETERMINED).any())
        assert verdicts[-1] in (found, None)
    assert verdicts[0]
    assert not verdicts[-1]
