"""Connections that can only read, and their failures in sentences without cells or secrets."""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, Protocol, TypeAlias

from fedpower.errors import InputError, installing
from fedpower.rows.columns import not_a_number
from fedpower.rows.source import pl
from fedpower.rows.sql.query import DuckdbFile, PostgresServer, SqliteFile, SqlQuery

_CONNECT_SECONDS = "10"
"""How long a PostgreSQL server may take to accept a connection, unless the user said otherwise."""

_BUSY_MILLISECONDS = 10_000
"""How long a SQLite file may be locked by a writer."""

CODES = {
    "25006": "a statement that changes data",
    "42501": "no permission for a table or column in it",
    "57014": "that the server cancelled it",
}
"""What an SQLSTATE means here, where a plain word helps."""


@contextmanager
def connected(query: SqlQuery, name: str) -> Iterator[Any]:
    """Yield a DBAPI connection to the query's database that cannot change it."""
    address, secret = query.address, None
    if isinstance(address, SqliteFile):
        first = [f"PRAGMA busy_timeout = {_BUSY_MILLISECONDS}"]
        place = f"{_existing(address, name).as_uri()}?mode=ro"
    elif isinstance(address, DuckdbFile):
        first, place = [], str(_existing(address, name))
    else:
        first = [
            "SET default_transaction_read_only = on",
            "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
        ]
        secret = query.password()
        place = _conninfo(address, query.user, secret)
    connect = _driver(_DRIVERS[type(address)], name)
    try:
        connection = connect(place)
    except import_module("adbc_driver_manager").Error as error:
        raise InputError(
            f"{name} must be able to reach {address.label}, got no connection "
            f"({_connect_message(error, secret)}); check that it runs, its address, user and password"
        ) from None
    with connection:
        with preparing(name), connection.cursor() as cursor:
            for statement in first:
                cursor.execute(statement)
        yield connection


@contextmanager
def preparing(name: str) -> Iterator[None]:
    """Turn a database's refusal of the query's text into one sentence, with what it says of it."""
    try:
        yield
    except InputError:
        raise
    except failures() as error:
        raise InputError(
            f"{name} must be a query that its database can run, got the error "
            f"'{_prepare_message(error)}'; correct the query or the database"
        ) from None


@contextmanager
def reading(name: str) -> Iterator[None]:
    """Turn a failure while rows come into one sentence without the database's own words."""
    try:
        yield
    except InputError:
        raise
    except failures() as error:
        code = getattr(error, "sqlstate", None)
        known = CODES.get(code or "", "an error from the database")
        what = f"{known} (SQLSTATE {code})" if code else known
        raise InputError(
            f"{name} must be a query that runs to its end, got {what}; run it in the database's own "
            "shell to see why"
        ) from None


def failures() -> tuple[type[Exception], ...]:
    """Return what the drivers raise, and Arrow where it reads from them."""
    arrow = import_module("pyarrow")
    return (import_module("adbc_driver_manager").Error, arrow.ArrowException, OSError)


_DRIVERS = {SqliteFile: "sqlite", DuckdbFile: "duckdb", PostgresServer: "postgresql"}


def _driver(kind: str, name: str) -> Callable[[str], Any]:
    """Return what connects to a place, its driver imported on first use."""
    try:
        if kind == "duckdb":
            driver = import_module("adbc_driver_duckdb").driver_path()
            return partial(_connect_duckdb, driver)
        return partial(import_module(f"adbc_driver_{kind}.dbapi").connect, autocommit=True)
    except ImportError:
        package = "duckdb" if kind == "duckdb" else f"adbc-driver-{kind}"
        raise InputError(
            f"{name} must be read with the driver {package}, got none installed; run "
            + installing("duckdb" if kind == "duckdb" else "sql")
        ) from None


def _connect_duckdb(driver: str, place: str) -> Any:
    """Return a connection that cannot write; DuckDB's own ``connect`` has no such option."""
    return import_module("adbc_driver_manager.dbapi").connect(
        driver=driver,
        entrypoint="duckdb_adbc_init",
        db_kwargs={"path": place, "access_mode": "READ_ONLY"},
        autocommit=True,
    )


def _existing(address: SqliteFile | DuckdbFile, name: str) -> Path:
    """Return the path of a database file that exists."""
    if not address.path.is_file():
        raise InputError(
            f"the database of {name} must be a file that exists, got none at {address.path}; check "
            f"the path ({_DRIVERS[type(address)]}:////… where it begins with a slash)"
        )
    return address.path.resolve()


def _conninfo(address: PostgresServer, user: str | None, password: str | None) -> str:
    """Return libpq's connection string."""
    found = {"fallback_application_name": "fedpower", **dict(address.settings)}
    if user is not None:
        found["user"] = user
    if password is not None:
        found["password"] = password
    if "service" not in found and "PGCONNECT_TIMEOUT" not in os.environ:
        found.setdefault("connect_timeout", _CONNECT_SECONDS)
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in found.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


