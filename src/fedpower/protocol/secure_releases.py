"""Masks that cancel: what one silo of a pair adds to its numbers, the other takes off."""

import hashlib
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import TYPE_CHECKING, Protocol

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import BudgetError, InputError, ProtocolError
from fedpower.privacy.budget import MOMENT, Budget
from fedpower.privacy.data_version import THIS_FIT, DataVersion
from fedpower.privacy.integer_release import perturb_integers
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, gaussian_integers
from fedpower.privacy.shares import SharedNoise, SumNoise, shared_noise, sum_noise
from fedpower.protocol.messages import AskMasked, AskSum, CallRoll, KeyGone, MaskedMoment, MaskedSum, Present
from fedpower.protocol.releases import Moment, integers_of, purpose_of
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
from fedpower.protocol.study import Study, SumTerms
from fedpower.sums.survey import Survey

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


Words = NDArray[np.uint64]

SUM = "secure-sum"
"""How the keys of these releases begin in a ledger; where there are several, the sum's number follows."""

_CHUNK_WORDS = 2**15
"""Words masked at a time, for all pairs: 256 KiB stay in a core's cache."""


def masked(
    words: Words, *, silo: str, roll: Roll, secret: "X25519PrivateKey", exchange: Exchanging = exchanged
) -> Words:
    """Return ``words`` with the masks that ``silo`` shares with others on the roll, modulo 2⁶⁴."""
    keys = _pair_keys(silo, roll, secret, purpose=b"fedpower mask 1", exchange=exchange)
    return _with_masks(words, keys)


_PairKeys = list[tuple[bool, bytes]]
"""For each silo that this one shares a mask with: whether this one adds it, and the key."""


def _pair_keys(
    silo: str, roll: Roll, secret: "X25519PrivateKey", *, purpose: bytes, exchange: Exchanging = exchanged
) -> _PairKeys:
    """Return the keys that ``silo`` shares with others on the roll, for one purpose."""
    names = [place.silo for place in roll.places]
    own = names.index(silo)
    salt = roll.digest
    about = _framed(purpose) + _framed(roll.study) + _framed(roll.run)
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
        self._links = _pair_keys(silo, roll, secret, purpose=b"fedpower sums 1", exchange=exchange)

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


@dataclass(frozen=True, slots=True, kw_only=True)
class Summand:
    """A silo's whole numbers for one of several sums, and the public facts that its noise follows from."""

    integers: NDArray[np.int64]
    sensitivity: Fraction | float
    per_row: int


class Summands(Protocol):
    """Computes what a silo adds to each of several sums from its rows."""

    def summand(self, label: str, public: bytes) -> Summand:
        """Return the whole numbers of the sum ``label``, computed with what the coordinator sent."""

    def moment(self, public: bytes) -> Moment:
        """Return the rows whose moment is summed, treated as ``public`` says."""


class _KeyGoneError(Exception):
    """There are no bytes for a roll in the ledger, and no key to make them with."""


