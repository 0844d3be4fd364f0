"""When a round is over: the rule, and an engine that obeys it. No test looks at a clock."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower.engines.inprocess import Pace, run_in_process
from fedpower.errors import ProtocolError
from fedpower.protocol import Silo, every
from fedpower.protocol.messages import Message
from fedpower.protocol.solvers import PowerSettings
from problems import spiked_rows, split
from runs import exact_study, make_coordinator, make_silos

SETTINGS = PowerSettings(study=exact_study(12, 3), rank=3, n_steps=8, schedule=every(1))
LONG = 300.0
"""Seconds that no test waits for: a round that ends does so for another reason."""

seconds = st.floats(0, 1e6)


@given(seconds, seconds, seconds, seconds)
def test_the_earlier_of_deadline_and_grace_ends_the_round(
    deadline: float, grace: float, elapsed: float, since: float
) -> None:
    """The deadline counts from the round's opening, grace from when enough had answered."""
    by_deadline, by_grace = max(0.0, deadline - elapsed), max(0.0, grace - since)
    assert Pace().left(elapsed, since) is None
    assert Pace(grace=grace).left(elapsed, None) is None
    assert Pace(deadline=deadline).left(elapsed, since) == by_deadline
    assert Pace(grace=grace).left(elapsed, since) == by_grace
    assert Pace(deadline=deadline, grace=grace).left(elapsed, since) == min(by_deadline, by_grace)


class Held:
    """A silo that gives no answer from a round on until it is let go."""

    def __init__(self, silo: Silo, gate: threading.Event, from_round: int = 0) -> None:
        self.silo, self.gate, self.from_round = silo, gate, from_round

    def answer(self, message: Message) -> Message:
        if message.round >= self.from_round:
            self.gate.wait()
        return self.silo.answer(message)


@contextmanager
def gate() -> Iterator[threading.Event]:
    """Give a gate that is opened at the latest when the test is over: no thread stays behind it."""
    made = threading.Event()
    try:
        yield made
    finally:
        made.set()


def silos_of(count: int) -> dict[str, Silo]:
    return make_silos(split(spiked_rows(), [600 // count] * count), 3)


def test_grace_does_not_begin_before_enough_have_answered() -> None:
    """Two are held until the third was asked: without them there are too few, whatever the grace."""
    silos = silos_of(3)
    coordinator = make_coordinator(silos, SETTINGS, min_silos=3)
    with gate() as closed:

        class Opens:
            def answer(self, message: Message) -> Message:
                closed.set()
                return silos["silo-2"].answer(message)

        crew = {
            "silo-0": Held(silos["silo-0"], closed),
            "silo-1": Held(silos["silo-1"], closed),
            "silo-2": Opens(),
        }
        run_in_process(coordinator, crew, deadline=LONG, grace=0.0)
    assert all(len(each.answers) == 3 for each in coordinator.history)


def test_a_silo_that_never_answers_does_not_hold_up_the_others_however_many_rounds_there_are() -> None:
    """More rounds than silos: each has a thread of its own, and the silent one only that one."""
    silos = silos_of(3)
    coordinator = make_coordinator(silos, SETTINGS, min_silos=2)
    with gate() as closed:
        crew = {**silos, "silo-1": Held(silos["silo-1"], closed, from_round=1)}
        run_in_process(coordinator, crew, deadline=LONG, grace=0.05)
    first, *others = coordinator.history
    assert len(others) > 2 * len(silos)
    assert tuple(first.answers) == tuple(silos)
    assert all(tuple(closed.answers) == ("silo-0", "silo-2") for closed in others)


def test_a_silo_is_not_asked_what_was_closed_while_it_slept() -> None:
    silos = silos_of(3)
    coordinator = make_coordinator(silos, SETTINGS, min_silos=2)
    answered: list[int] = []
    with gate() as closed:

        class Sleeper:
            def answer(self, message: Message) -> Message:
                if message.round == 1:
                    closed.wait()
                answered.append(message.round)
                return silos["silo-1"].answer(message)

        class Wakes:
            def answer(self, message: Message) -> Message:
                if message.round == 5:
                    closed.set()
                return silos["silo-0"].answer(message)

        crew = {"silo-0": Wakes(), "silo-1": Sleeper(), "silo-2": silos["silo-2"]}
        run_in_process(coordinator, crew, deadline=LONG, grace=0.2)
    assert coordinator.done
    assert not set(answered) & {2, 3, 4}


def test_too_few_at_the_deadline_end_the_run_although_grace_never_began() -> None:
    silos = silos_of(2)
    coordinator = make_coordinator(silos, SETTINGS)
    with gate() as closed:
        crew = {**silos, "silo-1": Held(silos["silo-1"], closed, from_round=1)}
        with pytest.raises(ProtocolError, match="needs 2 answers and got 1; bring back silo-1"):
            run_in_process(coordinator, crew, deadline=0.2, grace=LONG)
