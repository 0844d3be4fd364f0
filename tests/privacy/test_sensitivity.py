"""How far one row moves a release: in real numbers, in whole ones, and with what rounding adds.

Bounds hold on random neighbours, and the worst neighbours attain them.
"""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from budgets import moment_bound
from fedpower.errors import InputError
from fedpower.privacy.sensitivity import (
    MEAN_WEIGHT,
    moved_by_row,
    of_moment,
    of_reals,
    pack,
    rounding_slack,
    summary_size,
    unpack,
)
from fedpower.protocol.query import quantised
from fedpower.sums.lattice import SIDE


def ball(rng, n, d):
    x = rng.normal(size=(n, d))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    return x * np.where(rng.random((n, 1)) < 0.5, 1.0, rng.random((n, 1)))


def difference(x, y):
    return np.outer(x, x) - np.outer(y, y)


# --- moment, product and mean ----------------------------------------------------------------------


def test_the_bounds_are_attained_by_unit_rows_and_the_paper_s_is_root_2r_times_as_large():
    first, second, *_ = np.eye(4)
    assert np.linalg.norm(difference(first, second)) == pytest.approx(moved_by_row("moment"), rel=1e-15)
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
        assert np.linalg.norm(D) <= moved_by_row("moment") + 1e-14
        assert np.linalg.norm(D, 2) <= moved_by_row("product", 1) + 1e-14
        for r in range(1, min(d, 4) + 1):
            Z = np.linalg.qr(rng.normal(size=(d, r)))[0]
            assert np.linalg.norm(D @ Z) <= moved_by_row("product", r) + 1e-14
        change = difference(x - center, y - center)  # about a centre the bound grows with the rows
        both = math.hypot(float(np.linalg.norm(change)), float(np.trace(change)))
        assert both <= moved_by_row("moment") * (1 + np.linalg.norm(center)) ** 2 * (1 + 1e-12)


# --- moment, mean and trace as one release (lemma 1) -----------------------------------------------


@pytest.mark.parametrize("d", [1, 2, 7])
@pytest.mark.parametrize("with_mean", [False, True])
def test_packing_is_an_isometry_of_the_norms_and_unpacking_undoes_it(d, with_mean):
    rng = np.random.default_rng(d)
    S, mean, trace = rng.normal(size=(d, d)), rng.normal(size=d), 0.7
    S = S + S.T
    packed = pack(S, mean if with_mean else None, trace)
    assert packed.shape == (summary_size(d, with_mean=with_mean),)
    norm = np.linalg.norm(S) ** 2 + trace**2 + 2 * MEAN_WEIGHT**2 * (mean @ mean) * with_mean
    assert packed @ packed == pytest.approx(norm, rel=1e-14)
    moment, middle, total = unpack(packed, d, with_mean=with_mean)
    np.testing.assert_allclose(moment, S, rtol=1e-15)
    assert total == trace
    assert (middle is None) is not with_mean
    np.testing.assert_allclose(middle if with_mean else mean, mean, rtol=1e-15)


@pytest.mark.parametrize("c", [0.0, 0.25, 0.5, 0.75])
def test_no_norms_and_no_angle_pass_the_bound_of_moment_mean_and_trace(c):
    most = moment_bound(1, center=True, mean_weight=c) ** 2
    assert most == pytest.approx(2 * (1 + c * c) ** 2, rel=1e-15)  # the trace is free
    a, b, cosine = np.meshgrid(
        np.linspace(0, 1, 51), np.linspace(0, 1, 51), np.linspace(-1, 1, 401), indexing="ij"
    )
    t = a * b * cosine
    change = a**4 + b**4 - 2 * t**2 + 2 * c**2 * (a**2 + b**2 - 2 * t) + (a**2 - b**2) ** 2
    assert most * (1 - 1e-3) <= change.max() <= most * (1 + 1e-12)


# --- the same in whole numbers ---------------------------------------------------------------------


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
    with pytest.raises(InputError, match="where the theorem holds"):
        of_moment(2, mean_weight=0.8)


# --- what computers add ----------------------------------------------------------------------------


def test_the_rounding_slack_is_negligible_for_common_sizes_and_smaller_in_blocks():
    assert rounding_slack(100_000, 100) < 2e-6 * moved_by_row("moment") / 100_000
    assert rounding_slack(10**8, 100, longest_sum=20_000) < 1e-3 * moved_by_row("moment") / 10**8
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
        return {"moment": flat, "product": (A @ Z).reshape(-1), "mean": M.mean(axis=0)}

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
