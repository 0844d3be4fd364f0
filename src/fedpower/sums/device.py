"""A PyTorch device for a silo's arithmetic: rows go to it in blocks, and sums over them are made there."""

import functools
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedpower.exceptions import InputError, installing
from fedpower.rows.arrays import ArraySource
from fedpower.rows.source import RowSource, Watch, block_rows, require_count, require_exact, require_matrix
from fedpower.rows.tables import is_a
from fedpower.rows.units import Weights
from fedpower.rules.treatment import TINY, RowTreatment, margin
from fedpower.sums.lattice import EXACT_ROWS, SIDE, WORD_ROWS, ExactMoments, Words
from fedpower.sums.moment import ProductSum, ScatterSum
from fedpower.sums.reduce import NotFiniteError, S, full_blocks, merged, naming_places
from fedpower.values import Block, Matrix, Vector

_BLOCK_BYTES = 2**30
"""Bytes of a block in float64 on a device: enough to keep it busy while the next launch comes."""

_LEAST_ROWS, _MOST_ROWS = 256, 2**22

_FEW_ROWS, _MANY_ROWS, _SMALL = 2**10, 2**13, 2**18
"""Rows of a panel, whose products are summed within one matrix product, for results of up to so many numbers
and for larger ones: a single small one would not keep a device busy."""


@functools.cache
def torch() -> Any:
    return import_module("torch")


def open_device(name: str) -> str:
    """Return the device of this name as PyTorch calls it, or refuse one that is not there."""
    if importlib.util.find_spec("torch") is None:
        raise InputError(f"device={name!r} must have PyTorch, got none installed; run {installing('torch')}")
    try:
        made = torch().empty(1, dtype=torch().float64, device=name)
        made += 1
    except (RuntimeError, AssertionError, TypeError, NotImplementedError, ValueError):
        raise InputError(
            f"device must be one that PyTorch has here and that computes in float64, got {name!r}; "
            "give 'cuda' or 'cpu', or leave it out"
        ) from None
    return str(made.device)


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorSource(ArraySource):
    """The rows of a 2-d tensor of any real dtype, wherever it is."""

    tensor: Any

    def read(self, max_rows: int) -> Iterator[Block]:
        for part in self.tensor.split(max_rows):
            block = np.ascontiguousarray(part.double().cpu().numpy()).view()
            block.flags.writeable = False
            yield block


def tensor_source(tensor: Any, name: str) -> TensorSource:
    """Return the source of a tensor's rows; its gradients play no part."""
    if tensor.layout is not torch().strided:
        raise InputError(f"{name} must be a dense tensor, got layout {tensor.layout}; use tensor.to_dense()")
    require_matrix(name, tuple(tensor.shape), np.dtype("c8" if tensor.is_complex() else "f8"))
    rows, width = tensor.shape
    wide = not tensor.is_floating_point() and tensor.element_size() > 4
    return TensorSource(name=name, width=width, n_rows=rows, tensor=tensor.detach(), wide=wide)


def total(source: RowSource, device: str, make: Callable[[], S], watch: Watch, *, stored: bool = False) -> S:
    """Return a sum over the rows on the device, in float64 or, if wanted, as they are stored."""
    with naming_places(source):
        made = merged(((block, None) for block in _blocks(source, device, watch, stored=stored)), make)
    _fetch(made)
    return made


def _fetch(made: Any) -> None:
    """Bring a sum's tensors into this machine's memory."""
    for name, value in vars(made).items():
        if is_a(value, "torch", "Tensor"):
            setattr(made, name, value.cpu().numpy())


