"""What silos and coordinator say to each other in a secure sum: two rounds, a roll call and an upload."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRoll:
    """Calls the roll of a secure sum: asks for a fresh key, signed by the silo's identity.

    Attributes
    ----------
    attempt
        Counts the run's attempts from 0; a later one has fresh keys and fresh noise.
    """

    kind: ClassVar[str] = "call-roll"
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A silo's answer to a roll call: its place on the roll.

    Attributes
    ----------
    n_rows
        s_i, public.
    key
        The public half of an X25519 key for this attempt alone.
    signature
        Ed25519, of these and of what they belong to (`roll.signed_content`).
    charged
        For how many attempts the silo was charged so far, in this study and on these rows, over all
        runs. Its ledger counts; no row does.
    """

    kind: ClassVar[str] = "present"
    n_rows: int
    key: bytes
    signature: bytes
    charged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMasked:
    """Asks for the masked moment of a silo on the roll.

    Attributes
    ----------
    roll
        The whole roll, as `roll.Roll.to_bytes` writes it.
    """

    kind: ClassVar[str] = "ask-masked-moment"
    roll: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class MaskedMoment:
    """One silo's part of a secure sum, uniform to whoever does not have all the others'.

    Attributes
    ----------
    words
        Its quantised summary, its share of the noise and its masks, added modulo 2⁶⁴.
    charged
        As in :class:`Present`, this upload counted.
    """

    kind: ClassVar[str] = "masked-moment"
    words: Words
    charged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGone:
    """A silo's answer where it no longer has its key on the roll: it was started again meanwhile.

    Nothing was charged, and no sum over that roll can be had any more: the next roll is to be called.
    """

    kind: ClassVar[str] = "key-gone"
