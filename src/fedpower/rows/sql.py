"""Rows from SQLite, DuckDB and PostgreSQL: a query's result, streamed, read-only, secrets kept out."""

from __future__ import annotations

import difflib
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields
from importlib import import_module
from pathlib import Path
from typing import Any, Literal
from urllib.parse import parse_qsl, unquote

import numpy as np

from fedpower.errors import InputError, installing
from fedpower.rows.source import UNWATCHED, Watch, not_a_number, other_rows, require_shape
from fedpower.rows.tables import Part, Table
from fedpower.rules.expressions import Cells
from fedpower.values import pl, require_distinct

# --- where a database is ----------------------------------------------------------------------------------

_FORMS = "sqlite:///path.db, duckdb:///path.duckdb or postgresql://host:5432/name"
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
_QUERIES = ("SELECT", "WITH", "VALUES")


@dataclass(frozen=True, slots=True, kw_only=True)
class Address:
    """A database: a file, or a PostgreSQL server by libpq's settings, none of them secret."""

    kind: Literal["sqlite", "duckdb", "postgresql"]
    path: Path | None = None
    settings: tuple[tuple[str, str], ...] = ()

    @property
    def label(self) -> str:
        known = dict(self.settings)
        where = known.get("host") or known.get("service") or "libpq's default"
        return f"the PostgreSQL server at {where}" if self.path is None else str(self.path)


def parse_address(database: str) -> Address:
    """Return where a database URL points, or refuse it without quoting it."""
    scheme, sign, rest = database.partition("://")
    if sign and scheme in ("postgresql", "postgres"):
        return Address(kind="postgresql", settings=_libpq_settings(rest))
    if not sign or scheme not in ("sqlite", "duckdb"):
        raise InputError(f"database must be a URL such as {_FORMS}, got another")
    if not rest.startswith("/") or len(rest) == 1:
        raise InputError(
            f"database must be {scheme}:///path.db, a fourth slash for the root, got another URL"
        )
    return Address(kind="sqlite" if scheme == "sqlite" else "duckdb", path=Path(unquote(rest[1:])))


def _libpq_settings(rest: str) -> tuple[tuple[str, str], ...]:
    match = _POSTGRES.fullmatch(rest)
    hosts = [_HOST.fullmatch(word) for word in match["hosts"].split(",")] if match else [None]
    given = dict(parse_qsl(match["given"] or "", keep_blank_values=True)) if match else {}
    if match is None or not all(hosts) or not given.keys() <= _SETTINGS:
        raise InputError(
            "database must be a URL such as postgresql://user@host:5432/name?sslmode=verify-full without a "
            f"password and with no parameters but {', '.join(sorted(_SETTINGS))}, got another; give the "
            "password by password_env or password_file"
        )
    ports = [host["port"] or "" for host in hosts if host]
    settings = {
        "host": ",".join(unquote(host["host"].strip("[]")) for host in hosts if host),
        "port": ",".join(ports) if any(ports) else "",
        "dbname": unquote(match["name"] or ""),
        "user": unquote(match["user"] or ""),
        **given,
    }
    return tuple((key, value) for key, value in settings.items() if value)


