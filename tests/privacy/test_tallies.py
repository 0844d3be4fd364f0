"""How far one row moves a tally, in whole numbers, and what the shares of preparation come to."""

import itertools
from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from budgets import priced
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.budget import shares_of
from fedpower.privacy.sensitivity import of_means
from fedpower.protocol.query import Tally
from fedpower.sums.survey import CELL_SIDE, STAGES, Stage

OPEN = np.array([0, 2])
CELLS = st.floats(-1e300, 1e300) | st.sampled_from([0.0, -0.0, 1.0, -1.0, 1e-300, 2.0**-41, np.nan])


def stage(kind):
    d = 3
    low, high = np.array([-1.0, 0.0, 5.0]), np.array([1.0, 8.0, 5.5])
    return Stage(
        kind=kind,
        n_features=d,
        open_columns=OPEN,
        low=None if kind == "octaves" else low,
        high=None if kind == "octaves" else high,
        offset={"norms": np.array([0.3, 2.0, 5.1]), "zoom": np.array([1.0, 0.0, 0.0])}.get(kind),
        scale=np.array([0.1, 3.0, 1e-3]) if kind == "norms" else None,
    )


@settings(max_examples=20)
@given(rows=st.tuples(*[st.tuples(CELLS, CELLS, CELLS)] * 2))
def test_no_row_moves_a_tally_farther_than_its_noise_is_made_for(rows):
    for kind in STAGES:
        one, other = (stage(kind).tally(np.array([row])) for row in rows)
        assert stage(kind).n_asked == (1 if kind == "zoom" else OPEN.size)
        assert squared(kind, one - other) <= moved(kind).squared


def moved(kind):
    return Tally(stage=stage(kind)).sensitivity


def squared(kind, change):
    groups = moved(kind).groups
    assert sum(group.length for group in groups) == change.size
    parts = np.split(change, len(groups))
    weighed = zip(groups, parts, strict=True)
    return sum(group.weight * each**2 for group, part in weighed for each in part.tolist())


def test_a_missing_cell_counts_in_a_place_of_its_own_and_adds_nothing():
    rows = np.array([[1.5, 2.0, 5.2], [np.nan, np.nan, 5.2], [0.5, np.nan, 5.3]])
    for kind in ("octaves", "bins"):
        counts = stage(kind).tally(rows).reshape(2, -1)
        assert counts[:, -1].tolist() == [1, 0]
        assert counts.sum(axis=1).tolist() == [3, 3]
    found = stage("means").tally(rows).reshape(3, 3)
    assert found[2].tolist() == [2, 1, 3]
    filled = np.where(np.isnan(rows), [0.0, 4.0, 5.25], rows)  # the middles of the ranges
    assert np.array_equal(found[:2], stage("means").tally(filled).reshape(3, 3)[:2])
    at_offset = np.where(np.isnan(rows), [0.3, 2.0, 5.1], rows)
    assert np.array_equal(stage("norms").tally(rows), stage("norms").tally(at_offset))


def test_the_squares_are_free_beside_the_means_and_opposite_ends_of_every_range_attain_the_bound():
    side = 8
    most = max(
        side**2 * (q - p) ** 2 + (q * q - p * p) ** 2
        for q, p in itertools.product(range(-side, side + 1), repeat=2)
    )
    assert most == 4 * side**4
    assert of_means(1).squared == 4 * CELL_SIDE**4
    ends = np.array([[-1.0, 0.0, 5.0], [1.0, 8.0, 5.5]])
    one, other = (stage("means").tally(row[None]) for row in ends)
    assert squared("means", one - other) == moved("means").squared


@given(rows=st.tuples(*[st.tuples(CELLS, CELLS, CELLS)] * 2), width=st.sampled_from([0.0, 5e-324, 1e-310]))
def test_a_range_too_narrow_to_divide_by_moves_no_tally_farther(width, rows):
    for kind in ("bins", "means"):
        narrow = replace(stage(kind), low=np.zeros(3), high=np.full(3, width))
        one, other = (narrow.tally(np.array([row])) for row in rows)
        assert squared(kind, one - other) <= moved(kind).squared


@given(multiplier=st.floats(0.05, 50.0))
def test_scales_are_whole_and_no_less_than_the_lemmas_ask_for(multiplier):
    for kind in STAGES:
        for group, scale in zip(moved(kind).groups, moved(kind).scales(multiplier), strict=True):
            needed = Fraction(multiplier) ** 2 * moved(kind).squared / group.weight
            assert scale**2 >= needed > (scale - 1) ** 2
    open_, asked = OPEN.size, stage("zoom").n_asked
    assert [moved(kind).squared for kind in STAGES] == [
        2 * open_, 2 * open_, 2 * asked, 4 * 3 * CELL_SIDE**4, 2,
    ]  # fmt: skip


SHARES = (0.05, 0.03, 0.02, 0.08, 0.02)


def test_preparation_and_moment_together_cost_what_one_release_would_and_each_stage_its_share():
    made = priced("moment", n_features=5, center=True, preparation=SHARES)
    parts = [made.price(kind).mu for kind in (*STAGES, "moment")]
    assert sum(mu**2 for mu in parts) == pytest.approx(made.total_mu**2, rel=1e-12)
    assert sum(mu**2 for mu in parts) <= made.total_mu**2
    assert made.mu(*STAGES) ** 2 == pytest.approx(0.2 * made.total_mu**2, rel=1e-12)
    assert made.total_mu == pytest.approx(mu_of(1.0, 1e-6), rel=1e-6)
    for kind, share in zip(STAGES, SHARES, strict=True):
        scales = moved(kind).scales(made.price(kind).multiplier)
        largest = max(zip(scales, moved(kind).groups, strict=True))
        mu = float(moved(kind).squared / largest[1].weight) ** 0.5 / largest[0]
        assert mu <= made.total_mu * share**0.5
        assert mu >= 0.98 * made.total_mu * share**0.5


@given(
    n_rows=st.none() | st.integers(1, 10**9),
    n_features=st.integers(1, 3000),
    mu=st.floats(1e-3, 30.0),
    data=st.data(),
)
def test_shares_are_never_more_than_their_most(n_rows, n_features, mu, data):
    n_open = data.draw(st.integers(0, n_features))
    shares = shares_of(n_rows=n_rows, n_features=n_features, n_open=n_open, mu=mu)
    assert 0 < sum(shares) <= 0.28 + 1e-12
    assert all((share > 0) == (n_open > 0) for share in shares[:3])


def test_shares_shrink_with_the_rows_and_those_of_ranges_vanish_where_all_are_known():
    terms = {"n_features": 10, "mu": 0.24}
    few, many = (sum(shares_of(n_rows=n, n_open=10, **terms)) for n in (4_000, 2_000_000))
    assert few == pytest.approx(0.2)
    assert many == pytest.approx(0.05)
    assert shares_of(n_rows=2_000, n_open=0, **terms)[:3] == (0.0, 0.0, 0.0)
    fewer = shares_of(n_rows=500, n_open=10, **terms)
    assert fewer[:2] == (0.1, 0.06)
    assert shares_of(n_rows=4_000, n_open=10, n_noises=16, **terms)[:2] == (0.1, 0.06)
