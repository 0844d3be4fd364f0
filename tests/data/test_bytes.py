"""Sums of whole numbers in bytes: the kernel itself needs a GPU, where its sums lie does not."""

from typing import Any

import numpy as np
import pytest
from test_limbs import rules, sample

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.device_bytes import ByteSums, _Form, _gather
from fedpower.sums.device_exact import device_sums
from fedpower.sums.exact_moment import exact_moment
from fedpower.sums.lattice_rows import LatticeRows, RowLattice
from kernels import ON_GPU, torch

pytestmark = pytest.mark.devices

gpu = pytest.mark.skipif(not ON_GPU, reason="the kernel is compiled for a GPU and run on it")

WIDTHS = [1, 2, 15, 16, 17, 33, 48, 64, 65, 80, 96, 100, 101, 112, 127, 128]


def form(width: int) -> _Form:
    return _Form(
        **{"width": width, "narrow": True, "center": False, "gain": False, "normalize": False},
        **{"chunk": 4, "stride": width, "shared": 227 * 2**10},
    )


@pytest.mark.parametrize("width", WIDTHS)
def test_every_pair_of_columns_has_one_sum_of_every_weight(width: int) -> None:
    """Tiles are taken from a list of warps, lanes and numbers: none may be taken twice or left out."""
    of = form(width)
    places = _gather(of, "cpu").numpy()
    lower = places[:, *np.tril_indices(width)]
    assert np.unique(lower).size == lower.size
    assert lower.max() < np.prod(of.squares)
    assert np.array_equal(places, places.transpose(0, 2, 1))


@pytest.mark.parametrize("width", WIDTHS)
def test_every_column_has_one_total_of_a_warp(width: int) -> None:
    of = form(width)
    assert np.array_equal(np.sort(of.columns().flatten()), np.arange(64 * of.groups))


def on_gpu(given: Any, rule: RowTreatment) -> Any:
    assert ByteSums.takes(given, rule, LatticeRows(rule, given.shape[1]))
    return device_sums(open_source(given), rule, open_device("cuda"))


@gpu
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", WIDTHS)
def test_the_kernel_s_sums_are_the_processor_s_integers(width: int, dtype: Any) -> None:
    rows = sample(3001, width).astype(dtype)
    for rule in rules(width):
        expected = exact_moment(open_source(rows.astype(np.float64)), rule)
        assert on_gpu(torch.tensor(rows, device="cuda"), rule) == expected
        assert expected.n_clipped > 0 or rule.normalize


@gpu
def test_rows_of_few_different_values_are_decided_exactly() -> None:
    """Their norms lie on the ends of cells, and rounding makes many of them too long."""
    rng = np.random.default_rng(1)
    rows = rng.integers(0, 3, (40_000, 90)).astype(np.float32)
    for rule in (RowTreatment(normalize=True), RowTreatment(row_norm=6.0)):
        expected = exact_moment(open_source(rows), rule)
        assert on_gpu(torch.tensor(rows, device="cuda"), rule) == expected


@gpu
@pytest.mark.parametrize("first", [0, 1, 2, 4])
def test_rows_may_lie_anywhere_and_apart(first: int) -> None:
    rows = sample(1500, 72).astype(np.float32)
    rule = rules(60)[0]
    given = torch.tensor(rows, device="cuda")[:, first : first + 60]
    expected = exact_moment(open_source(rows[:, first : first + 60]), rule)
    assert on_gpu(given, rule) == expected


@gpu
def test_sums_over_more_rows_than_a_word_holds_are_exact() -> None:
    rule = RowTreatment(row_norm=1.0)
    row = torch.linspace(-0.1, 0.2, 24, device="cuda")
    found = on_gpu(row.repeat(2**22 + 100_003, 1), rule)
    one = exact_moment(open_source(row.cpu().numpy()[None]), rule)
    assert found.n_rows == 2**22 + 100_003
    assert np.array_equal(found.total, found.n_rows * one.total)
    assert np.array_equal(found.squares.to_ints(), found.n_rows * one.squares.to_ints())


@gpu
def test_a_missing_value_is_refused_by_its_place() -> None:
    rows = sample(5000, 20).astype(np.float32)
    rows[4321, 7] = np.nan
    with pytest.raises(InputError, match=r"column 8 .* at row 4322"):
        on_gpu(torch.tensor(rows, device="cuda"), RowTreatment(row_norm=1.0))


@gpu
def test_rows_that_the_kernel_is_not_for_go_another_way() -> None:
    rows, rule = torch.zeros((9, 4), device="cuda"), rules(4)[0]
    ends = {"low": np.full(4, -1.0), "high": np.full(4, 1.0), "center": np.zeros(4)}
    lattice = LatticeRows(rule, 4)
    assert ByteSums.takes(rows, rule, lattice)
    assert not ByteSums.takes(rows, RowTreatment(row_norm=1.0, **ends), lattice)
    assert not ByteSums.takes(rows.half(), rule, lattice)
    assert not ByteSums.takes(rows.T, rule, LatticeRows(rule, 9))
    assert not ByteSums.takes(rows, rule, LatticeRows(rule, 4, lattice=RowLattice(22)))
    assert not ByteSums.takes(torch.zeros((2, 129), device="cuda"), rule, lattice)
    assert not ByteSums.takes(rows.cpu(), rule, lattice)
