"""A plan reads public facts only, and its predictions come true."""

import math
from functools import partial

import numpy as np
import pytest

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, load
from fedpower.estimator.plan import full_spectrum, planned, spectrum_of_gap, spectrum_of_result
from fedpower.estimator.terms import options_of
from fedpower.exceptions import InputError, NoiseWarning
from fedpower.linalg import sin_theta
from problems import Array

SIZES = [20_000, 30_000, 50_000]
D, K = 20, 3


@pytest.fixture(scope="module")
def unit_rows() -> Array:
    """Return unit rows whose moment has about the given eigenvalues, which add up to 1."""
    spectrum = full_spectrum([0.2, 0.15, 0.12, 0.03], D)
    rows = np.random.default_rng(1).standard_normal((sum(SIZES), D)) * np.sqrt(spectrum)
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@pytest.mark.slow
@pytest.mark.parametrize("epsilon", [0.3, 1.0, 4.0])
def test_predicted_errors_come_true(unit_rows, epsilon):
    """The median of 9 private fits is within 1.5 times of the prediction, for every way.

    A sine of a principal angle of a noised moment varies by about 20% from run to run; a median of 9
    leaves 1.5 times by chance with probability well below 1e-6.
    """
    parts = np.split(unit_rows, np.cumsum(SIZES)[:-1])
    values, vectors = np.linalg.eigh(unit_rows.T @ unit_rows / len(unit_rows))
    truth = vectors[:, ::-1][:, :K]
    model = FedPCA(K, epsilon=epsilon, delta=1e-06, center=False, codebook=CodeBook(normalize=True))
    made = planned(options_of(model), sizes=SIZES, n_features=D, spectrum=values[::-1], n_rehearsals=9)
    assert {(way.solver, way.noise) for way in made.candidates} >= {
        ("upload", "covariance"),
        ("fedpower", "step"),
        ("fedpower", "paper"),
    }
    for way in made.candidates:
        chosen = {"solver": way.solver, "noise": way.noise, "aggregation": way.aggregation}
        fits = [fed_pca(**{**model.get_params(), **chosen}).fit_silos(parts) for _ in range(9)]
        error = float(np.median([sin_theta(fit.components_.T, truth) for fit in fits]))
        assert way.error / 1.5 < error < way.error * 1.5, way
        rounds = len(fits[0].history_)
        assert abs(rounds - way.rounds) <= max(1, 0.3 * way.rounds)
        up = sum(row["bytes_up"] for row in fits[0].history_) / len(parts)
        # Twice as many where the noise is at the edge of drowning what float32 rounds away: some
        # answers are then sent as float64, and which ones is chance.
        assert 0.45 < way.bytes_up / way.rounds / (up / rounds) < 2.2


def test_the_way_that_auto_takes_is_marked_once_and_an_exact_plan_has_no_noise(unit_rows):
    model = FedPCA(K, epsilon=1.0, codebook=CodeBook(normalize=True))
    made = planned(options_of(model), sizes=SIZES, n_features=D, spectrum=[0.2, 0.1, 0.05], n_rehearsals=1)
    (chosen,) = [way for way in made.candidates if way.chosen]
    fit = model.fit_silos(np.split(unit_rows, np.cumsum(SIZES)[:-1]))
    assert (chosen.solver, chosen.noise) == (fit.solver_.solver, fit.study_.noise)
    assert made.delta == fit.study_.delta
    made = planned(
        options_of(FedPCA(K, epsilon=math.inf)), sizes=SIZES, n_features=D, spectrum=[0.3, 0.2, 0.1, 0.01]
    )
    assert all(way.noise_level == 0 for way in made.candidates)
    assert all(way.error is not None and way.error < 1e-8 for way in made.candidates)


def test_spectra_are_completed_from_a_gap_or_the_trace_that_is_left():
    """Rows of norm at most 1 have a trace of at most 1: repeating .018 over 300 columns made it 5.4."""
    values = spectrum_of_gap(0.05, K, D)
    assert values[K - 1] - values[K] == pytest.approx(0.05)
    assert values.sum() == pytest.approx(1.0)
    given = [0.3, 0.1, 0.06, 0.04, 0.03, 0.02, 0.018]
    values = full_spectrum(given, 300)
    np.testing.assert_array_equal(values[:7], given)
    assert values.sum() == pytest.approx(1.0)


@pytest.mark.slow
def test_wide_moments_are_rehearsed_with_fewer_columns():
    d = 1500
    model = fed_pca(2, epsilon=1.0, center=False, row_norm=1.0, iteration_rank=6)
    made = planned(options_of(model), sizes=[60_000], n_features=d, spectrum=[0.3, 0.2, 0.001])
    (way,) = [way for way in made.candidates if (way.solver, way.aggregation) == ("upload", "plain")]
    # To first order sin θ is σ√(d/2) over the gap.
    assert way.error == pytest.approx(way.noise_level * np.sqrt(d / 2) / 0.2, rel=0.25)
    assert 4 * d * (d + 1) / 2 <= way.bytes_up <= 8.1 * d * (d + 1) / 2


