"""A silo that sends nonsense is left out as a silent one would be: nothing raises, nothing is bricked."""

import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest
import secure_silos
from msgspec import structs
from spoilt import mutations

from carriers import drive
from federations import closed_rounds, coordinator_of, deliver, parties_of, result_bytes
from fedpower.exceptions import ProtocolError
from fedpower.protocol.coordinator import Arrived, Coordinator, Unreadable
from fedpower.protocol.messages import Enrolment, Member, Message, Refusal, SessionKey, decode, encode
from fedpower.protocol.secure import signed_content

BAD = "west"


def sent(message: Message) -> Arrived:
    try:
        return decode(encode(message))
    except (ProtocolError, TypeError, OverflowError, ValueError, NotImplementedError) as error:
        return Unreadable(
            silo=message.silo, problem=f"a message must be readable, got {type(error).__name__}"
        )


def carried(
    coordinator: Coordinator,
    parties: Mapping[str, Any],
    *,
    bad_round: int = 99,
    spoil: Callable[[Message], list[Message]] = lambda answer: [],
) -> None:
    """Run to the end with what ``spoil`` makes of one silo's answer in one round."""

    def ask(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        for question in questions:
            answer = parties[question.silo].answer(question)
            if question.silo == BAD and question.round == bad_round:
                for each in spoil(answer):
                    yield sent(each)
                    assert BAD in coordinator.history[-1].set_aside, each
            else:
                yield answer

    drive(coordinator, ask)


def federation(case: str) -> tuple[Coordinator, Mapping[str, Any]]:
    if case != "secure":
        return coordinator_of(case, min_silos=2), parties_of(case)
    study = secure_silos.study_of(attempts=2, min_silos=2)
    held = secure_silos.parties(study)
    return secure_silos.coordinator_of(study), {name: each.silo for name, each in held.items()}


def offered(coordinator: Coordinator, parties: Mapping[str, Any], bodies: Callable[[Any], Any]) -> None:
    """Run to the end; what one silo sends before each true answer is set aside in a sentence."""

    def ask(questions: tuple[Message, ...]) -> Iterator[Arrived]:
        for question in questions:
            answer = parties[question.silo].answer(question)
            for body in bodies(answer.body) if question.silo == BAD else ():
                current = coordinator.history[-1]
                current.set_aside.clear()
                yield sent(structs.replace(answer, body=body))
                assert " must " in current.set_aside[BAD], body
                assert current.set_aside[BAD].isprintable()
            yield answer

    drive(coordinator, ask)
    assert set(coordinator.outcome.sizes) == set(parties)
    assert not any(each.set_aside for each in coordinator.history)


@pytest.mark.parametrize(
    "case", ["fedpower", "krylov", "upload", "upload, covariance", "krylov, step", "secure"]
)
def test_every_way_to_spoil_every_field_is_set_aside_and_the_silo_is_named(case):
    coordinator, parties = federation(case)
    offered(coordinator, parties, mutations)
    if case != "secure":
        whole = coordinator_of(case, min_silos=2)
        deliver(whole, parties)
        assert result_bytes(case, coordinator) == result_bytes(case, whole)


@pytest.mark.parametrize(
    "case", ["fedpower, covariance", "fedpower, step", "fedpower, paper", "krylov, step"]
)
def test_a_number_beyond_what_rows_and_noise_can_give_is_set_aside(case):
    tried: set[str] = set()

    def far(body: Any) -> Iterator[Any]:
        for name in ("mean", "product", "total_variance"):
            if (value := getattr(body, name, None)) is not None:
                large = (np.abs(value) + 1.0) * 1e20
                tried.add(name)
                yield structs.replace(body, **{name: float(large) if isinstance(value, float) else large})

    offered(*federation(case), far)
    assert {"mean", "product"} <= tried


@pytest.mark.parametrize("bad_round", [0, 1, 2])
def test_a_spoilt_place_or_upload_costs_a_secure_sum_that_silo_alone(bad_round):
    coordinator, parties = federation("secure")
    spoil = functools.partial(spoilt_last, coordinator)
    carried(coordinator, parties, bad_round=bad_round, spoil=spoil)
    assert list(coordinator.outcome.sizes) == [name for name in parties if name != BAD]


def spoilt_last(coordinator: Coordinator, answer: Message) -> list[Message]:
    """Return an answer with its last field spoilt; or with keys that are signed, and that no sum may use."""
    if not isinstance(answer.body, SessionKey):
        return [structs.replace(answer, body=mutations(answer.body)[-1])]
    taken = coordinator.history[-1].answers["north"].key  # type: ignore[union-attr]
    found = []
    for key in (bytes(32), taken):
        member = Member(silo=BAD, n_rows=answer.body.n_rows, key=key, signature=b"")
        content = signed_content(member, answer.study, answer.run, 0)
        body = structs.replace(answer.body, key=key, signature=secure_silos.KEYS[BAD].sign(content))
        found.append(structs.replace(answer, body=body))
    return found


def test_only_what_passed_is_written_down():
    case, written = "upload", []
    coordinator = coordinator_of(case, min_silos=3, on_closed=written.append)
    body = Enrolment(n_rows=2**60, n_features=6)
    carried(coordinator, parties_of(case), bad_round=0, spoil=lambda made: [structs.replace(made, body=body)])
    assert not any(BAD in each.answers for each in written)
    assert written[0].set_aside[BAD].startswith("a number of rows must have")
    resumed = coordinator_of(case, min_silos=3, recorded=closed_rounds(coordinator))
    assert resumed.done
    assert result_bytes(case, resumed) == result_bytes(case, coordinator)


@pytest.mark.parametrize(
    ("place", "spoil"),
    [
        (0, {"n_rows": 2**60}),
        (0, {"n_features": 7}),
        (1, {"values": np.zeros(5)}),
        (1, {"mean": None}),
        (1, {"mean": np.zeros(5)}),
    ],
)
def test_a_bad_answer_on_disk_is_asked_for_again(place, spoil):
    case = "upload"
    whole = coordinator_of(case)
    carried(whole, parties_of(case))
    records = closed_rounds(whole)
    records[place].answers[BAD] = structs.replace(records[place].answers[BAD], **spoil)
    resumed = coordinator_of(case, recorded=records)
    assert resumed.n_replayed == place
    carried(resumed, parties_of(case))
    assert result_bytes(case, resumed) == result_bytes(case, whole)


def test_a_refusal_is_shown_without_what_a_terminal_would_run():
    coordinator, parties = coordinator_of("upload", min_silos=1), parties_of("upload")
    answer = parties["north"].answer(coordinator.next()[0])
    refusal = Refusal(reason="no\x1b[2J\u202e" + "x" * 10**6)
    coordinator.receive(structs.replace(answer, body=refusal))
    reported = coordinator.history[-1].refused["north"]
    assert reported.isprintable()
    assert len(reported) <= 1000
