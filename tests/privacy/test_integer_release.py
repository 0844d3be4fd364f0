"""The release of integer sums: the bound over whole numbers, scales that reach it, and the noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.errors import InputError
from fedpower.linalg.words import Words
from fedpower.privacy.budget import Budget
from fedpower.privacy.integer_release import IntegerNoise, integer_noise, perturb_integers
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.privacy.sensitivity import MEAN_WEIGHT, summary_sensitivity

SIDE = 2**20


def change(z: list[int], w: list[int], noise: IntegerNoise) -> Fraction:
    """The squared change of all the noised numbers when z becomes w, each in units of its noise."""
    total = Fraction(0)
    for j in range(len(z)):
        for k in range(j + 1):
            scale = noise.diagonal if j == k else noise.below
            total += Fraction(z[j] * z[k] - w[j] * w[k], scale) ** 2
        if noise.mean:
            total += Fraction(z[j] - w[j], noise.mean) ** 2
    trace = sum(value**2 for value in z) - sum(value**2 for value in w)
    return total + Fraction(trace, noise.diagonal) ** 2


def shortened(row: list[int], side: int) -> list[int]:
    """The row, halved until its squared norm is at most S²."""
    while sum(value**2 for value in row) > side**2:
        row = [int(value / 2) for value in row]
    return row


ROWS = st.lists(st.integers(-SIDE, SIDE), min_size=3, max_size=3)


@given(ROWS, ROWS, st.floats(1e-3, 1e4), st.booleans())
def test_no_two_rows_pass_the_bound_in_whole_numbers(
    one: list[int], two: list[int], multiplier: float, with_mean: bool
) -> None:
    noise = integer_noise(multiplier, side=SIDE, with_mean=with_mean)
    z, w = shortened(one, SIDE), shortened(two, SIDE)
    assert change(z, w, noise) * Fraction(multiplier) ** 2 <= 1


@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.7, 40.0])
def test_the_worst_rows_nearly_attain_it(with_mean: bool, multiplier: float) -> None:
    noise = integer_noise(multiplier, side=SIDE, with_mean=with_mean)
    cosine = MEAN_WEIGHT**2 if with_mean else 0.0
    z = [SIDE, 0]
    w = [-math.floor(SIDE * cosine), math.floor(SIDE * math.sqrt(1 - cosine**2))]
    found = float(change(z, w, noise)) * multiplier**2
    assert 1 - 1e-5 < found <= 1


@given(st.floats(1e-3, 1e4), st.integers(1, 2**21), st.booleans())
def test_scales_are_the_least_whole_numbers_of_the_theorem(
    multiplier: float, side: int, with_mean: bool
) -> None:
    noise = integer_noise(multiplier, side=side, with_mean=with_mean)
    c = Fraction(MEAN_WEIGHT) if with_mean else Fraction(0)
    needed = Fraction(multiplier) ** 2 * 2 * (1 + c**2) ** 2 * side**4
    assert (noise.diagonal - 1) ** 2 < needed <= noise.diagonal**2
    assert 2 * (noise.below - 1) ** 2 < noise.diagonal**2 <= 2 * noise.below**2
    if with_mean:
        assert noise.diagonal**2 <= 2 * c**2 * side**2 * noise.mean**2
        assert noise.diagonal**2 > 2 * c**2 * side**2 * (noise.mean - 1) ** 2
    else:
        assert noise.mean == 0
    assert Fraction(noise.mu) ** 2 * noise.diagonal**2 >= 2 * (1 + c**2) ** 2 * side**4
    assert noise.mu <= (1 + 1e-9) / multiplier


@pytest.mark.parametrize("n_rows", [10**3, 10**8, 10**12])
def test_the_noise_is_the_ideal_one_however_many_rows_there_are(n_rows: int) -> None:
    budget = Budget(
        mode="moment", epsilon=1.0, delta=1e-6, n_features=100, iteration_rank=5, n_steps=1, center=True
    )
    noise = integer_noise(budget.multiplier, side=SIDE, with_mean=True)
    ideal = budget.multiplier * summary_sensitivity(n_rows, with_mean=True)
    assert noise.std(n_rows) == pytest.approx(ideal, rel=1e-11)
    assert noise.mu == pytest.approx(budget.mu, rel=1e-11)


def test_what_is_added_has_the_stated_standard_deviations() -> None:
    """4000 draws of each kind: a variance is within 6 sigma, failure probability 4·2e-9."""
    noise = integer_noise(0.8, side=SIDE, with_mean=True)
    size, n_features = 4000, 40
    places = np.arange(1, n_features + 1)
    on_diagonal = np.zeros(n_features * (n_features + 1) // 2, dtype=bool)
    on_diagonal[places * (places + 1) // 2 - 1] = True
    below = Words(low=np.full(on_diagonal.size, 2**62))
    total = np.full(n_features, -(2**40))
    source = SeededNoiseForExperiments(3)
    found: dict[str, list[float]] = {"diagonal": [], "below": [], "mean": [], "trace": []}
    while len(found["diagonal"]) < size or len(found["trace"]) < 100:
        words, mean, trace = perturb_integers(below, total, 2**70, noise=noise, source=source)
        assert mean is not None
        added = (words.to_ints() - 2**62).astype(np.float64)
        found["diagonal"] += (added[on_diagonal] / noise.diagonal).tolist()
        found["below"] += (added[~on_diagonal] / noise.below).tolist()
        found["mean"] += ((mean + 2**40) / noise.mean).tolist()
        found["trace"].append((trace - 2**70) / noise.diagonal)
    for kind, values in found.items():
        bound = 6 * math.sqrt(2 / len(values))
        assert abs(np.mean(np.square(values)) - 1) < bound, kind


def test_sums_past_one_word_are_noised_exactly() -> None:
    noise = integer_noise(1.0, side=SIDE, with_mean=False)
    numbers = np.array([2**75 + 5, -(2**70) + 3, 2**64], dtype=object)
    below = Words(low=(numbers & (2**32 - 1)).astype(np.int64), high=(numbers >> 32).astype(np.int64))
    words, mean, _ = perturb_integers(below, None, 0, noise=noise, source=SystemNoise())
    assert mean is None
    off = words.to_ints() - numbers
    assert max(abs(int(value)) for value in off) <= 14 * noise.diagonal
    assert any(int(value) & 0xFFF for value in off), "the noise must reach the last bits"


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
def test_a_multiplier_that_is_none_is_refused(multiplier: float) -> None:
    with pytest.raises(InputError, match="multiplier must be a positive number"):
        integer_noise(multiplier, side=SIDE, with_mean=False)


def test_noise_beyond_the_sampler_and_a_release_of_the_wrong_shape_are_refused() -> None:
    with pytest.raises(InputError, match="steps of the rows' lattice"):
        integer_noise(1e9, side=SIDE, with_mean=False)
    noise = integer_noise(1.0, side=SIDE, with_mean=False)
    for size, total in ((2, None), (3, np.zeros(2, dtype=np.int64))):
        below = Words(low=np.zeros(size, dtype=np.int64))
        with pytest.raises(InputError, match="lower triangle"):
            perturb_integers(below, total, 0, noise=noise, source=SystemNoise())
