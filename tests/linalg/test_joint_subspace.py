"""What several noised products show together."""

import numpy as np
import pytest

from fedpower.linalg import noised as fitting
from fedpower.linalg import sin_theta
from fedpower.linalg.noised import NoisedProduct, joint_subspace


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


@pytest.mark.parametrize("started", [False, True])
def test_few_coordinates_give_the_subspace_that_all_of_them_give(started):
    """Passes in the span of the products are passes in all columns: the same fit, to rounding."""
    rng = np.random.default_rng(5)
    shown = products(rng, 60, (4, 4, 3))
    start = np.linalg.qr(rng.standard_normal((60, 3)))[0] if started else None
    narrow = joint_subspace(shown, rank=3, level=1.0, start=start)
    whole = fitting._fitted(shown, None, start, rank=3, level=1.0, dim=60)
    assert sin_theta(narrow.basis, whole.basis) < 1e-6
    np.testing.assert_allclose(narrow.captured, whole.captured, rtol=1e-6)
    np.testing.assert_allclose(np.abs(narrow.core), np.abs(whole.core), rtol=1e-5, atol=1e-6)


def test_passes_are_made_in_the_span_of_the_products(monkeypatch):
    """Fourteen thousand columns cost one factorisation, not sixty."""
    sizes = []
    plain = fitting._fitted

    def seen(products, *rest, **named):
        sizes.append(products[0].product.shape[0])
        return plain(products, *rest, **named)

    monkeypatch.setattr(fitting, "_fitted", seen)
    joint_subspace(products(np.random.default_rng(6), 60, (4, 4, 3)), rank=3, level=1.0)
    assert sizes == [11]
