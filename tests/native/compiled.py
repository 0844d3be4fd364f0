"""Doing the same by the compiled loops and by NumPy."""

import os
from collections.abc import Callable
from typing import TypeVar
from unittest import mock

import pytest

from fedpower import native

T = TypeVar("T")

needs_loops = pytest.mark.skipif(
    native.loops() is None, reason=f"no compiled loops here: {native.account()}"
)


def both_ways(work: Callable[[], T]) -> tuple[T, T]:
    """Return what a function gives with the compiled loops, and with NumPy alone."""
    assert native.loops() is not None
    compiled = work()
    with mock.patch.dict(os.environ, {"FEDPOWER_NATIVE": "0"}):
        assert native.loops() is None
        return compiled, work()
