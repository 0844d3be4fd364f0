"""The bounds hold on random neighbours, and the worst neighbours attain them."""

import math

import numpy as np
import pytest

from fedpower.errors import InputError
from fedpower.privacy.sensitivity import (
    mean_sensitivity,
    moment_sensitivity,
    paper_sensitivity,
    product_sensitivity,
    rounding_slack,
)


def e(d, j):
    return np.eye(d)[j]


def difference(x, y):
    return np.outer(x, x) - np.outer(y, y)


def ball(rng, n, d):
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.where(rng.random((n, 1)) < 0.5, 1.0, rng.random((n, 1)))


def test_the_moment_bound_is_attained_by_orthogonal_unit_rows():
    assert np.linalg.norm(difference(e(3, 0), e(3, 1))) / 10 == pytest.approx(
        moment_sensitivity(10), rel=1e-15
    )


@pytest.mark.parametrize(("r", "bound"), [(1, 1.0), (2, math.sqrt(2)), (3, math.sqrt(2))])
def test_the_product_bound_is_attained_by_the_leading_axes(r, bound):
    moved = np.linalg.norm(difference(e(4, 0), e(4, 1)) @ np.eye(4, r))
    assert moved == pytest.approx(bound, rel=1e-15)
    assert product_sensitivity(10, r) == pytest.approx(bound / 10, rel=1e-15)


def test_the_mean_bound_is_attained_by_opposite_unit_rows():
    assert np.linalg.norm(e(3, 0) + e(3, 0)) / 10 == mean_sensitivity(10)


def test_the_paper_bound_is_as_printed_and_root_2r_times_ours():
    assert paper_sensitivity(100, 5) == 2 * math.sqrt(5) / 100
    assert paper_sensitivity(100, 5) / product_sensitivity(100, 5) == pytest.approx(math.sqrt(10))


@pytest.mark.parametrize("d", [1, 2, 5, 20])
def test_random_neighbours_never_exceed_the_bounds(d):
    rng = np.random.default_rng(d)
    for x, y in zip(ball(rng, 500, d), ball(rng, 500, d), strict=True):
        D = difference(x, y)
        assert np.linalg.norm(D) <= moment_sensitivity(1) + 1e-14
        assert np.linalg.norm(D, 2) <= product_sensitivity(1, 1) + 1e-14
        for r in range(1, min(d, 4) + 1):
            Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
            assert np.linalg.norm(D @ Z) <= product_sensitivity(1, r) + 1e-14


def test_the_computed_moment_stays_within_the_rounding_slack():
    rng = np.random.default_rng(3)
    X = ball(rng, 20_000, 3)
    exact = (X.T.astype(np.longdouble) @ X.astype(np.longdouble)) / len(X)
    one_by_one = np.zeros((3, 3))
    for x in X:
        one_by_one += np.outer(x, x)
    for computed in (X.T @ X / len(X), one_by_one / len(X)):
        assert 2 * np.linalg.norm((computed - exact).astype(float)) <= rounding_slack(len(X), 3)


def test_the_rounding_slack_is_negligible_for_common_sizes_and_smaller_in_blocks():
    assert rounding_slack(100_000, 100) < 2e-6 * moment_sensitivity(100_000)
    s = 10**8
    assert rounding_slack(s, 100, longest_sum=20_000) < 1e-3 * moment_sensitivity(s)
    assert rounding_slack(s, 100) > moment_sensitivity(s)


@pytest.mark.parametrize("n_rows", [0, -1, 1.5, float("nan"), "9", True])
def test_a_number_of_rows_that_is_none_is_refused(n_rows):
    with pytest.raises(InputError, match="n_rows must be a whole number of at least 1"):
        moment_sensitivity(n_rows)


def test_a_bad_rank_or_length_of_sum_is_refused():
    with pytest.raises(InputError, match="iteration_rank must be"):
        product_sensitivity(10, 0)
    with pytest.raises(InputError, match="longest_sum must be below"):
        rounding_slack(2**52, 10)