class SecureReleases:
    """A silo's side of secure sums that are noised: charged before its share leaves."""

    def __init__(
        self,
        name: str,
        moment: Moment | Survey,
        study: Study,
        budget: Budget,
        *,
        identity: Identity,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
        summands: Summands | None = None,
        exchange: Exchanging = exchanged,
    ) -> None:
        if dict(study.identities).get(name) != identity.public:
            raise InputError(
                f"silo {name!r} must hold the identity that the study lists for it, got another; give "
                "the right file, or agree on a study with the new key"
            )
        self._name = name
        self._rows = moment
        self._study = study
        self._identity = identity
        self._exchange = exchange
        self._attempt: _Attempt | None = None
        self._lock = threading.Lock()
        self._budget = budget
        self._ledger = ledger
        self._source = source
        self._data = data
        self._booked = THIS_FIT if data is None else ledger.booked_as(data)
        self._booked_as = f"{study.ledger_name}/{self._booked.name}"
        self._summands = summands

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._rows.n_rows

    @property
    def _moment(self) -> Moment:
        assert not isinstance(self._rows, Survey), "rows are prepared by whoever computes the sums"
        return self._rows

    @property
    def attempts_charged(self) -> int:
        """For how many attempts this silo was charged so far, in this study and on these rows."""
        opening = f"{SUM} 1/" if self._study.sums else ""  # the first of its sums makes an attempt
        return self._ledger.spent_on(self._booked_as, key=opening).n_releases

    def check_affordable(self) -> None:
        """Refuse now, in one sentence, an attempt that the ledger could not pay for."""
        charged = self.attempts_charged
        if charged >= self._study.attempts:
            raise BudgetError(
                f"a study must keep to the attempts it agreed on, but silo {self._name!r} was charged "
                f"for {charged} of {self._study.attempts} on these rows; agree on a new study"
            )
        self._ledger.check_affordable(
            study=f"{self._booked_as}, attempt {charged + 1}",  # what was paid for pays for no other
            mu=self._budget.mu,
            slack_delta=self._budget.slack_delta,
        )

    def present(self, ask: CallRoll, *, run: str) -> Present:
        """Return this silo's place for an attempt, under a key made now; asked again, the same."""
        if type(ask.attempt) is not int or ask.attempt < 0 or not isinstance(run, str):
            raise ProtocolError(
                "a roll must be called for attempt 0, 1, … of a run that has a name, got something else; "
                "count the attempts"
            )
        with self._lock:
            kept = self._attempt
            if kept is None or (kept.run, kept.number) != (run, ask.attempt):
                self.check_affordable()
                kept = self._attempt = self._prepared(run, ask.attempt)
            if kept.secret is None:
                raise ProtocolError(
                    "a key must not be used twice, but that of this attempt was used for an upload; "
                    "call the roll of a new attempt"
                )
            return kept.present

    def masked_moment(self, ask: AskMasked, *, run: str) -> MaskedMoment | KeyGone:
        """Return this silo's part of the sum over the roll, masked; charged before it leaves."""
        if self._study.sums:
            raise ProtocolError(
                "a study with several secure sums must be asked for them by their names, got a question "
                "for the moment alone; ask for the first of them"
            )
        roll, own = self._checked(ask.roll, run)
        noise = self._noise(roll)
        with self._lock:
            secret = self._bound_secret(roll, own)
            # Made before the ledger's transaction, which others may wait for; leaves only after it.
            made = None if secret is None else self._masked(roll, noise, secret)

            def payload() -> bytes:
                if made is None:
                    raise _KeyGoneError
                return made

            try:
                raw = self._ledger.release(
                    key=self._key(roll),
                    purpose=purpose_of(self._study, f"share of a secure sum over {noise.n_silos} silos"),
                    study=self._booked_as,
                    data=self._data,
                    mu=self._budget.mu,
                    slack_delta=self._budget.slack_delta,
                    study_mu=self._budget.mu * math.sqrt(self._study.attempts),
                    payload=payload,
                )
            except _KeyGoneError:
                return KeyGone()
            if self._attempt is not None and self._attempt.roll == roll.digest:
                self._attempt.secret = None
        words = np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)
        return MaskedMoment(words=words, charged=self.attempts_charged)

    def masked_sum(self, ask: AskSum, *, run: str) -> MaskedSum | KeyGone:
        """Return this silo's part of one of several sums over a roll, masked; charged before it leaves."""
        terms = self._terms(ask)
        roll, own = self._checked(ask.roll, run)
        question = _question(ask)
        with self._lock:
            attempt = self._bound_attempt(roll, own, ask.index, question)
            made = None
            if attempt is not None and attempt.done == ask.index:
                assert attempt.chain is not None
                # Made before the ledger's transaction, which others may wait for; leaves only after it.
                words = self._share(terms, ask.public, roll, ask.index).view(np.uint64)
                made = attempt.chain.masked(words, question=question).tobytes()

            def payload() -> bytes:
                if made is None:
                    raise _KeyGoneError
                return made

            price = self._budget.price_of_sum(ask.index)
            try:
                raw = self._ledger.release(
                    key=self._key_of_sum(roll, ask.index, question),
                    purpose=purpose_of(
                        self._study, f"share of the secure sum {ask.label} over {len(roll.places)} silos"
                    ),
                    study=self._booked_as,
                    data=self._data,
                    mu=price.mu,
                    slack_delta=price.slack_delta,
                    study_mu=self._budget.mu * math.sqrt(self._study.attempts),
                    payload=payload,
                )
            except _KeyGoneError:
                return KeyGone()
            if made is not None:
                assert attempt is not None
                assert attempt.chain is not None
                attempt.done += 1
                attempt.chain.advance()
                if attempt.done == len(self._study.sums):
                    attempt.chain = None
        words = np.frombuffer(raw, dtype="<u8").astype(np.uint64, copy=False)
        return MaskedSum(words=words, charged=self.attempts_charged)

    def _terms(self, ask: AskSum) -> SumTerms:
        """Return the agreed terms of the sum that is asked for; refuse one that was not agreed on."""
        sums = self._study.sums
        if (
            type(ask.index) is not int
            or not 0 <= ask.index < len(sums)
            or sums[ask.index].label != ask.label
            or not isinstance(ask.public, bytes)
        ):
            raise ProtocolError(
                "a secure sum must be one of those that the study lists, by its number and name, got "
                "another; ask for them in the study's order"
            )
        return sums[ask.index]

    def _checked(self, content: bytes, run: str) -> tuple[Roll, Place]:
        """Return the roll that was sent and this silo's place on it; refuse one that must not be."""
        if not isinstance(content, bytes) or not isinstance(run, str):
            Roll.from_bytes(content)  # refuses
        roll = checked_roll(content, self._study, run)
        own = next((place for place in roll.places if place.silo == self._name), None)
        if own is None or own.n_rows != self.n_rows:
            raise ProtocolError(
                f"a roll sent to silo {self._name!r} must have it in its place with its number of rows, "
                "got one that has not; send the roll that was called"
            )
        return roll, own

    def _bound_attempt(self, roll: Roll, own: Place, index: int, question: bytes) -> _Attempt | None:
        """Return the attempt of the key on the roll, from now on bound to it; None without its key."""
        secret = self._bound_secret(roll, own)
        attempt = self._attempt
        if attempt is None or attempt.present.key != own.key:
            return None
        if attempt.chain is None and secret is not None:
            attempt.chain = MaskChain(self._name, roll, secret, self._exchange)
            attempt.secret = None
        if index > attempt.done:
            raise ProtocolError(
                f"secure sums must be asked for in the study's order, but sum {attempt.done + 1} of "
                f"{len(self._study.sums)} comes before sum {index + 1}; ask for that one first"
            )
        if index < len(attempt.asked) and attempt.asked[index] != question:
            raise ProtocolError(
                f"a secure sum must be asked for once over a roll, but sum {index + 1} was asked "
                "for with "
                "other numbers before; ask as before, or call the roll of a new attempt"
            )
        if index == len(attempt.asked):
            attempt.asked.append(question)
        return attempt

    def _prepared(self, run: str, attempt: int) -> _Attempt:
        secret = new_exchange_key()
        key = secret.public_key().public_bytes_raw()
        content = signed_content(
            study=self._study.digest, run=run, attempt=attempt, silo=self._name, n_rows=self.n_rows, key=key
        )
        present = Present(
            n_rows=self.n_rows, key=key, signature=self._identity.sign(content), charged=self.attempts_charged
        )
        return _Attempt(run=run, number=attempt, present=present, secret=secret)

    def _bound_secret(self, roll: Roll, own: Place) -> "X25519PrivateKey | None":
        """Return the secret half of the key on the roll, from now on bound to it; None without one."""
        attempt = self._attempt
        if attempt is None or attempt.present.key != own.key:
            return None
        if attempt.roll not in (None, roll.digest):
            raise ProtocolError(
                "a key must be on one roll only, but this silo was sent another roll with the same key; "
                "call the roll of a new attempt"
            )
        attempt.roll = roll.digest
        return attempt.secret

    def _share(self, terms: SumTerms, public: bytes, roll: Roll, index: int) -> NDArray[np.int64]:
        """Return this silo's whole numbers for a sum and its share of the noise."""
        if terms.label == MOMENT:
            noise = self._noise(roll)
            moment = self._moment if self._summands is None else self._summands.moment(public)
            return share_of_sum(moment, noise, with_mean=self._study.center, source=self._source)
        if self._summands is None:
            raise InputError(
                f"silo {self._name!r} must know how to compute the sum {terms.label!r}, got no way; "
                "start "
                "it with the version that the study was made with"
            )
        made = self._summands.summand(terms.label, public)
        try:
            wide = sum_noise(
                self._budget.price_of_sum(index).multiplier,
                sensitivity=made.sensitivity,
                per_row=made.per_row,
                sizes=roll.sizes.values(),
                colluders=self._study.colluders,
            )
        except InputError as error:  # of public facts: the coordinator may read it
            raise ProtocolError(str(error)) from None
        return share_of_integers(made, wide, size=terms.size, n_rows=self.n_rows, source=self._source)

    def _noise(self, roll: Roll) -> SharedNoise:
        try:
            return shared_noise(self._budget, roll.sizes.values())
        except InputError as error:  # of public facts: the coordinator may read it
            raise ProtocolError(str(error)) from None

    def _masked(self, roll: Roll, noise: SharedNoise, secret: "X25519PrivateKey") -> bytes:
        """Return this silo's part of the sum and its masks, modulo 2⁶⁴."""
        integers = share_of_sum(self._moment, noise, with_mean=self._study.center, source=self._source)
        words = integers.view(np.uint64)
        return masked(words, silo=self._name, roll=roll, secret=secret, exchange=self._exchange).tobytes()

    def _key(self, roll: Roll) -> str:
        digest = hashlib.sha256(roll.digest + self._booked.key.encode())
        return f"{SUM}:{digest.hexdigest()}"

    def _key_of_sum(self, roll: Roll, index: int, question: bytes) -> str:
        digest = hashlib.sha256(roll.digest + question + self._booked.key.encode())
        return f"{SUM} {index + 1}/{len(self._study.sums)}:{digest.hexdigest()}"