def _connect_message(error: Exception, secret: str | None) -> str:
    """Return the driver's words about a failed connection in one line, unless the password is in them."""
    text = str(error)
    if secret is not None and secret in text:
        return "the reason is withheld because the password, or a word like it, stands in it"
    return " ".join((text.partition("Failed to connect:")[2] or text).split())


def _prepare_message(error: Exception) -> str:
    """Return what a database says of a query's text: PostgreSQL's primary message, the others' line."""
    for key, value in getattr(error, "details", None) or ():
        if key in ("PG_DIAG_MESSAGE_PRIMARY", b"PG_DIAG_MESSAGE_PRIMARY"):
            return str(value, "utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = str(error)
    told = text.partition("Failed to prepare query: ")[2] or text.partition(" Error: ")[2]
    told = told.partition("\nquery:")[0].partition("\n\nLINE ")[0]
    return " ".join(told.split()) or "an error without a message"


Run: TypeAlias = Callable[[str, dict[str, str]], Iterator[Any]]
"""What yields the batches of a statement under options of the driver."""

MIN_HINT, MAX_HINT = 2**16, 16 * 2**20
EXACT = ("numeric", "money")
"""PostgreSQL's decimals, which its driver gives as text or in cents: the server makes them float8."""


class Dialect(Protocol):
    """How a database is asked for columns and rows."""

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the query's columns."""
        ...

    @property
    def types(self) -> tuple[Any, ...] | None:
        """Types of the columns; None where every row may have its own."""
        ...

    def statement(
        self, query: str, features: Sequence[int], labels: Sequence[int], *, with_cells: bool
    ) -> str:
        """Return the query for the feature columns, then labels as text, by their places."""
        ...

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the driver's options for batches of about `max_rows` rows."""
        ...

    def check(self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]) -> None:
        """Refuse a batch with text where a number must be; nulls are refused later."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class _Sqlite:
    """SQLite, whose columns may hold a value of another type in every row."""

    columns: tuple[str, ...]

    @property
    def types(self) -> None:
        """None: what a column is declared to hold binds no row."""
        return

    def statement(
        self, query: str, features: Sequence[int], labels: Sequence[int], *, with_cells: bool
    ) -> str:
        """Return a query of REAL columns, and of labels as text."""
        cells = [
            f"CASE typeof(c{place}) WHEN 'real' THEN c{place} WHEN 'integer' THEN CAST(c{place} AS REAL) END"
            for place in features
        ]
        cells += [
            f"CASE WHEN typeof(c{place}) = 'real' AND c{place} = CAST(c{place} AS INTEGER) "
            f"THEN CAST(CAST(c{place} AS INTEGER) AS TEXT) ELSE CAST(c{place} AS TEXT) END"
            for place in labels
        ]
        for place in range(len(self.columns)) if with_cells else ():
            # Numbers as they are, for as text they have fifteen digits alone, and what is none beside.
            cells.append(
                f"CASE typeof(c{place}) WHEN 'real' THEN c{place} "
                f"WHEN 'integer' THEN CAST(c{place} AS REAL) ELSE 0.0 END"
            )
            cells.append(
                f"CASE typeof(c{place}) WHEN 'real' THEN '' WHEN 'integer' THEN '' "
                f"WHEN 'null' THEN 'null' ELSE quote(c{place}) END"
            )
        return self._around(query, cells)

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the number of rows in a batch."""
        return {"adbc.sqlite.query.batch_rows": str(max_rows)}

    def check(self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]) -> None:
        """Find out whether the first null is a null or text, by a second pass over the types."""
        if not any(batch.to_series(place).null_count() for place in range(len(features))):
            return
        kinds = self._around(query, [f"typeof(c{place})" for place in features])
        row = 0
        for found in run(kinds, self.options(len(features), 2**12)):
            for offset, words in enumerate(found.iter_rows()):
                for place, word in zip(features, words, strict=True):
                    if word in ("text", "blob"):
                        raise not_a_number(name, self.columns[place], word, row + offset)
                if "null" in words:
                    return
            row += len(found)

    def _around(self, query: str, cells: Sequence[str]) -> str:
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        named = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(cells))
        return f"WITH fedpower_rows({names}) AS (\n{query}\n) SELECT {named} FROM fedpower_rows"  # noqa: S608


