"""How far one row moves a tally, in whole numbers, and what the shares of preparation come to."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.data.survey import CELL_SIDE, STAGES, Stage
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.budget import Budget
from fedpower.privacy.preparation import shares_of, squared_sensitivity, stage_scales

OPEN = np.array([0, 2])
CELLS = st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-300, 2.0**-41])


def stage(kind):
    d = 3
    low, high = np.array([-1.0, 0.0, 5.0]), np.array([1.0, 8.0, 5.5])
    return Stage(
        kind=kind,
        n_features=d,
        open_columns=OPEN,
        low=None if kind == "octaves" else low,
        high=None if kind == "octaves" else high,
        offset=np.array([0.3, 2.0, 5.1]) if kind == "norms" else None,
        scale=np.array([0.1, 3.0, 1e-3]) if kind == "norms" else None,
    )


@pytest.mark.parametrize("kind", STAGES)
@given(rows=st.tuples(*[st.tuples(CELLS, CELLS, CELLS)] * 2))
def test_no_row_moves_a_tally_farther_than_its_noise_is_made_for(kind, rows):
    one, other = (stage(kind).tally(np.array([row])) for row in rows)
    moved = (one - other).tolist()
    if kind == "means":
        moved = [CELL_SIDE * each for each in moved[:3]] + moved[3:]
    assert sum(each**2 for each in moved) <= squared_sensitivity(kind, 3, OPEN.size, CELL_SIDE)


def test_the_squares_are_free_beside_the_means_for_every_pair_of_cells_on_a_small_lattice():
    side = 8
    most = max(
        side**2 * (q - p) ** 2 + (q * q - p * p) ** 2
        for q, p in itertools.product(range(-side, side + 1), repeat=2)
    )
    assert most == 4 * side**4 == squared_sensitivity("means", 1, 0, side)


def test_rows_at_opposite_ends_of_every_range_move_the_means_by_exactly_the_sensitivity():
    ends = np.array([[-1.0, 0.0, 5.0], [1.0, 8.0, 5.5]])
    one, other = (stage("means").tally(row[None]) for row in ends)
    moved = (one - other).tolist()
    square = sum((CELL_SIDE * each) ** 2 for each in moved[:3]) + sum(each**2 for each in moved[3:])
    assert square == squared_sensitivity("means", 3, OPEN.size, CELL_SIDE)


@pytest.mark.parametrize("width", [0.0, 5e-324, 1e-310])
@given(rows=st.tuples(*[st.tuples(CELLS, CELLS, CELLS)] * 2))
def test_a_range_too_narrow_to_divide_by_moves_no_tally_farther(width, rows):
    """A silo refuses such a range; were it asked, no cell would be more than Q, or in no bin."""
    for kind in ("bins", "means"):
        narrow = replace(stage(kind), low=np.zeros(3), high=np.full(3, width))
        one, other = (narrow.tally(np.array([row])) for row in rows)
        moved = (one - other).tolist()
        if kind == "means":
            moved = [CELL_SIDE * each for each in moved[:3]] + moved[3:]
        most = squared_sensitivity(kind, 3, OPEN.size, CELL_SIDE)
        assert sum(each**2 for each in moved) <= most


@given(multiplier=st.floats(0.05, 50.0))
def test_scales_are_whole_and_no_less_than_the_theorem_asks_for(multiplier):
    for kind in STAGES:
        scales = stage_scales(kind, multiplier, n_features=7, n_open=4, side=CELL_SIDE)
        needed = Fraction(multiplier) ** 2 * squared_sensitivity(kind, 7, 4, CELL_SIDE)
        assert scales[-1] ** 2 >= needed > (scales[-1] - 1) ** 2
        if kind == "means":
            assert scales[0] * CELL_SIDE >= scales[1]


def budget(shares, n_open=5):
    return Budget(
        mode="moment",
        epsilon=1.0,
        delta=1e-6,
        n_features=5,
        iteration_rank=5,
        n_steps=1,
        center=True,
        preparation=shares,
        n_open=n_open,
    )


def test_preparation_and_moment_together_cost_what_one_release_would():
    shares = (0.05, 0.03, 0.08, 0.02)
    made = budget(shares)
    parts = [made.stage_mu(kind) for kind in STAGES]
    assert sum(mu**2 for mu in parts) + made.mu**2 == pytest.approx(made.total_mu**2, rel=1e-12)
    assert made.preparation_mu**2 == pytest.approx(0.18 * made.total_mu**2, rel=1e-12)
    assert made.total_mu == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)


def test_each_stage_gets_noise_for_its_own_share():
    made = budget((0.05, 0.03, 0.08, 0.02))
    for kind, share in zip(STAGES, made.preparation, strict=True):
        moved = squared_sensitivity(kind, 5, 5, CELL_SIDE) ** 0.5
        mu = moved / made.stage_scales(kind, CELL_SIDE)[-1]
        assert mu <= made.total_mu * share**0.5
        assert mu >= 0.98 * made.total_mu * share**0.5


@given(
    n_rows=st.none() | st.integers(1, 10**9),
    n_features=st.integers(1, 3000),
    mu=st.floats(1e-3, 30.0),
    data=st.data(),
)
def test_shares_are_never_more_than_a_fifth_of_the_budget(n_rows, n_features, mu, data):
    n_open = data.draw(st.integers(0, n_features))
    shares = shares_of(n_rows=n_rows, n_features=n_features, n_open=n_open, mu=mu)
    assert 0 < sum(shares) <= 0.18 + 1e-12
    assert all((share > 0) == (n_open > 0) for share in shares[:2])


def test_shares_shrink_with_the_rows_and_those_of_ranges_vanish_where_all_are_known():
    terms = {"n_features": 10, "mu": 0.24}
    few, many = (sum(shares_of(n_rows=n, n_open=10, **terms)) for n in (2_000, 2_000_000))
    assert few == pytest.approx(0.18)
    assert many == pytest.approx(0.045)
    assert shares_of(n_rows=2_000, n_open=0, **terms)[:2] == (0.0, 0.0)
