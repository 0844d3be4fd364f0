"""Bounded rows as whole numbers: no row is longer than S, whatever it held before."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.lattice import SIDE, LatticeRows


@pytest.fixture(autouse=True, params=["C", "NumPy"], scope="module")
def loops(request: Any) -> Iterator[None]:
    """Every test runs with the compiled loops and with the NumPy code that they stand in for."""
    if request.param == "C":
        if native.loops() is None:
            pytest.skip(native.account())
        yield
    else:
        with native.switched_off():
            yield


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


def integers(rows: Any, rule: RowTreatment) -> list[list[int]]:
    found, _ = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    assert np.array_equal(found, np.rint(found))
    return [[int(value) for value in row] for row in found]


def require_short(found: list[list[int]]) -> None:
    assert max(sum(value * value for value in row) for row in found) <= SIDE * SIDE


@given(ANY, st.data())
def test_no_row_is_longer_than_the_side_in_whole_numbers(rows: Any, data: Any) -> None:
    rule = data.draw(rules(rows.shape[1]))
    require_short(integers(rows, rule))


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
        assert np.abs(block.toarray() - found).max() <= 1


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
    """√d for truncation, and 1 for the margin below S; clipping itself is `RowTreatment.apply`'s."""
    rule = data.draw(rules(rows.shape[1]))
    rows = np.clip(rows, -1e100, 1e100)  # beyond, dividing by a bound of 1e-150 overflows there
    wanted = np.asarray(rule.apply(rows)[0]) * SIDE
    off = np.linalg.norm(np.array(integers(rows, rule)) - wanted, axis=1)
    assert off.max() <= math.sqrt(rows.shape[1]) + 1


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
            assert min(norms) > SIDE - 1 - math.sqrt(width)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("rule", [RowTreatment(normalize=True), RowTreatment(row_norm=1.0)])
def test_a_missing_or_infinite_value_is_refused(bad: float, rule: RowTreatment) -> None:
    rows = np.ones((5, 3))
    rows[2, 1] = bad
    with pytest.raises(InputError, match="must hold finite numbers"):
        LatticeRows(rule, 3).of_dense(rows)
    with pytest.raises(InputError, match="must hold finite numbers"):
        LatticeRows(rule, 3).of_sparse(sparse.csr_array(rows))


@pytest.mark.parametrize("bound", [{"row_norm": 1.0}, {"normalize": True}])
def test_rows_that_overflow_where_they_are_centred_are_clipped_like_any_other(bound: Any) -> None:
    """A refusal would tell others that there is such a row."""
    rule = RowTreatment(center=np.array([-1e308, 1.0]), **bound)
    rows = np.array([[1e308, 1.0], [1e308, 3e307], [0.5, 1.0], [-1e308, 1.5]])
    found, n_clipped = LatticeRows(rule, 2).of_dense(rows)
    assert found[0].tolist() == [2**20 - 1, 0]
    top = np.array([np.finfo(np.float64).max, 3e307])
    assert np.allclose(found[1], top / top[0] * found[1, 0], atol=1)
    assert np.hypot(*found[1]) == pytest.approx(2**20 - 1, abs=2)
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


def test_a_treatment_without_a_bound_is_refused() -> None:
    with pytest.raises(InputError, match="must be bounded"):
        LatticeRows(RowTreatment(), 3)


@given(ANY, st.data())
def test_compiled_loops_give_numpy_s_integers_to_one_unit(rows: Any, data: Any) -> None:
    rule = data.draw(rules(rows.shape[1]))
    rows = np.clip(rows, -1e100, 1e100)  # beyond, dividing by a bound of 1e-150 overflows in NumPy
    found, n_clipped = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    with native.switched_off():
        plain, expected = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    assert np.abs(found - plain).max() <= 1
    assert abs(n_clipped - expected) <= np.count_nonzero(found != plain) + len(rows)


@given(ANY, st.data())
def test_a_row_that_counts_for_less_is_within_its_own_side(rows: Any, data: Any) -> None:
    rule = data.draw(rules(rows.shape[1]))
    shares = np.array([data.draw(st.integers(0, 2**16)) for _ in rows]) / 2**16
    found, _ = LatticeRows(rule, rows.shape[1]).of_dense(rows, shares=shares)
    for row, share in zip(found, shares, strict=True):
        assert sum(int(value) ** 2 for value in row) <= (Fraction(share) * SIDE) ** 2
