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
from fedpower.linalg.words import Words
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums import exact_moment as kernel
from fedpower.sums.exact_moment import Desk, ExactMoments, ExactSum, exact_moment, product_rows
from fedpower.sums.lattice_rows import LatticeRows, RowLattice
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


def by_hand(rows: Any, rule: RowTreatment, lattice: RowLattice) -> tuple[list[int], list[list[int]]]:
    """Σ z and Σ z zᵀ in Python's own integers, one row at a time."""
    width = rows.shape[1]
    total, squares = [0] * width, [[0] * width for _ in range(width)]
    for row in rows:
        found, _ = LatticeRows(rule, width, lattice=lattice).of_dense(row[None])
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
    lattice = RowLattice(data.draw(st.sampled_from([9, 20, 22])))
    total, squares = by_hand(rows, rule, lattice)
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    forms = [rows, np.asfortranarray(rows), sparse.csr_array(rows), rows[order], pd.DataFrame(rows)]
    found = [
        exact_moment(
            open_source(form),
            rule,
            block_rows=data.draw(st.integers(1, 50)),
            workers=data.draw(st.integers(1, 3)),
            lattice=lattice,
        )
        for form in forms
    ]
    assert found[0].total.tolist() == total
    assert found[0].squares.to_ints().tolist() == squares
    assert found[0].square_total == sum(squares[j][j] for j in range(rows.shape[1]))
    assert all(each == found[0] for each in found)
    assert len({each.to_bytes() for each in found}) == 1


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("width", [1, 30, 1100])
def test_blocks_threads_and_forms_do_not_change_a_bit(rule: RowTreatment, width: int) -> None:
    rows = some_rows(9000 if width < 100 else 1500, width)
    expected = exact_moment(open_source(rows), rule)
    for block_rows, workers in ((100, 2), (1000, 3), (10_000, 1)):
        assert exact_moment(open_source(rows), rule, block_rows=block_rows, workers=workers) == expected
    thin = np.where(np.random.default_rng(1).random(rows.shape) < 0.05, rows, 0.0)
    sparsely = exact_moment(open_source(sparse.csr_array(thin)), rule)
    assert sparsely == exact_moment(open_source(thin), rule)
    assert sparsely == exact_moment(open_source(sparse.csc_array(thin)), rule, block_rows=77, workers=2)


def test_rows_in_float32_and_in_integers_give_the_same_as_in_float64() -> None:
    rows = (some_rows(500, 7) * 100).astype(np.int32)
    expected = exact_moment(open_source(rows.astype(np.float64)), RULES["normalised"])
    for form in (rows, rows.astype(np.float32), rows.astype(np.int64), rows.astype(np.float16)):
        assert exact_moment(open_source(form), RULES["normalised"]) == expected


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_merged_parts_equal_the_whole_in_any_grouping(rule: RowTreatment) -> None:
    rows = some_rows(700, 5)
    whole = exact_moment(open_source(rows), rule)
    parts = [exact_moment(open_source(part), rule) for part in np.split(rows, [1, 90, 400])]
    one, two, three, four = parts
    assert one.merge(two).merge(three).merge(four) == whole
    assert four.merge(two).merge(one.merge(three)) == whole
    assert ExactMoments.from_bytes(one.to_bytes()).merge(two.merge(three.merge(four))) == whole


def test_moment_mean_and_trace_are_those_of_the_bounded_rows() -> None:
    rows = some_rows(3000, 12)
    for rule in RULES.values():
        found, plain = (exact_moment(open_source(rows), rule), accumulate_moment(open_source(rows), rule))
        center = np.linspace(-0.2, 0.3, 12)
        close = {"rtol": 0, "atol": 6 * 2.0**-20}
        np.testing.assert_allclose(found.moment, plain.moment, **close)
        np.testing.assert_allclose(found.mean, plain.mean, **close)
        np.testing.assert_allclose(found.about(center), plain.about(center), **close)
        assert found.trace(center) == pytest.approx(plain.trace(center), abs=6 * 2.0**-20)
        assert found.trace() == pytest.approx(np.trace(found.moment), rel=1e-14)
        assert (found.n_rows, found.n_clipped) == (plain.n_rows, plain.n_clipped)
        basis = np.eye(12)[:, :3]
        np.testing.assert_allclose(found.product(basis, center), found.about(center) @ basis)
        assert not found.total.flags.writeable
        assert not found.squares.low.flags.writeable


