"""What noised matrices and products show: the largest eigenvalue of noise, and the subspace without it."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower import linalg
from fedpower.linalg import NoisedProduct, goe_quantile, joint_subspace, sin_theta


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


def products(rng: np.random.Generator, dim: int, widths: tuple[int, ...]) -> list[NoisedProduct]:
    """Of diag(4, 3, 2, 1, …, 1) with bases that come nearer, and little noise."""
    spectrum = np.ones(dim)
    spectrum[:3] = 4.0, 3.0, 2.0
    found = []
    for step, width in enumerate(widths):
        near = np.eye(dim, width) + rng.standard_normal((dim, width)) / (step + 1)
        basis = np.linalg.qr(near)[0]
        noised = spectrum[:, np.newaxis] * basis + 0.05 * rng.standard_normal(basis.shape)
        found.append(NoisedProduct(product=noised, basis=basis, precision=400.0))
    return found


def test_passes_are_made_in_the_span_of_the_products_and_give_what_all_columns_give():
    """The same fit, to rounding; fourteen thousand columns cost one factorisation, not sixty."""
    shown = products(np.random.default_rng(5), 60, (4, 4, 3))
    whole = linalg._fitted(shown, None, None, rank=3, level=1.0, dim=60)
    narrow = joint_subspace(shown, rank=3, level=1.0)
    assert sin_theta(narrow.basis, whole.basis) < 1e-6
    np.testing.assert_allclose(narrow.captured, whole.captured, rtol=1e-6)
    np.testing.assert_allclose(np.abs(narrow.core), np.abs(whole.core), rtol=1e-5, atol=1e-6)
