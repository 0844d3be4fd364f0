"""Doing the same by the compiled loops and by NumPy."""

from collections.abc import Callable
from typing import TypeVar

import pytest

from fedpower import native

T = TypeVar("T")

needs_loops = pytest.mark.skipif(native.loops() is None, reason=native.account())


def both_ways(work: Callable[[], T]) -> tuple[T, T]:
    """Return what a function gives with the compiled loops, and with NumPy alone."""
    assert native.loops() is not None
    compiled = work()
    with native.switched_off():
        assert native.loops() is None
        return compiled, work()
