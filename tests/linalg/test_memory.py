"""Large arrays are in mappings of their own, whose memory the system has back with them."""

import sys
from pathlib import Path

import numpy as np
import pytest

from fedpower.linalg.subspace import LARGE, give_back, own_memory


@pytest.mark.parametrize("size", [0, 7, LARGE // 8])
@pytest.mark.parametrize("dtype", [np.float64, np.float32, np.int16, np.uint64])
def test_it_is_an_array_like_any_other(size: int, dtype: type) -> None:
    array = own_memory((size, 3), dtype)
    array[:] = 5
    assert (array.shape, array.dtype) == ((size, 3), dtype)
    assert array.flags.c_contiguous
    assert array.flags.writeable
    assert array.sum() == 15 * size


def resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


@pytest.mark.skipif(sys.platform != "linux", reason="reads what is held from /proc")
def test_what_is_let_go_is_given_back_at_once() -> None:
    before = resident()
    for _ in range(4):
        array = own_memory((8 * LARGE,), np.uint8)
        array[:] = 1
        assert resident() - before >= 7 * LARGE
        del array
        assert resident() - before <= LARGE
    give_back()
