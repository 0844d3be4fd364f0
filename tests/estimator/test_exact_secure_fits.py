"""Exact fits over secure sums: FedPCA(epsilon=inf, aggregation="secure")."""

import math

import numpy as np
import pytest

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.estimator.plan import plan
from fedpower.linalg import sin_theta
from problems import spiked_rows, split

ROWS = 50.0 + spiked_rows(n_rows=300, n_features=12, rank=3)
PARTS = dict(zip(("a", "b", "c"), split(ROWS, [150, 100, 50]), strict=True))
TERMS = {"epsilon": math.inf, "aggregation": "secure", "random_state": 0}


@pytest.mark.parametrize("solver", ["moment", "krylov"])
@pytest.mark.parametrize("k", [3, 0.9])
def test_a_fit_is_the_plain_one_to_rounding(solver, k):
    secure = FedPCA(k, **TERMS, solver=solver).fit_silos(PARTS)
    plain = FedPCA(k, epsilon=math.inf, solver="moment").fit_silos(PARTS)
    assert secure.n_components_ == plain.n_components_
    assert sin_theta(secure.components_.T, plain.components_.T) < 1e-8
    assert secure.mean_ == pytest.approx(plain.mean_, rel=1e-13)
    assert secure.explained_variance_ == pytest.approx(plain.explained_variance_, rel=1e-11)
    assert secure.explained_variance_ratio_ == pytest.approx(
        plain.explained_variance_ratio_, rel=1e-11
    )
    assert {row["kind"] for row in secure.history_} == {"call-roll", "masked-sum"}


def test_a_wide_fit_is_krylov_s_and_agrees_with_the_pooled_rows():
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((40, 6)) * [9, 8, 7, 6, 1, 1] @ rng.standard_normal((6, 9000))
    rows += 0.1 * rng.standard_normal(rows.shape)
    model = FedPCA(4, **TERMS).fit_silos(np.array_split(rows, 3))
    assert model.solver_.solver == "krylov"
    about = rows - rows.mean(axis=0)
    assert sin_theta(model.components_.T, np.linalg.svd(about, full_matrices=False)[2][:4].T) < 1e-6


def test_columns_are_standardised_by_the_sum_s_diagonal():
    model = FedPCA(3, **TERMS, standardize=True).fit_silos(PARTS)
    plain = FedPCA(3, epsilon=math.inf, standardize=True).fit_silos(PARTS)
    assert sin_theta(model.components_.T, plain.components_.T) < 1e-8


def test_columns_too_small_for_the_step_of_the_sums_are_named():
    rows = ROWS * np.array([1e8] + [1e-3] * 11)
    with pytest.warns(UserWarning, match="hold less than six digits"):
        FedPCA(3, **TERMS, standardize=True).fit_silos(np.array_split(rows, 3))


def test_the_statement_says_that_it_is_not_differentially_private_and_who_saw_what():
    text = str(FedPCA(3, **TERMS, solver="krylov", iteration_rank=3).fit_silos(PARTS).privacy_)
    assert "NOT PRIVATE" in text
    assert "NOT differentially private" in text
    assert "products of the pooled second moment with blocks of 3 columns" in text
    assert "2 that put what they added beside the coordinator's sums know" in text
    assert "rehearsal" in text
    two = FedPCA(3, **TERMS, solver="moment").fit_silos([PARTS["a"], PARTS["b"]])
    assert not two.privacy_.is_private
    assert "the whole second moment of all rows" in str(two.privacy_)
    assert "what is left is the other's share" in str(two.privacy_)
    assert two.privacy_.as_dict()["private"] is False


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"solver": "fedpower"}, "must go with solver='moment' or solver='krylov'"),
        ({"local_steps": 2}, "local_steps must be left alone"),
        ({"n_participants": 2}, "n_participants must be left alone"),
        ({"one_shot_start": True}, "one_shot_start must be left alone"),
        ({"standardize": True, "solver": "krylov"}, "standardize must go with the sum"),
        ({"n_components": "noise"}, "no noise to stand above"),
        ({"weights": "noise"}, "weights must be 'rows'"),
        ({"colluders": 3}, "more silos than the 3 that may collude"),
    ],
)
def test_what_exact_sums_cannot_go_with_is_refused_with_the_reason(change, sentence):
    with pytest.raises(InputError, match=sentence):
        FedPCA(**{"n_components": 3, **TERMS, **change}).fit_silos(PARTS)


