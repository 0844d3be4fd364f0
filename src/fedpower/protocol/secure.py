"""Secure sums: identities, signed keys, masks that cancel, and the channel by which a masked answer leaves.

Protocol: docs/officer/secure-aggregation.md. Every primitive is from the package ``cryptography``.
"""

import functools
import hashlib
import os
import stat
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import msgspec
import numpy as np
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20
from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand
from numpy.typing import NDArray

from fedpower.exceptions import InputError, ProtocolError
from fedpower.protocol.messages import AskQuery, Member, OpenSession, Session, SessionKey, Words
from fedpower.protocol.study import Study

KEY_BYTES, SIGNATURE_BYTES = 32, 64
_CHUNK_WORDS = 2**15
"""Words masked at a time, for all pairs: 256 KiB stay in a core's cache."""


# --- keys -------------------------------------------------------------------------------------------


def new_exchange_key() -> X25519PrivateKey:
    """Return a new X25519 key from the operating system's generator."""
    return X25519PrivateKey.generate()


def exchanged(own: X25519PrivateKey, other: bytes) -> bytes:
    """Return the 32 bytes that X25519 gives only to the two holders of the keys."""
    try:
        return own.exchange(X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError("a key of a secure sum must be a point that gives a secret") from None


def gives_secret(public: bytes) -> bool:
    """Return whether an X25519 public key gives a secret to those who use it; a few points give none."""
    try:
        exchanged(new_exchange_key(), public)
    except ProtocolError:
        return False
    return True


class Identity:
    """A silo's signing key; make one with :meth:`new`, or read it with :meth:`load`."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key

    @classmethod
    def new(cls) -> Self:
        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the identity in a PEM file; one that others could read is refused."""
        place = Path(path)
        try:
            mode = stat.S_IMODE(place.stat().st_mode)
            text = place.read_bytes()
        except OSError as error:
            raise InputError(
                f"an identity must be a readable file, got {place} ({error.strerror}); make one with "
                "`fedpower node key`"
            ) from None
        try:
            key = serialization.load_pem_private_key(text, password=None)
        except (ValueError, TypeError, UnsupportedAlgorithm):
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise InputError(f"identity {place} must hold an Ed25519 private key in PEM, got something else")
        if os.name == "posix" and mode & 0o077:
            raise InputError(
                f"identity {place} must be private to its owner but has mode {mode:04o}; run "
                f"`chmod 600 {place}`, or make a new identity if others may have read it"
            )
        return cls(key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private key to a new file of mode 0600; never overwrites."""
        place, pem = Path(path), serialization
        try:
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(f"a new identity must be a new file, but {place} exists") from None
        with os.fdopen(handle, "wb") as stream:  # not encrypted: the file's mode protects it
            how = pem.Encoding.PEM, pem.PrivateFormat.PKCS8, pem.NoEncryption()
            stream.write(self._key.private_bytes(*how))

    @property
    def public(self) -> str:
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> bytes:
        return self._key.sign(content)

    def __repr__(self) -> str:
        return f"Identity({self.public[:16]}…)"  # never the private key


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether ``signature`` is the Ed25519 signature of ``content`` under a public key."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


# --- sessions: who takes part in the sums of one attempt, and with which keys --------------------------

COMPLETE_UP_TO = 100
"""Silos of a session in which every pair shares a mask."""

_TRIES = 2**40  # sessions that an attacker tries out to get a bad ring
_FAILURE = 2**40  # one over the probability that one of them is bad
_COLLUDING = 3  # one in so many


def n_neighbours(n_silos: int, colluders: int) -> int:
    """Return with how many others each silo of a session shares masks."""
    if n_silos <= COMPLETE_UP_TO or _COLLUDING * colluders > n_silos:
        return n_silos - 1
    k = 2 * (colluders // 2 + 1)
    while 2 * _COLLUDING**k < n_silos**2 * _TRIES * _FAILURE:
        k += 2
    return min(k, n_silos - 1)


def signed_content(member: Member, study: str, run: str, attempt: int) -> bytes:
    """Return what a silo signs when a session opens: all of a member but the signature."""
    facts = study, run, attempt, member.silo, member.n_rows, member.key
    return msgspec.msgpack.encode(("fedpower member 2", *facts))


def is_member(member: Member, public: str, study: str, run: str, attempt: int) -> bool:
    """Return whether the holder of the identity ``public`` signed a member's key and rows."""
    content = signed_content(member, study, run, attempt)
    return len(member.key) == KEY_BYTES and is_signed(bytes.fromhex(public), member.signature, content)


@functools.lru_cache(maxsize=8)
def partners(session: Session, count: int) -> tuple[tuple[int, ...], ...]:
    """Return for each member the places of the ``count`` others with whom it shares masks."""
    m = len(session.members)
    if count == m - 1:
        return tuple(tuple(other for other in range(m) if other != own) for own in range(m))
    # The members in an order that no party can choose: that of hashes of the whole session.
    salt = b"fedpower ring 1" + session.digest
    by_hash = [hashlib.sha256(salt + member.key).digest() for member in session.members]
    ring = sorted(range(m), key=by_hash.__getitem__)
    near = {
        own: tuple(ring[(place + step) % m] for step in range(-(count // 2), count // 2 + 1) if step)
        for place, own in enumerate(ring)
    }
    return tuple(near[own] for own in range(m))


@functools.lru_cache(maxsize=8)  # once for all silos of a process, and for all sums of a session
def check_session(session: Session, study: Study, run: str) -> None:
    """Refuse a session that a silo of ``study`` must not take part in."""
    identities = dict(study.identities)
    names = [member.silo for member in session.members]
    if session.study != study.digest or session.run != run:
        raise ProtocolError("a session must name its own study and run, got another")
    if names != [name for name in identities if name in set(names)]:
        raise ProtocolError("a session must name silos of the study, each once and in the study's order")
    if len(names) < (least := study.min_silos):
        raise ProtocolError(f"a session must have at least {least} silos, got {len(names)}")
    if len({member.key for member in session.members}) < len(names):
        raise ProtocolError("every silo of a session must have its own key, got one twice")
    for member in session.members:
        signed = is_member(member, identities[member.silo], session.study, run, session.attempt)
        if member.n_rows < 1 or not signed:
            raise ProtocolError(
                f"every key must be signed by its silo, but the key of {member.silo!r} is not"
            )


# --- masks ------------------------------------------------------------------------------------------


class MaskChain:
    """The masks of one silo in a session: each sum has its own keys, and those of earlier sums are gone."""

    def __init__(self, silo: str, session: Session, secret: X25519PrivateKey, colluders: int) -> None:
        names = [member.silo for member in session.members]
        own = names.index(silo)
        self._links: list[tuple[bool, bytes]] = []
        """By partner: whether this silo adds the mask or subtracts it, and the key that both hold."""
        for other in partners(session, n_neighbours(len(names), colluders))[own]:
            pair = (silo, names[other]) if own < other else (names[other], silo)
            info = msgspec.msgpack.encode(("fedpower sums 2", session.study, session.run, *pair))
            shared = exchanged(secret, session.members[other].key)
            self._links.append((own < other, _derived(shared, info, salt=session.digest)))

    def masked(self, words: Words, *, question: bytes) -> Words:
        """Return ``words`` with the masks of the present sum, which cancel for the same question."""
        streams = []
        for adds, link in self._links:
            cipher = ChaCha20(_derived(link, b"fedpower sum 1" + question), bytes(16))
            streams.append((np.add if adds else np.subtract, Cipher(cipher, mode=None).encryptor()))
        out = np.array(words, dtype="<u8")
        zeros = memoryview(bytes(8 * min(_CHUNK_WORDS, out.size)))
        buffer = np.empty(min(_CHUNK_WORDS, out.size), dtype="<u8")
        for start in range(0, out.size, _CHUNK_WORDS):
            part = out[start : start + _CHUNK_WORDS]
            mask = buffer[: part.size]
            for combine, stream in streams:
                stream.update_into(zeros[: 8 * part.size], mask.view(np.uint8).data)
                combine(part, mask, out=part)
        return out

    def advance(self) -> None:
        """Go on to the next sum; the keys of the one before cannot be computed any more."""
        self._links = [(adds, _derived(link, b"fedpower next 1")) for adds, link in self._links]


def _derived(secret: bytes, info: bytes, *, salt: bytes | None = None) -> bytes:
    """Return 32 bytes for one purpose: HKDF-SHA256 of a shared secret, or its second half of a key."""
    if salt is None:
        return bytes(HKDFExpand(hashes.SHA256(), KEY_BYTES, info).derive(secret))
    return bytes(HKDF(hashes.SHA256(), KEY_BYTES, salt, info).derive(secret))


def total(parts: Iterable[Words]) -> NDArray[np.int64]:
    """Return the sum modulo 2⁶⁴, read as integers from −2⁶³ to 2⁶³ − 1."""
    first, *others = parts
    out = np.array(first, dtype="<u8")
    for part in others:
        out += part
    return out.view("<i8").astype(np.int64)


# --- at a silo --------------------------------------------------------------------------------------


class KeyGoneError(Exception):
    """There are no bytes for a session in the ledger, and no key to make them with."""


@dataclass(frozen=True, slots=True)
class Masked:
    """The silo adds its share of the noise and masks that cancel in the sum, in the ring of 2⁶⁴."""

    session: Session
    question: bytes
    chain: MaskChain | None

    @property
    def key(self) -> bytes:
        return self.session.digest + self.question

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(self.session.sizes.values())

    @property
    def purpose(self) -> str:
        return f", share of a secure sum over {len(self.session.members)} silos"

    def seal(self, words: Words) -> Words:
        """Return the words under the masks of this question, which are used once."""
        if self.chain is None:
            raise KeyGoneError
        return self.chain.masked(words, question=self.question)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    run: str
    number: int
    reply: SessionKey
    secret: "X25519PrivateKey | None"
    session: bytes | None = None
    chain: MaskChain | None = None
    asked: dict[int, bytes] = field(default_factory=dict)
    done: int = 0


class SiloSessions:
    """A silo's side of secure sums: one attempt after another, its key, and what was asked with it."""

    def __init__(self, name: str, study: Study, n_rows: int, identity: Identity) -> None:
        if dict(study.identities).get(name) != identity.public:
            raise InputError(f"silo {name!r} must have the identity in the study, got another")
        self._name, self._study, self._n_rows, self._identity = name, study, n_rows, identity
        self.attempt: _Attempt | None = None
        self.lock = threading.Lock()

    def is_new(self, call: OpenSession, run: str) -> bool:
        """Return whether a call is for another attempt than the present one."""
        if call.attempt < 0:
            raise ProtocolError("attempts must be numbered 0, 1, …, got a negative number")
        kept = self.attempt
        return kept is None or (kept.run, kept.number) != (run, call.attempt)

    def open(self, call: OpenSession, run: str, *, charged: int) -> SessionKey:
        """Return this silo's signed key for an attempt, made now; asked again, the same."""
        if self.is_new(call, run):
            secret = new_exchange_key()
            key = secret.public_key().public_bytes_raw()
            member = Member(silo=self._name, n_rows=self._n_rows, key=key, signature=b"")
            signature = self._identity.sign(signed_content(member, self._study.digest, run, call.attempt))
            reply = SessionKey(n_rows=self._n_rows, key=key, signature=signature, charged=charged)
            self.attempt = _Attempt(run=run, number=call.attempt, reply=reply, secret=secret)
        assert self.attempt is not None
        if self.attempt.secret is None:
            raise ProtocolError("a key must not be used twice, but an upload already used this attempt's key")
        return self.attempt.reply

    def check(self, session: Session, run: str) -> None:
        """Refuse a session that this silo must not take part in."""
        check_session(session, self._study, run)
        if session.sizes.get(self._name) != self._n_rows:
            raise ProtocolError(f"a session must list silo {self._name!r} with its number of rows")

    def channel(self, ask: AskQuery) -> Masked:
        """Return the channel of a question; from now on the key in its session is bound to that session."""
        assert ask.session is not None
        # Silos that are asked for different things share no mask.
        question = hashlib.sha256(msgspec.msgpack.encode((ask.index, ask.label, ask.public))).digest()
        session, attempt = ask.session, self.attempt
        own = next(member for member in session.members if member.silo == self._name)
        if attempt is None or attempt.reply.key != own.key:
            return Masked(session, question, None)
        if attempt.session not in (None, session.digest):
            raise ProtocolError("a key must be in one session only, but this silo got a second one with it")
        attempt.session = session.digest
        if ask.index > attempt.done:
            raise ProtocolError(
                f"secure sums must follow the study's order, but sum {attempt.done + 1} of "
                f"{len(self._study.queries)} comes before sum {ask.index + 1}"
            )
        if attempt.asked.setdefault(ask.index, question) != question:
            raise ProtocolError(
                "a secure sum must occur once in a session, got another question for it before"
            )
        if attempt.chain is None and attempt.secret is not None:
            attempt.chain = MaskChain(self._name, session, attempt.secret, self._study.colluders)
            attempt.secret = None
        return Masked(session, question, attempt.chain if attempt.done == ask.index else None)

    def advance(self, channel: Masked) -> None:
        """Go on to the next sum, if the masks of this one were just used."""
        attempt = self.attempt
        if attempt is None or attempt.session != channel.session.digest or channel.chain is None:
            return
        attempt.done += 1
        channel.chain.advance()
        if attempt.done == len(self._study.queries):
            attempt.chain = None
