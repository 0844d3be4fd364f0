"""The ledger of one silo: the only door anything leaves by (docs/privacy.md, rules 1 and 2).

A release is charged and its bytes are kept in **one** durable transaction before they are handed
over. Killed before the commit, nothing was charged and nothing left; killed after it, the same key
gets the same bytes again. Fresh noise for an old question cannot happen.

Composition across runs, modes and studies is exact in the Gaussian-DP sense: releases of μ_j are
together √Σμ_j²-GDP, also when each is chosen after seeing the ones before (`ledger_account` says
by which theorem, and of what the cap is a guarantee).
"""

import hashlib
import importlib.metadata
import math
import os
import re
from collections.abc import Callable
from dataclasses import asdict, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from fedpower.errors import BudgetError, InputError, LedgerError
from fedpower.privacy.accounting import mu_of
from fedpower.privacy.data_version import DEFAULT_VERSION, BookedAs, DataVersion, check_label
from fedpower.privacy.ledger_account import (
    ROUNDING,
    Account,
    CapChange,
    Entry,
    Forecast,
    Spent,
    check_text,
    checked_cap,
    checked_charge,
    jsonable,
    overspending,
)
from fedpower.privacy.ledger_schema import SCHEMA_VERSION
from fedpower.privacy.ledger_store import Store

__all__ = ["CapChange", "Entry", "Forecast", "Ledger", "Spent"]

BOOKED_BY_ROWS = re.compile(r"[0-9a-f]{64}/([0-9a-f]{16})")
"""How releases were booked before data had versions: a study, and digits of the rows' fingerprint."""


