"""A PyTorch device for a silo's arithmetic: rows moved to it in blocks, and sums over them there."""

import functools
import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib import import_module
from typing import Any

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.rows.arrays import ArraySource, PositionalSource
from fedpower.rows.columns import require_count, require_exact, require_finite, require_matrix
from fedpower.rows.source import Block, Matrix, RowSource, Vector
from fedpower.rows.treatment import TINY, RowTreatment, margin
from fedpower.rows.units import require_no_unit
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.kernel import KernelChoice
from fedpower.sums.kernel import block_rows as cpu_block_rows
from fedpower.sums.lattice import EXACT_ROWS, SIDE, WORD_ROWS, ExactMoments, Words
from fedpower.sums.moment import Moments
from fedpower.sums.reduce import NotFiniteError, S, full_blocks, merged

_BLOCK_BYTES = 2**30
"""Bytes of a block in float64 on a device: enough to keep it busy while the next launch comes."""

_LEAST_ROWS, _MOST_ROWS = 256, 2**22

_FEW_ROWS, _MANY_ROWS, _SMALL = 2**10, 2**13, 2**18
"""Rows of a panel, whose products are summed within one matrix product, for results of up to so many numbers
and for larger ones: a small one alone would not keep a device busy."""


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


def checked_choice(source: RowSource, device: Device, choice: KernelChoice) -> KernelChoice:
    """Return the choice with where and in which precision; refuse rows that a device cannot sum."""
    require_no_unit(source, f"the device {device.name!r}")
    if source.sparse:
        raise InputError(
            f"{source.name} must be dense to be computed on a device, got sparse rows; leave the device out, "
            "the kernels for sparse rows are the CPU's"
        )
    digits = "float32" if _precision(source, device) == torch().float32 else "float64"
    return replace(choice, reason=f"{choice.reason}, on {device.name} in {digits}")


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
    library = sys.modules.get("torch")
    return library is not None and isinstance(data, library.Tensor)


def tensor_source(tensor: Any, name: str) -> TensorSource:
    """Return the source of a tensor's rows; its gradients play no part."""
    if tensor.layout is not torch().strided:
        raise InputError(
            f"{name} must be a dense tensor, got layout {tensor.layout}; give tensor.to_dense() or a "
            "SciPy sparse matrix"
        )
    kind = "c" if tensor.is_complex() else "f"
    require_matrix(name, tuple(tensor.shape), np.dtype(f"{kind}8"))
    rows, width = tensor.shape
    wide = not tensor.is_floating_point() and tensor.element_size() > 4
    return TensorSource(name=name, width=width, n_rows=rows, tensor=tensor.detach(), wide=wide)


def total(
    source: RowSource, device: Device, make: Callable[[], S], watch: Watch, *, stored: bool = False
) -> S:
    """Return a sum over the rows on the device, in its precision or, if wanted, as they are stored."""
    dtype = None if stored else _precision(source, device)
    try:
        return merged(((block, None) for block in _blocks(source, device, dtype, watch)), make)
    except NotFiniteError:
        start = 0
        for block in _blocks(source, device, torch().float64, UNWATCHED):  # which names the place
            require_finite(block.cpu().numpy(), name=source.name, columns=source.columns, rows=start)
            start += len(block)
        raise


def _precision(source: RowSource, device: Device) -> Any:
    """Return the dtype in which a source's rows are multiplied."""
    library, given = torch(), None
    if isinstance(source, TensorSource):
        given = source.tensor.dtype
    elif isinstance(source, ArraySource) and source.array.dtype == np.float32:
        given = library.float32
    exact = not library.backends.cuda.matmul.allow_tf32
    return library.float32 if device.single and exact and given == library.float32 else library.float64


def _blocks(source: RowSource, device: Device, dtype: Any, watch: Watch) -> Iterator[Any]:
    """Yield the rows as tensors on the device, in a dtype or in the float32 or float64 of their storage."""
    rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BLOCK_BYTES // (8 * source.n_features)))
    start = 0
    for block in _stored(source, cpu_block_rows(source.n_features) if device.name == "cpu" else rows):
        watch.saw(len(block))
        kept = block.dtype if block.dtype == torch().float32 else torch().float64
        part = block.to(device=device.name, dtype=dtype or kept)
        if isinstance(source, TensorSource) and source.wide:
            require_exact(part.cpu().numpy(), name=source.name, columns=source.columns, rows=start)
        yield part
        start += len(part)
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
        for block in full_blocks(source, rows, checked=False):
            yield torch().from_numpy(np.require(np.asarray(block), np.float64, ["C", "W"]))


def _like(values: Any, rows: Any) -> Any:
    """Return an array as a tensor of the rows' precision and place."""
    return torch().as_tensor(np.array(values), dtype=rows.dtype, device=rows.device)


def _moved(treatment: RowTreatment, rows: Any, divisors: Vector | None) -> Any:
    """Return the rows clipped, centred and divided."""
    if treatment.low is not None:
        rows = rows.clamp(_like(treatment.low, rows), _like(treatment.high, rows))
    if treatment.center is not None:
        rows = rows - _like(treatment.center, rows)
    return rows if divisors is None else rows / _like(divisors, rows)


