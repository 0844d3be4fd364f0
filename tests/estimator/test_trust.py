"""Numbers that cannot be trusted are announced, and as many components are kept as are determined."""

import warnings

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, load
from fedpower.exceptions import NoiseWarning
from fedpower.linalg import sin_theta
from fedpower.protocol.solvers.angles import DETERMINED
from problems import Array

EXACT = {"epsilon": float("inf"), "solver": "upload", "standardize": False}


def rows_of(n_rows: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).standard_normal((n_rows, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0]


def test_a_column_that_drowns_the_others_in_rounding_is_announced(tmp_path):
    rows = rows_of(400)
    rows[:, 4] *= 1e12
    with pytest.warns(UserWarning, match="4 columns vary less than the rounding error of the largest"):
        model = fed_pca(2, **EXACT).fit(rows)
    model.save(tmp_path / "out")
    assert load(tmp_path / "out").run["remarks"] == model.warnings_
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert "vary less than the rounding error of the largest" in page


def test_usual_rows_are_announced_nothing_of_and_those_whose_squares_vanish_are():
    with pytest.warns(UserWarning, match="no variance that float64 can represent"):
        fed_pca(2, **EXACT).fit(rows_of(50) * 1e-300)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert fed_pca(2, **EXACT).fit(rows_of(50)).warnings_ == []
        fed_pca(2, **EXACT).fit(rows_of(3))  # fewer rows than columns: variances of zero, no lost ones
        warnings.simplefilter("ignore", NoiseWarning)  # so few rows are noise, and that is said
        FedPCA(2, epsilon=1.0, delta=1e-06, codebook=CodeBook(row_norm=9.0)).fit_silos(
            [rows_of(90), rows_of(80, 1)]
        )


@pytest.mark.parametrize("private", [False, True])
def test_the_same_rows_under_two_names_are_announced(*, private):
    silos = {"north": rows_of(90), "south": rows_of(90).copy(), "east": rows_of(90, 1)}
    terms = {"epsilon": 1.0, "row_norm": 9.0, "delta": 1e-6} if private else EXACT
    with pytest.warns(UserWarning, match="silos 'north' and 'south' hold the same rows"):
        fed_pca(2, **terms).fit_silos(silos)


@pytest.mark.slow
def test_tiny_silos_are_announced_and_weights_make_up_for_them():
    """Nine silos of a row beside one of 20,000: medians over 3 fits, which are three apart."""
    rng = np.random.default_rng(4)
    rows = rng.standard_normal((20_009, 20)) * np.sqrt(np.append([0.2, 0.15], np.full(18, 0.005)))
    large, tiny = rows[:20_000], {f"tiny-{place}": rows[[20_000 + place]] for place in range(9)}
    truth = np.linalg.eigh(large.T @ large)[1][:, -2:]

    terms = {"epsilon": 0.5, "delta": 1e-6, "center": False, "standardize": False, "row_norm": 2.0}

    def error(silos: dict[str, Array], weights: str) -> float:
        fits = (fed_pca(2, weights=weights, random_state=seed, **terms) for seed in range(3))
        return float(np.median([sin_theta(fit.fit_silos(silos).components_.T, truth) for fit in fits]))

    with pytest.warns(UserWarning, match="each silo adds equal noise"):
        pooled = error({"large": large, **tiny}, "rows")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.simplefilter("ignore", NoiseWarning)
        weighed = error({"large": large, **tiny}, "noise")
        alone = error({"large": large}, "rows")
    assert weighed < 0.6 * pooled
    assert weighed == pytest.approx(alone, rel=0.8)


@pytest.mark.parametrize(
    ("solver", "noise"),
    [("upload", "covariance"), ("krylov", "covariance"), ("krylov", "step"), ("fedpower", "step")],
)
def test_weights_count_alike_in_every_solver(solver, noise):
    """Two silos that differ: with weights s² the pooled moment is nearly the larger one's."""
    rng = np.random.default_rng(1)
    large = rng.standard_normal((60_000, 6)) * [0.5, 0.05, 0.05, 0.05, 0.05, 0.05]
    small = rng.standard_normal((600, 6)) * [0.05, 3.0, 0.05, 0.05, 0.05, 0.05]
    terms = {"epsilon": 20.0, "delta": 1e-6, "center": False, "standardize": False, "row_norm": 4.0}
    model = fed_pca(1, solver=solver, noise=noise, weights="noise", iteration_rank=3, random_state=0, **terms)
    model.fit_silos([large, small])
    assert abs(model.components_[0, 0]) > 0.99
    assert model.explained_variance_[0] == pytest.approx(0.25, rel=0.1)


def test_weights_by_rows_leave_the_terms_as_they_were():
    rows, other = (
        fed_pca(2, epsilon=1.0, delta=1e-06, row_norm=9.0, weights=weights).fit(rows_of(90)).study_
        for weights in ("rows", "noise")
    )
    assert rows.digest != other.digest
    assert rows.moment_terms == other.moment_terms  # what a silo releases does not depend on weights


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
        assert model.solver_.solver == "upload"


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
    [*((noise, solver) for noise in ("covariance", "step") for solver in ("krylov", "fedpower")),
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
