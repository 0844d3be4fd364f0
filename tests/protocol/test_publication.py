"""What is published of a sum: its digits no longer tell the summands, and the smaller epsilon is true."""

import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from budgets import priced
from federations import Party, study_of
from fedpower.linalg import symmetric_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.publication import SHARE, WordsOfKey, key_of, smoothing, whole_step
from fedpower.privacy.sensitivity import pack, summary_size, unpack
from fedpower.protocol import Coordinator
from fedpower.protocol.coordinator import drive, in_turn
from fedpower.protocol.messages import PackedMoment
from fedpower.protocol.outcome import with_noise
from fedpower.protocol.query import Moment
from fedpower.protocol.silo import packed
from fedpower.protocol.solvers import UploadSettings
from fedpower.protocol.solvers.sums import pool, smoothed
from fedpower.protocol.study import budget_of, pooled_std
from fedpower.sums.lattice import SIDE
from problems import Array, spiked_rows

D = 6
SIZES = {"north": 299, "south": 701}


def published(*, seed: int = 0, center: bool = True) -> tuple[Coordinator, dict[str, PackedMoment]]:
    study = replace(study_of("upload, moment"), center=center)
    rows = spiked_rows(n_rows=1000, n_features=D, rank=2)
    rows /= np.linalg.norm(rows, axis=1).max()
    parties = {
        "north": Party("north", study, rows[:299], SeededNoiseForExperiments(seed)),
        "south": Party("south", study, rows[299:], SeededNoiseForExperiments(seed + 1)),
    }
    chosen = with_noise(UploadSettings(study=study, rank=2), study, run="a-run")
    coordinator = Coordinator(
        chosen.solve(np.random.default_rng(0)),  # type: ignore[arg-type]
        list(parties),
        study=study,
        run="a-run",
    )
    drive(coordinator, in_turn(parties))
    return coordinator, coordinator.history[-1].answers


WEIGHTS = (0.299, 0.701)


def test_the_digits_of_a_plain_sum_give_the_pair_away() -> None:
    _, answers = published()
    shares = (0.299_993, 0.700_007)
    for first, second in zip(answers["north"].mean, answers["south"].mean, strict=True):  # type: ignore[arg-type]
        truth = np.float32(first)
        reported = shares[0] * float(truth) + shares[1] * float(np.float32(second))
        around = np.arange(-(2**18), 2**18, dtype=np.int32)
        candidates = (truth.view(np.int32) + around).view(np.float32).astype(np.float64)
        left = (reported - shares[0] * candidates) / shares[1]
        off = np.abs(left - left.astype(np.float32).astype(np.float64))
        fits = off <= 2.0**-51 * (abs(reported) + np.abs(candidates)) / shares[1]
        assert candidates[fits].tolist() == [float(truth)]


@pytest.mark.parametrize("seed", range(5))
def test_the_digits_that_are_published_do_not(seed: int) -> None:
    coordinator, answers = published(seed=seed)
    budget = budget_of(study_of("upload, moment"))
    assert budget is not None
    step = 1 / (701 * SIDE)
    _, plain, _ = pool(answers, SIZES, D)
    truth = answers["north"].mean
    assert truth is not None
    assert plain is not None

    def explained(reported: Array) -> Array:
        left = (reported - WEIGHTS[0] * truth) / WEIGHTS[1] / step
        off = 2.0**-49 * (np.abs(reported) + np.abs(truth)) / WEIGHTS[1] / step
        assert off.max() < 1e-4
        return np.asarray(np.abs(left - np.rint(left)) <= off)

    assert explained(plain).all()
    assert not explained(coordinator.outcome.center).any()


@pytest.mark.parametrize("center", [False, True])
def test_nothing_of_a_result_is_the_sum_of_what_the_silos_sent(center: bool) -> None:
    coordinator, answers = published(center=center)
    moment, mean, total = pool(answers, SIZES, D)
    solution = coordinator.outcome
    assert solution.total_variance != total
    assert not set(solution.values) & set(np.linalg.eigvalsh(moment))
    if center:
        assert not (solution.center == mean).any()


def test_what_is_added_is_a_2_to_the_7th_of_the_noise_that_is_there() -> None:
    budget = priced("moment", n_features=60, center=True)
    smooth = smoothing(budget, SIZES.values())
    assert smooth is not None
    noise = pooled_std(budget, SIZES)
    assert smooth.std == pytest.approx(SHARE * noise, rel=1e-6)
    zero = np.zeros(summary_size(60, with_mean=True))
    added = smooth(zero, b"key")
    assert added.std() == pytest.approx(smooth.std, rel=0.1)
    assert np.all(np.rint(added / smooth.spacing) == added / smooth.spacing)


