"""The integers are rounded normals: against the exact normal law.

Statistical tests state the probability that a correct sampler fails; seeded ones do not vary.
"""

import math
from decimal import Decimal, localcontext
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from budgets import moment_bound, priced
from fedpower import native
from fedpower.exceptions import InputError
from fedpower.privacy import noise
from fedpower.privacy.budget import COVARIANCE
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise, gaussian_integers
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
from problems import without_loops_in_c

N = 400_000


class Scripted:
    def __init__(self, *words):
        self.left = list(words)

    def words(self, n):
        taken, self.left = self.left[:n], self.left[n:]
        return np.array(taken, dtype=np.uint64)


def quantiles(scale):
    return np.unique(np.rint(scale * stats.norm.ppf(np.linspace(0.0025, 0.9975, 200))))


def fits(K, scale, edges):
    observed = np.bincount(np.searchsorted(edges, K, side="left"), minlength=edges.size + 1)
    cdf = stats.norm.cdf((np.asarray(edges) + 0.5) / scale)
    expected = K.size * np.diff(np.concatenate([[0.0], cdf, [1.0]]))
    return stats.chisquare(observed, expected).pvalue > 1e-7


@pytest.mark.parametrize("scale", [1, 3, 7, 1000, 2**24, 2**30, 3_000_000_001, 2**41 + 7, 2**58])
def test_the_law_is_the_rounded_normal(scale):
    K = gaussian_integers(SeededNoiseForExperiments(scale), N, scale=scale)
    assert fits(K, scale, quantiles(scale) if scale != 7 else np.arange(-25, 26))


def test_the_low_bits_are_fair_and_the_law_is_symmetric():
    K = gaussian_integers(SeededNoiseForExperiments(6), N)
    for bit in range(20):
        assert abs(np.mean(K >> bit & 1) - 0.5) < 6 * 0.5 / math.sqrt(N)
    assert abs(np.mean(K < 0) - 0.5) < 6 * 0.5 / math.sqrt(N)
    assert stats.ks_2samp(K[K > 0], -K[K < 0]).pvalue > 1e-7


@pytest.mark.audits
def test_the_tail_beyond_five_is_there_at_its_rate():
    source, scale, n, batches = SeededNoiseForExperiments(8), 2**30, 2_000_000, 14
    counts = np.zeros(3, dtype=int)
    for _ in range(batches):
        K = np.abs(gaussian_integers(source, n, scale=scale))
        counts += [np.count_nonzero(k * scale < K) for k in (3, 4, 5)]
    for k, count in zip((3, 4, 5), counts, strict=True):
        low, high = stats.poisson.ppf([5e-8, 1 - 5e-8], 2 * stats.norm.sf(k) * n * batches)
        assert low <= count <= high
    assert counts[2] > 0


def test_large_integer_parts_have_their_probability():
    table = noise._CUMULATIVE
    with localcontext() as context:
        context.prec = 80
        weights = [(Decimal(-k * k) / 2).exp() for k in range(40)]
        for j, entry in enumerate(table):
            ideal = 2**128 * sum(weights[: j + 1]) / sum(weights)
            assert abs(Decimal(entry) - ideal) <= 1
    just_below, at = table[7] - 1, table[7]
    for value, k in ((just_below, 7), (at, 8)):
        high, low = value >> 64, value & 2**64 - 1
        assert noise._integer_parts(Scripted(low), np.array([high], dtype=np.uint64))[0] == k
    top = np.array([2**64 - 1], dtype=np.uint64)
    assert noise._integer_parts(Scripted(2**64 - 1), top)[0] == 13


def test_doubtful_candidates_are_settled_as_the_sure_ones(monkeypatch):

    class Replayed(SeededNoiseForExperiments):
        def words(self, n):
            return np.zeros(4, dtype=np.uint64) if n == 4 else super().words(n)

    scales = (12345, 2**41 + 12345)
    sure = [gaussian_integers(Replayed(9), 3000, scale=scale) for scale in scales]
    monkeypatch.setattr(noise, "_DOUBT", 2.0)
    for scale, expected in zip(scales, sure, strict=True):
        assert np.array_equal(gaussian_integers(Replayed(9), 3000, scale=scale), expected)


