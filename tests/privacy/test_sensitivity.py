"""How far one row moves a release: in real numbers, in whole ones, and with what rounding adds.

Bounds hold on random neighbours, and the worst neighbours attain them.
"""

import itertools
import math
from dataclasses import replace
from fractions import Fraction

import numpy as np
import polars as pl
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse

from budgets import moment_bound, priced
from fedpower.exceptions import InputError, ProtocolError
from fedpower.linalg import orth
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.budget import Outlook, shares_of
from fedpower.privacy.noise import SeededNoiseForExperiments, gaussian_integers
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    clipped_sensitivity,
    moved_by_row,
    noise_for,
    of_clipped_product,
    of_means,
    of_moment,
    of_reals,
    rounding_slack,
)
from fedpower.protocol.query import Tally, quantised
from fedpower.rows.networks import NetworkSource, open_network
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import CLIP_SIDE, SIDE, ClippedQuestion
from fedpower.sums.local import EdgeMoment, local_moment
from fedpower.sums.survey import CELL_SIDE, STAGES, Stage


def ball(rng, n, d):
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.where(rng.random((n, 1)) < 0.5, 1.0, rng.random((n, 1)))


def difference(x, y):
    return np.outer(x, x) - np.outer(y, y)


def test_the_bounds_are_attained_by_unit_rows_and_the_paper_s_is_root_2r_times_as_large():
    first, second, *_ = np.eye(4)
    assert np.linalg.norm(difference(first, second)) == pytest.approx(moved_by_row("covariance"), rel=1e-15)
    assert np.linalg.norm(first + first) == moved_by_row("mean")
    for r in (1, 2, 3):
        moved = np.linalg.norm(difference(first, second) @ np.eye(4, r))
        assert moved == pytest.approx(moved_by_row("product", r), rel=1e-15)
    assert moved_by_row("paper", 5) == 2 * math.sqrt(5)
    assert moved_by_row("paper", 5) / moved_by_row("product", 5) == pytest.approx(math.sqrt(10))
    with pytest.raises(InputError, match="iteration_rank must be"):
        moved_by_row("product", 0)


@pytest.mark.parametrize("d", [1, 2, 5])
def test_random_neighbours_never_exceed_the_bounds(d):
    rng = np.random.default_rng(d)
    for x, y, center in zip(ball(rng, 200, d), ball(rng, 200, d), rng.normal(size=(200, d)), strict=True):
        D = difference(x, y)
        assert np.linalg.norm(D) <= moved_by_row("covariance") + 1e-14
        assert np.linalg.norm(D, 2) <= moved_by_row("product", 1) + 1e-14
        for r in range(1, min(d, 4) + 1):
            Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
            assert np.linalg.norm(D @ Z) <= moved_by_row("product", r) + 1e-14
        change = difference(x - center, y - center)  # about a centre the bound grows with the rows
        both = math.hypot(float(np.linalg.norm(change)), float(np.trace(change)))
        assert both <= moved_by_row("covariance") * (1 + np.linalg.norm(center)) ** 2 * (1 + 1e-12)


@pytest.mark.parametrize("c", [0.0, 0.25, 0.5, 0.75])
def test_no_norms_and_no_angle_pass_the_bound_of_moment_mean_and_trace(c):
    """Lemma 1."""
    most = moment_bound(1, center=True, mean_weight=c) ** 2
    assert most == pytest.approx(2 * (1 + c * c) ** 2, rel=1e-15)  # the trace is free
    a, b, cosine = np.meshgrid(
        np.linspace(0, 1, 51), np.linspace(0, 1, 51), np.linspace(-1, 1, 401), indexing="ij"
    )
    t = a * b * cosine
    change = a**4 + b**4 - 2 * t**2 + 2 * c**2 * (a**2 + b**2 - 2 * t) + (a**2 - b**2) ** 2
    assert most * (1 - 1e-3) <= change.max() <= most * (1 + 1e-12)


def answer(row):
    pairs = [row[j] * row[k] for j in range(len(row)) for k in range(j)]
    return [value**2 for value in row], pairs, row, [sum(value**2 for value in row)]


