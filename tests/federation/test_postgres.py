"""A silo's rows in a real PostgreSQL server: the source contract, secrets, read-only, bounded memory."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from postgres_server import PostgresServer, private_server
from row_forms import NAMES, read_all, sample_rows
from test_bad_data import CELL, refusal
from test_sources import (  # noqa: F401  (the contract, run here over the fixture below)
    test_a_source_keeps_the_protocol,
    test_every_form_gives_the_same_moment_and_product,
    test_selecting_reorders_and_drops,
)

from fedpower.cli import main
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.sql import SqlQuery, connected

pytestmark = pytest.mark.federation

PLANTED = "pl4nted'pa55\\word"
READER = "r3ader-pa55"
N_ROWS, N_FEATURES = 1_000_000, 20


@pytest.fixture(scope="module")
def server() -> Iterator[PostgresServer]:
    with private_server(PLANTED) as running:
        running.sql(f"CREATE ROLE reader LOGIN PASSWORD '{READER}'")
        running.sql("CREATE DATABASE north")
        yield running


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLANTED", PLANTED)
    monkeypatch.setenv("READER", READER)


@pytest.fixture
def ask(server: PostgresServer) -> Callable[..., SqlQuery]:
    def made(query: str, **options: Any) -> SqlQuery:
        return SqlQuery(query, server.url, **{"password_env": "PLANTED", **options})

    return made


def write(server: PostgresServer, rows: Any, table: str = "visits") -> None:
    columns = ", ".join(f'"{name}" float8' for name in NAMES)
    lines = "".join("\t".join(map(repr, row)) + "\n" for row in rows.tolist())
    server.sql(f"DROP TABLE IF EXISTS {table}")
    server.sql(f"CREATE TABLE {table} ({columns})")
    server.sql(f"COPY {table} FROM STDIN", rows=lines)


@pytest.fixture
def source(server: PostgresServer, ask: Callable[..., SqlQuery]) -> RowSource:
    write(server, sample_rows())
    return open_source(ask("SELECT * FROM visits"))


def test_every_type_of_number_is_read(ask: Callable[..., SqlQuery]) -> None:
    found = open_source(
        ask(
            "SELECT 7::int2 AS i2, -7::int4 AS i4, 9007199254740991::int8 AS i8, 0.1::float4 AS f4, "
            "0.1::float8 AS f8, 1234567890.123456789012345678901234567890::numeric(40, 30) AS n, "
            "true AS b, '12.34'::numeric::money AS m FROM generate_series(1, 3)"
        )
    )
    expected = [7, -7, 9007199254740991, np.float32(0.1), 0.1, 1234567890.123456789, 1, 12.34]
    np.testing.assert_array_equal(read_all(found), np.array([expected] * 3, dtype=np.float64))


def test_missing_and_infinite_values_are_refused_at_their_row(ask: Callable[..., SqlQuery]) -> None:
    for cells, words in (
        (("NULL::float8", "NULL::numeric", "'NaN'::float8", "'NaN'::numeric"), "got a missing value"),
        (("'-Infinity'::float4", "'Infinity'::numeric"), "got an infinite value"),
    ):
        for cell in cells:
            case = f"CASE i WHEN 17 THEN {cell} ELSE 1 END"
            text = f"SELECT 1.5 AS a, {case} AS b FROM generate_series(1, 40) i"
            message = refusal(lambda text=text: read_all(open_source(ask(text)), 7))
            assert message.startswith("column 'b' of the query must hold finite numbers")
            assert words in message
            assert " at row 17" in message


def test_a_column_that_is_not_numeric_is_refused(ask: Callable[..., SqlQuery]) -> None:
    for kind in ("text", "date", "timestamptz", "int[]", "json", "interval"):
        text = f"SELECT 1 AS a, NULL::{kind} AS city FROM generate_series(1, 3)"
        message = refusal(lambda text=text: read_all(open_source(ask(text))))
        got = "dates or times" if kind in ("date", "timestamptz") else "type"
        assert f"column 'city' of the query must hold numbers, got {got}" in message
        assert " at row 1" in message
        assert read_all(open_source(ask(text), drop=["city"])).tolist() == [[1]] * 3
    named = ask('SELECT 1 AS a, 2 AS "A", 3, 4 AS "q""" ; ')
    assert open_source(named).columns == ("a", "A", "?column?", 'q"')
    assert "at least one column" in refusal(lambda: open_source(ask("SELECT FROM pg_class")))


def test_the_fingerprint_follows_the_rows_and_not_their_order(
    server: PostgresServer, ask: Callable[..., SqlQuery]
) -> None:
    rows = sample_rows()
    write(server, rows)
    base = fingerprint(open_source(ask("SELECT * FROM visits")))
    write(server, rows[np.random.default_rng(0).permutation(len(rows))])
    assert fingerprint(open_source(ask("SELECT * FROM visits"))) == base


