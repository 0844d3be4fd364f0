"""What a ledger file must be: its tables, the seals of its rows, and who may read it."""

import contextlib
import hashlib
import json
import os
import sqlite3
import stat
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any, Literal, Self

from fedpower.errors import LedgerError

_APPLICATION_ID = 0x66706C67  # "fplg"
SCHEMA_VERSION = 3
_BUSY_TIMEOUT_S = 60.0

SCHEMA = f"""
CREATE TABLE silo (id INTEGER PRIMARY KEY CHECK (id = 1), name TEXT, data_set TEXT,
    for_experiments INTEGER NOT NULL DEFAULT 0);
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
CREATE TRIGGER cap_keeps BEFORE UPDATE ON cap BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER cap_stays BEFORE DELETE ON cap BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER release_keeps BEFORE UPDATE ON release BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER release_stays BEFORE DELETE ON release BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TABLE version (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL,
    name TEXT NOT NULL, columns TEXT NOT NULL, fingerprint TEXT NOT NULL,
    seal TEXT NOT NULL, UNIQUE (name, columns));
CREATE TRIGGER version_keeps BEFORE UPDATE ON version BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER version_stays BEFORE DELETE ON version BEGIN SELECT RAISE(ABORT, 'append only'); END;
PRAGMA application_id = {_APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION}
"""

_SEALED = {
    "cap": "seq, time, epsilon, delta, reason",
    "release": "seq, time, key, purpose, study, mu, slack_delta, sha256",
    "version": "seq, time, name, columns, fingerprint",
}
_REFUSALS = {
    sqlite3.SQLITE_FULL: "must have room to grow but its disk is full; free some space",
    sqlite3.SQLITE_READONLY: "must stay in place and writable but is not; check where it is",
    sqlite3.SQLITE_READONLY_ROLLBACK: "must be at rest to be looked at but a change to it was cut "
    "off; let its owner run `fedpower budget` on it, which undoes that change",
    sqlite3.SQLITE_CANTOPEN: "must be writable but is not; give this user the file and its folder",
    sqlite3.SQLITE_BUSY: "must be free within a minute but another process holds it; ask again",
    sqlite3.SQLITE_TOOBIG: "must keep what leaves but this is too large for it; ask for less",
    sqlite3.SQLITE_IOERR: "must be written durably but the disk refused; check space and limits",
}


_JSON = json.JSONEncoder(default=repr)


def _seal_of(previous: str, fields: object) -> str:
    """Return the seal of a row: the SHA-256 of the seal before it and of its columns."""
    return hashlib.sha256((previous + _JSON.encode(fields)).encode()).hexdigest()


def _uri_of(path: Path, *, writes: bool = True) -> str:
    """Return how SQLite is told to open a file and never to make one."""
    return f"{path.resolve().as_uri()}?mode={'rw' if writes else 'ro'}"


def _check_file(path: Path) -> None:
    """Refuse what is not a private, writable file before SQLite touches it."""
    _check_private(path)
    if not _is_writable(path):
        raise LedgerError(f"ledger {path} must be writable but is not; run `chmod 600 {path}` as its owner")
    if not _has_writable_folder(path):
        raise LedgerError(
            f"the folder of ledger {path} must be writable (for its journal) but is not; "
            "move the ledger or change the folder's permissions"
        )


def _is_writable(path: Path) -> bool:
    """Return whether this user may change the file."""
    return bool(path.stat().st_mode & 0o200) and os.access(path, os.R_OK | os.W_OK)


def _has_writable_folder(path: Path) -> bool:
    """Return whether this user may make a journal beside the file."""
    return os.access(path.resolve().parent, os.W_OK | os.X_OK)


def _journal_of(path: Path) -> Path:
    """Return where SQLite keeps what undoes a change that was cut off."""
    whole = path.resolve()
    return whole.with_name(f"{whole.name}-journal")


def _check_private(path: Path) -> None:
    """Refuse what is not a private file with something in it, that this user may read."""
    try:
        info = path.stat()
    except FileNotFoundError:
        raise LedgerError(
            f"a ledger must exist before anything is released but there is none at {path}; "
            "create it with `fedpower budget init`"
        ) from None
    except OSError as error:
        raise LedgerError(
            f"ledger {path} must be readable but is not ({error.strerror}); check the path"
        ) from None
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
            f"ledger {path} must be whole but is empty; if `fedpower budget init` was interrupted "
            "delete it and run that again, else put back the file as it was last written"
        )


Table = Literal["cap", "release", "version"]


