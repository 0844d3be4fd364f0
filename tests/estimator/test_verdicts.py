"""Verdicts over noise: no component is called above it where rows have none, in any way of computing."""

import itertools

import numpy as np
import pytest
from scipy import stats

from fedpower import FedPCA
from fedpower.linalg import orth, sin_theta
from fedpower.protocol.solvers.krylov import averaged_product
from fedpower.protocol.solvers.signal import LEVEL, find_signal_of_product
from fedpower.protocol.study import NoiseLaw
from fedpower.report.result import standings

WAYS = [
    ("moment", "moment", "plain"),
    ("moment", "moment", "secure"),
    ("krylov", "moment", "plain"),
    ("fedpower", "moment", "plain"),
    ("krylov", "step", "plain"),
    ("fedpower", "step", "plain"),
    ("fedpower", "paper", "plain"),
]


@pytest.mark.slow
@pytest.mark.parametrize("center", [pytest.param(False, marks=pytest.mark.slow), True])
@pytest.mark.parametrize(("solver", "noise", "aggregation"), WAYS)
def test_rows_without_a_direction_have_no_component_above_the_noise(
    solver: str, noise: str, aggregation: str, *, center: bool
) -> None:
    """Each draw errs with probability at most LEVEL: fails with probability below 1e-6."""
    rng, called, draws = np.random.default_rng(3), 0, 6
    for draw, kind in itertools.product(range(draws), ("zero", "isotropic")):
        rows = np.zeros((400, 40))
        if kind == "isotropic":
            rows = rng.standard_normal(rows.shape)
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        model = FedPCA(
            2,
            epsilon=1.0,
            row_norm=1.0,
            center=center,
            solver="auto" if aggregation == "secure" else solver,
            noise=noise,
            aggregation=aggregation,
            standardize=False,
            random_state=draw,
        ).fit_silos([rows[:200], rows[200:].copy()])
        assert model.n_above_noise_ is not None
        called += model.n_above_noise_ > 0
        held = standings(
            model.explained_variance_, edge=model.noise_edge_, n_above=model.n_above_noise_
        )
        assert ("signal" in held) <= (model.n_above_noise_ > 0)
    assert called <= stats.binom.isf(1e-6, 2 * draws, LEVEL)


@pytest.mark.slow
@pytest.mark.parametrize("solver", ["krylov", "fedpower"])
def test_wide_rows_of_zeros_show_no_variance_that_their_noise_does_not(solver: str) -> None:
    """Where every product is noised: twice the edge is shown with probability below 1e-6."""
    silos = [np.zeros((2000, 3000)), np.zeros((2001, 3000))]
    model = FedPCA(
        2,
        epsilon=1.0,
        row_norm=1.0,
        noise="step",
        solver=solver,
        center=False,
        standardize=False,
        random_state=1,
    ).fit_silos(silos)
    assert model.n_above_noise_ is not None
    assert model.explained_variance_[0] < 2.0 * model.noise_edge_


def test_the_verdict_over_a_noised_product_holds_however_the_basis_was_found() -> None:
    """A basis made of all noise before it, zero rows: binomial at LEVEL, fails below 1e-6."""
    d, width, runs = 60, 5, 400
    law, rng = NoiseLaw(once=False, std=0.1), np.random.default_rng(8)
    called = 0
    for _ in range(runs):
        basis = orth(rng.standard_normal((d, width)))
        for _ in range(4):
            product = law.std * rng.standard_normal((d, width))
            before, basis = basis, orth(product)
        found = find_signal_of_product(before, product, law=law, center=None, total_variance=0.0)
        called += found.n_above > 0
    assert called <= stats.binom.isf(1e-6, runs, LEVEL)


def test_a_released_mean_that_is_off_is_no_component() -> None:
    """Rows of zeros about a mean that is noise alone: A = eeᵀ. Fails with probability below 1e-6."""
    d, width, runs = 200, 5, 300
    law, rng = NoiseLaw(once=False, std=0.001, mean_std=0.05), np.random.default_rng(9)
    called = 0
    for _ in range(runs):
        error = law.mean_std * rng.standard_normal(d)
        start = np.column_stack([error, rng.standard_normal((d, width - 1))])
        basis = orth(start)
        product = np.outer(error, error @ basis) + law.std * rng.standard_normal((d, width))
        found = find_signal_of_product(
            basis, product, law=law, center=error, total_variance=float(error @ error)
        )
        called += found.n_above > 0
    assert called <= stats.binom.isf(1e-6, runs, LEVEL)


def test_planted_components_are_counted_where_every_product_is_noised() -> None:
    rng = np.random.default_rng(2)
    rows = 0.01 * rng.standard_normal((40_000, 60))
    rows[:, :2] += rng.standard_normal((40_000, 2)) * [0.4, 0.3]
    model = FedPCA(2, epsilon=1.0, row_norm=2.0, noise="step", standardize=False, random_state=0)
    model.fit_silos([rows[:20_000], rows[20_000:]])
    assert model.n_above_noise_ >= 2
    np.testing.assert_allclose(model.denoised_variance_, [0.16, 0.09], rtol=0.1)


def test_local_steps_at_the_end_leave_no_verdict() -> None:
    rows = np.random.default_rng(0).standard_normal((400, 12))
    model = FedPCA(
        2,
        epsilon=1.0,
        row_norm=1.0,
        noise="step",
        solver="fedpower",
        local_steps=2,
        standardize=False,
        random_state=0,
    ).fit_silos([rows[:200], rows[200:]])
    assert model.n_above_noise_ is None
    held = standings(model.explained_variance_, edge=model.noise_edge_, n_above=None)
    assert held == ["unknown", "unknown"]


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


@pytest.mark.parametrize(
    ("norm", "least", "most"), [(0.0, 0.4, 1.5), (2.2, 0.4, 1.7), (4.0, 0.3, 2.4)]
)
def test_the_noise_level_is_what_noise_alone_shows_also_where_rows_are_centred(
    norm: float, least: float, most: float
) -> None:
    """Rows without variance, of that norm, bound 4.5: the largest eigenvalue is near the level.

    At d = 20 its mean is .90, .96 and .97 of the edge and its standard deviation .09, .10 and .17 (of 300
    fits each): the upper limits are seven of them away or more, the lower ones below what 300 fits
    showed by two more, of a law that falls off faster there.
    """
    rows = np.zeros((500, 20))
    rows[:, 0] = norm
    fits = [FedPCA(1, epsilon=1.0, delta=1e-6, row_norm=4.5).fit(rows) for _ in range(5)]
    ratios = [float(fit.spectrum_[0]) / fit.noise_edge_ for fit in fits]
    assert min(ratios) > least
    assert max(ratios) < most
