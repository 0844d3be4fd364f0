"""Rows to time things on, and the clock and the peak of memory around one fit."""

import gc
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import peak_mb
from benchmarks.speed.sizes import RANK, SEED

if TYPE_CHECKING:
    from fedpower.experiments.models import SpikedCovariance

Array = NDArray[np.float64]

WARM_ROWS = 1_000
"""Rows fitted before the clock starts, so that every library is loaded."""


def model(n_rows: int, n_features: int, n_silos: int = 1) -> "SpikedCovariance":
    """Return Model I of this size [FP §5]."""
    from fedpower.experiments.models import spiked_covariance

    return spiked_covariance(n_rows=n_rows, n_features=n_features, n_silos=n_silos, rank=RANK, seed=SEED)


def drawn(n_rows: int, n_features: int) -> Array:
    """Return the rows of one silo of Model I."""
    rows = np.empty((n_rows, n_features))
    start = 0
    for block in model(n_rows, n_features).blocks(0, 2**16):
        rows[start : start + len(block)] = block
        start += len(block)
    return rows


def leading(blocks: Iterable[Array]) -> Array:
    """Return the exact leading eigenspace of the covariance of rows that come in blocks, d×k."""
    count, total, moment = 0, np.zeros(()), np.zeros(())
    for block in blocks:
        count += len(block)
        total = total + block.sum(axis=0)
        moment = moment + block.T @ block
    covariance = moment / count - np.outer(total, total) / count**2
    return np.asarray(np.linalg.eigh(covariance)[1][:, -RANK:])


def timed(fit: Callable[[], Any]) -> tuple[dict[str, Any], Any]:
    """Return the seconds a fit took and the memory at its peak, and what it returned.

    Memory is in MB: ``peak_mb`` of the whole process while it fitted, ``rise_mb`` of that above what
    the process held before (libraries, and rows that are in memory).
    """
    gc.collect()
    forget_peak()
    before = peak_mb()
    started = time.perf_counter()
    found = fit()
    seconds = time.perf_counter() - started
    peak = peak_mb()
    return {"seconds": seconds, "peak_mb": peak, "rise_mb": peak - before}, found


def forget_peak() -> None:
    """Set the peak of this process's memory to what it holds now (Linux)."""
    Path("/proc/self/clear_refs").write_text("5")
