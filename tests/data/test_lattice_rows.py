"""Bounded rows as whole numbers: no row is longer than S, whatever it held before."""

import math
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.lattice_rows import BITS, LatticeRows, RowLattice, _at_least, _exact_square

SIDE = 2**BITS

ANY = arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 9)),
    elements=st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([0.0, 5e-324, -5e-324, 2.2e-308, 1e-160, 1e308, -1e308, 0.5, 1.0]),
        st.integers(-4, 4).map(lambda n: n + 0.5),
        st.integers(-(2**21), 2**21).map(lambda n: (n + 0.5) / SIDE),
    ),
)
BOUNDS = st.sampled_from([1.0, 0.3, 2.0, 1e-150, 1e150, 1e-7, 123.456])


@st.composite
def rules(draw: Any, width: int) -> RowTreatment:
    normalize = draw(st.booleans())
    return RowTreatment(
        center=np.linspace(-3, 5, width) if draw(st.booleans()) else None,
        scale=np.linspace(1.5, 40, width) if draw(st.booleans()) else None,
        row_norm=None if normalize else draw(BOUNDS),
        normalize=normalize,
    )


def integers(rows: Any, rule: RowTreatment, **how: Any) -> list[list[int]]:
    found, _ = LatticeRows(rule, rows.shape[1], **how).of_dense(rows)
    assert np.array_equal(found, np.rint(found))
    return [[int(value) for value in row] for row in found]


def require_short(found: list[list[int]], side: int = SIDE) -> None:
    assert max(sum(value * value for value in row) for row in found) <= side * side


@given(ANY, st.data())
def test_no_row_is_longer_than_the_side_in_whole_numbers(rows: Any, data: Any) -> None:
    bits = data.draw(st.sampled_from([8, 20, 22]))
    rule = data.draw(rules(rows.shape[1]))
    require_short(integers(rows, rule, lattice=RowLattice(bits)), 2**bits)


@given(ANY, st.data())
def test_a_row_becomes_the_same_integers_in_any_company_order_and_form(rows: Any, data: Any) -> None:
    rule = data.draw(rules(rows.shape[1]))
    found = integers(rows, rule)
    assert [integers(row[None], rule)[0] for row in rows] == found
    assert integers(np.asfortranarray(rows), rule) == found
    order = np.array(data.draw(st.permutations(range(len(rows)))))
    assert integers(rows[order], rule) == [found[place] for place in order]
    warmed = LatticeRows(rule, rows.shape[1])
    for _ in range(3):
        again, _ = warmed.of_dense(rows)
        assert again.tolist() == found
    if rule.center is None:
        block, _ = LatticeRows(rule, rows.shape[1]).of_sparse(sparse.csr_array(rows))
        assert block.toarray().tolist() == found