@dataclass(frozen=True, slots=True)
class SqlQuery:
    """The rows that a query gives, as a silo's data; anything that takes a file's path takes it too.

    It holds no password: that is read from its place whenever a connection is made.

    Parameters
    ----------
    query
        One SELECT (or WITH … SELECT) whose columns are the features.
    database
        ``sqlite:///path.db`` or ``duckdb:///path.duckdb`` (four slashes for a path from the root) or
        ``postgresql://host:5432/name``; what a PostgreSQL URL leaves out comes from the variables
        and files that libpq reads (PGHOST, PGSSLMODE, ``~/.pgpass``, a service file).
    user
        PostgreSQL's user.
    password_env, password_file
        The environment variable or the file that holds the password.

    Examples
    --------
    >>> from fedpower import SqlQuery
    >>> SqlQuery("SELECT age, dose FROM visits", "sqlite:///ward.db").address.kind
    'sqlite'
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
        if not first or first[1].upper() not in _QUERIES:  # and the connection is read-only
            got = "another statement" if first and first[1] else "none"
            raise InputError(f"query must be a SELECT, got {got}")
        address = self.address
        given = [key for key in ("user", "password_env", "password_file") if getattr(self, key) is not None]
        if address.path is not None and given:
            raise InputError(f"a {address.kind} database must be named without {given[0]}, got one")
        if "user" in given and "user" in dict(address.settings):
            raise InputError("user must be given once, got one in database and one as user")
        if {"password_env", "password_file"} <= set(given):
            raise InputError("the password must be in one place, got both password_env and password_file")

    @property
    def address(self) -> Address:
        return parse_address(self.database)

    @property
    def text(self) -> str:
        return self.query.rstrip().rstrip(";").rstrip()

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
            raise InputError(f"{where} must hold the database's password, got none there")
        return password


def query_of(data: Mapping[str, Any], *, name: str, folder: Path | None = None) -> SqlQuery:
    """Return the query that a mapping describes, relative paths in it within the folder."""
    keys = [field.name for field in fields(SqlQuery)]
    if "password" in data:
        raise InputError(f"{name} must not hold a password, got one; give password_env or password_file")
    unknown = next((str(key) for key in data if key not in keys), None)
    if unknown is not None:
        near = difflib.get_close_matches(unknown, keys)
        hint = f" (did you mean {near[0]}?)" if near else ""
        raise InputError(f"{name} must describe a query by {', '.join(keys)}, got '{unknown}'{hint}")
    for key in ("query", "database"):
        if key not in data:
            raise InputError(f'{name} must give {key}, got none; add {key} = "…"')
    given = dict(data)
    if folder is not None and isinstance(given["database"], str):
        address = parse_address(given["database"])
        if address.path is not None:
            path = str(folder / address.path).replace("%", "%25")
            given["database"] = f"{address.kind}:///{path}"
        if isinstance(given.get("password_file"), str) and given["password_file"]:
            given["password_file"] = str(folder / given["password_file"])
    return SqlQuery(**given)


# --- dialects ---------------------------------------------------------------------------------------------

_CONNECT_SECONDS = "10"
"""How long a PostgreSQL server may take to accept a connection, unless the user sets another limit."""

_REAL = "CASE typeof({c}) WHEN 'real' THEN {c} WHEN 'integer' THEN CAST({c} AS REAL) "


@dataclass(frozen=True, slots=True, kw_only=True)
class _Dialect:
    """How a database is opened, and how its cells are selected; ``{c}`` is a column, ``{q}`` the query."""

    driver: str
    package: str
    extra: str = "sql"
    first: tuple[str, ...] = ()
    number: str = "{c}"
    text: str = "CAST({c} AS VARCHAR)"
    cell: str = "CAST({c} AS VARCHAR)"  # for digests: no two cells that differ are the same text
    select: str = "SELECT {chosen} FROM (\n{q}\n) AS fedpower_rows({names})"
    option: str = ""
    of_bytes: bool = False  # whether a batch is limited by its bytes, not by its rows


_DIALECTS = {
    "sqlite": _Dialect(
        driver="adbc_driver_sqlite.dbapi",
        package="adbc-driver-sqlite",
        first=("PRAGMA busy_timeout = 10000",),
        number=_REAL + "END",
        text="CASE WHEN typeof({c}) = 'real' AND {c} = CAST({c} AS INTEGER) "
        "THEN CAST(CAST({c} AS INTEGER) AS TEXT) ELSE CAST({c} AS TEXT) END",
        cell="CASE typeof({c}) WHEN 'real' THEN printf('%!.17g', {c} + 0.0) WHEN 'null' THEN NULL "
        "ELSE quote({c}) END",
        select="WITH fedpower_rows({names}) AS (\n{q}\n) SELECT {chosen} FROM fedpower_rows",
        option="adbc.sqlite.query.batch_rows",
    ),
    "duckdb": _Dialect(driver="adbc_driver_duckdb", package="duckdb", extra="duckdb"),
    "postgresql": _Dialect(
        driver="adbc_driver_postgresql.dbapi",
        package="adbc-driver-postgresql",
        first=(
            "SET default_transaction_read_only = on",
            "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
        ),
        option="adbc.postgresql.batch_size_hint_bytes",
        of_bytes=True,
    ),
}
_EXACT_NUMBER = "CAST(CAST({c} AS numeric) AS float8)"
"""PostgreSQL's numeric and money, which its driver gives as text or in cents, as numbers."""

_CODES = {
    "25006": "a statement that changes data",
    "42501": "no permission for a table or column in it",
    "57014": "that the server cancelled it",
}
"""What an SQLSTATE means here, where a plain word helps."""

# --- connections ------------------------------------------------------------------------------------------


