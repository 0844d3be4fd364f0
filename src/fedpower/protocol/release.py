"""The one function through which a number leaves a private silo, and the two channels it leaves by."""

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, ProtocolError
from fedpower.privacy.ledger import BY_EDGE, BY_PERSON, DataVersion, Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.privacy.sensitivity import Noise
from fedpower.protocol.messages import Words
from fedpower.protocol.query import Query
from fedpower.protocol.secure import Masked
from fedpower.protocol.study import Study
from fedpower.sums.survey import Rows


@dataclass(frozen=True, slots=True)
class Plain:
    """The silo adds all of the noise; the coordinator reads its answer."""

    sizes: tuple[int, ...]
    key: bytes = b""
    purpose: str = ""

    def seal(self, words: Words) -> Words:
        return words


Channel = Plain | Masked
"""How an answer leaves: by itself, or under masks as a part of a sum over a session."""


def recorded_as(study: Study, data: DataVersion | None) -> str:
    """Return the ledger's name for a study on a version of rows: another version is another release."""
    # Without one the ledger lives no longer than the rows.
    return f"{study.ledger_name}/{'this fit' if data is None else data.name}"


def key_of(query: Query, study: Study, data: DataVersion | None, channel: Channel) -> str:
    """Return the identity of a question: equal questions get the stored answer."""
    version = "" if data is None else data.name
    parts = query.label, version, study.ledger_name, channel.key, query.public
    return f"{query.label}:{hashlib.sha256(msgspec.msgpack.encode(parts)).hexdigest()}"


def protects(study: Study) -> str:
    """Return how the purposes of a study's releases end: what they protect where that is no row."""
    return BY_EDGE if study.network == "edge" else BY_PERSON if study.unit else ""


def _purpose(query: Query, study: Study, channel: Channel) -> str:
    """Return what a ledger says that a release is."""
    what = "adjacency" if study.network == "edge" else query.label
    return f"{what}{channel.purpose}{protects(study)}"


def noise_of(query: Query, study: Study, sizes: tuple[int, ...]) -> Noise:
    """Return what a silo adds to the answer to a query; what is refused are public facts."""
    try:
        return study.budget.noise(query.label, query.sensitivity, sizes)
    except InputError as error:  # the coordinator may read it
        raise ProtocolError(str(error)) from None


Answering = Callable[[Query], NDArray[np.int64]]
"""Returns the noised answer to a query."""


def release(
    query: Query,
    rows: Rows,
    *,
    study: Study,
    data: DataVersion | None,
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
    price, key = study.budget.price(query.label), key_of(query, study, data, channel)

    def answer(asked: Query) -> NDArray[np.int64]:
        added = noise_of(asked, study, channel.sizes)
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
            raise InputError(f"a release must have {times} parts, got {len(parts)}")
        name = run.encode()
        return b"".join([len(name).to_bytes(2, "little"), name, *parts])

    parts: list[bytes] = []
    # Before the ledger's transaction, for which others may wait; it leaves only after it. Several answers
    # are made within it, so that nothing is computed for more of them than the ledger pays for.
    made = None if asking is not None or ledger.has(key) else make()
    raw = ledger.release(
        key=key,
        purpose=_purpose(query, study, channel) + (f", {times} times" if times > 1 else ""),
        study=recorded_as(study, data),
        data=data,
        mu=price.mu * math.sqrt(times),
        slack_delta=price.slack_delta * times,
        study_mu=study.budget.study_mu * math.sqrt(study.attempts),
        payload=lambda: make() if made is None else made,
    )
    length = int.from_bytes(raw[:2], "little")
    words = np.frombuffer(raw, dtype="<i8", offset=2 + length)
    return words.astype(np.int64, copy=False), raw[2 : 2 + length].decode()