def _lengths(rows: Any, smallest: float, *, normalize: bool) -> tuple[Any, Any, Any]:
    """Return rows and their norms, those of extreme rows over their largest value, and that value or 1."""
    library = torch()
    norms = library.linalg.vector_norm(rows, dim=1)
    extreme = ~(norms <= 1 / smallest)
    if normalize:
        extreme = extreme | (norms < smallest)
    peaks = library.ones_like(norms)
    if bool(extreme.any()):
        rows = library.nan_to_num(rows)  # as they were read they are finite
        largest = rows.abs().amax(dim=1)
        peaks = library.where(extreme & (largest > 0), largest, 1.0)
        rows = rows / peaks[:, None]
        norms = library.linalg.vector_norm(rows, dim=1)
    return rows, norms, peaks


def _single_margin(width: int) -> float:
    return (width + 8) * 2.0**-23


def _treated(treatment: RowTreatment, block: Any) -> tuple[Any, int]:
    """Return the treated rows as a tensor of the same precision, and how many were clipped."""
    library, width = torch(), int(block.shape[1])
    if not bool(library.isfinite(block.sum())) and not bool(library.isfinite(block).all()):
        raise NotFiniteError("rows must hold finite numbers, got others; fill them in")
    rows = _moved(treatment, block, treatment.divisors(width))
    if not treatment.bounded:
        if not bool(library.isfinite(rows.sum())) and not bool(library.isfinite(rows).all()):
            raise InputError(
                "rows must stay finite when centred and scaled, got values beyond the range of their "
                "precision; give the columns in other units"
            )
        return rows, 0
    single = rows.dtype == library.float32
    slack = _single_margin(width) if single else margin(width)
    target = 1.0 if single else 1 - slack
    rows, norms, peaks = _lengths(rows, 1e-15 if single else TINY, normalize=treatment.normalize)
    bounds = 1 / peaks
    if treatment.normalize:
        return rows * (target / library.where(norms > 0, norms, 1.0))[:, None], 0
    factors = library.where(norms > target * bounds, target / norms, peaks)
    return rows * factors[:, None], int((norms > (1 + slack) * bounds).sum())


def _sum_rows(rows: Any) -> Any:
    """Return Σ y over the rows as float64: panels in the rows' own precision, added up in float64."""
    return sum(stack.sum(dim=1).double().sum(dim=0) for stack in _panels(rows, _FEW_ROWS))


def _sum_products(left: Any, right: Any) -> Any:
    """Return leftᵀ·right as float64: products of panels of at most 2¹³ rows, added up in float64."""
    size = _FEW_ROWS if left.shape[1] * right.shape[1] <= _SMALL else _MANY_ROWS
    return sum(
        torch().bmm(one.transpose(1, 2), two).sum(dim=0, dtype=torch().float64)
        for one, two in zip(_panels(left, size), _panels(right, size), strict=True)
    )


def _panels(rows: Any, size: int) -> list[Any]:
    """Return the rows as a stack of full panels and a stack of the one that is left."""
    count, width = rows.shape
    full = count - count % size
    stacks = [rows[:full].view(-1, size, width), rows[full:].view(1, count - full, width)]
    return [stack for stack in stacks if stack.shape[0] and stack.shape[1]]


class TorchScatterSum:
    """`ScatterSum` on a device."""

    def __init__(self, treatment: RowTreatment, n_features: int, *, full: bool, most: int = 0) -> None:
        self._treatment, self._width, self._full = treatment, n_features, full
        self._count, self._n_clipped = 0, 0
        self._mean: Any = 0.0
        self._scatter: Any = 0.0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        rows, n_clipped = _treated(self._treatment, block)
        count, mean = len(rows), _sum_rows(rows) / len(rows)
        moved = rows - mean.to(rows.dtype)
        scatter = _sum_products(moved, moved) if self._full else _sum_rows(moved.square())
        total, step = self._count + count, mean - self._mean
        weight = self._count * count / total
        between = torch().outer(step * weight, step) if self._full else step.square() * weight
        self._scatter = self._scatter + scatter + between
        self._mean = self._mean + step * (count / total)
        self._count, self._n_clipped = total, self._n_clipped + n_clipped

    def merge(self, other: Any) -> None:
        """Not used: blocks of a device are added one after the other."""
        raise NotImplementedError

    def result(self, offset: Vector | None = None, n_units: int | None = None) -> Moments:
        """Return the moments, in this machine's memory."""
        scatter = self._scatter / self._count
        covariance = (scatter + scatter.T) / 2 if self._full else scatter
        mean, spread = self._mean.cpu().numpy(), covariance.cpu().numpy()
        return Moments(n_rows=self._count, mean=mean, covariance=spread, n_clipped=self._n_clipped)


