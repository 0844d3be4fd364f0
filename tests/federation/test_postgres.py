"""A silo's rows in a real PostgreSQL server: the source contract, secrets, read-only, bounded memory."""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner, Result
from row_forms import NAMES, read_all, sample_rows
from test_bad_data import CELL, refusal
from test_memory import rise_of
from test_sources import test_a_source_keeps_the_protocol, test_selecting_reorders_and_drops  # noqa: F401  (the contract, run here over the fixture below)

from fedpower.cli import main
from fedpower.federation.local import free_port
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.sql import SqlQuery, connected

pytestmark = pytest.mark.federation

OWNER = "postgres"
PLANTED = "pl4nted'pa55\\word"
READER = "r3ader-pa55"
N_ROWS, N_FEATURES = 400_000, 20


class Database:
    """A private server on a free loopback port, and queries to it as its administrator."""

    def __init__(self, programs: Path) -> None:
        self.programs, self.port = programs, free_port()
        self.url = f"postgresql://{OWNER}@127.0.0.1:{self.port}/postgres"

    def sql(self, statements: str, *, rows: str | None = None) -> str:
        """Run statements as the administrator and return what they print; `rows` feed a COPY."""
        command = [self.programs / "psql", "-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", self.url]
        done = subprocess.run(
            [*command, "-c", statements], input=rows, env={**os.environ, "PGPASSWORD": PLANTED},
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def ask(self, query: str) -> SqlQuery:
        return SqlQuery(query, self.url, password_env="PLANTED")  # noqa: S106  (a variable's name)

    def open(self, query: str) -> RowSource:
        return open_source(self.ask(query))

    def refusal(self, query: str, max_rows: int = 1000) -> str:
        return refusal(lambda: read_all(self.open(query), max_rows))

    def write(self, rows: Any) -> None:
        columns = ", ".join(f'"{name}" float8' for name in NAMES)
        lines = "".join("\t".join(map(repr, row)) + "\n" for row in rows.tolist())
        self.sql(f"DROP TABLE IF EXISTS visits; CREATE TABLE visits ({columns})")
        self.sql("COPY visits FROM STDIN", rows=lines)


def programs() -> Path:
    """Return the folder with ``initdb`` and ``postgres``: on the path, or where Debian puts them."""
    on_path = shutil.which("initdb")
    places = [Path(on_path).resolve().parent] if on_path else []
    places += sorted(Path("/usr/lib/postgresql").glob("*/bin"), reverse=True)
    found = next((place for place in places if (place / "postgres").exists()), None)
    assert found is not None, "PostgreSQL must be installed; run scripts/install-postgres"
    return found


@pytest.fixture(scope="module")
def database() -> Iterator[Database]:
    """A new server where everybody must give a password (SCRAM); it is stopped and removed at the end."""
    made, folder = Database(programs()), Path(tempfile.mkdtemp(prefix="fedpower-postgres-"))
    owner: dict[str, Any] = {}
    if os.geteuid() == 0:  # as whom PostgreSQL refuses to run
        owner = {"user": OWNER, "group": OWNER, "extra_groups": []}
        shutil.chown(folder, OWNER, OWNER)
    (folder / "password").write_text(PLANTED)

    def run(program: str, *words: object) -> None:
        with (folder / "output").open("a") as log:  # a pipe would be held open by the server
            command = [made.programs / program, "-D", folder / "data", *map(str, words)]
            done = subprocess.run(command, cwd=folder, stdout=log, stderr=log, check=False, **owner)
        assert done.returncode == 0, (folder / "output").read_text()

    try:
        run("initdb", "-U", OWNER, "-A", "scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8",
            f"--pwfile={folder / 'password'}")  # fmt: skip
        options = f"-p {made.port} -k {folder} -c listen_addresses=127.0.0.1 -c fsync=off"
        run("pg_ctl", "start", "-w", "-o", options)
        try:
            made.sql(f"CREATE ROLE reader LOGIN PASSWORD '{READER}'")
            yield made
        finally:
            run("pg_ctl", "stop", "-w", "-m", "fast")  # clients are sent away
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(autouse=True)
def _passwords(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith("PG")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("PLANTED", PLANTED)
    monkeypatch.setenv("READER", READER)


@pytest.fixture
def source(database: Database) -> RowSource:
    database.write(sample_rows())
    return database.open("SELECT * FROM visits")


def test_every_type_of_number_is_read_and_no_other(database):
    found = database.open(
        "SELECT 7::int2 AS i2, -7::int4 AS i4, 9007199254740991::int8 AS i8, 0.1::float4 AS f4, "
        "0.1::float8 AS f8, 1234567890.123456789012345678901234567890::numeric(40, 30) AS n, "
        "true AS b, '12.34'::numeric::money AS m FROM generate_series(1, 3)"
    )
    expected = [7, -7, 9007199254740991, np.float32(0.1), 0.1, 1234567890.123456789, 1, 12.34]
    np.testing.assert_array_equal(read_all(found), np.array([expected] * 3, dtype=np.float64))
    for kind in ("text", "date", "timestamptz", "int[]", "json", "interval"):
        text = f"SELECT 1 AS a, NULL::{kind} AS city FROM generate_series(1, 3)"
        message = database.refusal(text)
        got = "dates or times" if kind in ("date", "timestamptz") else "type"
        assert f"column 'city' of the query must hold numbers, got {got}" in message
        assert " at row 1" in message
        assert read_all(open_source(database.ask(text), drop=["city"])).tolist() == [[1]] * 3
    for cells, words in (
        (("NULL::float8", "NULL::numeric", "'NaN'::float8", "'NaN'::numeric"), "got a missing value"),
        (("'-Infinity'::float4", "'Infinity'::numeric"), "got an infinite value"),
    ):
        for cell in cells:
            case = f"CASE i WHEN 17 THEN {cell} ELSE 1 END"
            message = database.refusal(f"SELECT 1.5 AS a, {case} AS b FROM generate_series(1, 40) i", 7)
            assert message.startswith("column 'b' of the query must hold finite numbers")
            assert words in message
            assert " at row 17" in message
    named = database.open('SELECT 1 AS a, 2 AS "A", 3, 4 AS "q""" ; ')
    assert named.columns == ("a", "A", "?column?", 'q"')
    assert "at least one column" in database.refusal("SELECT FROM pg_class")


def test_the_fingerprint_follows_rows_in_any_order_and_a_pass_over_others_is_refused(database, source):
    """A pass sees one moment: what changes on the way is not in it."""
    base = fingerprint(source)
    rows = sample_rows()
    database.write(rows[np.random.default_rng(0).permutation(len(rows))])
    assert fingerprint(database.open("SELECT * FROM visits")) == base
    database.sql("DROP TABLE IF EXISTS live")
    database.sql("CREATE TABLE live AS SELECT i AS a, i * 2 AS b FROM generate_series(1, 200000) i")
    live = database.open("SELECT a, b FROM live")
    fingerprint(live)  # passes from now on are over the same rows
    blocks = live.blocks(1000)
    first = next(blocks)
    database.sql("DELETE FROM live WHERE a > 100")
    assert first.shape[0] + sum(int(block.shape[0]) for block in blocks) == 200_000
    assert "got other rows than before" in refusal(lambda: read_all(live))


CHANGES = (
    "DELETE FROM kept",
    "WITH gone AS (DELETE FROM kept RETURNING a) SELECT a FROM gone",
    "SELECT a FROM kept; DELETE FROM kept",
    "SELECT a FROM kept) AS x; COMMIT; DELETE FROM kept; --",
    "SELECT nextval('kept_numbers') AS a",
    "SELECT length(set_config('transaction_read_only', 'off', false)) AS a, forget() AS b",
    "COPY kept TO PROGRAM 'cat'",
)


def test_not_even_the_administrator_s_query_or_connection_changes_anything(database):
    database.sql(
        "CREATE TABLE kept AS SELECT i AS a FROM generate_series(1, 5) i; CREATE SEQUENCE kept_numbers; "
        "CREATE FUNCTION forget() RETURNS int LANGUAGE sql AS 'DELETE FROM kept RETURNING a'"
    )
    for text in CHANGES:
        database.refusal(text)
        assert database.sql("SELECT sum(a) FROM kept") == "15", text
        assert database.sql("SELECT is_called FROM kept_numbers") == "f", text
    for first in ((), ("COMMIT",)):  # in the transaction, and in those after it
        with connected(database.ask("SELECT 1"), "x") as connection, connection.cursor() as cursor:
            for statement in first:
                cursor.execute(statement)
            with pytest.raises(Exception, match="read-only transaction"):
                cursor.execute("DELETE FROM kept")
    assert database.sql("SELECT sum(a) FROM kept") == "15"


def command(*words: object) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words])


