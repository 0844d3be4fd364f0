"""Fits in which every product is noised: what they determine, and what averaging products brings."""

import numpy as np
import pytest

from fedpower.protocol.solvers.angles import DETERMINED
from fits import fed_pca


@pytest.mark.slow
@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("solver", ["krylov", "fedpower"])
@pytest.mark.parametrize("noise", ["moment", "step", "paper"])
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_rows_without_a_direction_determine_nothing(solver: str, noise: str, *, center: bool) -> None:
    if (solver, noise) == ("krylov", "paper"):
        pytest.skip("paper's noise is that of its own solver")
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((400, 40))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    for draw in range(6):
        given = {"noise": noise, "solver": solver, "center": center, "random_state": draw}
        model = fed_pca(2, epsilon=1.0, standardize=False, row_norm=1.0, **given)
        model.fit_silos([rows[:200], rows[200:]])
        assert min(model.component_angles_) > DETERMINED


def test_planted_components_are_determined_where_every_product_is_noised() -> None:
    rng = np.random.default_rng(2)
    rows = 0.01 * rng.standard_normal((40_000, 30))
    rows[:, :2] += rng.standard_normal((40_000, 2)) * [0.4, 0.3]
    model = fed_pca(2, epsilon=1.0, standardize=False, row_norm=2.0, noise="step", random_state=0)
    model.fit_silos([rows[:20_000], rows[20_000:]])
    assert model.result_.determined == [True, True]
    np.testing.assert_allclose(model.denoised_variance_, [0.16, 0.09], rtol=0.1)
