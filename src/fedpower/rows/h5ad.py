"""Annotated matrices of cells by genes: ``.h5ad`` files, read in slices, and AnnData objects."""

import importlib.util
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from scipy import sparse

from fedpower.errors import InputError, installing
from fedpower.rows.arrays import PositionalSource, array_source, sparse_source
from fedpower.rows.columns import is_wide, require_matrix
from fedpower.rows.source import Block
from fedpower.rows.sparse import CsrFileSource, Slices

_SPARSE = {"csr_matrix": sparse.csr_array, "csc_matrix": sparse.csc_array}
"""How ``X`` may be stored besides as a dense array, by the encoding's name."""


def h5py() -> Any:
    """Return h5py, imported on first use, or refuse to go on without it."""
    if importlib.util.find_spec("h5py") is None:
        raise InputError(
            "an .h5ad file must be read with h5py, got none installed; run " + installing("h5ad")
        )
    return import_module("h5py")


@contextmanager
def _opened(path: Path, name: str) -> Iterator[Any]:
    """Open a file of annotated data; one that is damaged or of another kind is refused."""
    try:
        with h5py().File(path, "r") as file:
            if file.attrs.get("encoding-type") != "anndata":
                raise InputError(
                    f"{name} must be an .h5ad file of anndata 0.8 or newer, got another or an older "
                    "kind; write it again with adata.write_h5ad"
                )
            yield file
    except (OSError, KeyError, RuntimeError, ValueError) as error:
        if isinstance(error, InputError):
            raise
        raise _corrupt_h5ad(name) from None


def _corrupt_h5ad(name: str) -> InputError:
    """Return the error for a truncated or damaged file."""
    return InputError(
        f"{name} must be a complete .h5ad file, got one that is truncated or damaged; write or copy it again"
    )


def _names_of(frame: Any) -> tuple[str, ...]:
    """Return the index of a stored data frame, ``obs`` or ``var``: its names in order."""
    stored = frame[frame.attrs["_index"]]
    values = stored["values"] if isinstance(stored, h5py().Group) else stored  # or nullable
    return tuple(value.decode() if isinstance(value, bytes) else str(value) for value in values[:])


@dataclass(frozen=True, kw_only=True, eq=False)
class _H5adSource(PositionalSource):
    """The rows of a dense ``X``; every pass opens the file for itself."""

    path: Path

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices of rows."""
        with _opened(self.path, self.name) as file:
            for start in range(0, file["X"].shape[0], max_rows):
                with np.errstate(over="ignore"):
                    yield np.asarray(file["X"][start : start + max_rows], dtype=np.float64)


@dataclass(frozen=True, kw_only=True, eq=False)
class _SparseH5adSource(CsrFileSource):
    """The rows of a CSR ``X``."""

    @contextmanager
    def slices(self) -> Iterator[Slices]:
        """Give what reads indices and values from the file."""
        with _opened(self.path, self.name) as file:
            stored = file["X"]
            yield lambda start, stop: (stored["indices"][start:stop], stored["data"][start:stop])

    def corrupt(self) -> InputError:
        """Return the error for a file that is not as anndata wrote it."""
        return _corrupt_h5ad(self.name)


def h5ad_source(path: Path, name: str) -> PositionalSource:
    """Return the source of a file's ``X``: dense and CSR ones are streamed, a CSC one is read whole."""
    with _opened(path, name) as file:
        names, stored = _names_of(file["var"]), file["X"]
        kind = stored.attrs.get("encoding-type")
        if isinstance(stored, h5py().Dataset):
            require_matrix(name, stored.shape, stored.dtype)
            rows, width = stored.shape
            found: PositionalSource = _H5adSource(
                name=name, width=width, n_rows=rows, path=path, wide=is_wide(stored.dtype)
            )
        elif kind in _SPARSE:
            found = _sparse(stored, path, name)
        else:
            raise InputError(f"X of {name} must be a dense or sparse matrix, got {kind!r}; convert it to CSR")
    return found.named(names)


def _sparse(stored: Any, path: Path, name: str) -> PositionalSource:
    """Return the source of a stored sparse matrix."""
    shape = tuple(int(size) for size in stored.attrs["shape"])
    require_matrix(name, shape, stored["data"].dtype)
    indptr = stored["indptr"][:].astype(np.int64)
    kind = stored.attrs["encoding-type"]
    lines = shape[0] if kind == "csr_matrix" else shape[1]
    whole = indptr.size == lines + 1 and indptr[0] == 0 and not (np.diff(indptr) < 0).any()
    if not whole or indptr[-1] != stored["data"].shape[0]:
        raise _corrupt_h5ad(name)
    if kind == "csr_matrix":
        return _SparseH5adSource(
            name=name,
            width=shape[1],
            n_rows=shape[0],
            path=path,
            indptr=indptr,
            wide=is_wide(stored["data"].dtype),
        )
    parts = (stored["data"][:], stored["indices"][:], indptr)
    return sparse_source(_SPARSE[kind](parts, shape=shape), name)


def is_anndata(data: Any) -> bool:
    """Whether the object is an AnnData, without importing anndata."""
    anndata = sys.modules.get("anndata")
    return anndata is not None and isinstance(data, anndata.AnnData)


def anndata_source(data: Any, name: str) -> PositionalSource:
    """Return the source of an AnnData's ``X``; one that is backed by a file is streamed from there."""
    if data.isbacked:
        if data.is_view:
            raise InputError(
                f"{name} must be in memory or a whole file, got a view of a backed AnnData; call "
                "to_memory() on it first"
            )
        return h5ad_source(Path(data.filename), name)
    if data.X is None:
        raise InputError(f"{name} must have rows in X, got an AnnData without; set its X")
    rows = data.X
    made = sparse_source(rows, name) if sparse.issparse(rows) else array_source(rows, name)
    return made.named(tuple(str(column) for column in data.var_names))
