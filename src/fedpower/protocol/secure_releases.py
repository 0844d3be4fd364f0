"""Masks that cancel: what one silo of a pair adds to its numbers, the other takes off.

Modulo 2⁶⁴, so that a masked number is uniform whatever it hides, and the sum over the whole roll is
exactly the sum of what was hidden.
"""

import hashlib
import math
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import BudgetError, InputError, ProtocolError
from fedpower.privacy.budget import Budget
from fedpower.privacy.data_version import THIS_FIT, DataVersion
from fedpower.privacy.integer_release import perturb_integers
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.privacy.shares import SharedNoise, shared_noise
from fedpower.protocol.messages import AskMasked, CallRoll, KeyGone, MaskedMoment, Present
from fedpower.protocol.releases import Moment, integers_of
from fedpower.protocol.roll import (
    Identity,
    Place,
    Roll,
    agreed_key,
    check_roll,
    keystream,
    new_exchange_key,
    signed_content,
)
from fedpower.protocol.study import Study

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey


Words = NDArray[np.uint64]

CHUNK_WORDS = 2**15
"""Words masked at a time, for all pairs: 256 KiB stay in a core's cache."""


def masked(words: Words, *, silo: str, roll: Roll, secret: "X25519PrivateKey") -> Words:
    """Return ``words`` with the masks of ``silo`` and every other silo on the roll, modulo 2⁶⁴.

    The one of a pair that comes first on the roll adds their mask, the other one takes it off. Their
    key is X25519's through HKDF-SHA256, salted with the roll's hash and bound to study, run and the
    pair; the mask is its ChaCha20 stream.

    Parameters
    ----------
    words
        What to hide, one silo's integers modulo 2⁶⁴.
    silo, secret
        Whose they are, and the private half of its key on the roll.
    roll
        Who takes part; checked beforehand.
    """
    names = [place.silo for place in roll.places]
    own = names.index(silo)
    salt = roll.digest
    streams = []
    for other, place in enumerate(roll.places):
        if other == own:
            continue
        first, second = sorted((own, other))
        info = _info(roll, names[first], names[second])
        key = agreed_key(secret, place.key, salt=salt, info=info)
        streams.append((own < other, keystream(key)))
    out = np.array(words, dtype="<u8")
    zeros = memoryview(bytes(8 * CHUNK_WORDS))
    buffer = np.empty(CHUNK_WORDS, dtype="<u8")
    for start in range(0, out.size, CHUNK_WORDS):
        part = out[start : start + CHUNK_WORDS]
        mask = buffer[: part.size]
        for adds, fill in streams:
            fill(zeros[: 8 * part.size], mask.view(np.uint8).data)
            (np.add if adds else np.subtract)(part, mask, out=part)
    return out


def total(parts: Iterable[Words]) -> NDArray[np.int64]:
    """Return the sum modulo 2⁶⁴, read as integers from −2⁶³ to 2⁶³ − 1."""
    words = list(parts)
    out = np.array(words[0], dtype="<u8")
    for part in words[1:]:
        out += part
    return out.view("<i8").astype(np.int64)


def _info(roll: Roll, first: str, second: str) -> bytes:
    """Return what a pair's key is for; lengths keep names apart."""
    parts = (b"fedpower mask 1", *(x.encode() for x in (roll.study, roll.run, first, second)))
    return b"".join(len(part).to_bytes(4, "little") + part for part in parts)


@dataclass(slots=True, kw_only=True)
class _Attempt:
    """The key of the attempt that this silo is in, and the roll it is bound to once there is one."""

    run: str
    number: int
    present: Present
    secret: "X25519PrivateKey | None"
    roll: bytes | None = None


class _KeyGoneError(Exception):
    """There are no bytes for a roll in the ledger, and no key to make them with."""


