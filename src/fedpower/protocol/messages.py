"""What silos and coordinator say to each other: frozen messages and their bytes on the wire."""

import functools
import hashlib
import json
from dataclasses import dataclass, fields
from types import UnionType
from typing import Any, ClassVar, Literal, Union, cast, get_args, get_origin, get_type_hints

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.linalg.memory import own_memory
from fedpower.linalg.subspace import Alignment

Words = NDArray[np.uint64]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRoll:
    """Calls the roll of a secure sum: asks for a fresh key, signed by the silo's identity."""

    kind: ClassVar[str] = "call-roll"
    attempt: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A silo's answer to a roll call: its place on the roll."""

    kind: ClassVar[str] = "present"
    n_rows: int
    key: bytes
    signature: bytes
    charged: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AskQuery:
    """Asks for the answer to one of a study's queries, alone or as a part of a sum over a roll."""

    kind: ClassVar[str] = "ask-query"
    index: int
    label: str
    public: bytes = b""
    roll: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryAnswer:
    """A silo's noised whole numbers, in two's complement; under masks where they are a part of a sum."""

    kind: ClassVar[str] = "query"
    words: Words
    charged: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyGone:
    """A silo's answer where it no longer has its key on the roll: it was started again meanwhile."""

    kind: ClassVar[str] = "key-gone"


Array = NDArray[np.float64]

MAGIC = b"fedpower1\n"
_DIGEST_BYTES = 32
_STRIPE = 2**15
"""Numbers that are looked at together: they stay in a core's own cache."""

_WIRE_TYPES = ("<f4", "<f8", "<u8", "bytes")
"""How an array or a string of bytes travels; floats as float32 where that loses nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrol:
    """Asks a silo for its public facts; nothing that depends on a row's content is answered."""

    kind: ClassVar[str] = "enrol"


@dataclass(frozen=True, slots=True, kw_only=True)
class Enrolment:
    """A silo's public facts."""

    kind: ClassVar[str] = "enrolment"
    n_rows: int
    n_features: int
    data_version: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMean:
    """Asks for the mean row of a silo, for centring on the pooled mean."""

    kind: ClassVar[str] = "ask-mean"
    variances: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class MeanRow:
    """The mean row of a silo, and the variances of its columns about it where they were asked for."""

    kind: ClassVar[str] = "mean"
    mean: Array
    variances: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class AskSteps:
    """Asks for local power steps from a broadcast basis [FP Alg. 2, lines 4–10]."""

    kind: ClassVar[str] = "ask-steps"
    basis: Array
    n_local_steps: int
    center: Array | None = None
    shift: float = 0.0
    align: Alignment | None = None
    pooled: Array | None = None
    gains: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSteps:
    """The outcome of a silo's local steps."""

    kind: ClassVar[str] = "local-steps"
    product: Array
    basis: Array | None = None
    total_variance: float | None = None
    misalignment: float | None = None
    made_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskMoment:
    """Asks for the moment itself, once; everything after it happens at the coordinator."""

    kind: ClassVar[str] = "ask-moment"
    public: bytes = b""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedMoment:
    """A silo's moment, d(d+1)/2 numbers."""

    kind: ClassVar[str] = "moment"
    triangle: Array
    total_variance: float
    mean: Array | None = None
    made_for: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class AskFactor:
    """Asks for the moment of a silo with fewer rows than columns, as the factor that it is small in."""

    kind: ClassVar[str] = "ask-factor"


@dataclass(frozen=True, slots=True, kw_only=True)
class Factor:
    """A silo's exact moment A_i = FᵀF of few rows: as much as the moment itself tells, and no more."""

    kind: ClassVar[str] = "factor"
    factor: Array
    total_variance: float
    mean: Array | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """A silo's answer to what it will not do, in one sentence without any content of its rows."""

    kind: ClassVar[str] = "refusal"
    reason: str


