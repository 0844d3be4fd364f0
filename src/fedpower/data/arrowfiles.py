"""Tables in Parquet and Arrow (Feather) files, read batch by batch."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedpower.data.checks import require_distinct
from fedpower.data.frames import feature_names
from fedpower.data.tables import arrow, sliced, with_key
from fedpower.errors import InputError

READ_BYTES = 2**20
"""Bytes buffered over all the column chunks of a Parquet file."""

BATCH_ROWS, BATCH_BYTES = 2**14, 4 * 2**20
"""Rows decoded at once at least, within these bytes: every batch of a column has a cost of its own."""


@contextmanager
def _readable(name: str, kind: str) -> Iterator[None]:
    """Turn Arrow's errors about a damaged file into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (arrow().ArrowException, OSError, EOFError, ValueError):
        raise InputError(
            f"{name} must be a complete {kind} file, got one that is truncated or damaged; "
            "write or copy it again"
        ) from None


@dataclass(frozen=True, kw_only=True, eq=False)
class ParquetTable:
    """A Parquet file as a reader of batches.

    Column chunks are read through small buffers, without read-ahead, so that a pass holds about one
    data page per column and one batch of some MiB, whatever the size of the row groups.
    """

    name: str
    columns: tuple[str, ...]
    n_rows: int
    path: Path

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only."""
        names = with_key(columns, key)
        buffer = min(max(READ_BYTES // len(names), 2**12), 2**20)
        with _readable(self.name, "Parquet"), _parquet(self.path, buffer_size=buffer) as file:
            size = max(max_rows, min(BATCH_ROWS, BATCH_BYTES // (8 * len(names))))
            batches = file.iter_batches(batch_size=size, columns=names, use_threads=False)
            for batch in batches:
                yield from sliced(batch.select(names), max_rows)


def _parquet(path: Path, **options: Any) -> Any:
    """Open a Parquet file without read-ahead."""
    return arrow("parquet").ParquetFile(path, pre_buffer=False, memory_map=False, **options)


def parquet_reader(path: Path, name: str) -> ParquetTable:
    """Return the reader of a Parquet file."""
    with _readable(name, "Parquet"), _parquet(path) as file:
        schema, n_rows = file.schema_arrow, int(file.metadata.num_rows)
    require_distinct(name, schema.names)
    return ParquetTable(name=name, columns=feature_names(schema), n_rows=n_rows, path=path)


@dataclass(frozen=True, kw_only=True, eq=False)
class IpcTable:
    """An Arrow IPC file or stream (Feather version 2) as a reader of batches.

    The file is mapped and opened anew for every record batch, so that a pass holds one of them.
    """

    name: str
    columns: tuple[str, ...]
    n_rows: int | None
    path: Path
    stream: bool

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, key: str | None = None
    ) -> Iterator[Any]:
        """Yield slices of the stored record batches."""
        names = with_key(columns, key)
        with _readable(self.name, "Arrow"):
            for batch in self._stored(names):
                yield from sliced(batch.select(names), max_rows)
                del batch  # and with it its mapping

    def _stored(self, names: list[str]) -> Iterator[Any]:
        """Yield the record batches as they were written."""
        pa = arrow()
        if self.stream:
            with pa.OSFile(str(self.path)) as file:
                yield from arrow("ipc").open_stream(file)
            return
        with pa.memory_map(str(self.path)) as file:
            reader = arrow("ipc").open_file(file)
            count = reader.num_record_batches
            places = sorted(reader.schema.get_field_index(column) for column in names)
            del reader
        options = arrow("ipc").IpcReadOptions(included_fields=places, use_threads=False)
        for index in range(count):
            with pa.memory_map(str(self.path)) as file:
                yield arrow("ipc").open_file(file, options=options).get_batch(index)


def ipc_reader(path: Path, name: str) -> IpcTable:
    """Return the reader of a Feather or Arrow file."""
    with path.open("rb") as file:
        stream = file.read(6) != b"ARROW1"
    with _readable(name, "Arrow"), arrow().memory_map(str(path)) as file:
        ipc = arrow("ipc")
        reader = ipc.open_stream(file) if stream else ipc.open_file(file)
        schema = reader.schema
        count = None if stream or not hasattr(reader, "count_rows") else int(reader.count_rows())
        del reader
    require_distinct(name, schema.names)
    return IpcTable(
        name=name, columns=feature_names(schema), n_rows=count, path=path, stream=stream
    )
