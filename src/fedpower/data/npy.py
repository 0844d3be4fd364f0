"""Rows of a ``.npy`` file, mapped anew for every block so that no page stays resident."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedpower.data.checks import is_wide, require_matrix
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block
from fedpower.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True)
class ArrayHeader:
    """What the header of a stored array says."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def n_bytes(self) -> int:
        """Length of the values that follow the header."""
        return int(np.prod(self.shape, dtype=object)) * self.dtype.itemsize


def read_header(stream: IO[bytes], name: str) -> ArrayHeader:
    """Return the header of an array in NumPy's format, leaving the stream at the first value.

    Nothing is unpickled: an array of objects gives its dtype here and is refused by the caller.
    """
    try:
        version = np.lib.format.read_magic(stream)
        if version == (1, 0):
            header = np.lib.format.read_array_header_1_0(stream)
        else:
            header = np.lib.format.read_array_header_2_0(stream)
    except (ValueError, EOFError, SyntaxError):
        raise corrupt(name) from None
    shape, fortran, dtype = header
    return ArrayHeader(shape=shape, fortran=fortran, dtype=dtype)


def corrupt(name: str) -> InputError:
    """Return the error for a truncated or damaged NumPy file."""
    return InputError(
        f"{name} must be a complete NumPy file, got one that is truncated or damaged; "
        "write or copy it again"
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class NpySource(PositionalSource):
    """The rows of one ``.npy`` file, in C or Fortran order."""

    path: Path
    offset: int
    header: ArrayHeader

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield copies of row slices, each through a mapping of its own."""
        for start in range(0, self.header.shape[0], max_rows):
            yield self._copy(start, start + max_rows)

    def _copy(self, start: int, stop: int) -> Block:
        """Return one slice of rows as a float64 array of its own."""
        try:
            mapped = np.memmap(
                self.path,
                dtype=self.header.dtype,
                mode="r",
                offset=self.offset,
                shape=self.header.shape,
                order="F" if self.header.fortran else "C",
            )
        except (OSError, ValueError):
            raise corrupt(self.name) from None
        with np.errstate(over="ignore"):
            return np.array(mapped[start:stop], dtype=np.float64, order="C", subok=False)


def npy_source(path: Path, name: str) -> NpySource:
    """Return the source of a ``.npy`` file's rows, its length checked against its header."""
    with path.open("rb") as stream:
        header = read_header(stream, name)
        offset = stream.tell()
    require_matrix(name, header.shape, header.dtype)
    if path.stat().st_size < offset + header.n_bytes:
        raise corrupt(name)
    rows, width = header.shape
    return NpySource(
        name=name,
        width=width,
        n_rows=rows,
        path=path,
        offset=offset,
        header=header,
        wide=is_wide(header.dtype),
    )
