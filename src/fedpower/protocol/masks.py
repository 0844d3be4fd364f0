"""Masks that cancel: what one silo of a pair adds to its numbers, the other takes off.

Modulo 2⁶⁴, so that a masked number is uniform whatever it hides, and the sum over the whole roll is
exactly the sum of what was hidden.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from fedpower.protocol.primitives import agreed_key, keystream
from fedpower.protocol.roll import Roll

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
