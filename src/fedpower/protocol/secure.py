"""Secure sums: identities, the roll that a key is bound to, masks that cancel, the channel they make."""

import functools
import hashlib
import json
import os
import stat
import threading
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError, installing
from fedpower.protocol.messages import AskQuery, CallRoll, Present
from fedpower.protocol.study import Study

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


KEY_BYTES = 32
SIGNATURE_BYTES = 64


def require_cryptography() -> None:
    """Refuse in one sentence where the package is not installed."""
    try:
        import cryptography  # noqa: F401, PLC0415
    except ImportError:
        raise InputError(
            "a secure sum must have the package cryptography, got none installed; run " + installing("secure")
        ) from None


@functools.cache
def _primitives() -> Any:
    """Return what is used once for every pair of a roll: an import within a function takes as long."""
    from cryptography.hazmat.primitives import hashes  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers import Cipher  # noqa: PLC0415
    from cryptography.hazmat.primitives.ciphers.algorithms import ChaCha20  # noqa: PLC0415
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF, HKDFExpand  # noqa: PLC0415

    return SimpleNamespace(
        sha256=hashes.SHA256(),
        X25519PublicKey=X25519PublicKey,
        Cipher=Cipher,
        ChaCha20=ChaCha20,
        HKDF=HKDF,
        HKDFExpand=HKDFExpand,
    )


def new_exchange_key() -> "X25519PrivateKey":
    """Return a fresh X25519 key from the operating system's generator."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey  # noqa: PLC0415

    return X25519PrivateKey.generate()


def exchanged(own: "X25519PrivateKey", other: bytes) -> bytes:
    """Return the 32 bytes that X25519 gives to both holders of the keys and to nobody else."""
    try:
        return own.exchange(_primitives().X25519PublicKey.from_public_bytes(other))
    except ValueError:
        raise ProtocolError(
            "a key on the roll must be a point that gives a secret, got one that gives none; "
            "leave that silo out"
        ) from None


Exchanging = Callable[["X25519PrivateKey", bytes], bytes]
"""`exchanged`, or what gives the same."""


class PairSecrets:
    """`exchanged` for silos of one process: what the first of a pair has computed the second one takes."""

    def __init__(self) -> None:
        self._waiting: dict[frozenset[bytes], bytes] = {}

    def __call__(self, own: "X25519PrivateKey", other: bytes) -> bytes:
        """Return what `exchanged` returns."""
        pair = frozenset((own.public_key().public_bytes_raw(), other))
        secret = self._waiting.pop(pair, None)
        if secret is None:
            secret = self._waiting[pair] = exchanged(own, other)
        return secret


def agreed_key(secret: bytes, *, salt: bytes, info: bytes) -> bytes:
    """Return 32 bytes for one purpose from a secret that two share: HKDF-SHA256."""
    made = _primitives()
    derive = made.HKDF(algorithm=made.sha256, length=KEY_BYTES, salt=salt, info=info).derive
    return bytes(derive(secret))


def derived_key(key: bytes, info: bytes) -> bytes:
    """Return 32 bytes that follow from a key of 32 and do not tell it: HKDF-SHA256's second half."""
    made = _primitives()
    return bytes(made.HKDFExpand(algorithm=made.sha256, length=KEY_BYTES, info=info).derive(key))


def gives_secret(public: bytes) -> bool:
    """Return whether an X25519 public key gives a secret to whoever uses it; a few points give none."""
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey  # noqa: PLC0415

    try:
        new_exchange_key().exchange(X25519PublicKey.from_public_bytes(public))
    except ValueError:
        return False
    return True


def keystream(key: bytes) -> Callable[[memoryview, memoryview], None]:
    """Return what fills its second argument with the next bytes of the ChaCha20 stream of ``key``."""
    made = _primitives()
    stream = made.Cipher(made.ChaCha20(key, bytes(16)), mode=None).encryptor()

    def fill(zeros: memoryview, out: memoryview) -> None:
        stream.update_into(zeros, out)

    return fill


def _new_signing_key() -> "Ed25519PrivateKey":
    """Return a fresh Ed25519 key from the operating system's generator."""
    require_cryptography()
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415

    return Ed25519PrivateKey.generate()


