"""Scores written as they are computed, block by block: CSV, Parquet or NumPy."""

import csv
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.report.files import as_text

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores on their way to a file.

    Parameters
    ----------
    names
        What the columns of scores are called.
    blocks
        Blocks of rows, each with an Arrow array of their ids, or with None where there are none.
    label
        The name of the column of ids; None without one.
    """

    names: tuple[str, ...]
    blocks: Iterable[tuple[Any, Array]]
    label: str | None = None

    @property
    def header(self) -> list[str]:
        """The names of all columns; that of the ids comes first."""
        return [*self.names] if self.label is None else [self.label, *self.names]


def write_csv(stream: IO[str], scores: Scores) -> int:
    """Write scores as text that reads back to the same numbers; return how many rows."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(as_text, scores.header))
    count = 0
    for cells, block in scores.blocks:
        rows = block.tolist()
        if cells is not None:
            labels = map(as_text, cells.to_pylist())
            rows = [[label, *row] for label, row in zip(labels, rows, strict=True)]
        writer.writerows(rows)
        count += len(block)
    return count


def writer_for(path: Path, *, labelled: bool = False) -> Callable[[Path, Scores], int]:
    """Return what writes scores to a file of this ending and returns how many rows."""
    known = [ending for ending in WRITERS if not (labelled and ending == ".npy")]
    if path.suffix.lower() not in known:
        why = ", for an array of numbers holds no ids" if path.suffix.lower() in WRITERS else ""
        raise InputError(
            f"{path} must end in one of {', '.join(known)}, got {path.suffix!r}{why}; rename it"
        )
    return WRITERS[path.suffix.lower()]


def _csv(path: Path, scores: Scores) -> int:
    with path.open("w", encoding="utf-8", newline="") as stream:
        return write_csv(stream, scores)


def _parquet(path: Path, scores: Scores) -> int:
    """Write the scores as float64, and ids in the type that they have in their table."""
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    writer: Any = None
    count = 0
    try:
        for cells, block in scores.blocks:
            columns = [pa.array(np.ascontiguousarray(column)) for column in block.T]
            if cells is not None:
                columns.insert(0, cells)
            batch = pa.record_batch(columns, names=scores.header)
            if writer is None:
                writer = pq.ParquetWriter(path, batch.schema)
            writer.write_batch(batch)
            count += len(block)
    finally:
        if writer is not None:
            writer.close()
    return count


def _npy(path: Path, scores: Scores) -> int:
    """Write the rows, then the header again with their number: NumPy leaves room for it to grow."""
    count, width = 0, len(scores.names)
    with path.open("wb") as stream:
        _npy_header(stream, 0, width)
        for _, block in scores.blocks:
            stream.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            count += len(block)
        stream.seek(0)
        _npy_header(stream, count, width)
    return count


def _npy_header(stream: IO[bytes], n_rows: int, width: int) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(stream, header)


WRITERS: dict[str, Callable[[Path, Scores], int]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".npy": _npy,
}