@contextmanager
def connected(query: SqlQuery, name: str) -> Iterator[Any]:
    """Yield a DBAPI connection to the query's database that cannot change it."""
    address, secret = query.address, query.password()
    dialect = _DIALECTS[address.kind]
    if address.path is not None and not address.path.is_file():
        raise InputError(
            f"the database of {name} must be a file that exists, got none at {address.path}; write "
            f"{address.kind}:////… where its path begins with a slash"
        )
    try:
        driver = import_module(dialect.driver)
    except ImportError:
        extra = installing(dialect.extra)
        raise InputError(f"{name} must be read with {dialect.package}, got none; run {extra}") from None
    try:
        if address.kind == "duckdb":  # its own ``connect`` has no option to open a file read-only
            connection = import_module("adbc_driver_manager.dbapi").connect(
                driver=driver.driver_path(),
                entrypoint="duckdb_adbc_init",
                db_kwargs={"path": str(address.path), "access_mode": "READ_ONLY"},
                autocommit=True,
            )
        elif address.path is not None:
            connection = driver.connect(f"{address.path.resolve().as_uri()}?mode=ro", autocommit=True)
        else:
            connection = driver.connect(conninfo(address, query.user, secret), autocommit=True)
    except import_module("adbc_driver_manager").Error as error:
        reason = " ".join((str(error).partition("Failed to connect:")[2] or str(error)).split())
        if secret is not None and secret in str(error):
            reason = "the reason is withheld because the password, or a word like it, is in it"
        raise InputError(
            f"{name} must be able to reach {address.label}, got no connection ({reason})"
        ) from None
    with connection:
        with _preparing(name), connection.cursor() as cursor:
            for statement in dialect.first:
                cursor.execute(statement)
        yield connection


def conninfo(address: Address, user: str | None, password: str | None) -> str:
    """Return libpq's connection string."""
    settings = {"fallback_application_name": "fedpower", **dict(address.settings)}
    settings |= {key: word for key, word in (("user", user), ("password", password)) if word is not None}
    if "service" not in settings and "PGCONNECT_TIMEOUT" not in os.environ:
        settings.setdefault("connect_timeout", _CONNECT_SECONDS)
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in settings.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


@contextmanager
def _preparing(name: str) -> Iterator[None]:
    try:
        yield
    except _failures() as error:
        text = str(error)
        reason = text.partition("Failed to prepare query: ")[2] or text.partition(" Error: ")[2]
        reason = reason.partition("\nquery:")[0].partition("\n\nLINE ")[0]
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
            f"{name} must be a query that runs to its end, got {what}; run it in the database's shell"
        ) from None


def _failures() -> tuple[type[Exception], ...]:
    arrow = import_module("pyarrow")
    return (import_module("adbc_driver_manager").Error, arrow.ArrowException, OSError)


def _find_columns(connection: Any, query: SqlQuery, name: str) -> dict[str, tuple[Any, str]]:
    """Return by column, from no row, its type (None where every row may have its own) and its number."""
    kind = query.address.kind
    number = _DIALECTS[kind].number
    # Nothing but a query may be in brackets.
    bracketed = f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows"  # noqa: S608
    with _preparing(name), connection.cursor() as cursor:
        if kind == "sqlite":
            names = _sqlite_columns(cursor, query.text)
            require_distinct(name, names)
            return dict.fromkeys(names, (None, number))
        schema = cursor.adbc_execute_schema(bracketed)
        if kind == "duckdb":  # in brackets a name that occurs twice is changed
            schema = cursor.adbc_execute_schema(query.text)
    require_distinct(name, schema.names)
    types = _frame_of(schema.empty_table().combine_chunks()).dtypes
    columns = {}
    for column, dtype in zip(schema, types, strict=True):
        is_exact = (column.metadata or {}).get(b"POSTGRESQL:type", b"") in (b"numeric", b"money")
        columns[column.name] = (pl.Float64(), _EXACT_NUMBER) if is_exact else (dtype, number)
    return columns


def _sqlite_columns(cursor: Any, query: str) -> tuple[str, ...]:
    cursor.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0")  # noqa: S608
    names = tuple(cursor.fetch_record_batch().schema.names)
    lower = {name.lower() for name in names}
    parts = [name.rpartition(":") for name in names]
    if any(sign and number.isdigit() and stem.lower() in lower for stem, sign, number in parts):
        # "a:1" may stand for a second column "a", which only the query by itself shows.
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "1"})
        cursor.execute(query)
        names = tuple(cursor.fetch_record_batch().schema.names)
    return names


def _frame_of(batch: Any) -> pl.DataFrame:
    """Return a batch as a frame; intervals, which Polars does not import, become texts."""
    arrow = import_module("pyarrow")
    columns = []
    for column in batch.columns:
        if arrow.types.is_interval(column.type):
            texts = [None if cell is None else str(cell) for cell in column.to_pylist()]
            columns.append(pl.Series(values=texts, dtype=pl.String))
        else:
            columns.append(pl.Series(values=column))
    return pl.DataFrame([column.alias(f"r{place}") for place, column in enumerate(columns)])


# --- rows -------------------------------------------------------------------------------------------------

_LANES = 8
_DIGEST_ROWS = 2**14


