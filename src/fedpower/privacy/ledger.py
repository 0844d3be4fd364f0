"""What a silo has released, what that cost, and whether one more release fits its cap.

A ledger is an append-only SQLite file of entries; each is sealed with all those before it.
"""

import contextlib
import functools
import hashlib
import importlib.metadata
import itertools
import json
import math
import os
import re
import sqlite3
import stat
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, Self, TypeVar

import msgspec

from fedpower.exceptions import BudgetError, InputError, LedgerError, require
from fedpower.privacy.accounting import check_delta, epsilon_of, mu_of

ROUNDING = 1e-9
"""Relative overspend of the cap's epsilon that counts as floating-point rounding."""

BY_PERSON, BY_EDGE = ", by person", ", by edge"
"""How the purpose of a release ends that protects a person with all rows, or an edge of a network."""

# --- which rows ------------------------------------------------------------------------------------

DEFAULT_VERSION = "1"
"""The version of rows whose operator declared none."""

_LABEL = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:+-]{0,63}")


def is_label(text: object) -> bool:
    """Return whether a text may name a version or a data set: it is shown to others as it is."""
    return isinstance(text, str) and _LABEL.fullmatch(text) is not None


def check_label(what: str, text: object) -> None:
    """Refuse a name that could not be shown to others as it is."""
    must = "1 to 64 letters, digits or . _ : + - and begin with a letter or a digit"
    require(is_label(text), what, must, text, "for example 1 or 2026-03")


