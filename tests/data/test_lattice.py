"""Bounded rows as whole numbers: no row is longer than S, and sums of them are exact in any order."""

import math
from collections.abc import Iterator
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower import native
from fedpower.exceptions import InputError
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums import lattice
from fedpower.sums.lattice import EXACT_ROWS, SIDE, LatticeRows, LatticeSum, Words, product_rows
from fedpower.sums.survey import STAGES, Stage
from problems import exact_moment, without_loops_in_c


@pytest.fixture(autouse=True, params=["C", "NumPy"], scope="module")
def loops(request: Any) -> Iterator[None]:
    """Every test runs with the compiled loops and with the NumPy code that they stand in for."""
    if request.param == "C":
        if native.loops() is None:
            pytest.skip(native.account())
        yield
    else:
        with without_loops_in_c():
            yield


ANY = arrays(
    np.float64,
    st.tuples(st.integers(1, 12), st.integers(1, 9)),
    elements=st.one_of(
        st.floats(allow_nan=False, allow_infinity=False),
        st.sampled_from([0.0, 5e-324, -5e-324, 2.2e-308, 1e-160, 1e308, -1e308, 0.5, 1.0]),
        st.integers(-(2**21), 2**21).map(lambda n: (n + 0.5) / SIDE),
    ),
)


@st.composite
def rules(draw: Any, width: int) -> RowTreatment:
    normalize = draw(st.booleans())
    return RowTreatment(
        center=np.linspace(-3, 5, width) if draw(st.booleans()) else None,
        scale=np.linspace(1.5, 40, width) if draw(st.booleans()) else None,
        row_norm=None if normalize else draw(st.sampled_from([1.0, 0.3, 1e-150, 1e150, 123.456])),
        normalize=normalize,
    )


def integers(rows: Any, rule: RowTreatment) -> list[list[int]]:
    found, _ = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    assert np.array_equal(found, np.rint(found))
    return [[int(value) for value in row] for row in found]


@given(ANY, st.data())
@settings(max_examples=15)
def test_no_row_is_longer_than_its_side_and_each_is_itself_in_any_company(rows, data):
    rule = data.draw(rules(rows.shape[1]))
    found = integers(rows, rule)
    assert max(sum(value * value for value in row) for row in found) <= SIDE * SIDE
    shares = np.array([data.draw(st.integers(0, 2**16)) for _ in rows]) / 2**16
    short, _ = LatticeRows(rule, rows.shape[1]).of_dense(rows, shares=shares)
    for row, share in zip(short, shares, strict=True):
        assert sum(int(value) ** 2 for value in row) <= (Fraction(share) * SIDE) ** 2
    assert [integers(row[None], rule)[0] for row in rows] == found
    assert integers(np.asfortranarray(rows), rule) == found
    assert integers(rows[::-1], rule) == found[::-1]
    if rule.center is None and np.abs(rows).max() < 1e150:  # beyond, dividing by a bound of 1e-150 overflows
        block, _ = LatticeRows(rule, rows.shape[1]).of_sparse(sparse.csr_array(rows))
        assert np.abs(block.toarray() - found).max() <= 1


@given(ANY, st.data())
@settings(max_examples=15)
def test_a_row_is_close_to_the_bounded_row_and_to_numpy_s(rows, data):
    """√d for truncation, and 1 for the margin below S; clipping itself is `RowTreatment.apply`'s."""
    rule = data.draw(rules(rows.shape[1]))
    rows = np.clip(rows, -1e100, 1e100)  # beyond, dividing by a bound of 1e-150 overflows there
    wanted = np.asarray(rule.apply(rows)[0]) * SIDE
    found, n_clipped = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    assert np.linalg.norm(found - wanted, axis=1).max() <= math.sqrt(rows.shape[1]) + 1
    with without_loops_in_c():
        plain, expected = LatticeRows(rule, rows.shape[1]).of_dense(rows)
    assert np.abs(found - plain).max() <= 1
    assert abs(n_clipped - expected) <= np.count_nonzero(found != plain) + len(rows)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("bound", [{"row_norm": 1.0}, {"normalize": True}])
