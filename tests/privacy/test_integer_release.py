"""The release of the moment: the bound over whole numbers, scales that reach it, and the noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import priced
from fedpower.errors import InputError
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import MEAN_WEIGHT, Sensitivity, noise_for, of_moment, summary_sensitivity
from fedpower.sums.lattice import SIDE


def change(z: list[int], w: list[int], moved: Sensitivity, scales: list[int]) -> Fraction:

    def answer(row: list[int]) -> list[int]:
        d = len(row)
        squares = [row[j] ** 2 for j in range(d)] + [row[j] * row[k] for j in range(d) for k in range(j)]
        mean = row if len(moved.groups) == 4 else []
        return [*squares, *mean, sum(value**2 for value in row)]

    each = [scale for group, scale in zip(moved.groups, scales, strict=True) for _ in range(group.length)]
    pairs = zip(answer(z), answer(w), each, strict=True)
    return sum((Fraction(one - other, scale) ** 2 for one, other, scale in pairs), Fraction(0))


def shortened(row: list[int], side: int) -> list[int]:
    while sum(value**2 for value in row) > side**2:
        row = [int(value / 2) for value in row]
    return row


ROWS = st.lists(st.integers(-SIDE, SIDE), min_size=3, max_size=3)
weights = st.sampled_from([0.0, 0.25, MEAN_WEIGHT])


@given(ROWS, ROWS, st.floats(1e-3, 1e4), weights)
def test_no_two_rows_pass_the_bound_in_whole_numbers(
    one: list[int], two: list[int], multiplier: float, weight: float
) -> None:
    moved = of_moment(3, mean_weight=weight)
    z, w = shortened(one, SIDE), shortened(two, SIDE)
    assert change(z, w, moved, moved.scales(multiplier)) * Fraction(multiplier) ** 2 <= 1


@pytest.mark.parametrize("with_mean", [False, True])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.7, 40.0])
def test_the_worst_rows_nearly_attain_it(with_mean: bool, multiplier: float) -> None:
    moved = of_moment(2, mean_weight=MEAN_WEIGHT if with_mean else 0.0)
    cosine = MEAN_WEIGHT**2 if with_mean else 0.0
    z = [SIDE, 0]
    w = [-math.floor(SIDE * cosine), math.floor(SIDE * math.sqrt(1 - cosine**2))]
    found = float(change(z, w, moved, moved.scales(multiplier))) * multiplier**2
    assert 1 - 1e-5 < found <= 1


@given(st.floats(1e-3, 1e4), weights)
def test_scales_are_the_least_whole_numbers_of_the_theorem(multiplier: float, weight: float) -> None:
    moved = of_moment(3, mean_weight=weight)
    c = Fraction(weight)
    assert moved.squared == 2 * (1 + c**2) ** 2 * SIDE**4
    for group, scale in zip(moved.groups, moved.scales(multiplier), strict=True):
        needed = Fraction(multiplier) ** 2 * moved.squared / group.weight
        assert (scale - 1) ** 2 < needed <= scale**2
    wanted = [1, 2, 2 * c**2 * SIDE**2, 1] if weight else [1, 2, 1]
    assert [group.weight for group in moved.groups] == wanted


@pytest.mark.parametrize("n_rows", [10**3, 10**6])
def test_the_noise_is_the_ideal_one(n_rows: int) -> None:
    budget = priced("moment", n_features=100, center=True)
    ideal = budget.price(MOMENT).multiplier * summary_sensitivity(n_rows, with_mean=True)
    assert budget.std(n_rows) == pytest.approx(ideal, rel=1e-11)


def test_what_is_added_has_the_stated_standard_deviations() -> None:
    noise = noise_for(of_moment(40, mean_weight=MEAN_WEIGHT), 0.8, (1000,))
    source = SeededNoiseForExperiments(3)
    drawn = np.array([noise.draw(source) for _ in range(100)]).T
    start = 0
    for group, scale in zip(noise.sensitivity.groups, noise.scales, strict=True):
        values = drawn[start : start + group.length] / scale
        start += group.length
        assert abs(np.mean(np.square(values)) - 1) < 6 * math.sqrt(2 / values.size)
    assert start == len(drawn)


def test_numbers_past_one_word_are_shifted_and_the_rounding_is_paid_for() -> None:
    moved = of_moment(2)
    noise = noise_for(moved, 1.0, (10**12,))
    assert max(noise.exponents) < -10
    widest = 2.0 ** -min(noise.exponents)
    assert all(
        std >= math.sqrt(moved.squared / group.weight)
        for std, group in zip(noise.stds, moved.groups, strict=True)
    )
    assert noise.stds[0] >= math.sqrt(moved.squared) + widest * math.sqrt(2**2 + 1) * (1 - 1e-9)


@pytest.mark.parametrize("multiplier", [0.0, -1.0, math.inf, math.nan])
def test_a_multiplier_that_is_none_is_refused(multiplier: float) -> None:
    with pytest.raises(InputError, match="multiplier must be a positive number"):
        noise_for(of_moment(2), multiplier, (10,))


def test_noise_beyond_the_sampler_and_a_weight_beyond_the_theorem_are_refused() -> None:
    with pytest.raises(InputError, match=r"2\*\*62 whole numbers|steps of the rows' lattice"):
        noise_for(of_moment(2), 1e30, (10,))
    with pytest.raises(InputError, match="where the theorem holds"):
        of_moment(2, mean_weight=0.8)