def test_a_model_that_is_told_nothing_is_planned_with_its_preparation():
    mixed = np.eye(6) + [[3, 0, 0, 0, 0, 0]] * 6
    rows = np.random.default_rng(3).standard_normal((40_000, 6)) @ mixed + 30
    model = FedPCA(2, epsilon=1.0)
    made = planned(options_of(model), sizes=[20_000, 20_000], n_features=6)
    fit = model.fit_silos(np.split(rows, 2))
    (way,) = [way for way in made.candidates if way.chosen]
    assert made.preparation == pytest.approx(sum(fit.study_.preparation))
    assert made.preparation > 0
    assert made.missing is not None
    assert (way.rounds, way.error) == (len(fit.history_), None)
    for told, name in ((way.bytes_up, "bytes_up"), (way.bytes_down, "bytes_down")):
        # Numbers of the code book are sent in as many digits as they have.
        assert told == pytest.approx(sum(row[name] for row in fit.history_) / 2, rel=0.2)
    assert planned(options_of(FedPCA("auto", epsilon=1.0)), sizes=[20_000], n_features=6).candidates
    ranged = planned(options_of(FedPCA(2, epsilon=1.0, ranges={"age": (0, 1)})), sizes=[10**6], n_features=6)
    assert 0 < ranged.preparation < made.preparation
    for book in (fit.codebook_, CodeBook(row_norm=3.0)):
        spared = planned(options_of(model.set_params(codebook=book)), sizes=[4000], n_features=6)
        assert (spared.preparation, [way.rounds for way in spared.candidates if way.chosen]) == (0, [1])
    with pytest.raises(InputError, match="numbers for each of the 7 columns"):
        planned(options_of(model.set_params(codebook=fit.codebook_)), sizes=[2000], n_features=7)


@pytest.mark.slow
def test_the_epsilon_and_the_rows_that_an_error_needs_are_predicted_to_give_it():
    spectrum = [0.2, 0.15, 0.12, 0.03]

    def predicted(epsilon: float, n_rows: int) -> float:
        model = FedPCA(K, epsilon=epsilon, delta=1e-06, codebook=CodeBook(row_norm=1.0))
        made = planned(options_of(model), sizes=[n_rows], n_features=D, spectrum=spectrum)
        (error,) = [way.error for way in made.candidates if way.chosen]
        return error

    for wanted in (0.01, 0.3):
        model = FedPCA(K, epsilon=1.0, delta=1e-06, codebook=CodeBook(row_norm=1.0))
        needed = planned(
            options_of(model), sizes=[10_000], n_features=D, spectrum=spectrum, error=wanted
        ).needed
        # Two digits, rounded up: a tenth less of the first is not enough.
        assert predicted(needed.epsilon, 10_000) <= wanted < predicted(needed.epsilon * 0.85, 10_000)
        assert predicted(1.0, needed.n_rows) <= wanted < predicted(1.0, int(needed.n_rows * 0.85))
        assert f"needs ε = {needed.epsilon:g} with" in needed.sentence
        assert f"{needed.n_rows:,} rows at ε = 1" in needed.sentence


def test_an_error_that_no_epsilon_gives_is_said_to_be_out_of_reach():
    model = FedPCA(K, epsilon=1.0, codebook=CodeBook(row_norm=1.0))
    made = planned(options_of(model), sizes=[300], n_features=D, spectrum=[0.1, 0.05, 0.04, 0.01], error=1e-3)
    assert made.needed.epsilon is None
    assert "more than ε = 20 with these 300 rows" in made.needed.sentence
    unknown = planned(options_of(model), sizes=[300], n_features=D, error=0.1)
    assert unknown.needed is None
    assert "what an error of 0.1 takes" in unknown.missing


def test_an_earlier_result_is_a_spectrum_without_its_noise(tmp_path):
    rows = np.random.default_rng(5).standard_normal((30_000, 6)) * [4, 3, 1, 1, 1, 1]
    fit = FedPCA(2, epsilon=1.0, standardize=False, codebook=CodeBook(row_norm=10.0)).fit(rows)
    values = spectrum_of_result(load(fit.save(tmp_path / "earlier")))
    assert values.size == 6
    np.testing.assert_allclose(values[:2] * 100, fit.denoised_variance_, rtol=1e-2)
    assert values.sum() * 100 == pytest.approx(fit.explained_variance_[0] / fit.explained_variance_ratio_[0])
    np.testing.assert_allclose(spectrum_of_result(fit.result_, row_norm=20.0), values / 4)
    exact = FedPCA(2, epsilon=math.inf, standardize=False).fit(rows)
    with pytest.raises(InputError, match="must have a bound on row norms"):
        spectrum_of_result(exact.result_)
    truth = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    np.testing.assert_allclose(spectrum_of_result(exact.result_, row_norm=10.0)[:2], truth[:2] / 100)
    with pytest.warns(NoiseWarning):
        useless = FedPCA(2, epsilon=0.1, codebook=CodeBook(row_norm=1000.0)).fit(rows[:50])
    with pytest.raises(InputError, match="must have at least one determined component"):
        spectrum_of_result(useless.result_)


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        *((partial(full_spectrum, given, D), "spectrum must")
          for given in ([0.8, 0.3], [], [np.nan], [-1.0], np.ones(21))),
        *((partial(spectrum_of_gap, gap, K, D), "gap must") for gap in (0.0, 0.5)),
        *((partial(planned, options_of(model), sizes=[99], n_features=D, error=wanted), "error must")
          for model, wanted in ((FedPCA(K), 1.0), (FedPCA(0.9), 0.1), (FedPCA(K, epsilon=math.inf), 0.1))),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(wrong, sentence):
    with pytest.raises(InputError, match=sentence):
        wrong()
