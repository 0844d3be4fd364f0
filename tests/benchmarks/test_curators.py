"""The trusted curators: calibrated as they should be, and exact where nothing is protected."""

import math

import numpy as np
import pytest
import scipy.integrate

from benchmarks.baselines import (
    analyze_gauss,
    bingham,
    curator_noise,
    exponential_eigenvectors,
    leading,
    local_eigenspaces,
    symmetric_noise,
    unweighted_average,
    weighted_average,
)
from fedpower.linalg import sin_theta
from fedpower.privacy import delta_of
from problems import Array


def test_the_curator_s_noise_is_exactly_what_the_promise_needs() -> None:
    std = curator_noise(n_rows=1000, epsilon=0.7, delta=1e-5)
    mu = math.sqrt(2.0) / 1000 / std
    assert delta_of(mu, 0.7) == pytest.approx(1e-5, rel=1e-6)
    assert delta_of(mu * 1.001, 0.7) > 1e-5


def test_noise_is_symmetric_with_half_the_variance_beside_the_diagonal() -> None:
    # 4000 draws of a 3×3 matrix: a sample variance has a relative standard error of √(2/4000), so
    # that one of six is off by more than 5 of these happens with probability below 1e-5.
    rng = np.random.default_rng(0)
    drawn = np.array([symmetric_noise(3, 0.5, rng) for _ in range(4000)])
    assert np.array_equal(drawn, drawn.transpose(0, 2, 1))
    expected = np.full((3, 3), 0.125) + np.eye(3) * 0.125
    assert drawn.var(axis=0) == pytest.approx(expected, rel=5 * math.sqrt(2 / 4000))


def test_without_privacy_analyze_gauss_is_the_exact_subspace(rows: Array) -> None:
    moment = rows.T @ rows / len(rows)
    found = analyze_gauss(
        moment, 3, n_rows=len(rows), epsilon=math.inf, delta=1e-6, rng=np.random.default_rng(0)
    )
    assert np.array_equal(found, leading(moment, 3)[1])


def test_the_exponential_mechanism_gives_an_orthonormal_basis_that_nears_the_exact_one(rows: Array) -> None:
    moment = rows.T @ rows / len(rows)
    errors = []
    for epsilon in (1e6, 1e12):
        found = exponential_eigenvectors(
            moment, 3, n_rows=len(rows), epsilon=epsilon, rng=np.random.default_rng(0)
        )
        assert found.T @ found == pytest.approx(np.eye(3), abs=1e-10)
        errors.append(sin_theta(found, leading(moment, 3)[1]))
    assert errors[1] < 1e-3
    assert errors[1] < errors[0]


@pytest.mark.slow
def test_directions_are_drawn_with_the_density_they_should_have() -> None:
    # In the plane, u = (cos t, sin t) has density ∝ exp(s·cos²t): the mean of cos²t over 4000 draws
    # lies within 5 standard errors (each at most 0.5/√4000) but for probability below 1e-6.
    utility = np.diag([3.0, 0.0])
    weight, total = (
        scipy.integrate.quad(lambda t, p=p: math.cos(t) ** p * math.exp(3 * math.cos(t) ** 2), 0, math.pi)[0]
        for p in (2, 0)
    )
    rng = np.random.default_rng(1)
    drawn = np.array([bingham(utility, rng)[0] ** 2 for _ in range(4000)])
    assert abs(drawn.mean() - weight / total) < 5 * 0.5 / math.sqrt(4000)


def test_one_shot_averages_of_one_silo_are_exact(rows: Array) -> None:
    local = local_eigenspaces([rows], 3)
    exact = leading(rows.T @ rows, 3)[1]
    for average in (unweighted_average, weighted_average):
        assert sin_theta(average(local, 3), exact) == pytest.approx(0.0, abs=1e-7)
