"""One edge moves the released adjacency by no more than its noise is made for, in whole numbers."""

import math
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from fedpower.errors import InputError
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.privacy.sensitivity import noise_for, of_moment
from fedpower.rows.networks import NetworkSource, open_network
from fedpower.sums.local import EdgeMoment

D = 4
PAIRS = [(one, two) for one in range(D) for two in range(one)]
WEIGHTS = st.lists(st.floats(0, 7.5), min_size=len(PAIRS), max_size=len(PAIRS))


def network(layers: list[list[float]], edge_weight: float) -> NetworkSource:
    nodes = [str(node) for node in range(D)]
    rows = [
        (nodes[one], nodes[two], weight, str(layer))
        for layer, weights in enumerate(layers)
        for (one, two), weight in zip(PAIRS, weights, strict=True)
    ]
    table = pl.DataFrame(rows, schema=["source", "target", "weight", "layer"], orient="row")
    return open_network(table, unit="edge", nodes=nodes, edge_weight=edge_weight)


def squared_change(one: NetworkSource, two: NetworkSource, multiplier: float) -> Fraction:
    moved = of_moment(D)
    diagonal, below, trace = moved.scales(multiplier)
    first, second = EdgeMoment(one).sums(), EdgeMoment(two).sums()
    change = first.squares.low.astype(object) - second.squares.low.astype(object)
    total = Fraction(int(np.trace(change)), trace) ** 2
    for row, column in zip(*np.tril_indices(D), strict=True):
        scale = diagonal if row == column else below
        total += Fraction(int(change[row, column]), scale) ** 2
    return total


@settings(max_examples=12)
@given(WEIGHTS, WEIGHTS, st.integers(0, len(PAIRS) - 1), st.floats(0, 100), st.floats(0.3, 40))
def test_no_edge_of_any_layer_moves_it_further(
    one: list[float], two: list[float], place: int, weight: float, multiplier: float
):
    changed = [*two[:place], weight, *two[place + 1 :]]
    found = squared_change(network([one, two], 2.5), network([one, changed], 2.5), multiplier)
    assert found * Fraction(multiplier) ** 2 <= 1


def test_an_edge_that_appears_attains_it():
    without = [0.0] * len(PAIRS)
    one, two = network([without], 1.0), network([[1.0, *without[1:]]], 1.0)
    assert math.isclose(float(squared_change(one, two, 3.0)) * 9, 1.0, rel_tol=1e-6)


@pytest.mark.parametrize(
    ("weights", "sentence"),
    [
        ([[0.0, 3.0], [3.0, 0.0]], "within the public maximum"),
        ([[0.0, 1.0], [0.0, 0.0]], "the same in both directions"),
        ([[1.0, 0.0], [0.0, 1.0]], "between different nodes"),
    ],
)
def test_edges_that_were_not_capped_are_refused_before_noise_too_small_is_added(weights, sentence):
    source = NetworkSource(name="planted", layers=(sparse.csr_array(weights),), unit="edge")
    with pytest.raises(InputError, match=sentence):
        EdgeMoment(source).sums()


def distinguished(weight: float, n_games: int = 4000) -> float:
    noise = noise_for(of_moment(D), 2.0, (1,))
    source = SeededNoiseForExperiments(5)
    # The first entry below the diagonal.
    found = [
        [round(present * 2**40) + float(noise.draw(source)[D]) for _ in range(n_games)]
        for present in (0.0, weight)
    ]
    one, two = np.array(found)
    return float((two.mean() - one.mean()) / one.std())


@pytest.mark.audits
def test_the_release_tells_an_edge_no_better_than_promised_and_a_planted_error_is_caught():
    # The difference of means has a standard error of √(2/4000) = 0.0224: 5 of them, one in 10⁶.
    promised, slack = 1 / 2.0, 5 * 0.0224
    assert distinguished(1.0) <= promised + slack
    assert distinguished(3.0) > promised + slack  # noise made for weight 1, an edge of weight 3
