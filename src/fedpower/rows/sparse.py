"""Sparse rows: from memory, .npz and svmlight files, as canonical CSR blocks."""

import gzip
import zipfile
import zlib
from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.arrays import (
    ArrayHeader,
    PositionalSource,
    SparseSource,
    array_source,
    canonical,
    corrupt,
    read_header,
    sparse_source,
)
from fedpower.rows.columns import is_wide, require_matrix, require_shape, shown
from fedpower.rows.source import Block, SparseBlock

Slices = Callable[[int, int], tuple[NDArray[Any], NDArray[Any]]]
"""Returns the column indices and the values stored from one place to another, asked for in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CsrFileSource(PositionalSource):
    """The rows of a CSR matrix in a file; only its row pointers are held in memory."""

    path: Path
    indptr: NDArray[np.int64]

    @property
    def sparse(self) -> bool:
        """Always true."""
        return True

    @property
    def density(self) -> float | None:
        """Share of stored entries; unknown once columns were left out."""
        size = (self.indptr.size - 1) * self.width
        return None if self.keep is not None else float(self.indptr[-1]) / size

    @abstractmethod
    def slices(self) -> AbstractContextManager[Slices]:
        """Open the file and give what reads indices and values."""

    @abstractmethod
    def corrupt(self) -> InputError:
        """Return the error for indices that name no column."""

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices of rows as canonical CSR."""
        with self.slices() as stored:
            for start in range(0, self.indptr.size - 1, max_rows):
                pointers = self.indptr[start : start + max_rows + 1]
                places, values = stored(int(pointers[0]), int(pointers[-1]))
                if places.size and not 0 <= int(places.min()) <= int(places.max()) < self.width:
                    raise self.corrupt()
                shape = (pointers.size - 1, self.width)
                numbers = values.astype(np.float64)
                yield canonical(sparse.csr_array((numbers, places, pointers - pointers[0]), shape=shape))


_MAX_WHOLE_BYTES = 256 * 2**20
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
class _NpzSource(PositionalSource):
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
class _SparseNpzSource(CsrFileSource):
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
    return _NpzSource(name=name, width=width, n_rows=rows, path=path, key=key, wide=is_wide(header.dtype))


def _whole(path: Path, key: str, name: str, header: ArrayHeader) -> PositionalSource:
    """Return a Fortran-ordered member read whole, or refuse it when it is large."""
    if header.n_bytes > _MAX_WHOLE_BYTES:
        raise InputError(
            f"{name} must hold its rows in C order to be read in blocks, got Fortran order; "
            "save np.ascontiguousarray(X), or save it as .npy"
        )
    with _member(path, key, name) as (stream, _):
        rows, width = header.shape
        values = _values(stream, header.dtype, rows * width, name)
    return array_source(values.reshape(rows, width, order="F"), name)


def _sparse(path: Path, name: str) -> _SparseNpzSource | SparseSource:
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
    return _SparseNpzSource(
        name=name, width=shape[1], n_rows=shape[0], path=path, indptr=indptr, wide=is_wide(header.dtype)
    )


_MAX_BLOCK_ENTRIES = 2**18
"""Entries parsed at once: a block is cut short when its rows are long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _SvmlightSource(PositionalSource):
    """The rows of a svmlight file, plain or gzipped."""

    path: Path
    zero_based: bool = False
    share: float | None = None

    @property
    def sparse(self) -> bool:
        """Always true."""
        return True

    @property
    def density(self) -> float | None:
        """Share of stored entries, where a pass has counted them and no column was left out."""
        return self.share if self.keep is None else None

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield parsed lines."""
        row = 0
        base = 0 if self.zero_based else 1
        for counts, places, values in _parsed(self.path, self.name, max_rows):
            for wrong, bound in ((places < base, "at least"), (places >= self.width + base, "at most")):
                if wrong.any():
                    limit = base if bound == "at least" else self.width + base - 1
                    raise _index_error(self.name, counts, wrong, row, f"{bound} {limit}")
            yield _csr(counts, places - base, values, self.width)
            row += counts.size