def _signing_key_to_pem(key: "Ed25519PrivateKey") -> bytes:
    """Return a signing key as PKCS #8 PEM, not encrypted: the file's mode protects it."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat  # noqa: PLC0415

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _signing_key_from_pem(text: bytes) -> "Ed25519PrivateKey | None":
    """Return the Ed25519 key in a PEM text; None where there is none that can be read."""
    require_cryptography()
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415
    from cryptography.hazmat.primitives.serialization import load_pem_private_key  # noqa: PLC0415

    try:
        key = load_pem_private_key(text, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        return None
    return key if isinstance(key, Ed25519PrivateKey) else None


def is_signed(public: bytes, signature: bytes, content: bytes) -> bool:
    """Return whether ``signature`` is the Ed25519 signature of ``content`` under a public key."""
    require_cryptography()
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415

    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, content)
    except (InvalidSignature, ValueError):
        return False
    return True


class Identity:
    """A silo's signing key; make one with :meth:`new`, or read it with :meth:`load`."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key

    @classmethod
    def new(cls) -> Self:
        """Return a fresh identity."""
        return cls(_new_signing_key())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Return the identity in a PEM file; one that others could read is refused."""
        place = Path(path)
        try:
            mode = stat.S_IMODE(place.stat().st_mode)
            text = place.read_bytes()
        except OSError as error:
            raise InputError(
                f"an identity must be a file that can be read, got {place} ({error.strerror}); make one "
                "with `fedpower identity new`"
            ) from None
        if os.name == "posix" and mode & 0o077:
            raise InputError(
                f"identity {place} must be private to its owner but has mode {mode:04o}; run "
                f"`chmod 600 {place}`, or make a new one if others may have read it"
            )
        key = _signing_key_from_pem(text)
        if key is None:
            raise InputError(
                f"identity {place} must hold an Ed25519 private key in PEM, got something else; make one "
                "with `fedpower identity new`"
            )
        return cls(key)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the private key to a new file of mode 0600; never overwrites."""
        place = Path(path)
        try:
            handle = os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            raise InputError(
                f"a new identity must go to a new file, but {place} is there; name another one"
            ) from None
        with os.fdopen(handle, "wb") as stream:
            stream.write(_signing_key_to_pem(self._key))

    @property
    def public(self) -> str:
        """The public key as 64 hexadecimal digits: what a study lists."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of ``content``, 64 bytes."""
        return self._key.sign(content)

    def __repr__(self) -> str:
        return f"Identity({self.public[:16]}…)"  # never the private key


FORMAT = "fedpower-roll/2"
"""2: silos add whole numbers. Under another number they would add what cannot be summed with them."""

_SPARSE_FORMAT = "fedpower-roll/3"
"""3: silos share masks with some of the others only, as many as the roll says."""

COMPLETE_UP_TO = 100
"""Silos on a roll whose every pair shares a mask."""

_TRIES = 2**40  # rolls that whoever wants a bad ring tries out
_FAILURE = 2**40  # one over the probability that one of them is bad
_COLLUDING = 3  # one in so many