Question = Enrol | AskMean | AskSteps | AskMoment | AskFactor | CallRoll | AskQuery
Answer = Enrolment | MeanRow | LocalSteps | PackedMoment | Factor | Present | QueryAnswer | KeyGone | Refusal
BODIES: dict[str, type[Any]] = {
    body.kind: body
    for body in (
        Enrol,
        Enrolment,
        AskMean,
        MeanRow,
        AskSteps,
        LocalSteps,
        AskMoment,
        PackedMoment,
        AskFactor,
        Factor,
        CallRoll,
        Present,
        AskQuery,
        QueryAnswer,
        KeyGone,
        Refusal,
    )
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Message:
    """A question to one silo, or that silo's answer, with what it belongs to."""

    study: str
    run: str
    round: int
    silo: str
    body: Question | Answer


def encode(message: Message) -> bytes:
    """Return the message as bytes: magic, JSON header, arrays and bytes, SHA-256 of all before it."""
    parts, digest = _parts(message)
    return b"".join([*parts, digest.digest()])


def digest_of(message: Message) -> str:
    """Return the SHA-256 of ``encode(message)``, in hexadecimal digits, without copying the arrays."""
    _, digest = _parts(message)
    digest.update(digest.digest())
    return str(digest.hexdigest())


def _parts(message: Message) -> tuple[list[bytes | memoryview], Any]:
    """Return the message's bytes before its checksum, arrays as they lie, and the SHA-256 so far."""
    header, blobs = _header(message)
    parts: list[bytes | memoryview] = [MAGIC, len(header).to_bytes(4, "little"), header]
    for blob, kind in blobs:
        if isinstance(blob, bytes):
            parts.append(blob)
        else:
            flat = np.ascontiguousarray(blob, dtype=kind).reshape(-1)
            parts.append(flat.view(np.uint8).data)
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part)
    return parts, digest


def encoded_size(message: Message) -> int:
    """Return ``len(encode(message))`` without copying the arrays."""
    header, blobs = _header(message)
    content = sum(
        len(blob) if isinstance(blob, bytes) else blob.size * np.dtype(kind).itemsize for blob, kind in blobs
    )
    return len(MAGIC) + 4 + len(header) + content + _DIGEST_BYTES


def decode(data: bytes) -> Message:
    """Return the message in ``data``; refuse bytes that are cut short, altered or not ours."""
    content, digest = memoryview(data)[:-_DIGEST_BYTES], data[-_DIGEST_BYTES:]
    if not data.startswith(MAGIC) or hashlib.sha256(content).digest() != digest:
        raise ProtocolError(
            "a message must arrive as it was sent, got bytes whose checksum does not match; ask for it again"
        )
    try:
        return _parse(content[len(MAGIC) :])
    except (LookupError, TypeError, ValueError, AttributeError, RecursionError, OverflowError) as error:
        raise ProtocolError(
            "a message must have the fields of its kind, got one that has not; "
            "check that both sides run the same version of fedpower"
        ) from error


def read_only(array: NDArray[Any]) -> Array:
    """Return a read-only float64 array equal to ``array``; a writable one is copied."""
    result = np.array(array, dtype=np.float64, order="C", copy=None)
    if result.flags.writeable:
        if result is array or np.shares_memory(result, array):
            result = result.copy()
        result.setflags(write=False)
    return result


def frozen(array: NDArray[Any]) -> NDArray[Any]:
    """Return ``array`` itself, read-only from now on: for who has just made it and holds it alone."""
    array.setflags(write=False)
    return array


_JSON = json.JSONEncoder(sort_keys=True)

_LOST = np.uint64(2**29 - 1)
"""The last bits of a float64: zeros in what is a float32 number, too."""


def _header(message: Message) -> tuple[bytes, list[tuple[NDArray[Any] | bytes, str]]]:
    body = message.body
    plain: dict[str, Any] = {}
    shapes: list[tuple[str, tuple[int, ...], str]] = []
    blobs: list[tuple[NDArray[Any] | bytes, str]] = []
    for name in _names(cast("Any", type(body))):
        value = getattr(body, name)
        if isinstance(value, np.ndarray):
            kind = _wire_type(value)
            shapes.append((name, value.shape, kind))
            blobs.append((value, kind))
        elif isinstance(value, bytes):
            shapes.append((name, (len(value),), "bytes"))
            blobs.append((value, "bytes"))
        else:
            plain[name] = value
    header = {
        "study": message.study,
        "run": message.run,
        "round": message.round,
        "silo": message.silo,
        "kind": body.kind,
        "plain": plain,
        "arrays": shapes,
    }
    return _JSON.encode(header).encode(), blobs


@functools.cache
def _names(kind: type) -> tuple[str, ...]:
    """Return the fields of a kind of body."""
    return tuple(field.name for field in fields(kind))