class TorchProductSum:
    """`ProductSum` on a device."""

    def __init__(
        self, treatment: RowTreatment, basis: Matrix, shift: Vector | None, *, most: int = 0
    ) -> None:
        self._treatment, self._basis, self._shift = treatment, basis, shift
        self._count = 0
        self._total: Any = 0.0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        moved, _ = _treated(self._treatment, block)
        if self._shift is not None:
            moved = moved - _like(self._shift, moved)
        self._total = self._total + _sum_products(moved, moved @ _like(self._basis, moved))
        self._count += len(block)

    def merge(self, other: Any) -> None:
        """Not used: blocks of a device are added one after the other."""
        raise NotImplementedError

    def result(self, n_units: int | None = None) -> Matrix:
        """Return the sum over the number of rows, in this machine's memory."""
        return np.asarray(self._total.cpu().numpy() / self._count)


class TorchLatticeSum:
    """`LatticeSum` on a device: sums of products that float64, or int32 on tensor cores, holds exactly."""

    def __init__(self, treatment: RowTreatment, n_features: int, *, most: int = 0) -> None:
        self._treatment, self._width = treatment, n_features
        self._n_rows, self._n_clipped = 0, 0
        self._total: Any = 0
        self._low: Any = 0
        self._high: Any = 0
        self._limbs: Any = None

    def add(self, block: Any, weights: Vector | None = None) -> None:
        """Add the rows of a tensor."""
        self._n_rows += len(block)
        if not _has_triton(block):
            self._add(block)
            return
        if self._limbs is None:
            self._limbs = _limb_sums(self._treatment, self._width, block.device)
        states = self._limbs.add(block if block.stride(1) == 1 else block.contiguous())
        left_out = states == 2
        n_clipped, n_left_out = torch().stack([(states == 1).sum(), left_out.sum()]).tolist()
        self._n_clipped += n_clipped
        if n_left_out:
            self._add(block[left_out])

    def _add(self, block: Any) -> None:
        rows, n_clipped = lattice_tensor(self._treatment, block)
        squares: Any = 0
        for stack in _panels(rows, EXACT_ROWS):
            squares = squares + torch().bmm(stack.transpose(1, 2), stack).long().sum(dim=0)
        # A block has fewer rows than squares of which fit one word; sums of blocks need two.
        self._total = self._total + rows.sum(dim=0).long()
        self._carry(squares & 0xFFFFFFFF, squares >> 32)
        self._n_clipped += n_clipped

    def _carry(self, low: Any, high: Any) -> None:
        low = self._low + low
        self._low, self._high = low & 0xFFFFFFFF, self._high + high + (low >> 32)

    def merge(self, other: Any) -> None:
        """Not used: blocks of a device are added one after the other."""
        raise NotImplementedError

    def result(self) -> ExactMoments:
        """Return the sums, in this machine's memory."""
        if self._limbs is not None:
            self._carry(*self._limbs.squares())
            self._total = self._total + self._limbs.total
        low, high, sums = (tensor.cpu().numpy() for tensor in (self._low, self._high, self._total))
        words = Words(low=(high << 32) + low) if self._n_rows <= WORD_ROWS else Words(low=low, high=high)
        return ExactMoments(n_rows=self._n_rows, total=sums, squares=words, n_clipped=self._n_clipped)


def _has_triton(block: Any) -> bool:
    """Whether the kernels of `triton_kernel` sum these rows: on an NVIDIA GPU, or interpreted in tests."""
    here = block.is_cuda and torch().version.cuda is not None
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return (here or interpreted) and importlib.util.find_spec("triton") is not None


def _limb_sums(treatment: RowTreatment, width: int, place: Any) -> Any:
    kernel = import_module("fedpower.sums.triton_kernel")
    columns = None
    if treatment.center is not None or treatment.scale is not None:
        center = np.zeros(width) if treatment.center is None else treatment.center
        gain = np.ones(width) if treatment.scale is None else 1.0 / treatment.scale
        low = np.full(width, -np.inf) if treatment.low is None else (treatment.low - center) * gain
        high = np.full(width, np.inf) if treatment.high is None else (treatment.high - center) * gain
        columns = (center, gain, low, high)
    bound = 1.0 if treatment.row_norm is None else treatment.row_norm
    margins = (margin(width), _single_margin(width))
    return kernel.LimbSums(
        torch(), width, columns, bound, margins, normalize=treatment.normalize, device=place
    )


def lattice_tensor(treatment: RowTreatment, block: Any) -> tuple[Any, int]:
    """Return a block's rows as integers in float64, and how many were clipped (`LatticeRows`)."""
    library, width = torch(), int(block.shape[1])
    rows = block.double()
    if not bool(library.isfinite(rows.sum())) and not bool(library.isfinite(rows).all()):
        raise NotFiniteError("rows must hold finite numbers, got others; fill them in")
    rows = _moved(treatment, rows, treatment.scale)
    rows, norms, peaks = _lengths(rows, TINY, normalize=treatment.normalize)
    bounds = (1.0 if treatment.row_norm is None else treatment.row_norm) / peaks
    if treatment.normalize:
        lengths, n_clipped = library.where(norms > 0, norms, 1.0), 0
    else:
        lengths = library.maximum(norms, bounds)
        n_clipped = int((norms > bounds * (1 + margin(width))).sum())
    return (rows * (SIDE * (1 - margin(width)) / lengths)[:, None]).trunc(), n_clipped