class Ledger:
    """What a silo has released and what it may still release; open one with a class method.

    Threads may share it; processes each open the file for themselves.
    """

    def __init__(self, store: Store) -> None:
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
            check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        store = Store.create(
            Path(path),
            silo,
            checked_cap(epsilon, delta),
            data_set,
            for_experiments=for_experiments,
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
        cls,
        epsilon: float,
        delta: float,
        *,
        silo: str | None = None,
        data_set: str | None = None,
    ) -> Self:
        """Return a ledger without a file, for a single fit: it forgets when the process ends."""
        if silo is not None:
            check_text("silo", silo)
        if data_set is not None:
            check_label("the name of a data set", data_set)
        return cls(Store.in_memory(silo, checked_cap(epsilon, delta), data_set))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
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
            check_text(name, text)
        mu, slack_delta = checked_charge(mu, slack_delta)
        with self._store.transaction("IMMEDIATE"):
            if data is not None:
                self._identify(data)
                self._take_note_of(data)
            kept = self._kept(key, purpose, study, mu)
            if kept is not None:
                return kept
            account = self._account()
            if not account.charged(mu, slack_delta).holds:
                raise BudgetError(overspending(account, self.silo, mu, slack_delta))
            self._check_study(study, mu, study_mu)
            sent = payload()
            if not isinstance(sent, bytes):
                raise TypeError(f"a payload must return bytes, got {type(sent).__name__}")
            digest = hashlib.sha256(sent).hexdigest()
            self._store.append("release", key, purpose, study, mu, slack_delta, digest, sent)
        return sent

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
            known = self._store.query("SELECT 1 FROM release WHERE study = ? LIMIT 1", study)
            account = self._account()
        if not known and not account.charged(mu, slack_delta).holds:
            raise BudgetError(overspending(account, self.silo, mu, slack_delta))

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
        return Spent(
            epsilon=account.spent, mu=account.mu, slack_delta=account.slack, n_releases=n_releases
        )

    def spent_on(self, study: str) -> Spent:
        """Return what the releases of one study so far cost together, at the cap's delta."""
        with self._store.transaction("DEFERRED"):
            charges = self._store.query(
                "SELECT mu, slack_delta FROM release WHERE study = ? ORDER BY seq", study
            )
            account = replace(
                self._account(),
                mu=math.hypot(*(mu for mu, _ in charges)),
                slack=math.fsum(slack for _, slack in charges),
            )
        return Spent(
            epsilon=account.spent, mu=account.mu, slack_delta=account.slack, n_releases=len(charges)
        )

    def left(self) -> float:
        """Return the largest epsilon, at the cap's delta, of one further release that fits."""
        with self._store.transaction("DEFERRED"):
            return self._account().left

    def what_if(self, epsilon: float) -> Forecast:
        """Return what one release of (epsilon, the cap's delta) would do; charges nothing."""
        with self._store.transaction("DEFERRED"):
            account = self._account()
        after = account.charged(mu_of(*checked_cap(epsilon, account.delta)))
        return Forecast(fits=after.holds, spent=after.spent, left=after.left)

    def entries(self) -> list[Entry]:
        """Return every charge in the order made, with epsilons at the present cap's delta."""
        with self._store.transaction("DEFERRED"):
            cap = self.cap_changes()[-1]
            rows = self._store.query(
                "SELECT seq, time, key, purpose, study, mu, slack_delta FROM release ORDER BY seq"
            )
        entries = []
        account = Account(epsilon=cap.epsilon, delta=cap.delta)
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
            CapChange(seq=s, time=datetime.fromisoformat(t), epsilon=e, delta=d, reason=r)
            for s, t, e, d, r in rows
        ]

    def set_cap(self, epsilon: float, delta: float, *, reason: str = "") -> None:
        """Set another cap, on record: an operator's act, never a study's.

        A cap below what is spent is allowed: nothing is left then. After a rise the guarantee
        is that of the higher cap.
        """
        epsilon, delta = checked_cap(epsilon, delta)
        if reason:
            check_text("reason", reason)
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
            "unit": "one row of this silo, replace-one neighbours",
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
        known = self._store.query(
            "SELECT fingerprint FROM version WHERE name = ? AND columns = ?",
            data.version,
            data.columns,
        )
        if known and known[0][0] != data.fingerprint:
            raise LedgerError(
                f"the rows of silo {data.silo!r} must be those that its ledger knows as version "
                f"{data.version!r}, got others; declare a new version with {data.declared_by}, which is "
                "public and a new charge, or put the old rows back (nothing left the silo)"
            )
        # What was booked by rows is version 1, and only that: were it found under other versions too,
        # the answer would tell whether the rows are still the same.
        booked = self._booked_by_rows() if data.version == DEFAULT_VERSION else set()
        if data.fingerprint[:16] in booked:
            return BookedAs(key=data.fingerprint, name=data.fingerprint[:16])
        if booked:
            raise LedgerError(
                f"version {DEFAULT_VERSION!r} of the rows of silo {data.silo!r} must be rows and columns "
                "that its ledger booked before data had versions, got others; declare a new version with "
                f"{data.declared_by}, which is public and a new charge, or put the old ones back "
                "(nothing left the silo)"
            )
        name = f"version {data.version}"
        return BookedAs(key=name, name=name)

    def _take_note_of(self, data: DataVersion) -> None:
        """Remember whose rows these are and which: those of their version from now on."""
        owner, owned = self._store.owner()
        if owner is None or (owned is None and data.data_set is not None):
            self._store.query(
                "UPDATE silo SET name = coalesce(name, ?), data_set = coalesce(data_set, ?)",
                data.silo,
                data.data_set,
            )
        known = self._store.query(
            "SELECT 1 FROM version WHERE name = ? AND columns = ?", data.version, data.columns
        )
        if not known:
            self._store.append("version", data.version, data.columns, data.fingerprint)

    def _booked_by_rows(self) -> set[str]:
        """Return the digits of fingerprints under which releases were booked before data had versions."""
        studies = self._store.query("SELECT DISTINCT study FROM release")
        found = (BOOKED_BY_ROWS.fullmatch(study) for (study,) in studies)
        return {each[1] for each in found if each}

    def _check_study(self, study: str, mu: float, most: float | None) -> None:
        """Refuse a release beyond what its study agreed on."""
        if most is None:
            return
        spent = self._store.query("SELECT mu FROM release WHERE study = ?", study)
        if math.hypot(mu, *(each for (each,) in spent)) > most * (1 + ROUNDING):
            raise BudgetError(
                f"a study must keep to the epsilon it agreed on, but study {study[:12]} asks for more "
                f"than its {len(spent)} releases; ask the same questions again, which is free, or "
                "agree on a new study"
            )

    def _account(self) -> Account:
        """Return the present cap and all charges; call it inside a transaction."""
        ((epsilon, delta),) = self._store.query(
            "SELECT epsilon, delta FROM cap ORDER BY seq DESC LIMIT 1"
        )
        charges = self._store.query("SELECT mu, slack_delta FROM release ORDER BY seq")
        mu = math.hypot(*(charge[0] for charge in charges))
        slack = math.fsum(charge[1] for charge in charges)
        return Account(epsilon=epsilon, delta=delta, mu=mu, slack=slack)

    def _kept(self, key: str, purpose: str, study: str, mu: float) -> bytes | None:
        """Return the bytes kept for a key, None when there are none."""
        rows = self._store.query(
            "SELECT purpose, study, mu, sha256, payload FROM release WHERE key = ?", key
        )
        if not rows:
            return None
        ((kept_purpose, kept_study, kept_mu, digest, sent),) = rows
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
