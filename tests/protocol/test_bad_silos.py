"""A silo that sends nonsense is left out as a silent one would be: nothing raises, nothing is bricked."""

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import secure_silos
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs

from federations import CASES, Party, closed_rounds, coordinator_of, deliver, parties_of, result_bytes
from fedpower.errors import ProtocolError
from fedpower.protocol import Coordinator, Receipt
from fedpower.protocol.coordinator import Arrived, Asking, Unreadable, drive
from fedpower.protocol.messages import Enrolment, Message, MomentPart, Refusal, decode, encode
from fedpower.protocol.secure import signed_content

BAD = "west"

NUMBERS: list[Any] = [
    *(None, True, "7", b"7", [1.0], {}, float("nan"), float("inf"), float("-inf")),
    *(-1, 0, 2.5, 1e300, -1e300, 10**400, -(10**400), 2**62),
]
ARRAYS: list[Callable[[np.ndarray], Any]] = [
    lambda a: None,
    lambda a: "numbers",
    lambda a: a.tolist(),
    lambda a: a[:-1],
    lambda a: np.append(a, a),
    lambda a: a[np.newaxis],
    lambda a: np.zeros(0),
    lambda a: np.float64(1.0),
    lambda a: np.ones(a.shape, dtype=np.float64 if a.dtype == np.uint64 else np.uint64),
    lambda a: _with(a, np.nan),
    lambda a: _with(a, np.inf),
    lambda a: _with(a, 1e300),
    lambda a: _with(a, -1e200),
]
TEXTS: list[Any] = [None, 7, "\x1b[2J", "a" * 10_000, "\ud800"]
BYTES: list[Callable[[bytes], Any]] = [
    lambda b: b"",
    lambda b: b[:-1],
    lambda b: b + b"0",
    lambda b: bytes(len(b)),
    lambda b: bytes([b[0] ^ 1]) + b[1:],
    lambda b: b.hex(),
    lambda b: None,
]


def _with(array: np.ndarray, value: float) -> np.ndarray:
    changed = array.astype(np.float64) if array.size else np.zeros(1)
    changed.flat[-1] = value
    return changed


def _same(array: np.ndarray, changed: Any) -> bool:
    if not isinstance(changed, np.ndarray):
        return False
    return (array.dtype, array.shape, array.tobytes()) == (changed.dtype, changed.shape, changed.tobytes())


def mutations(body: Any) -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = [("another kind", MomentPart(values=np.zeros(2)))]
    for name in body.__struct_fields__:
        value = getattr(body, name)
        options: list[Any]
        if isinstance(value, np.ndarray):
            options = [new for new in (change(value) for change in ARRAYS) if not _same(value, new)]
        elif isinstance(value, bytes):
            options = [change(value) for change in BYTES]
        elif isinstance(value, str):
            options = TEXTS
        elif value is None:  # an array or a number where none was asked for
            options = [np.zeros((6, 3)), np.full((6, 3), np.nan), "none", 10**400, float("nan")]
        elif isinstance(value, int):
            options = [x for x in NUMBERS if type(x) is not int or x not in (value,)]
        else:
            options = [x for x in NUMBERS if x not in (0, -1, 2.5, 2**62)]  # these may be true
        found += [(name, structs.replace(body, **{name: option})) for option in options]
    return found


def sent(message: Message) -> Arrived:
    try:
        return decode(encode(message))
    except (ProtocolError, TypeError, OverflowError, ValueError, NotImplementedError) as error:
        return Unreadable(
            silo=message.silo, problem=f"a message must be readable, got {type(error).__name__}"
        )


def carried(
    coordinator: Coordinator,
    parties: dict[str, Party],
    *,
    bad_round: int,
    spoil: Callable[[Message], list[Message]],
) -> None:

    def ask(questions: tuple[Message, ...]) -> Asking:
        for question in questions:
            answer = parties[question.silo].answer(question)
            if question.silo == BAD and question.round == bad_round:
                for each in spoil(answer):
                    yield sent(each)
                    assert BAD in coordinator.history[-1].set_aside, each
            else:
                yield answer

    drive(coordinator, ask)


def ending(case: str, bad_round: int, spoil: Callable[[Message], list[Message]]) -> Any:
    coordinator = coordinator_of(case, min_silos=2)
    try:
        carried(coordinator, parties_of(case), bad_round=bad_round, spoil=spoil)
    except ProtocolError as error:
        return str(error).partition("; what")[0], len(coordinator.history)
    return result_bytes(case, coordinator)


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES)
@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_a_spoilt_answer_is_as_if_it_had_not_come(case: str, data: st.DataObject) -> None:
    bad_round = data.draw(st.integers(0, 3), label="round")

    def spoil(answer: Message) -> list[Message]:
        ways = mutations(answer.body)
        _, body = data.draw(st.sampled_from(ways), label="way")
        return [structs.replace(answer, body=body)]

    assert ending(case, bad_round, spoil) == without_it(case, bad_round)


@functools.cache
def without_it(case: str, bad_round: int) -> Any:
    return ending(case, bad_round, lambda answer: [])


