"""Noise by the compiled loop: the integers that NumPy makes of the same words, doubtful ones included."""

from typing import Any

import numpy as np
import pytest
from compiled import both_ways, needs_loops

from fedpower.privacy import noise
from fedpower.privacy.noise import SeededNoiseForExperiments, gaussian_integers

pytestmark = needs_loops

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
    one, two = both_ways(
        lambda: gaussian_integers(SeededNoiseForExperiments(7), 100_003, scale=scale)
    )
    assert np.array_equal(one, two)


def test_candidates_at_every_edge_are_accepted_and_rounded_alike() -> None:
    table = [int(entry) for entry in noise._CUMULATIVE_HIGH]
    parts = [0, ALL, *(entry + step for entry in (table[0], table[4]) for step in (-1, 1))]
    fractions = [0, 2**32 - 1, 2**63 - 1, 2**63, ALL - 1]
    chances = [0, 2**63, ALL - 2**40]
    words = np.array(
        [(part, x, u) for part in parts for x in fractions for u in chances], dtype=np.uint64
    )
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
        ((0, 2**63 - 1, 0), 1),  # which whole number is nearest is open
        ((0, (2**63 - 1) // (2**41 + 12345), 0), 2**41 + 12345),
    ],
)
def test_what_the_words_leave_open_is_left_to_further_words(three: Any, scale: int) -> None:
    words = np.array([three], dtype=np.uint64)
    assert noise._in_one_go(words.ravel(), scale, np.empty(1, dtype=np.int64)) is None
    sources: list[Given] = []

    def drawn() -> Any:
        sources.append(Given(words.ravel()))
        return noise._candidates(sources[-1], 1, scale).tolist()

    one, two = both_ways(drawn)
    assert one == two
    assert [source.n_more > 0 for source in sources] == [True, True]