def test_a_pass_sees_one_moment_and_the_next_is_refused_when_rows_changed(
    server: PostgresServer, ask: Callable[..., SqlQuery]
) -> None:
    server.sql("DROP TABLE IF EXISTS live")
    server.sql("CREATE TABLE live AS SELECT i AS a, i * 2 AS b FROM generate_series(1, 200000) i")
    source = open_source(ask("SELECT a, b FROM live"))
    fingerprint(source)  # passes from now on are over the same rows
    blocks = source.blocks(1000)
    first = next(blocks)
    server.sql("DELETE FROM live WHERE a > 100")
    assert first.shape[0] + sum(int(block.shape[0]) for block in blocks) == 200_000
    assert "got others than before" in refusal(lambda: read_all(source))


CHANGES = (
    "DELETE FROM kept",
    "WITH gone AS (DELETE FROM kept RETURNING a) SELECT a FROM gone",
    "WITH x AS (SELECT 1) DELETE FROM kept RETURNING a",
    "SELECT a FROM kept; DELETE FROM kept",
    "SELECT a FROM kept) AS x; COMMIT; DELETE FROM kept; --",
    "SELECT forget() AS a",
    "SELECT nextval('kept_numbers') AS a",
    "SELECT length(set_config('transaction_read_only', 'off', false)) AS a, forget() AS b",
    "TRUNCATE kept",
    "COPY kept TO PROGRAM 'cat'",
)


def test_not_even_the_administrator_s_query_or_connection_changes_anything(
    server: PostgresServer, ask: Callable[..., SqlQuery]
) -> None:
    server.sql(
        "DROP TABLE IF EXISTS kept; CREATE TABLE kept AS SELECT i AS a FROM generate_series(1, 5) i; "
        "DROP SEQUENCE IF EXISTS kept_numbers; CREATE SEQUENCE kept_numbers; "
        "CREATE OR REPLACE FUNCTION forget() RETURNS int LANGUAGE sql AS "
        "'DELETE FROM kept RETURNING a'"
    )
    for text in CHANGES:
        refusal(lambda text=text: read_all(open_source(ask(text))))
        assert server.sql("SELECT sum(a) FROM kept") == "15", text
        assert server.sql("SELECT is_called FROM kept_numbers") == "f", text
    for first in ((), ("COMMIT",)):  # in the transaction, and in those after it
        with connected(ask("SELECT 1"), "x") as connection, connection.cursor() as cursor:
            for statement in first:
                cursor.execute(statement)
            with pytest.raises(Exception, match="read-only transaction"):
                cursor.execute("DELETE FROM kept")
    assert server.sql("SELECT sum(a) FROM kept") == "15"


def failing(server: PostgresServer) -> dict[str, tuple[dict[str, Any], str]]:
    """Queries that fail while the right password is in memory, each with words of its refusal."""
    url = server.url
    reader = {"database": url.replace("postgres@", ""), "user": "reader"}
    long = (
        "SELECT CASE WHEN i < 150000 THEN 1 ELSE ('x' || i || 'C')::int END AS a "
        "FROM generate_series(1, 200000) i"
    )
    secret = {**reader, "password_env": "READER", "query": "SELECT rolpassword FROM pg_authid"}
    return {
        "unreachable port": ({"database": url.replace(str(server.port), "1")}, "Connection refused"),
        "unknown host": (
            {"database": url.replace("127.0.0.1", "north.invalid")},
            "could not translate host name",
        ),
        "unknown database": ({"database": f"{url}x"}, "does not exist"),
        "unknown user": ({**reader, "user": "nobody"}, ""),
        "wrong password": (reader, "password authentication failed"),
        "no TLS there": ({"database": f"{url}?sslmode=require"}, ""),
        "bad setting": ({"database": f"{url}?sslmode={'x' * 20}"}, ""),
        "syntax": ({"query": "SELECT a FORM b x"}, 'syntax error at or near "b"'),
        "unknown table": ({"query": "SELECT a FROM nowhere"}, 'relation "nowhere" does not exist'),
        "data": ({"query": f"SELECT '{CELL}x'::text::int AS a FROM pg_class"}, "SQLSTATE 22P02"),
        "data on the way": ({"query": long}, "got an error from the database; run it in"),
        "permission": (secret, "no permission for a table or column in it (SQLSTATE 42501)"),
    }


