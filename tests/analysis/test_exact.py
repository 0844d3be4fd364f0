"""Without noise every analysis of a moment is what the rows give centrally."""

import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.stats
from sklearn.decomposition import PCA
from sklearn.decomposition import FactorAnalysis as CentralFactors
from sklearn.linear_model import LinearRegression, Ridge
from sklearn.pipeline import make_pipeline

from benchmarks.fits import congruence
from fedpower import FedCovariance
from fedpower.analysis import AdjustedPCA, Correlations, FactorAnalysis, MeanTests, ProcessMonitor, Regression
from fedpower.exceptions import InputError
from fedpower.protocol.pooled import Clipping
from fedpower.report.covariance import Covariance

NAMES = ("age", "bmi", "sbp", "dbp", "hdl", "ldl", "tg")
CLOSE = 1e-8


def frame(rows: int = 1500) -> pd.DataFrame:
    rng = np.random.default_rng(2)
    loadings = np.zeros((7, 2))
    loadings[:4, 0], loadings[3:, 1] = (0.9, 0.8, 0.8, 0.5), (0.5, 0.9, 0.8, 0.7)
    made = rng.standard_normal((rows, 2)) @ loadings.T + rng.standard_normal((rows, 7)) * 0.5
    return pd.DataFrame(made * [1, 2, 3, 1, 1, 0.5, 1] + [5, 4, 3, 2, 1, 0, 0], columns=NAMES)


ROWS = frame()


@pytest.fixture(scope="module")
def release() -> Covariance:
    parts = {name: ROWS[place::3] for place, name in enumerate(("north", "south", "east"))}
    return FedCovariance(epsilon=float("inf")).fit_silos(parts).release_


def near(one: Any, other: Any) -> None:
    assert np.allclose(one, other, rtol=CLOSE, atol=CLOSE), np.abs(np.subtract(one, other)).max()


def test_correlations_are_numpys_and_their_intervals_fishers(release):
    found = Correlations().fit(release)
    near(found.correlation_, np.corrcoef(ROWS.T))
    # Fisher: the error of arctanh r is 1/√n, drawn with 1,000 draws: 6 deviations of them are 14%.
    expected = (1 - found.correlation_**2) / np.sqrt(len(ROWS))
    off = ~np.eye(7, dtype=bool)
    assert np.allclose(found.standard_error_[off], expected[off], rtol=0.14)
    near(Correlations(sampling=False).fit(release).low_, found.correlation_)


def test_ridge_and_regression_on_components_are_scikit_learns(release):
    columns = ["bmi", "sbp", "ldl", "tg"]
    for alpha in (0.0, 50.0):
        central = Ridge(alpha=alpha, tol=1e-12).fit(ROWS[columns], ROWS["hdl"])
        found = Regression("hdl", predictors=columns, alpha=alpha).fit(release)
        near(found.coef_, central.coef_)
        near(found.intercept_, central.intercept_)
        near(found.predict(ROWS), central.predict(ROWS[columns]))
        near(found.r2_, central.score(ROWS[columns], ROWS["hdl"]))
    columns = [name for name in NAMES if name != "hdl"]
    for k in (1, 3, 6):
        central = make_pipeline(PCA(k, svd_solver="full"), LinearRegression())
        central.fit(ROWS[columns], ROWS["hdl"])
        near(Regression("hdl", n_components=k).fit(release).predict(ROWS), central.predict(ROWS[columns]))
    # The errors of least squares are the textbook's; of 1,000 draws 6 deviations are 14%.
    rows = ROWS[columns].to_numpy()
    left = np.var(ROWS["hdl"] - LinearRegression().fit(rows, ROWS["hdl"]).predict(rows))
    apart = rows - rows.mean(0)
    expected = np.sqrt(left * np.diagonal(np.linalg.inv(apart.T @ apart)))
    assert np.allclose(Regression("hdl").fit(release).standard_error_, expected, rtol=0.14)


def test_factors_are_nearly_scikit_learns(release):
    options = {"tol": 1e-3, "max_iter": 1000, "svd_method": "lapack", "rotation": "varimax"}
    central, found = CentralFactors(2, **options).fit(ROWS), FactorAnalysis(2).fit(release)
    assert congruence(found.components_.T, central.components_.T).min() > 0.95


@pytest.mark.parametrize("standardize", [False, True])
def test_adjusted_components_are_those_of_the_residuals(release, standardize):
    covariates, kept = ["age", "tg"], [name for name in NAMES if name not in ("age", "tg")]
    fitted = LinearRegression().fit(ROWS[covariates], ROWS[kept])
    residuals = ROWS[kept].to_numpy() - fitted.predict(ROWS[covariates])
    residuals /= ROWS[kept].std().to_numpy() if standardize else 1.0
    central = PCA(3, svd_solver="full").fit(residuals)
    found = AdjustedPCA(3, covariates=covariates, standardize=standardize).fit(release)
    near(found.explained_variance_, central.explained_variance_)
    near(found.explained_variance_ratio_, central.explained_variance_ratio_)
    signs = np.sign(np.sum(found.components_ * central.components_, axis=1))
    near(found.components_, central.components_ * signs[:, None])
    near(found.transform(ROWS), central.transform(residuals) * signs)
    # A normal variance has an error of θ√(2/n); 1,000 draws are within 14% of it.
    expected = found.explained_variance_ * np.sqrt(2 / len(ROWS))
    assert np.allclose(found.standard_error_, expected, rtol=0.14)
    assert not found.component_angles_.any()
    assert not found.subspace_angles_.any()