class Store:
    """One connection to a ledger file, shared by the threads of one process."""

    def __init__(self, target: str, label: str, path: Path | None = None) -> None:
        self.label = label
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        try:
            self._db = sqlite3.connect(
                target, uri=True, timeout=_BUSY_TIMEOUT_S, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
        except sqlite3.Error as error:
            raise self._refusal(error) from None

    @classmethod
    def create(
        cls,
        path: Path,
        silo: str | None,
        cap: tuple[float, float],
        data_set: str | None = None,
        *,
        for_experiments: bool = False,
    ) -> Self:
        """Return the store in a new file that only its owner can read (0600)."""
        try:
            handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        except FileExistsError:
            raise LedgerError(
                f"a ledger is never overwritten but {path} exists already; open it, or choose another path"
            ) from None
        except OSError as error:
            raise LedgerError(
                f"a ledger must be created in a writable folder but {path} cannot be "
                f"({error.strerror}); choose another path"
            ) from None
        os.fchmod(handle, 0o600)  # whatever the umask took away
        os.close(handle)
        store = cls(_uri_of(path), str(path), path)
        try:
            store._be_durable()
            store._initialise(silo, cap, data_set, for_experiments=for_experiments)
        except BaseException:
            store.close()
            path.unlink()
            raise
        return store

    @classmethod
    def open(cls, path: Path) -> Self:
        """Return the store in an existing file, checked from end to end and brought up to date."""
        _check_file(path)
        store = cls(_uri_of(path), str(path), path)
        try:
            store._check_kind()
            store._be_durable()
            store.check()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def look(cls, path: Path) -> Self:
        """Return the store in an existing file that is only read, checked from end to end."""
        _check_private(path)
        if _journal_of(path).exists() and _is_writable(path) and _has_writable_folder(path):
            return cls.open(path)
        store = cls(_uri_of(path, writes=False), str(path), path)
        try:
            store._check_kind()
            store.check()
        except BaseException:
            store.close()
            raise
        return store

    def close(self) -> None:
        """Close the connection; twice is harmless, and a fork leaves its parent's alone."""
        if os.getpid() == self._pid:
            with self._lock:
                self._db.close()

    def query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a statement; SQLite's refusals become one sentence."""
        self._check_process()
        with self._lock:
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._refusal(error) from None

    @contextlib.contextmanager
    def transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
        """Commit what the body does, or undo all of it; a reader may sit inside a writer."""
        self._check_process()  # before the lock: a fork may have copied it while it was held
        with self._lock:
            self.query("SELECT 1")  # refuses a closed connection before it is asked more
            if self._db.in_transaction:
                if kind == "IMMEDIATE":
                    raise LedgerError(
                        f"ledger {self.label} must finish one change before the next but was "
                        "asked for another from inside a payload; ask for them one by one"
                    )
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

    def check(self) -> None:
        """Refuse a file whose pages or whose seals do not fit together."""
        with self.transaction("DEFERRED"):
            sound = self.query("PRAGMA quick_check(1)") == [("ok",)] and self._is_whole()
            for table, columns in _SEALED.items() if sound else ():
                previous = ""
                rows = self.query(f"SELECT {columns}, seal FROM {table} ORDER BY seq")  # noqa: S608
                for seq, (*fields, seal) in enumerate(rows, start=1):
                    sound = sound and fields[0] == seq and seal == _seal_of(previous, fields)
                    previous = seal
                sound = sound and (table != "cap" or bool(rows))
            if not sound or len(self.query("SELECT name FROM silo")) != 1:
                raise self._damaged()

    def _is_whole(self) -> bool:
        """Return whether the file holds all its pages: SQLite reads what is cut off as zeros."""
        pages, size = (int(self.query(f"PRAGMA {name}")[0][0]) for name in ("page_count", "page_size"))
        return self._path is None or self._path.stat().st_size >= pages * size

    def owner(self) -> tuple[str | None, str | None]:
        """Return the silo and the data set that the ledger belongs to, None where it is not said."""
        ((silo, data_set),) = self.query("SELECT name, data_set FROM silo")
        return silo, data_set

    def is_for_experiments(self) -> bool:
        """Return whether it was made for experiments, or lives no longer than the process."""
        return bool(self.query("SELECT for_experiments FROM silo")[0][0])

    def versions(self) -> list[str]:
        """Return the versions of the data that were released, in the order of their first releases."""
        rows = self.query("SELECT name FROM version GROUP BY name ORDER BY min(seq)")
        return [str(name) for (name,) in rows]

    def belong_to(self, silo: str, data_set: str | None) -> None:
        """Take note of whose ledger it is, where that was not said."""
        self.query(
            "UPDATE silo SET name = coalesce(name, ?), data_set = coalesce(data_set, ?)", silo, data_set
        )

    def fingerprint_of(self, version: str, columns: str) -> str | None:
        """Return the fingerprint of the rows that a version was released of; None where none was."""
        rows = self.query("SELECT fingerprint FROM version WHERE name = ? AND columns = ?", version, columns)
        return str(rows[0][0]) if rows else None

    def caps(self) -> list[tuple[Any, ...]]:
        """Return every cap: number, time, ε, δ and reason."""
        return self.query("SELECT seq, time, epsilon, delta, reason FROM cap ORDER BY seq")

    def charges(self, study: str | None = None, *, key: str = "") -> list[tuple[float, float]]:
        """Return μ and slack of all releases, or of those of a study whose keys begin so."""
        if study is None:
            return self.query("SELECT mu, slack_delta FROM release ORDER BY seq")
        return self.query(
            "SELECT mu, slack_delta FROM release WHERE study = ? AND substr(key, 1, ?) = ? ORDER BY seq",
            study,
            len(key),
            key,
        )

    def releases(self) -> list[tuple[Any, ...]]:
        """Return every release: number, time, key, purpose, study, μ and slack."""
        return self.query("SELECT seq, time, key, purpose, study, mu, slack_delta FROM release ORDER BY seq")

    def kept(self, key: str) -> tuple[Any, ...] | None:
        """Return purpose, study, μ, digest and bytes of the release of a key; None where none is."""
        rows = self.query("SELECT purpose, study, mu, sha256, payload FROM release WHERE key = ?", key)
        return rows[0] if rows else None

    def studies(self) -> set[str]:
        """Return the studies that have releases."""
        return {study for (study,) in self.query("SELECT DISTINCT study FROM release")}

    def _run(self, script: str) -> None:
        for statement in script.split(";\n"):
            self.query(statement)

    def _check_process(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerError(
                f"ledger {self.label} must be used by the process that opened it but this one "
                "was forked from it; open the ledger again here"
            )

    def _initialise(
        self, silo: str | None, cap: tuple[float, float], data_set: str | None, *, for_experiments: bool
    ) -> None:
        with self.transaction("IMMEDIATE"):
            self._run(SCHEMA)
            self._fill(silo, cap, data_set, for_experiments=for_experiments)

    def _fill(
        self, silo: str | None, cap: tuple[float, float], data_set: str | None, *, for_experiments: bool
    ) -> None:
        self.query("INSERT INTO silo VALUES (1, ?, ?, ?)", silo, data_set, int(for_experiments))
        self.append("cap", *cap, "created")

    def _be_durable(self) -> None:
        for pragma in ("journal_mode = DELETE", "synchronous = EXTRA", "fullfsync = 1"):
            self.query(f"PRAGMA {pragma}")

    def _check_kind(self) -> None:
        application, version = (
            self.query(f"PRAGMA {name}")[0][0] for name in ("application_id", "user_version")
        )
        if application != _APPLICATION_ID:
            raise LedgerError(
                f"{self.label} must be a fedpower ledger but is another kind of database; check the path"
            )
        if version != SCHEMA_VERSION:
            raise LedgerError(
                f"ledger {self.label} must have schema {SCHEMA_VERSION} but has {version}; use the fedpower "
                "that wrote it"
            )

    def _damaged(self) -> LedgerError:
        return LedgerError(
            f"ledger {self.label} must be whole but is damaged or no ledger; put back the file "
            "as it was last written, not an older copy that has forgotten charges"
        )

    def _refusal(self, error: sqlite3.Error) -> LedgerError:
        if isinstance(error, sqlite3.ProgrammingError):
            return LedgerError(f"ledger {self.label} must be open but was closed; open it again")
        code = getattr(error, "sqlite_errorcode", 0)
        refusal = _REFUSALS.get(code, _REFUSALS.get(code & 0xFF))
        if refusal is None:
            return self._damaged()
        return LedgerError(f"ledger {self.label} {refusal} (nothing left the silo)")


_LARGE = 2**20
"""Bytes of a release from which on it is put aside in a file."""


@dataclass(frozen=True, slots=True)
class _PutAside:
    """Where in a file a release is."""

    start: int
    size: int


class _Aside:
    """Large releases, in a file without a name that is gone with the process, or with its closing."""

    def __init__(self) -> None:
        self._file: IO[bytes] | None = None

    def put(self, payload: bytes) -> bytes | _PutAside:
        """Return where the bytes are; the bytes themselves where there is no room for a file."""
        try:
            if self._file is None:
                self._file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
            start = self._file.seek(0, os.SEEK_END)
            if self._file.write(payload) != len(payload):
                return payload
        except OSError:
            return payload
        return _PutAside(start, len(payload))

    def get(self, place: _PutAside) -> bytes:
        """Return the bytes that were put there."""
        assert self._file is not None, "something was put aside"
        self._file.seek(place.start)
        return self._file.read(place.size)

    def close(self) -> None:
        """Let go of the file; twice is harmless."""
        if self._file is not None:
            self._file.close()


class MemoryStore:
    """What a ledger holds for as long as the process lives; what it lets through is what a file would."""

    label = "in memory"

    def __init__(self, silo: str | None, cap: tuple[float, float], data_set: str | None = None) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._open = True
        self._changing = False
        self._owner = (silo, data_set)
        self._rows: dict[Table, list[tuple[Any, ...]]] = {"cap": [], "release": [], "version": []}
        self._by_key: dict[str, tuple[Any, ...]] = {}
        self._aside = _Aside()
        self.append("cap", *cap, "created")

    def close(self) -> None:
        """Let go of everything; twice is harmless."""
        self._open = False
        self._aside.close()

    @contextlib.contextmanager
    def transaction(self, kind: Literal["DEFERRED", "IMMEDIATE"]) -> Iterator[None]:
        """Keep what the body does, or undo all of it; a reader may sit inside a writer."""
        self._check()
        with self._lock:
            if kind == "DEFERRED":
                yield
                return
            if self._changing:
                raise LedgerError(
                    f"ledger {self.label} must finish one change before the next but was "
                    "asked for another from inside a payload; ask for them one by one"
                )
            owner, lengths = self._owner, {name: len(rows) for name, rows in self._rows.items()}
            self._changing = True
            try:
                yield
            except BaseException:
                self._owner = owner
                for row in self._rows["release"][lengths["release"] :]:
                    del self._by_key[row[2]]
                for name, length in lengths.items():
                    del self._rows[name][length:]
                raise
            finally:
                self._changing = False

    def append(self, table: Table, *fields: object) -> None:
        """Add one sealed row, as a file has it."""
        n_sealed = _SEALED[table].count(",") - 1
        last, previous = self.last(table)
        sealed = (last + 1, datetime.now(UTC).isoformat(), *fields[:n_sealed])
        rest = [
            self._aside.put(each) if isinstance(each, bytes) and len(each) >= _LARGE else each
            for each in fields[n_sealed:]
        ]
        row = (*sealed, _seal_of(previous, sealed), *rest)
        self._rows[table].append(row)
        if table == "release":
            self._by_key[str(row[2])] = row

    def last(self, table: Table) -> tuple[int, str]:
        """Return the number and the seal of a table's last row: (0, "") when it is empty."""
        self._check()
        rows = self._rows[table]
        return (len(rows), str(rows[-1][_SEALED[table].count(",") + 1])) if rows else (0, "")

    def owner(self) -> tuple[str | None, str | None]:
        """Return the silo and the data set that the ledger belongs to, None where it is not said."""
        self._check()
        return self._owner

    def is_for_experiments(self) -> bool:
        """Return True: it is on no record."""
        return True

    def versions(self) -> list[str]:
        """Return the versions of the data that were released, in the order of their first releases."""
        return list(dict.fromkeys(str(row[2]) for row in self._rows["version"]))

    def belong_to(self, silo: str, data_set: str | None) -> None:
        """Take note of whose ledger it is, where that was not said."""
        name, owned = self._owner
        self._owner = (silo if name is None else name, data_set if owned is None else owned)

    def fingerprint_of(self, version: str, columns: str) -> str | None:
        """Return the fingerprint of the rows that a version was released of; None where none was."""
        for row in self._rows["version"]:
            if (row[2], row[3]) == (version, columns):
                return str(row[4])
        return None

    def caps(self) -> list[tuple[Any, ...]]:
        """Return every cap: number, time, ε, δ and reason."""
        self._check()
        return [row[:5] for row in self._rows["cap"]]

    def charges(self, study: str | None = None, *, key: str = "") -> list[tuple[float, float]]:
        """Return μ and slack of all releases, or of those of a study whose keys begin so."""
        return [
            (row[5], row[6])
            for row in self._rows["release"]
            if study is None or (row[4] == study and row[2].startswith(key))
        ]

    def releases(self) -> list[tuple[Any, ...]]:
        """Return every release: number, time, key, purpose, study, μ and slack."""
        return [row[:7] for row in self._rows["release"]]

    def kept(self, key: str) -> tuple[Any, ...] | None:
        """Return purpose, study, μ, digest and bytes of the release of a key; None where none is."""
        row = self._by_key.get(key)
        if row is None:
            return None
        payload = self._aside.get(row[9]) if isinstance(row[9], _PutAside) else row[9]
        return (row[3], row[4], row[5], row[7], payload)

    def studies(self) -> set[str]:
        """Return the studies that have releases."""
        return {row[4] for row in self._rows["release"]}

    def _check(self) -> None:
        if os.getpid() != self._pid:
            raise LedgerError(
                f"ledger {self.label} must be used by the process that opened it but this one "
                "was forked from it; open the ledger again here"
            )
        if not self._open:
            raise LedgerError(f"ledger {self.label} must be open but was closed; open it again")
