"""Arrays and sparse matrices, in memory, in files and with Dask: rows whose columns are known by place."""

from __future__ import annotations

import sys
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import IO, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, needed
from fedpower.rows.source import (
    Extra,
    RowSource,
    is_wide,
    pick_columns,
    require_exact,
    require_finite,
    require_matrix,
    require_shape,
)
from fedpower.rows.tables import frame_table, table_source
from fedpower.values import Block, SparseBlock, is_sparse, require_distinct, sparse

Stored = Callable[[int, int], Any]
"""Returns what is stored from one row, or entry, to another; files are asked in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ArraySource:
    """The rows of an array or a sparse matrix, in memory or in a file that every pass opens again."""

    name: str
    width: int
    n_rows: int | None
    reader: Any = None  # from a number of rows to blocks of all columns in float64, unchecked
    columns: tuple[str, ...] | None = None
    keep: tuple[int, ...] | None = None
    sparse: bool = False
    stored_density: float | None = 1.0
    array: Any = None  # in memory
    path: Path | None = None
    wide: bool = False  # of integers that float64 may round
    gaps: bool = False

    def __post_init__(self) -> None:
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        return self.width if self.keep is None else len(self.keep)

    @property
    def density(self) -> float | None:
        """Share of stored entries; of sparse rows unknown once columns were left out."""
        return None if self.sparse and self.keep is not None else self.stored_density

    @property
    def is_dense_array(self) -> bool:
        """Whether the rows are a dense array in memory."""
        return self.array is not None and not self.sparse

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield all columns of the rows as float64, unchecked, at most `max_rows` at once."""
        return self.reader(max_rows)  # type: ignore[no-any-return]

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the kept columns of the rows, checked to be finite and, as integers, exact."""
        row = 0
        for stored in self.read(max_rows):
            block = stored
            if self.keep is not None:
                kept = np.array(self.keep)
                block = stored[:, kept] if is_sparse(stored) else np.take(stored, kept, axis=1)
            require_finite(block, name=self.name, columns=self.columns, rows=row, gaps=self.gaps)
            if self.wide:
                require_exact(block, name=self.name, columns=self.columns, rows=row)
            row += int(block.shape[0])
            yield block
            del stored, block  # or two blocks are held while the next one is read
        require_shape(self.name, row, self.n_features)

    def named(self, columns: tuple[str, ...]) -> Self:
        """Return the source with names for its columns, given by position."""
        require_distinct("columns", columns)
        if len(columns) != self.n_features:
            raise InputError(
                f"columns must name each of the {self.n_features} columns of {self.name}, got "
                f"{len(columns)} names"
            )
        return replace(self, columns=columns)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> Self:
        if self.columns is None:
            raise InputError(f"{self.name} must have column names to select by name, got none; give columns")
        places = pick_columns(self.name, self.columns, columns, extra=extra)
        keep = range(self.width) if self.keep is None else self.keep
        return replace(self, columns=columns, keep=tuple(keep[place] for place in places))


def as_float64(part: Any) -> NDArray[np.float64]:
    """Return an array as contiguous float64; what is beyond its range becomes infinite, to be refused."""
    if isinstance(part, np.ma.MaskedArray):
        part = np.ma.filled(part.astype(np.float64), np.nan)
    with np.errstate(over="ignore"):
        block = np.ascontiguousarray(part, dtype=np.float64)
    block.flags.writeable = block.base is None  # a part of an array in memory is its owner's
    return block


def canonical(block: Any) -> SparseBlock:
    """Return a float64 CSR copy of the rows with sorted indices, no index twice and no stored 0."""
    rows: Any = sparse.csr_array(block, dtype=np.float64, copy=True)
    rows.sum_duplicates()
    rows.eliminate_zeros()
    return rows  # type: ignore[no-any-return]


def placed(
    name: str,
    shape: Any,
    dtype: np.dtype[Any],
    opened: Callable[[], AbstractContextManager[Stored]] | None = None,
    **more: Any,
) -> ArraySource:
    """Return the source of a matrix in memory (``array``), or of one that every pass opens to read it."""
    require_matrix(name, tuple(shape), dtype)
    n_rows, width = (int(size) for size in shape)
    array: Any = more.get("array")

    def reader(max_rows: int) -> Iterator[Block]:
        n_now = n_rows if array is None else int(array.shape[0])
        with opened() if opened else nullcontext(lambda start, stop: array[start:stop]) as stored:
            for start in range(0, n_now, max_rows):
                rows = stored(start, min(start + max_rows, n_now))
                yield canonical(rows) if sparse.issparse(rows) else as_float64(rows)
                del rows  # or two blocks are held while the next one is read

    return ArraySource(name=name, width=width, n_rows=n_rows, reader=reader, wide=is_wide(dtype), **more)


def array_source(array: NDArray[Any], name: str) -> ArraySource:
    """Return the source of an array's rows; masked entries count as missing."""
    values = array if isinstance(array, np.ma.MaskedArray) else np.asarray(array)
    return placed(name, values.shape, values.dtype, array=values)


