"""Large arrays in memory that goes back to the system with them."""

import contextlib
import ctypes
import functools
import math
import mmap
import sys
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

LARGE = 2**22
"""Bytes from which on an array is worth a mapping of its own."""


def own_memory(shape: tuple[int, ...], dtype: DTypeLike = np.float64) -> NDArray[Any]:
    """Return an array for somebody to fill, whose memory the system has back as soon as it is let go."""
    kind = np.dtype(dtype)
    size = math.prod(shape) * kind.itemsize
    if size < LARGE or sys.platform == "win32":
        return np.empty(shape, kind)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with contextlib.suppress(OSError):  # a kernel without them
            pages.madvise(mmap.MADV_HUGEPAGE)  # a tenth of the time, where there are some
    return np.frombuffer(pages, dtype=kind).reshape(shape)


def give_back() -> None:
    """Have the C library give the system what it keeps of memory that is not used, where it does so."""
    trim = _trim()
    if trim is not None:
        trim(0)


@functools.cache
def _trim() -> Any:
    """Return glibc's own function; None elsewhere."""
    try:
        return ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError, TypeError):
        return None
