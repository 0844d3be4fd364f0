"""Trusted curators: as exact as they should be."""

import math

import numpy as np
import pytest

from benchmarks.baselines import analyze_gauss, curator_noise, exponential_eigenvectors, leading
from fedpower.linalg import sin_theta
from fedpower.privacy import delta_of
from problems import Array


def test_the_curators_noise_is_what_the_promise_needs_and_none_without_privacy(rows: Array) -> None:
    std = curator_noise(n_rows=1000, epsilon=0.7, delta=1e-5)
    mu = math.sqrt(2.0) / 1000 / std
    assert delta_of(mu, 0.7) == pytest.approx(1e-5, rel=1e-6)
    assert delta_of(mu * 1.001, 0.7) > 1e-5
    moment, rng = rows.T @ rows / len(rows), np.random.default_rng(0)
    found = analyze_gauss(moment, 3, n_rows=len(rows), epsilon=math.inf, delta=1e-6, rng=rng)
    assert np.array_equal(found, leading(moment, 3)[1])


def test_the_exponential_mechanism_gives_an_orthonormal_basis_that_nears_the_exact_one(rows: Array) -> None:
    moment, errors = rows.T @ rows / len(rows), []
    for epsilon in (1e6, 1e12):
        rng = np.random.default_rng(0)
        found = exponential_eigenvectors(moment, 3, n_rows=len(rows), epsilon=epsilon, rng=rng)
        assert found.T @ found == pytest.approx(np.eye(3), abs=1e-10)
        errors.append(sin_theta(found, leading(moment, 3)[1]))
    assert errors[1] < 1e-3
    assert errors[1] < errors[0]
