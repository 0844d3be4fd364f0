"""Rows on a PyTorch device: the CPU's numbers, in the precision that privacy asks for."""

import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from scipy import sparse

from fedpower import CodeBook, FedPCA
from fedpower.engines.inprocess import read_silos
from fedpower.exceptions import InputError
from fedpower.protocol.study import Study
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.device import TorchLatticeSum, open_device
from fedpower.sums.lattice import LatticeSum
from fedpower.sums.local import KernelChoice, LocalMoment, local_moment

pytestmark = pytest.mark.devices

torch = pytest.importorskip("torch")

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
RULES = [
    RowTreatment(),
    RowTreatment(center=np.linspace(-1, 1, 12), scale=np.linspace(0.5, 2, 12)),
    RowTreatment(row_norm=4.0),
    RowTreatment(center=np.linspace(-1, 1, 12), scale=np.linspace(0.5, 2, 12), row_norm=4.0),
    RowTreatment(normalize=True),
]


def sample(n_rows: int = 20_011) -> Any:
    rows = np.random.default_rng(0).standard_normal((n_rows, 12)) * np.geomspace(2, 0.2, 12) + 0.5
    rows[7] = 0.0
    return rows


def kernels(source: Any, rule: RowTreatment, device: str | None) -> list[Any]:
    return [
        LocalMoment(source, rule, KernelChoice(kind=kind), device=device)
        for kind in ("covariance", "product")
    ]


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("center", [None, np.full(12, 0.1)], ids=["origin", "centre"])
def test_a_device_answers_as_numpy_does(rule, center):
    rows = sample()
    basis = np.linalg.qr(np.random.default_rng(1).standard_normal((12, 3)))[0]
    device = open_device(DEVICE)
    forms = (rows, torch.tensor(rows), torch.tensor(rows, device=DEVICE))
    for place, plain in enumerate(kernels(open_source(rows), rule, None)):
        for form in forms:
            found = kernels(open_source(form), rule, device)[place]
            expected = plain.product(basis, center)
            np.testing.assert_allclose(found.product(basis, center), expected, rtol=0, atol=1e-12)
            np.testing.assert_allclose(found.summary.mean, plain.summary.mean, rtol=0, atol=1e-12)
            assert found.summary.trace(center) == pytest.approx(plain.summary.trace(center), rel=1e-12)
            assert (found.n_clipped, found.n_rows) == (plain.n_clipped, plain.n_rows)


@pytest.mark.skipif(DEVICE == "cpu" and find_spec("triton") is None, reason="there is no Triton")
@pytest.mark.parametrize("width", [3, 50, 130])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_the_tensor_cores_sums_are_the_processor_s(width, dtype, monkeypatch):
    """By Triton's interpreter where there is no GPU; a row of extreme length is summed by PyTorch."""
    if DEVICE == "cpu":
        monkeypatch.setenv("TRITON_INTERPRET", "1")
        monkeypatch.delitem(sys.modules, "fedpower.sums.triton_kernel", raising=False)
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((301, width)).astype(dtype)
    rows[5], rows[6] = 0.0, rows[6] * (1e30 if dtype is np.float32 else 1e200)
    center, scale = rng.standard_normal(width), rng.uniform(0.5, 2, width)
    ranged = {"low": center - 1, "high": center + 2}
    for rule in (
        RowTreatment(row_norm=width**0.5),
        RowTreatment(normalize=True),
        RowTreatment(row_norm=width**0.5, center=center, scale=scale, **ranged),
    ):
        expected, found = LatticeSum(rule, width), TorchLatticeSum(rule, width)
        for part in (rows, rows[:40]):
            expected.add(part.astype(np.float64))
            found.add(torch.tensor(part, device=DEVICE))
        one, two = expected.result(), found.result()
        assert (one.n_rows, one.n_clipped) == (two.n_rows, two.n_clipped)
        # A norm may be rounded otherwise, and a cell then be truncated to the integer beside it.
        assert np.abs(one.total - two.total).max() <= 341
        np.testing.assert_allclose(two.to_float().about(), one.to_float().about(), atol=2.0**-19)


def test_a_private_fit_bounds_and_sums_float32_rows_in_float64():
    rows = sample().astype(np.float32)
    rule = RowTreatment(row_norm=4.0)
    tensor = open_source(torch.tensor(rows, device=DEVICE))
    study = Study(
        columns=None, n_features=12, iteration_rank=3, noise="step", epsilon=1.0, delta=1e-6, n_steps=20
    )
    found = read_silos(study, {"north": tensor}, rule, device=DEVICE)["north"]
    assert "in float64" in found.choice.reason
    plain = local_moment(open_source(rows), rule, rank=3, steps=20)
    np.testing.assert_allclose(found.moment(), plain.moment(), rtol=0, atol=1e-14)


def test_a_fit_on_a_device_is_the_cpu_s_fit():
    rows = sample(4000)
    silos = [rows[:1500], rows[1500:]]
    plain = FedPCA(3, epsilon=float("inf")).fit_silos(silos)
    tensors = [torch.tensor(part, device=DEVICE) for part in silos]
    for given in (silos, tensors):
        found = FedPCA(3, epsilon=float("inf"), device=DEVICE).fit_silos(given)
        np.testing.assert_allclose(found.components_, plain.components_, rtol=0, atol=1e-10)
        np.testing.assert_allclose(found.explained_variance_, plain.explained_variance_, rtol=1e-12)
    private = FedPCA(3, epsilon=1.0, codebook=CodeBook(row_norm=8.0), device=DEVICE).fit_silos(tensors)
    assert private.privacy_.is_private
    assert all("in float64" in reason for reason in private.kernels_.values())


def test_a_missing_value_is_named_and_told_by_place():
    rows = sample(300)
    rows[123, 4] = np.nan
    for form in (rows, torch.tensor(rows), torch.tensor(rows).float()):
        silo = local_moment(
            open_source(form, name="silo 'north'"), rank=1, steps=9, device=open_device(DEVICE)
        )
        with pytest.raises(InputError, match=r"column 5 of silo 'north' .* at row 124"):
            silo.prepare()


def test_what_a_device_cannot_do_is_refused_in_one_sentence():
    with pytest.raises(InputError, match=r"device must be one that PyTorch has here.*'warp'"):
        open_device("warp")
    with pytest.raises(InputError, match="device must be text, got 3"):
        FedPCA(2, epsilon=1.0, device=3).fit_silos([sample(50)])  # type: ignore[arg-type]
    source = open_source(sparse.csr_array(sample(50)))
    with pytest.raises(InputError, match="must be dense, got sparse rows; leave the device"):
        local_moment(source, rank=1, steps=1, device=open_device(DEVICE))
    with pytest.raises(InputError, match=r"must be a dense tensor, got layout torch\.sparse_coo"):
        open_source(torch.tensor(sample(9)).to_sparse())
    with pytest.raises(InputError, match="must hold real numbers, got complex"):
        open_source(torch.tensor(sample(9)).to(torch.complex64))
    with pytest.raises(InputError, match="2-d array of rows by columns, got 1-d"):
        open_source(torch.ones(3))
