"""Scoring: zero error and full variance for the truth, the library's own measures for the rest."""

import numpy as np
import pytest

from benchmarks.data_sets import Truth
from fedpower.linalg import captured_variance_ratio, orth, sin_theta
from problems import Array


def test_the_exact_subspace_has_no_error_and_captures_all(rows: Array) -> None:
    truth = Truth.of(rows, 3)
    turned = truth.basis @ orth(np.random.default_rng(0).standard_normal((3, 3)))
    found = truth.score(turned)
    assert found["error"] == pytest.approx(0.0, abs=1e-12)
    assert found["captured"] == pytest.approx(1.0)


def test_scores_are_the_library_s_measures(rows: Array) -> None:
    truth = Truth.of(rows, 3)
    basis = orth(np.random.default_rng(0).standard_normal((rows.shape[1], 3)))
    assert truth.score(basis) == {
        "error": sin_theta(basis, truth.basis),
        "captured": pytest.approx(captured_variance_ratio(basis, truth.moment)),
    }


def test_centred_truth_is_that_of_centred_rows(rows: Array) -> None:
    shifted = rows + 3.0
    centred = Truth.of(shifted - shifted.mean(axis=0), 2)
    assert Truth.of(shifted, 2, centred=True).moment == pytest.approx(centred.moment, abs=1e-9)


def test_a_basis_with_fewer_columns_is_not_scored_as_if_it_had_all(rows: Array) -> None:
    truth = Truth.of(rows, 3)
    with pytest.raises(ValueError, match="basis must be"):
        truth.score(truth.basis[:, :2])
