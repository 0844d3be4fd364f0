"""Rows from SQLite, DuckDB and PostgreSQL: a query's result, streamed, read-only, secrets kept out."""

from __future__ import annotations

import hashlib
import json
import os
import re
import sqlite3
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, fields, replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

import numpy as np

from fedpower.exceptions import CellError, InputError, installing
from fedpower.rows.source import UNWATCHED, Watch, other_rows, require_shape
from fedpower.rows.tables import Table, as_texts, cells_of
from fedpower.values import pl, require_distinct

Batches = Iterator[tuple["pl.DataFrame", Callable[[], Iterable[str]]]]
"""Raw batches, and what makes a text of each of their rows, of all columns."""

# --- where a database is ----------------------------------------------------------------------------------

_SETTINGS = frozenset({
    "channel_binding", "connect_timeout", "gssencmode", "host", "hostaddr", "krbsrvname", "passfile",
    "port", "service", "sslcert", "sslcrl", "sslkey", "sslmode", "sslrootcert",
    "target_session_attrs", "user",
})  # fmt: skip
"""Parameters of libpq that a URL may set after its question mark: no password is among them."""

_POSTGRES = re.compile(
    r"(?:(?P<user>[^:@/?#]*)@)?(?P<hosts>[^@/?#]*)(?:/(?P<name>[^@/?#]*))?(?:\?(?P<given>[^@#]*))?"
)
_HOST = re.compile(r"(?P<host>\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(?::(?P<port>\d*))?")
_FIRST_WORD = re.compile(r"(?:\s|\(|--[^\n]*(?:\n|$)|/\*.*?\*/)*([A-Za-z]*)", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database: a file, or a PostgreSQL server by libpq's settings, none of them secret."""

    kind: Literal["sqlite", "duckdb", "postgresql"]
    path: Path | None = None
    server: str = ""
    names_user: bool = False


def parse_address(database: str) -> Address:
    """Return where a database URL points, or refuse it without quoting it."""
    scheme, sign, rest = database.partition("://")
    if sign and scheme in ("postgresql", "postgres"):
        return _postgres_address(rest)
    if not sign or scheme not in ("sqlite", "duckdb"):
        raise InputError(
            "database must be a URL such as sqlite:///path.db, duckdb:///path.duckdb or "
            "postgresql://host:5432/name, got another"
        )
    if not rest.startswith("/") or len(rest) == 1:
        raise InputError(
            f"database must be {scheme}:///path.db, a fourth slash for the root, got another URL"
        )
    return Address(kind="sqlite" if scheme == "sqlite" else "duckdb", path=Path(unquote(rest[1:])))


def _postgres_address(rest: str) -> Address:
    match = _POSTGRES.fullmatch(rest)
    hosts = match is not None and all(map(_HOST.fullmatch, match["hosts"].split(",")))
    given = dict(parse_qsl(match["given"] or "", keep_blank_values=True)) if match else {}
    if match is None or not hosts or not given.keys() <= _SETTINGS:
        raise InputError(
            "database must be a URL such as postgresql://user@host:5432/name?sslmode=verify-full without a "
            f"password and with no parameters but {', '.join(sorted(_SETTINGS))}, got another; give the "
            "password with password_env or password_file"
        )
    server = given.get("host") or match["hosts"] or given.get("service") or "libpq's default"
    names_user = bool(match["user"] or given.get("user"))
    return Address(kind="postgresql", server=server, names_user=names_user)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The rows of a database query, as the data of a silo.

    Use it wherever a path of a file is accepted. It never stores a password.

    Parameters
    ----------
    query : str
        One SELECT (or WITH … SELECT) whose columns are the features.
    database : str
        ``sqlite:///path.db``, ``duckdb:///path.duckdb`` (four slashes for an absolute path), or
        ``postgresql://host:5432/name``. Parts missing from a PostgreSQL URL come from the usual variables and
        files of libpq (PGHOST, PGSSLMODE, ``~/.pgpass``, a service file).
    user : str
        User of a PostgreSQL database.
    password_env, password_file
        Environment variable or file that holds the password.

    Examples
    --------
    >>> import sqlite3
    >>> from fedpower import FedPCA, SqlQuery
    >>> with sqlite3.connect("ward.db") as ward:
    ...     _ = ward.execute("CREATE TABLE visits (age REAL, dose REAL)")
    ...     _ = ward.executemany("INSERT INTO visits VALUES (?, ?)", [(40, 1), (50, 3), (60, 2)])
    >>> ward.close()
    >>> query = SqlQuery("SELECT age, dose FROM visits", "sqlite:///ward.db")
    >>> FedPCA(1, epsilon=float("inf")).fit_silos([query]).n_samples_seen_
    3
    """

    query: str
    database: str
    user: str | None = None
    password_env: str | None = None
    password_file: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        for key in fields(self):
            value = getattr(self, key.name)
            kinds = (str, os.PathLike) if key.name == "password_file" else (str,)
            is_absent = value is None and key.name not in ("query", "database")
            if not is_absent and not (isinstance(value, kinds) and os.fspath(value) != ""):
                got = "none" if value in (None, "") else type(value).__name__
                raise InputError(f"{key.name} of a query must be text, got {got}")
        first = _FIRST_WORD.match(self.query)
        word = first[1].upper() if first else ""
        if word not in ("SELECT", "WITH", "VALUES"):  # and the connection is read-only
            raise InputError(f"query must be a SELECT, got {'another statement' if word else 'none'}")
        address = self.address
        given = [key for key in ("user", "password_env", "password_file") if getattr(self, key) is not None]
        if address.path is not None and given:
            raise InputError(f"a {address.kind} database must have no {given[0]}, got one")
        if "user" in given and address.names_user:
            raise InputError("user must be given once, got it in database and in user")
        if {"password_env", "password_file"} <= set(given):
            raise InputError("the password must be in one place, got both password_env and password_file")

    @property
    def address(self) -> Address:
        return parse_address(self.database)

    @property
    def text(self) -> str:
        return self.query.rstrip().rstrip(";").rstrip()

    def within(self, folder: Path) -> SqlQuery:
        """Return the query with paths relative to a folder."""
        database, secret = self.database, self.password_file
        if self.address.path is not None:
            path = str(folder / self.address.path).replace("%", "%25")
            database = f"{self.address.kind}:///{path}"
        return replace(self, database=database, password_file=secret and folder / secret)

    def password(self) -> str | None:
        """Return the password from its variable or file; None where libpq looks it up."""
        if self.password_env is not None:
            where = f"the environment variable {self.password_env}"
            password = os.environ.get(self.password_env)
        elif self.password_file is not None:
            where, password = f"the file {self.password_file}", None
            with suppress(OSError, UnicodeDecodeError):
                password = Path(self.password_file).read_text(encoding="utf-8").rstrip("\r\n")
        else:
            return None
        if not password or "\0" in password:
            raise InputError(f"{where} must hold the database's password, got none")
        return password


# --- connections ------------------------------------------------------------------------------------------

_CONNECT_SECONDS = 10
"""How long a file may be locked, or a server take to accept a connection unless the user sets a limit."""

_READ_ONLY = (
    "SET default_transaction_read_only = on",
    "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
)
_CODES = {
    "25006": "a statement that changes data",
    "42501": "no permission for a table or column in it",
    "57014": "that the server cancelled it",
}
"""What an SQLSTATE means here, where a plain word helps."""


@contextmanager
def connected(query: SqlQuery, name: str) -> Iterator[Any]:
    """Yield a DBAPI connection to the query's database that cannot change it."""
    address, secret = query.address, query.password()
    path = address.path
    if path is not None and not path.is_file():
        raise InputError(
            f"the database of {name} must be a file that exists, got none at {path}; write "
            f"{address.kind}:////… where its path begins with a slash"
        )
    try:
        if path is None:
            driver = import_module("adbc_driver_postgresql.dbapi")
            connection = driver.connect(libpq_url(query, secret), autocommit=True)
        elif address.kind == "duckdb":  # the driver's own `connect` has no option to open a file read-only
            connection = import_module("adbc_driver_manager.dbapi").connect(
                driver=import_module("adbc_driver_duckdb").driver_path(),
                entrypoint="duckdb_adbc_init",
                db_kwargs={"path": str(path), "access_mode": "READ_ONLY"},
                autocommit=True,
            )
        else:
            uri = f"{path.resolve().as_uri()}?mode=ro"
            connection = sqlite3.connect(uri, _CONNECT_SECONDS, uri=True, check_same_thread=False)
    except ImportError:
        package, extra = ("duckdb", "duckdb") if path else ("adbc-driver-postgresql", "sql")
        raise InputError(f"{name} must be read with {package}, got none; run {installing(extra)}") from None
    except _failures() as error:
        reason = " ".join((str(error).partition("Failed to connect:")[2] or str(error)).split())
        if secret is not None and any(word in str(error) for word in (secret, quote(secret, safe=""))):
            reason = "the reason is hidden because it may contain the password"
        where = path or f"the PostgreSQL server at {address.server}"
        raise InputError(f"{name} must be able to reach {where}, got no connection ({reason})") from None
    with closing(connection):
        if path is None:
            with _preparing(name), closing(connection.cursor()) as cursor:
                for statement in _READ_ONLY:
                    cursor.execute(statement)
        yield connection


def libpq_url(query: SqlQuery, password: str | None) -> str:
    """Return the database's URL with further settings for libpq."""
    more = {"fallback_application_name": "fedpower", "user": query.user, "password": password}
    limited = "PGCONNECT_TIMEOUT" in os.environ or re.search("[?&](service|connect_timeout)=", query.database)
    more |= {"connect_timeout": None if limited else str(_CONNECT_SECONDS)}
    known = {key: value for key, value in more.items() if value is not None}
    sign = "&" if "?" in query.database else "?"
    return f"{query.database}{sign}{urlencode(known, quote_via=quote, safe='')}"


@contextmanager
def _preparing(name: str) -> Iterator[None]:
    """Turn a query that is refused before it has read a row into one line with the database's reason."""
    try:
        yield
    except _failures() as error:
        reason = str(error)
        if not isinstance(error, sqlite3.Error | sqlite3.Warning):
            reason = reason.partition(" Error: ")[2].partition("\n\nLINE ")[0]
        for key, value in getattr(error, "details", None) or ():
            if key in ("PG_DIAG_MESSAGE_PRIMARY", b"PG_DIAG_MESSAGE_PRIMARY"):
                reason = str(value, "utf-8", "replace") if isinstance(value, bytes) else str(value)
        message = " ".join(reason.split()) or "an error without a message"
        raise InputError(f"{name} must be a query that its database can run, got '{message}'") from None


@contextmanager
def _reading(name: str) -> Iterator[None]:
    """Turn a failure while rows come into one line without its words, which may quote cells."""
    try:
        yield
    except _failures() as error:
        code = getattr(error, "sqlstate", None)
        what = _CODES.get(code or "", "an error from the database") + (f" (SQLSTATE {code})" if code else "")
        raise InputError(
            f"{name} must be a query that runs to completion, got {what}; run it in the database's shell"
        ) from None


def _failures() -> tuple[type[Exception], ...]:
    kinds: tuple[type[Exception], ...] = (sqlite3.Error, sqlite3.Warning, OSError)
    if "adbc_driver_manager" in sys.modules:
        kinds += (sys.modules["adbc_driver_manager"].Error, import_module("pyarrow").ArrowException)
    return kinds


# --- rows -------------------------------------------------------------------------------------------------

_LANES = 8
_DIGEST_ROWS = 2**14


class StoredQuery:
    """A query as what reads raw batches; every pass makes a connection of its own and closes it.

    Every pass reads all columns, so that a digest of its rows is one of the query, whatever is made of it.
    """

    def __init__(self, query: SqlQuery, name: str) -> None:
        self.name, self.query = name, query
        self.is_watched = False  # whether every pass must be over the same cells
        self._digest: str | None = None
        # Nothing but a query may be in brackets.
        self._statement = f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows"  # noqa: S608
        self._is_sqlite = query.address.kind == "sqlite"
        with connected(query, name) as connection, closing(connection.cursor()) as cursor:
            find = self._sqlite_columns if self._is_sqlite else self._typed_columns
            self.columns: dict[str, Any] = find(cursor)

    def _sqlite_columns(self, cursor: Any) -> dict[str, Any]:
        """Return the columns, of which every row may have a type of its own."""
        with _preparing(self.name):
            cursor.execute(f"{self._statement} LIMIT 0")
        self._statement = self.query.text  # in brackets a name that occurs twice is changed
        with _reading(self.name):
            cursor.execute(self._statement)
        names = [column[0] for column in cursor.description]
        require_distinct(self.name, names)
        return dict.fromkeys(names)

    def _typed_columns(self, cursor: Any) -> dict[str, Any]:
        """Return the columns and their types; what Polars has no type for is made a number or text."""
        types = import_module("pyarrow").types
        with _preparing(self.name):
            cursor.adbc_execute_schema(self._statement)
            schema = cursor.adbc_execute_schema(self.query.text)
            require_shape(self.name, None, len(schema))
            require_distinct(self.name, schema.names)
            chosen = []
            for place, column in enumerate(schema):
                kind, cell = column.type, f"c{place}"
                if (column.metadata or {}).get(b"POSTGRESQL:type", b"") in (b"numeric", b"money"):
                    cell = f"CAST(CAST({cell} AS numeric) AS float8)"
                elif types.is_interval(kind) or not (
                    types.is_primitive(kind) or types.is_string(kind) or types.is_decimal(kind)
                ):
                    cell = f"CAST({cell} AS VARCHAR)"
                chosen.append(f"{cell} AS r{place}")
            names = ", ".join(f"c{place}" for place in range(len(chosen)))
            self._statement = (
                f"SELECT {', '.join(chosen)} FROM (\n{self.query.text}\n) AS fedpower_rows({names})"  # noqa: S608
            )
            frame = pl.DataFrame(cursor.adbc_execute_schema(self._statement).empty_table())
        return dict(zip(schema.names, frame.dtypes, strict=True))

    def read(self, columns: list[str], numbers: Collection[str], max_rows: int) -> Iterator[pl.DataFrame]:
        n_rows, total = 0, np.zeros(_LANES, dtype=np.uint64)
        with (
            connected(self.query, self.name) as connection,
            _reading(self.name),
            closing(connection.cursor()) as cursor,
        ):
            batches = self._sqlite_batches if self._is_sqlite else self._typed_batches
            for batch, lines in batches(cursor, columns, numbers, max_rows):
                if self.is_watched:
                    digests = b"".join(hashlib.blake2b(line.encode()).digest() for line in lines())
                    parts = np.frombuffer(digests, dtype="<u8").reshape(-1, _LANES)
                    total += parts.sum(axis=0, dtype="<u8")
                    n_rows += len(parts)
                yield from batch.iter_slices(max_rows)
                del batch, lines  # or two batches are held while the next one is read
        if self.is_watched:
            # The sum of 512-bit digests of rows: the same in any order.
            head = json.dumps(["fedpower.rows in any order/4", list(self.columns), n_rows])
            digest = hashlib.sha256(head.encode() + total.astype("<u8").tobytes()).hexdigest()
            if self._digest not in (None, digest):
                raise other_rows(self.name)
            self._digest = digest

    def _sqlite_batches(
        self, cursor: Any, columns: list[str], numbers: Collection[str], max_rows: int
    ) -> Batches:
        cursor.execute(self._statement)
        row = 0
        while rows := cursor.fetchmany(max_rows):
            cells = dict(zip(self.columns, zip(*rows, strict=True), strict=True))
            for name in numbers:
                odd = next((at for at, cell in enumerate(cells[name]) if isinstance(cell, str | bytes)), None)
                if odd is not None:
                    kind = "text" if isinstance(cells[name][odd], str) else "blob"
                    raise CellError(
                        f"column '{name}' of {self.name} must hold numbers, got {kind} at row "
                        f"{row + odd + 1}; drop it (drop=['{name}']), or give it a rule in a code book"
                    )
            made = {
                name: pl.Series(values=cells[name], dtype=pl.Float64, strict=False)
                if name in numbers
                else as_texts(cells[name])
                for name in columns
            }
            yield pl.DataFrame(made), partial(map, repr, rows)
            row += len(rows)

    def _typed_batches(
        self, cursor: Any, columns: list[str], numbers: Collection[str], max_rows: int
    ) -> Batches:
        if self.query.address.path is None:
            size = min(max(8 * len(self.columns) * max_rows, 2**16), 2**24)
            cursor.adbc_statement.set_options(**{"adbc.postgresql.batch_size_hint_bytes": str(size)})
        cursor.execute(self._statement)
        for received in cursor.fetch_record_batch():
            frame = pl.DataFrame(received)
            frame.columns = list(self.columns)
            yield frame.select(columns), partial(_lines, frame)

    def digest(self, watch: Watch = UNWATCHED) -> str:
        self.is_watched = True
        watch.saw(0)
        if self._digest is None:
            for _ in self.read(list(self.columns)[:1], (), _DIGEST_ROWS):
                pass
        return str(self._digest)


def _lines(frame: pl.DataFrame) -> pl.Series:
    """Return rows as text: of each cell its length, -1 for null, and the cell."""
    cells = frame.cast(pl.String).select(
        pl.format("{} {} ", pl.all().str.len_bytes().cast(pl.Int64).fill_null(-1), pl.all().fill_null(""))
    )
    return cells.select(pl.concat_str(pl.all()).alias("line"))["line"]


def query_table(query: SqlQuery, name: str) -> Table:
    """Return the table of a query, after its database was asked for the columns."""
    stored = StoredQuery(query, name)
    return Table(name=name, cells=cells_of(stored.columns), read=stored.read, query=stored)