def columns_digest(columns: tuple[str, ...] | None, n_features: int) -> str:
    """Return the SHA-256 of the columns that a study uses, in its order."""
    return hashlib.sha256(json.dumps(["stored", n_features, columns]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class DataVersion:
    """The rows behind a silo's releases, as their operator declares them: a public version of a data set."""

    silo: str
    version: str
    columns: str
    fingerprint: str = field(repr=False)
    reading: str = ""
    data_set: str | None = None
    declared_by: str = ""
    """What declares another version; by default the parameter of a fit."""

    def __post_init__(self) -> None:
        check_label("a version of data", self.version)
        if self.data_set is not None:
            check_label("the name of a data set", self.data_set)

    @property
    def name(self) -> str:
        return f"version {self.version}" + (f", read as {self.reading[:16]}" if self.reading else "")

    @property
    def identity(self) -> str:
        """The fingerprint of what is stored, and of how the silo reads it where it translates anything."""
        if not self.reading:
            return self.fingerprint
        return hashlib.sha256(f"{self.fingerprint}\n{self.reading}".encode()).hexdigest()


# --- what it costs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """A cap, and what was charged to it: ``mu`` is the root of the sum of squares, ``slack_delta`` a sum."""

    cap: float
    delta: float
    mu: float = 0.0
    slack_delta: float = 0.0
    n_releases: int = 0

    def charged(self, mu: float, slack_delta: float = 0.0) -> Self:
        """Return the account after one more release."""
        return replace(
            self,
            mu=math.hypot(self.mu, mu),
            slack_delta=self.slack_delta + slack_delta,
            n_releases=self.n_releases + 1,
        )

    @property
    def epsilon(self) -> float:
        """What was spent, at the cap's delta less the slack."""
        if self.mu == 0.0 and self.slack_delta <= self.delta:
            return 0.0
        return _epsilon(self.mu, self.delta - self.slack_delta)

    @property
    def fits(self) -> bool:
        return self.epsilon <= self.cap * (1 + ROUNDING)

    @property
    def left(self) -> float:
        """The largest epsilon, at the cap's delta, that one more release can have."""
        if self.slack_delta >= self.delta:
            return 0.0
        limit = mu_of(self.cap, self.delta - self.slack_delta)
        if self.mu >= limit * (1 - 5 * ROUNDING):
            return 0.0
        return _epsilon(math.sqrt((limit - self.mu) * (limit + self.mu)), self.delta)

    @property
    def share_used(self) -> float:
        """The part of the cap that is used, as a share of μ²: epsilons do not add up."""
        delta = self.delta - self.slack_delta
        return 1.0 if delta <= 0 else min(1.0, self.mu / mu_of(self.cap, delta)) ** 2

    def require(self, silo: str | None, mu: float, slack_delta: float) -> None:
        """Refuse a release that does not fit; following the advice is always allowed."""
        if self.charged(mu, slack_delta).fits:
            return
        left = replace(self, slack_delta=self.slack_delta + slack_delta).left
        shown = rounded_down(left, 3)
        if left > 0 and not self.charged(mu_of(float(shown), self.delta), slack_delta).fits:
            shown = rounded_down(left * (1 - 10 * ROUNDING), 3)
        who, it = ("this silo", "it") if silo is None else (f"silo {silo!r}", repr(silo))
        asked = _rounded(_epsilon(mu, self.delta) * (1 - 1e-12), 3, math.ceil)
        advice = f"use epsilon<={shown}, " if left > 0 else ""
        raise BudgetError(
            f"this release needs epsilon={asked} but {who} has {shown} left at delta={self.delta:g}; "
            f"{advice}leave {it} out or have its operator raise the cap"
        )


@functools.lru_cache(maxsize=4096)  # equal steps, and statements asked for again
def _epsilon(mu: float, delta: float) -> float:
    return epsilon_of(mu, delta) if delta > 0 and mu < 1e6 else math.inf


def rounded_down(value: float, digits: int) -> str:
    """Return value to some significant digits, and not more than it is but by rounding errors."""
    return _rounded(value * (1 + 4 * ROUNDING), digits, math.floor)


def _rounded(value: float, digits: int, to_whole: Callable[[float], int]) -> str:
    if not 0 < value < math.inf:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{to_whole(value / step) * step:.{digits}g}"


# --- what is recorded ------------------------------------------------------------------------------


class _Recorded(msgspec.Struct, frozen=True, kw_only=True, tag_field="kind", tag=str.lower):
    time: datetime = msgspec.field(default_factory=lambda: datetime.now(UTC))
    """What the clock said; the order of entries is their own."""


class Owner(_Recorded, frozen=True):
    """Whose ledger it is; the last one holds."""

    silo: str | None = None
    data_set: str | None = None
    for_experiments: bool = False


class Cap(_Recorded, frozen=True):
    """A cap that an operator set; the last one holds."""

    epsilon: float
    delta: float
    reason: str


class Version(_Recorded, frozen=True):
    """Which rows a public version of a data set is, in these columns."""

    name: str
    columns: str
    fingerprint: str


class Release(_Recorded, frozen=True):
    """A charged release; its bytes are stored with it."""

    key: str
    purpose: str
    study: str
    mu: float
    slack_delta: float
    sha256: str


class Decision(_Recorded, frozen=True):
    """What a silo's operator, or a standing rule of the silo, decided about a study; the last one holds."""

    study: str
    asked_as: str
    """The hash by which the study's questions name it."""
    charged_as: str
    """The hash by which its releases are recorded, which other studies on the same terms share."""
    name: str
    approved: bool
    reason: str
    by: Literal["operator", "rule"]
    epsilon: float | None
    delta: float | None
    data_version: str
    key: str
    signature: str = ""

    @property
    def signed(self) -> bytes:
        """What the silo's key signs."""
        return msgspec.json.encode(msgspec.structs.replace(self, signature=""))

    @property
    def stops_rules(self) -> bool:
        """Whether it says that rules approved a study that could not be answered."""
        return self.by == "rule" and not self.approved

    @property
    def in_words(self) -> str:
        """What was decided, when and why."""
        done = "approved" if self.approved else "refused"
        done += " as a study that is not private" if self.approved and self.epsilon is None else ""
        return f"{done} on {self.time:%Y-%m-%d, %H:%M} UTC{self.reason and f': {self.reason}'}"


_Entry = Owner | Cap | Version | Release | Decision
_Kind = TypeVar("_Kind", bound=_Recorded)
_DECODER = msgspec.json.Decoder(_Entry)


@dataclass(frozen=True, slots=True)
class _History:
    """All that a ledger records, in order."""

    entries: tuple[_Entry, ...] = ()
    seal: str = ""

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    @property
    def owner(self) -> Owner:
        return self.all(Owner)[-1]

    def identity_of(self, data: DataVersion) -> str | None:
        """Return which rows a version was recorded as, in the same columns."""
        found = (data.version, data.columns)
        return next((v.fingerprint for v in self.all(Version) if (v.name, v.columns) == found), None)

    def account(self, study: str | None = None, key: str = "") -> Account:
        """Return the account; only of one study's releases, and of keys that begin with ``key``."""
        releases = [
            entry for entry in self.all(Release) if study in (None, entry.study) and entry.key.startswith(key)
        ]
        cap = self.all(Cap)[-1]
        return Account(
            cap=cap.epsilon,
            delta=cap.delta,
            mu=math.hypot(*(entry.mu for entry in releases)),
            slack_delta=math.fsum(entry.slack_delta for entry in releases),
            n_releases=len(releases),
        )


class LogHead(msgspec.Struct, frozen=True, kw_only=True):
    """How far the audit log of a ledger goes, which is in files beside it."""

    lines: int = 0
    digest: str = ""
    """SHA-256 of its last line."""
    entries: int = 0
    """How many entries of the ledger it has a line about."""
    file: int = 1
    """First line of the file that it ends in."""
    size: int = 0
    """Bytes of that file, with those of ``unwritten``."""
    unwritten: bytes = b""
    """The last lines, which may not be in the file yet."""

    @property
    def start(self) -> int:
        """Where in the file ``unwritten`` begins."""
        return self.size - len(self.unwritten)


def jsonable(value: object) -> Any:
    """Return a value in JSON's types: times as text, infinities as None."""
    return msgspec.json.decode(msgspec.json.encode(value))


# --- the ledger ------------------------------------------------------------------------------------

_APPLICATION_ID = 0x66706C67  # "fplg"
SCHEMA_VERSION = 4
_BUSY_TIMEOUT_S = 60.0

_SCHEMA = (
    "CREATE TABLE entry (seq INTEGER PRIMARY KEY, body TEXT NOT NULL, seal TEXT NOT NULL, payload BLOB)",
    "CREATE TABLE log (id INTEGER PRIMARY KEY CHECK (id = 1), head TEXT NOT NULL)",
    *(
        f"CREATE TRIGGER no_{change} BEFORE {change} ON entry BEGIN SELECT RAISE(ABORT, 'append only'); END"
        for change in ("update", "delete")
    ),
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {SCHEMA_VERSION}",
)

_REFUSALS = {
    sqlite3.SQLITE_FULL: "must have room to grow but its disk is full; free some space",
    sqlite3.SQLITE_READONLY: "must stay in place and be writable but is not; check where it is",
    sqlite3.SQLITE_READONLY_ROLLBACK: "must be complete but its last change was interrupted; "
    "its owner can undo that change with `fedpower ledger show`",
    sqlite3.SQLITE_CANTOPEN: "must be writable but is not; give this user the file and its folder",
    sqlite3.SQLITE_BUSY: "must be free within a minute but another process uses it; try again",
    sqlite3.SQLITE_TOOBIG: "must store every release but this one is too large; use fewer columns",
    sqlite3.SQLITE_IOERR: "must be written durably but the disk failed; check its space and limits",
}


class Ledger(contextlib.AbstractContextManager["Ledger"]):
    """The privacy budget of a silo: what was spent, and what may still be spent.

    A ledger is a file of the silo. `create` makes one and `open` opens it. A private fit charges it before
    anything leaves the silo, and refuses to exceed its cap.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedPCA, Ledger
    >>> Ledger.create("north.ledger", epsilon=3.0, delta=1e-6, silo="north").close()
    >>> rows = np.random.default_rng(0).normal(size=(2000, 4))
    >>> model = FedPCA(2, epsilon=1.0, delta=1e-6)
    >>> _ = model.fit_silos({"north": rows}, ledgers={"north": "north.ledger"})
    >>> with Ledger.open("north.ledger", read_only=True) as ledger:
    ...     round(ledger.spent().epsilon, 3)
    1.0
    """

    def __init__(self, path: Path | None, *, read_only: bool = False) -> None:
        self._label = "in memory" if path is None else str(path)
        self._path = path
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._known = _History()
        self._read_at: int | None = None  # SQLite's number of what other processes had written by then
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
        path: str | os.PathLike[str] | None,
        *,
        epsilon: float,
        delta: float,
        silo: str | None = None,
        data_set: str | None = None,
        for_experiments: bool = False,
    ) -> Self:
        """Create a ledger with a cap, in a new file that only its owner can read.

        Parameters
        ----------
        path : path
            The file; it must not exist.
        epsilon, delta : float
            The cap on everything that the silo releases.
        silo, data_set : str, default=None
            Only fits of this silo, and of this data set, may use it.
        for_experiments : bool, default=False
            Whether seeded noise is accepted. The ledger records it.
        """
        cap = _checked_cap(epsilon, delta, "created")
        if silo is not None:
            _check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        place = None if path is None else Path(path)
        if place is not None:
            _make_private_file(place)
        ledger = cls(place)
        try:
            ledger._be_durable()
            with ledger._transaction():
                for statement in _SCHEMA if place else _SCHEMA[:2]:  # only this process reaches one in memory
                    ledger._query(statement)
                ledger._append(cap)
                ledger._append(Owner(silo=silo, data_set=data_set, for_experiments=for_experiments))
        except BaseException:
            ledger.close()
            if place is not None:
                place.unlink()
            raise
        return ledger

    @classmethod
    def in_memory(
        cls, epsilon: float, delta: float, *, silo: str | None = None, data_set: str | None = None
    ) -> Self:
        """Return a ledger without a file, for a single fit."""
        return cls.create(
            None, epsilon=epsilon, delta=delta, silo=silo, data_set=data_set, for_experiments=True
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """Open a ledger's file. A missing or damaged file is refused.

        With ``read_only`` nothing can be charged, and no write permission is needed.
        """
        place = Path(path)
        ledger = cls(place, read_only=_check_private(place, read_only=read_only))
        try:
            ledger._check_file()
            if not read_only:
                ledger._be_durable()
            ledger._history()
        except BaseException:
            ledger.close()
            raise
        return ledger

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; twice is harmless, and a forked child leaves its parent's open."""
        if os.getpid() == self._pid:
            with self._lock:
                self._db.close()

    def release(
        self,
        *,
        key: str,
        purpose: str,
        study: str,
        mu: float,
        slack_delta: float = 0.0,
        study_mu: float | None = None,
        data: DataVersion | None = None,
        payload: Callable[[], bytes],
    ) -> bytes:
        """Return the bytes that may leave the silo: noised and charged now, or stored under this key.

        The same ``key`` always returns the same bytes at no charge; another purpose, study or mu is
        refused. ``study_mu`` caps all releases of a study together. The first release of a version of
        ``data`` records its rows and owner; later, other rows are refused. ``payload`` draws the noise and
        returns the noised bytes. It is called at most once, inside the transaction and after the check of
        the cap, so do slow work before. If it raises an error, nothing is charged and nothing may leave.
        """
        for name, text in (("key", key), ("purpose", purpose), ("study", study)):
            _check_text(name, text)
        mu, slack_delta = float(mu), float(slack_delta)
        require(0 < mu < math.inf, "mu", "positive and finite", mu)
        require(0 <= slack_delta < 1, "slack_delta", "in [0, 1)", slack_delta)
        with self._transaction():
            if data is not None:
                self._record_rows(data)
            history = self._history()
            for place, entry in enumerate(history.entries, start=1):
                if isinstance(entry, Release) and entry.key == key:
                    if (purpose, study) != (entry.purpose, entry.study) or not math.isclose(mu, entry.mu):
                        raise LedgerError(f"a key must name one release but {key!r} is used for another one")
                    return self._kept(place, entry)
            history.account().require(history.owner.silo, mu, slack_delta)
            spent = history.account(study)
            if study_mu is not None and spent.charged(mu).mu > study_mu * (1 + ROUNDING):
                must = (
                    "a study must stay within its agreed epsilon, but a silo has spent it on other questions"
                )
                why = "of an earlier run, as when other silos took part"
                raise BudgetError(f"{must} {why}; agree on a new study, for example with another epsilon")
            sent = payload()
            if not isinstance(sent, bytes):
                raise TypeError(f"a payload must return bytes, got {type(sent).__name__}")
            digest = hashlib.sha256(sent).hexdigest()
            made = Release(
                key=key, purpose=purpose, study=study, mu=mu, slack_delta=slack_delta, sha256=digest
            )
            self._append(made, sent)
        return sent

    def has(self, key: str) -> bool:
        return any(entry.key == key for entry in self.entries())

    def check_rows(self, data: DataVersion) -> None:
        """Refuse rows other than those recorded as their version; writes nothing."""
        self.check_owner(data.silo, data.data_set)
        if self._history().identity_of(data) not in (None, data.identity):
            must = f"the data of silo {data.silo!r} must match version {data.version!r} in its ledger"
            by = data.declared_by or f"data_version={ {data.silo: unused_version([self])} }"
            hint = f"declare a new version with {by} (a new charge), or restore the old data"
            raise LedgerError(f"{must}, got other data; {hint} (nothing left the silo)")

    def check_owner(self, silo: str, data_set: str | None) -> None:
        """Refuse a silo, or a data set, that is not the ledger's own."""
        owner = self.owner
        for what, own, other in ("silo", owner.silo, silo), ("data set", owner.data_set, data_set):
            if own not in (None, other):
                named = f"no {what}" if other is None else f"{what} {other!r}"
                must = f"ledger {self._label} must belong to {named}"
                raise InputError(f"{must}, got the ledger of {what} {own!r}; use one ledger for each")

    def check_affordable(
        self, *, study: str, mu: float, slack_delta: float = 0.0, begun: bool = False
    ) -> None:
        """Refuse a study that would overspend, unless it already has releases here.

        With ``begun`` it is to have more of them, and what they may still cost must fit.
        """
        history = self._history()
        spent = history.account(study)
        if begun or not spent.n_releases:
            rest = math.sqrt(max(0.0, (mu - spent.mu) * (mu + spent.mu)))
            history.account().require(history.owner.silo, rest, max(0.0, slack_delta - spent.slack_delta))

    @property
    def owner(self) -> Owner:
        return self._history().owner

    def spent(self, study: str | None = None, *, key: str = "") -> Account:
        """Return the account of all releases, or of one study's, or of keys that begin with ``key``."""
        return self._history().account(study, key)

    def what_if(self, epsilon: float) -> Account:
        """Return the account after one release of (epsilon, the cap's delta); charges nothing."""
        account = self.spent()
        _checked_cap(epsilon, account.delta)
        return account.charged(mu_of(epsilon, account.delta))

    def entries(self) -> list[Release]:
        """Return every charge, first to last."""
        return self._history().all(Release)

    def caps(self) -> list[Cap]:
        """Return every cap, first to last; the last one applies."""
        return self._history().all(Cap)

    def set_cap(self, epsilon: float, delta: float, *, reason: str = "") -> None:
        """Set another cap and record it. Only the operator does this, never a study."""
        cap = _checked_cap(epsilon, delta, reason)
        if reason:
            _check_text("reason", reason)
        with self._transaction():
            self._history()
            self._append(cap)

    def decisions(self) -> list[Decision]:
        """Return what was decided about studies, first to last."""
        return self._history().all(Decision)

    def decide(self, decision: Decision) -> None:
        """Record a decision about a study."""
        with self._transaction():
            self._history()
            self._append(decision)

    def check_releases(self) -> None:
        """Refuse releases whose bytes are not those that were first sent."""
        for number, _, entry in self.sealed():
            if isinstance(entry, Release):
                self._kept(number, entry)

    def sealed(self, after: int = 0) -> list[tuple[int, str, _Entry]]:
        """Return what is recorded after so many entries, each with its number and its seal."""
        rows = self._query("SELECT seq, seal, body FROM entry WHERE seq > ? ORDER BY seq", after)
        return [(number, seal, _DECODER.decode(body)) for number, seal, body in rows]

    @property
    def n_entries(self) -> int:
        return int(self._query("SELECT max(seq) FROM entry")[0][0])

    @property
    def log_head(self) -> LogHead:
        """How far the audit log goes."""
        rows = self._query("SELECT head FROM log")
        try:
            return msgspec.json.decode(rows[0][0], type=LogHead) if rows else LogHead()
        except msgspec.DecodeError:
            raise self._damaged() from None

    def move_log_head(self, move: Callable[[LogHead], LogHead]) -> LogHead:
        """Record how far the audit log goes from now on, which depends on how far it went."""
        with self._transaction():
            head = move(self.log_head)
            self._query("INSERT OR REPLACE INTO log VALUES (1, ?)", msgspec.json.encode(head).decode())
        return head

    def unit(self, *purposes: str) -> str:
        """Return what the ε spent is about, with releases for further purposes."""
        return unit_of([*(entry.purpose for entry in self.entries()), *purposes])

    def statement(self) -> dict[str, Any]:
        """Return all but the payloads as JSON values; ``seal`` is the fingerprint of the history."""
        history = self._history()
        account, owner = history.account(), history.owner
        so_far, charges = replace(account, mu=0.0, slack_delta=0.0), []
        for seq, made in enumerate(history.all(Release), start=1):
            so_far = so_far.charged(made.mu, made.slack_delta)
            single = replace(so_far, mu=made.mu, slack_delta=made.slack_delta)
            costs = {"seq": seq, "epsilon": single.epsilon, "total_epsilon": so_far.epsilon}
            charges.append(msgspec.structs.asdict(made) | costs)
        names = ("epsilon", "mu", "slack_delta", "n_releases")
        found = {
            "fedpower": importlib.metadata.version("fedpower"),
            "schema": SCHEMA_VERSION,
            "silo": owner.silo,
            "data_set": owner.data_set,
            "data_versions": list(dict.fromkeys(version.name for version in history.all(Version))),
            "for_experiments": owner.for_experiments,
            "unit": self.unit(),
            "cap": {"epsilon": account.cap, "delta": account.delta},
            "cap_changes": history.all(Cap),
            "spent": {name: getattr(account, name) for name in names},
            "left": account.left,
            "entries": charges,
            "seal": {"seq": len(history.entries), "sha256": history.seal},
        }
        return dict(jsonable(found))

    # --- the file ---

    @contextlib.contextmanager
    def _locked(self) -> Iterator[None]:
        if os.getpid() != self._pid:  # before the lock: a fork may have copied it while it was held
            raise LedgerError(
                f"ledger {self._label} must be used in the process that opened it; open it again here"
            )
        with self._lock:
            yield

    def _query(self, sql: str, *parameters: object) -> list[tuple[Any, ...]]:
        """Return all rows of a statement; SQLite's errors become one sentence."""
        with self._locked():
            try:
                return self._db.execute(sql, parameters).fetchall()
            except sqlite3.Error as error:
                raise self._refusal(error) from None

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        """Commit what the body does, or undo all of it; no other process writes meanwhile."""
        with self._locked():
            self._query("SELECT 1")  # refuses a closed connection first
            if self._db.in_transaction:
                raise LedgerError(f"ledger {self._label} was asked for a change from inside a payload")
            self._query("BEGIN IMMEDIATE")
            try:
                yield
                self._query("COMMIT")
            except BaseException:
                self._read_at = None  # what was added is undone
                try:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                except sqlite3.Error:  # the journal undoes it when the file is next opened
                    self._db.close()
                raise

    def _append(self, entry: _Entry, payload: bytes | None = None) -> None:
        """Add a sealed entry after those last read, which has the digest of its payload."""
        entries, body = self._known.entries, msgspec.json.encode(entry).decode()
        seal = _seal_of(self._known.seal, body)
        self._query("INSERT INTO entry VALUES (?, ?, ?, ?)", len(entries) + 1, body, seal, payload)
        self._known = _History((*entries, entry), seal)

    def _history(self) -> _History:
        """Return all entries, read again once another process has written; refuse those that do not fit."""
        with self._locked():
            version = self._query("PRAGMA data_version")[0][0]
            if version != self._read_at:
                self._known, self._read_at = self._whole_history(), version
            return self._known

    def _whole_history(self) -> _History:
        seal, entries = "", []
        rows = self._query("SELECT seq, body, seal FROM entry ORDER BY seq")
        for place, (seq, body, sealed) in enumerate(rows, start=1):
            if seq != place or not isinstance(body, str) or sealed != _seal_of(seal, body):
                raise self._damaged()
            seal = sealed
            entries.append(_DECODER.decode(body))
        if not entries:
            raise self._damaged()
        return _History(tuple(entries), seal)

    def _kept(self, place: int, entry: Release) -> bytes:
        """Return the bytes of a release as they were first sent."""
        sent = self._query("SELECT payload FROM entry WHERE seq = ?", place)[0][0]
        if not isinstance(sent, bytes) or hashlib.sha256(sent).hexdigest() != entry.sha256:
            must = f"release {entry.key!r} must be as it was first sent but has changed in {self._label}"
            raise LedgerError(f"{must}; restore the latest copy of the file")
        return sent

    def _record_rows(self, data: DataVersion) -> None:
        """Record whose, and which, rows these are, once; refuse others than those recorded."""
        self.check_rows(data)
        owner = self.owner
        settled = msgspec.structs.replace(
            owner, silo=owner.silo or data.silo, data_set=owner.data_set or data.data_set
        )
        if settled != owner:
            self._append(settled)
        if self._history().identity_of(data) is None:
            self._append(Version(name=data.version, columns=data.columns, fingerprint=data.identity))

    def _be_durable(self) -> None:
        if self._path is not None:
            for pragma in ("journal_mode = DELETE", "synchronous = EXTRA", "fullfsync = 1"):
                self._query(f"PRAGMA {pragma}")

    def _check_file(self) -> None:
        """Refuse a file of another kind or version, or one that is cut short."""
        assert self._path is not None, "a ledger in memory is never opened"
        names = ("application_id", "user_version", "page_count", "page_size")
        kind, version, pages, size = (int(self._query(f"PRAGMA {name}")[0][0]) for name in names)
        if kind != _APPLICATION_ID:
            raise LedgerError(f"{self._label} must be a fedpower ledger but is another kind of database")
        if version != SCHEMA_VERSION:
            raise LedgerError(f"ledger {self._label} must have schema {SCHEMA_VERSION} but has {version}")
        whole = self._path.stat().st_size >= pages * size
        if not whole or self._query("PRAGMA quick_check(1)") != [("ok",)]:
            raise self._damaged()

    def _damaged(self) -> LedgerError:
        hint = "restore the latest copy of the file, as an older copy erases recorded spending"
        return LedgerError(f"ledger {self._label} must be intact but is damaged or not a ledger; {hint}")

    def _refusal(self, error: sqlite3.Error) -> LedgerError:
        if isinstance(error, sqlite3.ProgrammingError):
            return LedgerError(f"ledger {self._label} must be open but was closed; open it again")
        code = getattr(error, "sqlite_errorcode", 0)
        refusal = _REFUSALS.get(code, _REFUSALS.get(code & 0xFF))
        if refusal is None:
            return self._damaged()
        return LedgerError(f"ledger {self._label} {refusal} (nothing left the silo)")


def unused_version(ledgers: Iterable[Ledger]) -> str:
    """Return a version of data that no ledger has recorded."""
    used = {version.name for ledger in ledgers for version in ledger._history().all(Version)}
    return next(name for name in map(str, itertools.count(2)) if name not in used)


def _seal_of(previous: str, body: str) -> str:
    return hashlib.sha256(f"{previous}\n{body}".encode()).hexdigest()


def _make_private_file(path: Path) -> None:
    try:
        handle = os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
    except FileExistsError:
        raise LedgerError(f"a new ledger must be a new file but {path} exists already") from None
    except OSError as error:
        must = "a ledger must be created in a writable folder"
        raise LedgerError(f"{must} but {path} cannot be ({error.strerror})") from None
    os.fchmod(handle, 0o600)  # whatever the umask took away
    os.close(handle)


def _check_private(path: Path, *, read_only: bool) -> bool:
    """Refuse a file that others could read or this user cannot use; return whether to open it read-only."""
    try:
        info = path.stat()
    except FileNotFoundError:
        must = "a ledger must exist before anything is released"
        hint = "look for it or, if there never was one, create it with `fedpower ledger create`"
        raise LedgerError(f"{must} but there is none at {path}; {hint}") from None
    except OSError as error:
        raise LedgerError(f"ledger {path} must be readable but is not ({error.strerror})") from None
    mode, writes = stat.S_IMODE(info.st_mode), not read_only
    others = os.name == "posix" and mode & ~0o600
    is_writable = bool(mode & 0o200) and os.access(path, os.W_OK)
    has_writable_folder = os.access(path.resolve().parent, os.W_OK | os.X_OK)
    kind = "a directory" if stat.S_ISDIR(info.st_mode) else "not a regular file"
    fix, again = f"run `chmod 600 {path}`", "delete it and run that again, otherwise restore the latest copy"
    problems = {
        f"a ledger must be a file but {path} is {kind}; give the file's path": not stat.S_ISREG(info.st_mode),
        f"ledger {path} must be private to its owner but has mode {mode:04o}; {fix}": others,
        f"ledger {path} must be readable but is not; {fix} as its owner": not os.access(path, os.R_OK),
        f"ledger {path} is empty; if `fedpower ledger create` was interrupted {again}": info.st_size == 0,
        f"ledger {path} must be writable but is not; {fix} as its owner": writes and not is_writable,
        f"the folder of ledger {path} must be writable, for its journal": writes and not has_writable_folder,
    }
    for problem, is_there in problems.items():
        if is_there:
            raise LedgerError(problem)
    journal = path.resolve().with_name(f"{path.resolve().name}-journal")
    # Opening it to write undoes an interrupted change, which reading cannot.
    return read_only and not (journal.exists() and is_writable and has_writable_folder)


def _checked_cap(epsilon: float, delta: float, reason: str = "") -> Cap:
    epsilon = float(epsilon)
    require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
    return Cap(epsilon=epsilon, delta=check_delta(float(delta)), reason=reason)


def _check_text(name: str, text: str) -> None:
    require(bool(text) and text.isprintable(), name, "printable text on one line", text)


def unit_of(purposes: Sequence[str]) -> str:
    """Return what the ε of releases for these purposes is about."""
    kinds = {next((kind for kind in (BY_EDGE, BY_PERSON) if text.endswith(kind)), "") for text in purposes}
    if kinds == {BY_EDGE}:
        return "one edge of this silo's network, present or absent"
    if BY_EDGE in kinds:
        return "one edge in some of its releases and one row in others: use a ledger for each"
    if kinds == {BY_PERSON}:
        return "one person of this silo with all rows, replace-one neighbours"
    but = ", because only some of its releases protect persons" if BY_PERSON in kinds else ""
    return f"one row of this silo, replace-one neighbours{but}"
