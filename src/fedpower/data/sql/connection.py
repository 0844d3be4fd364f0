"""Connections that can only read, and their failures in sentences without cells or secrets.

A database's own messages may quote cells, so they are passed on only while nothing has been read: when
the connection fails, and when the query is prepared. After that its error code alone is told.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fedpower.data.sql.address import PostgresServer, SqliteFile
from fedpower.data.sql.query import SqlQuery
from fedpower.data.tables import arrow
from fedpower.errors import InputError, installing

CONNECT_SECONDS = "10"
"""How long a PostgreSQL server may take to accept a connection, unless the user said otherwise."""

BUSY_MILLISECONDS = 10_000
"""How long a SQLite file may be locked by a writer."""

CODES = {
    "25006": "a statement that changes data",
    "42501": "no permission for a table or column in it",
    "57014": "that the server cancelled it",
}
"""What an SQLSTATE means here, where a plain word helps."""


@contextmanager
def connected(query: SqlQuery, name: str) -> Iterator[Any]:
    """Yield a DBAPI connection to the query's database that cannot change it.

    SQLite files are opened with ``mode=ro``. On PostgreSQL everything happens in one transaction that is
    READ ONLY and REPEATABLE READ.

    Parameters
    ----------
    query : what to connect to.
    name : of the source, for the sentences.
    """
    address = query.address
    if isinstance(address, SqliteFile):
        first = [f"PRAGMA busy_timeout = {BUSY_MILLISECONDS}"]
        place, secret = _sqlite_uri(address, name), None
    else:
        first = [
            "SET default_transaction_read_only = on",
            "BEGIN TRANSACTION ISOLATION LEVEL REPEATABLE READ READ ONLY",
        ]
        secret = query.password()
        place = _conninfo(address, query.user, secret)
    kind = "sqlite" if isinstance(address, SqliteFile) else "postgresql"
    driver = _driver(kind, name)
    try:
        connection = driver.connect(place, autocommit=True)
    except driver.Error as error:
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
    return (import_module("adbc_driver_manager").Error, arrow().ArrowException, OSError)


def _driver(kind: str, name: str) -> Any:
    """Return a driver's DBAPI module, imported on first use."""
    try:
        return import_module(f"adbc_driver_{kind}.dbapi")
    except ImportError:
        raise InputError(
            f"{name} must be read with the driver adbc-driver-{kind}, got none installed; run "
            + installing("sql")
        ) from None


def _sqlite_uri(address: SqliteFile, name: str) -> str:
    """Return the URI that opens an existing file for reading only."""
    if not address.path.is_file():
        raise InputError(
            f"the database of {name} must be a file that exists, got none at {address.path}; check "
            "the path (sqlite:////… where it begins with a slash)"
        )
    return f"{address.path.resolve().as_uri()}?mode=ro"


def _conninfo(address: PostgresServer, user: str | None, password: str | None) -> str:
    """Return libpq's connection string."""
    found = {"fallback_application_name": "fedpower", **dict(address.settings)}
    if user is not None:
        found["user"] = user
    if password is not None:
        found["password"] = password
    if "service" not in found and "PGCONNECT_TIMEOUT" not in os.environ:
        found.setdefault("connect_timeout", CONNECT_SECONDS)
    quoted = {key: value.replace("\\", "\\\\").replace("'", "\\'") for key, value in found.items()}
    return " ".join(f"{key}='{value}'" for key, value in quoted.items())


def _connect_message(error: Exception, secret: str | None) -> str:
    """Return the driver's words about a failed connection in one line, unless the password is in them."""
    text = str(error)
    if secret is not None and secret in text:
        return "the reason is withheld because the password, or a word like it, stands in it"
    return " ".join((text.partition("Failed to connect:")[2] or text).split())


def _prepare_message(error: Exception) -> str:
    """Return what the database says of the query's text: PostgreSQL's primary message, SQLite's line."""
    for key, value in getattr(error, "details", None) or ():
        if key in ("PG_DIAG_MESSAGE_PRIMARY", b"PG_DIAG_MESSAGE_PRIMARY"):
            return str(value, "utf-8", "replace") if isinstance(value, bytes) else str(value)
    text = str(error).partition("Failed to prepare query: ")[2]
    return " ".join(text.partition("\nquery:")[0].split()) or "an error without a message"
