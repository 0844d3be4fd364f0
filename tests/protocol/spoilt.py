"""Every way to spoil a field of a message, as a silo or a coordinator may that sends nonsense."""

from collections.abc import Callable
from typing import Any

import numpy as np
from msgspec import structs

from fedpower.protocol.messages import MomentPart

NUMBERS: list[Any] = [
    *(None, True, "7", b"7", [1.0], {}, float("nan"), float("inf"), float("-inf")),
    *(-1, 0, 2.5, 1e300, -1e300, 10**400, -(10**400), 2**62),
]
ARRAYS: list[Callable[[np.ndarray], Any]] = [
    lambda a: None,
    lambda a: "numbers",
    lambda a: a.tolist(),
    lambda a: a[:-1],
    lambda a: np.append(a, a),
    lambda a: a[np.newaxis],
    lambda a: np.zeros(0),
    lambda a: np.float64(1.0),
    lambda a: np.ones(a.shape, dtype=np.float64 if a.dtype == np.uint64 else np.uint64),
    lambda a: _with(a, np.nan),
    lambda a: _with(a, np.inf),
    lambda a: _with(a, 1e300),
    lambda a: _with(a, -1e200),
]
TEXTS: list[Any] = [None, 7, "\x1b[2J", "a" * 10_000, "\ud800"]
BYTES: list[Callable[[bytes], Any]] = [
    lambda b: b"",
    lambda b: b[:-1],
    lambda b: b + b"0",
    lambda b: bytes(len(b)),
    lambda b: bytes([b[0] ^ 1]) + b[1:] if b else b"1",
    lambda b: b.hex(),
    lambda b: None,
]


def _with(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.astype(np.float64) if array.size else np.zeros(1)
    changed.flat[-1] = value
    return changed


def _same(array: np.ndarray, changed: Any) -> bool:
    if not isinstance(changed, np.ndarray):
        return False
    return (array.dtype, array.shape, array.tobytes()) == (changed.dtype, changed.shape, changed.tobytes())


def mutations(body: Any) -> list[Any]:
    """Return bodies that differ in one field, or are of another kind."""
    found: list[Any] = [MomentPart(values=np.zeros(2))]
    for name in body.__struct_fields__:
        value = getattr(body, name)
        options: list[Any]
        if isinstance(value, np.ndarray):
            options = [new for new in (change(value) for change in ARRAYS) if not _same(value, new)]
        elif isinstance(value, bytes):
            options = [change(value) for change in BYTES]
        elif isinstance(value, str):
            options = TEXTS
        elif value is None:  # an array or a number where none was asked for
            options = [np.zeros((6, 3)), np.full((6, 3), np.nan), "none", 10**400, float("nan")]
        elif isinstance(value, int):
            options = [x for x in NUMBERS if type(x) is not int or x != value]
        else:
            options = [x for x in NUMBERS if x not in (0, -1, 2.5, 2**62)]  # these may be true
        found += [structs.replace(body, **{name: option}) for option in options]
    return found
