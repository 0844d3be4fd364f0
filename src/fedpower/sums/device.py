"""A PyTorch device for a silo's arithmetic: its name, its precision, and rows moved to it in blocks."""

import functools
import importlib.util
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.rows.arrays import ArraySource, PositionalSource
from fedpower.rows.columns import require_count, require_exact, require_finite, require_matrix
from fedpower.rows.source import Block, RowSource
from fedpower.rows.treatment import TINY, RowTreatment, margin
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.blocks import full_blocks
from fedpower.sums.kernel import block_rows as cpu_block_rows

BLOCK_BYTES = 512 * 2**20
"""Bytes of a block in float64 on a device: enough to keep it busy while the next launch comes."""

MIN_ROWS, MAX_ROWS = 256, 2**20


@functools.cache
def torch() -> Any:
    """Return PyTorch, imported on first use."""
    return import_module("torch")


def interpreted() -> bool:
    """Return whether Triton interprets kernels on the CPU, as its tests have it do."""
    return os.environ.get("TRITON_INTERPRET") == "1"


@functools.cache
def has_triton() -> bool:
    """Return whether Triton is here, which PyTorch brings along where there is a GPU."""
    return importlib.util.find_spec("triton") is not None


@functools.cache
def multiprocessors(device: Any) -> int:
    """Return how many programs of a kernel run beside each other at least."""
    if device.type != "cuda":
        return 1
    return int(torch().cuda.get_device_properties(device).multi_processor_count)


def on(device: Any) -> Any:
    """Return a context in which launches go to the device."""
    return torch().cuda.device(device) if device.type == "cuda" else torch().device(device)


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


def resident(source: RowSource, device: Device) -> Any | None:
    """Return the tensor of a source whose rows lie on the device as they are, else None."""
    if not isinstance(source, TensorSource) or source.keep is not None:
        return None
    return source.tensor if str(source.tensor.device) == device.name else None


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
    source: RowSource,
    device: Device,
    *,
    check: bool,
    watch: Watch = UNWATCHED,
    as_stored: bool = False,
    max_rows: int | None = None,
) -> Iterator[Any]:
    """Yield the rows as tensors on the device, in the precision in which they are multiplied."""
    dtype = precision(source, device)
    rows = max_rows or block_rows(source.n_features, device)
    start = 0
    for block in _stored(source, rows):
        watch.saw(int(block.shape[0]))
        stored = as_stored and block.dtype in {torch().float32, torch().float64}
        part = block.to(device=device.name, dtype=block.dtype if stored else dtype)
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
