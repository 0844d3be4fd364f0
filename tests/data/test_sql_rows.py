"""Rows of a query on SQLite: their types, their sameness from pass to pass, and who may change them."""

import sqlite3
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from row_forms import read_all, write_sqlite
from test_bad_data import CELL, refusal, refused

from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.sql import SqlQuery, connected


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "ward.db"


def execute(path: Path, *statements: str) -> None:
    with sqlite3.connect(path) as connection:
        for statement in statements:
            connection.execute(statement)
    connection.close()


def query(text: str, path: Path) -> SqlQuery:
    return SqlQuery(text, f"sqlite:///{path}")


def test_integers_reals_and_logical_values_are_numbers_in_whatever_row_they_come(path: Path) -> None:
    execute(path, "CREATE TABLE t (a NUMERIC, b)")
    big = 2**53 + 3
    held = [(1, True)] * 3000 + [(2.5, 7), (big, -1e300)]
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", held)
    connection.close()
    found = read_all(open_source(query("SELECT a, b FROM t", path)), 100)
    np.testing.assert_array_equal(found, np.array(held, dtype=np.float64))


@pytest.mark.parametrize(("cell", "word"), [(f"'x{CELL}'", "text"), ("x'3133'", "blob")])
def test_text_and_blobs_among_numbers_are_refused_at_their_row(path: Path, cell: str, word: str) -> None:
    execute(path, "CREATE TABLE t (a, b)")
    with sqlite3.connect(path) as connection:
        connection.executemany("INSERT INTO t VALUES (?, ?)", [(1, 2.0)] * 5000)
        connection.execute(f"INSERT INTO t VALUES (1, {cell})")
        connection.execute("INSERT INTO t VALUES (NULL, 1)")
    connection.close()
    message = refused(query("SELECT a, b FROM t", path))
    assert f"column 'b' of the query must hold numbers, got {word} at row 5001; drop" in message


def test_a_null_is_a_missing_value_even_before_text(path: Path) -> None:
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, NULL), (1, 'x')")
    assert "column 'b' of the query must hold finite numbers, got a missing value" in refused(
        query("SELECT a, b FROM t", path)
    )
    assert read_all(open_source(query("SELECT a, b FROM t", path), drop=["b"])).tolist() == [[1], [1]]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT a, b FROM t",
        " select a, b from t ; ",
        "-- the rows\n/* all */ SELECT a, b FROM t -- to the end",
        "WITH x AS (SELECT a, b FROM t) SELECT * FROM x ORDER BY a LIMIT 5",
        "SELECT a, b FROM t UNION ALL SELECT a, b FROM t WHERE 0",
        "VALUES (1, 2), (3, 5)",
    ],
)
def test_queries_of_every_shape_are_read(path: Path, text: str) -> None:
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2), (3, 5)")
    assert sorted(read_all(open_source(query(text, path)), 1).tolist()) == [[1, 2], [3, 5]]


CHANGES = (
    "DELETE FROM t",
    "WITH x AS (SELECT 1) DELETE FROM t",
    "DELETE FROM t RETURNING a",
    "INSERT INTO t VALUES (1, 1) RETURNING a",
    "SELECT a FROM t; DELETE FROM t",
    "SELECT a FROM t) SELECT 1; DELETE FROM t; --",
    "DROP TABLE t",
    "PRAGMA user_version = 5",
    "ATTACH 'other.db' AS other",
    "VACUUM",
)


