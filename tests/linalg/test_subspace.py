"""The paper's linear algebra: identities first, brute force where there is none."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.linalg import (
    ALIGNMENTS,
    fix_signs,
    is_orthonormal,
    misalignment,
    orth,
    principal_angles,
    ritz_pairs,
    sin_theta,
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


@given(seeds)
def test_the_distances_agree_with_each_other(seed):
    first, second = random_basis(seed), random_basis(seed + 1)
    angles = principal_angles(first, second)
    assert (np.diff(angles) >= 0).all()
    assert sin_theta(first, second) == pytest.approx(np.sin(angles[-1]), abs=1e-9)
    assert sin_theta(first, first[:, :2]) < 1e-12  # a wider basis needs only to contain the target


@given(seeds)
def test_ritz_pairs_of_an_invariant_subspace_are_eigenpairs(seed):
    vectors = random_basis(seed, 6, 6)
    values = np.array([6.0, 5, 4, 3, 2, 1])
    moment = vectors * values @ vectors.T
    before = vectors[:, :3] @ random_basis(seed + 1, 3, 3)
    product = (moment + 0.5 * np.eye(6)) @ before
    got, columns = ritz_pairs(orth(product), product, shift=0.5)
    np.testing.assert_allclose(got, [6, 5, 4], atol=1e-10)
    np.testing.assert_allclose(np.abs(columns.T @ vectors[:, :3]), np.eye(3), atol=1e-8)


def test_signs_are_decided_by_the_largest_loading():
    vectors = np.array([[0.1, -0.9], [-0.9, 0.1]])
    np.testing.assert_array_equal(fix_signs(vectors), [[-0.1, 0.9], [0.9, -0.1]])


def test_a_basis_with_a_non_finite_entry_is_not_orthonormal():
    for entry, is_sound in ((0.0, True), (np.nan, False), (np.inf, False)):
        basis = np.eye(4)[:, :2].copy()
        basis[3, 0] = entry
        assert is_orthonormal(basis) is is_sound


def test_misalignment_is_the_largest_distance():
    reference = np.eye(3)[:, :1]
    assert misalignment([reference, -reference], reference) == pytest.approx(2.0)