@pytest.mark.parametrize("case", failing(PostgresServer(programs=Path(), port=0, password="")))
def test_no_failure_tells_the_password_or_a_cell(
    server: PostgresServer, case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    changes, words = failing(server)[case]
    spec = {"query": "SELECT 1 AS a", "database": server.url, "password_env": "PLANTED", **changes}
    message = refusal(lambda: read_all(open_source(SqlQuery(**spec))))
    assert words in message
    (tmp_path / "north.toml").write_text(
        "[data]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in spec.items())
    )
    words = ("-k", 1, "--epsilon", "inf", "-o", tmp_path / "r", "--traceback")
    reported = command("fit", tmp_path / "north.toml", *words)
    assert reported.exit_code == 2
    for secret in (PLANTED, READER, CELL, "x150000C"):
        assert secret not in message + reported.output + reported.stderr + caplog.text


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


def test_a_private_fit_on_a_server_leaves_no_secret_in_its_result(
    server: PostgresServer, tmp_path: Path
) -> None:
    write(server, sample_rows())
    (tmp_path / "secret").write_text(READER + "\n")
    server.sql("GRANT SELECT ON visits TO reader")
    (tmp_path / "north.toml").write_text(
        f'[data]\nquery = "SELECT * FROM visits"\nuser = "reader"\npassword_file = "secret"\n'
        f'database = "postgresql://127.0.0.1:{server.port}/postgres"\n'
    )
    ledger, result = tmp_path / "north.ledger", tmp_path / "result"
    assert command("ledger", "create", ledger, "--epsilon", 2, "--delta", 1e-4).exit_code == 0
    words = ("-k", 2, "--epsilon", 1, "--delta", 1e-6, "--normalize", "--ledgers", tmp_path)
    reported = command("fit", tmp_path / "north.toml", *words, "-o", result)
    assert reported.exit_code == 0, reported.stderr
    written = [reported.output.encode(), ledger.read_bytes()]
    written += [path.read_bytes() for path in result.rglob("*") if path.is_file()]
    assert len(written) > 4
    assert all(READER.encode() not in each for each in written)
    again = command("fit", tmp_path / "north.toml", *words, "-o", tmp_path / "again")
    assert again.exit_code == 0, again.stderr
    same = [(tmp_path / each / "components.csv").read_bytes() for each in ("result", "again")]
    assert same[0] == same[1]


@pytest.mark.parametrize("way", ["PGPASSWORD", "PGPASSFILE", "service", "password_file"])
def test_libpq_s_own_ways_to_a_password_work(
    server: PostgresServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    url, options = server.url, {}
    if way == "PGPASSWORD":
        monkeypatch.setenv("PGPASSWORD", PLANTED)
    elif way == "PGPASSFILE":
        path = tmp_path / "pgpass"
        escaped = PLANTED.replace("\\", "\\\\")
        path.write_text(f"127.0.0.1:{server.port}:*:postgres:{escaped}\n")
        path.chmod(0o600)
        monkeypatch.setenv("PGPASSFILE", str(path))
    elif way == "service":
        (tmp_path / "services").write_text(
            f"[north]\nhost=127.0.0.1\nport={server.port}\nuser=reader\ndbname=postgres\npassword={READER}\n"
        )
        monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
        url = "postgresql://?service=north"
    else:
        (tmp_path / "secret").write_text(PLANTED)
        options = {"password_file": tmp_path / "secret"}
    found = read_all(open_source(SqlQuery("SELECT 1 AS a", url, **options)))  # type: ignore[arg-type]
    assert found.tolist() == [[1]]


@pytest.fixture(scope="module")
def large(server: PostgresServer) -> str:
    """A table of 160 MB as float8."""
    cells = ", ".join(f"sin(i * {place + 1})::float8 AS x{place}" for place in range(N_FEATURES))
    server.sql("DROP TABLE IF EXISTS large")
    server.sql(f"CREATE TABLE large AS SELECT {cells} FROM generate_series(1, {N_ROWS}) i")
    return "SELECT * FROM large"


READ_TWICE = """
import sys
from fedpower.rules.treatment import RowTreatment
from fedpower.rows.sql import SqlQuery
from fedpower.sums.local import LocalMoment
from fedpower.rows.opening import open_source

def peak():  # ru_maxrss would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def moments(query):
    source = open_source(SqlQuery(query, sys.argv[1], password_env="PLANTED"))
    return LocalMoment(source, RowTreatment(row_norm=5.0)).summary

moments(sys.argv[2] + " LIMIT 100000")  # the libraries' own pages, and a batch, are not the table's
base = peak()
print(moments(sys.argv[2]).n_rows, peak() - base)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_ten_times_the_rows_take_no_more_memory(server: PostgresServer, large: str) -> None:
    command = [sys.executable, "-c", READ_TWICE, server.url, large]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    n_rows, rise = done.stdout.split()
    print(f"{n_rows} rows: {rise} MiB more than a tenth of them")
    assert int(n_rows) == N_ROWS
    assert float(rise) < 16  # one batch; the table is 153 MiB


def test_a_server_that_goes_away_is_one_sentence_and_a_pass_given_up_leaves_no_connection(
    server: PostgresServer, ask: Callable[..., SqlQuery], large: str
) -> None:
    blocks = open_source(ask(large)).blocks(1000)
    next(blocks)
    server.sql("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = 'fedpower'")
    assert "must be a query that runs to its end" in refusal(lambda: list(blocks))
    blocks = open_source(ask(large)).blocks(1000)
    next(blocks)
    count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'fedpower'"
    assert server.sql(count) == "1"
    blocks.close()  # type: ignore[attr-defined]
    server.sql("SELECT pg_sleep(0.5)")
    assert server.sql(count) == "0"
