"""One pass of the SQL benchmark in a process of its own: seconds and peaks, as JSON."""

import json
import sys
import time
from collections.abc import Iterator

import pyarrow as pa
import pyarrow.parquet

from benchmarks.common import peak_mb
from fedpower.data import RowSource, RowTreatment, SqlQuery, accumulate_moment, open_source
from fedpower.data.sql import QuerySource
from fedpower.data.tables import TableSource

SMALL = 100_000
"""Rows read first, so that what is measured then is the table's and not the libraries'."""

RULE = RowTreatment(row_norm=5.0)


def main() -> None:
    """Read the rows that the arguments name and print what was measured."""
    kind, place = sys.argv[1:]
    accumulate_moment(
        opened(kind, place, limit=SMALL), RULE
    )  # the libraries' own pages, and a batch
    before = peak_mb()
    source = opened(kind, place)
    wall, cpu = time.perf_counter(), time.process_time()
    moments = accumulate_moment(source, RULE)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = peak_mb()
    bare = time.process_time()
    accumulate_moment(undigested(source), RULE)
    bare = time.process_time() - bare
    measured = {
        "rows": moments.n_rows,
        "seconds": wall,
        "cpu": cpu,
        "cpu_undigested": bare,
        "rise_mb": after - before,
        "peak_mb": after,
    }
    print(json.dumps(measured))


def opened(kind: str, place: str, *, limit: int | None = None) -> RowSource:
    """Return the source of all rows, or of the first of them."""
    if kind == "Parquet":
        return open_source(place if limit is None else next(_batches(place, limit)))
    password = "BENCHMARK_PASSWORD" if kind == "PostgreSQL" else None
    query = "SELECT * FROM visits" + ("" if limit is None else f" LIMIT {limit}")  # noqa: S608
    return open_source(SqlQuery(query, place, password_env=password))


def undigested(source: RowSource) -> RowSource:
    """Return the source without the digest of its rows that a query's passes make."""
    if not isinstance(source, QuerySource):
        return source
    return TableSource(name=source.name, reader=source.reader, columns=source.columns, n_rows=None)


def _batches(path: str, n_rows: int) -> Iterator[pa.RecordBatch]:
    return pyarrow.parquet.ParquetFile(path).iter_batches(batch_size=n_rows)  # type: ignore[no-any-return]


if __name__ == "__main__":
    main()
