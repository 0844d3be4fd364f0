"""Loops in C for what NumPy would read several times: the same results, or not used at all."""

import ctypes
import functools
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
BUILT = FOLDER / "loops.bin"  # no .so, which Python would take for a module

_SWITCH = "FEDPOWER_NATIVE"


def loops() -> Any:
    """Return the compiled loops, or None where NumPy is to be used."""
    return None if os.environ.get(_SWITCH) == "0" else _loaded()[0]


def call(name: str, *arguments: Any) -> int:
    """Call a compiled loop with arrays, structures and integers; None is a null pointer."""
    return int(_function(name)(*map(_passed, arguments)))


@functools.cache
def _function(name: str) -> Any:
    function = getattr(loops(), name + suffix(), None) or getattr(loops(), name)
    function.restype = ctypes.c_int64
    return function


def suffix() -> str:
    """Return how the names end of loops for this kind of processor; others serve all kinds."""
    loops().fedpower_suffix.restype = ctypes.c_char_p
    return str(loops().fedpower_suffix().decode())


def _passed(argument: Any) -> Any:
    if isinstance(argument, np.ndarray):
        return ctypes.c_void_p(argument.ctypes.data)
    if isinstance(argument, ctypes.Structure):
        return ctypes.byref(argument)
    return None if argument is None else ctypes.c_int64(argument)


def account() -> str:
    """Return in words which of the two is used here, and why."""
    if loops() is not None:
        return "the loops in C are used"
    reason = f"{_SWITCH} is 0" if os.environ.get(_SWITCH) == "0" else _loaded()[1]
    return f"NumPy is used in their place: {reason}"


def source_digest() -> str:
    """Return the digest that a library built from the sources in this folder reports."""
    digest = hashlib.sha256()
    for path in sorted([*FOLDER.glob("*.c"), *FOLDER.glob("*.h")], key=lambda path: path.name):
        digest.update(path.read_bytes())
    return digest.hexdigest()


@functools.cache
def _loaded() -> tuple[Any, str]:
    if not BUILT.exists():
        return None, "the loops in C were not compiled when fedpower was installed"
    try:
        library = ctypes.CDLL(str(BUILT))
        library.fedpower_source.restype = ctypes.c_char_p
        built_from = library.fedpower_source().decode()
    except (OSError, AttributeError):
        return None, "the compiled loops cannot be loaded on this machine"
    if built_from != source_digest():
        return None, "the compiled loops are those of another version"
    return library, ""