def test_a_missing_or_infinite_value_is_refused(bad, bound):
    rows, treated = np.ones((5, 3)), LatticeRows(RowTreatment(**bound), 3)
    rows[2, 1] = bad
    for read, block in ((treated.of_dense, rows), (treated.of_sparse, sparse.csr_array(rows))):
        with pytest.raises(InputError, match="must hold finite numbers"):
            read(block)
    if np.isnan(bad):  # a source looks for infinite values
        with pytest.raises(InputError, match="must hold finite numbers"):
            LatticeRows(RowTreatment(center=np.ones(3), **bound), 3).of_dense(rows)
    with pytest.raises(InputError, match="must be bounded"):
        LatticeRows(RowTreatment(), 3)


@pytest.mark.parametrize("bound", [{"row_norm": 1.0}, {"normalize": True}])
def test_rows_that_overflow_where_they_are_centred_are_clipped_like_any_other(bound):
    """A refusal would tell others that there is such a row."""
    rule = RowTreatment(center=np.array([-1e308, 1.0]), **bound)
    rows = np.array([[1e308, 1.0], [1e308, 3e307], [0.5, 1.0], [-1e308, 1.5]])
    found, n_clipped = LatticeRows(rule, 2).of_dense(rows)
    assert found[0].tolist() == [2**20 - 1, 0]
    top = np.array([np.finfo(np.float64).max, 3e307])
    assert np.allclose(found[1], top / top[0] * found[1, 0], atol=1)
    assert np.hypot(*found[1]) == pytest.approx(2**20 - 1, abs=2)
    assert n_clipped == (0 if "normalize" in bound else 3)


RULES = {
    "none too long": RowTreatment(row_norm=50.0),
    "half clipped": RowTreatment(row_norm=2.5),
    "normalised": RowTreatment(normalize=True),
}
EACH_RULE = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


def some_rows(n_rows: int, width: int) -> Any:
    rng = np.random.default_rng(0)
    rows = rng.standard_normal((n_rows, width)) * np.geomspace(3, 0.3, width) / np.sqrt(width)
    rows[rng.random(rows.shape) < 0.5] = 0.0
    return rows


@given(ANY, st.data())
@settings(max_examples=20)
def test_every_way_gives_the_integers_of_a_plain_loop(rows, data):
    rule = RULES[data.draw(st.sampled_from(sorted(RULES)))]
    z = np.array(integers(rows, rule), dtype=object)
    for form in (rows, np.asfortranarray(rows), rows[::-1]):
        size, workers = data.draw(st.integers(1, 15)), data.draw(st.integers(1, 3))
        found = exact_moment(open_source(form), rule, max_rows=size, workers=workers)
        assert found.total.tolist() == z.sum(axis=0).tolist()
        assert found.squares.to_ints().tolist() == (z.T @ z).tolist()
        assert found.square_total == (z * z).sum()


@EACH_RULE
@pytest.mark.parametrize("width", [1, 30, pytest.param(1100, marks=pytest.mark.slow)])
def test_blocks_threads_forms_and_merging_do_not_change_a_bit(rule, width):
    rows = some_rows(2000 if width < 100 else 1500, width)
    expected = exact_moment(open_source(rows), rule)
    for block_rows, workers in ((100, 2), (700, 3)):
        assert exact_moment(open_source(rows), rule, max_rows=block_rows, workers=workers) == expected
    thin = np.where(np.random.default_rng(1).random(rows.shape) < 0.05, rows, 0.0)
    sparsely = exact_moment(open_source(sparse.csr_array(thin)), rule)
    assert sparsely == exact_moment(open_source(sparse.csc_array(thin)), rule, max_rows=77, workers=2)
    for order in ([0, 1, 2, 3], [3, 1, 0, 2]):
        parts = [LatticeSum(rule, width) for _ in order]
        for part, block in zip(parts, np.split(rows, [1, 90, 400]), strict=True):
            part.add(block)
        total = parts[order[0]]
        for place in order[1:]:
            total.merge(parts[place])
        assert expected == total.result()


@given(st.lists(st.integers(-(2**84), 2**84), min_size=1, max_size=5), st.integers(-(2**61), 2**61))
@settings(max_examples=15)
def test_words_are_the_numbers_they_stand_for(numbers, more):
    low = np.array([number & 0xFFFFFFFF for number in numbers], dtype=np.int64)
    high = np.array([number >> 32 for number in numbers], dtype=np.int64)
    words = Words(low=low, high=high)
    assert words.to_ints().tolist() == numbers
    assert words.to_float().tolist() == [float(number) for number in numbers]
    small = Words(low=np.array([more]))
    assert small.two().to_ints().tolist() == [more]
    assert small.shifted(1).tolist() == [2 * more]
    assert small.shifted(-5).tolist() == small.two().shifted(-5).tolist() == [(more + 16) >> 5]


