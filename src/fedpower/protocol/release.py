"""The one function through which a number leaves a private silo, and the two channels it leaves by."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.budget import Budget
from fedpower.privacy.ledger import BY_EDGE, BY_PERSON, DataVersion, Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.privacy.sensitivity import Noise
from fedpower.protocol.query import Query, Rows
from fedpower.protocol.secure import Masked
from fedpower.protocol.study import Study
from fedpower.sums.survey import Survey

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True)
class Plain:
    """The silo adds all of the noise; the coordinator reads its answer."""

    n_rows: int
    key: bytes = b""
    purpose: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        return (self.n_rows,)

    def seal(self, words: Words) -> Words:
        """Return the words."""
        return words


Channel = Plain | Masked
"""How an answer leaves: by itself, or under masks as a part of a sum over a session."""


@dataclass(frozen=True, slots=True)
class Terms:
    """Under which terms, and of which rows, a silo releases."""

    study: Study
    budget: Budget
    data: DataVersion | None
    version: str
    """The ledger's key for the version of the rows."""
    recorded_as: str
    """The ledger's name for this study on this version: another version is another release."""

    @classmethod
    def of(cls, study: Study, budget: Budget, ledger: Ledger, data: DataVersion | None) -> "Terms":
        """Return the terms of a silo whose ledger knows these rows."""
        if data is None:  # the ledger lives no longer than these rows
            return cls(study, budget, None, "", f"{study.ledger_name}/this fit")
        ledger.check_rows(data)
        return cls(study, budget, data, data.name, f"{study.ledger_name}/{data.name}")

    @property
    def study_mu(self) -> float:
        return self.budget.study_mu * math.sqrt(self.study.attempts)

    def key(self, query: Query, channel: Channel) -> str:
        """Return the identity of a question: equal questions get the stored answer."""
        digest = hashlib.sha256()
        parts = (self.version.encode(), self.study.ledger_name.encode(), channel.key, query.public)
        for part in (query.label.encode(), *parts):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{query.label}:{digest.hexdigest()}"

    def purpose(self, query: Query, channel: Channel) -> str:
        """Return what a ledger says that a release is, and what it protects where that is no row."""
        if self.study.network == "edge":
            return f"adjacency{channel.purpose}{BY_EDGE}"
        return f"{query.label}{channel.purpose}{BY_PERSON if self.study.unit else ''}"


def noise_of(query: Query, budget: Budget, sizes: tuple[int, ...]) -> Noise:
    """Return what a silo adds to the answer to a query; what is refused are public facts."""
    try:
        return budget.noise(query.label, query.sensitivity, sizes)
    except InputError as error:  # the coordinator may read it
        raise ProtocolError(str(error)) from None


Answering = Callable[[Query], NDArray[np.int64]]
"""Returns the noised answer to a query."""


def release(
    query: Query,
    rows: Rows | Survey,
    *,
    terms: Terms,
    ledger: Ledger,
    noise: NoiseSource,
    channel: Channel,
    run: str = "",
    asking: Callable[[Answering], object] | None = None,
    times: int = 1,
) -> tuple[NDArray[np.int64], str]:
    """Return a noised answer and the run that it was made for: the only way for a number to leave.

    The answer is charged and stored before it leaves; the same question gets the stored one. ``asking``
    asks for several answers, each in the light of those before: ``times`` of them are charged together.
    """
    price, key = terms.budget.price(query.label), terms.key(query, channel)

    def answer(asked: Query) -> NDArray[np.int64]:
        added = noise_of(asked, terms.budget, channel.sizes)
        exact = asked.evaluate(rows, added.exponents)
        if exact.shape != (asked.sensitivity.size,) or exact.dtype != np.int64:
            raise InputError(f"the answer to {asked.label!r} must have the agreed length, got another")
        noised = added.bounded(exact, rows.n_rows) + added.draw(noise)
        parts.append(channel.seal(noised.view(np.uint64)).astype("<u8", copy=False).tobytes())
        return noised

    def make() -> bytes:
        parts.clear()
        (asking or (lambda answering: answering(query)))(answer)
        if len(parts) != times:
            raise InputError(f"{times} answers must be charged as so many, got {len(parts)}")
        name = run.encode()
        return b"".join([len(name).to_bytes(2, "little"), name, *parts])

    parts: list[bytes] = []
    # Before the ledger's transaction, for which others may wait; it leaves only after it. Several answers
    # are made within it, so that nothing is computed for more of them than the ledger pays for.
    made = None if asking is not None or ledger.has(key) else make()
    raw = ledger.release(
        key=key,
        purpose=terms.purpose(query, channel) + (f", {times} times" if times > 1 else ""),
        study=terms.recorded_as,
        data=terms.data,
        mu=price.mu * math.sqrt(times),
        slack_delta=price.slack_delta * times,
        study_mu=terms.study_mu,
        payload=lambda: make() if made is None else made,
    )
    length = int.from_bytes(raw[:2], "little")
    words = np.frombuffer(raw, dtype="<i8", offset=2 + length)
    return words.astype(np.int64, copy=False), raw[2 : 2 + length].decode()
