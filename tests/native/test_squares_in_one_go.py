"""The compiled loop that squares rows as it treats them gives NumPy's sums, to the bit."""

from typing import Any

import numpy as np
import pytest
from compiled import both_ways, needs_loops
from test_rows_in_one_go import RULES, adversarial, rule_of

from fedpower import native
from fedpower.rows.opening import open_source
from fedpower.sums.exact_moment import ExactMoments, exact_moment
from fedpower.sums.lattice_rows import LatticeRows

pytestmark = needs_loops


def sums_of(rows: Any, name: str, **how: Any) -> ExactMoments:
    return exact_moment(open_source(rows), rule_of(name, rows.shape[1]), **how)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("width", [1, 3, 4, 7, 8, 9, 64, 100, 130])
def test_the_sums_are_those_of_numpy(width: int, name: str) -> None:
    rows = np.concatenate([adversarial(width), np.tile(adversarial(width)[50:80], (9, 1))])
    one, two = both_ways(lambda: sums_of(rows, name))
    assert one == two


@pytest.mark.parametrize("width", [513, 1024])
def test_the_sums_of_wide_rows_are_those_of_numpy(width: int) -> None:
    one, two = both_ways(lambda: sums_of(adversarial(width), "tight"))
    assert one == two


@pytest.mark.parametrize("count", [1, 7, 8, 127, 128, 129, 300])
def test_neither_the_number_of_rows_nor_their_blocks_matter(count: int) -> None:
    rows = np.random.default_rng(count).standard_normal((count, 12))
    one, two = both_ways(lambda: sums_of(rows, "tight"))
    assert one == two == sums_of(rows, "tight", block_rows=5)
    assert sums_of(rows.astype(np.float32), "tight") == sums_of(
        rows.astype(np.float32).astype(np.float64), "tight"
    )


def test_sums_that_float64_no_longer_holds_are_handed_over_in_time() -> None:
    rows = np.random.default_rng(0).standard_normal((20_000, 5))
    one, two = both_ways(lambda: sums_of(rows, "normalised"))
    assert one == two
    assert one.square_total > 2**53


def test_rows_of_one_silo_are_squared_by_the_loop_where_it_is_built_for_the_machine() -> None:
    rows = LatticeRows(rule_of("tight", 4), 4)
    built = hasattr(native.loops(), "fedpower_lattice_squares")
    assert rows.squares_take(np.zeros((3, 4))) == built
    assert not rows.squares_take(np.zeros((3, 4), order="F"))