def loss(z, w, sensitivity, multiplier):
    """(Σ (Δ/scale)²)·multiplier²: at most 1 where the noise hides the change."""
    parts = [a - b for x, y in zip(answer(z), answer(w), strict=True) for a, b in zip(x, y, strict=True)]
    lengths = [len(part) for part in answer(z)]
    if len(sensitivity.groups) == 3:  # no mean
        start = lengths[0] + lengths[1]
        parts = parts[:start] + parts[start + lengths[2] :]
    scales = zip(sensitivity.groups, sensitivity.scales(multiplier), strict=True)
    each = [scale for group, scale in scales for _ in range(group.length)]
    squares = (Fraction(part, scale) ** 2 for part, scale in zip(parts, each, strict=True))
    return sum(squares, Fraction(0)) * Fraction(multiplier) ** 2


def shortened(row):
    while sum(value**2 for value in row) > SIDE**2:
        row = [int(value / 2) for value in row]
    return row


ROWS = st.lists(st.integers(-SIDE, SIDE), min_size=3, max_size=3)
WEIGHTS = st.sampled_from([0.0, 0.25, MEAN_WEIGHT])


@given(ROWS, ROWS, st.floats(1e-3, 1e4), WEIGHTS)
def test_no_two_rows_pass_the_bound_in_whole_numbers(one, two, multiplier, weight):
    assert loss(shortened(one), shortened(two), of_moment(3, mean_weight=weight), multiplier) <= 1


@pytest.mark.parametrize("weight", [0.0, MEAN_WEIGHT])
@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.7, 40.0])
def test_the_worst_rows_nearly_attain_it(weight, multiplier):
    cosine = weight**2
    w = [-math.floor(SIDE * cosine), math.floor(SIDE * math.sqrt(1 - cosine**2))]
    assert 1 - 1e-5 < loss([SIDE, 0], w, of_moment(2, mean_weight=weight), multiplier) <= 1


@given(st.floats(1e-3, 1e4), WEIGHTS)
def test_scales_are_the_least_whole_numbers_of_the_theorem(multiplier, weight):
    sensitivity, c = of_moment(3, mean_weight=weight), Fraction(weight)
    assert sensitivity.squared == 2 * (1 + c**2) ** 2 * SIDE**4
    for group, scale in zip(sensitivity.groups, sensitivity.scales(multiplier), strict=True):
        needed = Fraction(multiplier) ** 2 * sensitivity.squared / group.weight
        assert (scale - 1) ** 2 < needed <= scale**2
    wanted = [1, 2, 2 * c**2 * SIDE**2, 1] if weight else [1, 2, 1]
    assert [group.weight for group in sensitivity.groups] == wanted
    with pytest.raises(InputError, match="where lemma 1 holds"):
        of_moment(2, mean_weight=0.8)


def test_the_rounding_slack_is_negligible_for_common_sizes_and_smaller_in_blocks():
    assert rounding_slack(100_000, 100) < 2e-6 * moved_by_row("covariance") / 100_000
    assert rounding_slack(10**8, 100, longest_sum=20_000) < 1e-3 * moved_by_row("covariance") / 10**8
    with pytest.raises(InputError, match="longest_sum must be below"):
        rounding_slack(2**52, 10)


@pytest.mark.parametrize("seed", range(24))
def test_the_quantised_map_never_moves_more_than_what_is_paid_for(seed):
    rng = np.random.default_rng(seed)
    s, d = int(rng.integers(1, 30)), int(rng.integers(2, 8))
    r = int(rng.integers(1, d + 1))
    X = rng.normal(size=(s, d))
    X /= np.linalg.norm(X, axis=1, keepdims=True)
    Y, other = X.copy(), rng.normal(size=d)
    Y[-1] = other / np.linalg.norm(other) if seed % 2 else np.linalg.svd(X[-1:])[2][1]
    Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
    if seed % 4 == 0:  # the basis that sees the whole change
        Z = np.linalg.qr(np.column_stack([X[-1], Y[-1], rng.normal(size=(d, d))]))[0][:, :r]

    def maps(M):
        A = M.T @ M / s
        low = np.tril_indices(d)
        flat = A[low] * np.where(low[0] == low[1], 1.0, math.sqrt(2))
        return {"covariance": flat, "product": (A @ Z).reshape(-1), "mean": M.mean(axis=0)}

    before, after = maps(X), maps(Y)
    for name, found in before.items():
        bound = moved_by_row(name, r) / s + rounding_slack(s, d, iteration_rank=r)
        released = of_reals(bound, found.size, largest=2.0 * bound, n_rows=1)
        for power in (30, 8, 4, 2):
            change = quantised(after[name], power) - quantised(found, power)
            # The scale for a multiplier of 2²⁰ is 2²⁰ times what is paid for, rounded up.
            paid = released.scales(2.0**20, [power])[0] * 2.0**-20
            assert np.linalg.norm(change) <= paid


