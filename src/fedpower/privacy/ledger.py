"""The arithmetic of a ledger: what is spent, what is left, whether one more release fits."""

import functools
import hashlib
import importlib.metadata
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpower.errors import BudgetError, InputError, LedgerError
from fedpower.privacy.accounting import check_delta, epsilon_of, mu_of
from fedpower.privacy.data_version import BookedAs, DataVersion, check_label
from fedpower.privacy.ledger_store import SCHEMA_VERSION, MemoryStore, Store

__all__ = ["CapChange", "Entry", "Forecast", "Ledger", "Spent"]


ROUNDING = 1e-9
"""Relative overspend of the cap's epsilon that counts as floating-point rounding."""


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
        """Return the account after one more release."""
        return type(self)(
            epsilon=self.epsilon, delta=self.delta, mu=math.hypot(self.mu, mu), slack=self.slack + slack
        )

    @property
    def spent(self) -> float:
        """The epsilon of all releases together at the cap's delta, less the slack."""
        if self.mu == 0.0 and self.slack <= self.delta:
            return 0.0
        return _epsilon(self.mu, self.delta - self.slack)

    @property
    def holds(self) -> bool:
        """Whether the cap is kept."""
        return self.spent <= self.epsilon * (1 + ROUNDING)

    @property
    def left(self) -> float:
        """The largest epsilon, at the cap's delta, of one more Gaussian release that fits."""
        if self.slack >= self.delta:
            return 0.0
        limit = mu_of(self.epsilon, self.delta - self.slack)
        if self.mu >= limit * (1 - 5 * ROUNDING):
            return 0.0
        return self.alone(math.sqrt((limit - self.mu) * (limit + self.mu)))

    def alone(self, mu: float) -> float:
        """Return the epsilon of a single release at the cap's delta."""
        return _epsilon(mu, self.delta)


def _overspending(account: _Account, silo: str | None, mu: float, slack: float) -> str:
    """Return the sentence that refuses a release; following its advice is always allowed."""
    left = replace(account, slack=account.slack + slack).left
    shown = rounded_down(left, 3)
    if left > 0 and not account.charged(mu_of(float(shown), account.delta), slack).holds:
        shown = rounded_down(left * (1 - 10 * ROUNDING), 3)
    who, it = ("this silo", "it") if silo is None else (f"silo {silo!r}", repr(silo))
    advice = f"ask for epsilon<={shown}, " if left > 0 else ""
    return (
        f"this release would spend epsilon={_round_up(account.alone(mu))} but {who} has "
        f"{shown} left at delta={account.delta:g}; "
        f"{advice}leave {it} out or have its operator raise the cap"
    )


def _checked_cap(epsilon: float, delta: float) -> tuple[float, float]:
    """Return a cap as floats, or refuse it."""
    epsilon, delta = float(epsilon), float(delta)
    if not 0 < epsilon < math.inf:
        raise InputError(
            f"epsilon must be positive and finite, got {epsilon:g}; "
            "a ledger cannot account for releases without noise"
        )
    return epsilon, check_delta(delta)


def _checked_charge(mu: float, slack_delta: float) -> tuple[float, float]:
    """Return a charge as floats, or refuse it."""
    mu, slack_delta = float(mu), float(slack_delta) + 0.0  # SQLite keeps no -0.0
    if not 0 < mu < math.inf:
        raise InputError(
            f"mu must be positive and finite, got {mu:g}; a ledger cannot account for releases without noise"
        )
    if not 0 <= slack_delta < 1:
        raise InputError(f"slack_delta must lie in [0, 1), got {slack_delta:g}; 0 if there is none")
    return mu, slack_delta


def _check_text(name: str, text: str) -> None:
    """Refuse a name that is empty or would spoil a one-line message."""
    if not (text and text.isprintable()):
        raise InputError(f"{name} must be printable text on one line, got {text!a}; name it anew")


def jsonable(fields: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with times as text and infinities as None."""
    return {
        name: value.isoformat() if isinstance(value, datetime) else (None if value == math.inf else value)
        for name, value in fields.items()
    }


@functools.lru_cache(maxsize=4096)  # equal steps, and statements asked for again
def _epsilon(mu: float, delta: float) -> float:
    """Return epsilon_of, or ∞ where it does not reach: no delta left, or hardly any noise."""
    return epsilon_of(mu, delta) if delta > 0 and mu < 1e6 else math.inf


def rounded_down(value: float, digits: int) -> str:
    """Return value to some significant digits, and not more than it is but by rounding errors."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    value *= 1 + 4 * ROUNDING
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.floor(value / step) * step:.{digits}g}"


