"""What a ledger file must be: its tables, the seals of its rows, and who may read it."""

import hashlib
import json
import os
import sqlite3
import stat
from pathlib import Path

from fedpower.errors import LedgerError

APPLICATION_ID = 0x66706C67  # "fplg"
SCHEMA_VERSION = 2
BUSY_TIMEOUT_S = 60.0

VERSIONS = """
CREATE TABLE version (
    seq INTEGER PRIMARY KEY, time TEXT NOT NULL,
    name TEXT NOT NULL, columns TEXT NOT NULL, fingerprint TEXT NOT NULL,
    seal TEXT NOT NULL, UNIQUE (name, columns));
CREATE TRIGGER version_keeps BEFORE UPDATE ON version BEGIN SELECT RAISE(ABORT, 'append only'); END;
CREATE TRIGGER version_stays BEFORE DELETE ON version BEGIN SELECT RAISE(ABORT, 'append only'); END;
"""
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
{VERSIONS}
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA_VERSION}
"""
FROM_SCHEMA_1 = f"""
ALTER TABLE silo ADD COLUMN data_set TEXT;
ALTER TABLE silo ADD COLUMN for_experiments INTEGER NOT NULL DEFAULT 0;
{VERSIONS}
PRAGMA user_version = {SCHEMA_VERSION}
"""
"""What a ledger lacks that was made before data had versions."""

SEALED = {
    "cap": "seq, time, epsilon, delta, reason",
    "release": "seq, time, key, purpose, study, mu, slack_delta, sha256",
    "version": "seq, time, name, columns, fingerprint",
}
REFUSALS = {
    sqlite3.SQLITE_FULL: "must have room to grow but its disk is full; free some space",
    sqlite3.SQLITE_READONLY: "must stay in place and writable but is not; check where it is",
    sqlite3.SQLITE_READONLY_ROLLBACK: "must be at rest to be looked at but a change to it was cut "
    "off; let its owner run `fedpower budget` on it, which undoes that change",
    sqlite3.SQLITE_CANTOPEN: "must be writable but is not; give this user the file and its folder",
    sqlite3.SQLITE_BUSY: "must be free within a minute but another process holds it; ask again",
    sqlite3.SQLITE_TOOBIG: "must keep what leaves but this is too large for it; ask for less",
    sqlite3.SQLITE_IOERR: "must be written durably but the disk refused; check space and limits",
}


def seal_of(previous: str, fields: object) -> str:
    """Return the seal of a row: the SHA-256 of the seal before it and of its columns."""
    return hashlib.sha256((previous + json.dumps(fields, default=repr)).encode()).hexdigest()


def uri_of(path: Path, *, writes: bool = True) -> str:
    """Return how SQLite is told to open a file and never to make one."""
    return f"{path.resolve().as_uri()}?mode={'rw' if writes else 'ro'}"


def check_file(path: Path) -> None:
    """Refuse what is not a private, writable file before SQLite touches it."""
    check_private(path)
    if not is_writable(path):
        raise LedgerError(
            f"ledger {path} must be writable but is not; run `chmod 600 {path}` as its owner"
        )
    if not has_writable_folder(path):
        raise LedgerError(
            f"the folder of ledger {path} must be writable (for its journal) but is not; "
            "move the ledger or change the folder's permissions"
        )


def is_writable(path: Path) -> bool:
    """Return whether this user may change the file."""
    return bool(path.stat().st_mode & 0o200) and os.access(path, os.R_OK | os.W_OK)


def has_writable_folder(path: Path) -> bool:
    """Return whether this user may make a journal beside the file."""
    return os.access(path.resolve().parent, os.W_OK | os.X_OK)


def journal_of(path: Path) -> Path:
    """Return where SQLite keeps what undoes a change that was cut off."""
    whole = path.resolve()
    return whole.with_name(f"{whole.name}-journal")


def check_private(path: Path) -> None:
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
            f"ledger {path} must be private to its owner but has mode {mode:04o}; "
            f"run `chmod 600 {path}`"
        )
    if not os.access(path, os.R_OK):
        raise LedgerError(
            f"ledger {path} must be readable but is not; run `chmod 600 {path}` as its owner"
        )
    if info.st_size == 0:
        raise LedgerError(
            f"ledger {path} must be whole but is empty; if `fedpower budget init` was interrupted "
            "delete it and run that again, else put back the file as it was last written"
        )