@pytest.mark.parametrize("width", [1, 3, 100, 700, 2500])
@pytest.mark.parametrize("bound", [None, 0.9, 50.0])
def test_rows_taken_several_at_a_time_become_what_each_becomes_alone(width: int, bound: float | None) -> None:
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((max(9, 2100 // width), width)) / np.sqrt(width)
    for scale in (None, rng.uniform(0.5, 2, width)):
        rule = RowTreatment(
            center=None if scale is None else rng.standard_normal(width) / width,
            scale=scale,
            row_norm=bound,
            normalize=bound is None,
        )
        alone = [integers(row[None], rule)[0] for row in rows]
        assert integers(rows, rule) == alone
        assert integers(np.asfortranarray(rows), rule) == alone


@pytest.mark.parametrize("length", [0.25, 1.0, 3.0])
def test_rows_of_one_length_become_the_same_beside_others(length: float) -> None:
    rows = np.random.default_rng(7).standard_normal((40, 30))
    rows *= length / np.linalg.norm(rows, axis=1, keepdims=True)
    mixed = np.vstack([rows, 2 * rows, rows / 5])
    for rule in (RowTreatment(row_norm=1.0), RowTreatment(normalize=True)):
        assert integers(rows, rule) == integers(mixed, rule)[:40]
        _, n_clipped = LatticeRows(rule, 30).of_dense(rows)
        assert n_clipped == (40 if length > 1 and not rule.normalize else 0)


@given(ANY, st.data())
def test_a_row_is_close_to_the_bounded_row(rows: Any, data: Any) -> None:
    """√d/2 for rounding, and 4 for the margin below S; clipping itself is `RowTreatment.apply`'s."""
    rule = data.draw(rules(rows.shape[1]))
    rows = np.clip(rows, -1e100, 1e100)  # beyond, dividing by a bound of 1e-150 overflows there
    wanted = np.asarray(rule.apply(rows)[0]) * SIDE
    off = np.linalg.norm(np.array(integers(rows, rule)) - wanted, axis=1)
    assert off.max() <= math.sqrt(rows.shape[1]) / 2 + 4


@pytest.mark.parametrize("width", [1, 2, 4096])
@pytest.mark.parametrize("size", [5e-324, 1e-310, 1e-160, 1e-3, 1.0, 1e3, 1e160, 1e308])
def test_extreme_rows_are_bounded_in_thin_and_in_wide_blocks(width: int, size: float) -> None:
    rng = np.random.default_rng(width)
    rows = np.vstack(
        [
            np.full(width, size),
            rng.choice([-1.0, 1.0], width) * size,
            np.eye(1, width)[0] * size,
            size * (rng.random(width) + 0.5) / 1.5,
            np.zeros(width),
        ]
    )
    for rule in (RowTreatment(normalize=True), RowTreatment(row_norm=min(size + 1e-140, 1e150))):
        found = integers(rows, rule)
        require_short(found)
        assert found[-1] == [0] * width
        if rule.normalize:
            norms = [math.sqrt(sum(value * value for value in row)) for row in found[:-1]]
            assert min(norms) > SIDE - 3 - math.sqrt(width) / 2


def test_rows_that_round_up_in_every_column_are_shrunk_until_they_fit() -> None:
    """Each entry of the row at norm S − 2 ends in about .5, so that rounding lengthens it by √d/2."""
    width = 4096
    target = SIDE - 2.0
    whole = math.floor(target / math.sqrt(width)) + 0.51
    row = np.full((1, width), whole)
    row[0, 0] = math.sqrt(target**2 - (width - 1) * whole**2) if target**2 > (width - 1) * whole**2 else 0
    factor = target / np.linalg.norm(row)
    rounded = np.rint(row * factor)
    assert (rounded * rounded).sum() > SIDE**2, "the row must be one that rounding makes too long"
    require_short(integers(row, RowTreatment(normalize=True)))
    require_short(integers(row * 7, RowTreatment(row_norm=1.0)))


def test_rows_of_norm_one_and_rows_of_ones_are_never_in_doubt(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(rows: Any, boundaries: Any) -> Any:
        raise AssertionError("an exact sum of squares was needed")

    monkeypatch.setattr("fedpower.sums.lattice_rows._at_least", refuse)
    rng = np.random.default_rng(0)
    for width in (3, 100, 1000):
        rows = rng.standard_normal((200, width))
        units = rows / np.linalg.norm(rows, axis=1, keepdims=True)
        ones = (rng.random((200, width)) < 0.3).astype(float)
        for each in (units, ones, ones / 8):
            integers(each, RowTreatment(normalize=True))
            integers(each, RowTreatment(row_norm=0.9))


@pytest.mark.parametrize("width", [1, 5, 300])
def test_rows_just_below_the_bound_do_not_depend_on_what_came_before(width: int) -> None:
    """Long rows make the next block take its norms first, short ones make it round first."""
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((400, width))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows *= (1 - rng.permutation(np.linspace(0, 20, 400)) / SIDE)[:, None]
    rule = RowTreatment(row_norm=1.0)
    after = {}
    for before in (1e-3, 1e3):
        lattice_rows = LatticeRows(rule, width)
        lattice_rows.of_dense(rows * before)
        lattice_rows.of_dense(rows * before)
        after[before] = [lattice_rows.of_dense(row[None])[0].tolist() for row in rows[:50]]
        lattice_rows.of_dense(rows * before)
        after[before].append(lattice_rows.of_dense(rows)[0].tolist())
    assert after[1e-3] == after[1e3]


@pytest.mark.parametrize("rule", [RowTreatment(row_norm=1.0), RowTreatment(normalize=True)])
def test_rows_of_zeros_stay_zeros_even_where_a_norm_is_in_doubt(
    rule: RowTreatment, monkeypatch: pytest.MonkeyPatch
) -> None:
    # 1 and 1/16 are in doubt
    monkeypatch.setattr("fedpower.sums.lattice_rows.OFFSET", np.int64(0))
    rows = np.zeros((3, 4))
    rows[1] = 0.1
    found = integers(rows, rule)
    assert found[0] == found[2] == [0] * 4
    assert any(found[1])


@given(arrays(np.float64, st.integers(1, 20), elements=st.floats(-1e200, 1e200)))
def test_the_sum_that_settles_a_doubt_is_exact(row: Any) -> None:
    if np.any(row):
        assert _exact_square(row) == sum(Fraction(float(value)) ** 2 for value in row)


def test_a_norm_in_doubt_is_rounded_the_same_in_every_order_of_summation() -> None:
    """Rows are made whose squared norm is within rounding of a cell's end: orders would disagree."""
    from fedpower.sums.lattice_rows import _cell_start

    rng = np.random.default_rng(3)
    cells = rng.integers(np.float64(1.0).view(np.int64) >> 25, np.float64(4.0).view(np.int64) >> 25, 300)
    width = 64
    rows = rng.standard_normal((300, width))
    rows *= np.sqrt(_cell_start(cells) / np.einsum("ij,ij->i", rows, rows))[:, None]
    squares = np.einsum("ij,ij->i", rows, rows)
    backwards = np.array([sum(value * value for value in row[::-1].tolist()) for row in rows])
    ends = _cell_start(cells)
    assert np.any((squares >= ends) != (backwards >= ends)), "some orders must disagree"
    places = np.array(
        [_exact_square(row) >= Fraction(float(end)) for row, end in zip(rows, ends, strict=True)]
    )
    lattice_rows = LatticeRows(RowTreatment(normalize=True), width)
    expected = _cell_start(cells + places)
    np.testing.assert_array_equal(lattice_rows._rounded(rows, squares), expected)
    np.testing.assert_array_equal(lattice_rows._rounded(rows, backwards), expected)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rule", [RowTreatment(normalize=True), RowTreatment(row_norm=1.0)])
def test_a_missing_or_infinite_value_is_refused(bad: float, rule: RowTreatment) -> None:
    rows = np.ones((5, 3))
    rows[2, 1] = bad
    seen = []
    with pytest.raises(InputError, match="must hold finite numbers"):
        LatticeRows(rule, 3, lambda: seen.append(1)).of_dense(rows)
    assert seen
    with pytest.raises(InputError, match="must hold finite numbers"):
        LatticeRows(rule, 3).of_sparse(sparse.csr_array(rows))


@pytest.mark.parametrize("bound", [{"row_norm": 1.0}, {"normalize": True}])
def test_rows_that_overflow_where_they_are_centred_are_clipped_like_any_other(bound: Any) -> None:
    """A refusal would tell others that there is such a row."""
    rule = RowTreatment(center=np.array([-1e308, 1.0]), **bound)
    rows = np.array([[1e308, 1.0], [1e308, 3e307], [0.5, 1.0], [-1e308, 1.5]])
    found, n_clipped = LatticeRows(rule, 2).of_dense(rows)
    assert found[0].tolist() == [2**20 - 2, 0]
    top = np.array([np.finfo(np.float64).max, 3e307])
    assert np.allclose(found[1], top / top[0] * found[1, 0], atol=1)
    assert np.hypot(*found[1]) == pytest.approx(2**20 - 2, abs=1)
    assert n_clipped == (0 if "normalize" in bound else 3)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_a_value_that_is_missing_itself_is_refused(value: float) -> None:
    for rule in (RowTreatment(row_norm=1.0), RowTreatment(center=np.ones(2), row_norm=1.0)):
        if np.isinf(value) and rule.center is not None:
            continue  # a source never gives one: it looks at its cells
        with pytest.raises(InputError, match="must hold finite numbers"):
            LatticeRows(rule, 2).of_dense(np.array([[1.0, value]]))


@pytest.mark.parametrize("dtype", [np.float32, np.int8, np.int32, np.uint16, np.bool_])
def test_other_dtypes_give_the_integers_of_their_float64(dtype: Any) -> None:
    rows = (np.random.default_rng(0).standard_normal((40, 5)) * 20).astype(dtype)
    for rule in (RowTreatment(normalize=True), RowTreatment(row_norm=30.0)):
        assert integers(rows, rule) == integers(rows.astype(np.float64), rule)


def test_clipped_rows_are_counted_and_rows_at_the_bound_are_not() -> None:
    rng = np.random.default_rng(1)
    rows = rng.standard_normal((300, 4))
    rows /= np.linalg.norm(rows, axis=1, keepdims=True)
    rows[:7] *= 1.01
    rows[7:9] *= 1e200
    for block in (rows, rows[::-1].copy()):
        assert LatticeRows(RowTreatment(row_norm=1.0), 4).of_dense(block)[1] == 9
    assert LatticeRows(RowTreatment(normalize=True), 4).of_dense(rows)[1] == 0


def test_a_treatment_without_a_bound_and_a_lattice_too_fine_are_refused() -> None:
    with pytest.raises(InputError, match="must be bounded"):
        LatticeRows(RowTreatment(), 3)
    with pytest.raises(InputError, match="from 8 to 22"):
        RowLattice(23)


@pytest.mark.parametrize("scale", [1.0, 1e-125, 1e-140, 1e125, 1e140])
def test_sums_of_squares_are_held_against_a_boundary_exactly(scale: float) -> None:
    """Boundaries at the float64 numbers around the exact sum, where rounded sums cannot tell."""
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((40, 37)) * scale
    rows[:, 5] = 0.0
    rows[7] = np.eye(37)[3] * scale  # a sum that is a float64 number
    exact = [sum(Fraction(float(value)) ** 2 for value in row) for row in rows]
    for step in (-1, 0, 1):
        ends = np.array([float(each) for each in exact])
        ends = np.nextafter(ends, step * np.inf) if step else ends
        expected = [each >= Fraction(end) for each, end in zip(exact, ends.tolist(), strict=True)]
        assert _at_least(rows, ends).tolist() == expected
