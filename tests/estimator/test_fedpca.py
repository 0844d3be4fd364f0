"""``FedPCA`` in scikit-learn's manners, and equal to scikit-learn where nothing is private, in any units."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.datasets import load_breast_cancer, load_digits, load_wine
from sklearn.decomposition import PCA
from sklearn.exceptions import ConvergenceWarning
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

from benchmarks.fits import fed_pca
from benchmarks.preparation import MOST_DEGREES, MOST_OFF
from benchmarks.preparation import units_error as measured
from benchmarks.preparation import units_rows as rows_of
from fedpower import CodeBook, FedPCA
from fedpower.exceptions import InputError
from fedpower.linalg import fix_signs, sin_theta
from problems import Array, spiked_rows, split

INF = float("inf")


@parametrize_with_checks([FedPCA(epsilon=INF)])
def test_scikit_learn_s_own_checks_pass(estimator, check):
    check(estimator)


SOLVERS = ["upload", "krylov", "fedpower"]


def exact(n_components: float = 3, **more: Any) -> FedPCA:
    return fed_pca(n_components, **{"epsilon": INF, "standardize": False, "random_state": 0, **more})


@pytest.mark.parametrize("load", [load_digits, load_breast_cancer, load_wine])
@pytest.mark.parametrize("solver", SOLVERS)
def test_exact_fits_match_scikit_learn_s_pca(solver, load):
    rows: Array = load().data
    cuts = np.sort(np.random.default_rng(10).choice(np.arange(1, len(rows)), 9, replace=False))
    ours = exact(5, solver=solver).fit_silos(np.split(rows, cuts))
    theirs = PCA(5, svd_solver="full").fit(rows)
    signs = np.sign((ours.components_ * theirs.components_).sum(axis=1))
    np.testing.assert_allclose(ours.components_ * signs[:, None], theirs.components_, atol=1e-8)
    for name in ("explained_variance_", "explained_variance_ratio_", "singular_values_", "mean_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-8)
    np.testing.assert_allclose(ours.transform(rows) * signs, theirs.transform(rows), atol=1e-5, rtol=1e-8)
    for fraction in (0.5, 0.99) if load is not load_digits else ():
        part = exact(fraction, solver=solver).fit_silos(np.split(rows, cuts))
        assert part.n_components_ == PCA(fraction, svd_solver="full").fit(rows).n_components_
        assert part.explained_variance_ratio_.sum() > fraction
    converted = ours.to_sklearn()
    assert type(converted) is PCA
    assert (converted.n_components_, converted.n_samples_) == (theirs.n_components_, theirs.n_samples_)
    assert ours.n_samples_seen_ == theirs.n_samples_
    for model in (ours, converted):
        np.testing.assert_allclose(model.noise_variance_, theirs.noise_variance_, rtol=1e-6)
        np.testing.assert_allclose(model.score_samples(rows), theirs.score_samples(rows), rtol=1e-6)
        np.testing.assert_allclose(model.get_covariance(), theirs.get_covariance(), rtol=1e-6, atol=1e-9)
    np.testing.assert_allclose(ours.get_precision(), theirs.get_precision(), rtol=1e-5, atol=1e-9)


def test_groups_are_silos(rows):
    groups = np.repeat(["b", "a", "c"], [100, 200, 300])
    by_groups = exact().fit(rows, groups=groups)
    parts = split(rows, [100, 200, 300])
    by_silos = exact().fit_silos({"a": parts[1], "b": parts[0], "c": parts[2]})
    assert by_groups.history_[0]["participants"] == ("a", "b", "c")
    np.testing.assert_array_equal(by_groups.components_, by_silos.components_)


def test_the_history_has_a_row_for_every_round(rows):
    terms = {"iteration_rank": 3, "n_steps": 10, "tol": 0, "schedule": "decaying", "local_steps": 2}
    model = exact(center=False, solver="fedpower", **terms).fit_silos(split(rows, [200, 400]))
    assert [row["step"] for row in model.history_] == [2, 3, 4, 5, 6, 7, 8, 9, 10]
    assert all(row["participants"] == ("silo-1", "silo-2") for row in model.history_)
    assert all(row["bytes_up"] > 0 and row["bytes_down"] > 0 for row in model.history_)
    centred = exact(solver="fedpower", n_steps=2, tol=0).fit_silos(split(rows, [200, 400]))
    assert [row["kind"] for row in centred.history_] == ["mean", "steps", "steps"]


def test_tol_and_max_rounds_end_the_iteration(rows):
    loose = exact(solver="fedpower", iteration_rank=4, tol=0.01).fit(rows)
    tight = exact(solver="fedpower", iteration_rank=4, tol=1e-12).fit(rows)
    assert len(loose.history_) < len(tight.history_)
    with pytest.warns(ConvergenceWarning, match="still changed"):
        short = exact(solver="fedpower", iteration_rank=3, max_rounds=2).fit(rows)
    assert len([row for row in short.history_ if row["kind"] == "steps"]) == 2


def test_scale_and_normalize_are_applied_in_fit_and_transform(rows):
    scale = rows.std(axis=0)
    scaled = exact(scale=scale).fit(rows)
    reference = make_pipeline(StandardScaler(), PCA(3)).fit(rows)
    assert sin_theta(scaled.components_.T, reference[-1].components_.T) < 1e-8
    np.testing.assert_allclose(np.abs(scaled.transform(rows)), np.abs(reference.transform(rows)))
    back = exact(12, scale=scale).fit(rows)
    np.testing.assert_allclose(back.inverse_transform(back.transform(rows)), rows, atol=1e-8)
    unit = rows / np.linalg.norm(rows, axis=1, keepdims=True)
    normal = exact(normalize=True).fit(rows)
    assert sin_theta(normal.components_.T, PCA(3).fit(unit).components_.T) < 1e-8
    np.testing.assert_allclose(normal.transform(rows), normal.transform(unit), atol=1e-9)
    for model in (scaled, normal):
        found = model.to_sklearn().transform(sparse.csr_array(rows))
        np.testing.assert_allclose(found, model.transform(rows), atol=1e-9)


def test_sparse_tables_and_frames_give_what_arrays_give_by_name(rows):
    thin = np.where(np.abs(rows) > 1, rows, 0.0)
    names = [f"x{i}" for i in range(12)]
    dense = exact().fit_silos(np.split(thin, 3))
    for convert in (
        sparse.csr_array,
        sparse.coo_matrix,
        lambda part: pd.DataFrame(part, columns=names)[names[::-1]],
        lambda part: pa.table(dict(zip(names, part.T, strict=True))),
    ):
        parts = [convert(part) for part in np.split(thin, 3)]
        np.testing.assert_allclose(exact().fit_silos(parts).mean_.sum(), dense.mean_.sum(), atol=1e-8)
        np.testing.assert_allclose(exact().fit_silos(parts).singular_values_, dense.singular_values_)
    frame = pd.DataFrame(rows, columns=names)
    model = exact().fit_silos([frame[:200], frame[200:][names[::-1]]])
    np.testing.assert_allclose(model.components_, exact().fit(rows).components_, atol=1e-8)
    assert list(model.feature_names_in_) == names
    assert list(model.set_output(transform="pandas").transform(frame).columns) == ["pc1", "pc2", "pc3"]
    with pytest.raises(InputError, match="x3"):
        exact().fit_silos([frame, frame.drop(columns="x3")])
    exact().fit_silos([frame, frame.assign(extra=1.0)], extra_columns="drop")


def test_hard_rows_have_the_variances_that_scikit_learn_finds(rows):
    """A silo with few rows, constant columns, zero rows, rows all the same, more columns than rows."""
    few = exact(solver="fedpower", schedule="decaying", local_steps=3)
    few.fit_silos([rows[:1], rows[1:3], rows[3:]])
    assert sin_theta(few.components_.T, PCA(3).fit(rows).components_.T) < 1e-3
    flat = rows.copy()
    flat[:, 4], flat[:50] = 7.0, 0.0
    wide = np.random.default_rng(0).standard_normal((10, 40))
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        for k, held in ((12, flat), (9, wide), (2, np.ones((11, 4)))):
            model = exact(k).fit_silos(np.array_split(held, 3))
            variances = np.linalg.eigvalsh(np.cov(held.T))[::-1][:k]
            np.testing.assert_allclose(model.explained_variance_, variances, atol=1e-9)
            np.testing.assert_allclose(model.components_ @ model.components_.T, np.eye(k), atol=1e-9)


@pytest.mark.parametrize(
    ("silos", "sentence"),
    [
        ([], "at least one silo"),
        ("north.csv", "put a single silo into a list"),
        ([np.ones((3, 2)), np.ones((3, 4))], "2"),
        ([np.ones(3)], "2-d|two"),
        (["nowhere.csv"], "nowhere.csv"),
        (["a/x.csv", "b/x.csv"], "'x' more than once"),
        ([np.array([[1.0, np.nan], [2.0, 3.0]])], "row 1"),
        ([np.ones((1, 3))], "centring must have at least 2 rows, got n_samples = 1"),
    ],
)
def test_silos_that_cannot_be_used_are_refused_in_one_sentence(silos, sentence):
    with pytest.raises(InputError, match=sentence):
        exact(1).fit_silos(silos)


@pytest.mark.parametrize("convert", [np.asarray, sparse.csr_array, pd.DataFrame])
@pytest.mark.parametrize("cell", [np.nan, np.inf])
@pytest.mark.parametrize("given", [{}, {"normalize": True}, {"scale": [1.0, 2.0, 3.0]}])
def test_gaps_in_new_rows_are_refused_where_the_fit_had_none(given, cell, convert):
    rows = np.random.default_rng(0).standard_normal((60, 3))
    model = exact(2, **given).fit(rows)
    assert not model.result_.takes_gaps
    rows[3, 1] = cell
    got = "a missing value" if np.isnan(cell) else "an infinite value"
    for ask in (model.transform, model.score_samples, model.result_.transform, model.result_.score_samples):
        with pytest.raises(InputError, match=f"must hold finite numbers, got {got} .*at row 4") as caught:
            ask(convert(rows))
        assert "\n" not in str(caught.value)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_gaps_in_sparse_rows_are_refused_whatever_the_fit_had():
    rows = np.random.default_rng(0).standard_normal((300, 3))
    model = FedPCA(1, epsilon=1.0).fit(rows)
    rows[3, 1] = np.nan
    assert np.isfinite(model.transform(rows)).all()
    with pytest.raises(InputError, match="column 2 of the sparse matrix must hold finite numbers"):
        model.transform(sparse.csr_array(rows))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("noise", "solver", "error"),
    [
        ("covariance", "upload", 0.01),
        ("covariance", "fedpower", 0.01),
        ("covariance", "krylov", 0.01),
        ("step", "krylov", 0.04),
        ("step", "fedpower", 0.04),
        ("paper", "fedpower", 0.2),
    ],
)
@pytest.mark.parametrize("center", [True, False])
def test_with_a_large_budget_a_private_fit_nears_the_exact_one(noise, solver, error, center):
    """Noise is never seeded; every bound is ten standard deviations away (P < 1e-6)."""
    parts = np.split(spiked_rows(n_rows=60_000, seed=5) + 0.5, 3)
    wanted = exact(center=center, row_norm=12.0).fit_silos(parts)
    told = {"epsilon": 20.0, "delta": 1e-6, "noise": noise, "solver": solver}
    private = exact(center=center, row_norm=12.0, **told).fit_silos(parts)
    assert sin_theta(private.components_.T, wanted.components_.T) < error
    for name in ("explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(private, name), getattr(wanted, name), rtol=error)
    np.testing.assert_allclose(private.mean_, wanted.mean_, atol=0.05)
    assert private.privacy_.is_private
    assert "ε = 20" in str(private.privacy_)


ROWS = rows_of(3_000, 6, seed=1)
SILOS = {"north": ROWS[:1_000], "south": ROWS[1_000:]}
ITERATIONS: list[dict[str, Any]] = [
    {},
    {"solver": "krylov"},
    {"solver": "fedpower"},
    {"local_steps": 3, "drift_correction": True},
]


@pytest.mark.parametrize("solver", ITERATIONS)
def test_an_exact_standardised_fit_is_scikit_learns(solver):
    scaler = StandardScaler().fit(ROWS)
    theirs = PCA(3).fit(scaler.transform(ROWS))
    ours = fed_pca(3, epsilon=INF, **solver).fit_silos(SILOS)
    for name in ("explained_variance_", "explained_variance_ratio_"):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-7)
    axes = fix_signs(theirs.components_.T).T
    np.testing.assert_allclose(ours.components_, axes, atol=1e-6)
    np.testing.assert_allclose(ours.mean_, ROWS.mean(axis=0), rtol=1e-9)
    scores = theirs.transform(scaler.transform(ROWS)) * np.sign((theirs.components_ * axes).sum(axis=1))
    np.testing.assert_allclose(ours.transform(ROWS), scores, atol=1e-4 * np.abs(scores).max())
    whole = FedPCA(6, epsilon=INF).fit_silos(SILOS)
    np.testing.assert_allclose(whole.inverse_transform(whole.transform(ROWS)), ROWS, rtol=1e-7)
    np.testing.assert_allclose(ours.to_sklearn().transform(ROWS), ours.transform(ROWS), rtol=1e-6)


@pytest.mark.parametrize(("solver", "gaps"), [*((solver, False) for solver in SOLVERS), ("auto", True)])
@pytest.mark.parametrize("constant", [0.1, 7.0, 1e6 + 0.1])
def test_a_constant_column_has_no_variance_though_its_mean_is_rounded(solver, constant, gaps):
    frame = pd.DataFrame(ROWS, columns=list("abcdef")).assign(d=constant)
    if gaps:
        frame.loc[::7, "a"] = np.nan
    book = CodeBook(rules={"a": {"kind": "number"}})
    parts = [frame[place::3] for place in range(3)]
    model = fed_pca(3, epsilon=INF, solver=solver, codebook=book).fit_silos(parts)
    assert model.result_.scale[3] >= 1.0
    assert np.abs(model.components_[:, 3]).max() < 1e-6


@pytest.mark.parametrize("solver", SOLVERS)
def test_uncentred_columns_are_divided_by_their_root_mean_squares(solver):
    scaled = ROWS / np.sqrt(np.mean(ROWS**2, axis=0))
    truth = np.linalg.eigh(scaled.T @ scaled / len(scaled))[1][:, -2:]
    model = FedPCA(2, epsilon=INF, center=False, solver=solver).fit_silos(SILOS)
    assert sin_theta(model.components_.T, truth) < 1e-7
    np.testing.assert_allclose(model.result_.scale, np.sqrt(np.mean(ROWS**2, axis=0)), rtol=1e-9)


@pytest.mark.parametrize("standardize", [True, False])
@pytest.mark.usefixtures("seeded")
def test_private_is_near_exact(standardize):
    angle, off = measured(standardize=standardize, epsilon=4.0, n_rows=20_000, n_features=8, seed=0)
    assert angle <= MOST_DEGREES
    assert off <= MOST_OFF
