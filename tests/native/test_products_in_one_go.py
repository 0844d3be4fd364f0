"""The compiled products over wide rows are those of NumPy to rounding, over the same bounded rows."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compiled import both_ways, needs_loops

from fedpower import native
from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums import wide_product
from fedpower.sums.passes import EnrolledRows, digest_key, enrolled, seen_in
from fedpower.sums.product import RowProduct

pytestmark = [
    needs_loops,
    pytest.mark.skipif(
        not hasattr(native.loops(), "fedpower_wide_products"),
        reason="wide rows are multiplied by a BLAS here",
    ),
]

WIDE = wide_product.FEWEST_COLUMNS + 131  # neither whole stripes nor whole groups of columns
COLUMNS: dict[str, Any] = {"center": np.linspace(-1, 1, WIDE), "scale": np.geomspace(0.5, 2.0, WIDE)}
RULES = {
    "half clipped": RowTreatment(row_norm=np.sqrt(WIDE)),
    "none too long": RowTreatment(row_norm=1e3),
    "normalised": RowTreatment(normalize=True),
    "moved": RowTreatment(row_norm=np.sqrt(WIDE), **COLUMNS),
    "exact": RowTreatment(),
    "ranges": RowTreatment(row_norm=9.0, low=-np.ones(WIDE), high=np.ones(WIDE), **COLUMNS),
    "tiny bound": RowTreatment(row_norm=1e-150),
}


def rows_of(count: int, dtype: Any = np.float32) -> Any:
    return np.random.default_rng(count).standard_normal((count, WIDE)).astype(dtype)


def basis_of(rank: int) -> Any:
    return np.linalg.qr(np.random.default_rng(rank).standard_normal((WIDE, rank)))[0]


def product(source: Any, rule: RowTreatment, rank: int = 6, workers: int = 1) -> Any:
    center = np.full(WIDE, 1e-3) if rule.bounded else None
    return RowProduct(source, rule, workers=workers).product(basis_of(rank), center)


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize(("count", "rank"), [(1, 1), (6, 7), (70, 14)])
def test_products_are_those_of_numpy_to_rounding(rule: str, count: int, rank: int) -> None:
    source = open_source(rows_of(count))
    found, expected = both_ways(lambda: product(source, RULES[rule], rank))
    assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max()


def test_the_loops_are_what_multiplies_rows_of_a_file(tmp_path: Path) -> None:
    np.save(tmp_path / "rows.npy", rows_of(9))
    source = enrolled(open_source(tmp_path / "rows.npy"), contents=True)
    found = wide_product.wide_product(source, RULES["moved"], basis_of(2), None)
    assert found is not None
    with native.switched_off():
        assert wide_product.wide_product(source, RULES["moved"], basis_of(2), None) is None


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["half clipped", "moved"])
def test_the_bits_depend_neither_on_threads_nor_on_blocks_nor_on_where_rows_lie(
    rule: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    narrow = rows_of(23)
    np.save(tmp_path / "narrow.npy", narrow)
    np.save(tmp_path / "wide.npy", narrow.astype(np.float64))
    expected = product(open_source(narrow), RULES[rule])
    for size in (1, 5 * 4 * WIDE, 2**25):
        monkeypatch.setattr(wide_product, "_BLOCK_BYTES", size)
        for given in (narrow, tmp_path / "narrow.npy", tmp_path / "wide.npy"):
            source = enrolled(open_source(given), contents=True)
            for workers in (1, 3):
                assert np.array_equal(product(source, RULES[rule], workers=workers), expected)


@pytest.mark.slow
@pytest.mark.parametrize("rule", ["half clipped", "normalised", "moved"])
def test_rows_of_every_length_are_bounded_as_numpy_bounds_them(rule: str) -> None:
    rows = rows_of(24, np.float64)
    rows[:8] *= np.geomspace(1e-300, 1e300, 8)[:, np.newaxis]
    rows[8], rows[9], rows[10] = np.finfo(np.float64).max, 5e-324, 0.0
    rows[11, 1:] = 0.0
    for each in (rows, rows[11:]):  # with and without what squares cannot hold
        found, expected = both_ways(lambda each=each: product(open_source(each), RULES[rule]))
        assert np.abs(found - expected).max() <= 1e-13 * np.abs(expected).max()


@pytest.mark.parametrize("seed", range(5))
def test_no_row_counts_for_more_than_a_unit_row(seed: int) -> None:
    """‖xxᵀZ‖_F ≤ ‖x‖² ≤ 1, to what the rounding of sums is allowed."""
    rng = np.random.default_rng(seed)
    row = rng.standard_normal((1, WIDE)) * 10.0 ** rng.uniform(-9, 9, (1, WIDE))
    row /= np.linalg.norm(row) * (1 + rng.uniform(-1, 1) * 2.0**-50)
    basis = np.linalg.qr(np.column_stack([row[0], rng.standard_normal(WIDE)]))[0]
    for length in (1.0, 1e3, 1e200):
        source = open_source(length * row)
        found = RowProduct(source, RowTreatment(row_norm=1.0)).product(basis)
        assert np.linalg.norm(found) <= 1 + 8 * WIDE * 2.0**-53


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("rule", ["half clipped", "exact"])
def test_a_value_that_is_not_finite_is_refused_with_its_row(value: float, rule: str, tmp_path: Path) -> None:
    rows = rows_of(7)
    rows[5, 17] = value
    np.save(tmp_path / "rows.npy", rows)
    for given in (rows, tmp_path / "rows.npy"):
        found, expected = both_ways(lambda given=given: refusal(given, RULES[rule]))
        assert found == expected
        assert "row 6" in found


def refusal(given: Any, rule: RowTreatment) -> str:
    with pytest.raises(InputError) as refused:
        product(open_source(given), rule)
    return str(refused.value)


def test_rows_that_were_replaced_are_refused_by_what_the_loops_read(tmp_path: Path) -> None:
    path, rows = tmp_path / "rows.npy", rows_of(7)
    np.save(path, rows)
    source = EnrolledRows(open_source(path), contents=True)
    product(source, RULES["half clipped"])
    rows[3, 4] += np.float32(1e-3)
    np.save(path, rows)
    with pytest.raises(InputError, match="rows"):
        product(source, RULES["half clipped"])


def test_a_file_that_was_cut_off_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.npy"
    np.save(path, rows_of(7))
    source = enrolled(open_source(path), contents=True)
    with path.open("r+b") as file:
        file.truncate(5 * 4 * WIDE)
    with pytest.raises(InputError, match="truncated or damaged"):
        product(source, RULES["half clipped"])


@pytest.mark.parametrize("width", [1, 3, 700])
def test_the_digest_of_float32_rows_is_that_of_the_same_numbers_in_float64(width: int) -> None:
    rows = np.random.default_rng(0).standard_normal((9, width)).astype(np.float32)
    rows[0, 0] = -0.0
    key = digest_key(width)
    expected = seen_in(rows.astype(np.float64), key)
    for workers in (1, 4):
        assert both_ways(lambda n=workers: seen_in(rows, key, n)) == (expected, expected)