def _question(ask: AskSum) -> bytes:
    """Return the hash of what is asked for; silos that are asked for different things share no mask."""
    digest = hashlib.sha256()
    for part in (b"%d" % ask.index, ask.label.encode(), ask.public):
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.digest()


def share_of_integers(
    made: Summand, noise: SumNoise, *, size: int, n_rows: int, source: NoiseSource
) -> NDArray[np.int64]:
    """Return a silo's whole numbers, 2^b times, plus round(aX): what it adds to a sum, before masks."""
    integers = np.asarray(made.integers)
    if integers.shape != (size,) or integers.dtype != np.int64:
        raise InputError(
            f"a secure sum must be of {size} whole numbers, got an array of {integers.dtype} and shape "
            f"{integers.shape}; compute those that the study lists"
        )
    # Cannot be, and no refusal may depend on rows: brought back, which moves no two vectors apart.
    most = n_rows * made.per_row
    integers = np.clip(integers, -most, most)
    return (integers << noise.fineness) + gaussian_integers(source, size, scale=noise.share)


def share_of_sum(
    moment: Moment, noise: SharedNoise, *, with_mean: bool, source: NoiseSource
) -> NDArray[np.int64]:
    """Return a silo's whole numbers plus round(aX): what it adds to the sum, before masks."""
    exact = integers_of(moment, noise.share, n_rows=moment.n_rows, with_mean=with_mean)
    below, total, trace = perturb_integers(*exact, noise=noise.share, source=source)
    assert below.high is None, "what the ring holds fits in a word"
    parts = [below.low, *([] if total is None else [total]), np.array([trace], dtype=np.int64)]
    return np.concatenate(parts)
