"""Scores written as they are computed, block by block: CSV, Parquet or NumPy."""

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError

Array = NDArray[np.float64]
Blocks = Iterable[Array]


def write_csv(stream: IO[str], blocks: Blocks, names: tuple[str, ...]) -> int:
    """Write scores as text that reads back to the same numbers; return how many rows."""
    stream.write(",".join(names) + "\n")
    count = 0
    for block in blocks:
        stream.write("".join(",".join(map(repr, row)) + "\n" for row in block.tolist()))
        count += len(block)
    return count


def writer_for(path: Path) -> Callable[[Path, Blocks, tuple[str, ...]], int]:
    """Return what writes scores to a file of this ending and returns how many rows."""
    if path.suffix.lower() not in WRITERS:
        raise InputError(
            f"{path} must end in one of {', '.join(WRITERS)}, got {path.suffix!r}; rename it"
        )
    return WRITERS[path.suffix.lower()]


def _csv(path: Path, blocks: Blocks, names: tuple[str, ...]) -> int:
    with path.open("w", encoding="utf-8", newline="") as stream:
        return write_csv(stream, blocks, names)


def _parquet(path: Path, blocks: Blocks, names: tuple[str, ...]) -> int:
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    schema: Any = pa.schema([(name, pa.float64()) for name in names])
    count = 0
    with pq.ParquetWriter(path, schema) as writer:
        for block in blocks:
            columns = [pa.array(np.ascontiguousarray(column)) for column in block.T]
            writer.write_batch(pa.record_batch(columns, schema=schema))
            count += len(block)
    return count


def _npy(path: Path, blocks: Blocks, names: tuple[str, ...]) -> int:
    """Write the rows, then the header again with their number: NumPy leaves room for it to grow."""
    count = 0
    with path.open("wb") as stream:
        _npy_header(stream, 0, len(names))
        for block in blocks:
            stream.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            count += len(block)
        stream.seek(0)
        _npy_header(stream, count, len(names))
    return count


def _npy_header(stream: IO[bytes], n_rows: int, width: int) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(stream, header)


WRITERS: dict[str, Callable[[Path, Blocks, tuple[str, ...]], int]] = {
    ".csv": _csv,
    ".parquet": _parquet,
    ".npy": _npy,
}