def test_rounding_to_a_lattice_is_exact_and_what_is_beyond_it_is_brought_back():
    values = np.array([0.0, 2.0**-21, 3 * 2.0**-21, -0.3, 1.0])
    assert quantised(values, 20).tolist() == [0, 0, 2, round(-0.3 * 2**20), 2**20]
    values = np.array([0.0, 2.0**61, 2.0**61 + 2.0**20, 1e300, -1e300])
    found = quantised(values, 0)
    assert found.tolist() == [0, 2**61, 2**61, 2**61, -(2**61)]
    apart = np.abs(np.subtract.outer(found.astype(float), found.astype(float)))
    assert np.all(apart <= np.abs(np.subtract.outer(values, values)))  # none move farther apart
    with pytest.raises(InputError, match="must be finite"):
        quantised(np.array([np.nan]), 10)


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
@given(rows=st.tuples(*[st.tuples(CELLS, CELLS, CELLS)] * 2), width=st.sampled_from([0.0, 5e-324, 1e-310]))
def test_no_row_moves_a_tally_farther_than_its_noise_is_made_for(rows, width):
    """Also in ranges too narrow to divide by."""
    narrow = [replace(stage(kind), low=np.zeros(3), high=np.full(3, width)) for kind in ("bins", "means")]
    for asked in (*map(stage, STAGES), *narrow):
        one, other = (asked.tally(np.array([row])) for row in rows)
        assert asked.n_asked == (1 if asked.kind == "zoom" else OPEN.size)
        assert squared(asked.kind, one - other) <= moved(asked.kind).squared


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
    made = priced("covariance", n_features=5, center=True, preparation=SHARES)
    parts = [made.price(kind).mu for kind in (*STAGES, "covariance")]
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


seeds = st.integers(0, 2**32 - 1)


def test_two_columns_move_further_than_the_formula_of_one_beyond_a_third():
    clip = 0.65
    assert clipped_sensitivity(clip, 2) > 2 * clip * math.sqrt(1 - clip**2)
    assert clipped_sensitivity(clip, 1) == 2 * clip * math.sqrt(1 - clip**2)
    for none in (0.0, -1.0, 1.5, math.nan):
        with pytest.raises(InputError, match="clip must be above 0"):
            clipped_sensitivity(none, 2)


def sums_of(rows, question):
    moment = local_moment(open_source(rows), RowTreatment(row_norm=1.0), rank=2, steps=3)
    kappa = of_clipped_product(question.clip, question.basis.shape[1], len(question.basis))[1]
    found = moment.clipped(question, kappa=kappa)
    return np.append(found.total.reshape(-1), found.squares)


@settings(max_examples=30)
@given(clip=st.floats(0.02, 1.0), width=st.integers(1, 3), seed=seeds, centred=st.booleans())
def test_whole_numbers_of_neighbours_are_no_further_apart_than_noise_is_made_for(clip, width, seed, centred):
    rng = np.random.default_rng(seed)
    d = width + 3
    basis = orth(rng.standard_normal((d, width)))
    center = None
    if centred:
        center = rng.standard_normal(d)
        center *= rng.uniform(0, 1) / np.linalg.norm(center)
    question = ClippedQuestion.of(basis, clip, center)
    ClippedQuestion.from_bytes(question.to_bytes(), n_features=d, width=width, center=centred)
    rows = rng.standard_normal((4, d))
    other = rows.copy()
    along = basis @ rng.standard_normal(width)
    rows[-1] = clip * along / np.linalg.norm(along) + 3 * rng.standard_normal() * rng.standard_normal(d)
    other[-1] = -rows[-1] if rng.integers(2) else rng.standard_normal(d)
    apart = np.linalg.norm((sums_of(rows, question) - sums_of(other, question)).astype(float))
    most, _ = of_clipped_product(clip, width, d)
    assert apart <= float(most.squared) ** 0.5


