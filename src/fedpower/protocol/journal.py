"""A coordinator's journal: the closed rounds of a run as bytes, so that the run can be resumed."""

from collections.abc import Iterator
from dataclasses import dataclass

from msgspec import Struct, structs

from fedpower.errors import ProtocolError
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import Answer, decode_as, encode

MAGIC = b"fedpower-journal/2\n"
_LENGTH_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a journal holds; ``ends`` says where its opening and each round end."""

    study: str
    run: str
    rounds: tuple[Round, ...]
    ends: tuple[int, ...]

    @property
    def sound(self) -> int:
        return self.ends[-1]


class _Opening(Struct, forbid_unknown_fields=True):
    study: str
    run: str


class _Closed(Struct, kw_only=True, forbid_unknown_fields=True):
    number: int
    kind: str
    step: int
    asked: tuple[str, ...]
    question: str
    local_steps: int
    refused: dict[str, str]
    set_aside: dict[str, str]
    bytes_up: int
    answers: dict[str, Answer]


def opening(study: str, run: str) -> bytes:
    """Return the first bytes of a journal."""
    return MAGIC + _framed(encode(_Opening(study, run)))


def record(closed: Round) -> bytes:
    """Return a closed round as bytes to append."""
    return _framed(encode(_Closed(**{name: getattr(closed, name) for name in _Closed.__struct_fields__})))


def read(content: bytes) -> Journal:
    """Return what a journal holds, up to the first damage; refuse one whose opening is damaged."""
    if not content.startswith(MAGIC):
        raise ProtocolError("a checkpoint must begin as fedpower writes it; start the run again")
    frames = _frames(content, len(MAGIC))
    payload, end = next(frames, (b"", 0))
    try:
        first = decode_as(payload, _Opening)
    except ProtocolError:
        raise ProtocolError(
            "a checkpoint must say which run it belongs to, got none; start the run again"
        ) from None
    rounds, ends = [], [end]
    for payload, end in frames:
        try:
            closed = decode_as(payload, _Closed)
        except ProtocolError:
            break
        rounds.append(Round(**structs.asdict(closed)))
        ends.append(end)
    return Journal(study=first.study, run=first.run, rounds=tuple(rounds), ends=tuple(ends))


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(_LENGTH_BYTES, "little") + payload


def _frames(content: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    while start < len(content):
        begin = start + _LENGTH_BYTES
        end = begin + int.from_bytes(content[start:begin], "little")
        if end > len(content):
            return
        yield content[begin:end], end
        start = end
