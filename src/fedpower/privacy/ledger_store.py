"""The SQLite database of a ledger: its tables, the seals of its rows, and who may read its file."""

import contextlib
import functools
import hashlib
import json
import os
import sqlite3
import stat
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from fedpower.errors import LedgerError

_APPLICATION_ID = 0x66706C67  # "fplg"
SCHEMA_VERSION = 3
_BUSY_TIMEOUT_S = 60.0

_SEALED = {
    "cap": "seq, time, epsilon, delta, reason",
    "release": "seq, time, key, purpose, study, mu, slack_delta, sha256",
    "version": "seq, time, name, columns, fingerprint",
}
"""Append-only tables, and their columns that each row's seal covers."""

SCHEMA = """
CREATE TABLE silo (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT, data_set TEXT,
    for_experiments INTEGER NOT NULL);
CREATE TABLE cap (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL,
    epsilon REAL NOT NULL CHECK (epsilon > 0 AND epsilon < 9e999),
    delta REAL NOT NULL CHECK (delta > 0 AND delta < 1),
    reason TEXT NOT NULL, seal TEXT NOT NULL);
CREATE TABLE release (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL,
    key TEXT NOT NULL UNIQUE, purpose TEXT NOT NULL, study TEXT NOT NULL,
    mu REAL NOT NULL CHECK (mu > 0 AND mu < 9e999),
    slack_delta REAL NOT NULL CHECK (slack_delta >= 0 AND slack_delta < 1),
    sha256 TEXT NOT NULL, seal TEXT NOT NULL, payload BLOB NOT NULL);
CREATE TABLE version (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL,
    name TEXT NOT NULL, columns TEXT NOT NULL, fingerprint TEXT NOT NULL,
    seal TEXT NOT NULL, UNIQUE (name, columns));
""" + "".join(
    f"CREATE TRIGGER {table}_{name} BEFORE {change} ON {table} "
    "BEGIN SELECT RAISE(ABORT, 'append only'); END;\n"
    for table in _SEALED
    for name, change in (("keeps", "UPDATE"), ("stays", "DELETE"))
)