@pytest.mark.parametrize("text", CHANGES)
def test_what_would_change_the_database_is_refused_and_changes_nothing(
    path: Path, text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(path.parent)
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2), (3, 5)")
    before = path.read_bytes()
    refusal(lambda: read_all(open_source(query(text, path))))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_connection_itself_is_read_only(path: Path) -> None:
    execute(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    before = path.read_bytes()
    with (
        connected(query("SELECT a FROM t", path), "x") as connection,
        connection.cursor() as cursor,
        pytest.raises(Exception, match="readonly database"),
    ):
        cursor.execute("DELETE FROM t")
    assert path.read_bytes() == before


def test_a_refused_query_is_explained_without_its_cells(path: Path) -> None:
    execute(path, "CREATE TABLE t (a)", f"INSERT INTO t VALUES ('{{{CELL}')")
    assert "got 'no such table: nope'" in refused(query("SELECT a FROM nope", path))
    assert 'near "t": syntax error' in refused(query("SELECT a FORM t x", path))
    broken = refused(query("SELECT json_extract(a, '$.x') AS j FROM t", path))
    assert "must be a query that runs to its end, got an error from the database" in broken
    assert "at least one row" in refused(query("SELECT a FROM t WHERE 0", path))


def test_the_order_of_rows_does_not_show_in_the_fingerprint_and_everything_else_does(path: Path) -> None:
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2), (3, 5), (3, 5), (0.0, -1)")

    def of(text: str) -> str:
        return fingerprint(open_source(query(text, path)))

    rows = "SELECT a, b FROM t"
    base = of(rows)
    assert of(f"{rows} ORDER BY b DESC") == base
    others = [
        f"{rows} WHERE b <> -1",
        "SELECT a, CAST(b AS TEXT) AS b FROM t",
        "SELECT a, NULLIF(b, -1) AS b FROM t",
        "SELECT a, COALESCE(NULLIF(b, -1), 'NULL') AS b FROM t",
        f"{rows} UNION SELECT a, b FROM t",  # the double row once
        f"{rows} UNION ALL SELECT 0.0, -1",
        "SELECT b AS a, a AS b FROM t",
        "SELECT a, b AS c FROM t",
        "SELECT b, a FROM t",
        "SELECT a, CASE b WHEN -1 THEN -1.0000000000000002 ELSE b END AS b FROM t",
        # the same cells in other rows
        "SELECT x.a, y.b FROM (SELECT a, row_number() OVER (ORDER BY a) AS n FROM t) AS x "
        "JOIN (SELECT b, row_number() OVER (ORDER BY -b) AS n FROM t) AS y USING (n)",
    ]
    assert len({base, *map(of, others)}) == 1 + len(others)


def test_a_pass_over_other_rows_is_refused_at_its_end(path: Path) -> None:
    url = write_sqlite(np.arange(10.0).reshape(5, 2), path, ("a", "b"))
    source = open_source(SqlQuery("SELECT a, b FROM visits", url))
    narrow = source.select(("a",), extra="drop")
    before = fingerprint(source)
    read_all(narrow)
    execute(path, "UPDATE visits SET b = b + 1 WHERE a = 4")
    assert "must hold the same rows whenever it is read" in refusal(lambda: read_all(source))
    assert fingerprint(source) == before  # that of the first pass
    assert "got others than before" in refusal(lambda: read_all(narrow))
    again = open_source(SqlQuery("SELECT a, b FROM visits", url))
    assert fingerprint(again) != before


def test_a_query_can_be_split_into_silos(path: Path) -> None:
    execute(path, "CREATE TABLE t (a, site)", "INSERT INTO t VALUES (1, 'n'), (2, 5), (3, 'n')")
    parts = split_by_group(query("SELECT * FROM t", path), "site")
    assert {name: read_all(part).tolist() for name, part in parts.items()} == {"5": [[2]], "n": [[1], [3]]}
    assert parts["n"].n_rows == 2
    assert fingerprint(parts["n"]) == fingerprint(parts["5"])  # that of the whole query
    execute(path, "INSERT INTO t VALUES (9, 'n')")
    fresh = split_by_group(query("SELECT * FROM t", path), "site")
    assert fingerprint(fresh["n"]) != fingerprint(parts["n"])


def test_without_its_driver_a_query_says_what_to_install(path: Path) -> None:
    execute(path, "CREATE TABLE t (a)")
    code = (
        "import sys; sys.modules['adbc_driver_sqlite'] = None\n"
        "from fedpower.rows.opening import open_query\n"
        f"open_query({{'query': 'SELECT 1', 'database': 'sqlite:///{path}'}})"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "`pip install '.[sql]'` in a copy" in done.stderr
