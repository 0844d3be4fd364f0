"""A silo's identity: the Ed25519 key with which it signs what it says at a roll call.

The private key stays in one file of the silo; the public one, 64 hexadecimal digits, is listed in the
study, so that a coordinator cannot put silos on a roll that are not there.
"""

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Self

from fedpower.errors import InputError
from fedpower.protocol.primitives import (
    new_signing_key,
    signing_key_from_pem,
    signing_key_to_pem,
)

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


class Identity:
    """A silo's signing key; make one with :meth:`new`, or read it with :meth:`load`."""

    def __init__(self, key: "Ed25519PrivateKey") -> None:
        self._key = key

    @classmethod
    def new(cls) -> Self:
        """Return a fresh identity."""
        return cls(new_signing_key())

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
        key = signing_key_from_pem(text)
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
            stream.write(signing_key_to_pem(self._key))

    @property
    def public(self) -> str:
        """The public key as 64 hexadecimal digits: what a study lists."""
        return self._key.public_key().public_bytes_raw().hex()

    def sign(self, content: bytes) -> bytes:
        """Return the signature of ``content``, 64 bytes."""
        return self._key.sign(content)

    def __repr__(self) -> str:
        return f"Identity({self.public[:16]}…)"  # never the private key
