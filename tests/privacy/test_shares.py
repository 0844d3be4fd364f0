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

from fedpower.errors import InputError
from fedpower.privacy.budget import Budget
from fedpower.privacy.integer_release import SIDE, integer_noise, root_above
from fedpower.privacy.noise import SeededNoiseForExperiments, gaussian_integers
from fedpower.privacy.sensitivity import moment_sensitivity, summary_sensitivity
from fedpower.privacy.shares import SMALLEST_SHARE, WIDE_SHARE, shared_noise, sum_distance, sum_noise
from problems import Array

BUDGET = Budget(
    mode="moment",
    epsilon=1.0,
    delta=1e-6,
    n_features=5,
    iteration_rank=5,
    n_steps=1,
    center=False,
    n_sharing=20,
    colluders=1,
)


def rounded_law(scale: float, reach: int) -> Array:
    """P[round(scale·X) = k] for |k| ≤ reach."""
    edges = (np.arange(-reach, reach + 2) - 0.5) / scale
    return np.diff(ndtr(edges))


def law_of_sum(scale: float, n_shares: int, reach: int) -> Array:
    """The exact law of a sum of shares, by convolution."""
    one = rounded_law(scale, reach)
    total = one
    for _ in range(n_shares - 1):
        total = np.convolve(total, one)
    middle = total.size // 2
    return total[middle - reach : middle + reach + 1]


def law_of_theorem(scale: float, n_shares: int, reach: int) -> Array:
    """P[round(√h·scale·X + V) = k]: the normal distribution function, differenced h times over uniforms.

    The h-fold integral over uniforms is done by Gauss–Legendre, one uniform after the other.
    """
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
    noise = shared_noise(budget, sizes)
    honest = len(sizes) - colluders
    whole = integer_noise(
        budget.multiplier, with_mean=budget.center, shift=noise.share.shift, n_features=budget.n_features
    )
    assert honest * noise.share.diagonal**2 >= whole.diagonal**2
    assert honest * (noise.share.diagonal - 1) ** 2 < whole.diagonal**2
    assert 2 * noise.share.below**2 >= noise.share.diagonal**2
    assert noise.mu(colluders) <= budget.mu
    assert noise.mu(colluders) > budget.mu * (1 - 1e-5)
    assert noise.mu(0) < noise.mu(colluders)


def test_the_sum_of_m_shares_is_as_noisy_as_a_curator_but_for_the_colluders():
    for sizes in ([1000] * 20, [1, *[2000] * 18, 7999]):
        noise = shared_noise(BUDGET, sizes)
        curator = moment_sensitivity(sum(sizes)) * BUDGET.multiplier
        assert noise.std == pytest.approx(curator * math.sqrt(20 / 19), rel=1e-6)


def test_the_order_and_the_sizes_of_silos_do_not_change_a_share():
    even = shared_noise(BUDGET, [500] * 4)
    uneven = shared_noise(BUDGET, [1997, 1, 1, 1])
    assert even == uneven == shared_noise(BUDGET, [1, 1, 1997, 1])


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("sizes", [[1, 1], [2**22], [10**9] * 10, [2**30] * 1000])
def test_the_ring_holds_every_sum_for_next_to_no_noise(center, epsilon, sizes):
    """The largest numbers that rows and draws can give, and the noise beside a curator's."""
    sizes = [*sizes, 1]
    budget = replace(BUDGET, epsilon=epsilon, center=center, n_features=100)
    noise = shared_noise(budget, sizes)
    share, n, m = noise.share, sum(sizes), len(sizes)
    rounded = sum((s * SIDE**2 + (1 << share.shift >> 1)) >> share.shift for s in sizes)
    assert rounded + m * 14 * share.diagonal < 2**63
    assert n * SIDE + m * 14 * share.mean < 2**63
    assert (share.shift == 0) == (n <= 2**21)
    curator = summary_sensitivity(n, with_mean=center) * budget.multiplier
    assert noise.std == pytest.approx(curator * math.sqrt(m / (m - 1)), rel=2e-4)
    assert noise.std >= curator * math.sqrt(m / (m - 1))