def _wire_type(array: NDArray[Any]) -> str:
    if array.dtype == np.uint64:
        return "<u8"
    # Most of what needs float64 shows it among its first numbers.
    first = array.reshape(-1)[:64]
    if first.dtype == np.float64 and bool((first.view(np.uint64) & _LOST).any()):
        return "<f8"
    return "<f4" if _is_narrow(array) else "<f8"


def _is_narrow(array: NDArray[Any]) -> bool:
    """Return whether float32 holds every number of ``array`` exactly."""
    if array.dtype == np.float32:
        return True
    flat = array.reshape(-1)
    with np.errstate(over="ignore"):
        return all(
            np.array_equal(part.astype(np.float32), part)
            for part in (flat[start : start + _STRIPE] for start in range(0, flat.size, _STRIPE))
        )


def _parse(content: memoryview) -> Message:
    length = int.from_bytes(content[:4], "little")
    header = json.loads(bytes(content[4 : 4 + length]))
    rest = content[4 + length :]
    values: dict[str, Any] = dict(header["plain"])
    for name, shape, kind in header["arrays"]:
        if kind not in _WIRE_TYPES or min(shape, default=0) < 0:
            raise ValueError(kind, shape)
        count = int(np.prod(shape, dtype=np.int64))
        size = count if kind == "bytes" else np.dtype(kind).itemsize * count
        values[name] = _unpacked(rest[:size], shape, kind)
        rest = rest[size:]
    if rest:
        raise ValueError("trailing bytes")
    body = BODIES[header["kind"]](**values)
    _check_types(body)
    message = Message(
        study=header["study"],
        run=header["run"],
        round=header["round"],
        silo=header["silo"],
        body=cast("Question | Answer", body),
    )
    _check_types(message)
    return message


def _unpacked(blob: memoryview, shape: list[int], kind: str) -> NDArray[Any] | bytes:
    """Return the array or the bytes that travelled as ``kind``; words stay words, all else is float64."""
    if kind == "bytes":
        if shape != [len(blob)]:
            raise ValueError(shape)
        return bytes(blob)
    array = np.frombuffer(blob, dtype=kind).reshape(shape)
    # A copy: in the message it lies where its header ends.
    copy = own_memory(array.shape, np.uint64 if kind == "<u8" else np.float64)
    copy[...] = array
    return frozen(copy)


def _check_types(record: object) -> None:
    """Raise TypeError where a decoded field is not of its declared type: the bytes are not trusted."""
    hints = _hints(cast("Any", type(record)))
    for field in fields(cast("Any", record)):
        if field.name != "body" and not _fits(getattr(record, field.name), hints[field.name]):
            raise TypeError(field.name)


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return get_type_hints(kind)


def _fits(value: object, hint: Any) -> bool:
    origin = get_origin(hint)
    if origin in (Union, UnionType):
        return any(_fits(value, option) for option in get_args(hint))
    if origin is Literal:
        return value in get_args(hint)
    if isinstance(value, bool):
        return hint is bool
    if isinstance(value, np.ndarray):
        return bool(hint == (NDArray[np.uint64] if value.dtype == np.uint64 else Array))
    return isinstance(value, (int, float) if hint is float else origin or hint)


LARGEST = float(np.finfo(np.float32).max)

_NOISE_TO_PEAK = 2.0**-10
"""Noise at least this large beside the largest number makes rounding to float32 harmless.

Rounding moves a number by at most 2⁻²⁵ of itself: at most 2⁻¹⁵ of the noise's standard deviation, a
relative 10⁻⁹ of its variance.
"""


def rounded(array: Array, noise_std: float) -> Array:
    """Return ``array`` rounded to float32 where its noise is far above that, else as it is."""
    return narrowed(array, noise_std).astype(np.float64, copy=False)


def narrowed(array: Array, noise_std: float) -> NDArray[np.floating[Any]]:
    """Return what :func:`rounded` gives, in float32 where it is rounded: as it will travel."""
    peak = max(float(array.max(initial=0.0)), -float(array.min(initial=0.0)))
    if noise_std <= 0 or noise_std < _NOISE_TO_PEAK * peak or not peak <= LARGEST:
        return array
    narrow: NDArray[np.float32] = own_memory(array.shape, np.float32)
    narrow[...] = array
    return narrow