@pytest.mark.parametrize("case", ["fedpower", "krylov", "upload", "upload, moment", "krylov, step"])
def test_every_way_to_spoil_every_field_is_set_aside_and_the_silo_is_named(case: str) -> None:
    coordinator, parties = coordinator_of(case), parties_of(case)

    def ask(questions: tuple[Message, ...]) -> Asking:
        for question in questions:
            answer = parties[question.silo].answer(question)
            for _, body in mutations(answer.body) if question.silo == BAD else ():
                current = coordinator.history[-1]
                current.set_aside.clear()
                yield sent(structs.replace(answer, body=body))
                assert " must " in current.set_aside[BAD]
                assert current.set_aside[BAD].isprintable()
            yield answer

    drive(coordinator, ask)
    whole = coordinator_of(case)
    deliver(whole, parties)
    assert result_bytes(case, coordinator) == result_bytes(case, whole)
    assert not any(each.set_aside for each in coordinator.history)


@pytest.mark.parametrize("bad_round", [0, 1, 2])
@pytest.mark.parametrize("place", range(20))
def test_a_spoilt_place_or_upload_costs_a_secure_sum_that_silo_alone(bad_round: int, place: int) -> None:
    study = secure_silos.study_of(attempts=2, min_silos=2)
    parties = secure_silos.parties(study)
    names = [name for name, _ in study.identities]
    coordinator = secure_silos.coordinator_of(study)

    def ask(questions: tuple[Message, ...]) -> Asking:
        for question in questions:
            answer = parties[question.silo].silo.answer(question)
            if question.silo == names[-1] and question.round == bad_round:
                ways = mutations(answer.body)
                yield sent(structs.replace(answer, body=ways[place % len(ways)][1]))
                assert names[-1] in coordinator.history[-1].set_aside
            else:
                yield answer

    drive(coordinator, ask)
    assert list(coordinator.outcome.sizes) == names[:-1]


def test_a_key_that_gives_no_secret_or_is_another_s_is_set_aside() -> None:
    study = secure_silos.study_of(attempts=1, min_silos=2)
    parties = secure_silos.parties(study)
    names = [name for name, _ in study.identities]
    coordinator = secure_silos.coordinator_of(study)
    keys: dict[str, bytes] = {}

    def ask(questions: tuple[Message, ...]) -> Asking:
        for question in questions:
            answer = parties[question.silo].silo.answer(question)
            if question.round == 1 and question.silo == names[-1]:
                for key in (bytes(32), keys[names[0]]):
                    content = signed_content(
                        study=study.digest,
                        run=question.run,
                        attempt=0,
                        silo=names[-1],
                        n_rows=answer.body.n_rows,
                        key=key,
                    )
                    signature = secure_silos.KEYS[names[-1]].sign(content)
                    body = structs.replace(answer.body, key=key, signature=signature)
                    yield structs.replace(answer, body=body)
                    assert "a key of a secure sum" in coordinator.history[-1].set_aside[names[-1]]
                continue
            if question.round == 1:
                keys[question.silo] = answer.body.key
            yield answer

    drive(coordinator, ask)
    assert list(coordinator.outcome.sizes) == names[:-1]


def test_a_moment_without_its_mean_does_not_turn_centring_off() -> None:
    case = "upload"
    coordinator = coordinator_of(case, min_silos=3)
    carried(
        coordinator,
        parties_of(case),
        bad_round=1,
        spoil=lambda answer: [structs.replace(answer, body=structs.replace(answer.body, mean=None))],
    )
    assert coordinator.outcome.center is not None
    assert coordinator.history[-1].set_aside[BAD].startswith("a mean must have the shape (6,)")


def test_only_what_passed_is_written_down() -> None:
    case, written = "upload", []
    coordinator = coordinator_of(case, min_silos=3, on_closed=written.append)
    parties = parties_of(case)
    carried(
        coordinator,
        parties,
        bad_round=0,
        spoil=lambda answer: [structs.replace(answer, body=Enrolment(n_rows=2**60, n_features=6))],
    )
    for each in written:
        assert BAD not in each.answers
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
def test_a_bad_answer_on_disk_is_asked_for_again(place: int, spoil: dict[str, Any]) -> None:
    case = "upload"
    whole = coordinator_of(case)
    carried(whole, parties_of(case), bad_round=99, spoil=lambda answer: [])
    records = closed_rounds(whole)
    records[place].answers[BAD] = structs.replace(records[place].answers[BAD], **spoil)
    resumed = coordinator_of(case, recorded=records)
    assert resumed.n_replayed == place
    carried(resumed, parties_of(case), bad_round=99, spoil=lambda answer: [])
    assert result_bytes(case, resumed) == result_bytes(case, whole)


def test_a_refusal_is_shown_without_what_a_terminal_would_run() -> None:
    coordinator, parties = coordinator_of("upload", min_silos=1), parties_of("upload")
    (question, *_) = coordinator.next()
    answer = structs.replace(
        parties[question.silo].answer(question), body=Refusal(reason="no\x1b[2J\u202e" + "x" * 10**6)
    )
    assert coordinator.receive(answer) is Receipt.REFUSED
    reported = coordinator.history[-1].refused[question.silo]
    assert reported.isprintable()
    assert len(reported) <= 1000


def test_too_few_silos_are_told_with_what_was_set_aside() -> None:
    coordinator, parties = coordinator_of("upload"), parties_of("upload")
    for question in coordinator.next():
        answer = parties[question.silo].answer(question)
        if question.silo == BAD:
            answer = structs.replace(answer, body=Enrolment(n_rows=0, n_features=6))
        coordinator.receive(answer)
    with pytest.raises(
        ProtocolError, match=r"needs 4 answers and got 3; .*; what west sent was set"
    ) as reported:
        coordinator.deadline()
    assert "\n" not in str(reported.value)
