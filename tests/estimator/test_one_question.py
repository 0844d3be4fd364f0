"""Correlations or covariances: the same question at every epsilon, from the same releases."""

from typing import Any

import numpy as np
import pytest
from scipy.linalg import subspace_angles
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from benchmarks.fits import fed_pca
from benchmarks.preparation import MOST_DEGREES, MOST_OFF
from benchmarks.preparation import units_error as measured
from benchmarks.preparation import units_rows as rows_of
from fedpower import CodeBook, FedPCA
from fedpower.linalg import fix_signs
from fedpower.privacy.noise import SeededNoiseForExperiments

INF = float("inf")
ROWS = rows_of(3_000, 6, seed=1)
SILOS = {"north": ROWS[:1_000], "south": ROWS[1_000:]}
SOLVERS: list[dict[str, Any]] = [
    {},
    {"solver": "krylov"},
    {"solver": "fedpower"},
    {"local_steps": 3, "drift_correction": True},
]


def degrees(one: Any, two: Any) -> float:
    return float(np.degrees(subspace_angles(one.T, two.T)[0]))


@pytest.mark.parametrize("solver", SOLVERS)
@pytest.mark.parametrize("standardize", [True, False])
def test_an_exact_fit_is_scikit_learns(solver, standardize):
    scaler = StandardScaler(with_mean=standardize, with_std=standardize).fit(ROWS)
    theirs = PCA(3).fit(scaler.transform(ROWS))
    ours = fed_pca(3, epsilon=INF, standardize=standardize, **solver).fit_silos(SILOS)
    for name in ("explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-7)
    axes = fix_signs(theirs.components_.T).T
    np.testing.assert_allclose(ours.components_, axes, atol=1e-6)
    np.testing.assert_allclose(ours.mean_, ROWS.mean(axis=0), rtol=1e-9)
    scores = theirs.transform(scaler.transform(ROWS)) * np.sign((theirs.components_ * axes).sum(axis=1))
    np.testing.assert_allclose(ours.transform(ROWS), scores, atol=1e-4 * np.abs(scores).max())
    whole = FedPCA(6, epsilon=INF, standardize=standardize).fit_silos(SILOS)
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(ROWS)), ROWS, rtol=1e-7)
    np.testing.assert_allclose(ours.to_sklearn().transform(ROWS), ours.transform(ROWS), rtol=1e-6)


@pytest.mark.parametrize("solver", ["krylov", "fedpower", "moment"])
def test_uncentred_columns_are_divided_by_their_root_mean_squares(solver):
    scaled = ROWS / np.sqrt(np.mean(ROWS**2, axis=0))
    truth = np.linalg.eigh(scaled.T @ scaled / len(scaled))[1][:, ::-1][:, :2].T
    model = FedPCA(2, epsilon=INF, center=False, solver=solver).fit_silos(SILOS)
    assert degrees(model.components_, truth) < 1e-5
    np.testing.assert_allclose(model.result_.scale, np.sqrt(np.mean(ROWS**2, axis=0)), rtol=1e-9)


def test_few_wide_rows_are_standardised_from_their_factors():
    d = 8_200  # wider than moments are uploaded
    rows = np.random.default_rng(0).standard_normal((40, d)) * np.geomspace(1, 100, d) + 5
    rows[:, ::2] *= rows[:, :1]
    model = FedPCA(2, epsilon=INF, solver="krylov").fit_silos([rows[:15], rows[15:]])
    theirs = PCA(2, svd_solver="full").fit(StandardScaler().fit_transform(rows))
    assert [each["kind"] for each in model.result_.rounds] == ["factor"]
    assert degrees(model.components_, theirs.components_) < 1e-5
    np.testing.assert_allclose(model.explained_variance_ratio_, theirs.explained_variance_ratio_)


@pytest.mark.parametrize("standardize", [True, False])
def test_a_code_book_and_found_scales_change_nothing_but_the_noise(standardize):
    book = FedPCA(1, epsilon=50.0).prepare_silos(SILOS)
    exact = FedPCA(3, epsilon=INF, standardize=standardize).fit_silos(SILOS)
    for solver in ("moment", "krylov"):
        told = {"standardize": standardize, "codebook": book, "solver": solver}
        by_book = fed_pca(3, epsilon=INF, **told).fit_silos(SILOS)
        assert degrees(by_book.components_, exact.components_) < 5.0  # the bound shortens rows
        np.testing.assert_allclose(by_book.explained_variance_, exact.explained_variance_, rtol=0.3)
    units = np.arange(1.0, 7.0)
    scaled = FedPCA(3, epsilon=INF, standardize=False, codebook=CodeBook(scale=units)).fit_silos(SILOS)
    assert degrees(scaled.components_, PCA(3).fit(ROWS / units).components_) < 1e-5


@pytest.fixture
def seeded(monkeypatch: pytest.MonkeyPatch) -> None:
    make = lambda: SeededNoiseForExperiments(3)  # noqa: E731
    monkeypatch.setattr("fedpower.protocol.silo.SystemNoise", make)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.usefixtures("seeded")
def test_private_is_near_exact(standardize):
    angle, off = measured(standardize=standardize, epsilon=4.0, n_rows=20_000, n_features=8, seed=0)
    assert angle <= MOST_DEGREES
    assert off <= MOST_OFF