def sparse_source(matrix: Any, name: str) -> ArraySource:
    """Return the source of a sparse matrix's rows; formats other than CSR are converted once."""
    require_matrix(name, tuple(matrix.shape), matrix.dtype)
    stored = sparse.csr_array(matrix)
    density = stored.nnz / np.prod(stored.shape)
    return placed(name, stored.shape, matrix.dtype, array=stored, sparse=True, stored_density=density)


def _damaged(name: str, kind: str = "NumPy") -> InputError:
    return InputError(f"{name} must be a complete {kind} file, got one that is truncated or damaged")


@contextmanager
def _intact(name: str, kind: str = "NumPy") -> Iterator[None]:
    """Refuse a file that fails while it is read."""
    try:
        yield
    except InputError:
        raise
    except (AttributeError, EOFError, LookupError, OSError, RuntimeError, SyntaxError, ValueError,
            zipfile.BadZipFile, zlib.error):  # fmt: skip
        raise _damaged(name, kind) from None


# --- NumPy ------------------------------------------------------------------------------------------------


def npy_source(
    path: Path, name: str, unpacked: Callable[[], AbstractContextManager[Path]] | None = None
) -> ArraySource:
    """Return the source of a ``.npy`` file's rows, perhaps of one that is there only while it is read."""
    file = unpacked or (lambda: nullcontext(path))

    def mapped(place: Path) -> NDArray[Any]:
        with _intact(name):
            return np.load(place, mmap_mode="r")  # type: ignore[no-any-return]

    @contextmanager
    def opened() -> Iterator[Stored]:
        with file() as place:

            def rows(start: int, stop: int) -> NDArray[np.float64]:
                # A mapping for each slice, or the pages of all count as memory in use.
                with np.errstate(over="ignore"):
                    return np.array(mapped(place)[start:stop], dtype=np.float64, order="C")

            yield rows

    with file() as place:
        with place.open("rb") as stream:
            shape, _, dtype = _header(stream, name)
        source = placed(name, shape, dtype, opened, path=path)
        mapped(place)  # which refuses a file that is cut short
    return source


def _header(stream: IO[bytes], name: str) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Return an array's shape, whether it is in Fortran order, and its dtype."""
    formats = np.lib.format
    with _intact(name):
        is_old = formats.read_magic(stream) == (1, 0)
        return (formats.read_array_header_1_0 if is_old else formats.read_array_header_2_0)(stream)


def npz_source(path: Path, name: str) -> ArraySource:
    """Return the source of a file's array ``X``, its only 2-d array, or its sparse matrix."""
    with _intact(name), zipfile.ZipFile(path) as archive:
        keys = [key.removesuffix(".npy") for key in archive.namelist()]
        if {"format", "shape", "data"} <= set(keys):
            return _read_whole(path, name, lambda: _sparse_matrix(path, name))
        shapes = {}
        for key in keys:
            with archive.open(f"{key}.npy") as stream:
                shapes[key] = _header(stream, name)[0]
    matrices = [key for key, shape in shapes.items() if len(shape) == 2]
    key = "X" if "X" in shapes else next(iter(matrices or shapes), "")
    if key != "X" and len(matrices) != 1 and len(shapes) != 1:
        raise InputError(
            f"{name} must hold an array named X or exactly one 2-d array, got {len(matrices)} of them"
        )

    @contextmanager
    def unpacked() -> Iterator[Path]:
        with tempfile.TemporaryDirectory() as folder:
            with _intact(name), zipfile.ZipFile(path) as archive:
                place = Path(archive.extract(f"{key}.npy", folder))
            yield place

    return npy_source(path, name, unpacked)


