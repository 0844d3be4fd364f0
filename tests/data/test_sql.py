"""Queries: database URLs, the places of passwords, types and sameness of rows, and who may change them."""

import sqlite3
import sys
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest
from row_forms import read_all, write_sqlite
from test_bad_data import CELL, refusal, refused

from fedpower.exceptions import InputError
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.sql import Address, SqlQuery, connected, libpq_url, parse_address
from fedpower.toml import to_toml

SECRET = "pl4nted-pa55"  # noqa: S105
ROWS = "SELECT a FROM t"


@pytest.mark.parametrize(
    ("url", "server", "names_user"),
    [
        ("postgresql://db.ward:6432/north", "db.ward:6432", False),
        ("postgres://ann%40x@[::1]/n%20n?sslmode=verify-full", "[::1]", True),
        ("postgresql://", "libpq's default", False),
        ("postgresql://?service=north", "north", False),
        ("postgresql:///n?host=/run/pg&user=ann", "/run/pg", True),
        ("postgresql://a:1,b/n", "a:1,b", False),
    ],
)
def test_postgres_urls_are_libpq_s_own(url, server, names_user):
    address = parse_address(url)
    assert (address.kind, address.server, address.names_user) == ("postgresql", server, names_user)


@pytest.mark.parametrize(
    "url",
    [
        f"postgresql://ann:{SECRET}@host/north",
        f"postgresql://ann:{SECRET}@/north",
        f"postgresql://:{SECRET}@host",
        f"postgresql://host/north?password={SECRET}",
        f"postgresql://host/north?sslmode=require&PASSWORD={SECRET}",
        f"postgresql://host/north?sslpassword={SECRET}",
        f"postgresql://ann:12/{SECRET}@host/north",
        f"postgresql://ann:x/{SECRET}@host/north",
        f"postgresql://ann:12?{SECRET}=1@host/north",
        f"postgresql://ann:12#{SECRET}@host/north",
        f"postgresql://ann:a@{SECRET}@host/north",
        f"postgresql://host:{SECRET}/north",
        f"postgresql://host/north?{SECRET}=1",
        f"postgresql://host/north?{SECRET}",
        f"mysql://ann:{SECRET}@host/north",
        f"host=x password={SECRET}",
        f"sqlite://ann:{SECRET}@host",
    ],
)
def test_a_url_with_a_password_or_that_cannot_be_read_is_refused_and_never_quoted(url):
    message = refusal(lambda: SqlQuery(ROWS, url))
    assert SECRET not in message
    assert "host/north" not in message


def test_a_query_holds_no_password_and_shows_none(tmp_path, monkeypatch):
    monkeypatch.setenv("NORTH_DB_PASSWORD", SECRET)
    (tmp_path / "secret").write_text(f"{SECRET}\n")
    for place in ({"password_env": "NORTH_DB_PASSWORD"}, {"password_file": tmp_path / "secret"}):
        query = SqlQuery(ROWS, "postgresql://host/north", user="ann", **place)  # type: ignore[arg-type]
        assert query.password() == SECRET
        assert SECRET not in repr(query)
        assert SECRET not in str(vars(type(query)))
    assert SqlQuery(ROWS, "postgresql://host/north").password() is None


def test_the_place_of_a_password_must_hold_one(tmp_path, monkeypatch):
    monkeypatch.delenv("NO_SUCH", raising=False)
    url = "postgresql://host/north"
    assert "the environment variable NO_SUCH must hold" in refusal(
        lambda: SqlQuery(ROWS, url, password_env="NO_SUCH").password()  # noqa: S106
    )
    missing = tmp_path / "none"
    assert f"the file {missing} must hold" in refusal(
        lambda: SqlQuery(ROWS, url, password_file=missing).password()
    )
    missing.write_text("\n")
    assert "got none" in refusal(lambda: SqlQuery(ROWS, url, password_file=missing).password())
    both: Any = {"password_env": "A", "password_file": "b"}
    assert "got both" in refusal(lambda: SqlQuery(ROWS, url, **both))
    assert "must have no user" in refusal(lambda: SqlQuery(ROWS, "sqlite:///a.db", user="u"))
    assert "given once" in refusal(lambda: SqlQuery(ROWS, "postgresql://ann@h/n", user="bob"))


