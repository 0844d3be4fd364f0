"""What a silo has released, what that cost, and whether one more release fits its cap."""

import functools
import hashlib
import importlib.metadata
import json
import math
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

import msgspec

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
        """The largest epsilon, at the cap's delta, of one further release that fits."""
        if self.slack_delta >= self.delta:
            return 0.0
        limit = mu_of(self.cap, self.delta - self.slack_delta)
        if self.mu >= limit * (1 - 5 * ROUNDING):
            return 0.0
        return _epsilon(math.sqrt((limit - self.mu) * (limit + self.mu)), self.delta)

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
        advice = f"ask for epsilon<={shown}, " if left > 0 else ""
        raise BudgetError(
            f"this release would spend epsilon={asked} but {who} has {shown} left at delta={self.delta:g}; "
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


_Kind = TypeVar("_Kind", bound=_Recorded)
_DECODER = msgspec.json.Decoder(Owner | Cap | Version | Release)


@dataclass(frozen=True, slots=True)
class _History:
    """All that a ledger records, in order."""

    entries: Sequence[Owner | Cap | Version | Release]
    seal: str

    def all(self, kind: type[_Kind]) -> list[_Kind]:
        return [entry for entry in self.entries if isinstance(entry, kind)]

    @property
    def owner(self) -> Owner:
        owners = self.all(Owner)
        return owners[-1] if owners else Owner()

    def fingerprint_of(self, data: "DataVersion") -> str | None:
        found = (data.version, data.columns)
        return next((v.fingerprint for v in self.all(Version) if (v.name, v.columns) == found), None)

    def charges(self) -> list[dict[str, Any]]:
        """Return every release, and what it and all up to it cost at the present cap's delta."""
        account = replace(self.account(), mu=0.0, slack_delta=0.0)
        charges = []
        for seq, made in enumerate(self.all(Release), start=1):
            account = account.charged(made.mu, made.slack_delta)
            alone = replace(account, mu=made.mu, slack_delta=made.slack_delta)
            costs = {"seq": seq, "epsilon": alone.epsilon, "total_epsilon": account.epsilon}
            charges.append(msgspec.structs.asdict(made) | costs)
        return charges

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


def jsonable(value: object) -> Any:
    """Return a value in JSON's types: times as text, infinities as None."""
    return msgspec.json.decode(msgspec.json.encode(value))


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
        cap = _checked_cap(epsilon, delta, "created")
        if silo is not None:
            _check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        owner = Owner(silo=silo, data_set=data_set, for_experiments=for_experiments)
        return cls(Store.create(None if path is None else Path(path), map(_encoded, (cap, owner))))

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
        mu, slack_delta = float(mu), float(slack_delta)
        require(0 < mu < math.inf, "mu", "positive and finite", mu)
        require(0 <= slack_delta < 1, "slack_delta", "in [0, 1)", slack_delta)
        with self._store.transaction():
            history = self._history() if data is None else self._record_rows(data)
            kept = self._kept(history, key, purpose, study, mu)
            if kept is not None:
                return kept
            silo = history.owner.silo if data is None else data.silo
            history.account().require(silo, mu, slack_delta)
            spent = history.account(study)
            if study_mu is not None and spent.charged(mu).mu > study_mu * (1 + ROUNDING):
                raise BudgetError(
                    f"a study must keep to the epsilon it agreed on, but study {study[:12]} asks for more "
                    f"than its {spent.n_releases} releases; ask the same questions again, or agree on a new "
                    "study"
                )
            sent = payload()
            if not isinstance(sent, bytes):
                raise TypeError(f"a payload must return bytes, got {type(sent).__name__}")
            digest = hashlib.sha256(sent).hexdigest()
            made = Release(
                key=key, purpose=purpose, study=study, mu=mu, slack_delta=slack_delta, sha256=digest
            )
            self._store.append(_encoded(made), sent)
        return sent

    def has(self, key: str) -> bool:
        return any(entry.key == key for entry in self._history().all(Release))

    def check_rows(self, data: DataVersion) -> _History:
        """Refuse rows other than those recorded as their version; writes nothing."""
        history = self._history()
        self._check_owner(history.owner, data.silo, data.data_set)
        if history.fingerprint_of(data) not in (None, data.fingerprint):
            raise LedgerError(
                f"the stored data of silo {data.silo!r} must be those that its ledger knows as version "
                f"{data.version!r}, got others; declare a new version with {data.declared_by}, which is a "
                "new charge, or put the old data back (nothing left the silo)"
            )
        return history

    def check_owner(self, silo: str, data_set: str | None) -> None:
        """Refuse a silo, or a data set, that is not the ledger's own."""
        self._check_owner(self.owner, silo, data_set)

    def _check_owner(self, owner: Owner, silo: str, data_set: str | None) -> None:
        for what, own, other in (("silo", owner.silo, silo), ("data set", owner.data_set, data_set)):
            if own not in (None, other):
                named = f"no {what}" if other is None else f"{what} {other!r}"
                raise InputError(
                    f"ledger {self._store.label} must belong to {named}, got that of {what} {own!r}; "
                    "give each its own"
                )

    def check_affordable(self, *, study: str, mu: float, slack_delta: float = 0.0) -> None:
        """Refuse a study whose releases would overspend; one that has releases here is let through."""
        history = self._history()
        if not history.account(study).n_releases:
            history.account().require(history.owner.silo, mu, slack_delta)

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
        """Return every charge in the order made."""
        return self._history().all(Release)

    def caps(self) -> list[Cap]:
        """Return every cap that was set, first to last; the last one holds."""
        return self._history().all(Cap)

    def set_cap(self, epsilon: float, delta: float, *, reason: str = "") -> None:
        """Set another cap, on record: an operator's act, never a study's."""
        cap = _checked_cap(epsilon, delta, reason)
        if reason:
            _check_text("reason", reason)
        with self._store.transaction():
            self._store.append(_encoded(cap))

    def statement(self) -> dict[str, Any]:
        """Return all but the payloads, ready for JSON; ``seal`` is the fingerprint of the history."""
        history = self._history()
        account, owner = history.account(), history.owner
        names = ("epsilon", "mu", "slack_delta", "n_releases")
        found = {
            "fedpower": importlib.metadata.version("fedpower"),
            "schema": SCHEMA_VERSION,
            "silo": owner.silo,
            "data_set": owner.data_set,
            "data_versions": list(dict.fromkeys(version.name for version in history.all(Version))),
            "for_experiments": owner.for_experiments,
            "unit": _unit_of([entry.purpose for entry in history.all(Release)]),
            "cap": {"epsilon": account.cap, "delta": account.delta},
            "cap_changes": history.all(Cap),
            "spent": {name: getattr(account, name) for name in names},
            "left": account.left,
            "entries": history.charges(),
            "seal": {"seq": len(history.entries), "sha256": history.seal},
        }
        return dict(jsonable(found))

    def _history(self) -> _History:
        bodies, seal = self._store.entries()
        return _History([_DECODER.decode(body) for body in bodies], seal)

    def _record_rows(self, data: DataVersion) -> _History:
        """Return the history before whose, and which, rows these are was recorded in it."""
        history = self.check_rows(data)
        owner = history.owner
        settled = msgspec.structs.replace(
            owner, silo=owner.silo or data.silo, data_set=owner.data_set or data.data_set
        )
        if settled != owner:
            self._store.append(_encoded(settled))
        if history.fingerprint_of(data) is None:
            version = Version(name=data.version, columns=data.columns, fingerprint=data.fingerprint)
            self._store.append(_encoded(version))
        return history

    def _kept(self, history: _History, key: str, purpose: str, study: str, mu: float) -> bytes | None:
        for place, kept in enumerate(history.entries):
            if not isinstance(kept, Release) or kept.key != key:
                continue
            if (purpose, study) != (kept.purpose, kept.study) or not math.isclose(mu, kept.mu):
                raise LedgerError(f"a key must name one release but {key!r} was used for another one")
            sent = self._store.payload(place)
            if not isinstance(sent, bytes) or hashlib.sha256(sent).hexdigest() != kept.sha256:
                raise LedgerError(
                    f"release {key!r} must leave as it was first sent but its bytes in {self._store.label} "
                    "have changed; put back the file as it was last written"
                )
            return sent
        return None


def _encoded(entry: _Recorded) -> str:
    return msgspec.json.encode(entry).decode()


def _checked_cap(epsilon: float, delta: float, reason: str = "") -> Cap:
    epsilon = float(epsilon)
    require(0 < epsilon < math.inf, "epsilon", "positive and finite", epsilon)
    return Cap(epsilon=epsilon, delta=check_delta(float(delta)), reason=reason)


def _check_text(name: str, text: str) -> None:
    if not (text and text.isprintable()):
        raise InputError(f"{name} must be printable text on one line, got {text!a}")


def _unit_of(purposes: Sequence[str]) -> str:
    kinds = {next((kind for kind in (BY_EDGE, BY_PERSON) if text.endswith(kind)), "") for text in purposes}
    if kinds == {BY_EDGE}:
        return "one edge of this silo's network, present or absent"
    if BY_EDGE in kinds:
        return "one edge by some of its releases and one row by others: keep a ledger for each"
    if kinds == {BY_PERSON}:
        return "one person of this silo with all rows, replace-one neighbours"
    but = ", for not all of its releases were by person" if BY_PERSON in kinds else ""
    return f"one row of this silo, replace-one neighbours{but}"
