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
from fedpower.privacy.sensitivity import pack, summary_size
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.messages import QueryAnswer
from fedpower.protocol.publication import SHARE, WordsOfKey, key_of, smoothing, whole_step
from fedpower.protocol.query import Covariance, moment_of
from fedpower.protocol.solvers import SolverSettings
from fedpower.protocol.study import pooled_std
from fedpower.sums.lattice import SIDE
from problems import Array, spiked_rows
from runs import drive, make_coordinator

Released = tuple[Array, Array | None, float]
D = 6
SIZES = {"north": 299, "south": 701}


def named(sizes):
    return {f"silo {place}": size for place, size in enumerate(sizes)}


def published(*, seed: int = 0, center: bool = True) -> tuple[Coordinator, dict[str, QueryAnswer]]:
    study = replace(study_of("upload, covariance"), center=center)
    rows = spiked_rows(n_rows=1000, n_features=D, rank=2)
    rows /= np.linalg.norm(rows, axis=1).max()
    parties = {
        "north": Party("north", study, rows[:299], SeededNoiseForExperiments(seed)),
        "south": Party("south", study, rows[299:], SeededNoiseForExperiments(seed + 1)),
    }
    coordinator = make_coordinator(parties, SolverSettings(study=study, rank=2))
    drive(coordinator, parties)
    return coordinator, coordinator.history[-1].answers


def read(answers: dict[str, QueryAnswer], *, center: bool = True) -> dict[str, Released]:
    """Return what each silo released: a lower triangle, a mean and a trace."""
    study = replace(study_of("upload, covariance"), center=center)
    budget, query = study.budget, moment_of(study)
    assert budget is not None
    return {
        name: query.read(budget.moment_noise((size,)).values(answers[name].words.view(np.int64)), size)
        for name, size in SIZES.items()
    }


def mean_of(released: dict[str, Released], part: int) -> Array:
    return np.asarray(
        sum(w * np.asarray(released[name][part]) for w, name in zip(WEIGHTS, SIZES, strict=True))
    )


WEIGHTS = (0.299, 0.701)


@pytest.mark.parametrize("seed", range(5))
def test_the_digits_of_a_plain_sum_give_the_pair_away_and_those_that_are_published_do_not(seed):
    coordinator, answers = published(seed=seed)
    released = read(answers)
    step = 1 / (701 * SIDE)
    truth = released["north"][1]
    assert truth is not None

    def explained(reported: Array) -> Array:
        left = (reported - WEIGHTS[0] * truth) / WEIGHTS[1] / step
        off = 2.0**-49 * (np.abs(reported) + np.abs(truth)) / WEIGHTS[1] / step
        assert off.max() < 1e-4
        return np.asarray(np.abs(left - np.rint(left)) <= off)

    assert explained(mean_of(released, 1)).all()
    assert not explained(coordinator.outcome.center).any()


@pytest.mark.parametrize("center", [False, True])
def test_a_result_is_the_sum_of_what_the_silos_sent_with_that_noise_and_no_more(center):
    coordinator, answers = published(center=center)
    released = read(answers, center=center)
    moment, total = symmetric_of(mean_of(released, 0), D), float(mean_of(released, 2))
    solution, smooth = coordinator.outcome, smoothing(study_of("upload, covariance").budget, SIZES)
    assert smooth is not None
    bound = 14 * smooth.std * 8  # 14 standard deviations end every draw; means enter twice
    if center:
        mean = mean_of(released, 1)
        assert not (solution.center == mean).any()
        assert np.abs(solution.center - mean).max() < bound
        moment, total = moment - np.outer(mean, mean), total - float(mean @ mean)
    assert 0 < abs(solution.total_variance - total) < bound * D
    assert not set(solution.values) & set(np.linalg.eigvalsh(moment))


def test_what_is_added_is_a_2_to_the_7th_of_the_noise_that_is_there():
    budget = priced("covariance", n_features=60, center=True)
    smooth = smoothing(budget, SIZES)
    assert smooth is not None
    noise = pooled_std(budget.study, SIZES)
    assert smooth.std == pytest.approx(SHARE * noise, rel=1e-6)
    zero = np.zeros(summary_size(60, with_mean=True))
    added = smooth(zero, b"key")
    assert added.std() == pytest.approx(smooth.std, rel=0.1)
    assert np.all(np.rint(added / smooth.spacing) == added / smooth.spacing)


def test_the_same_releases_give_the_same_noise_and_others_give_other_noise():
    first, _ = published(seed=0)
    again, _ = published(seed=0)
    np.testing.assert_array_equal(first.outcome.center, again.outcome.center)
    ones, zeros = np.ones(1, np.uint64), np.zeros(1, np.uint64)
    one = key_of({"a": ones, "b": zeros})
    assert one == key_of({"b": zeros, "a": ones})
    others = {"a": zeros, "b": ones}, {"a": np.concatenate([ones, zeros])}
    assert len({one, *map(key_of, others)}) == 3
    words = WordsOfKey(one)
    assert not np.array_equal(words.words(4), words.words(4))


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 10**5), min_size=1, max_size=6),
    d=st.integers(1, 12),
    center=st.booleans(),
    seed=st.integers(0, 10**6),
)
def test_what_float64_adds_is_within_the_proof_s_bound(sizes, d, center, seed):
    budget = priced("covariance", n_features=d, iteration_rank=1, center=center)
    rng = np.random.default_rng(seed)
    size = summary_size(d, with_mean=center)
    n, exact = sum(sizes), [Fraction(0)] * size
    query, half = Covariance(n_features=d, mean_weight=0.5 if center else 0.0), d * (d + 1) // 2
    summed = np.zeros(size)
    for count in sizes:
        numbers = rng.uniform(-0.5, 0.5, size) * count * SIDE**2
        numbers += rng.standard_normal(size) * budget.moment_noise((count,)).scales[0]
        numbers[half:-1] /= SIDE
        numbers = np.rint(numbers)
        below, mean, trace = query.read(numbers, count)
        vector = pack(symmetric_of(below, d), mean, trace)
        exact = [e + Fraction(count, n) * Fraction(x) for e, x in zip(exact, vector, strict=True)]
        summed += numbers
    below, mean, trace = query.read(summed, n)
    computed = pack(symmetric_of(below, d), mean, trace)
    off = math.sqrt(sum((Fraction(x) - e) ** 2 for x, e in zip(computed, exact, strict=True)))
    smooth = smoothing(budget, named(sizes))
    assume(smooth is not None)  # one row beside many thousands: the lattice has no room
    steps = sum(s / n * whole_step(budget, s) for s in sizes) + math.sqrt(size) * smooth.spacing
    assert off <= smooth.error - 0.5 * steps * (1 - 1e-12)


@pytest.mark.parametrize("d", [2, 100, 4200])
@pytest.mark.parametrize("sizes", [[1000, 1000], [100, 900], [10**5] * 10])
def test_the_price_of_digits_is_next_to_nothing(d, sizes):
    budget = priced("covariance", n_features=d, iteration_rank=2, center=True)
    smooth = smoothing(budget, named(sizes))
    assert smooth is not None
    assert smooth.mu <= 1.004 * budget.total_mu / math.sqrt(len(sizes))


def test_where_the_lattice_ends_nothing_is_added_and_nothing_is_claimed():
    budget = priced("covariance", epsilon=60.0, n_features=2, iteration_rank=2)
    assert smoothing(budget, named([2**24] * 400)) is None
