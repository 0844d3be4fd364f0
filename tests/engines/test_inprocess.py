"""The in-process engine: moves messages, bounds threads, keeps deadlines."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given
from hypothesis import strategies as st

from fedpower.engines.inprocess import Pace, available_cores, blas_threads, run_in_process
from fedpower.errors import ProtocolError
from fedpower.protocol import Silo, decaying, every
from fedpower.protocol.messages import Message
from fedpower.protocol.solvers import PowerSettings
from fedpower.values import cached_property
from problems import spiked_rows, split
from runs import drive, exact_study, make_coordinator, make_silos

SETTINGS = PowerSettings(study=exact_study(12, 3, center=True), rank=3, n_steps=8, schedule=decaying(3))
SIZES = [100, 200, 300]


@pytest.fixture
def silos() -> dict[str, Silo]:
    return make_silos(split(spiked_rows(), SIZES), 3, center=True)


class Wrapped:
    """A silo that does something before it answers."""

    def __init__(self, silo: Silo, before: Callable[[Message], Message | None]) -> None:
        self.silo, self.before = silo, before

    def answer(self, message: Message) -> Message:
        return self.before(message) or self.silo.answer(message)


def wrapped(silos: dict[str, Silo], before: Callable[[Message], Any]) -> dict[str, Wrapped]:
    return {name: Wrapped(silo, before) for name, silo in silos.items()}


@pytest.mark.parametrize("n_jobs", [None, 1, 8])
def test_the_result_is_the_same_bytes_as_without_threads(silos: dict[str, Silo], n_jobs: int | None) -> None:
    plain = make_coordinator(silos, SETTINGS)
    drive(plain, silos)
    threaded = make_coordinator(silos, SETTINGS)
    run_in_process(threaded, silos, n_jobs=n_jobs)
    np.testing.assert_array_equal(threaded.outcome.basis, plain.outcome.basis)


def test_silos_answer_at_the_same_time() -> None:
    """Two silos that each wait for the other can only finish side by side."""
    meeting = threading.Barrier(2, timeout=20)
    silos = make_silos(split(spiked_rows(), [300, 300]), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, wrapped(silos, lambda _: meeting.wait() and None), n_jobs=2)
    assert coordinator.done


def test_blas_threads_are_bounded_while_silos_work_and_given_back(silos: dict[str, Silo]) -> None:
    seen: list[int] = []

    def now() -> list[int]:
        # PyTorch, where a test has imported it, brings a BLAS that only PyTorch calls.
        info = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
        return [each["num_threads"] for each in info if "torch" not in each["filepath"]]

    before = now()
    run_in_process(make_coordinator(silos, SETTINGS), wrapped(silos, lambda _: seen.extend(now())))
    busy = min(available_cores(), len(silos))
    assert max(seen) <= max(1, available_cores() // busy)
    assert now() == before
    first, second = blas_threads(1), blas_threads(1)  # of two fits that overlap
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert now() == before


def test_of_many_silos_every_one_is_asked_once_in_every_round() -> None:
    asked: list[tuple[str, int]] = []
    silos = make_silos(split(spiked_rows(), [10] * 60), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    counting = wrapped(silos, lambda message: asked.append((message.silo, message.round)))
    run_in_process(coordinator, counting, n_jobs=2)
    assert coordinator.done
    rounds = range(len(coordinator.history))
    assert sorted(asked) == sorted((name, number) for number in rounds for name in silos)


# When a round is over: the rule, and an engine that obeys it. No test looks at a clock.

EVERY_STEP = PowerSettings(study=exact_study(12, 3), rank=3, n_steps=8, schedule=every(1))
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
    coordinator = make_coordinator(silos, EVERY_STEP, min_silos=3)
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
    coordinator = make_coordinator(silos, EVERY_STEP, min_silos=2)
    with gate() as closed:
        crew = {**silos, "silo-1": Held(silos["silo-1"], closed, from_round=1)}
        run_in_process(coordinator, crew, deadline=LONG, grace=0.05)
    first, *others = coordinator.history
    assert len(others) > 2 * len(silos)
    assert tuple(first.answers) == tuple(silos)
    assert all(tuple(closed.answers) == ("silo-0", "silo-2") for closed in others)


def test_a_silo_is_not_asked_what_was_closed_while_it_slept() -> None:
    silos = silos_of(3)
    coordinator = make_coordinator(silos, EVERY_STEP, min_silos=2)
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
    coordinator = make_coordinator(silos, EVERY_STEP)
    with gate() as closed:
        crew = {**silos, "silo-1": Held(silos["silo-1"], closed, from_round=1)}
        with pytest.raises(ProtocolError, match="needs 2 answers and got 1; bring back silo-1"):
            run_in_process(coordinator, crew, deadline=0.2, grace=LONG)


def test_silos_compute_what_is_kept_at_the_same_time() -> None:
    """On Python 3.11 that of functools lets one instance at a time compute."""
    both = threading.Barrier(2, timeout=10)

    class Kept:
        @cached_property
        def number(self) -> int:
            return both.wait()

    with ThreadPoolExecutor(2) as pool:
        assert sorted(pool.map(lambda kept: kept.number, [Kept(), Kept()])) == [0, 1]