@dataclass(frozen=True, slots=True, kw_only=True)
class _Postgres:
    """PostgreSQL, whose driver streams the rows of a binary COPY."""

    columns: tuple[str, ...]
    exact: tuple[bool, ...]
    types: tuple[Any, ...]

    def statement(
        self, query: str, features: Sequence[int], labels: Sequence[int], *, with_cells: bool
    ) -> str:
        """Return a query of the columns as they are, decimals as float8."""
        cells = [
            f"CAST(CAST(c{place} AS numeric) AS float8)" if self.exact[place] else f"c{place}"
            for place in features
        ]
        every = range(len(self.columns)) if with_cells else ()
        cells += [f"CAST(c{place} AS text)" for place in (*labels, *every)]
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        named = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(cells))
        return f"SELECT {named} FROM (\n{query}\n) AS fedpower_rows({names})"  # noqa: S608

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return the number of bytes after which a batch is closed."""
        size = min(max(8 * n_columns * max_rows, MIN_HINT), MAX_HINT)
        return {"adbc.postgresql.batch_size_hint_bytes": str(size)}

    def check(self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]) -> None:
        """Nothing to refuse: a column of text has a type of its own here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Duckdb:
    """DuckDB, whose columns have a type each and whose driver streams the chunks of a result."""

    columns: tuple[str, ...]
    types: tuple[Any, ...]

    def statement(
        self, query: str, features: Sequence[int], labels: Sequence[int], *, with_cells: bool
    ) -> str:
        """Return a query of the columns as they are, and of labels as text."""
        cells = [f"c{place}" for place in features]
        every = range(len(self.columns)) if with_cells else ()
        cells += [f"CAST(c{place} AS VARCHAR)" for place in (*labels, *every)]
        names = ", ".join(f"c{place}" for place in range(len(self.columns)))
        named = ", ".join(f"{cell} AS r{place}" for place, cell in enumerate(cells))
        return f"SELECT {named} FROM (\n{query}\n) AS fedpower_rows({names})"  # noqa: S608

    def options(self, n_columns: int, max_rows: int) -> dict[str, str]:
        """Return none: its chunks have a size of their own."""
        return {}

    def check(self, batch: Any, *, run: Run, name: str, query: str, features: Sequence[int]) -> None:
        """Nothing to refuse: a column of text has a type of its own here."""


def find_dialect(connection: Any, query: SqlQuery, name: str) -> Dialect:
    """Return how to ask for the query's rows, after a look at its columns but at no row."""
    with preparing(name), connection.cursor() as cursor:
        if isinstance(query.address, SqliteFile):
            return _Sqlite(columns=_sqlite_columns(cursor, query.text))
        if isinstance(query.address, DuckdbFile):
            # Nothing but a query may stand in brackets; there, a name that occurs twice is changed.
            cursor.adbc_execute_schema(f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows")  # noqa: S608
            found = cursor.adbc_execute_schema(query.text)
            return _Duckdb(columns=tuple(found.names), types=_types(found))
        schema = cursor.adbc_execute_schema(
            f"SELECT * FROM (\n{query.text}\n) AS fedpower_rows"  # noqa: S608
        )
    kinds = [(field.metadata or {}).get(b"POSTGRESQL:type", b"").decode() for field in schema]
    exact = tuple(kind in EXACT for kind in kinds)
    types = (pl.Float64() if is_exact else kind for kind, is_exact in zip(_types(schema), exact, strict=True))
    return _Postgres(columns=tuple(schema.names), exact=exact, types=tuple(types))


def _types(schema: Any) -> tuple[Any, ...]:
    """Return what Polars calls the types of an Arrow schema."""
    arrow = import_module("pyarrow")
    return tuple(
        pl.String() if arrow.types.is_interval(kind) else pl.Series(arrow.array([], kind)).dtype
        for kind in schema.types
    )


def frame_of(batch: Any) -> pl.DataFrame:
    """Return a batch as a frame; intervals, which Polars does not import, become texts."""
    arrow = import_module("pyarrow")
    for place, field in enumerate(batch.schema):
        if arrow.types.is_interval(field.type):
            texts = [None if cell is None else str(cell) for cell in batch.column(place).to_pylist()]
            batch = batch.set_column(place, field.name, arrow.array(texts, arrow.string()))
    return pl.DataFrame(batch)


def _sqlite_columns(cursor: Any, query: str) -> tuple[str, ...]:
    """Return the names of a query's columns as they are written."""
    cursor.execute(f"SELECT * FROM (\n{query}\n) LIMIT 0")  # noqa: S608
    names = tuple(cursor.fetch_record_batch().schema.names)
    if any(_numbered(names)):  # names that occur twice, which only the query by itself tells
        cursor.adbc_statement.set_options(**{"adbc.sqlite.query.batch_rows": "1"})
        cursor.execute(query)
        names = tuple(cursor.fetch_record_batch().schema.names)
    return names


def _numbered(names: Sequence[str]) -> Iterator[bool]:
    """Yield for each name whether it looks like that of a column whose name occurred before."""
    for name in names:
        stem, sign, number = name.rpartition(":")
        yield bool(sign) and number.isdigit() and any(stem.lower() == n.lower() for n in names)
