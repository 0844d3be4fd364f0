"""A PyTorch device for a silo's arithmetic: rows moved to it in blocks, and sums over them there."""

import functools
import importlib.util
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.linalg.words import Words
from fedpower.rows.arrays import ArraySource, PositionalSource
from fedpower.rows.columns import require_count, require_exact, require_finite, require_matrix
from fedpower.rows.source import Block, Matrix, RowSource, Vector
from fedpower.rows.treatment import TINY, RowTreatment, margin
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.exact_moment import ExactMoments, frozen_sums
from fedpower.sums.kernel import block_rows as cpu_block_rows
from fedpower.sums.lattice_rows import RowLattice
from fedpower.sums.moment import Moments, require_center
from fedpower.sums.product import RowSums, require_basis
from fedpower.sums.reduce import S, full_blocks, merged

BLOCK_BYTES = 512 * 2**20
"""Bytes of a block in float64 on a device: enough to keep it busy while the next launch comes."""

MIN_ROWS, MAX_ROWS = 256, 2**20


@functools.cache
def torch() -> Any:
    """Return PyTorch, imported on first use."""
    return import_module("torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where and in which precision a silo's rows are multiplied."""

    name: str
    single: bool = False


def open_device(name: str, *, single: bool = False) -> Device:
    """Return the device of this name, or refuse one that is not there."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(
            f"device={name!r} must have PyTorch, got none installed; run {installing('torch')}, or leave "
            "the device out"
        )
    try:
        made = torch().empty(1, dtype=torch().float64, device=name)
        made += 1
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ValueError):
        raise InputError(
            f"device must be one that PyTorch has here and that computes in float64, got {name!r}; "
            "give 'cuda' or 'cpu', or leave it out"
        ) from None
    return Device(name=str(made.device), single=single)


def require_dense(source: RowSource) -> None:
    """Refuse sparse rows, which a device has no kernel for."""
    if source.sparse:
        raise InputError(
            f"{source.name} must be dense to be computed on a device, got sparse rows; leave the "
            "device out, the kernels for sparse rows are the CPU's"
        )


def precision(source: RowSource, device: Device) -> Any:
    """Return the dtype in which a source's rows are multiplied."""
    library = torch()
    given = None
    if isinstance(source, TensorSource):
        given = source.tensor.dtype
    elif isinstance(source, ArraySource) and source.array.dtype == np.float32:
        given = library.float32
    exact = not library.backends.cuda.matmul.allow_tf32
    return library.float32 if device.single and exact and given == library.float32 else library.float64


def block_rows(n_features: int, device: Device) -> int:
    """Return how many rows make a block: half a GiB on an accelerator, what fits a cache on the CPU."""
    if device.name == "cpu":
        return cpu_block_rows(n_features)
    return max(MIN_ROWS, min(MAX_ROWS, BLOCK_BYTES // (8 * n_features)))


def device_blocks(
    source: RowSource, device: Device, *, check: bool, watch: Watch = UNWATCHED
) -> Iterator[Any]:
    """Yield the rows as tensors on the device, in the precision in which they are multiplied."""
    dtype = precision(source, device)
    rows = block_rows(source.n_features, device)
    start = 0
    for block in _stored(source, rows):
        watch.saw(int(block.shape[0]))
        part = block.to(device=device.name, dtype=dtype)
        # A finite sum has finite terms; otherwise the CPU's check finds the place and the words.
        if check and not bool(torch().isfinite(part.sum())):
            cells = part.double().cpu().numpy()
            require_finite(cells, name=source.name, columns=source.columns, rows=start)
        if check and isinstance(source, TensorSource) and source.wide:
            cells = part.cpu().numpy()
            require_exact(cells, name=source.name, columns=source.columns, rows=start)
        yield part
        start += int(part.shape[0])
    require_count(source.name, source.n_rows, start)


def _stored(source: RowSource, rows: int) -> Iterator[Any]:
    """Yield tensors of the source's rows where and as they are stored, or float64 ones on the CPU."""
    if isinstance(source, TensorSource):
        for part in source.tensor.split(rows):
            yield part if source.keep is None else part[:, list(source.keep)]
    elif isinstance(source, ArraySource) and source.array.dtype == np.float32:
        for start in range(0, source.array.shape[0], rows):
            part = source.array[start : start + rows]
            cells = np.ma.filled(part, np.nan) if np.ma.isMaskedArray(part) else part
            kept = cells if source.keep is None else np.take(cells, np.array(source.keep), axis=1)
            yield torch().from_numpy(np.require(kept, np.float32, ["C", "W"]))
    else:
        for block in full_blocks(source, rows):
            yield torch().from_numpy(np.require(np.asarray(block), np.float64, ["C", "W"]))


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorSource(PositionalSource):
    """The rows of a 2-d tensor of any real dtype, wherever it is."""

    tensor: Any

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices as float64 arrays: views where the tensor is such on the CPU, copies elsewhere."""
        for start in range(0, self.tensor.shape[0], max_rows):
            part = self.tensor[start : start + max_rows]
            block = np.ascontiguousarray(part.double().cpu().numpy()).view()
            block.flags.writeable = False
            yield block


def is_tensor(data: Any) -> bool:
    """Whether the object is a PyTorch tensor, without importing PyTorch."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(data, torch.Tensor)


def tensor_source(tensor: Any, name: str) -> TensorSource:
    """Return the source of a tensor's rows; its gradients play no part."""
    if tensor.layout is not sys.modules["torch"].strided:
        raise InputError(
            f"{name} must be a dense tensor, got layout {tensor.layout}; give tensor.to_dense() or a "
            "SciPy sparse matrix"
        )
    kind = "c" if tensor.is_complex() else "f"
    require_matrix(name, tuple(tensor.shape), np.dtype(f"{kind}8"))
    rows, width = tensor.shape
    wide = not tensor.is_floating_point() and tensor.element_size() > 4
    return TensorSource(name=name, width=width, n_rows=rows, tensor=tensor.detach(), wide=wide)


FEW_ROWS, MANY_ROWS = 2**10, 2**13
"""Rows of a panel, whose products are summed within one matrix product, for small and large results."""

SMALL = 2**18
"""Numbers in a small result: one alone would not keep a device busy."""


def treat(treatment: RowTreatment, rows: Any) -> tuple[Any, int]:
    """Return the treated rows as a tensor of the same precision, and how many were clipped."""
    treated = rows
    if treatment.low is not None:
        treated = treated.clamp(like(treatment.low, rows), like(treatment.high, rows))
    if treatment.center is not None:
        treated = treated - like(treatment.center, rows)
    divisors = treatment.divisors(int(rows.shape[1]))
    if divisors is not None:
        treated = treated / like(divisors, rows)
    # A finite sum has finite terms, and takes one pass instead of three.
    suspect = treated is not rows and not bool(torch().isfinite(treated.sum()))
    if suspect and treatment.bounded:
        # As in `RowTreatment.apply`: a refusal would tell that there is such a row.
        treated = torch().nan_to_num(treated)
    elif suspect and not bool(torch().isfinite(treated).all()):
        raise InputError(
            "rows must stay finite when centred and scaled, got values beyond the range of their "
            "precision; give the columns in other units"
        )
    if not treatment.bounded:
        return treated, 0
    return _bounded(treated, normalize=treatment.normalize)


def like(values: Any, rows: Any) -> Any:
    """Return an array as a tensor of the rows' precision and place."""
    return torch().as_tensor(values.copy(), dtype=rows.dtype, device=rows.device)


def _bounded(rows: Any, *, normalize: bool) -> tuple[Any, int]:
    """Return the rows clipped to norm at most 1 and how many were longer, or all rows of norm 1."""
    library = torch()
    single = rows.dtype == library.float32
    slack = (int(rows.shape[1]) + 8) * 2.0**-23 if single else margin(int(rows.shape[1]))
    target = 1.0 if single else 1 - slack
    norms = library.linalg.vector_norm(rows, dim=1)
    extreme = ~library.isfinite(norms)
    if normalize:
        extreme = extreme | (norms < (1e-15 if single else TINY))
    if bool(extreme.any()):
        peaks = rows.abs().amax(dim=1)
        extreme = extreme & (peaks > 0)
        rows = rows / library.where(extreme, peaks, 1.0)[:, None]
        norms = library.linalg.vector_norm(rows, dim=1)
    chosen = norms > (0 if normalize else target)
    longer = 0 if normalize else int((extreme | (norms > 1 + slack)).sum())
    factors = library.where(chosen, target / library.where(chosen, norms, 1.0), 1.0)
    return rows * factors[:, None], longer


def sum_rows(rows: Any) -> Any:
    """Return Σ y over the rows as float64: panels in the rows' own precision, added up in float64."""
    return sum(stack.sum(dim=1).double().sum(dim=0) for stack in panels(rows, FEW_ROWS))


def sum_products(left: Any, right: Any) -> Any:
    """Return leftᵀ·right as float64: products of panels of at most 2¹³ rows, added up in float64."""
    size = _panel_rows(left.shape[1] * right.shape[1])
    return sum(
        torch().bmm(one.transpose(1, 2), two).sum(dim=0, dtype=torch().float64)
        for one, two in zip(panels(left, size), panels(right, size), strict=True)
    )


def _panel_rows(numbers: int) -> int:
    """Return how many rows make a panel where a product has so many numbers."""
    return FEW_ROWS if numbers <= SMALL else MANY_ROWS


def panels(rows: Any, size: int) -> list[Any]:
    """Return the rows as a stack of full panels and a stack of the one that is left."""
    count, width = rows.shape
    full = count - count % size
    stacks = [rows[:full].view(-1, size, width), rows[full:].view(1, count - full, width)]
    return [stack for stack in stacks if stack.shape[0] and stack.shape[1]]


class DeviceSums(RowSums):
    """Sums over a source's treated rows, computed on a device in float64 or, where asked for, float32."""

    def __init__(
        self, source: RowSource, treatment: RowTreatment, device: Device, watch: Watch = UNWATCHED
    ) -> None:
        require_dense(source)
        super().__init__(source, treatment, watch)
        self._device = device

    @property
    def where(self) -> str:
        """Where and in which precision, for the sentence about the kernel."""
        digits = "float32" if precision(self.source, self._device) == torch().float32 else "float64"
        return f"on {self._device.name} in {digits}"

    def sums(self) -> ExactMoments:
        """Return the sums over the bounded rows in whole numbers, from one pass."""
        total = self._on_device(lambda: TorchLatticeSum(self.treatment, self.source.n_features), check=True)
        return total.result()

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the moment about `center` times the basis."""
        width = self.source.n_features
        basis = require_basis(basis, width)
        shift = None if center is None else require_center(center, width)
        return self._on_device(lambda: TorchProductSum(self.treatment, basis, shift), check=False).result()

    def _scatter(self, *, full: bool) -> Moments:
        return self._on_device(lambda: TorchScatterSum(self.treatment, full=full), check=True).result()

    def _on_device(self, make: Callable[[], S], *, check: bool) -> S:
        blocks = device_blocks(self.source, self._device, check=check, watch=self.watch)
        return merged(((block, None) for block in blocks), make)


class TorchScatterSum:
    """`ScatterSum` on a device."""

    def __init__(self, treatment: RowTreatment, *, full: bool) -> None:
        self._treatment, self._full = treatment, full
        self._count, self._n_clipped = 0, 0
        self._mean: Any = 0.0
        self._scatter: Any = 0.0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        assert weights is None, "persons are counted by the processor"
        rows, n_clipped = treat(self._treatment, block)
        mean = sum_rows(rows) / rows.shape[0]
        moved = rows - mean.to(rows.dtype)
        scatter = sum_products(moved, moved) if self._full else sum_rows(moved.square())
        self._merge(int(rows.shape[0]), mean, scatter, n_clipped)

    def merge(self, other: "TorchScatterSum") -> None:
        """Add what another sum holds."""
        self._merge(other._count, other._mean, other._scatter, other._n_clipped)

    def _merge(self, count: int, mean: Any, scatter: Any, n_clipped: int) -> None:
        total, step = self._count + count, mean - self._mean
        weight = self._count * count / total
        between = torch().outer(step * weight, step) if self._full else step.square() * weight
        self._scatter = self._scatter + scatter + between
        self._mean = self._mean + step * (count / total)
        self._count, self._n_clipped = total, self._n_clipped + n_clipped

    def result(self) -> Moments:
        """Return the moments, in this machine's memory."""
        scatter = self._scatter / self._count
        return Moments(
            n_rows=self._count,
            mean=_array(self._mean),
            covariance=_array((scatter + scatter.T) / 2 if self._full else scatter),
            n_clipped=self._n_clipped,
        )


class TorchProductSum:
    """`ProductSum` on a device."""

    def __init__(self, treatment: RowTreatment, basis: Matrix, shift: Vector | None) -> None:
        self._treatment, self._basis, self._shift = treatment, basis, shift
        self._count = 0
        self._total: Any = 0.0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        assert weights is None, "persons are counted by the processor"
        moved, _ = treat(self._treatment, block)
        if self._shift is not None:
            moved = moved - like(self._shift, moved)
        self._total = self._total + sum_products(moved, moved @ like(self._basis, moved))
        self._count += int(block.shape[0])

    def merge(self, other: "TorchProductSum") -> None:
        """Add what another sum holds."""
        self._total, self._count = self._total + other._total, self._count + other._count

    def result(self) -> Matrix:
        """Return the sum over the number of rows, in this machine's memory."""
        return np.asarray(_array(self._total) / self._count)


class TorchLatticeSum:
    """`LatticeSum` on a device: rows truncated to whole numbers, whose products float64 holds exactly."""

    def __init__(self, treatment: RowTreatment, n_features: int, lattice: RowLattice | None = None) -> None:
        self._treatment, self._width = treatment, n_features
        self._lattice = RowLattice() if lattice is None else lattice
        self._n_rows, self._n_clipped = 0, 0
        self._total: Any = 0
        self._low: Any = 0
        self._high: Any = 0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        assert weights is None, "persons are counted by the processor"
        rows, n_clipped = lattice_tensor(self._treatment, block, self._lattice)
        squares: Any = 0
        for stack in panels(rows, self._lattice.exact_rows):
            squares = squares + torch().bmm(stack.transpose(1, 2), stack).long().sum(dim=0)
        # A block has fewer rows than squares of which fit one word; sums of blocks need two.
        self._add(int(rows.shape[0]), n_clipped, rows.sum(dim=0).long(), squares & 0xFFFFFFFF, squares >> 32)

    def merge(self, other: "TorchLatticeSum") -> None:
        """Add what another sum holds."""
        self._add(other._n_rows, other._n_clipped, other._total, other._low, other._high)

    def _add(self, n_rows: int, n_clipped: int, total: Any, low: Any, high: Any) -> None:
        low = self._low + low
        self._low, self._high = low & 0xFFFFFFFF, self._high + high + (low >> 32)
        self._total = self._total + total
        self._n_rows, self._n_clipped = self._n_rows + n_rows, self._n_clipped + n_clipped

    def result(self) -> ExactMoments:
        """Return the sums, in this machine's memory."""
        low, high, total = (each.cpu().numpy() for each in (self._low, self._high, self._total))
        fits = self._n_rows <= self._lattice.word_rows
        return frozen_sums(
            n_rows=self._n_rows,
            lattice=self._lattice,
            total=total,
            squares=Words(low=(high << 32) + low) if fits else Words(low=low, high=high),
            n_clipped=self._n_clipped,
        )


def lattice_tensor(treatment: RowTreatment, block: Any, lattice: RowLattice) -> tuple[Any, int]:
    """Return a block's rows as whole numbers in float64, and how many were clipped (`LatticeRows`)."""
    library, width = torch(), int(block.shape[1])
    rows = block.double()
    if treatment.low is not None:
        rows = rows.clamp(like(treatment.low, rows), like(treatment.high, rows))
    if treatment.center is not None:
        rows = rows - like(treatment.center, rows)
    if treatment.scale is not None:
        rows = rows * like(1.0 / treatment.scale, rows)
    bounds: Any = 1.0 if treatment.row_norm is None else treatment.row_norm
    norms = rows.square().sum(dim=1).sqrt()
    extreme = ~(norms <= 1e140)
    if treatment.normalize:
        extreme = extreme | (norms < 1e-140)
    if bool(extreme.any()):
        rows = library.nan_to_num(rows)  # as they were read they are finite
        peaks = library.where(extreme, rows.abs().amax(dim=1), 1.0)
        peaks = library.where(peaks > 0, peaks, 1.0)
        rows, bounds = rows / peaks[:, None], bounds / peaks
        norms = rows.square().sum(dim=1).sqrt()
    if treatment.normalize:
        lengths, n_clipped = library.where(norms > 0, norms, 1.0), 0
    else:
        lengths = norms.clamp(min=bounds)
        n_clipped = int((norms > bounds * (1 + margin(width))).sum())
    return (rows * (lattice.target(width) / lengths)[:, None]).trunc(), n_clipped


def _array(tensor: Any) -> Any:
    """Return a tensor as a read-only array."""
    array = tensor.cpu().numpy()
    array.flags.writeable = False
    return array