_STATEMENTS = (
    *SCHEMA.strip().split(";\n"),
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_REFUSALS = {
    sqlite3.SQLITE_FULL: "must have room to grow but its disk is full; free some space",
    sqlite3.SQLITE_READONLY: "must stay in place and writable but is not; check where it is",
    sqlite3.SQLITE_READONLY_ROLLBACK: "must be at rest to be read but a change to it was interrupted; "
    "let its owner run `fedpower ledger show` on it, which undoes that change",
    sqlite3.SQLITE_CANTOPEN: "must be writable but is not; give this user the file and its folder",
    sqlite3.SQLITE_BUSY: "must be free within a minute but another process holds it; ask again",
    sqlite3.SQLITE_TOOBIG: "must keep what leaves but this is too large for it; ask for less",
    sqlite3.SQLITE_IOERR: "must be written durably but the disk refused; check space and limits",
}

_JSON = json.JSONEncoder(default=repr)

Table = Literal["cap", "release", "version"]


class Store:
    """One connection to a ledger's database, shared by the threads of one process."""

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self.label = "in memory" if path is None else str(path)
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        # "" is a private temporary database: in memory, but for large releases that it spills to disk.
        target = "" if path is None else f"{path.resolve().as_uri()}?mode={'ro' if read_only else 'rw'}"
        try:
            self._db = sqlite3.connect(
                target, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
            )
        except sqlite3.Error as error:
            raise self._refusal(error) from None

    @classmethod
    def create(
        cls,
        path: Path | None,
        *,
        silo: str | None,
        data_set: str | None,
        cap: tuple[float, float],
        for_experiments: bool,
    ) -> Self:
        """Return a new store in a file that only its owner can read (0600), or in memory."""
        if path is not None:
            _make_private_file(path)
        store = cls(path)
        try:
            if path is not None:
                store._be_durable()
            store._initialise(silo, data_set, cap, for_experiments)
        except BaseException:
            store.close()
            if path is not None:
                path.unlink()
            raise
        return store

    @classmethod
    def open(cls, path: Path, *, read_only: bool = False) -> Self:
        """Return the store in an existing file, checked from end to end."""
        _check_private(path)
        is_writable = bool(path.stat().st_mode & 0o200) and os.access(path, os.R_OK | os.W_OK)
        has_writable_folder = os.access(path.resolve().parent, os.W_OK | os.X_OK)
        journal = path.resolve().with_name(f"{path.resolve().name}-journal")
        if read_only and journal.exists() and is_writable and has_writable_folder:
            read_only = False  # opening it undoes the interrupted change, which reading cannot
        if not read_only and not is_writable:
            raise LedgerError(
                f"ledger {path} must be writable but is not; run `chmod 600 {path}` as its owner"
            )
        if not read_only and not has_writable_folder:
            raise LedgerError(f"the folder of ledger {path} must be writable (for its journal) but is not")
        store = cls(path, read_only=read_only)
        try:
            store._check_kind()
            if not read_only:
                store._be_durable()
            store._check_seals()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the connection; twice is harmless, and a forked child leaves its parent's open."""
        if os.getpid() == self._pid:
            with self._lock:
                self._db.close()

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a statement; SQLite's errors become one sentence."""
        self._check_process()
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._refusal(error) from None

    @contextlib.contextmanager
    def transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"] = "DEFERRED") -> Iterator[None]:
        """Commit what the body does, or undo all of it; a reader may sit inside a writer."""
        self._check_process()  # before the lock: a fork may have copied it while it was held
        with self._lock:
            self.query("SELECT 1")  # refuses a closed connection first
            if self._db.in_transaction:
                if kind == "IMMEDIATE":
                    raise LedgerError(f"ledger {self.label} was asked for a change from inside a payload")
                yield
                return
            self.query(f"BEGIN {kind}")
            try:
                yield
                self.query("COMMIT")
            except BaseException:
                try:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                except sqlite3.Error:  # the journal undoes it when the file is next opened
                    self._db.close()
                raise

    def append(self, table: Table, *fields: object) -> None:
        """Add one sealed row; the payload of a release comes last and is sealed by its digest."""
        n_sealed = _SEALED[table].count(",") - 1
        last, previous = self.last(table)
        sealed = (last + 1, datetime.now(UTC).isoformat(), *fields[:n_sealed])
        row = (*sealed, _seal_of(previous, sealed), *fields[n_sealed:])
        self.query(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608

    def last(self, table: Table) -> tuple[int, str]:
        """Return the number and the seal of a table's last row: (0, "") when it is empty."""
        rows = self.query(f"SELECT seq, seal FROM {table} ORDER BY seq DESC LIMIT 1")  # noqa: S608
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")

    def _initialise(
        self, silo: str | None, data_set: str | None, cap: tuple[float, float], for_experiments: bool
    ) -> None:
        if self._path is None:  # a copy of the tables takes a fifth of the time, and a fit has many ledgers
            with contextlib.closing(sqlite3.connect(":memory:")) as tables:
                tables.deserialize(_tables())
                tables.backup(self._db)
        with self.transaction("IMMEDIATE"):
            for statement in _STATEMENTS if self._path is not None else ():
                self.query(statement)
            self.query("INSERT INTO silo VALUES (1, ?, ?, ?)", silo, data_set, int(for_experiments))
            self.append("cap", *cap, "created")

    def _be_durable(self) -> None:
        for pragma in ("journal_mode = DELETE", "synchronous = EXTRA", "fullfsync = 1"):
            self.query(f"PRAGMA {pragma}")

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerError(
                f"ledger {self.label} must be used by the process that opened it; open the ledger again here"
            )

    def _check_kind(self) -> None:
        if self.query("PRAGMA application_id") != [(_APPLICATION_ID,)]:
            raise LedgerError(f"{self.label} must be a fedpower ledger but is another kind of database")
        version = self.query("PRAGMA user_version")[0][0]
        if version != SCHEMA_VERSION:
            raise LedgerError(f"ledger {self.label} must have schema {SCHEMA_VERSION} but has {version}")

    def _check_seals(self) -> None:
        """Refuse a file whose pages or whose seals do not fit together."""
        with self.transaction():
            sound = self.query("PRAGMA quick_check(1)") == [("ok",)] and self._has_all_pages()
            for table, columns in _SEALED.items() if sound else ():
                previous = ""
                rows = self.query(f"SELECT {columns}, seal FROM {table} ORDER BY seq")  # noqa: S608
                for seq, (*fields, seal) in enumerate(rows, start=1):
                    sound = sound and fields[0] == seq and seal == _seal_of(previous, fields)
                    previous = seal
                sound = sound and (table != "cap" or bool(rows))
            if not sound or len(self.query("SELECT name FROM silo")) != 1:
                raise self._damaged()

    def _has_all_pages(self) -> bool:
        pages, size = (int(self.query(f"PRAGMA {name}")[0][0]) for name in ("page_count", "page_size"))
        return self._path is None or self._path.stat().st_size >= pages * size

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"ledger {self.label} must be whole but is damaged or no ledger; put back the file as it was "
            "last written: restoring an older copy erases recorded spending"
        )

    def _refusal(self, error: sqlite3.Error) -> LedgerError:
        if isinstance(error, sqlite3.ProgrammingError):
            return LedgerError(f"ledger {self.label} must be open but was closed; open it again")
        code = getattr(error, "sqlite_errorcode", 0)
        refusal = _REFUSALS.get(code, _REFUSALS.get(code & 0xFF))
        if refusal is None:
            return self._damaged()
        return LedgerError(f"ledger {self.label} {refusal} (nothing left the silo)")


@functools.cache
def _tables() -> bytes:
    """Return a database with the tables of a ledger, and no rows."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        for statement in _STATEMENTS:
            db.execute(statement)
        return db.serialize()


def _seal_of(previous: str, fields: object) -> str:
    """Return the SHA-256 of the seal of the row before and of a row's columns."""
    return hashlib.sha256((previous + _JSON.encode(fields)).encode()).hexdigest()


def _make_private_file(path: Path) -> None:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        raise LedgerError(f"a ledger is never overwritten but {path} exists already") from None
    except OSError as error:
        raise LedgerError(
            f"a ledger must be created in a writable folder but {path} cannot be ({error.strerror})"
        ) from None
    os.fchmod(handle, 0o600)  # whatever the umask took away
    os.close(handle)


def _check_private(path: Path) -> None:
    try:
        info = path.stat()
    except FileNotFoundError:
        raise LedgerError(
            f"a ledger must exist before anything is released but there is none at {path}; create it with "
            "`fedpower ledger create`"
        ) from None
    except OSError as error:
        raise LedgerError(f"ledger {path} must be readable but is not ({error.strerror})") from None
    mode = stat.S_IMODE(info.st_mode)
    if not stat.S_ISREG(info.st_mode):
        kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
        raise LedgerError(f"a ledger must be a file but {path} is {kind}; give the file's path")
    if os.name == "posix" and mode & ~0o600:
        raise LedgerError(
            f"ledger {path} must be private to its owner but has mode {mode:04o}; run `chmod 600 {path}`"
        )
    if not os.access(path, os.R_OK):
        raise LedgerError(f"ledger {path} must be readable but is not; run `chmod 600 {path}` as its owner")
    if info.st_size == 0:
        raise LedgerError(
            f"ledger {path} is empty; if `fedpower ledger create` was interrupted delete it and run that "
            "again, else put back the file as it was last written"
        )