def svmlight_source(
    path: Path, name: str, *, n_features: int | None = None, zero_based: bool = False
) -> _SvmlightSource:
    """Return the source of a svmlight file; without `n_features` a pass finds the width."""
    if n_features is not None:
        return _SvmlightSource(name=name, width=n_features, n_rows=None, path=path, zero_based=zero_based)
    largest, rows, entries = -1, 0, 0
    for counts, places, _ in _parsed(path, name, _MAX_BLOCK_ENTRIES):
        largest = max(largest, int(places.max(initial=-1)))
        rows += counts.size
        entries += places.size
    width = largest + 1 if zero_based else max(largest, 0)
    require_shape(name, rows, width)
    share = entries / (rows * width)
    return _SvmlightSource(name=name, width=width, n_rows=rows, path=path, zero_based=zero_based, share=share)


_Parsed = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _parsed(path: Path, name: str, max_rows: int) -> Iterator[_Parsed]:
    """Yield entries per row, indices as written, and values, a bounded number of rows at a time."""
    row = 0
    lines: list[bytes] = []
    counts: list[int] = []
    entries = 0
    try:
        with _open(path) as stream:
            for line in stream:
                features = _features(line)
                if features is None:
                    continue
                lines.append(features)
                counts.append(features.count(b":"))
                entries += counts[-1]
                if len(lines) == max_rows or entries >= _MAX_BLOCK_ENTRIES:
                    yield _parse(lines, counts, name, row)
                    row += len(lines)
                    lines, counts, entries = [], [], 0
    except (EOFError, OSError):
        raise InputError(
            f"{name} must be a complete svmlight file, got one that cannot be read to its end; "
            "write or copy it again"
        ) from None
    if lines:
        yield _parse(lines, counts, name, row)


def _open(path: Path) -> gzip.GzipFile | IO[bytes]:
    """Open the file, unpacking it when its name ends in .gz."""
    return gzip.open(path, "rb") if path.suffix.lower() == ".gz" else path.open("rb")


def _features(line: bytes) -> bytes | None:
    """Return the ``index:value`` part of a line; None for a line that holds no row."""
    parts = line.partition(b"#")[0].split(None, 1)
    if not parts:
        return None
    rest = parts[1] if len(parts) == 2 else b""
    if rest.startswith(b"qid:"):
        rest = [*rest.split(None, 1), b""][1]
    return rest


def _parse(lines: list[bytes], counts: list[int], name: str, first_row: int) -> _Parsed:
    """Return the lines' numbers, or refuse the first line that is not ``index:value`` pairs."""
    try:
        return _numbers(lines, counts)
    except ValueError:
        for offset, line in enumerate(lines):
            try:
                _numbers([line], [counts[offset]])
            except ValueError:
                raise InputError(
                    f"every line of {name} must be a label and index:value pairs, got something "
                    "else "
                    f"at row {first_row + offset + 1}; write the file in svmlight format"
                ) from None
        raise


def _numbers(lines: list[bytes], counts: list[int]) -> _Parsed:
    """Return entries per row, indices and values."""
    pairs = b" ".join(lines).split()
    if any(pair.count(b":") != 1 for pair in pairs):
        raise ValueError("not index:value pairs")
    tokens = b" ".join(pairs).replace(b":", b" ").split()
    if len(tokens) != 2 * len(pairs):
        raise ValueError("an index or a value is empty")
    places = np.array([int(token) for token in tokens[::2]], dtype=np.int64)
    values = np.array([float(token) for token in tokens[1::2]], dtype=np.float64)
    return np.array(counts, dtype=np.int64), places, values


def _csr(
    counts: NDArray[np.int64], places: NDArray[np.int64], values: NDArray[np.float64], width: int
) -> SparseBlock:
    """Return the rows as a sparse block."""
    pointers = np.concatenate([[0], np.cumsum(counts)])
    return canonical(sparse.csr_array((values, places, pointers), shape=(counts.size, width)))


def _index_error(
    name: str, counts: NDArray[np.int64], wrong: NDArray[np.bool_], first_row: int, bound: str
) -> InputError:
    """Return the error for an index outside the columns."""
    entry = int(np.flatnonzero(wrong)[0])
    row = first_row + int(np.searchsorted(np.cumsum(counts), entry, side="right")) + 1
    return InputError(
        "indices in {source} must be {bound}, got another at row {row}; set {n_features}, or "
        "zero_based=True for indices that count from 0",
        source=name,
        bound=bound,
        row=row,
    )