def test_what_is_added_to_a_url_is_quoted():
    query = SqlQuery(ROWS, "postgresql://h/n?connect_timeout=3", user="an n")
    made = libpq_url(query, "p'a&s/s#?")
    assert made.startswith(f"{query.database}&fallback_application_name=fedpower&user=an%20n&password=")
    assert made.endswith("password=p%27a%26s%2Fs%23%3F")
    assert libpq_url(SqlQuery(ROWS, "postgresql://h"), None).endswith("fedpower&connect_timeout=10")


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ({"query": ROWS}, "must have 'database', got none"),
        ({"database": "sqlite:///a.db"}, "must have 'query', got none"),
        ({"query": ROWS, "database": 5}, "database in [data] of {path} must be text in quotes"),
        ({"query": "", "database": "sqlite:///a.db"}, "query of a query must be text, got none"),
        ({"query": "-- x", "database": "sqlite:///a.db"}, "must be a SELECT, got none"),
        ({"query": ROWS, "databse": "x"}, "got 'databse'; did you mean 'database'?"),
        ({"query": ROWS, "password": SECRET}, "got 'password'; did you mean 'password_env'?"),
    ],
)
def test_a_file_must_describe_a_query(data, words, tmp_path):
    path = tmp_path / "north.toml"
    path.write_text(to_toml({"data": data}))
    message = refusal(lambda: open_source(path))
    assert words.format(path=path) in message
    assert SECRET not in message


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


def test_integers_reals_and_logical_values_are_numbers_in_whatever_row_they_come(path):
    held = [(1, True)] * 3000 + [(2.5, 7), (2**53 + 3, -1e300)]
    execute(path, "CREATE TABLE t (a NUMERIC, b)", *(f"INSERT INTO t VALUES {row}" for row in held))
    found = read_all(open_source(query("SELECT a, b FROM t", path)), 100)
    np.testing.assert_array_equal(found, np.array(held, dtype=np.float64))


@pytest.mark.parametrize(("cell", "word"), [(f"'x{CELL}'", "text"), ("x'3133'", "blob")])
def test_text_and_blobs_among_numbers_are_refused_at_their_row(path, cell, word):
    cells = [*["(1, 2.0)"] * 300, f"(1, {cell})", "(NULL, 1)"]
    execute(path, "CREATE TABLE t (a, b)", f"INSERT INTO t VALUES {', '.join(cells)}")
    message = refused(query("SELECT a, b FROM t", path))
    assert f"column 'b' of the query must hold numbers, got {word} at row 301; drop" in message


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
def test_queries_of_every_shape_are_read(path, text):
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
def test_what_would_change_the_database_is_refused_and_changes_nothing(path, text, monkeypatch):
    monkeypatch.chdir(path.parent)
    execute(path, "CREATE TABLE t (a, b)", "INSERT INTO t VALUES (1, 2), (3, 5)")
    before = path.read_bytes()
    refusal(lambda: read_all(open_source(query(text, path))))
    assert path.read_bytes() == before
    assert [each.name for each in path.parent.iterdir()] == [path.name]


def test_the_connection_itself_is_read_only(path):
    execute(path, "CREATE TABLE t (a)", "INSERT INTO t VALUES (1)")
    before = path.read_bytes()
    with (
        connected(query("SELECT a FROM t", path), "x") as connection,
        pytest.raises(Exception, match="readonly database"),
    ):
        connection.execute("DELETE FROM t")
    assert path.read_bytes() == before


def test_a_refused_query_is_explained_without_its_cells(path):
    execute(path, "CREATE TABLE t (a)", f"INSERT INTO t VALUES ('{{{CELL}')")
    assert "got 'no such table: nope'" in refused(query("SELECT a FROM nope", path))
    assert 'near "t": syntax error' in refused(query("SELECT a FORM t x", path))
    broken = refused(query("SELECT json_extract(a, '$.x') AS j FROM t", path))
    assert "must be a query that runs to completion, got an error from the database" in broken
    assert "at least one row" in refused(query("SELECT a FROM t WHERE 0", path))


def test_the_order_of_rows_does_not_show_in_the_fingerprint_and_everything_else_does(path):
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


