"""The kernels of the tensor cores: their own code, by Triton's interpreter where there is no GPU."""

from typing import Any

import numpy as np
import pytest

from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums import device_limbs
from fedpower.sums.device import open_device
from fedpower.sums.device_exact import device_sums
from fedpower.sums.device_limbs import LimbSums
from fedpower.sums.exact_moment import ExactSum, exact_moment
from fedpower.sums.lattice_rows import LatticeRows, RowLattice
from kernels import DEVICE, ON_GPU, import_kernel, interpreter, torch  # noqa: F401 - a fixture

pytestmark = pytest.mark.devices

import_kernel("fedpower.sums.limb_kernel")


def rules(width: int) -> list[RowTreatment]:
    center, scale = np.linspace(-0.3, 0.4, width), np.geomspace(0.3, 3.0, width)
    return [
        RowTreatment(row_norm=1.0),
        RowTreatment(normalize=True),
        RowTreatment(center=center, scale=scale, row_norm=1.1),
    ]


def sample(n_rows: int, width: int) -> Any:
    """Rows about the bound, with halves, denormals, zeros and values of every size among them."""
    rng = np.random.default_rng(width)
    rows = rng.standard_normal((n_rows, width)) / np.sqrt(width)
    rows[1] = 0.0
    rows[2:20] = rng.integers(-9, 9, (18, width)) / 2**21
    rows[20:30] *= 1e30
    rows[30:40] *= 1e-40
    rows[40:50] /= np.linalg.norm(rows[40:50], axis=1, keepdims=True)
    return rows


@pytest.fixture(autouse=True)
def _always_limbs(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a GPU narrow rows would go another way."""
    monkeypatch.setattr("fedpower.sums.device_exact._way", lambda *_: LimbSums)


def found(rows: Any, rule: RowTreatment) -> Any:
    given = torch.tensor(rows, device=DEVICE)
    assert LimbSums.takes(given, rule, LatticeRows(rule, rows.shape[1]))
    return device_sums(open_source(given), rule, open_device(DEVICE))


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("width", [1, 7, 64, 100, 128, 200, 512])
def test_the_limbs_products_are_the_processor_s_integers(width: int, dtype: Any) -> None:
    rows = sample(333, width).astype(dtype)
    for rule in rules(width):
        expected = exact_moment(open_source(rows.astype(np.float64)), rule)
        assert found(rows, rule) == expected
        assert expected.n_clipped > 0 or rule.normalize


@pytest.mark.parametrize("width", [1, 64, 100])
def test_sums_that_leave_float32_are_made_anew_of_fewer_rows(width: int) -> None:
    """All of a row's length in one column: 128 squares of the upper limb pass 2²⁴ in it."""
    rows = sample(700, width) * 1e-3
    rows[100:, 0] = 1.0
    rows[200:300, width // 2] = -0.99
    rule = RowTreatment(row_norm=1.0)
    sums = LimbSums(LatticeRows(rule, width), rule, width)
    sums.add(torch.tensor(rows, device=DEVICE), ExactSum(width, RowLattice()))
    assert bool(sums.anew.any())
    assert found(rows, rule) == exact_moment(open_source(rows), rule)


def test_sixteen_rows_of_the_largest_numbers_are_exact() -> None:
    """Σ h² = 16·2²⁰ = 2²⁴, which float32 holds, and not one more row."""
    rows = np.zeros((64, 3))
    rows[:, 1] = 1 - 2.0**-19  # below what counts as too long, so that it is rounded and not scaled
    rule = RowTreatment(row_norm=1.0)
    assert found(rows, rule) == exact_moment(open_source(rows), rule)
    assert found(rows, rule).squares.low[1, 1] == 64 * (2**20 - 2) ** 2


def test_blocks_chunks_and_programs_have_no_part_in_the_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = sample(1500, 40)
    rule = rules(40)[0]
    expected = exact_moment(open_source(rows), rule)
    monkeypatch.setattr(device_limbs, "_REPEATS", 3)
    monkeypatch.setattr(device_limbs, "_CHUNK", 3 * 128)
    monkeypatch.setattr(device_limbs, "_MOST_TILES", 2)
    given = open_source(torch.tensor(rows, device=DEVICE))
    for size in (1500, 400, 77):
        monkeypatch.setattr(LimbSums, "most_rows", staticmethod(lambda _, n=size: n))
        monkeypatch.setattr("fedpower.sums.device.block_rows", lambda *_, n=size: n)
        assert device_sums(given, rule, open_device(DEVICE)) == expected


def test_rows_that_the_kernels_are_not_for_go_another_way() -> None:
    rows, rule = torch.zeros((9, 4), device=DEVICE), rules(4)[0]
    ends = {"low": np.full(4, -1.0), "high": np.full(4, 1.0), "center": np.zeros(4)}
    bounded = RowTreatment(row_norm=1.0, **ends)
    lattice = LatticeRows(rule, 4)
    assert LimbSums.takes(rows, rule, lattice)
    assert not LimbSums.takes(rows, bounded, lattice)
    assert not LimbSums.takes(rows.half(), rule, lattice)
    assert not LimbSums.takes(rows.T, rule, LatticeRows(rule, 9))
    assert not LimbSums.takes(rows, rule, LatticeRows(rule, 4, lattice=RowLattice(22)))
    assert not LimbSums.takes(torch.zeros((2, 2049), device=DEVICE), rule, lattice)


def test_sums_beyond_a_64_bit_word_are_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lattice of 2²⁰ whose word is said to hold 100 rows: they come in two words, and are the same."""
    rows, rule = sample(500, 40), rules(40)[1]
    whole = exact_moment(open_source(rows), rule)
    lattice = LatticeRows(rule, 40)
    sums = LimbSums(lattice, rule, 40)
    outcome = sums.add(torch.tensor(rows, device=DEVICE), ExactSum(40, RowLattice()))
    one = sums._squares()
    monkeypatch.setattr(RowLattice, "word_rows", 100)
    two = sums._squares()
    assert one.high is None
    assert two.high is not None
    assert one.two().equals(two)
    if outcome.counts[0] == 0:
        assert one.equals(whole.squares)


def test_column_sums_of_many_rows_of_one_sign_are_exact() -> None:
    """More than 2¹¹ rows of the largest number to a program: their sum is beyond an int32."""
    rows = np.tile([1 - 2.0**-18, 0.0, -1e-3], (9_000_000 if ON_GPU else 50_000, 1))
    total = found(rows, RowTreatment(row_norm=1.0)).total
    assert total.tolist() == [len(rows) * round(number * 2**20) for number in rows[0]]
