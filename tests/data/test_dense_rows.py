"""Dense rows squared in few passes: every path against the plain formula, the bound, and the bits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.kernel import MOST_SHARED_FEATURES, KernelChoice, gram_rows
from fedpower.sums.local import LocalMoment
from fedpower.sums.moment import accumulate_moment

PRODUCTS = KernelChoice(kind="product", reason="none is made")
ROWS = arrays(
    np.float64,
    st.tuples(st.integers(1, 40), st.integers(1, 7)),
    elements=st.floats(-100, 100, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0),
)
WIDE = arrays(
    np.float64,
    st.tuples(st.integers(1, 6), st.integers(1, 9)),
    elements=st.floats(allow_nan=False, allow_infinity=False),
)


def spread_rows(n_rows: int, width: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_rows, width)) * np.geomspace(3, 0.3, width)


def treated_plainly(rows: Any, rule: RowTreatment) -> Any:
    """The definition, one row at a time and without a margin."""
    moved = rows if rule.center is None else rows - rule.center
    moved = moved if rule.scale is None else moved / rule.scale
    norms = np.array([np.sqrt(np.sum(row * row)) for row in moved])
    if rule.normalize:
        return moved / np.where(norms > 0, norms, 1.0)[:, None]
    if rule.row_norm is not None:
        return moved / np.maximum(norms, rule.row_norm)[:, None]
    return moved


@st.composite
def rules(draw: Any, width: int) -> RowTreatment:
    kind = draw(st.sampled_from(["none", "clip", "clip few", "normalize"]))
    return RowTreatment(
        center=np.linspace(-3, 5, width) if draw(st.booleans()) else None,
        scale=np.linspace(0.5, 4, width) if draw(st.booleans()) else None,
        row_norm={"clip": 30.0, "clip few": 150.0}.get(kind),
        normalize=kind == "normalize",
    )


@pytest.mark.slow
@given(ROWS, st.data())
def test_every_path_gives_the_moment_of_the_bounded_rows(rows: Any, data: Any) -> None:
    rule = data.draw(rules(rows.shape[1]))
    size, workers = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 3))
    order = data.draw(st.sampled_from("CF"))
    source = open_source(np.array(rows, order=order))
    treated = treated_plainly(rows, rule)
    expected = treated.T @ treated / len(rows)
    found = accumulate_moment(source, rule, max_rows=size, workers=workers)
    close = {"rtol": 1e-12, "atol": 1e-12 * max(1.0, float(np.abs(expected).max()))}
    np.testing.assert_allclose(found.about(), expected, **close)
    np.testing.assert_array_equal(found.covariance, found.covariance.T)
    np.testing.assert_allclose(found.mean, treated.mean(axis=0), **close)
    assert found.n_rows == len(rows)
    product = LocalMoment(source, rule, choice=PRODUCTS)
    basis = np.linspace(-1, 1, rows.shape[1])[:, None]
    np.testing.assert_allclose(product.product(basis), expected @ basis, **close)
    assert product.trace() == pytest.approx(np.trace(expected), rel=1e-12, abs=close["atol"])
    late = np.linspace(-0.2, 0.3, rows.shape[1])
    about = (treated - late).T @ (treated - late) / len(rows)
    np.testing.assert_allclose(product.product(basis, late), about @ basis, **close)


def test_rows_given_are_never_written_to() -> None:
    for order in "CF":
        rows = np.array(spread_rows(200, 5) + 3, order=order)  # type: ignore[call-overload]
        kept = rows.copy()
        for rule in (RowTreatment(), RowTreatment(row_norm=0.5), RowTreatment(center=np.ones(5))):
            accumulate_moment(open_source(rows), rule, max_rows=16)
            LocalMoment(open_source(rows), rule, choice=PRODUCTS).product(np.eye(5), np.ones(5))
        np.testing.assert_array_equal(rows, kept)


@pytest.mark.parametrize("width", [3, MOST_SHARED_FEATURES + 80])
@pytest.mark.parametrize("rule", [RowTreatment(), RowTreatment(row_norm=2.0)])
def test_the_bits_are_the_same_however_many_threads_work(width: int, rule: RowTreatment) -> None:
    rows = spread_rows(900, width)
    source = open_source(rows)
    found = [accumulate_moment(source, rule, max_rows=100, workers=n) for n in (1, 2, 3, 1)]
    for other in found[1:]:
        np.testing.assert_array_equal(found[0].covariance, other.covariance)
        np.testing.assert_array_equal(found[0].mean, other.mean)


@pytest.mark.parametrize("width", [MOST_SHARED_FEATURES - 1, MOST_SHARED_FEATURES + 513])
def test_wide_rows_are_squared_by_panels_to_the_same_moment(width: int) -> None:
    rows = spread_rows(60, width, seed=4)
    rule = RowTreatment(row_norm=20.0)
    treated = treated_plainly(rows, rule)
    found = accumulate_moment(open_source(rows), rule, max_rows=25)
    np.testing.assert_allclose(found.about(), treated.T @ treated / 60, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(found.covariance, found.covariance.T)


def test_float32_rows_are_summed_in_float64() -> None:
    rows = spread_rows(5000, 6).astype(np.float32)
    for rule in (RowTreatment(), RowTreatment(row_norm=2.0), RowTreatment(normalize=True)):
        single = accumulate_moment(open_source(rows), rule)
        double = accumulate_moment(open_source(rows.astype(np.float64)), rule)
        np.testing.assert_array_equal(single.covariance, double.covariance)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rule", [RowTreatment(), RowTreatment(row_norm=2.0, scale=np.full(6, 2.0))])
@pytest.mark.parametrize(("value", "what"), [(np.nan, "a missing value"), (-np.inf, "an infinite value")])
def test_a_value_that_is_no_number_is_refused_with_its_place(
    value: float, what: str, rule: RowTreatment, workers: int
) -> None:
    rows = spread_rows(100, 6)
    rows[41, 2] = value
    match = rf"column 3 of silo 'north' must hold finite numbers, got {what} .*at row 42"
    source = open_source(rows, name="silo 'north'")
    with pytest.raises(InputError, match=match):
        accumulate_moment(source, rule, max_rows=8, workers=workers)
    with pytest.raises(InputError, match=match):
        LocalMoment(source, rule, choice=PRODUCTS).trace()
    with pytest.raises(InputError, match="at row 42"):
        LocalMoment(source, rule, choice=PRODUCTS).product(np.eye(6))


def test_masked_cells_are_missing() -> None:
    rows = np.ma.masked_array(spread_rows(20, 3), mask=False)
    rows[4, 1] = np.ma.masked
    with pytest.raises(InputError, match=r"column 2 .* missing value .* at row 5"):
        accumulate_moment(open_source(rows), RowTreatment(row_norm=1.0), max_rows=3)


def covariance_of(rows: Any) -> Any:
    wide = rows.astype(np.longdouble)
    moved = wide - wide.mean(axis=0)
    return (moved.T @ moved / len(rows)).astype(np.float64)


def test_blocks_far_from_the_first_lose_no_digits() -> None:
    rows = spread_rows(3000, 5, seed=8)
    rows[:64] = 0.0
    rows[64:] += 1e6
    found = accumulate_moment(open_source(rows), RowTreatment(), max_rows=64)
    np.testing.assert_allclose(found.covariance, covariance_of(rows), rtol=1e-13)
    drifting = spread_rows(3000, 5, seed=9) + np.linspace(0, 1e5, 3000)[:, None]
    found = accumulate_moment(open_source(drifting), RowTreatment(), max_rows=64)
    np.testing.assert_allclose(found.covariance, covariance_of(drifting), rtol=1e-13)


def test_normalised_rows_that_hardly_differ_keep_their_covariance() -> None:
    rows = spread_rows(2000, 4, seed=2) + 1e4
    unit = rows.astype(np.longdouble)
    unit /= np.sqrt((unit * unit).sum(axis=1))[:, None]
    found = accumulate_moment(open_source(rows), RowTreatment(normalize=True), max_rows=100)
    expected = covariance_of(unit)
    # A row is rounded to 1e-16 of its length, a covariance of size 1e-8 thus to 1e-12 and no better.
    np.testing.assert_allclose(found.covariance, expected, atol=1e-11 * np.abs(expected).max())


def test_one_row_has_no_covariance() -> None:
    found = accumulate_moment(open_source(np.array([[3.0, 4.0]])), RowTreatment(row_norm=1.0))
    np.testing.assert_array_equal(found.covariance, np.zeros((2, 2)))
    np.testing.assert_allclose(found.about(), np.outer([0.6, 0.8], [0.6, 0.8]), rtol=1e-14)
    assert found.n_clipped == 1


def test_rows_squared_together_are_bounded_in_memory() -> None:
    for width in (1, 100, 512, 2048, 4096, 100_000):
        assert gram_rows(width) <= 2**16
        assert gram_rows(width) * width * 8 <= 64 * 2**20
    assert gram_rows(512) == 4096
