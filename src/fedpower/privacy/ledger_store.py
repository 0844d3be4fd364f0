"""A ledger's SQLite file: its schema, who may open it, and transactions that survive a kill.

Why a rollback journal and not WAL: at rest the ledger is **one** file. Under WAL the newest
charges live in a second file until a checkpoint, so copying or moving `ledger.db` alone forgets
them, and a forgotten charge is fresh noise for an old question. WAL's gain, readers beside a
writer, is worth nothing here. `synchronous=EXTRA` is FULL plus a sync of the folder once the
journal is gone: with FULL alone a power cut just after the commit can bring the journal back and
undo it.

Rows are only ever appended, and each carries a seal: the SHA-256 of its columns and the seal
before it. SQLite keeps no checksums of its own, so a flipped bit in a charge would pass
`quick_check`. Seals find damage and careless edits, not a determined operator, and not a whole file
put back from an older backup: compare the last seal with the one in an earlier statement for that.
"""

import contextlib
import functools
import os
import sqlite3
import threading
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self

from fedpower.errors import LedgerError
from fedpower.privacy.ledger_schema import (
    APPLICATION_ID,
    BUSY_TIMEOUT_S,
    FROM_SCHEMA_1,
    REFUSALS,
    SCHEMA,
    SCHEMA_VERSION,
    SEALED,
    check_file,
    check_private,
    has_writable_folder,
    is_writable,
    journal_of,
    seal_of,
    uri_of,
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
                target, uri=True, timeout=BUSY_TIMEOUT_S, isolation_level=None,
                check_same_thread=False,
            )  # fmt: skip
        except sqlite3.Error as error:
            raise self._refusal(error) from None

    @classmethod
    def in_memory(
        cls, silo: str | None, cap: tuple[float, float], data_set: str | None = None
    ) -> Self:
        """Return a store that lives as long as the process."""
        store = cls(":memory:", "in memory")
        store._db.deserialize(
            _empty()
        )  # ten times faster than to make the tables: one for every silo
        with store.transaction("IMMEDIATE"):
            store._fill(silo, cap, data_set, for_experiments=True)
        return store

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
                f"a ledger is never overwritten but {path} exists already; "
                "open it, or choose another path"
            ) from None
        except OSError as error:
            raise LedgerError(
                f"a ledger must be created in a writable folder but {path} cannot be "
                f"({error.strerror}); choose another path"
            ) from None
        os.fchmod(handle, 0o600)  # whatever the umask took away
        os.close(handle)
        store = cls(uri_of(path), str(path), path)
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
        check_file(path)
        store = cls(uri_of(path), str(path), path)
        try:
            store._check_kind()
            store._be_durable()
            store.check()
            store._bring_up_to_date()
        except BaseException:
            store.close()
            raise
        return store

    @classmethod
    def look(cls, path: Path) -> Self:
        """Return the store in an existing file that is only read, checked from end to end.

        The connection is SQLite's ``mode=ro``: it takes the lock of a reader and makes no file. It cannot
        undo a change that was cut off, so where a journal lies beside the file it is opened to be written
        by whoever may. Never ``immutable``: that would read past locks and journals, and a half-written
        file as if it were whole.
        """
        check_private(path)
        if journal_of(path).exists() and is_writable(path) and has_writable_folder(path):
            return cls.open(path)
        store = cls(uri_of(path, writes=False), str(path), path)
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
        n_sealed = SEALED[table].count(",") - 1
        last, previous = self.last(table)
        sealed = (last + 1, datetime.now(UTC).isoformat(), *fields[:n_sealed])
        row = (*sealed, seal_of(previous, sealed), *fields[n_sealed:])
        self.query(f"INSERT INTO {table} VALUES ({', '.join('?' * len(row))})", *row)  # noqa: S608

    def last(self, table: Table) -> tuple[int, str]:
        """Return the number and the seal of a table's last row: (0, "") when it is empty."""
        rows = self.query(f"SELECT seq, seal FROM {table} ORDER BY seq DESC LIMIT 1")  # noqa: S608
        return (int(rows[0][0]), str(rows[0][1])) if rows else (0, "")

    def check(self) -> None:
        """Refuse a file whose pages or whose seals do not fit together."""
        with self.transaction("DEFERRED"):
            sound = self.query("PRAGMA quick_check(1)") == [("ok",)] and self._is_whole()
            for table, columns in SEALED.items() if sound else ():
                if table == "version" and self._schema == 1:
                    continue
                previous = ""
                rows = self.query(f"SELECT {columns}, seal FROM {table} ORDER BY seq")  # noqa: S608
                for seq, (*fields, seal) in enumerate(rows, start=1):
                    sound = sound and fields[0] == seq and seal == seal_of(previous, fields)
                    previous = seal
                sound = sound and (table != "cap" or bool(rows))
            if not sound or len(self.query("SELECT name FROM silo")) != 1:
                raise self._damaged()

    def _is_whole(self) -> bool:
        """Return whether the file holds all its pages: SQLite reads what is cut off as zeros."""
        pages, size = (
            int(self.query(f"PRAGMA {name}")[0][0]) for name in ("page_count", "page_size")
        )
        return self._path is None or self._path.stat().st_size >= pages * size

    def owner(self) -> tuple[str | None, str | None]:
        """Return the silo and the data set that the ledger belongs to, None where it is not said."""
        columns = "name, NULL" if self._schema == 1 else "name, data_set"
        ((silo, data_set),) = self.query(f"SELECT {columns} FROM silo")  # noqa: S608
        return silo, data_set

    def is_for_experiments(self) -> bool:
        """Return whether it was made for experiments, or lives no longer than the process."""
        column = "0" if self._schema == 1 else "for_experiments"
        return bool(self.query(f"SELECT {column} FROM silo")[0][0])  # noqa: S608

    def versions(self) -> list[str]:
        """Return the versions of the data that were released, in the order of their first releases."""
        if self._schema == 1:
            return []
        rows = self.query("SELECT name FROM version GROUP BY name ORDER BY min(seq)")
        return [str(name) for (name,) in rows]

    @property
    def _schema(self) -> int:
        return int(self.query("PRAGMA user_version")[0][0])

    def _bring_up_to_date(self) -> None:
        """Give a ledger of an earlier schema what it lacks; its rows stay as they are."""
        if self._schema == SCHEMA_VERSION:
            return
        with self.transaction("IMMEDIATE"):
            if self._schema == 1:  # another process may have been faster
                self._run(FROM_SCHEMA_1)

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
        self,
        silo: str | None,
        cap: tuple[float, float],
        data_set: str | None,
        *,
        for_experiments: bool,
    ) -> None:
        with self.transaction("IMMEDIATE"):
            self._run(SCHEMA)
            self._fill(silo, cap, data_set, for_experiments=for_experiments)

    def _fill(
        self,
        silo: str | None,
        cap: tuple[float, float],
        data_set: str | None,
        *,
        for_experiments: bool,
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
        if application != APPLICATION_ID:
            raise LedgerError(
                f"{self.label} must be a fedpower ledger but is another kind of database; "
                "check the path"
            )
        if version > SCHEMA_VERSION:
            raise LedgerError(
                f"ledger {self.label} must have schema {SCHEMA_VERSION} or older but has "
                f"{version}; upgrade fedpower"
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
        refusal = REFUSALS.get(code, REFUSALS.get(code & 0xFF))
        if refusal is None:
            return self._damaged()
        return LedgerError(f"ledger {self.label} {refusal} (nothing left the silo)")


@functools.cache
def _empty() -> bytes:
    """Return a ledger's tables without a row, as SQLite keeps them."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as made:
        for statement in SCHEMA.split(";\n"):
            made.execute(statement)
        return made.serialize()
