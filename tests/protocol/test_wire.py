"""Rounding to float32 happens only where noise drowns it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.protocol.messages import rounded


@given(st.integers(0, 1000), st.floats(1e-6, 1e3))
def test_rounding_is_far_below_the_noise_or_does_not_happen(seed: int, noise_std: float) -> None:
    values = np.random.default_rng(seed).standard_normal(50)
    moved = np.abs(rounded(values, noise_std) - values).max()
    assert moved <= noise_std * 2.0**-14


@pytest.mark.parametrize("noise_std", [0.0, 1e-5])
def test_exact_and_hardly_noised_values_are_left_alone(noise_std: float) -> None:
    values = np.random.default_rng(0).standard_normal(50)
    assert rounded(values, noise_std) is values


def test_values_beyond_float32_and_zeros_are_safe() -> None:
    huge = np.array([1e300])
    assert rounded(huge, 1e299) is huge
    np.testing.assert_array_equal(rounded(np.zeros(3), 1.0), np.zeros(3))