def test_the_order_of_rows_and_the_size_of_blocks_have_no_part_in_the_sums():
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((3000, 40))
    question = ClippedQuestion.of(orth(rng.standard_normal((40, 3))), 0.2, np.full(40, 0.01))
    one = sums_of(rows, question)
    assert np.array_equal(one, sums_of(rows[::-1].copy(), question))
    halves = [sums_of(part, question) for part in (rows[:1234], rows[1234:])]
    assert np.array_equal(one, halves[0] + halves[1])


def test_sums_are_those_of_the_real_rows_to_the_width_of_the_lattice():
    rng = np.random.default_rng(6)
    rows = rng.standard_normal((500, 30))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    basis = orth(rng.standard_normal((30, 3)))
    question = ClippedQuestion.of(basis, 0.3)
    p = rows @ basis
    p *= np.minimum(1.0, 0.3 / np.linalg.norm(p, axis=1))[:, np.newaxis]
    found = sums_of(rows, question)[:-1].reshape(30, 3) * (0.3 / (SIDE * CLIP_SIDE))
    assert np.abs(found - rows.T @ p).max() < 500 * 2.0**-16


def test_a_question_that_the_noise_is_not_made_for_is_refused():
    rng = np.random.default_rng(7)
    basis = orth(rng.standard_normal((9, 2)))
    good = ClippedQuestion.of(basis, 0.2).to_bytes()
    terms = {"n_features": 9, "width": 2, "center": False}
    assert np.array_equal(
        ClippedQuestion.from_bytes(good, **terms).basis, ClippedQuestion.of(basis, 0.2).basis
    )
    for public, more, sentence in (
        (ClippedQuestion.of(1.01 * basis, 0.2).to_bytes(), {}, "orthonormal"),
        (good[:-4], {}, "a clipped product must have"),
        (good, {"center": True}, "a clipped product must have"),
        (ClippedQuestion.of(basis, 1.5).to_bytes(), {}, "a clip from"),
    ):
        with pytest.raises(ProtocolError, match=sentence):
            ClippedQuestion.from_bytes(public, **terms | more)


FACTS = {"n_features": 1000, "rank": 4, "multiplier": 4.22}


def test_a_gain_is_predicted_where_leading_directions_hold_little_and_not_where_they_hold_much():
    assert Outlook(n_rows=100_000, energy=0.015, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=100_000, energy=0.5, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=None, energy=0.015, **FACTS).gains_by_clipping()
    assert not Outlook(n_rows=100_000, energy=0.8, **FACTS | {"n_features": 20}).gains_by_clipping()


@pytest.mark.parametrize(
    ("n_rows", "share", "n_steps"), [(20_000, 0.0, 6), (50_000, 0.4, 8), (100_000, 0.3, 6)]
)
def test_a_moment_that_shows_little_gets_more_of_the_budget_and_wide_bases_more_steps(n_rows, share, n_steps):
    design = Outlook(n_rows=n_rows, **FACTS).design(center=False)
    assert (design.moment_share, len(design.widths)) == (share, n_steps)
    for rows, center in itertools.product((None, n_rows, 10**6), (False, True)):
        design = Outlook(n_rows=rows, energy=0.015, **FACTS).design(center=center)
        shares = [terms.share for terms in design.queries(1000, center=center)]
        assert math.fsum(shares) == pytest.approx(1.0, rel=1e-15)
        assert all(width >= 4 for width in design.widths)


D = 4
PAIRS = [(one, two) for one in range(D) for two in range(one)]
EDGES = st.lists(st.floats(0, 7.5), min_size=len(PAIRS), max_size=len(PAIRS))


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
@given(EDGES, EDGES, st.integers(0, len(PAIRS) - 1), st.floats(0, 100), st.floats(0.3, 40))
def test_no_edge_of_any_layer_moves_it_further(one, two, place, weight, multiplier):
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


@pytest.mark.parametrize(("weight", "is_hidden"), [(1.0, True), (3.0, False)])
def test_the_release_tells_an_edge_no_better_than_promised_and_a_planted_error_is_caught(weight, is_hidden):
    """With noise made for weight 1; the slack is five standard errors, which is exceeded once in 10⁶."""
    scale, n = noise_for(of_moment(D), 2.0, (1,)).scales[1], 200_000  # below the diagonal
    noise = gaussian_integers(SeededNoiseForExperiments(5), 2 * n, scale=scale)
    apart = (noise[:n].mean() - noise[n:].mean() + weight * 2**40) / scale
    assert bool(apart <= 1 / 2.0 + 5 * math.sqrt(2 / n)) is is_hidden
