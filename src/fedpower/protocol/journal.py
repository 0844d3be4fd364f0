"""A coordinator's journal: the closed rounds of a run as bytes, so that it can be taken up again."""

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass

from fedpower.errors import ProtocolError
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import Message, decode, encode

MAGIC = b"fedpower-journal/1\n"
LENGTH, DIGEST = 8, 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """What a journal holds."""

    study: str
    run: str
    rounds: tuple[Round, ...]
    ends: tuple[int, ...]

    @property
    def sound(self) -> int:
        """How many bytes are sound."""
        return self.ends[-1]


def opening(study: str, run: str) -> bytes:
    """Return the first bytes of a journal."""
    return MAGIC + _framed(json.dumps({"study": study, "run": run}).encode())


def record(closed: Round, study: str, run: str) -> bytes:
    """Return a closed round as bytes to append."""
    header = {
        "number": closed.number,
        "kind": closed.kind,
        "step": closed.step,
        "asked": list(closed.asked),
        "question": closed.question,
        "local_steps": closed.local_steps,
        "refused": closed.refused,
        "set_aside": closed.set_aside,
        "bytes_up": closed.bytes_up,
    }
    parts = [json.dumps(header).encode()]
    parts += [
        encode(Message(study=study, run=run, round=closed.number, silo=name, body=body))
        for name, body in closed.answers.items()
    ]
    return _framed(b"".join(_framed(part) for part in parts))


def read(content: bytes) -> Journal:
    """Return what a journal holds, up to the first damage; refuse one whose opening is damaged."""
    if not content.startswith(MAGIC):
        raise ProtocolError(
            "a checkpoint must begin as fedpower writes it, got other bytes; start the run anew: "
            "silos give the same answers to the same questions at no further charge"
        )
    frames = _frames(content, len(MAGIC))
    first = next(frames, (b"", 0))
    whose = _whose(first[0])
    if whose is None:
        raise ProtocolError(
            "a checkpoint must say which run it belongs to, got one whose opening is damaged; start "
            "the run anew: silos give the same answers to the same questions at no further charge"
        )
    rounds: list[Round] = []
    ends = [first[1]]
    for payload, end in frames:
        try:
            rounds.append(_round(payload))
        except (ProtocolError, ValueError, LookupError, TypeError):
            break
        ends.append(end)
    return Journal(study=whose[0], run=whose[1], rounds=tuple(rounds), ends=tuple(ends))


def _whose(payload: bytes) -> tuple[str, str] | None:
    """Return the study and the run that an opening names; None where it names none."""
    try:
        header = json.loads(payload)
        study, run = header["study"], header["run"]
    except (ValueError, LookupError, TypeError):
        return None
    return (study, run) if isinstance(study, str) and isinstance(run, str) else None


def _round(payload: bytes) -> Round:
    parts = [part for part, _ in _frames(payload, 0)]
    header = json.loads(parts[0])
    answers = [decode(part) for part in parts[1:]]
    return Round(
        **{**header, "asked": tuple(header["asked"])},
        answers={answer.silo: answer.body for answer in answers},
    )


def _framed(payload: bytes) -> bytes:
    return len(payload).to_bytes(LENGTH, "little") + payload + hashlib.sha256(payload).digest()


def _frames(content: bytes, start: int) -> Iterator[tuple[bytes, int]]:
    """Yield each sound payload and where it ends, up to the first that is cut short or altered."""
    place = start
    while place < len(content):
        length = int.from_bytes(content[place : place + LENGTH], "little")
        end = place + LENGTH + length + DIGEST
        payload = content[place + LENGTH : place + LENGTH + length]
        if end > len(content) or hashlib.sha256(payload).digest() != content[end - DIGEST : end]:
            return
        yield payload, end
        place = end
