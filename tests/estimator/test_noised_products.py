"""Fits in which every product is noised: what they determine, and what averaging products brings."""

import itertools

import numpy as np
import pytest

from fedpower import CodeBook, FedPCA
from fedpower.linalg import orth, sin_theta
from fedpower.protocol.solvers.angles import DETERMINED
from runs import averaged_product


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
        model = FedPCA(
            2,
            epsilon=1.0,
            center=center,
            standardize=False,
            codebook=CodeBook(row_norm=1.0),
            noise=noise,
            solver=solver,
            random_state=draw,
        ).fit_silos([rows[:200], rows[200:]])
        assert min(model.component_angles_) > DETERMINED


def test_planted_components_are_determined_where_every_product_is_noised() -> None:
    rng = np.random.default_rng(2)
    rows = 0.01 * rng.standard_normal((40_000, 60))
    rows[:, :2] += rng.standard_normal((40_000, 2)) * [0.4, 0.3]
    model = FedPCA(
        2, epsilon=1.0, standardize=False, codebook=CodeBook(row_norm=2.0), noise="step", random_state=0
    )
    model.fit_silos([rows[:20_000], rows[20_000:]])
    assert model.result_.determined == [True, True]
    np.testing.assert_allclose(model.denoised_variance_, [0.16, 0.09], rtol=0.1)


def test_krylov_keeps_what_the_power_method_keeps_where_every_product_is_drowned() -> None:
    """Planted rank 2 under noise of .6 of its eigenvalues; medians over 5 starts."""
    d, rank, width, n_steps = 300, 2, 12, 10
    spectrum = np.append([0.3, 0.2], np.full(d - 2, 0.3 / d))
    std = 0.12 / np.sqrt(d)
    errors: dict[str, list[float]] = {"power": [], "averaged": []}
    for how, seed in itertools.product(errors, range(5)):
        rng = np.random.default_rng(seed)
        basis = orth(rng.standard_normal((d, width)))
        blocks, products = [], []
        for _ in range(n_steps):
            blocks.append(basis)
            products.append(spectrum[:, np.newaxis] * basis + std * rng.standard_normal((d, width)))
            found = products[-1]
            if how == "averaged":
                found = averaged_product(np.hstack(blocks), np.hstack(products), rank, width)
            basis = orth(found)
        left = np.linalg.svd(found, full_matrices=False)[0][:, :rank]
        errors[how].append(sin_theta(left, np.eye(d)[:, :rank]))
    assert np.median(errors["averaged"]) < 0.6 * np.median(errors["power"])
