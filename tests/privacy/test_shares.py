"""Shares of noise: what their sum is distributed as, what it costs, and what the ring can hold."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import ndtr
from scipy.stats import chi2

from budgets import priced
from fedpower.errors import InputError
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.noise import SeededNoiseForExperiments, gaussian_integers
from fedpower.privacy.sensitivity import (
    SMALLEST_SHARE,
    WIDE_SHARE,
    Group,
    Sensitivity,
    moment_sensitivity,
    noise_for,
    sum_distance,
    summary_sensitivity,
)
from fedpower.sums.lattice import SIDE
from problems import Array

BUDGET = priced("moment", n_features=5, n_sharing=20)


def std_of(budget, sizes):
    return budget.moment_noise(tuple(sizes)).stds[0] / (sum(sizes) * SIDE**2)


def rounded_law(scale: float, reach: int) -> Array:
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    return np.diff(ndtr(edges))


def law_of_sum(scale: float, n_shares: int, reach: int) -> Array:
    one = rounded_law(scale, reach)
    total = one
    for _ in range(n_shares - 1):
        total = np.convolve(total, one)
    middle = total.size // 2
    return total[middle - reach : middle + reach + 1]


def law_of_theorem(scale: float, n_shares: int, reach: int) -> Array:
    nodes, weights = np.polynomial.legendre.leggauss(24)
    nodes, weights = nodes / 2, weights / 2
    offsets, masses = np.zeros(1), np.ones(1)
    for _ in range(n_shares - 1):
        offsets = (offsets[:, None] + nodes).ravel()
        masses = (masses[:, None] * weights).ravel()
    wide = math.sqrt(n_shares) * scale
    edges = (np.arange(-reach, reach + 2)[:, None] - 0.5 - offsets) / wide
    return np.diff(ndtr(edges) @ masses)


@pytest.mark.parametrize(("scale", "n_shares"), [(1.0, 2), (1.5, 2), (1.5, 3), (2.0, 2), (2.5, 3)])
def test_a_sum_of_shares_is_a_rounded_gaussian_with_bounded_noise_added(scale, n_shares):
    reach = 60
    law, claimed = law_of_sum(scale, n_shares, reach), law_of_theorem(scale, n_shares, reach)
    apart = 0.5 * np.abs(law - claimed).sum()
    assert apart <= sum_distance(scale, n_shares) + 1e-12
    if scale >= 1.5:
        plain = rounded_law(math.sqrt(n_shares) * scale, reach)
        assert apart < 1e-4 * 0.5 * np.abs(law - plain).sum()  # which it is not by itself


def test_real_shares_are_within_2_to_the_minus_1000_of_the_theorem():
    assert sum_distance(SMALLEST_SHARE, 2**31) < 2.0**-1000
    assert sum_distance(2**30, 100) < 2.0**-1000
    assert sum_distance(0.5, 10) == 1.0


@given(
    sizes=st.lists(st.integers(1, 10**7), min_size=2, max_size=8),
    colluders=st.integers(1, 7),
    epsilon=st.floats(0.05, 20.0),
)
def test_any_honest_silos_reach_the_full_noise_and_none_adds_more_than_it_must(sizes, colluders, epsilon):
    if colluders >= len(sizes):
        colluders = len(sizes) - 1
    budget = replace(BUDGET, colluders=colluders, epsilon=epsilon)
    noise = budget.moment_noise(tuple(sizes))
    honest = len(sizes) - colluders
    whole = noise.sensitivity.scales(budget.price(MOMENT).multiplier, noise.exponents)
    for share, all_of_it in zip(noise.scales, whole, strict=True):
        assert honest * share**2 >= (all_of_it - 1) ** 2
        assert honest * (share - 1) ** 2 < all_of_it**2
    for group, share, power in zip(noise.sensitivity.groups, noise.scales, noise.exponents, strict=True):
        needed = (
            Fraction(budget.price(MOMENT).multiplier) ** 2 * noise.sensitivity.squared * 4 ** Fraction(power)
        )
        assert honest * share**2 * group.weight >= needed


def test_the_sum_of_m_shares_is_as_noisy_as_a_curator_but_for_the_colluders():
    for sizes in ([1000] * 20, [1, *[2000] * 18, 7999]):
        curator = moment_sensitivity(sum(sizes)) * BUDGET.price(MOMENT).multiplier
        assert std_of(BUDGET, sizes) == pytest.approx(curator * math.sqrt(20 / 19), rel=1e-6)


def test_the_order_and_the_sizes_of_silos_do_not_change_a_share():
    even, uneven, other = (
        BUDGET.moment_noise(sizes) for sizes in ((500,) * 4, (1997, 1, 1, 1), (1, 1, 1997, 1))
    )
    assert even == uneven == other


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
    curator = summary_sensitivity(n, with_mean=center) * budget.price(MOMENT).multiplier
    assert std_of(budget, sizes) == pytest.approx(curator * math.sqrt(m / (m - 1)), rel=2e-4)
    assert std_of(budget, sizes) >= curator * math.sqrt(m / (m - 1)) * (1 - 1e-12)


def test_more_rows_than_a_sum_can_hold_are_refused_from_public_facts():
    with pytest.raises(InputError, match=r"must stay within 2\*\*62 whole numbers"):
        priced("moment", n_features=5, n_sharing=20, center=True).moment_noise((2**60, 2**60))


def test_a_share_too_narrow_for_the_theorem_is_refused():
    budget = priced("moment", n_features=5, n_sharing=2, epsilon=60.0)
    with pytest.raises(InputError, match="at least 1024 lattice steps wide"):
        budget.moment_noise((2**48,) * 16)


def test_more_colluders_than_silos_are_refused():
    with pytest.raises(InputError, match="more silos than the 1 that may collude, got 1"):
        BUDGET.moment_noise((100,))


def test_drawn_shares_add_up_to_the_noise_they_should():
    noise = BUDGET.moment_noise((100,) * 5)
    source = SeededNoiseForExperiments(3)
    scale = noise.scales[0]
    sums = sum(gaussian_integers(source, 4000, scale=scale).astype(float) for _ in range(5))
    statistic = float(np.sum((sums / noise.stds[0]) ** 2))
    low, high = chi2.ppf([5e-10, 1 - 5e-10], 4000)
    assert low < statistic < high


def test_slack_counts_the_integers_of_every_silo():
    alone = replace(BUDGET, n_sharing=None)
    assert BUDGET.distance == 21 * alone.distance
    assert BUDGET.slack_delta == pytest.approx(21 * alone.slack_delta)
    assert BUDGET.total_mu <= alone.total_mu


@given(
    multiplier=st.floats(0.05, 1e4),
    square=st.integers(1, 2**40),
    n_silos=st.integers(4, 400),
    colluders=st.integers(0, 3),
)
def test_shares_of_any_sum_are_the_least_that_the_honest_silos_reach_the_noise_with(
    multiplier, square, n_silos, colluders
):
    moved = Sensitivity(Fraction(square), (Group(7, Fraction(1), 1),))
    honest = n_silos - colluders
    noise = noise_for(moved, multiplier, (10,) * n_silos, colluders)
    (share,), (fineness,) = noise.scales, noise.exponents
    needed = Fraction(multiplier) ** 2 * square * 4**fineness
    assert honest * share**2 >= needed > honest * (share - 1) ** 2
    assert share >= WIDE_SHARE
    assert fineness == 0 or share < 4 * WIDE_SHARE
    assert noise.stds[0] >= multiplier * math.sqrt(square * n_silos / honest) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"most": 2**100}, r"2\*\*62|at least 1024"),
        ({"sizes": (2**100, 5)}, r"2\*\*62|at least 1024"),
        ({"sizes": (5,), "colluders": 1}, "more silos than the 1"),
        ({"multiplier": math.inf}, "positive"),
    ],
)
def test_a_sum_that_cannot_be_is_refused_by_public_facts(terms, words):
    given_terms = {"multiplier": 4.0, "most": 1, "sizes": (5, 5), "colluders": 1} | terms
    moved = Sensitivity(Fraction(1), (Group(3, Fraction(1), given_terms["most"]),))
    with pytest.raises(InputError, match=words):
        noise_for(moved, given_terms["multiplier"], given_terms["sizes"], given_terms["colluders"])
