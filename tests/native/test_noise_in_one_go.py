"""Noise by the compiled loop: the integers that NumPy makes of the same words, doubtful ones included."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from fedpower import native
from fedpower.privacy import noise
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise, gaussian_integers

pytestmark = pytest.mark.skipif(native.loops() is None, reason=native.account())


def both_ways(work: Callable[[], Any]) -> tuple[Any, Any]:
    """Return what a function gives with the compiled loops, and with NumPy alone."""
    compiled = work()
    with native.switched_off():
        assert native.loops() is None
        return compiled, work()


ALL = 2**64 - 1
SCALES = (1, 2, 2**20 + 3, 2**30, 2**32 - 1, 2**32, 2**41 + 12345, 2**58)


class Given:
    """Words that are given, then those of a seed; it counts the latter."""

    def __init__(self, words: Any) -> None:
        self._given = np.array(words, dtype=np.uint64)
        self._more = SeededNoiseForExperiments(5)
        self.n_more = 0

    def words(self, n: int) -> Any:
        if self._given.size >= n:
            found, self._given = self._given[:n], self._given[n:]
            return found
        self.n_more += n
        return self._more.words(n)


@pytest.mark.parametrize("scale", SCALES)
def test_the_same_words_give_the_same_integers(scale: int) -> None:
    one, two = both_ways(lambda: gaussian_integers(SeededNoiseForExperiments(7), 100_003, scale=scale))
    assert np.array_equal(one, two)


def test_candidates_at_every_edge_are_accepted_and_rounded_alike() -> None:
    table = [int(entry) for entry in noise._CUMULATIVE_HIGH]
    parts = [0, ALL, *(entry + step for entry in (table[0], table[4]) for step in (-1, 1))]
    fractions = [0, 2**32 - 1, 2**63 - 1, 2**63, ALL - 1]
    chances = [0, 2**63, ALL - 2**40]
    words = np.array([(part, x, u) for part in parts for x in fractions for u in chances], dtype=np.uint64)
    for scale in (1, 2**30, 2**41 + 12345):
        for three in words:
            one, two = both_ways(
                lambda three=three, scale=scale: noise._candidates(Given(three), 1, scale).tolist()
            )
            assert one == two, (three, scale)


@pytest.mark.parametrize(
    ("three", "scale"),
    [
        ((int(noise._CUMULATIVE_HIGH[0]), 2**63, 0), 2**30),  # the integer part is open
        ((0, 0, ALL), 2**30),  # accepted with a probability of 1, less than the words tell
        ((0, (2**63 - 1) // 12345, 0), 12345),  # which whole number is nearest is open
        ((0, (2**63 - 1) // (2**41 + 12345), 0), 2**41 + 12345),
    ],
)
def test_what_the_words_leave_open_is_left_to_further_words(three: Any, scale: int) -> None:
    words = np.array([three], dtype=np.uint64)
    assert noise._in_one_go(words.reshape(3, 1), scale, np.empty(1, dtype=np.int64)) is None
    sources: list[Given] = []

    def drawn() -> Any:
        sources.append(Given(words.ravel()))
        return noise._candidates(sources[-1], 1, scale).tolist()

    one, two = both_ways(drawn)
    assert one == two
    assert [source.n_more > 0 for source in sources] == [True, True]


class Recorded(SystemNoise):
    """Words that are given in place of the system's."""

    def __init__(self, *words: Any) -> None:
        self.left = [np.array(each, dtype=np.uint64) for each in words]

    def words(self, n: int) -> Any:
        given = self.left.pop(0)
        assert given.size == n
        return given


def test_two_words_decide_as_the_three_that_they_are_the_beginning_of() -> None:
    pairs = SeededNoiseForExperiments(3).words(40_000).reshape(2, -1)
    rest = SeededNoiseForExperiments(4).words(pairs.shape[1])
    whole = noise._completed(pairs, rest)
    for scale in (1, 2**30, 2**41 + 12345):
        room = np.empty((2, pairs.shape[1]), dtype=np.int64)
        decided = noise._in_one_go(pairs, scale, room[0])
        assert decided is not None
        assert np.array_equal(decided, noise._in_one_go(whole, scale, room[1]))
        assert np.array_equal(decided, noise._in_passes(SystemNoise(), whole, scale))


@pytest.mark.parametrize(
    "first",
    [
        int(noise._CUMULATIVE_HIGH[0]) >> 36 << 36,  # the integer part is open
        2**36 - 1,  # the chance may be 1
    ],
)
def test_the_rest_of_two_words_is_drawn_where_they_leave_something_open(
    first: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(noise, "_BATCH", 1)
    pair, rest = [first, 0], [2**63 + 5]
    assert noise._in_one_go(np.array([[first], [0]], np.uint64), 2**30, np.empty(1, np.int64)) is None
    source = Recorded(pair, rest)
    found = noise._candidates(source, 1, 2**30)
    assert not source.left
    three = noise._completed(np.array([[first], [0]], np.uint64), np.array(rest, np.uint64))
    assert found.tolist() == noise._in_passes(SystemNoise(), three, 2**30).tolist()