class _CellTally:
    """The number of rows, and the sum of a 512-bit digest of each: the same in any order."""

    def __init__(self, columns: tuple[str, ...]) -> None:
        self._columns = columns
        self._n_rows = 0
        self._sum = np.zeros(_LANES, dtype=np.uint64)

    def add(self, batch: pl.DataFrame) -> None:
        """Count rows of cells as text, each with its length before it, -1 for null."""
        size = pl.all().str.len_bytes().cast(pl.Int64).fill_null(-1)
        cells = pl.format("{} {} ", size, pl.all().fill_null(""))
        lines = batch.cast(pl.String).select(cells).select(pl.concat_str(pl.all()).alias("line"))
        digests = b"".join(hashlib.blake2b(line.encode()).digest() for line in lines["line"])
        self._sum += np.frombuffer(digests, dtype="<u8").reshape(-1, _LANES).sum(axis=0, dtype="<u8")
        self._n_rows += len(batch)

    def digest(self) -> str:
        head = json.dumps(["fedpower.rows in any order/3", self._columns, self._n_rows])
        return hashlib.sha256(head.encode() + self._sum.astype("<u8").tobytes()).hexdigest()


class StoredQuery:
    """A query as what reads raw batches; every pass makes a connection of its own and closes it."""

    def __init__(self, query: SqlQuery, name: str) -> None:
        self.name, self.query = name, query
        with connected(query, name) as connection:
            self.columns = _find_columns(connection, query, name)
        self._dialect = _DIALECTS[query.address.kind]
        self._watched = False
        self._digest: str | None = None

    def read(self, numbers: list[str], words: list[str], max_rows: int) -> Iterator[pl.DataFrame]:
        places = {column: f"c{place}" for place, column in enumerate(self.columns)}
        wanted = [self.columns[name][1].format(c=places[name]) for name in numbers]
        wanted += [self._dialect.text.format(c=places[name]) for name in words]
        tally = _CellTally(tuple(self.columns)) if self._watched else None
        cells = [self._dialect.cell.format(c=place) for place in places.values() if tally]
        for received in self._run([*wanted, *cells], max_rows, width=len(wanted)):
            batch = received[:, : len(wanted)]
            if tally is not None:
                tally.add(received[:, len(wanted) :])
            if self.query.address.kind == "sqlite" and any(
                batch[:, at].null_count() for at in range(len(numbers))
            ):
                self._refuse_text(numbers, places)
            batch.columns = [*numbers, *words]
            yield from batch.iter_slices(max_rows)
            del batch, received  # or two batches are held while the next one is read
        if tally is not None:
            if self._digest not in (None, tally.digest()):
                raise other_rows(self.name)
            self._digest = tally.digest()

    def _refuse_text(self, numbers: list[str], places: Mapping[str, str]) -> None:
        """Find out whether SQLite's first null is a null or text, by a second pass over the types."""
        row = 0
        for batch in self._run([f"typeof({places[name]})" for name in numbers], 2**12, width=len(numbers)):
            for offset, words in enumerate(batch.iter_rows()):
                for name, word in zip(numbers, words, strict=True):
                    if word in ("text", "blob"):
                        raise not_a_number(self.name, name, word, row + offset)
                if "null" in words:
                    return
            row += len(batch)

    def watch_cells(self) -> None:
        """Require every pass from now on to be over the same cells, and keep their digest."""
        self._watched = True

    def digest(self, watch: Watch = UNWATCHED) -> str:
        self.watch_cells()
        watch.saw(0)
        if self._digest is None:
            for _ in self.read([], [], _DIGEST_ROWS):
                pass
        return str(self._digest)

    def _run(self, chosen: Sequence[str], max_rows: int, *, width: int) -> Iterator[pl.DataFrame]:
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        selected = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(chosen))
        statement = self._dialect.select.format(names=names, chosen=selected, q=self.query.text)
        size = min(max(8 * width * max_rows, 2**16), 2**24) if self._dialect.of_bytes else max_rows
        with (
            connected(self.query, self.name) as connection,
            _reading(self.name),
            connection.cursor() as cursor,
        ):
            if self._dialect.option:
                cursor.adbc_statement.set_options(**{self._dialect.option: str(size)})
            cursor.execute(statement)
            for batch in cursor.fetch_record_batch():
                yield _frame_of(batch)


def query_table(query: SqlQuery, name: str) -> Table:
    """Return the table of a query, after its database was asked for the columns."""
    stored = StoredQuery(query, name)
    require_shape(name, None, len(stored.columns))
    cells = {column: Cells(own=column, dtype=dtype) for column, (dtype, _) in stored.columns.items()}
    return Table(name=name, parts=(Part(name=name, cells=cells, read=stored.read),), query=stored)
