"""What silos and coordinator say to each other: msgspec structs, with one encoder and one decoder."""

import functools
import hashlib
import math
import re
from collections.abc import Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from fedpower.exceptions import ProtocolError
from fedpower.linalg import Alignment, Array

Words = NDArray[np.uint64]
_Kind = TypeVar("_Kind")

MAGIC = b"fedpower2\n"
_LENGTH_BYTES, _DIGEST_BYTES = 4, 32
_WIDTHS = {"<f4": 4, "<f8": 8, "<u8": 8}
"""Bytes of a number by the type in which an array travels; floats as float32 where that loses nothing."""
MOST_HEADER_BYTES = 4 * 2**20
"""More than a message has in addition to its arrays: a study with very many columns has most."""
MOST_SIGNATURES, LONGEST_LABEL = 100, 256
_Label = Annotated[str, msgspec.Meta(max_length=LONGEST_LABEL)]
"""What a message belongs to, by a name or a hash."""
_STRIPE = 2**15
"""Numbers that are compared together: they stay in a core's own cache."""


class _Body(
    Struct,
    frozen=True,
    kw_only=True,
    forbid_unknown_fields=True,
    omit_defaults=True,
    tag_field="kind",
    tag=lambda name: re.sub(r"(?<!^)([A-Z])", r"-\1", name).lower(),
):
    @property
    def kind(self) -> str:
        return str(self.__struct_config__.tag)


class Enrol(_Body, frozen=True, kw_only=True):
    """Asks a silo for its public facts; nothing that depends on a row's content is answered."""


class Enrolment(_Body, frozen=True, kw_only=True):
    """A silo's public facts."""

    n_rows: int
    n_features: int
    data_version: str = ""


class AskMoment(_Body, frozen=True, kw_only=True):
    """Asks for the moment in float64 about its mean, or a part: only its mean is released privately.

    The factor F of A_i = FᵀF has few rows where the silo has: it reveals as much as A_i itself, and no more.
    """

    label: Literal["mean", "variances", "covariance", "factor"]


class MomentPart(_Body, frozen=True, kw_only=True):
    """The variances, packed lower triangle or factor of a silo's moment (or nothing), and its mean row."""

    values: Array
    mean: Array | None = None
    total_variance: float = 0.0


class AskSteps(_Body, frozen=True, kw_only=True):
    """Asks for local power steps from a broadcast basis [FP Alg. 2, lines 4–10]."""

    basis: Array
    n_local_steps: int
    center: Array | None = None
    shift: float = 0.0
    align: Alignment | None = None
    pooled: Array | None = None
    gains: Array | None = None


class LocalSteps(_Body, frozen=True, kw_only=True):
    """The outcome of a silo's local steps."""

    product: Array
    basis: Array | None = None
    total_variance: float | None = None
    misalignment: float | None = None
    made_for: str = ""


class OpenSession(_Body, frozen=True, kw_only=True):
    """Opens an attempt at a secure sum: asks for a new key, signed by the silo's identity."""

    attempt: int


class SessionKey(_Body, frozen=True, kw_only=True):
    """A silo's signed key for an attempt, and for how many attempts it was charged so far."""

    n_rows: int
    key: bytes
    signature: bytes
    charged: int


