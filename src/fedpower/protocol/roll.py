"""The roll of a secure sum: who takes part, with which fresh keys, each signed by its silo.

A roll is bytes. Its SHA-256 goes into every mask, so silos that were sent different rolls make masks
that do not cancel: a coordinator that tells them different things gets noise.
"""

import hashlib
import json
from dataclasses import dataclass
from typing import Any, Self

from fedpower.errors import ProtocolError
from fedpower.protocol.primitives import KEY_BYTES, SIGNATURE_BYTES, is_signed
from fedpower.protocol.study import Study

FORMAT = "fedpower-roll/2"
"""2: silos add whole numbers. Under another number they would add what cannot be summed with them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """One silo's place on a roll.

    Attributes
    ----------
    silo
        Its name in the study.
    n_rows
        s_i, public.
    key
        The public half of an X25519 key made for this attempt alone.
    signature
        Of all the rest and of what it belongs to, under the silo's identity.
    """

    silo: str
    n_rows: int
    key: bytes
    signature: bytes

    def is_signed(self, public: str, *, study: str, run: str, attempt: int) -> bool:
        """Return whether the holder of the identity ``public`` signed this place."""
        content = signed_content(
            study=study,
            run=run,
            attempt=attempt,
            silo=self.silo,
            n_rows=self.n_rows,
            key=self.key,
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
        if terms["format"] != FORMAT or not _are(terms, study=str, run=str, attempt=int):
            return None
        places = []
        for silo, n_rows, key, signature in terms["places"]:
            if not _are({"silo": silo, "n_rows": n_rows}, silo=str, n_rows=int) or n_rows < 1:
                return None
            places.append(
                Place(
                    silo=silo,
                    n_rows=n_rows,
                    key=bytes.fromhex(key),
                    signature=bytes.fromhex(signature),
                )
            )
        return cls(
            study=terms["study"], run=terms["run"], attempt=terms["attempt"], places=tuple(places)
        )

    def to_bytes(self) -> bytes:
        """Return the roll's bytes, the same for the same roll."""
        return _canonical(
            {
                "format": FORMAT,
                "study": self.study,
                "run": self.run,
                "attempt": self.attempt,
                "places": [[p.silo, p.n_rows, p.key.hex(), p.signature.hex()] for p in self.places],
            }
        )

    @property
    def digest(self) -> bytes:
        """SHA-256 of the roll's bytes."""
        return hashlib.sha256(self.to_bytes()).digest()

    @property
    def sizes(self) -> dict[str, int]:
        """Rows by silo, in the roll's order."""
        return {place.silo: place.n_rows for place in self.places}


def signed_content(
    *, study: str, run: str, attempt: int, silo: str, n_rows: int, key: bytes
) -> bytes:
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


def check_roll(roll: Roll, study: Study, *, run: str) -> None:
    """Refuse a roll that a silo of ``study`` must not take part in; looks at public facts only."""
    if roll.study != study.digest or roll.run != run:
        raise ProtocolError(
            "a roll must be of the study and run that it is sent in, got that of another; call the "
            "roll anew"
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
    if len({place.key for place in roll.places}) < len(names):
        raise ProtocolError(
            "every silo must have a key of its own on the roll, got one twice; call the roll anew"
        )
    for place in roll.places:
        if not place.is_signed(
            identities[place.silo], study=roll.study, run=roll.run, attempt=roll.attempt
        ):
            raise ProtocolError(
                f"every place on the roll must be signed by its silo, but that of {place.silo!r} is "
                "not; call the roll anew"
            )


def _are(terms: dict[str, Any], **kinds: type) -> bool:
    """Return whether fields have just these types; JSON's true is no number."""
    return all(type(terms[name]) is kind for name, kind in kinds.items())


def _canonical(terms: dict[str, Any]) -> bytes:
    return json.dumps(terms, sort_keys=True, separators=(",", ":")).encode()
