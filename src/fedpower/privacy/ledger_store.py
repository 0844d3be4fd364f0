"""The SQLite file of a ledger: append-only entries, each sealed with all those before it."""

import contextlib
import hashlib
import os
import sqlite3
import stat
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Self

from fedpower.errors import LedgerError

_APPLICATION_ID = 0x66706C67  # "fplg"
SCHEMA_VERSION = 4
_BUSY_TIMEOUT_S = 60.0

_SCHEMA = (
    "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, seal TEXT NOT NULL, payload BLOB)",
    *(
        f"CREATE TRIGGER no_{change} BEFORE {change} ON entry BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for change in ("update", "delete")
    ),
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
    def create(cls, path: Path | None, bodies: Iterable[str]) -> Self:
        """Return a new store with first entries, in a file that only its owner can read, or in memory."""
        if path is not None:
            _make_private_file(path)
        store = cls(path)
        try:
            store._be_durable()
            with store.transaction():
                for statement in _SCHEMA:
                    store.query(statement)
                for body in bodies:
                    store.append(body)
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
            store._check_pages()
            store.entries()
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
    def transaction(self) -> Iterator[None]:
        """Commit what the body does, or undo all of it; nobody else writes meanwhile."""
        self._check_process()  # before the lock: a fork may have copied it while it was held
        with self._lock:
            self.query("SELECT 1")  # refuses a closed connection first
            if self._db.in_transaction:
                raise LedgerError(f"ledger {self.label} was asked for a change from inside a payload")
            self.query("BEGIN IMMEDIATE")
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

    def append(self, body: str, payload: bytes | None = None) -> None:
        """Add a sealed entry; whoever gives a payload puts its digest into the body."""
        rows = self.query("SELECT seq, seal FROM entry ORDER BY seq DESC LIMIT 1")
        seq, seal = rows[0] if rows else (0, "")
        self.query("INSERT INTO entry VALUES (?, ?, ?, ?)", seq + 1, body, _seal_of(seal, body), payload)

    def entries(self) -> tuple[list[str], str]:
        """Return the bodies of all entries and the last seal; refuse entries that do not fit together."""
        seal, bodies = "", []
        for place, (seq, body, sealed) in enumerate(
            self.query("SELECT seq, body, seal FROM entry ORDER BY seq"), start=1
        ):
            if seq != place or not isinstance(body, str) or sealed != _seal_of(seal, body):
                raise self._damaged()
            seal = sealed
            bodies.append(body)
        if not bodies:
            raise self._damaged()
        return bodies, seal

    def payload(self, place: int) -> object:
        """Return what was stored with the entry of this place in `entries`."""
        return self.query("SELECT payload FROM entry WHERE seq = ?", place + 1)[0][0]

    def _be_durable(self) -> None:
        if self._path is not None:
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

    def _check_pages(self) -> None:
        assert self._path is not None, "a ledger in memory is never opened"
        pages, size = (int(self.query(f"PRAGMA {name}")[0][0]) for name in ("page_count", "page_size"))
        whole = self._path.stat().st_size >= pages * size
        if not whole or self.query("PRAGMA quick_check(1)") != [("ok",)]:
            raise self._damaged()

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


def _seal_of(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


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