LONG = (
    "SELECT CASE WHEN i < 150000 THEN 1 ELSE ('x' || i || 'C')::int END AS a "
    "FROM generate_series(1, 200000) i"
)
AS_READER = {"database": "postgresql://127.0.0.1:PORT/postgres", "user": "reader"}
FAILING: dict[str, tuple[dict[str, Any], str]] = {
    "unknown host": (
        {"database": "postgresql://postgres@north.invalid:PORT/postgres"},
        "could not translate host name",
    ),
    "wrong password": (AS_READER, "password authentication failed"),
    "no TLS there": ({"database": "postgresql://postgres@127.0.0.1:PORT/postgres?sslmode=require"}, ""),
    "syntax": ({"query": "SELECT a FORM b x"}, 'syntax error at or near "b"'),
    "unknown table": ({"query": "SELECT a FROM nowhere"}, 'relation "nowhere" does not exist'),
    "data": ({"query": f"SELECT '{CELL}x'::text::int AS a FROM pg_class"}, "SQLSTATE 22P02"),
    "data on the way": ({"query": LONG}, "got an error from the database; run it in"),
    "permission": (
        {**AS_READER, "password_env": "READER", "query": "SELECT rolpassword FROM pg_authid"},
        "no permission for a table or column in it (SQLSTATE 42501)",
    ),
}
"""Queries that fail while the right password is in memory, each with words of its refusal."""


