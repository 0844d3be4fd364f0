"""The journal: closed rounds as bytes, read back up to the first damage."""

import random

import pytest

from federations import CASES, coordinator_of, deliver, parties_of, study_of
from fedpower.errors import ProtocolError
from fedpower.protocol import journal
from fedpower.protocol.coordinator import Round
from fedpower.protocol.messages import Enrolment, Message, encode

STUDY, RUN = "5" * 64, "0123456789abcdef"


def finished(case: str) -> list[Round]:
    coordinator = coordinator_of(case)
    deliver(coordinator, parties_of(case))
    return coordinator.history


def as_bytes(closed: list[Round], study: str = STUDY) -> bytes:
    records = [journal.record(each) for each in closed]
    return journal.opening(study, RUN) + b"".join(records)


def answer_bytes(closed: Round) -> list[bytes]:
    return [
        encode(Message(study="", run="", round=closed.number, silo=name, body=body))
        for name, body in closed.answers.items()
    ]


@pytest.mark.parametrize("case", CASES)
def test_every_kind_of_answer_comes_back_as_it_was(case: str) -> None:
    rounds = finished(case)
    held = journal.read(as_bytes(rounds, study_of(case).digest))
    assert (held.study, held.run) == (study_of(case).digest, RUN)
    assert len(held.rounds) == len(rounds)
    for back, closed in zip(held.rounds, rounds, strict=True):
        assert answer_bytes(back) == answer_bytes(closed)
        reported = ("number", "kind", "step", "asked", "question", "local_steps", "refused", "bytes_up")
        assert all(getattr(back, name) == getattr(closed, name) for name in reported)


def test_all_kinds_of_answers_are_among_the_cases() -> None:
    kinds = {body.kind for case in CASES for each in finished(case) for body in each.answers.values()}
    assert kinds == {"enrolment", "moment-part", "local-steps", "query-answer"}


def test_refusals_are_kept_with_their_sentence() -> None:
    closed = Round(number=0, kind="enrol", step=0, asked=("a", "b"), refused={"b": "nein, „nie“"})
    closed.answers = {"a": Enrolment(n_rows=3, n_features=2)}
    (back,) = journal.read(as_bytes([closed])).rounds
    assert back == closed


def test_a_journal_of_no_round_is_one() -> None:
    held = journal.read(journal.opening(STUDY, RUN))
    assert (held.study, held.run, held.rounds) == (STUDY, RUN, ())
    assert held.sound == len(journal.opening(STUDY, RUN))


@pytest.mark.slow
def test_cut_short_at_any_byte_the_whole_records_before_it_stand() -> None:
    rounds = finished("fedpower, moment")
    content = as_bytes(rounds)
    ends = [len(as_bytes(rounds[:count])) for count in range(len(rounds) + 1)]
    for cut in range(ends[0], len(content) + 1):
        held = journal.read(content[:cut])
        whole = sum(end <= cut for end in ends) - 1
        assert len(held.rounds) == whole
        assert held.sound == ends[whole]
        assert held.ends == tuple(ends[: whole + 1])


@pytest.mark.slow
def test_with_any_bit_turned_the_records_before_it_stand_and_no_other() -> None:
    rounds = finished("upload, moment")
    content = as_bytes(rounds)
    ends = [len(as_bytes(rounds[:count])) for count in range(len(rounds) + 1)]
    chance = random.Random(0)
    for place in range(len(content)):
        turned = bytearray(content)
        turned[place] ^= 1 << chance.randrange(8)
        if place < ends[0]:
            with pytest.raises(ProtocolError, match="start the run again"):
                journal.read(bytes(turned))
        else:
            held = journal.read(bytes(turned))
            assert held.sound == max(end for end in ends if end <= place)


@pytest.mark.parametrize("content", [b"", b"{}", b"PK\x03\x04", b"fedpower-journal/3\n" + b"x" * 99])
def test_what_was_not_begun_by_fedpower_is_refused(content: bytes) -> None:
    with pytest.raises(ProtocolError, match=r"must begin as fedpower writes it; start"):
        journal.read(content)


@pytest.mark.parametrize("opening", [b"[1]", b"no json", b'{"study": "s"}', b'{"study": 1, "run": 2}'])
def test_an_opening_that_names_no_run_is_refused(opening: bytes) -> None:
    content = journal.MAGIC + journal._framed(opening)
    with pytest.raises(ProtocolError, match="must say which run it belongs to"):
        journal.read(content)


@pytest.mark.parametrize("payload", [b"", b"{}", b"[]", b"\x00" * 50])
def test_a_sound_frame_that_holds_no_round_ends_the_journal(payload: bytes) -> None:
    opening = journal.opening(STUDY, RUN)
    held = journal.read(opening + journal._framed(payload))
    assert held.rounds == ()
    assert held.sound == len(opening)