def test_more_rows_than_a_sum_can_hold_are_refused_from_public_facts():
    with pytest.raises(InputError, match=r"must stay within 2\*\*62 whole numbers"):
        shared_noise(replace(BUDGET, center=True), [2**42, 2**42])


def test_a_share_too_narrow_for_the_theorem_is_refused():
    budget = replace(BUDGET, epsilon=60.0, delta=1e-6, n_sharing=2)
    with pytest.raises(InputError, match="at least 1024 lattice steps wide"):
        shared_noise(budget, [2**48] * 16)


def test_more_colluders_than_silos_are_refused():
    with pytest.raises(InputError, match="more silos than the 1 that may collude, got 1"):
        shared_noise(BUDGET, [100])


def test_drawn_shares_add_up_to_the_noise_they_should():
    """χ² of 4,000 sums of 5 shares against the full variance; fails by chance with 1e-9."""
    noise = shared_noise(replace(BUDGET, colluders=1), [100] * 5)
    source = SeededNoiseForExperiments(3)
    scale = noise.share.diagonal
    sums = sum(gaussian_integers(source, 4000, scale=scale).astype(float) for _ in range(5))
    unit = noise.n_rows * SIDE**2
    statistic = float(np.sum((sums / unit / noise.std) ** 2))
    low, high = chi2.ppf([5e-10, 1 - 5e-10], 4000)
    assert low < statistic < high


def test_slack_counts_the_integers_of_every_silo():
    alone = replace(BUDGET, n_sharing=None)
    assert BUDGET.distance == 21 * alone.distance
    assert BUDGET.slack_delta == pytest.approx(21 * alone.slack_delta)
    assert BUDGET.mu <= alone.mu


@given(
    multiplier=st.floats(0.05, 1e4),
    square=st.integers(1, 2**40),
    n_silos=st.integers(4, 400),
    colluders=st.integers(0, 3),
)
def test_shares_of_any_sum_are_the_least_that_the_honest_silos_reach_the_noise_with(
    multiplier, square, n_silos, colluders
):
    moved = root_above(Fraction(square))
    assert moved**2 >= square
    honest = n_silos - colluders
    noise = sum_noise(multiplier, sensitivity=moved, per_row=1, sizes=[10] * n_silos, colluders=colluders)
    needed = (Fraction(multiplier) * moved * 2**noise.fineness) ** 2
    assert honest * noise.share**2 >= needed
    # One step less than the whole steps that are needed would not do.
    assert honest * (noise.share - 1) ** 2 < math.ceil(Fraction(multiplier) * moved * 2**noise.fineness) ** 2
    assert noise.share >= WIDE_SHARE
    assert noise.fineness == 0 or noise.share < 4 * WIDE_SHARE
    assert noise.mu(colluders) <= (1 / multiplier) * (1 + 1e-12)
    assert noise.std >= multiplier * float(moved) * math.sqrt(n_silos / honest) * (1 - 1e-12)


@pytest.mark.parametrize(
    ("terms", "words"),
    [
        ({"per_row": 2**60}, r"2\*\*62"),
        ({"sizes": [2**61, 5]}, r"2\*\*62"),
        ({"sizes": [5], "colluders": 1}, "more silos than the 1"),
        ({"sensitivity": 0.0}, "positive"),
        ({"multiplier": math.inf}, "positive"),
        ({"per_row": 0}, "positive"),
    ],
)
def test_a_sum_that_cannot_be_is_refused_by_public_facts(terms, words):
    given_terms = {"multiplier": 4.0, "sensitivity": 1.0, "per_row": 1, "sizes": [5, 5], "colluders": 1}
    with pytest.raises(InputError, match=words):
        sum_noise(**given_terms | terms)
