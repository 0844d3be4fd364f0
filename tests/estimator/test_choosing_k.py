"""The number of components that are determined, or that a fraction of variance takes, in real fits."""

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import FedPCA
from fedpower.estimator.fit_warnings import NoiseWarning
from fedpower.protocol.solvers.angles import DETERMINED
from problems import Array

D, PLANTED = 15, 3
PRIVATE = {"epsilon": 2.0, "delta": 1e-6, "row_norm": 1.0, "standardize": False}


def planted_rows(n_rows: int = 40_000, seed: int = 0) -> list[Array]:
    """Return two silos' rows, nearly all of whose variance is in three directions of unequal strength."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, PLANTED)) * [0.3, 0.25, 0.2]
    rows = 0.01 * rng.standard_normal((n_rows, D))
    rows[:, :PLANTED] += scores + 0.2
    return np.split(rows, [n_rows // 3])


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize("center", [True, False])
def test_as_many_as_were_planted_are_determined(aggregation, center):
    for seed in range(5):
        model = fed_pca("auto", center=center, aggregation=aggregation, **PRIVATE)
        model.fit_silos(planted_rows(seed=seed))
        assert model.n_components_ == PLANTED
        assert model.result_.determined == [True] * PLANTED
        assert model.spectrum_.shape == (D,)
        np.testing.assert_allclose(model.spectrum_[:PLANTED], model.explained_variance_, rtol=1e-9)
        assert model.solver_.solver == "moment"


@pytest.mark.parametrize("rows", [np.zeros((300, 6)), np.full((300, 6), 0.3)])
def test_where_nothing_is_determined_one_component_is_kept(rows):
    with pytest.warns(NoiseWarning, match="no component is determined"):
        model = fed_pca("auto", **PRIVATE).fit_silos([rows[:100], rows[100:]])
    assert model.n_components_ == 1
    assert model.result_.determined == [False]


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize(
    ("noise", "solver"),
    [*((noise, solver) for noise in ("moment", "step") for solver in ("krylov", "fedpower")),
     ("paper", "fedpower"), ("clipped", "auto")],
)  # fmt: skip
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_without_a_direction_determine_nothing(noise, solver, *, center):
    rows = np.random.default_rng(3).standard_normal((400, 40))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for draw in range(6):
        terms = {"noise": noise, "solver": solver, "center": center, "random_state": draw}
        model = fed_pca(2, epsilon=1.0, standardize=False, row_norm=1.0, **terms)
        model.fit_silos([rows[:200], rows[200:]])
        assert min(model.component_angles_) > DETERMINED


def test_planted_components_are_determined_with_noised_products_and_without_noise():
    model = fed_pca(2, **{**PRIVATE, "epsilon": 1.0}, noise="step", random_state=0)
    model.fit_silos(planted_rows())
    assert model.result_.determined == [True, True]
    np.testing.assert_allclose(model.denoised_variance_, [0.09, 0.0625], rtol=0.1)
    rows = np.random.default_rng(0).standard_normal((100, 2)) @ np.eye(2, 5) * [2, 1, 1, 1, 1]
    exact = FedPCA("auto", epsilon=float("inf"), standardize=False).fit(rows)
    assert exact.result_.determined == [True, True] + [False] * (exact.n_components_ - 2)


def test_a_fraction_is_taken_of_the_variance_without_the_noise():
    """The three directions hold 44%, 75% and 95% of it; each within 1% but with probability 1e-6."""
    silos = planted_rows()
    exact = FedPCA(PLANTED, epsilon=float("inf"), standardize=False).fit_silos(silos)
    for fraction, count in ((0.3, 1), (0.6, 2), (0.9, 3)):
        model = fed_pca(fraction, **PRIVATE).fit_silos(silos)
        assert model.n_components_ == count
        np.testing.assert_allclose(
            model.denoised_variance_ratio_, exact.explained_variance_ratio_[:count], atol=0.02
        )
