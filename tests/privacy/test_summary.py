"""The joint release of moment, mean and trace: an isometry, and a bound that is never passed."""

import math

import numpy as np
import pytest

from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    moment_sensitivity,
    pack,
    summary_sensitivity,
    summary_size,
    unpack,
)


def symmetric(rng, d):
    half = rng.normal(size=(d, d))
    return half + half.T


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("with_mean", [False, True])
def test_packing_is_an_isometry_of_the_norms_and_unpacking_undoes_it(d, with_mean):
    rng = np.random.default_rng(d)
    S, mean, trace = symmetric(rng, d), rng.normal(size=d), 0.7
    packed = pack(S, mean if with_mean else None, trace)
    assert packed.shape == (summary_size(d, with_mean=with_mean),)
    norm = np.linalg.norm(S) ** 2 + trace**2
    norm += 2 * MEAN_WEIGHT**2 * (mean @ mean) * with_mean
    assert packed @ packed == pytest.approx(norm, rel=1e-14)
    moment, middle, total = unpack(packed, d, with_mean=with_mean)
    np.testing.assert_allclose(moment, S, rtol=1e-15)
    assert total == trace
    if with_mean:
        np.testing.assert_allclose(middle, mean, rtol=1e-15)
    else:
        assert middle is None


def moved(x, y, c):
    change = x[..., :, None] * x[..., None, :] - y[..., :, None] * y[..., None, :]
    lengths = (x * x).sum(-1) - (y * y).sum(-1)
    return np.sqrt((change**2).sum((-1, -2)) + 2 * c * c * ((x - y) ** 2).sum(-1) + lengths**2)


def bound(c):
    return summary_sensitivity(1, with_mean=True, mean_weight=c)


@pytest.mark.parametrize("c", [0.0, 0.1, 0.3, 0.5, 0.6, 0.75])
def test_the_theorem_holds_on_random_rows_and_is_attained(c):
    most = bound(c)
    attained = moved(np.array([1.0, 0.0]), np.array([-c * c, math.sqrt(1 - c**4)]), c)
    assert attained == pytest.approx(most, rel=1e-14)
    rng = np.random.default_rng(0)
    for d in (1, 2, 5):
        x, y = rng.normal(size=(2, 3000, d))
        x *= rng.random((3000, 1)) ** 0.2 / np.linalg.norm(x, axis=1, keepdims=True)
        y *= rng.random((3000, 1)) ** 0.2 / np.linalg.norm(y, axis=1, keepdims=True)
        assert (moved(x, y, c) <= most * (1 + 1e-14)).all()
        assert (moved(x, -x * rng.random((3000, 1)), c) <= most * (1 + 1e-14)).all()


@pytest.mark.parametrize("c", [0.0, 0.25, 0.5, 0.75])
def test_no_norms_and_no_angle_pass_the_bound(c):
    most = bound(c) ** 2
    a, b, cosine = np.meshgrid(
        np.linspace(0, 1, 101), np.linspace(0, 1, 101), np.linspace(-1, 1, 401), indexing="ij"
    )
    t = a * b * cosine
    change = a**4 + b**4 - 2 * t**2 + 2 * c**2 * (a**2 + b**2 - 2 * t) + (a**2 - b**2) ** 2
    assert change.max() <= most * (1 + 1e-12)
    assert change.max() >= most * (1 - 1e-3)


def test_the_trace_is_free_and_the_mean_costs_a_quarter():
    assert summary_sensitivity(10, with_mean=False) == moment_sensitivity(10)
    assert summary_sensitivity(10, with_mean=True) == 1.25 * moment_sensitivity(10)


@pytest.mark.parametrize("c", [0.2, 0.5, 0.75])
def test_it_is_the_augmented_moment_of_the_design_scaled(c):
    rng = np.random.default_rng(3)
    x, y = rng.normal(size=(2, 4))
    x, y = x / np.linalg.norm(x), y / np.linalg.norm(y)
    a, b = (np.append(v, c) / math.sqrt(1 + c * c) for v in (x, y))
    augmented = np.linalg.norm(np.outer(a, a) - np.outer(b, b)) * (1 + c * c)
    assert augmented == pytest.approx(moved(x, y, c), rel=1e-12)  # unit rows: equal traces