def test_a_pass_over_other_rows_is_refused_at_its_end(path):
    url = write_sqlite(np.arange(10.0).reshape(5, 2), path, ("a", "b"))
    source = open_source(SqlQuery("SELECT a, b FROM visits", url))
    narrow = source.select(("a",), extra="drop")
    before = fingerprint(source)
    read_all(narrow)
    execute(path, "UPDATE visits SET b = b + 1 WHERE a = 4")
    assert "must not change while it is in use" in refusal(lambda: read_all(source))
    assert fingerprint(source) == before  # that of the first pass
    assert "got other rows than before" in refusal(lambda: read_all(narrow))
    again = open_source(SqlQuery("SELECT a, b FROM visits", url))
    assert fingerprint(again) != before


def test_a_query_can_be_split_into_silos(path):
    execute(path, "CREATE TABLE t (a, site)", "INSERT INTO t VALUES (1, 'n'), (2, 5), (3, 'n')")
    parts = split_by_group(query("SELECT * FROM t", path), "site")
    assert {name: read_all(part).tolist() for name, part in parts.items()} == {"5": [[2]], "n": [[1], [3]]}
    assert parts["n"].n_rows == 2
    assert fingerprint(parts["n"]) == fingerprint(parts["5"])  # that of the whole query
    execute(path, "INSERT INTO t VALUES (9, 'n')")
    fresh = split_by_group(query("SELECT * FROM t", path), "site")
    assert fingerprint(fresh["n"]) != fingerprint(parts["n"])


def test_without_its_driver_a_query_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "adbc_driver_postgresql.dbapi", None)
    message = refused(SqlQuery("SELECT 1", "postgresql://host/north"))
    assert "`pip install '.[sql]'` in a copy" in message


@pytest.fixture
def visits(tmp_path: Path) -> str:
    with duckdb.connect(str(tmp_path / "w.duckdb")) as connection:
        connection.execute(
            "CREATE TABLE visits AS SELECT range::INTEGER AS age, (range * 1.25)::DECIMAL(9, 2) AS dose, "
            f"range::HUGEINT AS large, range % 2 = 0 AS even, '{CELL}z' AS word FROM range(4)"
        )
    return f"duckdb:///{tmp_path / 'w.duckdb'}"


def test_every_number_type_is_read_and_text_is_refused(visits):
    found = read_all(open_source(SqlQuery("SELECT age, dose, large, even FROM visits;", visits)))
    expected = [[n, 1.25 * n, n, n % 2 == 0] for n in range(4)]
    np.testing.assert_array_equal(found[found[:, 0].argsort()], np.array(expected, dtype=float))
    assert "column 'word' of the query must hold numbers" in refused(SqlQuery("SELECT * FROM visits", visits))


def test_nothing_but_a_query_runs_and_the_file_stays_as_it_is(visits, tmp_path):
    before = (tmp_path / "w.duckdb").read_bytes()
    for text in ("SELECT 1; DROP TABLE visits", "WITH a AS (SELECT 1) DELETE FROM visits"):
        assert "must be a query that its database can run" in refused(SqlQuery(text, visits))
    read_all(open_source(SqlQuery("SELECT age FROM visits", visits)))
    assert (tmp_path / "w.duckdb").read_bytes() == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["w.duckdb"]


def test_what_duckdb_says_of_a_query_is_told_and_of_a_cell_is_not(visits):
    assert "Table with name nope does not exist" in refused(SqlQuery("SELECT * FROM nope", visits))
    failing = "SELECT CAST(word AS INTEGER) AS a, age FROM visits"
    assert "got an error from the database" in refused(SqlQuery(failing, visits))


def test_addresses_are_files_without_a_login(tmp_path):
    assert parse_address("duckdb:///a%20b.duckdb") == Address(kind="duckdb", path=Path("a b.duckdb"))
    assert parse_address("duckdb:////srv/a.duckdb") == Address(kind="duckdb", path=Path("/srv/a.duckdb"))
    with pytest.raises(InputError, match="a duckdb database must have no user"):
        SqlQuery("SELECT 1", "duckdb:///a.duckdb", user="me")
    with pytest.raises(InputError, match="database must be duckdb:///path"):
        SqlQuery("SELECT 1", "duckdb://a.duckdb")
    assert "got none at" in refused(SqlQuery("SELECT 1", f"duckdb:///{tmp_path / 'none.duckdb'}"))
    (tmp_path / "text.duckdb").write_text("no database" * 1000)
    assert "must be able to reach" in refused(SqlQuery("SELECT 1", f"duckdb:///{tmp_path / 'text.duckdb'}"))