def _sparse_matrix(path: Path, name: str) -> Any:
    with _intact(name):
        matrix: Any = sparse.load_npz(path)
        matrix.check_format()
    return matrix


def _read_whole(path: Path, name: str, load: Callable[[], Any]) -> ArraySource:
    """Return the source of a file that is read into a sparse matrix in every pass."""
    first = sparse_source(load(), name)
    return replace(first, array=None, path=path, reader=lambda rows: sparse_source(load(), name).read(rows))


# --- svmlight ---------------------------------------------------------------------------------------------


def svmlight_source(
    path: Path, name: str, *, n_features: int | None = None, zero_based: bool = False, **others: Any
) -> ArraySource:
    """Return the source of a svmlight file, which scikit-learn reads whole in every pass."""
    width = n_features

    def load() -> Any:
        nonlocal width
        from sklearn.datasets import load_svmlight_file  # noqa: PLC0415 - takes a second

        try:
            matrix = load_svmlight_file(path, n_features=width, zero_based=zero_based)[0]
        except (ValueError, OverflowError):
            raise InputError(
                f"every line of {name} must be a label and index:value pairs in order, from index "
                f"{0 if zero_based else 1}{f' to {n_features - zero_based}' if n_features else ''}, got "
                "something else; set n_features, or zero_based=True"
            ) from None
        except (EOFError, OSError):
            raise _damaged(name, "svmlight") from None
        width = matrix.shape[1]
        return matrix

    return _read_whole(path, name, load)


# --- AnnData ----------------------------------------------------------------------------------------------


@contextmanager
def _opened_h5ad(path: Path, name: str) -> Iterator[Any]:
    h5py = needed("h5py", "h5ad", "an .h5ad file must be read with")
    with _intact(name, ".h5ad"), h5py.File(path, "r") as file:
        if file.attrs.get("encoding-type") != "anndata":
            raise InputError(f"{name} must be an .h5ad file of anndata 0.8 or newer, got another")
        yield file


def h5ad_source(path: Path, name: str) -> ArraySource:
    """Return the source of a file's ``X``: dense and CSR ones are streamed, a CSC one is read whole."""

    @contextmanager
    def opened() -> Iterator[Stored]:
        with _opened_h5ad(path, name) as file:
            x = file["X"]

            def csr_rows(start: int, stop: int) -> Any:
                pointers = indptr[start : stop + 1]
                first, last = int(pointers[0]), int(pointers[-1])
                places = x["indices"][first:last]
                if places.size and not 0 <= int(places.min()) <= int(places.max()) < shape[1]:
                    raise _damaged(name, ".h5ad")
                parts = x["data"][first:last].astype(np.float64), places, pointers - first
                return sparse.csr_array(parts, shape=(stop - start, shape[1]))

            yield csr_rows if hasattr(x, "keys") else lambda start, stop: x[start:stop]

    with _opened_h5ad(path, name) as file:
        index, stored = file["var"][file["var"].attrs["_index"]], file["X"]
        values = index["values"] if hasattr(index, "keys") else index  # a group where it is nullable
        names = tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values[:])
        kind = stored.attrs.get("encoding-type")
        if not hasattr(stored, "keys"):
            return placed(name, stored.shape, stored.dtype, opened, path=path).named(names)
        if kind not in ("csr_matrix", "csc_matrix"):
            raise InputError(f"X of {name} must be a dense or sparse matrix, got {kind!r}")
        shape = tuple(int(size) for size in stored.attrs["shape"])
        require_matrix(name, shape, stored["data"].dtype)
        indptr, n_entries = stored["indptr"][:].astype(np.int64), stored["data"].shape[0]
        n_lines = shape[0] if kind == "csr_matrix" else shape[1]
        if (
            indptr.size != n_lines + 1
            or (indptr[0], indptr[-1]) != (0, n_entries)
            or (np.diff(indptr) < 0).any()
        ):
            raise _damaged(name, ".h5ad")
        if kind == "csc_matrix":
            parts = (stored["data"][:], stored["indices"][:], indptr)
            return sparse_source(sparse.csc_array(parts, shape=(shape[0], shape[1])), name).named(names)
        facts = {"path": path, "sparse": True, "stored_density": n_entries / (shape[0] * shape[1])}
        return placed(name, shape, stored["data"].dtype, opened, **facts).named(names)


