"""Releases of real numbers: rounding that is paid for, sensitivity of the map really used, the noise."""

import math

import numpy as np
import pytest
from scipy import stats

from fedpower.errors import InputError
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import (
    REAL_SHARE,
    mean_sensitivity,
    moment_sensitivity,
    noise_for,
    of_reals,
    product_sensitivity,
    rounding_slack,
)
from fedpower.protocol.query import _quantised


def reals(bound, size):
    return of_reals(bound, size, largest=2.0 * bound, n_rows=1)


@pytest.mark.parametrize("multiplier", [1e-3, 0.7, 6.3, 400.0])
@pytest.mark.parametrize("sensitivity", [1e-9, math.sqrt(2) / 1e5, 0.3, 1.0])
@pytest.mark.parametrize("n", [1, 500, 500_500])
def test_the_noise_pays_for_the_rounding(multiplier, sensitivity, n):
    noise = noise_for(reals(sensitivity, n), multiplier, (1,))
    (scale,), (power,), (std,) = noise.scales, noise.exponents, noise.stds
    moved = sensitivity + math.ldexp(math.sqrt(n), -power)
    assert scale >= min(REAL_SHARE, 2**29)
    assert std >= multiplier * moved * (1 - 1e-12)
    assert std <= multiplier * sensitivity * (1 + 2**-28 * (1 + multiplier * math.sqrt(n)))


def test_rounding_to_a_lattice_is_exact():
    values = np.array([0.0, 2.0**-21, 3 * 2.0**-21, -0.3, 1.0])
    assert _quantised(values, 20).tolist() == [0, 0, 2, round(-0.3 * 2**20), 2**20]


def test_no_low_bit_of_a_release_is_the_values_own():
    values = np.random.default_rng(0).random(25) / 9
    noise = noise_for(reals(0.01, 25), 1.0, (1,))
    released = noise.values(_quantised(values, noise.exponents[0]) + noise.draw(SeededNoiseForExperiments(1)))
    steps = np.ldexp(released, noise.exponents[0])
    assert np.array_equal(steps, np.rint(steps))
    assert not np.any(released == values)


def test_the_noise_is_normal_and_independent_from_number_to_number():
    noise = noise_for(reals(0.01, 60_000), 3.0, (1,))
    standard = noise.draw(SeededNoiseForExperiments(2)) / noise.scales[0]
    assert stats.kstest(standard, "norm").pvalue > 1e-7
    assert abs(np.corrcoef(standard[::2], standard[1::2])[0, 1]) < 6 / 30_000**0.5


def rows(rng, n, d):
    x = rng.normal(size=(n, d))
    return x / np.linalg.norm(x, axis=1, keepdims=True)


@pytest.mark.parametrize("seed", range(40))
def test_the_quantised_map_never_moves_more_than_what_is_paid_for(seed):
    rng = np.random.default_rng(seed)
    s, d = int(rng.integers(1, 30)), int(rng.integers(2, 8))
    r = int(rng.integers(1, d + 1))
    X = rows(rng, s, d)
    Y = X.copy()
    Y[-1] = rows(rng, 1, d)[0] if seed % 2 else np.linalg.svd(X[-1:])[2][1]
    Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
    if seed % 4 == 0:  # the basis that sees the whole change
        Z = np.linalg.qr(np.column_stack([X[-1], Y[-1], rng.normal(size=(d, d))]))[0][:, :r]

    def maps(M):
        A = M.T @ M / s
        low = np.tril_indices(d)
        flat = A[low] * np.where(low[0] == low[1], 1.0, math.sqrt(2))
        return {"moment": flat, "product": (A @ Z).reshape(-1), "mean": M.mean(axis=0)}

    stated = {
        "moment": moment_sensitivity(s),
        "product": product_sensitivity(s, r),
        "mean": mean_sensitivity(s),
    }
    before, after = maps(X), maps(Y)
    for name, bound in stated.items():
        moved = reals(bound + rounding_slack(s, d, iteration_rank=r), before[name].size)
        for power in (30, 8, 4, 2):
            change = _quantised(after[name], power) - _quantised(before[name], power)
            # The scale for a multiplier of 2²⁰ is 2²⁰ times what is paid for, rounded up.
            paid = moved.scales(2.0**20, [power])[0] * 2.0**-20
            assert np.linalg.norm(change) <= paid


@pytest.mark.parametrize("multiplier", [-1.0, 0.0, math.inf, math.nan])
def test_what_cannot_be_released_is_refused_in_one_sentence(multiplier):
    with pytest.raises(InputError, match="must be a positive number") as refusal:
        noise_for(reals(1.0, 3), multiplier, (1,))
    assert "\n" not in str(refusal.value)
    for bound in (0.0, math.inf, 1e300):
        with pytest.raises(InputError, match="must be a positive number"):
            reals(bound, 3)
    with pytest.raises(InputError, match="must be finite"):
        _quantised(np.array([np.nan]), 10)


def test_values_beyond_the_lattice_are_brought_back_and_none_move_farther_apart():
    values = np.array([0.0, 2.0**61, 2.0**61 + 2.0**20, 1e300, -1e300])
    found = _quantised(values, 0)
    assert found.tolist() == [0, 2**61, 2**61, 2**61, -(2**61)]
    assert np.all(
        np.abs(np.subtract.outer(found.astype(float), found.astype(float)))
        <= np.abs(np.subtract.outer(values, values))
    )