@pytest.mark.parametrize("whole", [0, 1, 77, 2**31])
@pytest.mark.parametrize("scale", [2**32 - 1, 2**32 + 15, 2**41 + 3, 2**58 - 1])
def test_further_bits_of_the_fraction_decide_a_rounding_that_64_leave_open(whole, scale):
    x = (2**63 - 1 + 2**64 * whole) // scale  # scale·x is less than scale·2^-64 below whole + 1/2
    for tail, rounded in ((0, whole), (2**64 - 1, whole + 1)):
        words = Scripted(0, x, 0, tail, tail, 0, 0)  # k = 0, x, u = 0, then the further bits
        assert noise._candidates(words, 1, scale).tolist() == [rounded]


@pytest.mark.parametrize("scale", [2**32, 2**41 + 12345, 2**58 - 1, 2**58])
def test_wide_scales_are_rounded_as_whole_numbers_are(scale):
    words = np.random.default_rng(0).integers(0, 2**64, 3000, dtype=np.uint64)
    words[:3] = [0, 2**63, 2**64 - 1]
    rounded, doubtful = noise._product(words, scale)
    for x, found, open_ended in zip(words.tolist(), rounded.tolist(), doubtful, strict=True):
        assert found == (scale * x + 2**63) >> 64
        assert open_ended == (found != (scale * x + scale - 1 + 2**63) >> 64)


@pytest.mark.audits
def test_openDP_draws_from_the_same_law():  # noqa: N802
    dp = pytest.importorskip("opendp.prelude")
    dp.enable_features("contrib")
    scale, n = 1000, 20_000
    space = dp.vector_domain(dp.atom_domain(T=int)), dp.l2_distance(T=float)
    theirs = dp.m.make_gaussian(*space, scale=float(scale))([0] * n)
    ours = gaussian_integers(SystemNoise(), n, scale=scale)
    assert stats.ks_2samp(ours, theirs).pvalue > 1e-7


def test_the_system_source_never_repeats_and_the_seeded_one_says_that_it_gives_no_privacy():
    source = SystemNoise()
    assert not np.intersect1d(source.words(1000), source.words(1000)).size
    assert not np.array_equal(gaussian_integers(source, 50), gaussian_integers(source, 50))
    one, same, other = (SeededNoiseForExperiments(seed).words(100) for seed in (1, 1, 2))
    assert np.array_equal(one, same)
    assert not np.array_equal(one, other)
    assert "NO privacy" in SeededNoiseForExperiments.__doc__


def test_integers_take_four_words_each_by_the_thousand_and_the_same_for_a_seed(monkeypatch):
    asked = []
    words = SeededNoiseForExperiments.words
    monkeypatch.setattr(SeededNoiseForExperiments, "words", lambda self, n: asked.append(n) or words(self, n))
    one, same = (gaussian_integers(SeededNoiseForExperiments(5), N) for _ in range(2))
    assert np.array_equal(one, same)
    assert 2 * 3 * N < sum(asked) < 2 * 4.5 * N
    assert len(asked) < 2 * N / 1000
    for n in (0, 1, 2, 65):
        drawn = gaussian_integers(SystemNoise(), n)
        assert (drawn.shape, drawn.dtype) == ((n,), np.int64)


@pytest.mark.parametrize("scale", [0, -5, 2**58 + 1])
def test_a_scale_out_of_range_is_refused(scale):
    with pytest.raises(InputError, match="scale must be between 1"):
        gaussian_integers(SystemNoise(), 1, scale=scale)


def test_integers_that_cores_draw_beside_each_other_have_the_same_law():
    scale, n = 2**30, 4 * noise._SHARE + 17
    K = gaussian_integers(SystemNoise(), n, scale=scale)
    assert fits(K, scale, quantiles(scale))
    first, second = K[: noise._SHARE], K[noise._SHARE : 2 * noise._SHARE]
    assert abs(np.corrcoef(first, second)[0, 1]) < 6 / math.sqrt(noise._SHARE)


