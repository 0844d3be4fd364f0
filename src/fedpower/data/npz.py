"""Rows of a ``.npz`` file, one 2-d array or a SciPy sparse matrix, decompressed as it is read."""

import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.data.arrays import SparseSource, array_source, sparse_source
from fedpower.data.checks import is_wide, require_matrix, shown
from fedpower.data.csr import CsrFileSource, Slices
from fedpower.data.npy import ArrayHeader, corrupt, read_header
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block
from fedpower.errors import InputError

MAX_WHOLE_BYTES = 256 * 2**20
"""Largest Fortran-ordered member read whole: its rows cannot be streamed out of a zip file."""


@contextmanager
def _member(path: Path, key: str, name: str) -> Iterator[tuple[IO[bytes], ArrayHeader]]:
    """Open one array of the file, at its first value."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{key}.npy") as stream:
            yield stream, read_header(stream, name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, RuntimeError, KeyError):
        raise corrupt(name) from None


def _values(stream: IO[bytes], dtype: np.dtype[Any], count: int, name: str) -> NDArray[Any]:
    """Return the next `count` values of a stream."""
    data = stream.read(count * dtype.itemsize)
    if len(data) != count * dtype.itemsize:
        raise corrupt(name)
    return np.frombuffer(data, dtype=dtype)


@dataclass(frozen=True, kw_only=True, eq=False)
class NpzSource(PositionalSource):
    """The rows of one C-ordered array in a ``.npz`` file."""

    path: Path
    key: str

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices of rows as they are decompressed."""
        with _member(self.path, self.key, self.name) as (stream, header):
            total = header.shape[0]
            for start in range(0, total, max_rows):
                rows = min(max_rows, total - start)
                part = _values(stream, header.dtype, rows * self.width, self.name)
                with np.errstate(over="ignore"):
                    yield part.astype(np.float64).reshape(rows, self.width)


@dataclass(frozen=True, kw_only=True, eq=False)
class SparseNpzSource(CsrFileSource):
    """The rows of a CSR matrix saved by SciPy."""

    @contextmanager
    def slices(self) -> Iterator[Slices]:
        """Give what decompresses indices and values side by side."""
        with (
            _member(self.path, "indices", self.name) as (indices, index_header),
            _member(self.path, "data", self.name) as (data, data_header),
        ):

            def part(start: int, stop: int) -> tuple[NDArray[Any], NDArray[Any]]:
                places = _values(indices, index_header.dtype, stop - start, self.name)
                return places, _values(data, data_header.dtype, stop - start, self.name)

            yield part

    def corrupt(self) -> InputError:
        """Return the error for a file that is not as NumPy wrote it."""
        return corrupt(self.name)


def npz_source(path: Path, name: str) -> PositionalSource:
    """Return the source of a file's array ``X``, its only 2-d array, or its sparse matrix."""
    try:
        with zipfile.ZipFile(path) as archive:
            keys = [key.removesuffix(".npy") for key in archive.namelist()]
    except (zipfile.BadZipFile, OSError):
        raise corrupt(name) from None
    if {"format", "shape", "data"} <= set(keys):
        return _sparse(path, name)
    headers = {}
    for key in keys:
        with _member(path, key, name) as (_, header):
            headers[key] = header
    matrices = [key for key, header in headers.items() if len(header.shape) == 2]
    if "X" in headers:
        key = "X"
    elif len(matrices) == 1 or len(headers) == 1:
        key = (matrices or list(headers))[0]
    else:
        raise InputError(
            f"{name} must hold an array named X or exactly one 2-d array, got {len(matrices)} "
            "2-d arrays "
            f"({shown(matrices) or 'none'}); save the rows as X"
        )
    header = headers[key]
    require_matrix(name, header.shape, header.dtype)
    if header.fortran and header.shape[1] > 1:
        return _whole(path, key, name, header)
    rows, width = header.shape
    return NpzSource(
        name=name, width=width, n_rows=rows, path=path, key=key, wide=is_wide(header.dtype)
    )


def _whole(path: Path, key: str, name: str, header: ArrayHeader) -> PositionalSource:
    """Return a Fortran-ordered member read whole, or refuse it when it is large."""
    if header.n_bytes > MAX_WHOLE_BYTES:
        raise InputError(
            f"{name} must hold its rows in C order to be read in blocks, got Fortran order; "
            "save np.ascontiguousarray(X), or save it as .npy"
        )
    with _member(path, key, name) as (stream, _):
        rows, width = header.shape
        values = _values(stream, header.dtype, rows * width, name)
    return array_source(values.reshape(rows, width, order="F"), name)


def _sparse(path: Path, name: str) -> SparseNpzSource | SparseSource:
    """Return the source of a saved sparse matrix; formats other than CSR are read whole."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            kind = archive["format"].item()
            if kind in ("csr", b"csr"):
                shape = tuple(int(size) for size in archive["shape"])
                indptr = archive["indptr"].astype(np.int64)
        if kind not in ("csr", b"csr"):
            return sparse_source(sparse.load_npz(path), name)
    except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, KeyError) as error:
        if isinstance(error, InputError):
            raise
        raise corrupt(name) from None
    with _member(path, "data", name) as (_, header):
        require_matrix(name, shape, header.dtype)
    if indptr.size != shape[0] + 1 or indptr[0] != 0 or (np.diff(indptr) < 0).any():
        raise corrupt(name)
    return SparseNpzSource(
        name=name,
        width=shape[1],
        n_rows=shape[0],
        path=path,
        indptr=indptr,
        wide=is_wide(header.dtype),
    )
