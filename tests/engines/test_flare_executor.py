"""FLARE's side of a silo, without its processes: what is no question of the study gets no answer."""

import logging
import math
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

import numpy as np
import pytest
from nvflare.apis.event_type import EventType
from nvflare.apis.fl_constant import ReturnCode
from nvflare.apis.fl_context import FLContext
from nvflare.apis.shareable import Shareable
from nvflare.apis.signal import Signal

from federations import NAMES, Party, parties_of
from fedpower.engines.flare import KEY, TASK, SiloExecutor, failed, unwrapped, wrapped
from fedpower.engines.inprocess import Answers
from fedpower.errors import InputError, ProtocolError
from fedpower.protocol.messages import (
    AskMoment,
    AskSteps,
    Enrolment,
    Message,
    PackedMoment,
    Refusal,
    encode,
    read_only,
)

MOST = 4096
MANY = 10**6


class OneSilo(SiloExecutor):
    """Answers for a party; where there is none, its rows cannot be read."""

    def __init__(self, party: Party | None) -> None:
        super().__init__()
        self.party = party
        self.closed = 0

    def open(self) -> AbstractContextManager[Answers]:
        return self._opened()

    @contextmanager
    def _opened(self) -> Iterator[Answers]:
        if self.party is None:
            raise InputError("row 17 of the file must hold numbers, got 'HIV positive'; correct it")
        yield self.party
        self.closed += 1

    @property
    def most_bytes(self) -> int:
        return MOST


@pytest.fixture
def party() -> Party:
    return parties_of("upload, moment")["north"]


@pytest.fixture
def executor(party: Party) -> Iterator[OneSilo]:
    made = OneSilo(party)
    made.handle_event(EventType.START_RUN, FLContext())
    yield made
    made.handle_event(EventType.END_RUN, FLContext())
    assert made.closed == 1


def ask(executor: SiloExecutor, carried: object) -> Shareable:
    return executor.execute(TASK, carried, FLContext(), Signal())


def question(party: Party, **changes: object) -> Message:
    fields = {"study": party.study.digest, "run": "r", "round": 0, "silo": party.name}
    return Message(**{**fields, "body": AskMoment(), **changes})  # type: ignore[arg-type]


def carrying(content: object) -> Shareable:
    carried = Shareable()
    carried[KEY] = content
    return carried


def cut(content: bytes) -> bytes:
    return content[:-1]


def turned(content: bytes) -> bytes:
    return bytes([*content[:40], content[40] ^ 1, *content[41:]])


def test_a_question_of_the_study_is_answered(executor: OneSilo, party: Party) -> None:
    reply = ask(executor, wrapped(question(party)))
    assert reply.get_return_code() == ReturnCode.OK
    answer = unwrapped(reply, most_bytes=MANY)
    assert isinstance(answer.body, PackedMoment)
    assert party.n_charged == 1


@pytest.mark.parametrize(
    "spoil",
    [
        lambda content: carrying(None),
        lambda content: carrying("text"),
        lambda content: carrying(bytearray(content)),
        lambda content: carrying(np.zeros(3)),
        lambda content: carrying({"a": 1}),
        lambda content: carrying(b""),
        lambda content: carrying(cut(content)),
        lambda content: carrying(turned(content)),
        lambda content: carrying(content + b"\0"),
        lambda content: carrying(content + b"\0" * MOST),
        lambda content: carrying(os.urandom(200)),
        lambda content: Shareable(),
        lambda content: {KEY: content},
        lambda content: None,
    ],
    ids=[
        "nothing", "text", "bytearray", "array", "dict", "empty", "cut short", "a bit turned",
        "a byte more", "oversized", "noise", "no key", "no shareable", "none at all",
    ],
)  # fmt: skip
def test_what_is_no_question_gets_no_answer_is_logged_and_charged_nothing(
    spoil: object, executor: OneSilo, party: Party, caplog: pytest.LogCaptureFixture
) -> None:
    carried = spoil(encode(question(party)))  # type: ignore[operator]
    with caplog.at_level(logging.ERROR):
        reply = ask(executor, carried)
    assert reply.get_return_code() == ReturnCode.BAD_TASK_DATA
    assert KEY not in reply
    assert "refused what is no question of this study" in caplog.text
    assert (party.n_asked, party.n_charged) == (0, 0)


@pytest.mark.parametrize(
    "changes",
    [
        {"study": "0" * 64},
        {"silo": "south"},
        {"body": Enrolment(n_rows=1, n_features=1)},
        {"body": Refusal(reason="no")},
        {"body": AskSteps(basis=read_only(np.full((6, 2), 9.0)), n_local_steps=1)},
    ],
    ids=["another study", "another silo", "an answer", "a refusal", "an inflated basis"],
)
def test_a_question_that_is_not_for_this_silo_is_refused_logged_and_charged_nothing(
    changes: dict[str, object],
    executor: OneSilo,
    party: Party,
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.WARNING):
        reply = ask(executor, wrapped(question(party, **changes)))
    answer = unwrapped(reply, most_bytes=MANY)
    assert isinstance(answer.body, Refusal)
    assert answer.silo == party.name
    assert "refused round 0" in caplog.text
    assert party.n_charged == 0


def test_a_silo_whose_rows_cannot_be_read_says_nothing_about_them(
    caplog: pytest.LogCaptureFixture, party: Party
) -> None:
    executor = OneSilo(None)
    with caplog.at_level(logging.ERROR):
        executor.handle_event(EventType.START_RUN, FLContext())
        reply = ask(executor, wrapped(question(party)))
    executor.handle_event(EventType.END_RUN, FLContext())
    reported = unwrapped(reply, most_bytes=MANY)
    assert reported.body == Refusal(reason="the silo could not answer; its operator's log says why")
    assert b"HIV" not in reply[KEY]
    assert "HIV positive" in caplog.text  # at the silo's own log, where the operator looks


def test_a_message_travels_as_bytes_alone_and_comes_back_the_same() -> None:
    party = parties_of("krylov")[NAMES[1]]
    asked = question(party, body=AskSteps(basis=read_only(np.eye(6)[:, :3]), n_local_steps=1))
    carried = wrapped(asked)
    own = set(carried) - set(Shareable())
    assert own == {KEY}
    assert isinstance(carried[KEY], bytes)
    back = unwrapped(carried, most_bytes=len(carried[KEY]))
    assert encode(back) == encode(asked)
    with pytest.raises(ProtocolError, match=r"at most \d+ bytes, got \d+; send what"):
        unwrapped(carried, most_bytes=len(carried[KEY]) - 1)


def test_no_answer_says_nothing_but_that() -> None:
    assert set(failed()) == set(Shareable())
    assert math.isfinite(len(failed().get_return_code()))
