"""A PyTorch device for a silo's arithmetic: its name, its precision, and rows moved to it in blocks."""

import importlib.util
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import import_module
from typing import Any

import numpy as np

from fedpower.data.arrays import ArraySource
from fedpower.data.blocks import full_blocks
from fedpower.data.checks import require_count, require_exact, require_finite
from fedpower.data.kernel import block_rows as cpu_block_rows
from fedpower.data.source import RowSource
from fedpower.data.tensors import TensorSource
from fedpower.data.watch import UNWATCHED, Watch
from fedpower.errors import InputError, installing

BLOCK_BYTES = 512 * 2**20
"""Bytes of a block in float64 on a device: enough to keep it busy while the next launch comes."""

MIN_ROWS, MAX_ROWS = 256, 2**20


def torch() -> Any:
    """Return PyTorch, imported on first use."""
    return import_module("torch")


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """Where and in which precision a silo's rows are multiplied.

    Parameters
    ----------
    name : as PyTorch calls it: ``cuda``, ``cuda:1``, ``cpu``, ...
    single : whether rows given in float32 may be multiplied in float32 (their sums are float64). Only
        where nothing is private: `privacy.sensitivity.rounding_slack`, which every noise level
        includes, is proved for rows bounded and summed in float64.
    """

    name: str
    single: bool = False


def open_device(name: str, *, single: bool = False) -> Device:
    """Return the device of this name, or refuse one that is not there.

    Parameters
    ----------
    name : as PyTorch calls it.
    single : whether rows given in float32 may be multiplied in float32.
    """
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
    """Return the dtype in which a source's rows are multiplied.

    float32 for rows given so, where the device may; never TF32, which a program can have switched on
    for all its products: those then are float64.
    """
    library = torch()
    given = None
    if isinstance(source, TensorSource):
        given = source.tensor.dtype
    elif isinstance(source, ArraySource) and source.array.dtype == np.float32:
        given = library.float32
    exact = not library.backends.cuda.matmul.allow_tf32
    return (
        library.float32 if device.single and exact and given == library.float32 else library.float64
    )


def block_rows(n_features: int, device: Device) -> int:
    """Return how many rows make a block: half a GiB on an accelerator, what fits a cache on the CPU."""
    if device.name == "cpu":
        return cpu_block_rows(n_features)
    return max(MIN_ROWS, min(MAX_ROWS, BLOCK_BYTES // (8 * n_features)))


def device_blocks(
    source: RowSource, device: Device, *, check: bool, watch: Watch = UNWATCHED
) -> Iterator[Any]:
    """Yield the rows as tensors on the device, in the precision in which they are multiplied.

    Parameters
    ----------
    source : dense rows.
    device : where to.
    check : whether to look for missing and infinite values; once is enough, rows do not change.
    watch : is told of every block, and may stop the pass.
    """
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