def _blocks(source: RowSource, device: str, watch: Watch, *, stored: bool = False) -> Iterator[Any]:
    """Yield the rows as tensors on the device, in float64, or in float32 where they are stored so."""
    rows = block_rows(source.n_features)
    if device != "cpu":
        rows = max(_LEAST_ROWS, min(_MOST_ROWS, _BLOCK_BYTES // (8 * source.n_features)))
    start = 0
    for block in _stored(source, rows):
        watch.saw(len(block))
        single = stored and block.dtype == torch().float32
        part = block.to(device=device, dtype=torch().float32 if single else torch().float64)
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
    elif isinstance(source, ArraySource) and source.is_dense_array and source.array.dtype == np.float32:
        for start in range(0, source.array.shape[0], rows):
            part = source.array[start : start + rows]
            cells = np.ma.filled(part, np.nan) if np.ma.isMaskedArray(part) else part
            kept = cells if source.keep is None else np.take(cells, np.array(source.keep), axis=1)
            yield torch().from_numpy(np.require(kept, np.float32, ["C", "W"]))
    else:
        for block in full_blocks(source, rows, checked=False):
            yield torch().from_numpy(np.require(np.asarray(block), np.float64, ["C", "W"]))


def _like(values: Any, rows: Any) -> Any:
    return torch().as_tensor(np.array(values), dtype=rows.dtype, device=rows.device)


def _all_finite(rows: Any) -> bool:
    return bool(torch().isfinite(rows.sum())) or bool(torch().isfinite(rows).all())


def treated(treatment: RowTreatment, block: Any) -> tuple[Any, int]:
    """Return `RowTreatment.apply` of a tensor of float64."""
    library = torch()
    if not _all_finite(block):
        raise NotFiniteError("rows must hold finite numbers, got other values; fill them in")
    rows, divisors = block, treatment.divisors(int(block.shape[1]))
    if treatment.low is not None:
        rows = rows.clamp(_like(treatment.low, rows), _like(treatment.high, rows))
    if treatment.center is not None:
        rows = rows - _like(treatment.center, rows)
    if divisors is not None:
        rows = rows / _like(divisors, rows)
    if not treatment.bounded:
        if not _all_finite(rows):
            raise InputError(
                "rows must stay finite when centered and scaled, got infinite values; use other units"
            )
        return rows, 0
    slack = margin(int(rows.shape[1]))
    norms = library.linalg.vector_norm(rows, dim=1)
    extreme = ~(norms <= 1 / TINY) | ((norms < TINY) if treatment.normalize else False)
    peaks = library.ones_like(norms)
    if bool(extreme.any()):  # over their largest value, such rows have squares that keep their digits
        rows = library.nan_to_num(rows)
        largest = rows.abs().amax(dim=1)
        peaks = library.where(extreme & (largest > 0), largest, 1.0)
        rows = rows / peaks[:, None]
        norms = library.linalg.vector_norm(rows, dim=1)
    if treatment.normalize:
        return rows * ((1 - slack) / library.where(norms > 0, norms, 1.0))[:, None], 0
    factors = library.where(norms > (1 - slack) / peaks, (1 - slack) / norms, peaks)
    return rows * factors[:, None], int((norms > (1 + slack) / peaks).sum())


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


class TorchScatterSum(ScatterSum):
    """`ScatterSum` on a device."""

    def __init__(self, treatment: RowTreatment, n_features: int, full: bool) -> None:
        super().__init__(treatment, 0, full)
        self._mean = self._scatter = 0.0  # type: ignore[assignment]  # of tensors, where the rows are

    def add(self, block: Any, weights: Weights | None = None) -> None:
        rows, n_clipped = treated(self._treatment, block)
        self.n_clipped += n_clipped
        ones = torch().ones_like(rows[:, :1])
        mean = _sum_products(ones, rows)[0] / len(rows)
        rows = rows - mean
        self._scatter += _sum_products(rows, rows) if self._full else _sum_products(ones, rows.square())[0]
        self._count(float(len(rows)), mean)

    def _rank_one(self, weight: float, vector: Any) -> None:
        self._scatter += weight * (torch().outer(vector, vector) if self._full else vector.square())


class TorchProductSum(ProductSum):
    """`ProductSum` on a device."""

    def __init__(self, treatment: RowTreatment, basis: Matrix, shift: Vector | None) -> None:
        super().__init__(treatment, basis, shift)
        self._total: Any = 0.0

    def add(self, block: Any, weights: Weights | None = None) -> None:
        rows, _ = treated(self._treatment, block)
        rows = rows if self._shift is None else rows - _like(self._shift, rows)
        self._total = self._total + _sum_products(rows @ _like(self._basis, rows), rows)
        self._weight += len(block)


class TorchLatticeSum:
    """`LatticeSum` on a device: sums of products that float64, or int32 on tensor cores, holds exactly."""

    def __init__(self, treatment: RowTreatment, n_features: int) -> None:
        self._treatment, self._width = treatment, n_features
        self._n_rows = self._n_clipped = 0
        self._total: Any = 0
        self._low: Any = 0
        self._high: Any = 0
        self._limbs: Any = None

    def add(self, block: Any, weights: Weights | None = None) -> None:
        self._n_rows += len(block)
        on_nvidia = block.is_cuda and torch().version.cuda is not None
        interpreted = os.environ.get("TRITON_INTERPRET") == "1"  # in tests
        if not (on_nvidia or interpreted) or importlib.util.find_spec("triton") is None:
            self._add(block)
            return
        if self._limbs is None:
            kernel = import_module("fedpower.sums.triton_kernel")
            self._limbs = kernel.LimbSums(torch(), self._treatment, self._width, block.device)
        states = self._limbs.add(block if block.stride(1) == 1 else block.contiguous())
        left_out = states == 2
        n_clipped, n_left_out = torch().stack([(states == 1).sum(), left_out.sum()]).tolist()
        self._n_clipped += n_clipped
        if n_left_out:
            self._add(block[left_out])

    def _add(self, block: Any) -> None:
        rows, n_clipped = treated(self._treatment, block.double())
        rows = (rows * SIDE).trunc()
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

    def result(self) -> ExactMoments:
        """Return the sums, in this machine's memory."""
        _fetch(self)
        if self._limbs is not None:
            self._carry(*(words.cpu().numpy() for words in self._limbs.squares()))
            self._total = self._total + self._limbs.total.cpu().numpy()
        low, high = self._low, self._high
        words = Words(low=(high << 32) + low) if self._n_rows <= WORD_ROWS else Words(low=low, high=high)
        return ExactMoments(n_rows=self._n_rows, total=self._total, squares=words, n_clipped=self._n_clipped)
