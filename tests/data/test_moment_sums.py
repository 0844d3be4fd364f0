"""Moments and products of treated rows in float64: every path against the plain formula, and the bits."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower.exceptions import InputError
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source
from fedpower.rows.source import largest_row_norm
from fedpower.rules.treatment import RowTreatment
from fedpower.sums import local
from fedpower.sums.local import KernelChoice, LocalMoment, choose_kernel
from problems import float_moment

PRODUCTS = KernelChoice(kind="product", reason="none is made")
ROWS = arrays(
    np.float64,
    st.tuples(st.integers(1, 40), st.integers(1, 7)),
    elements=st.floats(-100, 100, allow_subnormal=False).map(lambda x: x if abs(x) > 1e-6 else 0.0),
)


def spread_rows(n_rows: int, width: int, seed: int = 0) -> Any:
    rng = np.random.default_rng(seed)
    return rng.standard_normal((n_rows, width)) * np.geomspace(3, 0.3, width)


def treated_plainly(rows: Any, rule: RowTreatment) -> Any:
    """The definition, one row at a time and without a margin."""
    shifted = rows if rule.center is None else rows - rule.center
    shifted = shifted if rule.scale is None else shifted / rule.scale
    norms = np.array([np.sqrt(np.sum(row * row)) for row in shifted])
    if rule.normalize:
        return shifted / np.where(norms > 0, norms, 1.0)[:, None]
    if rule.row_norm is not None:
        return shifted / np.maximum(norms, rule.row_norm)[:, None]
    return shifted


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
def test_every_path_gives_the_moment_of_the_bounded_rows(rows, data):
    rule = data.draw(rules(rows.shape[1]))
    size, workers = data.draw(st.integers(1, 50)), data.draw(st.integers(1, 3))
    forms = [rows, np.asfortranarray(rows), sparse.csr_array(rows)]
    source = open_source(data.draw(st.sampled_from(forms)))
    treated = treated_plainly(rows, rule)
    expected = treated.T @ treated / len(rows)
    found = float_moment(source, rule, max_rows=size, workers=workers)
    others = float_moment(source, rule, max_rows=size, workers=4 - workers)
    np.testing.assert_array_equal(found.covariance, others.covariance)
    close = {"rtol": 1e-11, "atol": 1e-11 * max(1.0, float(np.abs(expected).max()))}
    np.testing.assert_allclose(found.about(), expected, **close)
    np.testing.assert_array_equal(found.covariance, found.covariance.T)
    np.testing.assert_allclose(found.mean, treated.mean(axis=0), **close)
    assert (found.n_rows, found.n_clipped) == (len(rows), rule.apply(rows)[1])
    product = LocalMoment(source, rule, choice=PRODUCTS)
    basis = np.linspace(-1, 1, rows.shape[1])[:, None]
    np.testing.assert_allclose(product.product(basis), expected @ basis, **close)
    assert product.summary.trace() == pytest.approx(np.trace(expected), rel=1e-11, abs=close["atol"])
    late = np.linspace(-0.2, 0.3, rows.shape[1])
    about = (treated - late).T @ (treated - late) / len(rows)
    np.testing.assert_allclose(product.product(basis, late), about @ basis, **close)
    np.testing.assert_allclose(found.about(late), about, **close)


def test_rows_given_are_never_written_to():
    for order in "CF":
        rows = np.array(spread_rows(200, 5) + 3, order=order)  # type: ignore[call-overload]
        kept = rows.copy()
        for rule in (RowTreatment(), RowTreatment(row_norm=0.5), RowTreatment(center=np.ones(5))):
            float_moment(open_source(rows), rule, max_rows=16)
            LocalMoment(open_source(rows), rule, choice=PRODUCTS).product(np.eye(5), np.ones(5))
        np.testing.assert_array_equal(rows, kept)


@pytest.mark.parametrize("workers", [1, 2])
@pytest.mark.parametrize("rule", [RowTreatment(), RowTreatment(row_norm=2.0, scale=np.full(6, 2.0))])
@pytest.mark.parametrize(("value", "what"), [(np.nan, "a missing value"), (-np.inf, "an infinite value")])
def test_a_value_that_is_no_number_is_refused_with_its_place(value, what, rule, workers):
    rows = spread_rows(100, 6)
    rows[41, 2] = value
    match = rf"column 3 of silo 'north' must hold finite numbers, got {what} .*at row 42"
    source = open_source(rows, name="silo 'north'")
    with pytest.raises(InputError, match=match):
        float_moment(source, rule, max_rows=8, workers=workers)
    with pytest.raises(InputError, match=match):
        LocalMoment(source, rule, choice=PRODUCTS).prepare()
    with pytest.raises(InputError, match="at row 42"):
        LocalMoment(source, rule, choice=PRODUCTS).product(np.eye(6))
    masked = np.ma.masked_invalid(rows)
    with pytest.raises(InputError, match=r"column 3 .* missing value .* at row 42"):
        float_moment(open_source(masked), rule, max_rows=8)


def covariance_of(rows: Any) -> Any:
    wide = rows.astype(np.longdouble)
    about = wide - wide.mean(axis=0)
    return (about.T @ about / len(rows)).astype(np.float64)


def test_rows_far_from_the_origin_and_from_each_other_lose_no_digits():
    far = spread_rows(3000, 5, seed=8)
    far[64:] += 1e6
    drifting = spread_rows(3000, 5, seed=9) + np.linspace(0, 1e5, 3000)[:, None]
    for rows in (far, drifting):
        found = float_moment(open_source(rows), RowTreatment(), max_rows=64)
        np.testing.assert_allclose(found.covariance, covariance_of(rows), rtol=1e-13)
    rows = far[64:]
    for kernel in (
        LocalMoment(open_source(rows), RowTreatment()),
        LocalMoment(open_source(rows), RowTreatment(), PRODUCTS),
    ):
        by_product = kernel.product(np.eye(5), kernel.summary.mean)
        np.testing.assert_allclose(by_product, covariance_of(rows), rtol=1e-8, atol=1e-8)
    rows = spread_rows(2000, 4, seed=2) + 1e4
    unit = rows.astype(np.longdouble)
    unit /= np.sqrt((unit * unit).sum(axis=1))[:, None]
    expected = covariance_of(unit)
    found = float_moment(open_source(rows), RowTreatment(normalize=True), max_rows=100)
    # A row is rounded to 1e-16 of its length, a covariance of size 1e-8 thus to 1e-12 and no better.
    np.testing.assert_allclose(found.covariance, expected, atol=1e-11 * np.abs(expected).max())


def test_what_does_not_fit_is_refused(monkeypatch):
    plain = LocalMoment(open_source(np.ones((3, 4)), name="silo 'north'"), RowTreatment())
    np.testing.assert_array_equal(plain.moment(), np.ones((4, 4)))
    with pytest.raises(InputError, match="finite 4×r matrix, got shape"):
        plain.product(np.eye(3))
    with pytest.raises(InputError, match="center must be 4 finite numbers"):
        plain.summary.trace(np.zeros(3))
    monkeypatch.setattr(local, "MEMORY_LIMIT", 0)
    assert choose_kernel(3, 4, rank=1, steps=1).kind == "product"
    with pytest.raises(InputError, match=r"covariance of silo 'north' must fit in .*; leave columns out"):
        LocalMoment(plain.source, RowTreatment(), PRODUCTS).moment()


def test_the_choice_follows_size_steps_and_memory():
    def kind(**changes: Any) -> str:
        facts = {"n_rows": 100_000, "n_features": 100, "rank": 5, "steps": 50} | changes
        choice = choose_kernel(**facts)
        assert f"d={facts['n_features']}" in choice.reason
        return choice.kind

    assert kind() == kind(n_rows=None) == "covariance"
    assert kind(n_rows=50, n_features=5000, steps=1) == "product"
    assert kind(n_features=20_000) == "product"
    assert kind(n_features=5000, density=0.001, steps=2, n_rows=10_000) == "product"


@given(ROWS, st.integers(1, 9))
@settings(max_examples=15)
def test_a_fingerprint_sees_rows_and_order_and_nothing_else(rows, row):
    digest = fingerprint(open_source(rows))
    assert digest == fingerprint(open_source(sparse.coo_array(rows)))
    assert digest == fingerprint(open_source(np.asfortranarray(np.where(rows == 0, -0.0, rows))))
    changed = rows.copy()
    changed[row % len(rows), 0] += 1
    assert digest != fingerprint(open_source(changed))
    assert digest != fingerprint(open_source(np.vstack([rows, rows[:1]])))
    wide = np.zeros((5, 5000))
    wide[[0, 1, 1, 4], [3, 0, 4999, 7]] = [1.0, 2.0, -3.0, 4.0]
    assert fingerprint(open_source(wide)) == fingerprint(open_source(sparse.csr_array(wide)))
    assert fingerprint(open_source(wide)) != fingerprint(open_source(np.roll(wide, 1, axis=0)))


def test_the_largest_row_norm_is_that_of_the_treated_rows():
    rows = np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    assert largest_row_norm(open_source(rows), RowTreatment()) == 10.0
    assert largest_row_norm(open_source(rows), RowTreatment(scale=[2.0, 2.0])) == 5.0
