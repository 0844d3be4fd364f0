"""The largest eigenvalue of symmetric noise: exact where it is known, a bound everywhere."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower.linalg.noised import eigenvalue_density, goe_quantile


def test_a_single_number_is_normal() -> None:
    points = np.linspace(-12.0, 12.0, 4001)
    np.testing.assert_allclose(eigenvalue_density(1, points), stats.norm.pdf(points), atol=1e-5)
    assert goe_quantile(1, 0.01) == pytest.approx(stats.norm.isf(0.01), rel=1e-5)


@pytest.mark.parametrize("n", [1, 2, 3, 8, 25])
def test_the_density_counts_every_eigenvalue_and_their_squares(n: int) -> None:
    """E tr E² = n·1 + n(n−1)·½."""
    points = np.linspace(-30.0, 30.0, 20001)
    density = eigenvalue_density(n, points)
    assert np.trapezoid(density, points) == pytest.approx(n, rel=1e-6)
    assert np.trapezoid(density * points**2, points) == pytest.approx(n * (n + 1) / 2, rel=1e-5)


@pytest.mark.parametrize(("n", "runs"), [(2, 20_000), (15, 8_000)])
def test_it_is_exceeded_as_often_as_it_says(n: int, runs: int) -> None:
    """Fails with probability below 1e-6 for a sound bound: the count is binomial, at most 2% of runs."""
    drawn = np.random.default_rng(n).standard_normal((runs, n, n))
    largest = np.linalg.eigvalsh((drawn + drawn.swapaxes(1, 2)) / 2)[:, -1]
    exceeded = int((largest > goe_quantile(n, 0.02)).sum())
    assert exceeded <= stats.binom.isf(1e-6, runs, 0.02)
    assert exceeded >= stats.binom.ppf(1e-6, runs, 0.018)  # and the bound is nearly attained


def test_large_matrices_come_to_the_tracy_widom_law() -> None:
    n, upper = 2000, 2.0234  # its 99% quantile
    limit = math.sqrt(2 * n) + upper * n ** (-1 / 6) / math.sqrt(2)
    assert goe_quantile(n, 0.01) == pytest.approx(limit, rel=3e-4)