@pytest.mark.parametrize("case", FAILING)
def test_no_failure_tells_the_password_or_a_cell(database, case, tmp_path, caplog):
    changes, words = FAILING[case]
    spec = {"query": "SELECT 1 AS a", "database": database.url, "password_env": "PLANTED", **changes}
    spec["database"] = spec["database"].replace("PORT", str(database.port))
    message = refusal(lambda: read_all(open_source(SqlQuery(**spec))))
    assert words in message
    lines = [f"{key} = {json.dumps(value)}\n" for key, value in spec.items()]
    (tmp_path / "north.toml").write_text("".join(["[data]\n", *lines]))
    words = ("-k", 1, "--epsilon", "inf", "-o", tmp_path / "r", "--traceback")
    reported = command("fit", tmp_path / "north.toml", *words)
    assert reported.exit_code == 2
    for secret in (PLANTED, READER, CELL, "x150000C"):
        assert secret not in message + reported.output + reported.stderr + caplog.text


def test_a_private_fit_on_a_server_leaves_no_secret_in_its_result(database, source, tmp_path):
    (tmp_path / "secret").write_text(READER + "\n")
    database.sql("GRANT SELECT ON visits TO reader")
    (tmp_path / "north.toml").write_text(
        f'[data]\nquery = "SELECT * FROM visits"\nuser = "reader"\npassword_file = "secret"\n'
        f'database = "postgresql://127.0.0.1:{database.port}/postgres"\n'
    )
    ledger = tmp_path / "north.ledger"
    assert command("ledger", "create", ledger, "--epsilon", 2, "--delta", 1e-4).exit_code == 0
    words = ("-k", 2, "--epsilon", 1, "--delta", 1e-6, "--normalize", "--ledger", tmp_path)
    written: list[bytes] = []
    for result in (tmp_path / "result", tmp_path / "again"):
        reported = command("fit", tmp_path / "north.toml", *words, "-o", result)
        assert reported.exit_code == 0, reported.stderr
        written += [reported.output.encode(), ledger.read_bytes()]
        written += [path.read_bytes() for path in result.rglob("*") if path.is_file()]
    assert len(written) > 8
    assert all(READER.encode() not in each for each in written)
    first, again = ((tmp_path / name / "components.csv").read_bytes() for name in ("result", "again"))
    assert first == again


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
def test_ten_times_the_rows_take_no_more_memory_and_a_lost_or_ended_connection_is_noticed(database, tmp_path):
    """The table has 64 MB as float8."""
    cells = ", ".join(f"sin(i * {place + 1})::float8 AS x{place}" for place in range(N_FEATURES))
    database.sql(f"CREATE TABLE large AS SELECT {cells} FROM generate_series(1, {N_ROWS}) i")
    large = "SELECT * FROM large"
    for name, limit in (("few", "LIMIT 40000"), ("all", "")):  # a batch first: its pages are no table's
        (tmp_path / f"{name}.toml").write_text(
            f'[data]\nquery = "{large} {limit}"\ndatabase = "{database.url}"\npassword_env = "PLANTED"\n'
        )
    n_rows, rise, _ = rise_of(tmp_path / "few.toml", tmp_path / "all.toml")
    assert n_rows == N_ROWS
    assert rise < 16  # one batch; the table is 61 MiB
    own = "FROM pg_stat_activity WHERE application_name = 'fedpower'"
    blocks = database.open(large).blocks(1000)
    next(blocks)
    database.sql(f"SELECT pg_terminate_backend(pid) {own}")
    assert "must be a query that runs to completion" in refusal(lambda: list(blocks))
    blocks = database.open(large).blocks(1000)
    next(blocks)
    assert database.sql(f"SELECT count(*) {own}") == "1"
    blocks.close()  # type: ignore[attr-defined]
    database.sql("SELECT pg_sleep(0.5)")
    assert database.sql(f"SELECT count(*) {own}") == "0"