def test_full_blocks_of_the_longest_rows_are_still_exact():
    """Rows along one axis, whose squares add up to nearly 2⁵³ in a block and to more in two."""
    assert EXACT_ROWS * SIDE**2 == 2**53
    assert all(1 <= product_rows(width) <= EXACT_ROWS for width in (1, 64, 512, 2048, 100_000))
    rows = np.zeros((2**14 + 3, 3))
    rows[:, 0] = 1.0
    rows[::3, 1] = 1e-3
    rule = RowTreatment(row_norm=1.0 + 2.0**-18)
    found = exact_moment(open_source(rows), rule)
    whole = LatticeRows(rule, 3).of_dense(rows)[0].astype(np.int64)
    np.testing.assert_array_equal(found.squares.low, whole.T @ whole)


def test_sums_past_one_word_carry_into_a_second_and_merge(monkeypatch):
    monkeypatch.setattr(lattice, "WORD_ROWS", 2**13)
    rows = np.tile([[1.0, 0.0], [0.6, -0.8]], (2**14 + 300, 1))
    rule = RowTreatment(row_norm=1.0)
    whole = exact_moment(open_source(rows), rule)
    assert whole.squares.high.shape == (2, 2)
    z = np.array(integers(rows[:2], rule), dtype=object)
    assert whole.squares.to_ints().tolist() == (len(rows) // 2 * (z.T @ z)).tolist()
    assert whole.square_total == len(rows) // 2 * (z * z).sum()
    for cut in (5, 2**12, 2**14 + 1):
        one, two = LatticeSum(rule, 2), LatticeSum(rule, 2)
        for total, part in ((one, rows[:cut]), (two, rows[cut:])):
            for block in np.array_split(part, 8):
                total.add(block)
        one.merge(two)
        assert whole == one.result()


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("weighted", [False, True])
def test_numpy_tallies_as_the_loops_do_even_where_a_range_has_no_width(kind, weighted):
    rows = some_rows(300, 5)
    rows[::7, 1], rows[:, 2], rows[::3, 3] = np.nan, 4.0, 4.0
    vectors = {
        "low": np.array([-1.0, -1.0, 4.0, 4.0, -3.0]),
        "high": np.array([1.0, 2.0, 4.0, 4.0, 3.0]),
        "offset": np.ones(5),
        "scale": np.full(5, 0.7),
    }
    stage = Stage(kind=kind, n_features=5, open_columns=np.arange(5), **vectors)
    weights = np.arange(300) if weighted else None
    with without_loops_in_c():
        plain = stage.tally(rows, weights)
    assert np.array_equal(plain, stage.tally(rows, weights))
    assert plain.sum() > 0


def test_versions_for_other_processors_give_the_same_sums(monkeypatch):
    if native.loops() is None or not native.suffix():
        pytest.skip("there is one version")
    versions = ["", "_avx2", "_avx512"]
    rows = some_rows(3000, 13)
    ends = {"low": np.full(13, -1.0), "high": np.full(13, 1.0)}
    about = {"offset": np.full(13, 0.1), "scale": np.full(13, 0.7)}
    given = {"octaves": {}, "bins": ends, "means": ends, "norms": ends | about}
    stages = [Stage(kind=kind, n_features=13, open_columns=np.arange(13), **given[kind]) for kind in given]
    found = []
    for version in versions[: versions.index(native.suffix()) + 1]:
        monkeypatch.setattr(native, "suffix", lambda version=version: version)
        native._function.cache_clear()
        moments = [exact_moment(open_source(rows), rule).to_float().about() for rule in RULES.values()]
        found.append((moments, np.concatenate([stage.tally(rows) for stage in stages])))
    native._function.cache_clear()
    for moments, counts in found[1:]:
        np.testing.assert_allclose(moments, found[0][0], rtol=0, atol=6 * 2.0**-20)
        assert np.array_equal(counts, found[0][1])