def test_sums_past_one_word_carry_into_a_second() -> None:
    """2²³ rows of the largest square would pass 2⁶³: added up in parts of 2²² rows as a block would."""
    lattice, n_parts, part = RowLattice(), 9, 2**22
    side = lattice.side
    total = ExactSum(2, lattice)
    expected = np.zeros((2, 2), dtype=object)
    for place in range(n_parts):
        z = [side, 0] if place % 3 else [-side // 2, side // 2 + place]
        gram = np.array([[part * a * b for b in z] for a in z])
        expected += gram.astype(object)
        total.add(part, 1, np.array([part * value for value in z]), [(0, 0, gram)])
    found = total.result()
    assert found.n_rows == n_parts * part
    assert found.squares.high is not None
    assert found.squares.to_ints().tolist() == expected.tolist()
    assert int(expected[0, 0]) > 2**63
    again = ExactMoments.from_bytes(found.to_bytes())
    assert again == found
    assert again.trace() == (expected[0, 0] + expected[1, 1]) / (n_parts * part * side**2)
    np.testing.assert_array_equal(found.moment, (expected / (n_parts * part * side**2)).astype(np.float64))


def test_merging_past_one_word_gives_the_same_words_in_any_grouping() -> None:
    lattice = RowLattice(22)
    rng = np.random.default_rng(0)

    def some(n_rows: int) -> ExactMoments:
        total = ExactSum(3, lattice)
        z = rng.integers(-(2**20), 2**20, size=(3,))
        total.add(n_rows, 0, n_rows * z, [(0, 0, n_rows * np.outer(z, z))])
        return total.result()

    parts = [some(n_rows) for n_rows in (1, 2**17, 2**18, 2**18, 5)]
    forward = parts[0]
    for part in parts[1:]:
        forward = forward.merge(part)
    backward = parts[-1]
    for part in parts[-2::-1]:
        backward = part.merge(backward)
    pairs = parts[0].merge(parts[1]).merge(parts[2].merge(parts[3])).merge(parts[4])
    assert forward.squares.high is not None
    assert forward == backward == pairs
    expected = sum(part.squares.to_ints() for part in parts)
    assert forward.squares.to_ints().tolist() == expected.tolist()
    assert forward.to_bytes() == backward.to_bytes() == pairs.to_bytes()


@given(st.lists(st.integers(-(2**84), 2**84), min_size=1, max_size=5), st.integers(-(2**61), 2**61))
def test_words_are_the_numbers_they_stand_for(numbers: list[int], more: int) -> None:
    low = np.array([number & 0xFFFFFFFF for number in numbers], dtype=np.int64)
    high = np.array([number >> 32 for number in numbers], dtype=np.int64)
    words = Words(low=low, high=high)
    assert words.to_ints().tolist() == numbers
    assert words.plus(np.full(len(numbers), more)).to_ints().tolist() == [n + more for n in numbers]
    assert words.to_float().tolist() == [float(number) for number in numbers]
    assert words.plus(np.full(len(numbers), 0)).equals(words)
    assert not words.plus(np.full(len(numbers), 1)).equals(words)


def test_a_block_is_never_larger_than_float64_adds_up_exactly() -> None:
    for bits in (8, 20, 21, 22):
        lattice = RowLattice(bits)
        for width in (1, 64, 512, 2048, 100_000):
            assert 1 <= product_rows(width, lattice) <= lattice.exact_rows
        assert lattice.exact_rows * lattice.side**2 == 2**53


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


def test_sums_of_other_columns_or_another_lattice_do_not_merge_and_broken_bytes_are_refused() -> None:
    rule = RULES["normalised"]
    one = exact_moment(open_source(some_rows(9, 3)), rule)
    other = exact_moment(open_source(some_rows(9, 4)), rule)
    finer = exact_moment(open_source(some_rows(9, 3)), rule, lattice=RowLattice(22))
    for each in (other, finer):
        with pytest.raises(InputError, match="same columns and lattice"):
            one.merge(each)
    assert one not in (other, finer)
    for raw in (b"", b"other", one.to_bytes()[:-1], one.to_bytes() + b"0"):
        with pytest.raises(InputError, match="must be encoded"):
            ExactMoments.from_bytes(raw)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_missing_value_is_named_by_its_place(workers: int) -> None:
    rows = some_rows(3000, 4)
    rows[2500, 2] = np.nan
    with pytest.raises(InputError, match=r"column 3 of .* at row 2501"):
        exact_moment(open_source(rows), RULES["normalised"], block_rows=200, workers=workers)


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
def test_silos_summed_at_one_desk_are_summed_as_if_each_had_its_own(rule: RowTreatment) -> None:
    desk, rows = Desk(), some_rows(900, 7)
    parts = np.array_split(rows, 5)
    broken = rows.copy()
    broken[700, 2] = np.nan
    for part in (*parts, rows[:, :3], *parts):  # of another width, too
        assert exact_moment(open_source(part), rule, desk=desk) == exact_moment(open_source(part), rule)
        with pytest.raises(InputError, match=r"column 3 of .* at row 701"):
            exact_moment(open_source(broken), rule, desk=desk, block_rows=200)


@pytest.mark.parametrize("workers", [1, 2])
def test_wide_rows_squared_by_each_core_alone_have_the_same_sums(
    workers: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = some_rows(70, 1030)
    monkeypatch.setattr(kernel, "_SQUARED_ROWS", 32)
    found = exact_moment(open_source(rows), RULES["normalised"], workers=workers)
    monkeypatch.setattr(kernel, "_MOST_SQUARED_FEATURES", 0)
    assert found == exact_moment(open_source(rows), RULES["normalised"], workers=workers)
