"""The fused kernel: its own code, by Triton's interpreter where there is no GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums import fused
from fedpower.sums.device import open_device
from fedpower.sums.fused import WIDEST, fused_rows
from fedpower.sums.local import local_moment
from fedpower.sums.row_factors import factored_rows
from kernels import DEVICE, ON_GPU, import_kernel, interpreter, torch  # noqa: F401 - a fixture

pytestmark = pytest.mark.devices

import_kernel("fedpower.sums.fused_kernel")


def sample(n_rows: int, n_features: int) -> Any:
    rng = np.random.default_rng(n_features)
    rows = rng.standard_normal((n_rows, n_features)) / np.sqrt(n_features) * 1.02
    rows[3] = 0.0
    return rows.astype(np.float32)


def rules(n_features: int) -> list[RowTreatment]:
    center, scale = np.linspace(-0.1, 0.1, n_features), np.linspace(0.5, 2, n_features)
    return [
        RowTreatment(),
        RowTreatment(row_norm=1.0),
        RowTreatment(normalize=True),
        RowTreatment(center=center, scale=scale),
        RowTreatment(center=center, scale=scale, row_norm=1.1),
    ]


@pytest.mark.parametrize(("n_features", "rank"), [(7, 1), (100, 5), (130, 16), (300, 16), (517, 5)])
@pytest.mark.parametrize("place", range(5))
def test_the_kernel_s_products_are_numpy_s_to_float32(n_features: int, rank: int, place: int) -> None:
    rule = rules(n_features)[place]
    rows = sample(333, n_features)
    basis = np.linalg.qr(np.random.default_rng(2).standard_normal((n_features, rank)))[0]
    plain = local_moment(open_source(rows), rule, rank=1, steps=2, memory_limit=1)
    fused = fused_rows(torch.tensor(rows, device=DEVICE), rule, largest=1.0, smallest=1e-3)
    assert fused is not None
    for center in (None, plain.mean()):
        assert fused.takes(basis, center)
        expected = plain.product(basis, center)
        error = np.linalg.norm(fused.product(basis, center) / len(rows) - expected)
        assert error <= 2e-6 * np.linalg.norm(plain.product(basis))


def small(n_features: int, rule: RowTreatment, n_rows: int = 333) -> tuple[Any, Any, Any]:
    """Return rows as a tensor, a basis, and the product that NumPy gives."""
    rows = sample(n_rows, n_features)
    basis = np.linalg.qr(np.random.default_rng(2).standard_normal((n_features, 3)))[0]
    plain = local_moment(open_source(rows), rule, rank=1, steps=2, memory_limit=1)
    return torch.tensor(rows, device=DEVICE), basis, plain.product(basis) * n_rows


def test_shares_that_cannot_wait_for_each_other_are_added_up_by_two_launches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rule = RowTreatment(row_norm=1.0)
    rows, basis, expected = small(300, rule)
    made = fused_rows(rows, rule, largest=1.0, smallest=1e-3)
    assert made is not None
    assert made._launches(1) == [(True, True)]
    for few in (1, 3) if ON_GPU else (1,):
        monkeypatch.setattr(fused, "multiprocessors", lambda device, few=few: few)
        assert len(made._launches(3)) == (2 if few == 1 else 1)
        error = np.linalg.norm(made.product(basis, None) - expected)
        assert error <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("n_features", [40, 260])
def test_rows_of_several_launches_are_all_added_up(n_features: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "LAUNCH_VALUES", 150 * n_features)
    rule = RowTreatment(normalize=True)
    rows, basis, expected = small(n_features, rule)
    made = fused_rows(rows, rule, largest=1.0, smallest=1e-3)
    assert made is not None
    error = np.linalg.norm(made.product(basis, None) - expected)
    assert error <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("n_features", [20, 300])
def test_fewer_rows_than_a_tile_has_are_enough(n_features: int) -> None:
    rule = RowTreatment(row_norm=1.0)
    rows, basis, expected = small(n_features, rule, n_rows=5)
    made = fused_rows(rows, rule, largest=1.0, smallest=1e-3)
    assert made is not None
    error = np.linalg.norm(made.product(basis, None) - expected)
    assert error <= 2e-6 * np.linalg.norm(expected)


@pytest.mark.parametrize("rule", [RowTreatment(row_norm=1.0), RowTreatment(normalize=True)])
@pytest.mark.parametrize("scale", [None, np.linspace(0.5, 2, 600)])
def test_wide_rows_are_multiplied_by_their_factors(rule: RowTreatment, scale: Any) -> None:
    rule = replace(rule, scale=scale)
    rows = sample(1234, 600)
    device = open_device(DEVICE, single=True)
    tensor = torch.tensor(rows, device=DEVICE)
    found = factored_rows(tensor, rule, device, largest=1.0, smallest=1e-3)
    assert found is not None
    plain = local_moment(open_source(rows), rule, rank=1, steps=2, memory_limit=1)
    basis = np.linalg.qr(np.random.default_rng(2).standard_normal((600, 20)))[0]
    for center in (None, plain.mean()):
        assert found.takes(basis, center)
        expected = plain.product(basis, center)
        error = np.linalg.norm(found.product(basis, center) / len(rows) - expected)
        assert error <= 2e-6 * np.linalg.norm(plain.product(basis))
    assert not found.takes(basis, np.full(600, 3.0))
    for unfit in (RowTreatment(), replace(rule, center=np.ones(600))):
        assert factored_rows(tensor, unfit, device, largest=1.0, smallest=1e-3) is None
    assert factored_rows(tensor, rule, device, largest=1e20, smallest=1e-3) is None


@pytest.mark.parametrize("scale", [1e-12, 1e12])
def test_rows_of_any_ordinary_length_keep_their_digits(scale: float) -> None:
    rows = (sample(200, 20).astype(np.float64) * scale).astype(np.float32)
    rows[::2] *= np.float32(1e-3)
    basis = np.eye(20)[:, :4] * 100.0
    for rule in (RowTreatment(), RowTreatment(normalize=True)):
        plain = local_moment(open_source(rows), rule, rank=1, steps=2, memory_limit=1)
        fused = fused_rows(torch.tensor(rows, device=DEVICE), rule, largest=scale, smallest=scale * 1e-5)
        if scale < 1 and rule.normalize:
            assert fused is None
            continue
        assert fused is not None
        expected = plain.product(basis)
        error = np.linalg.norm(fused.product(basis, None) / len(rows) - expected)
        assert error <= 2e-6 * np.linalg.norm(expected)


def test_a_silo_takes_the_kernel_for_resident_float32_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sample(300, 40)
    calls: list[int] = []
    original = fused.Fused.product

    def counted(self: Any, basis: Any, center: Any) -> Any:
        calls.append(basis.shape[1])
        return original(self, basis, center)

    monkeypatch.setattr(fused.Fused, "product", counted)
    tensor = open_source(torch.tensor(rows, device=DEVICE))
    rule = RowTreatment(row_norm=1.0)

    def silo(source: Any, single: bool) -> Any:
        device = open_device(DEVICE, single=single)
        made = local_moment(source, rule, rank=1, steps=2, memory_limit=1, device=device)
        made.prepare()
        return made

    plain = local_moment(open_source(rows), rule, rank=1, steps=2, memory_limit=1)
    basis = np.eye(40)[:, :3]
    np.testing.assert_allclose(silo(tensor, True).product(basis), plain.product(basis), atol=1e-8)
    assert calls == [3]
    np.testing.assert_allclose(silo(tensor, False).product(basis), plain.product(basis), rtol=0, atol=1e-14)
    silo(tensor, True).product(np.eye(40)[:, :17])
    assert calls == [3]


def test_rows_the_kernel_is_not_for_are_left_to_others() -> None:
    rule = RowTreatment(row_norm=1.0)
    wide = torch.zeros((2, WIDEST + 1), device=DEVICE)
    assert fused_rows(wide, rule, largest=1.0, smallest=1.0) is None
    double = torch.zeros((2, 4), dtype=torch.float64, device=DEVICE)
    assert fused_rows(double, rule, largest=1.0, smallest=1.0) is None
    flat = torch.zeros((4, 2), device=DEVICE).T
    assert fused_rows(flat, rule, largest=1.0, smallest=1.0) is None
    rows = torch.zeros((4, 4), device=DEVICE)
    assert fused_rows(rows, rule, largest=1e20, smallest=1.0) is None
    fused = fused_rows(rows, rule, largest=1.0, smallest=1.0)
    assert fused is not None
    assert not fused.takes(np.zeros((4, 2)), np.full(4, 1e3))
