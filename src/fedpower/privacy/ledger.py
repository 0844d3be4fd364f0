"""What a silo has released, what that cost, and whether one more release fits its cap."""

import functools
import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpower.errors import BudgetError, InputError, LedgerError, require
from fedpower.privacy.accounting import check_delta, epsilon_of, mu_of
from fedpower.privacy.ledger_store import SCHEMA_VERSION, Store

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
    if not is_label(text):
        raise InputError(
            f"{what} must be 1 to 64 letters, digits or . _ : + - and begin with a letter or a "
            f"digit, got {text!a}; call it 1, 2026-03 or the like"
        )


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
    declared_by: str = "data_version"

    def __post_init__(self) -> None:
        check_label("a version of data", self.version)
        if self.data_set is not None:
            check_label("the name of a data set", self.data_set)

    @property
    def name(self) -> str:
        return f"version {self.version}" + (f", read as {self.reading[:16]}" if self.reading else "")


# --- what it costs ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Spent:
    """What a ledger has charged so far; epsilon is at the cap's delta, less `slack_delta`."""

    epsilon: float
    mu: float
    slack_delta: float
    n_releases: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Forecast:
    """What one more release would do: whether it fits, the total it makes, what it leaves."""

    fits: bool
    spent: float
    left: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One charged release; `seq` is the order, `time` (UTC) only what the clock said."""

    seq: int
    time: datetime
    key: str
    purpose: str
    study: str
    mu: float
    slack_delta: float
    epsilon: float
    total_epsilon: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CapChange:
    """One cap an operator set; the last one holds."""

    seq: int
    time: datetime
    epsilon: float
    delta: float
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class _Account:
    """A cap (epsilon, delta) and what was charged to it: mu = √Σμ_j², slack = Σ slack_delta."""

    epsilon: float
    delta: float
    mu: float = 0.0
    slack: float = 0.0

    def charged(self, mu: float, slack: float = 0.0) -> Self:
        return replace(self, mu=math.hypot(self.mu, mu), slack=self.slack + slack)

    @property
    def spent(self) -> float:
        if self.mu == 0.0 and self.slack <= self.delta:
            return 0.0
        return _epsilon(self.mu, self.delta - self.slack)

    @property
    def holds(self) -> bool:
        return self.spent <= self.epsilon * (1 + ROUNDING)

    @property
    def left(self) -> float:
        if self.slack >= self.delta:
            return 0.0
        limit = mu_of(self.epsilon, self.delta - self.slack)
        if self.mu >= limit * (1 - 5 * ROUNDING):
            return 0.0
        return _epsilon(math.sqrt((limit - self.mu) * (limit + self.mu)), self.delta)

    def refusal(self, silo: str | None, mu: float, slack: float) -> BudgetError:
        """Return the error that refuses a release; following its advice is always allowed."""
        left = replace(self, slack=self.slack + slack).left
        shown = rounded_down(left, 3)
        if left > 0 and not self.charged(mu_of(float(shown), self.delta), slack).holds:
            shown = rounded_down(left * (1 - 10 * ROUNDING), 3)
        who, it = ("this silo", "it") if silo is None else (f"silo {silo!r}", repr(silo))
        advice = f"ask for epsilon<={shown}, " if left > 0 else ""
        return BudgetError(
            f"this release would spend epsilon={_rounded_up(_epsilon(mu, self.delta))} but {who} has {shown} "
            f"left at delta={self.delta:g}; {advice}leave {it} out or have its operator raise the cap"
        )


@functools.lru_cache(maxsize=4096)  # equal steps, and statements asked for again
def _epsilon(mu: float, delta: float) -> float:
    return epsilon_of(mu, delta) if delta > 0 and mu < 1e6 else math.inf


def rounded_down(value: float, digits: int) -> str:
    """Return value to some significant digits, and not more than it is but by rounding errors."""
    return _rounded(value * (1 + 4 * ROUNDING), digits, math.floor)


def _rounded_up(value: float) -> str:
    return _rounded(value * (1 - 1e-12), 3, math.ceil)


def _rounded(value: float, digits: int, to_whole: Callable[[float], int]) -> str:
    if not 0 < value < math.inf:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{to_whole(value / step) * step:.{digits}g}"


def jsonable(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with times as text and infinities as None."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else (None if value == math.inf else value)
        for name, value in fields.items()
    }


# --- the ledger ------------------------------------------------------------------------------------


class Ledger:
    """What a silo has released and what it may still release; open one with a class method.

    Threads may share it; processes each open the file for themselves.

    Examples
    --------
    >>> from fedpower.privacy import Ledger
    >>> with Ledger.in_memory(1.0, 1e-6, silo="north") as ledger:
    ...     sent = ledger.release(key="k", purpose="p", study="s", mu=0.1, payload=lambda: b"noised")
    ...     ledger.spent().n_releases
    1
    """

    def __init__(self, store: Store) -> None:
        self._store = store

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
        """Return a new ledger with a cap, in a new file of mode 0600; never overwrites.

        Only one that is ``for_experiments`` takes releases whose noise is seeded, and it records that.
        """
        cap = _checked_cap(epsilon, delta)
        if silo is not None:
            _check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        place = None if path is None else Path(path)
        return cls(
            Store.create(place, silo=silo, data_set=data_set, cap=cap, for_experiments=for_experiments)
        )

    @classmethod
    def in_memory(
        cls, epsilon: float, delta: float, *, silo: str | None = None, data_set: str | None = None
    ) -> Self:
        """Return a ledger without a file, for a single fit: it ends with the process."""
        return cls.create(
            None, epsilon=epsilon, delta=delta, silo=silo, data_set=data_set, for_experiments=True
        )

    @classmethod
    def open(cls, path: str | os.PathLike[str], *, read_only: bool = False) -> Self:
        """Return the ledger in a file; one that is missing or not sound is refused, never made.

        One that is ``read_only`` needs no permission to write, writes nothing and releases nothing.
        """
        return cls(Store.open(Path(path), read_only=read_only))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._store.close()

    @property
    def silo(self) -> str | None:
        return self._owner()[0]

    @property
    def data_set(self) -> str | None:
        return self._owner()[1]

    @property
    def for_experiments(self) -> bool:
        return bool(self._store.query("SELECT for_experiments FROM silo")[0][0])

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
        """Return the bytes that may leave: noised and charged now, or those kept for this key.

        The same ``key`` always gets the same bytes, at no charge; with another purpose, study or mu it is
        refused. All releases of a study may cost ``study_mu`` together, whatever the cap allows. The first
        release of a version of ``data`` records which rows that is, and whose: others are refused from then
        on. ``payload`` draws the noise and returns the noised bytes: it is called at most once, after the cap
        allows it and inside the transaction, so prepare what is slow beforehand. Where it, or anything
        else, raises, nothing is charged and nothing may leave.
        """
        for name, text in (("key", key), ("purpose", purpose), ("study", study)):
            _check_text(name, text)
        mu, slack_delta = float(mu), float(slack_delta) + 0.0  # SQLite keeps no -0.0
        require(0 < mu < math.inf, "mu", "positive and finite", mu)
        require(0 <= slack_delta < 1, "slack_delta", "in [0, 1)", slack_delta)
        with self._store.transaction("IMMEDIATE"):
            if data is not None:
                self._check_rows(data)
                self._record_rows(data)
            kept = self._kept(key, purpose, study, mu)
            if kept is not None:
                return kept
            account = self._account()
            if not account.charged(mu, slack_delta).holds:
                raise account.refusal(self.silo, mu, slack_delta)
            self._check_study(study, mu, study_mu)
            sent = payload()
            if not isinstance(sent, bytes):
                raise TypeError(f"a payload must return bytes, got {type(sent).__name__}")
            digest = hashlib.sha256(sent).hexdigest()
            self._store.append("release", key, purpose, study, mu, slack_delta, digest, sent)
        return sent

    def has(self, key: str) -> bool:
        return bool(self._store.query("SELECT 1 FROM release WHERE key = ?", key))

    def check_rows(self, data: DataVersion) -> None:
        """Refuse rows other than those recorded as their version; writes nothing."""
        with self._store.transaction():
            self._check_rows(data)

    def check_owner(self, silo: str, data_set: str | None) -> None:
        """Refuse a silo, or a data set, that is not the ledger's own."""
        owner, owned = self._owner()
        if owner not in (None, silo):
            raise InputError(
                f"ledger {self._store.label} must belong to silo {silo!r}, got that of {owner!r}"
            )
        if owned not in (None, data_set):
            named = "data without a name" if data_set is None else f"the data set {data_set!r}"
            raise InputError(
                f"ledger {self._store.label} must belong to {named} of silo {silo!r}, got that of "
                f"data set {owned!r}; give each its own"
            )

    def check_affordable(self, *, study: str, mu: float, slack_delta: float = 0.0) -> None:
        """Refuse a study whose releases would overspend; one that has releases here is let through."""
        with self._store.transaction():
            known, account = self._charges(study), self._account()
        if not known and not account.charged(mu, slack_delta).holds:
            raise account.refusal(self.silo, mu, slack_delta)

    @property
    def cap(self) -> tuple[float, float]:
        return self._store.query("SELECT epsilon, delta FROM cap ORDER BY seq DESC LIMIT 1")[0]

    def spent(self) -> Spent:
        """Return what all releases so far cost together, at the cap's delta."""
        return self.spent_on(None)

    def spent_on(self, study: str | None, *, key: str = "") -> Spent:
        """Return what the releases of one study cost together; only of keys that begin with ``key``."""
        with self._store.transaction():
            charges = self._charges(study, key)
            account = self._account(charges)
        return Spent(epsilon=account.spent, mu=account.mu, slack_delta=account.slack, n_releases=len(charges))

    def left(self) -> float:
        """Return the largest epsilon, at the cap's delta, of one further release that fits."""
        with self._store.transaction():
            return self._account().left

    def what_if(self, epsilon: float) -> Forecast:
        """Return what one release of (epsilon, the cap's delta) would do; charges nothing."""
        with self._store.transaction():
            account = self._account()
        after = account.charged(mu_of(*_checked_cap(epsilon, account.delta)))
        return Forecast(fits=after.holds, spent=after.spent, left=after.left)

    def entries(self) -> list[Entry]:
        """Return every charge in the order made, with epsilons at the present cap's delta."""
        with self._store.transaction():
            epsilon, delta = self.cap
            rows = self._store.query(
                "SELECT seq, time, key, purpose, study, mu, slack_delta FROM release ORDER BY seq"
            )
        entries = []
        account = _Account(epsilon=epsilon, delta=delta)
        for seq, time, key, purpose, study, mu, slack_delta in rows:
            alone = replace(account, mu=mu, slack=slack_delta)
            account = account.charged(mu, slack_delta)
            entry = Entry(
                seq=seq, time=datetime.fromisoformat(time), key=key, purpose=purpose, study=study,
                mu=mu, slack_delta=slack_delta, epsilon=alone.spent, total_epsilon=account.spent,
            )  # fmt: skip
            entries.append(entry)
        return entries

    def cap_changes(self) -> list[CapChange]:
        """Return every cap that was set, first to last; the last one holds."""
        rows = self._store.query("SELECT seq, time, epsilon, delta, reason FROM cap ORDER BY seq")
        return [
            CapChange(seq=seq, time=datetime.fromisoformat(time), epsilon=epsilon, delta=delta, reason=reason)
            for seq, time, epsilon, delta, reason in rows
        ]

    def set_cap(self, epsilon: float, delta: float, *, reason: str = "") -> None:
        """Set another cap, on record: an operator's act, never a study's."""
        epsilon, delta = _checked_cap(epsilon, delta)
        if reason:
            _check_text("reason", reason)
        with self._store.transaction("IMMEDIATE"):
            self._store.append("cap", epsilon, delta, reason)

    def statement(self) -> dict[str, Any]:
        """Return all but the payloads, ready for JSON; ``seal`` is the fingerprint of the history."""
        with self._store.transaction():
            seq, seal = self._store.last("release")
            caps, entries = self.cap_changes(), self.entries()
            spent, left = self.spent(), self.left()
            silo, data_set = self._owner()
            for_experiments = self.for_experiments
            versions = self._store.query("SELECT name FROM version GROUP BY name ORDER BY min(seq)")
        return {
            "fedpower": importlib.metadata.version("fedpower"),
            "schema": SCHEMA_VERSION,
            "silo": silo,
            "data_set": data_set,
            "data_versions": [name for (name,) in versions],
            "for_experiments": for_experiments,
            "unit": _unit_of([entry.purpose for entry in entries]),
            "cap": {"epsilon": caps[-1].epsilon, "delta": caps[-1].delta},
            "cap_changes": [jsonable(asdict(cap)) for cap in caps],
            "spent": jsonable(asdict(spent)),
            "left": left,
            "entries": [jsonable(asdict(entry)) for entry in entries],
            "seal": {"seq": seq, "sha256": seal},
        }

    # What follows is called inside a transaction where several answers must fit together.

    def _owner(self) -> tuple[str | None, str | None]:
        return self._store.query("SELECT name, data_set FROM silo")[0]

    def _fingerprint_of(self, data: DataVersion) -> str | None:
        rows = self._store.query(
            "SELECT fingerprint FROM version WHERE name = ? AND columns = ?", data.version, data.columns
        )
        return rows[0][0] if rows else None

    def _check_rows(self, data: DataVersion) -> None:
        self.check_owner(data.silo, data.data_set)
        if self._fingerprint_of(data) not in (None, data.fingerprint):
            raise LedgerError(
                f"the stored data of silo {data.silo!r} must be those that its ledger knows as version "
                f"{data.version!r}, got others; declare a new version with {data.declared_by}, which is a "
                "new charge, or put the old data back (nothing left the silo)"
            )

    def _record_rows(self, data: DataVersion) -> None:
        if None in self._owner():
            self._store.query(
                "UPDATE silo SET name = coalesce(name, ?), data_set = coalesce(data_set, ?) "
                "WHERE name IS NULL OR ? IS NOT NULL",
                data.silo,
                data.data_set,
                data.data_set,
            )
        if self._fingerprint_of(data) is None:
            self._store.append("version", data.version, data.columns, data.fingerprint)

    def _check_study(self, study: str, mu: float, most: float | None) -> None:
        if most is None:
            return
        spent = self._charges(study)
        if math.hypot(mu, *(charged for charged, _ in spent)) > most * (1 + ROUNDING):
            raise BudgetError(
                f"a study must keep to the epsilon it agreed on, but study {study[:12]} asks for more than "
                f"its {len(spent)} releases; ask the same questions again, or agree on a new study"
            )

    def _charges(self, study: str | None = None, key: str = "") -> list[tuple[float, float]]:
        return self._store.query(
            "SELECT mu, slack_delta FROM release WHERE study = coalesce(?, study) "
            "AND substr(key, 1, ?) = ? ORDER BY seq",
            study,
            len(key),
            key,
        )

    def _account(self, charges: Sequence[tuple[float, float]] | None = None) -> _Account:
        charges = self._charges() if charges is None else charges
        epsilon, delta = self.cap
        mu, slack = math.hypot(*(charge[0] for charge in charges)), math.fsum(charge[1] for charge in charges)
        return _Account(epsilon=epsilon, delta=delta, mu=mu, slack=slack)

    def _kept(self, key: str, purpose: str, study: str, mu: float) -> bytes | None:
        rows = self._store.query("SELECT purpose, study, mu, sha256, payload FROM release WHERE key = ?", key)
        if not rows:
            return None
        kept_purpose, kept_study, kept_mu, digest, sent = rows[0]
        if (purpose, study) != (kept_purpose, kept_study) or not math.isclose(mu, kept_mu):
            raise LedgerError(f"a key must name one release but {key!r} was used for another one")
        if not isinstance(sent, bytes) or hashlib.sha256(sent).hexdigest() != digest:
            raise LedgerError(
                f"release {key!r} must leave as it was first sent but its bytes in {self._store.label} "
                "have changed; put back the file as it was last written"
            )
        return sent


def _checked_cap(epsilon: float, delta: float) -> tuple[float, float]:
    epsilon = float(epsilon)
    require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
    return epsilon, check_delta(float(delta))


def _check_text(name: str, text: str) -> None:
    if not (text and text.isprintable()):
        raise InputError(f"{name} must be printable text on one line, got {text!a}")


def _unit_of(purposes: Sequence[str]) -> str:
    by_edge = [purpose.endswith(BY_EDGE) for purpose in purposes]
    by_person = [purpose.endswith(BY_PERSON) for purpose in purposes]
    row = "one row of this silo, replace-one neighbours"
    if any(by_edge) and not all(by_edge):
        return "one edge by some of its releases and one row by others: keep a ledger for each"
    if any(by_edge):
        return "one edge of this silo's network, present or absent"
    if any(by_person) and not all(by_person):
        return f"{row}, for not all of its releases were by person"
    if any(by_person):
        return "one person of this silo with all rows, replace-one neighbours"
    return row