class Member(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One silo of a session."""

    silo: str
    n_rows: int
    key: bytes
    signature: bytes


class Session(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, cache_hash=True):
    """All silos of one attempt at secure sums, in the order in which the study lists them."""

    study: str
    run: str
    attempt: int
    members: tuple[Member, ...]

    @property
    def digest(self) -> bytes:
        return _session_digest(self)

    @property
    def sizes(self) -> dict[str, int]:
        return {member.silo: member.n_rows for member in self.members}


@functools.lru_cache(maxsize=8)
def _session_digest(session: Session) -> bytes:
    return hashlib.sha256(msgspec.msgpack.encode(session)).digest()


class AskQuery(_Body, frozen=True, kw_only=True):
    """Asks for the answer to one of a study's queries, in plain or as a part of a secure sum."""

    index: int
    label: _Label
    public: bytes = b""
    session: Session | None = None


class QueryAnswer(_Body, frozen=True, kw_only=True):
    """A silo's noised whole numbers in two's complement, masked where they are a part of a secure sum."""

    words: Words
    charged: int = 0
    made_for: str = ""
    """The run that a plain release was made for."""


class KeyGone(_Body, frozen=True, kw_only=True):
    """A silo's answer where it no longer has its key for the sum: it was restarted meanwhile."""


class Refusal(_Body, frozen=True, kw_only=True):
    """A silo's answer to what it will not do, in one sentence without any content of its rows."""

    reason: str


class Propose(_Body, frozen=True, kw_only=True):
    """Puts a study before a silo's operator: its content, and the signatures of it by their public keys."""

    content: dict[str, Any]
    signatures: Annotated[dict[str, str], msgspec.Meta(max_length=MOST_SIGNATURES)] = {}


class Standing(_Body, frozen=True, kw_only=True):
    """Where a proposed study stands at a silo; absent and asked are those that have not answered."""

    state: Literal["absent", "asked", "waiting", "approved", "refused", "unable"]
    reason: str = ""


Question = Propose | Enrol | AskMoment | AskSteps | OpenSession | AskQuery
Answer = Standing | Enrolment | MomentPart | LocalSteps | SessionKey | QueryAnswer | KeyGone | Refusal


class Message(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A question to one silo, or that silo's answer, with what it belongs to."""

    study: _Label
    run: _Label
    round: int
    silo: _Label
    body: Question | Answer


def encode(record: Struct) -> bytes:
    """Return a struct as bytes: magic, header in msgpack, its arrays in order, SHA-256 of all before it."""
    return b"".join(_parts(record))


def digest_of(record: Struct) -> str:
    """Return the checksum in ``encode(record)`` in hexadecimal digits, without copying the arrays."""
    return bytes(_parts(record)[-1]).hex()


def encoded_size(record: Struct) -> int:
    """Return ``len(encode(record))`` without copying the arrays."""
    header, arrays = _header(record)
    content = sum(array.size * _WIDTHS[kind] for array, kind in arrays)
    return len(MAGIC) + _LENGTH_BYTES + len(header) + content + _DIGEST_BYTES


def decode(data: bytes) -> Message:
    """Return the message in ``data``; refuse bytes that are cut short, altered or not ours."""
    return decode_as(data, Message, most_header_bytes=MOST_HEADER_BYTES)


def decode_as(data: bytes, kind: type[_Kind], *, most_header_bytes: float = math.inf) -> _Kind:
    """Return the struct of some kind in ``data``; refuse other bytes, and a longer header."""
    content, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(MAGIC) or hashlib.sha256(content).digest() != digest:
        raise ProtocolError("a message must arrive as it was sent, got bytes whose checksum does not match")
    begin = len(MAGIC) + _LENGTH_BYTES
    end = begin + int.from_bytes(content[len(MAGIC) : begin], "little")
    rest = content[end:]
    if end > most_header_bytes:  # which takes many times its bytes once it is decoded
        raise ProtocolError(f"all of a message but its arrays must have at most {most_header_bytes:,} bytes")

    def array_of(hint: Any, described: Any) -> NDArray[Any]:
        nonlocal rest
        wire, shape = msgspec.convert(described, tuple[str, tuple[int, ...]])
        words = hint == Words
        size = math.prod(shape) * _WIDTHS.get(wire, 0)
        fits = wire == "<u8" if words else wire in ("<f4", "<f8")
        if not fits or min(shape, default=0) < 0 or size > len(rest):
            raise ValueError("no array of this field")
        # A copy: in the message it begins where the header ends, which may be at any byte.
        copy = np.empty(shape, np.uint64 if words else np.float64)
        copy[...] = np.frombuffer(rest[:size], dtype=wire).reshape(shape)
        rest = rest[size:]
        return frozen(copy)

    try:
        record = msgspec.msgpack.decode(content[begin:end], type=kind, dec_hook=array_of)
        if rest:
            raise ValueError("trailing bytes")
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise ProtocolError("a message must have the fields of its kind in this version") from error
    return record


def _header(record: Struct) -> tuple[bytes, list[tuple[NDArray[Any], str]]]:
    arrays: list[tuple[NDArray[Any], str]] = []

    def described(value: Any) -> tuple[str, Sequence[int]]:
        if not isinstance(value, np.ndarray):
            raise NotImplementedError(f"a message cannot hold a {type(value).__name__}")
        kind = "<u8" if value.dtype == np.uint64 else "<f4" if _fits_float32(value) else "<f8"
        arrays.append((value, kind))
        return kind, value.shape

    return msgspec.msgpack.encode(record, enc_hook=described), arrays


def _parts(record: Struct) -> list[bytes | memoryview]:
    """Return the bytes of a struct, arrays as they are in memory."""
    header, arrays = _header(record)
    parts: list[bytes | memoryview] = [MAGIC, len(header).to_bytes(_LENGTH_BYTES, "little"), header]
    for array, kind in arrays:
        parts.append(np.ascontiguousarray(array, dtype=kind).reshape(-1).view(np.uint8).data)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return [*parts, digest.digest()]


def _fits_float32(array: NDArray[Any]) -> bool:
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(part.astype(np.float32), part)
            for part in (flat[start : start + _STRIPE] for start in range(0, flat.size, _STRIPE))
        )


def read_only(array: NDArray[Any]) -> Array:
    """Return a read-only float64 array equal to ``array``; a writable one is copied."""
    result = np.array(array, dtype=np.float64, order="C", copy=None)
    if result.flags.writeable:
        if result is array or np.shares_memory(result, array):
            result = result.copy()
        result.setflags(write=False)
    return result


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array`` itself, read-only from now on: for its only owner."""
    array.setflags(write=False)
    return array


_LARGEST_FLOAT32 = float(np.finfo(np.float32).max)
_NOISE_TO_PEAK = 2.0**-10
"""Noise at least this large beside the largest number makes rounding to float32 harmless: rounding changes a
number by at most 2⁻²⁵ of itself, which is 2⁻¹⁵ of the noise, a relative 10⁻⁹ of its variance."""


def rounded(array: Array, noise_std: float) -> Array:
    """Return ``array`` rounded to float32 where its noise is far above that, else as it is."""
    peak = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
    if noise_std <= 0 or noise_std < _NOISE_TO_PEAK * peak or not peak <= _LARGEST_FLOAT32:
        return array
    return array.astype(np.float32).astype(np.float64)
