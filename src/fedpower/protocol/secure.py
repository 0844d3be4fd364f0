"""Secure sums at a silo: masks that cancel, the roll that a key is bound to, and the channel they make."""

import hashlib
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.protocol.messages import AskQuery, CallRoll, Present
from fedpower.protocol.roll import (
    Exchanging,
    Identity,
    Place,
    Roll,
    agreed_key,
    checked_roll,
    derived_key,
    exchanged,
    keystream,
    new_exchange_key,
    signed_content,
)
from fedpower.protocol.study import Study

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


Words = NDArray[np.uint64]

_CHUNK_WORDS = 2**15
"""Words masked at a time, for all pairs: 256 KiB stay in a core's cache."""


_PairKeys = list[tuple[bool, bytes]]
"""For each silo that this one shares a mask with: whether this one adds it, and the key."""


def _pair_keys(
    silo: str, roll: Roll, secret: "X25519PrivateKey", exchange: Exchanging = exchanged
) -> _PairKeys:
    """Return the keys that ``silo`` shares with others on the roll."""
    names = [place.silo for place in roll.places]
    own = names.index(silo)
    salt = roll.digest
    about = _framed(b"fedpower sums 1") + _framed(roll.study) + _framed(roll.run)
    this = _framed(silo)
    keys = []
    for other in roll.partners(own):
        that = _framed(names[other])
        info = about + (this + that if own < other else that + this)
        shared = exchange(secret, roll.places[other].key)
        keys.append((own < other, agreed_key(shared, salt=salt, info=info)))
    return keys


def _with_masks(words: Words, keys: _PairKeys) -> Words:
    """Return ``words`` with the ChaCha20 stream of every key added or taken off, modulo 2⁶⁴."""
    streams = [(adds, keystream(key)) for adds, key in keys]
    out = np.array(words, dtype="<u8")
    zeros = memoryview(bytes(8 * min(_CHUNK_WORDS, out.size)))
    buffer = np.empty(min(_CHUNK_WORDS, out.size), dtype="<u8")
    for start in range(0, out.size, _CHUNK_WORDS):
        part = out[start : start + _CHUNK_WORDS]
        mask = buffer[: part.size]
        for adds, fill in streams:
            fill(zeros[: 8 * part.size], mask.view(np.uint8).data)
            (np.add if adds else np.subtract)(part, mask, out=part)
    return out


class MaskChain:
    """The keys of several sums over one roll: each sum has its own, and those that are over are gone."""

    def __init__(
        self, silo: str, roll: Roll, secret: "X25519PrivateKey", exchange: Exchanging = exchanged
    ) -> None:
        self._links = _pair_keys(silo, roll, secret, exchange)

    def masked(self, words: Words, *, question: bytes) -> Words:
        """Return ``words`` with the masks of the present sum, for whoever was asked the same."""
        return _with_masks(
            words, [(adds, derived_key(link, b"fedpower sum 1" + question)) for adds, link in self._links]
        )

    def advance(self) -> None:
        """Go on to the next sum; the keys of the one before cannot be had any more."""
        self._links = [(adds, derived_key(link, b"fedpower next 1")) for adds, link in self._links]


def total(parts: Iterable[Words]) -> NDArray[np.int64]:
    """Return the sum modulo 2⁶⁴, read as integers from −2⁶³ to 2⁶³ − 1."""
    words = list(parts)
    out = np.array(words[0], dtype="<u8")
    for part in words[1:]:
        out += part
    return out.view("<i8").astype(np.int64)