def anndata_source(data: Any, name: str) -> ArraySource:
    """Return the source of an AnnData's ``X``; one that is backed by a file is streamed from there."""
    if data.isbacked:
        if data.is_view:
            raise InputError(f"{name} must be in memory or a whole file, got a view; call to_memory() on it")
        return h5ad_source(Path(data.filename), name)
    if data.X is None:
        raise InputError(f"{name} must have rows in X, got none")
    made = sparse_source(data.X, name) if sparse.issparse(data.X) else array_source(data.X, name)
    return made.named(tuple(str(column) for column in data.var_names))


# --- Dask -------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True, eq=False)
class DaskSource(ArraySource):
    """The rows of a Dask collection, partition by partition."""

    partitions: tuple[Any, ...]

    def openers(self) -> Iterator[tuple[Any, Callable[[Any], RowSource | None]]]:
        """Yield each partition, and what makes a source of it at the worker that holds it."""
        for place, partition in enumerate(self.partitions):
            name = f"partition {place + 1} of {self.name}"
            yield partition, partial(_partition_source, name, self.width, self.columns, self.keep)

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows, one partition after the other."""
        seen = 0
        for partition, opener in self.openers():
            opened = opener(partition.compute())
            if opened is not None:
                for block in opened.blocks(max_rows):
                    seen += int(block.shape[0])
                    yield block
        require_shape(self.name, seen, self.n_features)


def _partition_source(
    name: str, width: int, columns: tuple[str, ...] | None, keep: tuple[int, ...] | None, partition: Any
) -> RowSource | None:
    """Return a partition's rows as a source, None where it has none."""
    if len(partition) == 0:
        return None
    table = frame_table(partition, name)
    if table is not None:
        return table_source(table).select(columns or table.columns, extra="drop")
    rows = array_source(partition, name)
    if rows.width != width:
        raise InputError(f"{name} must have {width} columns as the others have, got {rows.width}")
    return replace(rows, columns=columns, keep=keep)


def is_dask(data: Any) -> bool:
    """Whether the object is a Dask array or data frame, without importing Dask."""
    base = sys.modules.get("dask.base")
    return base is not None and bool(base.is_dask_collection(data))


def dask_source(collection: Any, name: str | None) -> DaskSource:
    """Return the source of a Dask array's or data frame's rows."""
    if hasattr(type(collection), "columns"):  # a Delayed object has every attribute, its type has not
        name = name or "the Dask data frame"
        columns = tuple(str(label) for label in collection.columns)
        require_distinct(name, columns)
        parts = tuple(collection.to_delayed())
        return DaskSource(name=name, partitions=parts, width=len(columns), n_rows=None, columns=columns)
    if not hasattr(type(collection), "rechunk"):
        raise InputError(
            f"{name or 'data'} must be a Dask array or data frame, got {type(collection).__name__}"
        )
    name = name or "the Dask array"
    require_matrix(name, collection.shape, collection.dtype)
    rows, width = collection.shape
    parts = tuple(collection.rechunk({1: -1}).to_delayed().ravel())
    n_rows = None if rows != rows else int(rows)  # noqa: PLR0124 - unknown sizes are NaN
    return DaskSource(name=name, partitions=parts, width=int(width), n_rows=n_rows)
