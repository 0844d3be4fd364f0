"""Linear algebra of bases, symmetric matrices and noised products: identities, else brute force."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from fedpower.linalg import (
    ALIGNMENTS,
    complement,
    goe_quantile,
    is_orthonormal,
    lower_of,
    orth,
    product_noise,
    rayleigh_ritz,
    rounding_level,
    sin_theta,
    spectrum_and_leading,
    subspace_error,
    symmetric_of,
)
from problems import Array

seeds = st.integers(0, 10_000)


def random_basis(seed: int, d: int = 9, r: int = 3) -> Array:
    return orth(np.random.default_rng(seed).standard_normal((d, r)))


@given(seeds)
def test_orth_spans_the_same_and_is_unique(seed):
    product = np.random.default_rng(seed).standard_normal((9, 3))
    basis = orth(product)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-13)
    assert sin_theta(basis, np.linalg.qr(product)[0]) < 1e-12
    triangle = basis.T @ product
    assert (np.diagonal(triangle) > 0).all()
    np.testing.assert_allclose(orth(basis @ np.abs(triangle)), orth(basis @ np.abs(triangle)))


@pytest.mark.parametrize("product", [np.zeros((5, 3)), np.ones((5, 3)), np.eye(5)[:, [0, 0, 1]]])
def test_orth_of_a_rank_deficient_product_is_still_orthonormal(product):
    assert is_orthonormal(orth(product), 1e-12)


@given(seeds)
def test_alignments_are_the_best_of_their_kind_and_bring_a_turned_basis_back(seed):
    basis, reference = random_basis(seed), random_basis(seed + 1)
    best = ALIGNMENTS["procrustes"](basis, reference)
    np.testing.assert_allclose(best.T @ best, np.eye(3), atol=1e-12)
    error = np.linalg.norm(basis @ best - reference)
    for other in range(20):
        turn = random_basis(seed + other, 3, 3)
        assert error <= np.linalg.norm(basis @ turn - reference) + 1e-12
    got = np.linalg.norm(basis @ ALIGNMENTS["sign"](basis, reference) - reference)
    patterns = np.array(np.meshgrid(*[[-1.0, 1.0]] * 3)).reshape(3, -1).T
    assert got == pytest.approx(min(np.linalg.norm(basis * pattern - reference) for pattern in patterns))
    back = ALIGNMENTS["procrustes"](basis @ turn, basis)
    np.testing.assert_allclose(basis @ turn @ back, basis, atol=1e-12)
    np.testing.assert_array_equal(ALIGNMENTS["identity"](basis @ turn, basis), np.eye(3))


def test_a_basis_with_a_non_finite_entry_is_not_orthonormal():
    for entry, is_sound in ((0.0, True), (np.nan, False), (np.inf, False)):
        basis = np.eye(4)[:, :2].copy()
        basis[3, 0] = entry
        assert is_orthonormal(basis) is is_sound


D = 9


def symmetric(seed: int, d: int = D) -> Array:
    drawn = np.random.default_rng(seed).standard_normal((d, d))
    return (drawn + drawn.T) / 2


@given(seed=st.integers(0, 100))
def test_the_error_estimate_bounds_the_angle_once_the_next_value_is_known(seed):
    rng = np.random.default_rng(seed)
    vectors = orth(rng.standard_normal((D, D)))
    spectrum = np.array([5.0, 4.0, 3.0, 1.0, 0.9, 0.5, 0.2, 0.1, 0.0])
    matrix = (vectors * spectrum) @ vectors.T
    basis = orth(vectors[:, :5] + 1e-3 * rng.standard_normal((D, 5)))
    values, coefficients = rayleigh_ritz(basis, matrix @ basis)
    found = basis @ coefficients[:, :3]
    residual = float(np.linalg.norm(matrix @ found - found * values[:3], 2))
    error = subspace_error(values, residual, 3, rounding_level(values, D))
    assert sin_theta(found, vectors[:, :3]) <= 1.01 * error < 1e-2


def test_the_error_estimate_is_one_where_nothing_can_be_said():
    assert subspace_error(np.array([2.0, 1.0]), 0.1, 2, 1e-15) == 1
    assert subspace_error(np.array([2.0, 2.0]), 0.1, 1, 1e-15) == 1
    assert subspace_error(np.zeros(3), 0.1, 1, 0.0) == 1
    assert subspace_error(np.zeros(3), 0.0, 1, 0.0) == 0


@given(seed=st.integers(0, 100), kept=st.integers(1, 8), scale=st.floats(1e-9, 1.0))
def test_a_complement_is_orthonormal_and_orthogonal_however_small_the_candidates(seed, kept, scale):
    basis = orth(symmetric(seed))[:, :kept]
    drawn = np.random.default_rng(seed).standard_normal((D, 3))
    block = complement(basis @ drawn[:kept] + scale * drawn, basis, 2, 1e-14)
    assert block.shape[1] == min(2, D - kept)
    assert is_orthonormal(np.hstack([basis, block]), 1e-13)


def test_a_complement_leaves_out_what_is_negligible_or_depends_on_the_rest():
    basis = np.eye(D)[:, :2]
    candidates = np.eye(D)[:, [2, 2, 3, 0, 4]] * [1, 1e-3, 1e-15, 1, 1]
    block = complement(candidates, basis, 5, 1e-14)
    assert block.shape[1] == 2
    assert sin_theta(block, np.eye(D)[:, [2, 4]]) < 1e-14
    assert complement(basis, basis, 2, 1e-14).shape == (D, 0)


def test_the_error_of_a_product_is_told_by_its_asymmetry():
    matrix, basis = symmetric(5, 60), orth(symmetric(6, 60))[:, :20]
    exact = matrix @ basis
    off = 1e-6 * np.random.default_rng(7).standard_normal(exact.shape)
    assert product_noise(basis.T @ exact) < 1e-14
    # 190 pairs: within 30 per cent but for a probability of about 1e-8.
    assert product_noise(basis.T @ (exact + off)) == pytest.approx(1e-6, rel=0.3)
    assert product_noise(basis[:, :1].T @ exact[:, :1]) == 0


@pytest.mark.parametrize("size", [1, 5, 513])
@pytest.mark.parametrize("dtype", [np.float64, np.int64])
def test_a_symmetric_matrix_is_given_by_its_lower_triangle(size, dtype):
    half = np.random.default_rng(size).integers(-(2**40), 2**40, (size, size)).astype(dtype)
    matrix = half + half.T
    below = lower_of(matrix)
    assert np.array_equal(below, matrix[np.tril_indices(size)])
    assert np.array_equal(symmetric_of(below, size), matrix)
    assert below.dtype == symmetric_of(below, size).dtype == dtype
    assert not np.shares_memory(below, matrix)


@pytest.mark.parametrize("tied", [False, True])
def test_a_spectrum_and_its_leading_vectors_come_of_one_reduction(tied):
    rng = np.random.default_rng(0)
    rows = np.diag([2.0] * 6 + [1.0] * 294) if tied else rng.standard_normal((300, 300))
    matrix = rows + rows.T
    spectrum, vectors = spectrum_and_leading(matrix, 5)
    np.testing.assert_allclose(spectrum, np.linalg.eigvalsh(matrix)[::-1], atol=1e-11)
    np.testing.assert_allclose(matrix @ vectors, vectors * spectrum[:5], atol=1e-11)
    assert is_orthonormal(vectors, 1e-12)


@pytest.mark.parametrize(("n", "runs"), [(3, 20_000), (15, 8_000)])
def test_it_is_exceeded_no_more_often_than_it_says(n, runs):
    """Fails with probability below 1e-6 for a sound bound: the count is binomial, at most 2% of runs."""
    drawn = np.random.default_rng(n).standard_normal((runs, n, n))
    largest = np.linalg.eigvalsh((drawn + drawn.swapaxes(1, 2)) / 2)[:, -1]
    exceeded = int((largest > goe_quantile(n, 0.02)).sum())
    assert 0.005 * runs < exceeded <= stats.binom.isf(1e-6, runs, 0.02)


def test_large_matrices_come_to_the_tracy_widom_law():
    n, upper = 2000, 2.0234  # its 99% quantile
    limit = math.sqrt(2 * n) + upper * n ** (-1 / 6) / math.sqrt(2)
    assert goe_quantile(n, 0.01) == pytest.approx(limit, rel=3e-4)
