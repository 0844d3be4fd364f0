"""Tables that others would read for us: an Arrow dataset and a Polars query, streamed batch by batch."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from fedpower.errors import InputError
from fedpower.rows.columns import require_distinct
from fedpower.rows.tables import TableReader, arrow, feature_names, sliced

_FALLBACK = "in-memory-map"
"""What Polars calls a step of a query that holds all of its rows at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class _DatasetTable:
    """An Arrow dataset as a reader of batches, fragment by fragment in the dataset's own order."""

    name: str
    columns: tuple[str, ...]
    n_rows: int | None
    dataset: Any

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only, one fragment at a time."""
        names = [*columns, *labels]
        with _readable(self.name):
            scanner = self.dataset.scanner(
                columns=names,
                batch_size=max_rows,
                batch_readahead=1,
                fragment_readahead=1,
                fragment_scan_options=self._scan_options(),
                use_threads=False,
            )
            for batch in scanner.to_batches():
                yield from sliced(batch.select(names), max_rows)

    def _scan_options(self) -> Any:
        """Return how a fragment is read: Parquet without read-ahead, as our own reader does."""
        ds = arrow("dataset")
        if not _is_parquet(self.dataset):
            return None
        return ds.ParquetFragmentScanOptions(pre_buffer=False, use_buffered_stream=True, buffer_size=2**16)


def _is_parquet(dataset: Any) -> bool:
    """Return whether a dataset is of Parquet files."""
    ds = arrow("dataset")
    return isinstance(dataset, ds.FileSystemDataset) and isinstance(dataset.format, ds.ParquetFileFormat)


@contextmanager
def _readable(name: str) -> Iterator[None]:
    """Turn Arrow's errors, which may quote cells, into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (arrow().ArrowException, OSError, ValueError):
        raise InputError(
            f"{name} must be readable to its end in every pass, got a dataset that is not; check its "
            "files, or give their folder instead"
        ) from None


def _dataset_reader(dataset: Any, name: str) -> _DatasetTable:
    """Return the reader of a dataset; only of Parquet files are the rows counted beforehand."""
    require_distinct(name, dataset.schema.names)
    with _readable(name):
        n_rows = int(dataset.count_rows()) if _is_parquet(dataset) else None
    columns = feature_names(dataset.schema)
    return _DatasetTable(name=name, columns=columns, n_rows=n_rows, dataset=dataset)


@dataclass(frozen=True, kw_only=True, eq=False)
class _LazyFrameTable:
    """A Polars query as a reader of batches; its streaming engine runs it anew in every pass."""

    name: str
    columns: tuple[str, ...]
    frame: Any

    @property
    def n_rows(self) -> None:
        """Unknown until the query has run."""
        return

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield batches of the wanted columns only, in the query's order."""
        polars = sys.modules["polars"]
        names = [*columns, *labels]
        with _runs(self.name):
            found = self.frame.select(names).collect_batches(
                chunk_size=max_rows, maintain_order=True, lazy=True, engine="streaming"
            )
            for part in found:
                table = part.to_arrow(compat_level=polars.CompatLevel.oldest())
                for batch in table.to_batches():
                    yield from sliced(batch, max_rows)


@contextmanager
def _runs(name: str) -> Iterator[None]:
    """Turn what Polars raises, which may quote cells, into one sentence."""
    try:
        yield
    except InputError:
        raise
    except (sys.modules["polars"].exceptions.PolarsError, OSError) as error:
        raise InputError(
            f"{name} must be a query that runs to its end, got {type(error).__name__} from Polars; "
            "collect it by itself to see why"
        ) from None


def _lazy_reader(frame: Any, name: str) -> _LazyFrameTable:
    """Return the reader of a query that can be streamed."""
    if not hasattr(frame, "collect_batches"):
        raise InputError(
            f"{name} must be read by a Polars that gives batches of a query (1.34 or later), got an "
            "older one; update it, or write the query to Parquet with sink_parquet"
        )
    with _runs(name):
        columns = tuple(frame.collect_schema().names())
        plan = frame.show_graph(raw_output=True, engine="streaming", plan_stage="physical")
    require_distinct(name, columns)
    if f'"{_FALLBACK}' in plan:
        raise InputError(
            f"{name} must be a query that Polars can stream, got one with a step that holds all rows at "
            "once; give its collect(), which does so too, or write it to Parquet first"
        )
    return _LazyFrameTable(name=name, columns=columns, frame=frame)


def lazy_reader(data: Any, name: str | None) -> TableReader | None:
    """Return the reader of an Arrow dataset or a Polars query; None for anything else."""
    datasets, polars = sys.modules.get("pyarrow.dataset"), sys.modules.get("polars")
    if datasets is not None and isinstance(data, datasets.Dataset):
        return _dataset_reader(data, name or "the dataset")
    if polars is not None and isinstance(data, polars.LazyFrame):
        return _lazy_reader(data, name or "the query")
    return None
