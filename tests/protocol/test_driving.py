"""One loop drives a run: what is malformed is asked again; a round ends when nothing comes."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest

from fedpower.errors import ProtocolError
from fedpower.protocol import Message
from fedpower.protocol.coordinator import MOST_ATTEMPTS, Arrived, Asking, Unreadable, drive, in_turn, rounds
from fedpower.protocol.solvers import PowerSettings
from problems import spiked_rows, split
from runs import exact_study, make_coordinator, make_silos

SETTINGS = PowerSettings(study=exact_study(12, 3), rank=3, n_steps=4)
SILOS = make_silos(split(spiked_rows(), [200] * 3), 3)


def spoilt(times: int) -> tuple[Counter[int], object]:
    asked: Counter[int] = Counter()

    def answer(question: Message) -> Arrived:
        if question.silo == "silo-1":
            asked[question.round] += 1
            if asked[question.round] <= times:
                return Unreadable(silo="silo-1", problem="a message must be bytes")
        return SILOS[question.silo].answer(question)

    def ask(questions: tuple[Message, ...]) -> Asking:
        waiting = list(questions)
        for question in waiting:
            waiting += (yield answer(question)) or ()

    return asked, ask


def test_what_cannot_be_read_is_asked_for_again_and_the_run_is_the_same() -> None:
    whole = make_coordinator(SILOS, SETTINGS)
    drive(whole, in_turn(SILOS))
    coordinator = make_coordinator(SILOS, SETTINGS)
    asked, ask = spoilt(MOST_ATTEMPTS - 1)
    drive(coordinator, ask)  # type: ignore[arg-type]
    np.testing.assert_array_equal(coordinator.outcome.basis, whole.outcome.basis)
    assert set(asked.values()) == {MOST_ATTEMPTS}
    assert not any(each.set_aside for each in coordinator.history)


def test_a_silo_that_cannot_be_read_is_given_up_and_named() -> None:
    coordinator = make_coordinator(SILOS, SETTINGS)
    asked, ask = spoilt(10**6)
    with pytest.raises(ProtocolError, match=r"needs 3 answers and got 2; .* what silo-1 sent was set"):
        drive(coordinator, ask)  # type: ignore[arg-type]
    assert asked == {0: MOST_ATTEMPTS}


def test_a_round_that_has_enough_waits_for_nobody_and_lets_go_of_what_was_asked() -> None:
    first = PowerSettings(
        study=exact_study(12, 3), rank=3, n_steps=4, n_participants=2, participation="first"
    )
    coordinator = make_coordinator(SILOS, first, min_silos=2)
    left: list[int] = []

    def ask(questions: tuple[Message, ...]) -> Asking:
        try:
            yield from in_turn(SILOS)(questions)
        finally:
            left.append(questions[0].round)

    drive(coordinator, ask)
    assert [tuple(each.answers) for each in coordinator.history[1:]] == [("silo-0", "silo-1")] * 4
    assert left == [each.number for each in coordinator.history]


def test_a_run_goes_as_far_as_its_rounds_are_asked_for() -> None:
    coordinator = make_coordinator(SILOS, SETTINGS)
    closed = list(islice(rounds(coordinator, in_turn(SILOS)), 2))
    assert [each.number for each in closed] == [0, 1]
    assert coordinator.history[-1].number == 2
    assert not coordinator.history[-1].answers
    drive(coordinator, in_turn(SILOS))
    assert coordinator.done
