"""Rows of a svmlight (libsvm) text file, read line by line into sparse blocks; labels are ignored.

Indices count from 1 as LIBSVM's do, unless ``zero_based=True``. They are never guessed: a silo that
happens not to use the first feature would otherwise be off by one column from the others.
"""

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.data.arrays import canonical
from fedpower.data.checks import require_shape
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block, SparseBlock
from fedpower.errors import InputError

MAX_BLOCK_ENTRIES = 2**18
"""Entries parsed at once: a block is cut short when its rows are long."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SvmlightSource(PositionalSource):
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
            for wrong, bound in (
                (places < base, "at least"),
                (places >= self.width + base, "at most"),
            ):
                if wrong.any():
                    limit = base if bound == "at least" else self.width + base - 1
                    raise _index_error(self.name, counts, wrong, row, f"{bound} {limit}")
            yield _csr(counts, places - base, values, self.width)
            row += counts.size


def svmlight_source(
    path: Path, name: str, *, n_features: int | None = None, zero_based: bool = False
) -> SvmlightSource:
    """Return the source of a svmlight file; without `n_features` a pass finds the width."""
    if n_features is not None:
        return SvmlightSource(
            name=name, width=n_features, n_rows=None, path=path, zero_based=zero_based
        )
    largest, rows, entries = -1, 0, 0
    for counts, places, _ in _parsed(path, name, MAX_BLOCK_ENTRIES):
        largest = max(largest, int(places.max(initial=-1)))
        rows += counts.size
        entries += places.size
    width = largest + 1 if zero_based else max(largest, 0)
    require_shape(name, rows, width)
    share = entries / (rows * width)
    return SvmlightSource(
        name=name, width=width, n_rows=rows, path=path, zero_based=zero_based, share=share
    )


Parsed = tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.float64]]


def _parsed(path: Path, name: str, max_rows: int) -> Iterator[Parsed]:
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
                if len(lines) == max_rows or entries >= MAX_BLOCK_ENTRIES:
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


def _parse(lines: list[bytes], counts: list[int], name: str, first_row: int) -> Parsed:
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


def _numbers(lines: list[bytes], counts: list[int]) -> Parsed:
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
        f"indices in {name} must be {bound}, got another at row {row}; "
        "set n_features, or zero_based=True for indices that count from 0"
    )
