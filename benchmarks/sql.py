"""Rows a second and peak memory of a pass over the same rows from Parquet, SQLite and PostgreSQL.

Every pass is a process of its own, the three kinds in turn, and speed is told as a ratio to Parquet in
the same run; CPU time as well, which a busy machine changes less. The PostgreSQL server is a private one
on the loopback (`postgres_server`), made and removed here.
"""

import argparse
import os
import sqlite3
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
from numpy.typing import NDArray

from benchmarks.common import parser, peak_mb, report
from benchmarks.postgres_server import PostgresServer, private_server
from benchmarks.processes import measured_apart
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.sql import QuerySource, SqlQuery
from fedpower.rows.tables import TableSource
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.moment import accumulate_moment

PASSWORD = "benchmark"  # noqa: S105  (of a server that lives as long as this run)
BLOCK = 50_000
SMALL = 100_000
"""Rows read first, so that what is measured then is the table's and not the libraries'."""

RULE = RowTreatment(row_norm=5.0)


def main() -> None:
    """Write the rows three times, read them in turn, and report."""
    options = _options()
    found: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="fedpower-sql-") as name, private_server(PASSWORD) as server:
        folder, version = Path(name), server.version
        os.environ["BENCHMARK_PASSWORD"] = server.password  # for the processes that read
        places = _write(folder, server, options.rows, options.features)
        for turn in range(options.repeats):
            for kind, place in places.items():
                measured = measured_apart("benchmarks.sql:read", kind=kind, place=place)
                found.append({"kind": kind, "turn": turn, **measured})
                print(f"{kind}: {measured['rows'] / measured['seconds']:,.0f} rows/s", flush=True)
    best = {kind: _best([each for each in found if each["kind"] == kind]) for kind in places}
    report(
        options,
        name="sql",
        settings={
            "rows": options.rows,
            "columns": options.features,
            "repeats": options.repeats,
            "pass": "accumulate_moment(open_source(...), RowTreatment(row_norm=5.0))",
            "postgresql": version,
        },
        columns=[
            "rows from",
            "rows/s",
            "time / Parquet's",
            "reader's CPU s",
            "without the digest",
            "CPU / Parquet's",
            "MB for the pass",
            "peak MB of the process",
        ],
        rows=[
            [
                kind,
                f"{options.rows / each['seconds']:,.0f}",
                f"{each['seconds'] / best['Parquet']['seconds']:.1f}",
                f"{each['cpu']:.1f}",
                f"{each['cpu_undigested']:.1f}",
                f"{each['cpu'] / best['Parquet']['cpu']:.1f}",
                f"{each['rise_mb']:.0f}",
                f"{each['peak_mb']:.0f}",
            ]
            for kind, each in best.items()
        ],
        raw=found,
        notes=[
            f"The least time and the most memory of {options.repeats} passes of each kind, in turn. "
            "A query's pass digests every row so that a changed table is noticed; a file's does not. "
            "The reader's CPU time leaves out the server's. The rows are "
            f"{8e-6 * options.rows * options.features:.0f} MB as float64; the memory of a pass is what "
            "the peak rises above that of a pass over 100,000 rows.",
        ],
    )  # fmt: skip


def _best(found: list[dict[str, Any]]) -> dict[str, float]:
    """Return the least time and the most memory over the passes of one kind."""
    times = {part: min(each[part] for each in found) for part in ("seconds", "cpu", "cpu_undigested")}
    return times | {part: max(each[part] for each in found) for part in ("rise_mb", "peak_mb")}


def _write(folder: Path, server: PostgresServer, n_rows: int, width: int) -> dict[str, str]:
    """Write the same rows as a Parquet file, a SQLite file and a table of the server."""
    names = [f"x{place}" for place in range(width)]
    schema = pa.schema([(name, pa.float64()) for name in names])
    parquet, database = folder / "rows.parquet", folder / "rows.db"
    columns = ", ".join(f"{name} double precision" for name in names)
    server.sql(f"CREATE TABLE visits ({columns})")
    connection = sqlite3.connect(database)
    connection.execute(f"CREATE TABLE visits ({columns})")
    rng = np.random.default_rng(0)
    with pyarrow.parquet.ParquetWriter(parquet, schema, use_dictionary=False) as writer:
        for start in range(0, n_rows, BLOCK):
            rows = rng.standard_normal((min(BLOCK, n_rows - start), width))
            writer.write_table(pa.table(list(rows.T), schema=schema))
            marks = ", ".join("?" * width)
            connection.executemany(f"INSERT INTO visits VALUES ({marks})", rows.tolist())  # noqa: S608
            server.sql("COPY visits FROM STDIN", rows=_text(rows))
    connection.commit()
    connection.close()
    server.sql("VACUUM ANALYZE visits")
    return {"Parquet": str(parquet), "SQLite": f"sqlite:///{database}", "PostgreSQL": server.url}


def _text(rows: NDArray[np.float64]) -> str:
    return "".join("\t".join(map(repr, row)) + "\n" for row in rows.tolist())


def read(*, kind: str, place: str) -> dict[str, Any]:
    """Return the seconds and peaks of a pass over the rows at a place."""
    accumulate_moment(opened(kind, place, limit=SMALL), RULE)  # the libraries' own pages, and a batch
    before = peak_mb()
    source = opened(kind, place)
    wall, cpu = time.perf_counter(), time.process_time()
    moments = accumulate_moment(source, RULE)
    wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    after = peak_mb()
    bare = time.process_time()
    accumulate_moment(undigested(source), RULE)
    bare = time.process_time() - bare
    return {
        "rows": moments.n_rows,
        "seconds": wall,
        "cpu": cpu,
        "cpu_undigested": bare,
        "rise_mb": after - before,
        "peak_mb": after,
    }


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


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=1_000_000)
    made.add_argument("--features", type=int, default=20)
    made.add_argument("--repeats", type=int, default=3)
    return made.parse_args()


if __name__ == "__main__":
    main()
