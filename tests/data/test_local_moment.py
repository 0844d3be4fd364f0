"""Moment and product kernels: identities between them, accuracy far from the origin, the choice."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment, largest_row_norm
from fedpower.sums.kernel import KernelChoice, block_rows, choose_kernel
from fedpower.sums.local import LocalMoment, local_moment
from fedpower.sums.moment import accumulate_moment
from fedpower.sums.reduce import full_blocks

PRODUCTS = KernelChoice(kind="product", reason="none is made")
BLOCKS = arrays(
    np.float64,
    st.tuples(st.integers(1, 30), st.integers(1, 6)),
    elements=st.floats(-100, 100, allow_subnormal=False),
)
RULES = [RowTreatment(), RowTreatment(row_norm=50.0), RowTreatment(normalize=True)]


def moments(rows: Any, rule: RowTreatment | None = None, size: int = 7) -> Any:
    return accumulate_moment(open_source(rows), rule or RowTreatment(), max_rows=size)


@given(BLOCKS, st.sampled_from(RULES), st.integers(1, 40))
def test_the_moment_is_that_of_the_treated_rows_whatever_the_blocks(
    rows: Any, rule: RowTreatment, size: int
) -> None:
    treated = np.asarray(rule.apply(rows)[0])
    for form in (rows, sparse.csr_array(rows)):
        found = moments(form, rule, size)
        expected = treated.T @ treated / len(rows)
        np.testing.assert_allclose(found.about(), expected, rtol=1e-10, atol=1e-10)
        np.testing.assert_allclose(found.mean, treated.mean(axis=0), rtol=1e-10, atol=1e-10)
        np.testing.assert_array_equal(found.about(), found.about().T)
        assert found.n_clipped == rule.apply(rows)[1]


@given(BLOCKS, st.randoms(use_true_random=False))
def test_the_order_of_rows_does_not_matter(rows: Any, random: Any) -> None:
    order = list(range(len(rows)))
    random.shuffle(order)
    one, two = moments(rows), moments(rows[order])
    np.testing.assert_allclose(one.about(), two.about(), rtol=1e-10, atol=1e-9)


@given(BLOCKS, st.data())
def test_the_moments_of_two_parts_average_to_the_whole(rows: Any, data: Any) -> None:
    if len(rows) < 2:
        return
    cut = data.draw(st.integers(1, len(rows) - 1))
    parts = moments(rows[:cut]).about() * cut + moments(rows[cut:]).about() * (len(rows) - cut)
    np.testing.assert_allclose(parts / len(rows), moments(rows).about(), rtol=1e-10, atol=1e-9)


@given(BLOCKS)
def test_the_shift_identity_gives_the_moment_about_any_centre(rows: Any) -> None:
    center = np.linspace(-3, 5, rows.shape[1])
    direct = (rows - center).T @ (rows - center) / len(rows)
    found = moments(rows)
    np.testing.assert_allclose(found.about(center), direct, rtol=1e-10, atol=1e-9)
    assert found.trace(center) == pytest.approx(np.trace(direct), rel=1e-10, abs=1e-9)
    again = moments(rows, RowTreatment(center=center))
    np.testing.assert_allclose(again.about(), direct, rtol=1e-10, atol=1e-9)


def test_rows_far_from_the_origin_lose_no_digits() -> None:
    rng = np.random.default_rng(3)
    rows = rng.standard_normal((4000, 6)) + 1e6
    wide = rows.astype(np.longdouble)
    center = wide.mean(axis=0)
    exact = ((wide - center).T @ (wide - center) / len(rows)).astype(np.float64)
    source = open_source(rows[np.argsort(rows[:, 0])])
    found = accumulate_moment(source, RowTreatment(), max_rows=128)
    np.testing.assert_allclose(found.about(found.mean), exact, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(found.mean, center.astype(np.float64), rtol=1e-15)
    basis = np.eye(6)
    for kernel in (local_moment(source, rank=1, steps=1000), local_moment(source, rank=6, steps=1)):
        by_product = kernel.product(basis, kernel.mean())
        np.testing.assert_allclose(by_product, exact, rtol=1e-8, atol=1e-8)


def both_kernels(rows: Any, rule: RowTreatment) -> list[Any]:
    source = open_source(rows)
    kernels = [
        local_moment(source, rule, rank=1, steps=10_000),
        local_moment(source, rule, rank=1, steps=2, memory_limit=1),
    ]
    assert [kernel.choice.kind for kernel in kernels] == ["moment", "product"]
    return kernels


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("center", [None, np.arange(8.0)], ids=["origin", "centre"])
@pytest.mark.parametrize("bound", [None, 4.0])
def test_both_kernels_answer_alike(form: Any, center: Any, bound: Any) -> None:
    rng = np.random.default_rng(5)
    rows = rng.standard_normal((300, 8)) * (rng.random((300, 8)) < 0.05) + 0.0
    rule = RowTreatment(center=center, scale=np.arange(1, 9), row_norm=bound)
    treated = np.asarray(rule.apply(rows)[0])
    expected = treated.T @ treated / 300
    basis = rng.standard_normal((expected.shape[0], 3))
    for kernel in both_kernels(form(rows), rule):
        np.testing.assert_allclose(kernel.product(basis), expected @ basis, atol=1e-12)
        np.testing.assert_allclose(kernel.mean(), treated.mean(axis=0), atol=1e-12)
        assert kernel.trace() == pytest.approx(np.trace(expected), rel=1e-12)
        assert kernel.n_rows == 300
        assert kernel.n_clipped == rule.apply(rows)[1]


@pytest.mark.parametrize("form", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
@pytest.mark.parametrize("first", [None, np.full(4, 0.5)], ids=["origin", "centre"])
def test_a_late_centre_is_subtracted_after_rows_are_bounded(form: Any, first: Any) -> None:
    rows = np.random.default_rng(6).standard_normal((200, 4)) + 2
    late, scale = np.array([0.1, 0.2, 0.0, -0.3]), np.array([1.0, 2, 1, 0.5])
    for bound in (None, 3.0):
        rule = RowTreatment(center=first, scale=scale, row_norm=bound)
        treated = np.asarray(rule.apply(rows)[0]) - late
        expected = treated.T @ treated / 200
        for kernel in both_kernels(form(rows), rule):
            np.testing.assert_allclose(kernel.product(np.eye(4), late), expected, atol=1e-12)
            assert kernel.trace(late) == pytest.approx(np.trace(expected), rel=1e-12)
        np.testing.assert_allclose(both_kernels(form(rows), rule)[0].moment(late), expected, atol=1e-12)


def test_a_moment_that_does_not_fit_is_refused() -> None:
    source = open_source(np.ones((3, 4)), name="silo 'north'")
    with pytest.raises(InputError, match=r"moment of silo 'north' must fit in .* memory_limit"):
        local_moment(source, rank=1, steps=1, memory_limit=10).moment()
    small = local_moment(source, rank=1, steps=1)
    np.testing.assert_array_equal(small.moment(), np.ones((4, 4)))


def test_centres_and_bases_that_do_not_fit_are_refused() -> None:
    silo = local_moment(open_source(np.ones((3, 4))), RowTreatment(normalize=True), rank=1, steps=1)
    with pytest.raises(InputError, match="finite 4×r matrix for these rows, got shape"):
        silo.product(np.eye(3))
    plain = local_moment(open_source(np.ones((3, 4))), rank=1, steps=1)
    with pytest.raises(InputError, match="center must be 4 finite numbers"):
        plain.trace(np.zeros(3))


def test_a_product_reads_the_source_once() -> None:
    class Counting:
        name, columns, n_features, n_rows = "counted", None, 3, None
        sparse, density, passes = False, 1.0, 0

        def blocks(self, max_rows: int) -> Any:
            type(self).passes += 1
            yield np.eye(3)

        def select(self, columns: Any, *, extra: str = "refuse") -> Any:
            raise NotImplementedError

    product = LocalMoment(Counting(), RowTreatment(), choice=PRODUCTS)
    product.product(np.eye(3))
    assert Counting.passes == 1
    assert product.trace() == pytest.approx(1.0)
    assert product.mean() == pytest.approx(1 / 3)
    assert Counting.passes == 2


def test_the_choice_follows_size_steps_and_memory() -> None:
    def kind(**changes: Any) -> str:
        facts = {"n_rows": 100_000, "n_features": 100, "rank": 5, "steps": 50} | changes
        choice = choose_kernel(**facts)
        assert f"d={facts['n_features']}" in choice.reason
        assert "MiB" in choice.reason
        return choice.kind

    assert kind() == "moment"
    assert kind(n_rows=None) == "moment"
    assert kind(n_rows=50, n_features=5000, steps=1) == "product"
    assert kind(n_features=20_000) == "product"
    assert kind(memory_limit=1000) == "product"
    assert kind(n_features=5000, density=0.001, steps=2, n_rows=10_000) == "product"
    assert kind(density=None) in ("moment", "product")


def test_blocks_take_about_four_mebibytes() -> None:
    assert block_rows(64) == 8192
    assert block_rows(1) == 65536
    assert block_rows(10_000) == 256
    assert block_rows(10**6) == 8
    assert block_rows(10**8) == 1
    assert block_rows(10**6, density=1e-5) > 10_000


@given(BLOCKS, st.integers(1, 9))
def test_a_fingerprint_sees_rows_and_order_and_nothing_else(rows: Any, row: int) -> None:
    digest = fingerprint(open_source(rows))
    assert digest == fingerprint(open_source(sparse.coo_array(rows)))
    assert digest == fingerprint(open_source(np.asfortranarray(np.where(rows == 0, -0.0, rows))))
    changed = rows.copy()
    changed[row % len(rows), 0] += 1
    assert digest != fingerprint(open_source(changed))
    assert digest != fingerprint(open_source(np.vstack([rows, rows[:1]])))


def test_wide_rows_have_one_fingerprint_dense_or_sparse() -> None:
    rows = np.zeros((5, 5000))
    rows[[0, 1, 1, 4], [3, 0, 4999, 7]] = [1.0, 2.0, -3.0, 4.0]
    matrix = sparse.csr_array(rows)
    matrix.data[0] = 1.0
    assert fingerprint(open_source(rows)) == fingerprint(open_source(matrix))
    shifted = np.roll(rows, 1, axis=0)
    assert fingerprint(open_source(rows)) != fingerprint(open_source(shifted))


def test_the_largest_row_norm_is_that_of_the_treated_rows() -> None:
    rows = np.array([[3.0, 4.0], [0.0, 1.0], [6.0, 8.0]])
    assert largest_row_norm(open_source(rows), RowTreatment()) == 10.0
    assert largest_row_norm(open_source(rows), RowTreatment(scale=[2.0, 2.0])) == 5.0


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.integers(1, 40))
def test_slivers_are_joined_into_blocks_worth_computing_on(sizes: list[int], most: int) -> None:
    rows = np.arange(float(sum(sizes)))[:, None]

    class Slivers:
        name, n_rows = "slivers", sum(sizes)

        def blocks(self, max_rows: int) -> Any:
            start = 0
            for size in sizes:
                for piece in range(0, size, max_rows):
                    yield rows[start + piece : start + min(piece + max_rows, size)]
                start += size

    blocks = list(full_blocks(Slivers(), most))  # type: ignore[arg-type]
    np.testing.assert_array_equal(np.vstack(blocks), rows)
    assert all(len(block) <= most for block in blocks)
    assert len(blocks) <= 2 * -(-len(rows) // most) + 1
    thin = [sparse.csr_array(block) for block in blocks]
    assert sum(block.shape[0] for block in thin) == len(rows)