def _round_up(value: float, digits: int = 3) -> str:
    """Return value to some significant digits, never less than it is."""
    if not 0 < value < math.inf:
        return f"{value:g}"
    step = 10.0 ** (math.floor(math.log10(value)) - digits + 1)
    return f"{math.ceil(value / step * (1 - 1e-12)) * step:.{digits}g}"


BY_PERSON = ", by person"
"""How the purpose of a release ends that protects a person with all her rows."""

BY_EDGE = ", by edge"
"""How the purpose of a release ends that protects an edge of a network."""


def _unit_of(purposes: Sequence[str]) -> str:
    """Return what a ledger protects: a person only where nothing that it booked protects a row alone."""
    by_edge = [purpose.endswith(BY_EDGE) for purpose in purposes]
    if by_edge and all(by_edge):
        return "one edge of this silo's network, present or absent"
    if any(by_edge):
        return "one edge by some of its releases and one row by others: keep a ledger for each"
    by_person = [purpose.endswith(BY_PERSON) for purpose in purposes]
    if by_person and all(by_person):
        return "one person of this silo with all rows, replace-one neighbours"
    row = "one row of this silo, replace-one neighbours"
    if any(by_person):
        return f"{row}, for not all of its releases were by person"
    return row


class Ledger:
    """What a silo has released and what it may still release; open one with a class method.

    Threads may share it; processes each open the file for themselves.
    """

    def __init__(self, store: Store | MemoryStore) -> None:
        self._store = store

    @property
    def silo(self) -> str | None:
        """The silo that it belongs to; None until the first release where it was made without a name."""
        return self._store.owner()[0]

    @property
    def data_set(self) -> str | None:
        """The data set that it belongs to; None until a release of one that has a name."""
        return self._store.owner()[1]

    @property
    def for_experiments(self) -> bool:
        """Whether it may book what is not private: made for experiments, or in memory alone."""
        return self._store.is_for_experiments()

    @classmethod
    def create(
        cls,
        path: str | os.PathLike[str],
        *,
        epsilon: float,
        delta: float,
        silo: str | None = None,
        data_set: str | None = None,
        for_experiments: bool = False,
    ) -> Self:
        """Return a new ledger with a cap, in a new file of mode 0600; never overwrites.

        Only one that is ``for_experiments`` takes releases whose noise is seeded, and says so ever after.
        """
        if silo is not None:
            _check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        store = Store.create(
            Path(path), silo, _checked_cap(epsilon, delta), data_set, for_experiments=for_experiments
        )
        return cls(store)

    @classmethod
    def open(cls, path: str | os.PathLike[str]) -> Self:
        """Return the ledger in a file; one that is missing or not sound is refused, never made."""
        return cls(Store.open(Path(path)))

    @classmethod
    def look(cls, path: str | os.PathLike[str]) -> Self:
        """Return the ledger in a file, to be read only: it may be on a disk or of a mode without writing.

        Nothing is written, not even a journal, and nothing can be released.
        """
        return cls(Store.look(Path(path)))

    @classmethod
    def in_memory(
        cls, epsilon: float, delta: float, *, silo: str | None = None, data_set: str | None = None
    ) -> Self:
        """Return a ledger without a file, for a single fit: it forgets when the process ends."""
        if silo is not None:
            _check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        return cls(MemoryStore(silo, _checked_cap(epsilon, delta), data_set))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file; closing twice is harmless."""
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

        Parameters
        ----------
        key : str
            Names the question. The same key always gets the same bytes, at no charge; the same
            key with another purpose, study or mu is a different question and is refused.
        purpose, study : str
            For the operator: what left, and for which study.
        mu : float
            Gaussian-DP parameter of the release, 1/(noise multiplier): finite and positive.
        slack_delta : float
            Probability that the release is not μ-GDP.
        study_mu : float, optional
            What all releases of this study may cost together; a coordinator that asks for more than
            was agreed is refused, whatever the cap would allow.
        data : DataVersion, optional
            The rows that it is made of. The first release of a version says which rows that is, and from
            then on the ledger belongs to their silo and data set; other rows, or another's, are refused.
        payload : callable
            Draws the noise and returns the noised bytes. Called at most once, after the cap allows
            it and inside the transaction, so prepare what is slow beforehand. If it raises, nothing
            is charged.

        Raises
        ------
        BudgetError
            The release would overspend the cap; nothing was charged and nothing left.
        LedgerError
            The file cannot be written or does not hold what it held; nothing left.
        """
        for name, text in (("key", key), ("purpose", purpose), ("study", study)):
            _check_text(name, text)
        mu, slack_delta = _checked_charge(mu, slack_delta)
        with self._store.transaction("IMMEDIATE"):
            if data is not None:
                self._identify(data)
                self._take_note_of(data)
            kept = self._kept(key, purpose, study, mu)
            if kept is not None:
                return kept
            account = self._account()
            if not account.charged(mu, slack_delta).holds:
                raise BudgetError(_overspending(account, self.silo, mu, slack_delta))
            self._check_study(study, mu, study_mu)
            sent = payload()
            if not isinstance(sent, bytes):
                raise TypeError(f"a payload must return bytes, got {type(sent).__name__}")
            digest = hashlib.sha256(sent).hexdigest()
            self._store.append("release", key, purpose, study, mu, slack_delta, digest, sent)
        return sent

    def has(self, key: str) -> bool:
        """Return whether the answer to a question is kept here."""
        return self._store.kept(key) is not None

    def booked_as(self, data: DataVersion) -> BookedAs:
        """Return what releases of these rows are booked as; refuse others than those of their version.

        Writes nothing, so that it can be asked before anybody is contacted.
        """
        with self._store.transaction("DEFERRED"):
            return self._identify(data)

    def check_owner(self, silo: str, data_set: str | None) -> None:
        """Refuse a silo, or a data set, that is not the ledger's own."""
        owner, owned = self._store.owner()
        if owner not in (None, silo):
            raise InputError(
                f"ledger {self._store.label} must belong to silo {silo!r}, got that of {owner!r}; give "
                "each silo its own, or name the silo as its ledger does"
            )
        if owned not in (None, data_set):
            named = "data without a name" if data_set is None else f"the data set {data_set!r}"
            raise InputError(
                f"ledger {self._store.label} must belong to {named} of silo {silo!r}, got that of "
                f"data set {owned!r}; give each its own ledger, or name the data as their ledger does"
            )

    def check_affordable(self, *, study: str, mu: float, slack_delta: float = 0.0) -> None:
        """Refuse a study whose releases together would overspend, before the first is charged.

        A study that has releases here already is let through: what it asks again is free, and
        `release` looks at the rest one by one.
        """
        with self._store.transaction("DEFERRED"):
            known = self._store.charges(study)
            account = self._account()
        if not known and not account.charged(mu, slack_delta).holds:
            raise BudgetError(_overspending(account, self.silo, mu, slack_delta))

    @property
    def cap(self) -> tuple[float, float]:
        """The (ε, δ) that all releases together stay within."""
        with self._store.transaction("DEFERRED"):
            account = self._account()
        return account.epsilon, account.delta

    def spent(self) -> Spent:
        """Return what all releases so far cost together, at the cap's delta."""
        with self._store.transaction("DEFERRED"):
            account, n_releases = self._account(), self._store.last("release")[0]
        return Spent(epsilon=account.spent, mu=account.mu, slack_delta=account.slack, n_releases=n_releases)

    def spent_on(self, study: str, *, key: str = "") -> Spent:
        """Return what the releases of one study so far cost together, at the cap's delta.

        ``key``: only of those whose keys begin so.
        """
        with self._store.transaction("DEFERRED"):
            charges = self._store.charges(study, key=key)
            account = replace(
                self._account(),
                mu=math.hypot(*(mu for mu, _ in charges)),
                slack=math.fsum(slack for _, slack in charges),
            )
        return Spent(epsilon=account.spent, mu=account.mu, slack_delta=account.slack, n_releases=len(charges))

    def left(self) -> float:
        """Return the largest epsilon, at the cap's delta, of one further release that fits."""
        with self._store.transaction("DEFERRED"):
            return self._account().left

    def what_if(self, epsilon: float) -> Forecast:
        """Return what one release of (epsilon, the cap's delta) would do; charges nothing."""
        with self._store.transaction("DEFERRED"):
            account = self._account()
        after = account.charged(mu_of(*_checked_cap(epsilon, account.delta)))
        return Forecast(fits=after.holds, spent=after.spent, left=after.left)

    def entries(self) -> list[Entry]:
        """Return every charge in the order made, with epsilons at the present cap's delta."""
        with self._store.transaction("DEFERRED"):
            cap = self.cap_changes()[-1]
            rows = self._store.releases()
        entries = []
        account = _Account(epsilon=cap.epsilon, delta=cap.delta)
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
        rows = self._store.caps()
        return [
            CapChange(seq=s, time=datetime.fromisoformat(t), epsilon=e, delta=d, reason=r)
            for s, t, e, d, r in rows
        ]

    def set_cap(self, epsilon: float, delta: float, *, reason: str = "") -> None:
        """Set another cap, on record: an operator's act, never a study's.

        A cap below what is spent is allowed: nothing is left then. After a rise the guarantee
        is that of the higher cap.
        """
        epsilon, delta = _checked_cap(epsilon, delta)
        if reason:
            _check_text("reason", reason)
        with self._store.transaction("IMMEDIATE"):
            self._store.append("cap", epsilon, delta, reason)

    def statement(self) -> dict[str, Any]:
        """Return all but the payloads, ready for JSON; an infinite epsilon is None.

        `seal` fingerprints the history: a later statement's entries must contain the row it names.
        """
        with self._store.transaction("DEFERRED"):
            seq, seal = self._store.last("release")
            caps, entries = self.cap_changes(), self.entries()
            spent, left = self.spent(), self.left()
            silo, data_set = self._store.owner()
            versions, for_experiments = self._store.versions(), self.for_experiments
        return {
            "fedpower": importlib.metadata.version("fedpower"),
            "schema": SCHEMA_VERSION,
            "silo": silo,
            "data_set": data_set,
            "data_versions": versions,
            "for_experiments": for_experiments,
            "unit": _unit_of([entry.purpose for entry in entries]),
            "cap": {"epsilon": caps[-1].epsilon, "delta": caps[-1].delta},
            "cap_changes": [jsonable(asdict(cap)) for cap in caps],
            "spent": jsonable(asdict(spent)),
            "left": left,
            "entries": [jsonable(asdict(entry)) for entry in entries],
            "seal": {"seq": seq, "sha256": seal},
        }

    def _identify(self, data: DataVersion) -> BookedAs:
        """Return what these rows are booked as; call it inside a transaction."""
        self.check_owner(data.silo, data.data_set)
        known = self._store.fingerprint_of(data.version, data.columns)
        if known not in (None, data.fingerprint):
            raise LedgerError(
                "the stored data of silo {silo!r} must be those that its ledger knows as version "
                "{version!r}, got others; declare a new version with {declared_by}, which is public "
                "and a new charge, or put the old data back as they were (nothing left the silo)",
                silo=data.silo,
                version=data.version,
                declared_by=data.declared_by,
            )
        name = f"version {data.version}" + (f", read as {data.reading[:16]}" * bool(data.reading))
        return BookedAs(key=name, name=name)

    def _take_note_of(self, data: DataVersion) -> None:
        """Remember whose rows these are and which: those of their version from now on."""
        owner, owned = self._store.owner()
        if owner is None or (owned is None and data.data_set is not None):
            self._store.belong_to(data.silo, data.data_set)
        if self._store.fingerprint_of(data.version, data.columns) is None:
            self._store.append("version", data.version, data.columns, data.fingerprint)

    def _check_study(self, study: str, mu: float, most: float | None) -> None:
        """Refuse a release beyond what its study agreed on."""
        if most is None:
            return
        spent = self._store.charges(study)
        if math.hypot(mu, *(each for each, _ in spent)) > most * (1 + ROUNDING):
            raise BudgetError(
                f"a study must keep to the epsilon it agreed on, but study {study[:12]} asks for more "
                f"than its {len(spent)} releases; ask the same questions again, which is free, or "
                "agree on a new study"
            )

    def _account(self) -> _Account:
        """Return the present cap and all charges; call it inside a transaction."""
        _, _, epsilon, delta, _ = self._store.caps()[-1]
        charges = self._store.charges()
        mu = math.hypot(*(charge[0] for charge in charges))
        slack = math.fsum(charge[1] for charge in charges)
        return _Account(epsilon=epsilon, delta=delta, mu=mu, slack=slack)

    def _kept(self, key: str, purpose: str, study: str, mu: float) -> bytes | None:
        """Return the bytes kept for a key, None when there are none."""
        row = self._store.kept(key)
        if row is None:
            return None
        kept_purpose, kept_study, kept_mu, digest, sent = row
        if (purpose, study) != (kept_purpose, kept_study) or not math.isclose(mu, kept_mu):
            raise LedgerError(
                f"a key must name one release but {key!r} was already used with another purpose, "
                "study or mu; ask under a new key"
            )
        if not isinstance(sent, bytes) or hashlib.sha256(sent).hexdigest() != digest:
            raise LedgerError(
                f"release {key!r} must leave as it was first sent but its bytes in ledger "
                f"{self._store.label} have changed; put back the file as it was last written"
            )
        return sent
