"""What silos add to their answers: scales, rounding that is paid for, and shares of a secure sum's noise."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import moment_bound, priced
from fedpower.errors import InputError
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    REAL_SHARE,
    SMALLEST_SHARE,
    WIDE_SHARE,
    Group,
    Sensitivity,
    noise_for,
    of_moment,
    of_reals,
)
from fedpower.protocol.query import quantised
from fedpower.sums.lattice import SIDE

BUDGET = priced("moment", n_features=5, n_sharing=20)


def std_of(budget, sizes):
    return budget.moment_noise(tuple(sizes)).stds[0] / (sum(sizes) * SIDE**2)


def reals(bound, size):
    return of_reals(bound, size, largest=2.0 * bound, n_rows=1)


# --- a silo by itself ------------------------------------------------------------------------------


def test_what_is_added_has_the_stated_standard_deviations():
    noise = noise_for(of_moment(40, mean_weight=MEAN_WEIGHT), 0.8, (1000,))
    source = SeededNoiseForExperiments(3)
    drawn = np.array([noise.draw(source) for _ in range(100)]).T
    start = 0
    for group, scale in zip(noise.sensitivity.groups, noise.scales, strict=True):
        values = drawn[start : start + group.length] / scale
        start += group.length
        assert abs(np.mean(np.square(values)) - 1) < 6 * math.sqrt(2 / values.size)
    assert start == len(drawn)


def test_numbers_past_one_word_are_shifted_and_the_rounding_is_paid_for():
    moved = of_moment(2)
    noise = noise_for(moved, 1.0, (10**12,))
    assert max(noise.exponents) < -10
    widest = 2.0 ** -min(noise.exponents)
    for std, group in zip(noise.stds, moved.groups, strict=True):
        assert std >= math.sqrt(moved.squared / group.weight)
    assert noise.stds[0] >= math.sqrt(moved.squared) + widest * math.sqrt(2**2 + 1) * (1 - 1e-9)


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


def test_no_low_bit_of_a_release_is_the_values_own():
    values = np.random.default_rng(0).random(25) / 9
    noise = noise_for(reals(0.01, 25), 1.0, (1,))
    released = noise.values(quantised(values, noise.exponents[0]) + noise.draw(SeededNoiseForExperiments(1)))
    steps = np.ldexp(released, noise.exponents[0])
    assert np.array_equal(steps, np.rint(steps))
    assert not np.any(released == values)


# --- shares of a secure sum ------------------------------------------------------------------------


def sum_distance(share: float, n_shares: int) -> float:
    """Return a bound on how far Σ round(aX_i) is from round(√h·aX + V), in total variation."""
    alias = 3.0 * math.exp(-0.5 * (math.pi * share) ** 2)
    if n_shares * alias > 1:
        return 1.0
    spread = 50.0 * math.sqrt(n_shares) * share + n_shares
    # e^(−700), 2⁻¹⁰¹⁰, stands for e^(−1250), which is below the smallest float64.
    return min(1.0, spread * 3 * n_shares * alias + 2.0 * math.exp(-700))


def test_real_shares_are_within_2_to_the_minus_1000_of_the_theorem():
    assert sum_distance(SMALLEST_SHARE, 2**31) < 2.0**-1000
    assert sum_distance(2**30, 100) < 2.0**-1000
    assert sum_distance(0.5, 10) == 1.0


SUMS = st.integers(1, 2**40).map(lambda n: Sensitivity(Fraction(n), (Group(7, Fraction(1), 1),)))


@given(
    moved=st.sampled_from([of_moment(5), of_moment(5, mean_weight=MEAN_WEIGHT)]) | SUMS,
    multiplier=st.floats(0.05, 1e4),
    sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=8)
    | st.integers(4, 400).map(lambda m: [10] * m),
    colluders=st.integers(0, 7),
)
def test_shares_of_any_sum_are_the_least_that_the_honest_silos_reach_the_noise_with(
    moved, multiplier, sizes, colluders
):
    colluders = min(colluders, len(sizes) - 1)
    honest = len(sizes) - colluders
    noise = noise_for(moved, multiplier, tuple(sizes), colluders)
    whole = moved.scales(multiplier, noise.exponents)
    rounds = min(noise.exponents) < 0  # which is paid for
    groups = zip(moved.groups, noise.scales, whole, noise.exponents, strict=True)
    for group, share, all_of_it, fineness in groups:
        needed = Fraction(multiplier) ** 2 * moved.squared * 4 ** Fraction(fineness) / group.weight
        assert honest * share**2 >= needed
        assert honest * (share - 1) ** 2 < all_of_it**2
        assert rounds or needed > honest * (share - 1) ** 2
        assert fineness < 0 or share >= WIDE_SHARE
        assert fineness <= 0 or share < 4 * WIDE_SHARE
    spread = math.sqrt(moved.squared / moved.groups[0].weight * len(sizes) / honest)
    assert noise.stds[0] >= multiplier * spread * (1 - 1e-12)


def test_the_sum_of_m_shares_is_as_noisy_as_a_curator_but_for_the_colluders_whatever_their_sizes():
    for sizes in ([1000] * 20, [1, *[2000] * 18, 7999]):
        curator = moment_bound(sum(sizes)) * BUDGET.price(MOMENT).multiplier
        assert std_of(BUDGET, sizes) == pytest.approx(curator * math.sqrt(20 / 19), rel=1e-6)
    even, *others = (BUDGET.moment_noise(s) for s in ((500,) * 4, (1997, 1, 1, 1), (1, 1, 1997, 1)))
    assert others == [even, even]


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("sizes", [[1, 1], [2**22], [10**9] * 10, [2**30] * 1000])
def test_the_ring_holds_every_sum_for_next_to_no_noise(center, epsilon, sizes):
    sizes = [*sizes, 1]
    budget = priced("moment", n_features=100, n_sharing=20, epsilon=epsilon, center=center)
    noise = budget.moment_noise(tuple(sizes))
    n, m = sum(sizes), len(sizes)
    for group, scale, power in zip(noise.sensitivity.groups, noise.scales, noise.exponents, strict=True):
        rounded = sum(math.ceil(s * group.most * Fraction(2) ** power) for s in sizes)
        assert rounded + m * 14 * scale < 2**63
    assert (min(noise.exponents) >= 0) == (n <= 2**21)
    curator = moment_bound(n, center=center) * budget.price(MOMENT).multiplier
    assert std_of(budget, sizes) == pytest.approx(curator * math.sqrt(m / (m - 1)), rel=2e-4)
    assert std_of(budget, sizes) >= curator * math.sqrt(m / (m - 1)) * (1 - 1e-12)


def test_slack_counts_the_integers_of_every_silo():
    alone = priced("moment", n_features=5)
    assert BUDGET.distance == 21 * alone.distance
    assert BUDGET.slack_delta == pytest.approx(21 * alone.slack_delta)
    assert BUDGET.total_mu <= alone.total_mu


def unit(most=1):
    return Sensitivity(Fraction(1), (Group(3, Fraction(1), most),))


@pytest.mark.parametrize(
    ("refused", "words"),
    [
        *((lambda m=m: noise_for(reals(1.0, 3), m, (1,)), "multiplier must be a positive number")
          for m in (0.0, -1.0, math.inf, math.nan)),
        *((lambda b=bound: reals(b, 3), "must be a positive number") for bound in (0.0, math.inf, 1e300)),
        (lambda: noise_for(of_moment(2), 1e30, (10,)), r"2\*\*62 whole numbers|steps of the rows' lattice"),
        (lambda: noise_for(unit(most=2**100), 4.0, (5, 5), 1), r"2\*\*62|at least 1024"),
        (lambda: noise_for(unit(), 4.0, (2**100, 5), 1), r"2\*\*62|at least 1024"),
        (lambda: noise_for(unit(), 4.0, (5,), 1), "more silos than the 1 that may collude, got 1"),
        (lambda: BUDGET.moment_noise((100,)), "more silos than the 1 that may collude, got 1"),
        (lambda: priced("moment", n_features=5, n_sharing=20, center=True).moment_noise((2**60, 2**60)),
         r"must stay within 2\*\*62 whole numbers"),
        (lambda: priced("moment", n_features=5, n_sharing=2, epsilon=60.0).moment_noise((2**48,) * 16),
         "at least 1024 lattice steps wide"),
    ],
)  # fmt: skip
def test_noise_that_cannot_be_is_refused_from_public_facts_in_one_sentence(refused, words):
    with pytest.raises(InputError, match=words) as refusal:
        refused()
    assert "\n" not in str(refusal.value)
