"""Exact sums over bounded rows: the integers of a plain loop, whatever the way they were added up."""

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums import lattice
from fedpower.sums.lattice import EXACT_ROWS, SIDE, LatticeRows, LatticeSum, Words, exact_moment, product_rows
from fedpower.sums.moment import accumulate_moment

RULES = {
    "none too long": RowTreatment(row_norm=50.0),
    "half clipped": RowTreatment(row_norm=2.5),
    "normalised": RowTreatment(normalize=True),
}


def some_rows(n_rows: int, width: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    rows = rng.standard_normal((n_rows, width)) * np.geomspace(3, 0.3, width) / np.sqrt(width)
    rows[rng.random(rows.shape) < 0.5] = 0.0
    return rows


def by_hand(rows: Any, rule: RowTreatment) -> tuple[list[int], list[list[int]]]:
    """Σ z and Σ z zᵀ in Python's own integers, one row at a time."""
    width = rows.shape[1]
    total, squares = [0] * width, [[0] * width for _ in range(width)]
    for row in rows:
        found, _ = LatticeRows(rule, width).of_dense(row[None])
        z = [int(value) for value in found[0]]
        for j in range(width):
            total[j] += z[j]
            for k in range(width):
                squares[j][k] += z[j] * z[k]
    return total, squares


@given(
    arrays(
        np.float64,
        st.tuples(st.integers(1, 40), st.integers(1, 6)),
        elements=st.floats(allow_nan=False, allow_infinity=False),
    ),
    st.data(),
)
@settings(deadline=None)
def test_every_way_gives_the_integers_of_a_plain_loop(rows: Any, data: Any) -> None:
    rule = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    total, squares = by_hand(rows, rule)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    forms = [rows, np.asfortranarray(rows), rows[order], pd.DataFrame(rows)]
    found = [
        exact_moment(
            open_source(form),
            rule,
            max_rows=data.draw(st.integers(1, 50)),
            workers=data.draw(st.integers(1, 3)),
        )
        for form in forms
    ]
    assert found[0].total.tolist() == total
    assert found[0].squares.to_ints().tolist() == squares
    assert found[0].square_total == sum(squares[j][j] for j in range(rows.shape[1]))
    assert all(each == found[0] for each in found)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("width", [1, 30, 1100])
def test_blocks_threads_and_forms_do_not_change_a_bit(rule: RowTreatment, width: int) -> None:
    rows = some_rows(9000 if width < 100 else 1500, width)
    expected = exact_moment(open_source(rows), rule)
    for block_rows, workers in ((100, 2), (1000, 3), (10_000, 1)):
        assert exact_moment(open_source(rows), rule, max_rows=block_rows, workers=workers) == expected
    thin = np.where(np.random.default_rng(1).random(rows.shape) < 0.05, rows, 0.0)
    sparsely = exact_moment(open_source(sparse.csr_array(thin)), rule)
    assert sparsely == exact_moment(open_source(sparse.csc_array(thin)), rule, max_rows=77, workers=2)


def test_rows_in_float32_and_in_integers_give_the_same_as_in_float64() -> None:
    rows = (some_rows(500, 7) * 100).astype(np.int32)
    expected = exact_moment(open_source(rows.astype(np.float64)), RULES["normalised"])
    for form in (rows, rows.astype(np.float32), rows.astype(np.int64), rows.astype(np.float16)):
        assert exact_moment(open_source(form), RULES["normalised"]) == expected


def test_moment_mean_and_trace_are_those_of_the_bounded_rows() -> None:
    rows = some_rows(3000, 12)
    for rule in RULES.values():
        sums, plain = (exact_moment(open_source(rows), rule), accumulate_moment(open_source(rows), rule))
        found = sums.to_float()
        center = np.linspace(-0.2, 0.3, 12)
        close = {"rtol": 0, "atol": 6 * 2.0**-20}
        np.testing.assert_allclose(found.covariance, plain.covariance, **close)
        np.testing.assert_allclose(found.mean, plain.mean, **close)
        np.testing.assert_allclose(found.about(center), plain.about(center), **close)
        assert found.trace(center) == pytest.approx(plain.trace(center), abs=6 * 2.0**-20)
        assert sums.square_total / (SIDE**2 * 3000) == pytest.approx(found.trace(), rel=1e-14)
        np.testing.assert_array_equal(sums.to_float(full=False).spread, found.spread)
        assert (found.n_rows, found.n_clipped) == (plain.n_rows, plain.n_clipped)
        basis = np.eye(12)[:, :3]
        np.testing.assert_allclose(found.product(basis, center), found.about(center) @ basis)
        assert not sums.total.flags.writeable
        assert not sums.squares.low.flags.writeable


@given(st.lists(st.integers(-(2**84), 2**84), min_size=1, max_size=5), st.integers(-(2**61), 2**61))
def test_words_are_the_numbers_they_stand_for(numbers: list[int], more: int) -> None:
    low = np.array([number & 0xFFFFFFFF for number in numbers], dtype=np.int64)
    high = np.array([number >> 32 for number in numbers], dtype=np.int64)
    words = Words(low=low, high=high)
    assert words.to_ints().tolist() == numbers
    assert words.to_float().tolist() == [float(number) for number in numbers]
    small = Words(low=np.array([more]))
    assert small.two().to_ints().tolist() == [more]
    assert small.shifted(1).tolist() == [2 * more]
    assert small.shifted(-5).tolist() == small.two().shifted(-5).tolist() == [(more + 16) >> 5]


def test_a_block_is_never_larger_than_float64_adds_up_exactly() -> None:
    for width in (1, 64, 512, 2048, 100_000):
        assert 1 <= product_rows(width) <= EXACT_ROWS
    assert EXACT_ROWS * SIDE**2 == 2**53


def test_full_blocks_of_the_longest_rows_are_still_exact() -> None:
    """Rows along one axis, whose squares add up to nearly 2⁵³ in a block and to more in two."""
    rows = np.zeros((2**14 + 3, 3))
    rows[:, 0] = 1.0
    rows[::3, 1] = 1e-3
    rule = RowTreatment(row_norm=1.0 + 2.0**-18)
    found = exact_moment(open_source(rows), rule)
    z, _ = LatticeRows(rule, 3).of_dense(rows)
    whole = z.astype(np.int64)
    np.testing.assert_array_equal(found.squares.low, whole.T @ whole)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_value_is_named_by_its_place(workers: int) -> None:
    rows = some_rows(3000, 4)
    rows[2500, 2] = np.nan
    with pytest.raises(InputError, match=r"column 3 of .* at row 2501"):
        exact_moment(open_source(rows), RULES["normalised"], max_rows=200, workers=workers)


def summed(rows: Any, rule: RowTreatment) -> LatticeSum:
    total = LatticeSum(rule, rows.shape[1])
    total.add(rows)
    return total


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_merged_parts_equal_the_whole_in_any_grouping(rule: RowTreatment) -> None:
    rows = some_rows(700, 5)
    whole = exact_moment(open_source(rows), rule)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        parts = [summed(part, rule) for part in np.split(rows, [1, 90, 400])]
        total = parts[order[0]]
        for place in order[1:]:
            total.merge(parts[place])
        assert total.result() == whole


def test_sums_past_one_word_carry_into_a_second_and_merge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lattice, "WORD_ROWS", 2**13)
    rows = np.tile([[1.0, 0.0], [0.6, -0.8]], (2**14 + 300, 1))
    rule = RowTreatment(row_norm=1.0)
    whole = exact_moment(open_source(rows), rule)
    assert whole.squares.high is not None
    once, other = (summed(row[None], rule).result() for row in rows[:2])
    count = len(rows) // 2
    expected = count * (once.squares.to_ints() + other.squares.to_ints())
    assert whole.squares.to_ints().tolist() == expected.tolist()
    assert whole.square_total == int(expected.trace())
    for cut in (5, 2**12, 2**14 + 1):
        one, two = LatticeSum(rule, 2), LatticeSum(rule, 2)
        for total, part in ((one, rows[:cut]), (two, rows[cut:])):
            for block in np.array_split(part, 8):
                total.add(block)
        one.merge(two)
        assert one.result() == whole
    assert once.times(3).squares.to_ints().tolist() == (3 * once.squares.to_ints()).tolist()