def test_limits_and_statistics_are_those_of_a_central_pca(release):
    scaled = (ROWS - ROWS.mean()) / ROWS.std()
    central = PCA(svd_solver="full").fit(scaled)
    scores, variances = central.transform(scaled), central.explained_variance_
    t2 = np.sum(scores[:, :2] ** 2 / variances[:2], axis=1)
    spe = np.sum(scores[:, 2:] ** 2, axis=1)
    n, first, second = len(ROWS), variances[2:].sum(), np.sum(variances[2:] ** 2)
    found = ProcessMonitor(2, level=0.95).fit(release)
    near(found.statistics(ROWS), np.column_stack([t2, spe]))
    near(found.t2_limit_, 2 * (n**2 - 1) / (n * (n - 2)) * scipy.stats.f.ppf(0.95, 2, n - 2))
    near(found.spe_limit_, second / first * scipy.stats.chi2.ppf(0.95, first**2 / second))
    beyond = (t2 > found.t2_limit_) | (spe > found.spe_limit_)
    assert np.array_equal(found.predict(ROWS) == -1, beyond)


def test_tests_of_means_are_z_tests_and_with_factors_those_of_the_residuals(release):
    null = dict(zip(NAMES, (5.0, 4.0, 3.0, 2.0, 1.0, 0.5, 0.0), strict=True))
    plain = MeanTests(null=null).fit(release)
    away = (ROWS.mean() - pd.Series(null)).to_numpy()
    error = ROWS.std().to_numpy() / np.sqrt(len(ROWS))
    near(plain.statistic_, away / error)
    near(plain.q_value_, scipy.stats.false_discovery_control(2 * scipy.stats.norm.sf(abs(away / error))))
    values, vectors = np.linalg.eigh(np.cov(ROWS.T))
    loadings = vectors[:, -2:] * np.sqrt(values[-2:])
    nearest = np.argsort(np.abs(away) / error)[:6]
    factors = np.linalg.lstsq(loadings[nearest], away[nearest], rcond=None)[0]
    adjusted = MeanTests(2, null=null, null_share=0.8).fit(release)
    near(adjusted.mean_ - list(null.values()), away - loadings @ factors)
    assert adjusted.rejected_[NAMES.index("ldl")]
    assert (adjusted.noise_share_ == 0).all()


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (FactorAnalysis(5), "n_factors must be a whole number k"),
        (FactorAnalysis(1, rotation="oblique"), "rotation must be one of 'varimax', 'none'"),  # type: ignore[arg-type]
        (Regression("weight"), "the covariance has no column 'weight'"),
        (Regression("age", alpha=-1), "alpha must be 0 or more"),
        (Regression("age", predictors=["age"]), "predictors must be columns other than the target"),
        (
            Regression("age", n_components=7),
            "n_components must be at most 6, the number of predictors, got 7",
        ),
        (AdjustedPCA(1, covariates=NAMES), "covariates must be some of the columns, but not all"),
        (AdjustedPCA(7, covariates=["age"]), "n_components must be at most 6, the number of other columns"),
        (ProcessMonitor(7), "n_components must be at most 6, below the 7 columns, got 7"),
        (Correlations(level=95), "level must be a number between 0 and 1, got 95"),
        (MeanTests(7), "n_factors must be at most 6, below the 7 columns"),
        (MeanTests(null=[1.0, 2.0]), "null must be a number"),
        (MeanTests(null_share=0), "null_share must be above 0"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(model, sentence, release):
    with pytest.raises(InputError, match=sentence):
        model.fit(release)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("model", "said"),
    [
        (Regression(0), "columns must vary independently .* "),
        (AdjustedPCA(1, covariates=[1, 2]), "columns must vary independently .* "),
        (Correlations(), ""),
        (FactorAnalysis(1), ""),
    ],
)
def test_columns_that_do_not_vary_or_follow_from_others_are_named(model, said):
    rows = np.random.default_rng(0).standard_normal((100, 5))
    rows[:, 2] = 7.0
    with pytest.raises(InputError, match=f"{said}got 'x2', which is constant"):
        model.fit(FedCovariance(epsilon=float("inf")).fit(rows).release_)
    if said:
        rows[:, 2] = rows[:, 1]
        with pytest.raises(InputError, match=f"{said}a column that others determine"):
            model.fit(FedCovariance(epsilon=float("inf")).fit(rows).release_)


def test_a_constant_column_has_no_part_in_adjusted_components():
    rows = np.random.default_rng(0).standard_normal((100, 4))
    rows[:, 3] = 0.1
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        found = AdjustedPCA(2, covariates=[0]).fit(FedCovariance(epsilon=float("inf")).fit(rows))
        with pytest.raises(InputError, match="got 'x3', which is constant"):
            ProcessMonitor(1).fit(found.release_)
    assert found.scale_[2] == 1.0
    assert not found.components_[:, 2].any()


def test_sentences_name_only_the_errors_that_count(release):
    told = {wanted: Correlations(sampling=wanted).fit(release).account() for wanted in (True, False)}
    assert "noise and sampling make any of these findings wrong" in told[True].sentences[0]
    assert "noise makes any of these findings wrong" in told[False].sentences[0]
    counted = Clipping(0.0, 1.0, 0.0, 0.0, 0.0, counted=True)
    unclipped = Correlations().fit(release.with_record(clipping=counted)).account()
    assert not any("clipping" in sentence for sentence in unclipped.sentences)


@pytest.mark.parametrize(
    ("rows", "sentence"),
    [
        (frame(5).drop(columns=frame(5).columns[1]), "got a table without"),
        (np.array([["a"] * len(frame(1).columns)]), "as numbers, got something else"),
        (np.zeros((3, 2)), r"got shape \(3, 2\)"),
    ],
)
def test_new_rows_without_the_columns_are_refused(rows, sentence, release):
    with pytest.raises(InputError, match=f"X must have the .* columns of the covariance.*{sentence}"):
        ProcessMonitor(2).fit(release).predict(rows)
