"""The integers are rounded normals: against the exact normal law.

Statistical tests state the probability that a correct sampler fails; seeded ones do not vary.
"""

import math
from decimal import Decimal, localcontext

import numpy as np
import pytest
from scipy import stats

from fedpower import native
from fedpower.errors import InputError
from fedpower.privacy import noise
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise, gaussian_integers

N = 400_000


class Scripted:
    def __init__(self, *words):
        self.left = list(words)

    def words(self, n):
        taken, self.left = self.left[:n], self.left[n:]
        return np.array(taken, dtype=np.uint64)


def expected_counts(edges, scale, n):
    cdf = stats.norm.cdf((np.asarray(edges) + 0.5) / scale)
    return n * np.diff(np.concatenate([[0.0], cdf, [1.0]]))


def quantiles(scale):
    return np.unique(np.rint(scale * stats.norm.ppf(np.linspace(0.0025, 0.9975, 200))))


def fits(K, scale, edges):
    observed = np.bincount(np.searchsorted(edges, K, side="left"), minlength=edges.size + 1)
    return stats.chisquare(observed, expected_counts(edges, scale, K.size)).pvalue > 1e-7


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
    with native.switched_off():
        assert native.loops() is None
        assert drawn() == compiled