@pytest.mark.skipif(native.loops() is None, reason=native.account())
@pytest.mark.parametrize("scale", [1, 2**20 + 3, 2**30, 2**32 - 1, 2**41 + 12345, 2**58])
def test_the_compiled_loop_gives_the_integers_that_numpy_makes_of_the_same_words(scale):
    """At random words, and at every edge of the table, of rounding and of the acceptance."""
    table = [int(entry) for entry in noise._CUMULATIVE_HIGH]
    parts = [0, 2**64 - 1, *(entry + step for entry in (table[0], table[4]) for step in (-1, 0, 1))]
    fractions = [0, 2**32 - 1, 2**63 - 1, 2**63, 2**64 - 2, (2**63 - 1) // scale]
    chances = [0, 2**63, 2**64 - 1 - 2**40, 2**64 - 1]
    edges = [(part, x, u, 1, 2, 3, 4, 5, 6, 7, 8, 9) for part in parts for x in fractions for u in chances]

    def drawn():
        seeded = gaussian_integers(SeededNoiseForExperiments(7), 100_003, scale=scale).tolist()
        return seeded, [noise._candidates(Scripted(*words), 1, scale).tolist() for words in edges]

    compiled = drawn()
    with without_loops_in_c():
        assert native.loops() is None
        assert drawn() == compiled


# --- what silos add: scales, rounding that is paid for, and shares of a secure sum ----------------------

BUDGET = priced("covariance", n_features=5, n_sharing=20)


def std_of(budget, sizes):
    return budget.moment_noise(tuple(sizes)).stds[0] / (sum(sizes) * SIDE**2)


def reals(bound, size):
    return of_reals(bound, size, largest=2.0 * bound, n_rows=1)


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
        curator = moment_bound(sum(sizes)) * BUDGET.price(COVARIANCE).multiplier
        assert std_of(BUDGET, sizes) == pytest.approx(curator * math.sqrt(20 / 19), rel=1e-6)
    even, *others = (BUDGET.moment_noise(s) for s in ((500,) * 4, (1997, 1, 1, 1), (1, 1, 1997, 1)))
    assert others == [even, even]


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("epsilon", [1e-3, 1.0, 50.0])
@pytest.mark.parametrize("sizes", [[1, 1], [2**22], [10**9] * 10, [2**30] * 1000])
def test_the_ring_holds_every_sum_for_next_to_no_noise(center, epsilon, sizes):
    sizes = [*sizes, 1]
    budget = priced("covariance", n_features=100, n_sharing=20, epsilon=epsilon, center=center)
    noise = budget.moment_noise(tuple(sizes))
    n, m = sum(sizes), len(sizes)
    for group, scale, power in zip(noise.sensitivity.groups, noise.scales, noise.exponents, strict=True):
        rounded = sum(math.ceil(s * group.most * Fraction(2) ** power) for s in sizes)
        assert rounded + m * 14 * scale < 2**63
    assert (min(noise.exponents) >= 0) == (n <= 2**21)
    curator = moment_bound(n, center=center) * budget.price(COVARIANCE).multiplier
    assert std_of(budget, sizes) == pytest.approx(curator * math.sqrt(m / (m - 1)), rel=2e-4)
    assert std_of(budget, sizes) >= curator * math.sqrt(m / (m - 1)) * (1 - 1e-12)


def test_slack_counts_the_integers_of_every_silo():
    alone = priced("covariance", n_features=5)
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
        (lambda: priced("covariance", n_features=5, n_sharing=20, center=True).moment_noise((2**60, 2**60)),
         r"must stay within 2\*\*62 whole numbers"),
        (lambda: priced("covariance", n_features=5, n_sharing=2, epsilon=60.0).moment_noise((2**48,) * 16),
         "at least 1024 lattice steps wide"),
    ],
)  # fmt: skip
def test_noise_that_cannot_be_is_refused_from_public_facts_in_one_sentence(refused, words):
    with pytest.raises(InputError, match=words) as refusal:
        refused()
    assert "\n" not in str(refusal.value)