class SecureReleases:
    """A silo's side of secure sums.

    Parameters
    ----------
    name
        The silo's, as the study lists it.
    moment
        Its rows, of norm at most 1.
    study, budget
        The agreed terms and the price list that follows from them.
    identity
        The key that the study lists for this silo.
    ledger
        The silo's own.
    source
        Where noise comes from.
    data
        Which rows these are, as their operator declares them; None for a ledger that lives no longer.
    """

    def __init__(
        self,
        name: str,
        moment: Moment,
        study: Study,
        budget: Budget,
        *,
        identity: Identity,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
    ) -> None:
        if dict(study.identities).get(name) != identity.public:
            raise InputError(
                f"silo {name!r} must hold the identity that the study lists for it, got another; give "
                "the right file, or agree on a study with the new key"
            )
        self._name = name
        self._moment = moment
        self._study = study
        self._budget = budget
        self._identity = identity
        self._ledger = ledger
        self._source = source
        self._data = data
        self._booked = THIS_FIT if data is None else ledger.booked_as(data)
        self._booked_as = f"{study.ledger_name}/{self._booked.name}"
        self._attempt: _Attempt | None = None
        self._lock = threading.Lock()

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._moment.n_rows

    @property
    def attempts_charged(self) -> int:
        """For how many attempts this silo was charged so far, in this study and on these rows."""
        return self._ledger.spent_on(self._booked_as).n_releases

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
        """Return this silo's place for an attempt, under a key made now; asked again, the same.

        One that could not be paid for is refused here, before it costs the others anything.
        """
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
        """Return this silo's part of the sum over the roll, masked; charged before it leaves.

        A silo that was started again since the roll call says that its key is gone: a new roll helps.
        """
        roll = Roll.from_bytes(ask.roll)
        check_roll(roll, self._study, run=run)
        noise = self._noise(roll)
        own = next((place for place in roll.places if place.silo == self._name), None)
        if own is None or own.n_rows != self.n_rows:
            raise ProtocolError(
                f"a roll sent to silo {self._name!r} must have it in its place with its number of rows, "
                "got one that has not; send the roll that was called"
            )
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
                    purpose=f"share of a secure sum over {noise.n_silos} silos",
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

    def _prepared(self, run: str, attempt: int) -> _Attempt:
        secret = new_exchange_key()
        key = secret.public_key().public_bytes_raw()
        content = signed_content(
            study=self._study.digest,
            run=run,
            attempt=attempt,
            silo=self._name,
            n_rows=self.n_rows,
            key=key,
        )
        present = Present(
            n_rows=self.n_rows,
            key=key,
            signature=self._identity.sign(content),
            charged=self.attempts_charged,
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

    def _noise(self, roll: Roll) -> SharedNoise:
        try:
            return shared_noise(self._budget, roll.sizes.values())
        except InputError as error:  # of public facts: the coordinator may read it
            raise ProtocolError(str(error)) from None

    def _masked(self, roll: Roll, noise: SharedNoise, secret: "X25519PrivateKey") -> bytes:
        """Return this silo's part of the sum and its masks, modulo 2⁶⁴."""
        integers = share_of_sum(
            self._moment,
            noise,
            with_mean=self._study.center,
            source=self._source,
        )
        words = integers.view(np.uint64)
        return masked(words, silo=self._name, roll=roll, secret=secret).tobytes()

    def _key(self, roll: Roll) -> str:
        digest = hashlib.sha256(roll.digest + self._booked.key.encode())
        return f"secure-sum:{digest.hexdigest()}"


def share_of_sum(
    moment: Moment,
    noise: SharedNoise,
    *,
    with_mean: bool,
    source: NoiseSource,
) -> NDArray[np.int64]:
    """Return a silo's whole numbers plus round(aX): what it adds to the sum, before masks.

    The lower triangle of Σ z zᵀ first, then Σ z if it is wanted, Σ ‖z‖² last.

    Parameters
    ----------
    moment
        The silo's rows.
    noise
        The shares.
    with_mean
        Whether the mean is part of the summary.
    source
        Where the noise comes from.
    """
    exact = integers_of(moment, noise.share, n_rows=moment.n_rows, with_mean=with_mean)
    below, total, trace = perturb_integers(*exact, noise=noise.share, source=source)
    assert below.high is None, "what the ring holds fits in a word"
    parts = [below.low, *([] if total is None else [total]), np.array([trace], dtype=np.int64)]
    return np.concatenate(parts)