def n_neighbours(n_silos: int, colluders: int) -> int | None:
    """Return with how many others each silo of a roll shares masks; None where with all."""
    if n_silos <= COMPLETE_UP_TO or _COLLUDING * colluders > n_silos:
        return None
    k = 2 * (colluders // 2 + 1)
    while 2 * _COLLUDING**k < n_silos**2 * _TRIES * _FAILURE:
        k += 2
    return k if k < n_silos - 1 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One silo's place on a roll."""

    silo: str
    n_rows: int
    key: bytes
    signature: bytes

    def is_signed(self, public: str, *, study: str, run: str, attempt: int) -> bool:
        """Return whether the holder of the identity ``public`` signed this place."""
        content = signed_content(
            study=study, run=run, attempt=attempt, silo=self.silo, n_rows=self.n_rows, key=self.key
        )
        return (
            len(self.key) == KEY_BYTES
            and len(self.signature) == SIGNATURE_BYTES
            and is_signed(bytes.fromhex(public), self.signature, content)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Roll:
    """All places of one attempt, in the order in which the study lists its silos."""

    study: str
    run: str
    attempt: int
    places: tuple[Place, ...]
    neighbours: int | None = None
    digest: bytes = field(init=False, repr=False, compare=False)
    """SHA-256 of the roll's bytes."""
    _content: bytes = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        # Once: a roll of hundreds is read, hashed and compared by all of them.
        terms = {
            "format": FORMAT,
            "study": self.study,
            "run": self.run,
            "attempt": self.attempt,
            "places": [[p.silo, p.n_rows, p.key.hex(), p.signature.hex()] for p in self.places],
        }
        if self.neighbours is not None:
            terms |= {"format": _SPARSE_FORMAT, "neighbours": self.neighbours}
        content = _canonical(terms)
        object.__setattr__(self, "_content", content)
        object.__setattr__(self, "digest", hashlib.sha256(content).digest())

    def __hash__(self) -> int:
        return hash(self.digest)

    @classmethod
    def from_bytes(cls, content: bytes) -> Self:
        """Return the roll in ``content``; bytes that `to_bytes` would not write are refused."""
        try:
            roll = cls._parsed(json.loads(content))
        except (LookupError, TypeError, ValueError, RecursionError):
            roll = None
        if roll is None or roll.to_bytes() != content:
            raise ProtocolError(
                "a roll must be written as the protocol says, got bytes that are not; send the roll "
                "that was called"
            )
        return roll

    @classmethod
    def _parsed(cls, terms: Any) -> Self | None:
        sparse = terms["format"] == _SPARSE_FORMAT
        if not (sparse or terms["format"] == FORMAT):
            return None
        if not _are(terms, study=str, run=str, attempt=int):
            return None
        if sparse and not _are(terms, neighbours=int):
            return None
        places = []
        for silo, n_rows, key, signature in terms["places"]:
            if not _are({"silo": silo, "n_rows": n_rows}, silo=str, n_rows=int) or n_rows < 1:
                return None
            places.append(
                Place(silo=silo, n_rows=n_rows, key=bytes.fromhex(key), signature=bytes.fromhex(signature))
            )
        return cls(
            study=terms["study"],
            run=terms["run"],
            attempt=terms["attempt"],
            places=tuple(places),
            neighbours=terms["neighbours"] if sparse else None,
        )

    def to_bytes(self) -> bytes:
        """Return the roll's bytes, the same for the same roll."""
        return self._content

    @property
    def sizes(self) -> dict[str, int]:
        """Rows by silo, in the roll's order."""
        return {place.silo: place.n_rows for place in self.places}

    def partners(self, own: int) -> list[int]:
        """Return the places of those with whom the silo in place ``own`` shares masks, in order."""
        m = len(self.places)
        if self.neighbours is None:
            return [other for other in range(m) if other != own]
        ring = _ring(self)
        at = ring.index(own)
        half = self.neighbours // 2
        return sorted(ring[(at + step) % m] for step in range(-half, half + 1) if step)


@functools.lru_cache(maxsize=8)
def _ring(roll: Roll) -> tuple[int, ...]:
    """Return the places of a roll in the order that hashes of it give them: nobody chooses it."""
    salt = b"fedpower ring 1" + roll.digest
    by_hash = [hashlib.sha256(salt + place.key).digest() for place in roll.places]
    return tuple(sorted(range(len(by_hash)), key=by_hash.__getitem__))


def signed_content(*, study: str, run: str, attempt: int, silo: str, n_rows: int, key: bytes) -> bytes:
    """Return what a silo signs at a roll call."""
    return _canonical(
        {
            "format": "fedpower-place/1",
            "study": study,
            "run": run,
            "attempt": attempt,
            "silo": silo,
            "n_rows": n_rows,
            "key": key.hex(),
        }
    )


@functools.lru_cache(maxsize=8)  # once for all silos of a process, and for all sums over a roll
def checked_roll(content: bytes, study: Study, run: str) -> Roll:
    """Return the roll in ``content``; refuse one that a silo of ``study`` must not take part in."""
    roll = Roll.from_bytes(content)
    if roll.study != study.digest or roll.run != run:
        raise ProtocolError(
            "a roll must be of the study and run that it is sent in, got that of another; call the roll anew"
        )
    identities = dict(study.identities)
    names = [place.silo for place in roll.places]
    if names != [name for name in identities if name in set(names)]:
        raise ProtocolError(
            "a roll must name silos of the study, each once and in the study's order, got another "
            "list; send the roll that was called"
        )
    if len(names) < study.min_silos:
        raise ProtocolError(
            f"a roll must have the {study.min_silos} silos that the study asks for at least, got "
            f"{len(names)}; wait for more of them"
        )
    if roll.neighbours != n_neighbours(len(names), study.colluders):
        raise ProtocolError(
            "a roll must say with how many others each silo shares masks, as follows from the number of "
            "silos and colluders, got another number; send the roll that was called"
        )
    if len({place.key for place in roll.places}) < len(names):
        raise ProtocolError(
            "every silo must have a key of its own on the roll, got one twice; call the roll anew"
        )
    for place in roll.places:
        if not place.is_signed(identities[place.silo], study=roll.study, run=roll.run, attempt=roll.attempt):
            raise ProtocolError(
                f"every place on the roll must be signed by its silo, but that of {place.silo!r} is "
                "not; call the roll anew"
            )
    return roll


def _are(terms: dict[str, Any], **kinds: type) -> bool:
    """Return whether fields have just these types; JSON's true is no number."""
    return all(type(terms[name]) is kind for name, kind in kinds.items())


def _canonical(terms: dict[str, Any]) -> bytes:
    return json.dumps(terms, sort_keys=True, separators=(",", ":")).encode()


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