def test_the_same_releases_give_the_same_noise_and_others_give_other_noise() -> None:
    first, _ = published(seed=0)
    again, _ = published(seed=0)
    np.testing.assert_array_equal(first.outcome.center, again.outcome.center)
    first, second = np.ones(1), np.zeros(1)
    one = key_of({"a": [first], "b": [second]})
    assert one == key_of({"b": [second], "a": [first]})
    others = {"a": [second], "b": [first]}, {"a": [first, second]}
    assert len({one, *map(key_of, others)}) == 3
    words = WordsOfKey(one)
    assert not np.array_equal(words.words(4), words.words(4))


def test_a_moment_comes_back_centred_as_it_was_but_for_the_noise() -> None:
    _, answers = published()
    moment, mean, total = pool(answers, SIZES, D)
    budget = budget_of(study_of("upload, moment"))
    assert budget is not None
    smooth = smoothing(budget, SIZES.values())
    assert smooth is not None
    got, center, trace = smoothed(moment, mean, total, smooth, key=b"key")
    # 14 standard deviations end every draw; means enter twice.
    bound = 14 * smooth.std * 4 * (1 + float(np.linalg.norm(mean)))  # type: ignore[arg-type]
    assert 0 < np.abs(got - moment).max() < bound
    assert 0 < np.abs(center - mean).max() < bound  # type: ignore[operator]
    assert 0 < abs(trace - total) < bound * D
    np.testing.assert_array_equal(got, got.T)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 10**5), min_size=1, max_size=6),
    d=st.integers(1, 12),
    center=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_what_float64_adds_is_within_the_proof_s_bound(
    sizes: list[int], d: int, center: bool, seed: int
) -> None:
    budget = priced("moment", n_features=d, iteration_rank=1, center=center)
    rng = np.random.default_rng(seed)
    size = summary_size(d, with_mean=center)
    n, exact, answers = sum(sizes), [Fraction(0)] * size, {}
    query, half = Moment(n_features=d, mean_weight=0.5 if center else 0.0), d * (d + 1) // 2
    for place, count in enumerate(sizes):
        numbers = rng.uniform(-0.5, 0.5, size) * count * SIDE**2
        numbers += rng.standard_normal(size) * budget.moment_noise((count,)).scales[0]
        numbers[half:-1] /= SIDE
        below, mean, trace = query.read(np.rint(numbers), count)
        vector = pack(symmetric_of(below, d), mean, trace)
        exact = [e + Fraction(count, n) * Fraction(x) for e, x in zip(exact, vector, strict=True)]
        answers[f"silo-{place}"] = _sent(vector, d, center=center)
    named = {f"silo-{place}": count for place, count in enumerate(sizes)}
    moment, mean, total = pool(answers, named, d)
    if mean is not None:
        moment, total = moment + np.outer(mean, mean), total + float(mean @ mean)
    computed = pack(moment, mean, total)
    off = math.sqrt(sum((Fraction(x) - e) ** 2 for x, e in zip(computed, exact, strict=True)))
    smooth = smoothing(budget, sizes)
    assume(smooth is not None)  # one row beside many thousands: the lattice has no room
    steps = sum(s / n * whole_step(budget, s) for s in sizes) + math.sqrt(size) * smooth.spacing
    assert off <= smooth.error - 0.5 * steps * (1 - 1e-12)


def _sent(vector: Array, d: int, *, center: bool) -> PackedMoment:

    moment, mean, trace = unpack(vector, d, with_mean=center)
    if mean is None:
        return packed(moment, None, trace)
    return packed(moment - np.outer(mean, mean), mean, trace - float(mean @ mean))


@pytest.mark.parametrize("d", [2, 100, 4200])
@pytest.mark.parametrize("sizes", [[1000, 1000], [100, 900], [10**5] * 10])
def test_the_price_of_digits_is_next_to_nothing(d: int, sizes: list[int]) -> None:
    budget = priced("moment", n_features=d, iteration_rank=2, center=True)
    smooth = smoothing(budget, sizes)
    assert smooth is not None
    assert smooth.mu <= 1.004 * budget.total_mu / math.sqrt(len(sizes))


def test_where_the_lattice_ends_nothing_is_added_and_nothing_is_claimed() -> None:
    budget = priced("moment", epsilon=60.0, n_features=2, iteration_rank=2)
    assert smoothing(budget, [2**24] * 400) is None