def _framed(part: str | bytes) -> bytes:
    """Return a part of what a pair's key is for; lengths keep parts apart."""
    raw = part.encode() if isinstance(part, str) else part
    return len(raw).to_bytes(4, "little") + raw


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The key of the attempt that this silo is in, and the roll it is bound to once there is one."""

    run: str
    number: int
    present: Present
    secret: "X25519PrivateKey | None"
    roll: bytes | None = None
    chain: MaskChain | None = None
    asked: list[bytes] = field(default_factory=list)
    done: int = 0


class KeyGoneError(Exception):
    """There are no bytes for a roll in the ledger, and no key to make them with."""


@dataclass(frozen=True, slots=True)
class Masked:
    """The silo adds its share of the noise and masks that cancel in the sum, in the ring of 2⁶⁴."""

    roll: Roll
    question: bytes
    chain: MaskChain | None

    @property
    def key(self) -> bytes:
        """The roll: over another one the same question is another release."""
        return self.roll.digest + self.question

    @property
    def sizes(self) -> tuple[int, ...]:
        """Rows of all silos on the roll."""
        return tuple(self.roll.sizes.values())

    @property
    def purpose(self) -> str:
        """With how many others."""
        return f", share of a secure sum over {len(self.roll.places)} silos"

    def seal(self, words: Words) -> Words:
        """Return the words under the masks of this question, which are used once."""
        if self.chain is None:
            raise KeyGoneError
        return self.chain.masked(words, question=self.question)


class SecureSession:
    """One attempt after another at a study's secure sums: keys, the rolls they are on, what was asked."""

    def __init__(
        self, name: str, study: Study, n_rows: int, identity: Identity, exchange: Exchanging = exchanged
    ) -> None:
        if dict(study.identities).get(name) != identity.public:
            raise InputError(
                f"silo {name!r} must hold the identity that the study lists for it, got another; give "
                "the right file, or agree on a study with the new key"
            )
        self._name = name
        self._study = study
        self._n_rows = n_rows
        self._identity = identity
        self._exchange = exchange
        self.attempt: _Attempt | None = None
        self.lock = threading.Lock()

    def is_new(self, call: CallRoll, run: str) -> bool:
        """Return whether a call is for another attempt than the present one; refuse what is no call."""
        if type(call.attempt) is not int or call.attempt < 0 or not isinstance(run, str):
            raise ProtocolError(
                "a roll must be called for attempt 0, 1, … of a run that has a name, got something else; "
                "count the attempts"
            )
        kept = self.attempt
        return kept is None or (kept.run, kept.number) != (run, call.attempt)

    def present(self, call: CallRoll, run: str, *, charged: int) -> Present:
        """Return this silo's place for an attempt, under a key made now; asked again, the same."""
        if self.is_new(call, run):
            secret = new_exchange_key()
            key = secret.public_key().public_bytes_raw()
            content = signed_content(
                study=self._study.digest,
                run=run,
                attempt=call.attempt,
                silo=self._name,
                n_rows=self._n_rows,
                key=key,
            )
            place = Present(
                n_rows=self._n_rows, key=key, signature=self._identity.sign(content), charged=charged
            )
            self.attempt = _Attempt(run=run, number=call.attempt, present=place, secret=secret)
        assert self.attempt is not None
        if self.attempt.secret is None:
            raise ProtocolError(
                "a key must not be used twice, but that of this attempt was used for an upload; "
                "call the roll of a new attempt"
            )
        return self.attempt.present

    def place_on(self, content: bytes, run: str) -> tuple[Roll, Place]:
        """Return the roll that was sent and this silo's place on it; refuse one that must not be."""
        if not isinstance(content, bytes) or not isinstance(run, str):
            Roll.from_bytes(content)  # refuses
        roll = checked_roll(content, self._study, run)
        own = next((place for place in roll.places if place.silo == self._name), None)
        if own is None or own.n_rows != self._n_rows:
            raise ProtocolError(
                f"a roll sent to silo {self._name!r} must have it in its place with its number of rows, "
                "got one that has not; send the roll that was called"
            )
        return roll, own

    def channel(self, ask: AskQuery, roll: Roll, own: Place) -> Masked:
        """Return the channel of a question over a roll; from now on the key on it is bound to that roll."""
        question = _question(ask)
        attempt = self._bound(roll, own, ask.index, question)
        is_next = attempt is not None and attempt.done == ask.index
        return Masked(roll, question, attempt.chain if attempt is not None and is_next else None)

    def advance(self, channel: Masked) -> None:
        """Go on to the next sum, if the masks of this one were just used."""
        attempt = self.attempt
        if attempt is None or attempt.roll != channel.roll.digest or channel.chain is None:
            return
        attempt.done += 1
        channel.chain.advance()
        if attempt.done == len(self._study.queries):
            attempt.chain = None

    def _bound(self, roll: Roll, own: Place, index: int, question: bytes) -> _Attempt | None:
        """Return the attempt of the key on the roll, from now on bound to it; None without its key."""
        attempt = self.attempt
        if attempt is None or attempt.present.key != own.key:
            return None
        if attempt.roll not in (None, roll.digest):
            raise ProtocolError(
                "a key must be on one roll only, but this silo was sent another roll with the same key; "
                "call the roll of a new attempt"
            )
        attempt.roll = roll.digest
        n_queries = len(self._study.queries)
        if index > attempt.done:
            raise ProtocolError(
                f"secure sums must be asked for in the study's order, but sum {attempt.done + 1} of "
                f"{n_queries} comes before sum {index + 1}; ask for that one first"
            )
        if index < len(attempt.asked) and attempt.asked[index] != question:
            raise ProtocolError(
                f"a secure sum must be asked for once over a roll, but sum {index + 1} was asked "
                "for with other numbers before; ask as before, or call the roll of a new attempt"
            )
        if attempt.chain is None and attempt.secret is not None:
            attempt.chain = MaskChain(self._name, roll, attempt.secret, self._exchange)
            attempt.secret = None
        if index == len(attempt.asked):
            attempt.asked.append(question)
        return attempt


def _question(ask: AskQuery) -> bytes:
    """Return the hash of what is asked for; silos that are asked for different things share no mask."""
    digest = hashlib.sha256()
    for part in (b"%d" % ask.index, ask.label.encode(), ask.public):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()
