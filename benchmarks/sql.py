"""Rows from databases: a private fit of the same rows from Parquet, SQLite and PostgreSQL."""

import os
import sqlite3
from pathlib import Path

import numpy as np

from benchmarks.postgres_server import PostgresServer, find_programs, private_server
from benchmarks.runner import MissingError, Record, Table, apart, case, compare, scratch, timed, timing_table
from benchmarks.speed import BOUND, fed_pca, write_table
from fedpower import SqlQuery

SECRET = "BENCHMARK_PASSWORD"  # noqa: S105  (the name of a variable)
COLUMNS = ("seconds", "ratio", "processor s", "processor ratio", "of which the fit's own")


@case(
    "sql",
    about="private fits from Parquet, SQLite and PostgreSQL, each in a process of its own",
    quick={"rows": 300, "columns": 4, "repeats": 1},
)
def sql(*, rows: int = 1_000_000, columns: int = 20, repeats: int = 3) -> Table:
    """Write the rows three times and fit them in turn; the server's own time is left out."""
    if find_programs() is None:
        raise MissingError("PostgreSQL is not installed; run scripts/install-postgres")
    with scratch() as folder, private_server("benchmark") as server:
        os.environ[SECRET] = server.password  # for the processes that read
        places = _write(folder, server, np.random.default_rng(0).standard_normal((rows, columns)))
        ways = {
            kind: lambda kind=kind: apart("benchmarks.sql:fit", kind=kind, place=places[kind])
            for kind in places
        }
        measured = compare(ways, repeats, warm=False)
        version = server.version
    table = timing_table(measured, base="Parquet", columns=COLUMNS)
    return Table(**{**vars(table), "settings": {"postgresql": version}})


def fit(*, kind: str, place: str) -> Record:
    """Measure a private fit of the rows at a place."""
    password = SECRET if kind == "PostgreSQL" else None
    silo = place if kind == "Parquet" else SqlQuery("SELECT * FROM visits", place, password_env=password)
    return timed(lambda: fed_pca([silo], epsilon=1.0, **(BOUND | {"row_norm": 5.0})))[0]


def _write(folder: Path, server: PostgresServer, rows: np.ndarray) -> dict[str, str]:
    parquet, database = write_table(folder / "rows.parquet", rows), folder / "rows.db"
    columns = ", ".join(f"x{place} double precision" for place in range(rows.shape[1]))
    server.sql(f"CREATE TABLE visits ({columns})")
    with sqlite3.connect(database) as connection:
        connection.execute(f"CREATE TABLE visits ({columns})")
        for block in np.array_split(rows, max(1, len(rows) // 50_000)):
            marks = ", ".join("?" * rows.shape[1])
            connection.executemany(f"INSERT INTO visits VALUES ({marks})", block.tolist())  # noqa: S608
            text = "".join("\t".join(map(repr, row)) + "\n" for row in block.tolist())
            server.sql("COPY visits FROM STDIN", rows=text)
    server.sql("VACUUM ANALYZE visits")
    return {"Parquet": str(parquet), "SQLite": f"sqlite:///{database}", "PostgreSQL": server.url}