def test_a_single_silo_is_refused():
    with pytest.raises(InputError, match="more silos than the 1 that may collude, got 1"):
        FedPCA(2, **TERMS).fit_silos([ROWS])


def test_a_ledger_books_nothing_that_is_not_private(tmp_path):
    with pytest.raises(InputError, match="must be charged a finite epsilon"):
        FedPCA(2, **TERMS).fit_silos(PARTS, ledgers={"a": tmp_path / "a"})


def test_a_report_shows_what_the_sums_gave_away(tmp_path):
    FedPCA(3, **TERMS).fit_silos(PARTS).save(tmp_path / "result")
    page = (tmp_path / "result" / "report.html").read_text()
    assert "NOT differentially private" in page
    assert "whole second moment of all rows" in page


@pytest.mark.parametrize("solver", ["moment", "krylov"])
def test_a_plan_has_a_row_with_the_rounds_and_bytes_that_exact_sums_really_take(solver):
    model = FedPCA(3, **TERMS, solver=solver, iteration_rank=5, max_rounds=1, tol=0.5)
    sizes = {name: len(part) for name, part in PARTS.items()}
    made = plan(model, sizes=sizes, n_features=12, spectrum=[0.4, 0.3, 0.2, 1e-4])
    (way,) = (way for way in made.ways if way.chosen)
    assert (way.solver, way.aggregation, way.noise) == (solver, "secure", "none")
    fitted = model.fit_silos(PARTS)
    assert way.rounds == len(fitted.history_)
    up = sum(row["bytes_up"] for row in fitted.history_) / 3
    down = sum(row["bytes_down"] for row in fitted.history_) / 3
    assert way.bytes_up == pytest.approx(up, abs=64)
    assert way.bytes_down == pytest.approx(down, abs=64 * way.rounds)


@pytest.mark.slow
def test_a_plan_says_what_is_out_of_reach_how_many_rows_it_takes_and_what_there_is_instead():
    model = FedPCA(3, epsilon=1.0, row_norm=1.0)
    (said,) = plan(model, sizes=[100] * 3, n_features=300).remarks
    assert "out of reach at epsilon=1 with 300 rows" in str(said)
    assert "even if they held half of the variance" in str(said)
    assert "aggregation='secure'" in str(said)
    assert "NOT differentially private" in str(said)
    needed = int(str(said).split("about ")[1].split(" would")[0].replace(",", ""))
    enough = [needed // 3] * 3
    assert plan(model, sizes=enough, n_features=300).remarks == ()
    spectrum = [0.5 / 3] * 3 + [1e-4]
    made = plan(model, sizes=enough, n_features=300, spectrum=spectrum)
    errors = [way.error for way in made.ways if way.noise == "moment" and way.error is not None]
    assert min(errors) < 0.7
    alone = plan(model, sizes=[300], n_features=300).remarks
    assert all("aggregation" not in str(each) for each in alone)


def test_a_plan_with_a_spectrum_that_noise_hides_says_so():
    model = FedPCA(3, epsilon=1.0, row_norm=1.0)
    made = plan(model, sizes=[500] * 3, n_features=50, spectrum=[0.02, 0.02, 0.02, 0.001])
    assert any("out of reach" in str(each) for each in made.remarks)
    seen = plan(model, sizes=[10**6] * 3, n_features=50, spectrum=[0.02, 0.02, 0.02, 0.001])
    assert not any("out of reach" in str(each) for each in seen.remarks)
