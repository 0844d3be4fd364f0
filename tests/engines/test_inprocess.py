"""The in-process engine: moves messages, bounds threads, keeps deadlines."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import threadpoolctl

from fedpower.engines.inprocess import available_cores, blas_threads, read_silos, run_in_process
from fedpower.exceptions import InputError, ProtocolError
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.messages import Message
from fedpower.protocol.silo import Silo
from fedpower.rows.networks import open_network
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from problems import spiked_rows, split
from runs import drive, exact_study, make_coordinator, make_silos, power_settings

SETTINGS = power_settings(exact_study(12, 3, center=True), 3, n_steps=8, local_steps=3, schedule="decaying")
SIZES = [100, 200, 300]


@pytest.fixture
def silos() -> dict[str, Silo]:
    return make_silos(split(spiked_rows(), SIZES), 3, center=True)


class Wrapped:
    def __init__(self, silo: Silo, before: Callable[[Message], object]) -> None:
        self.silo, self.before = silo, before

    def answer(self, message: Message) -> Message:
        self.before(message)
        return self.silo.answer(message)


def wrapped(silos: dict[str, Silo], before: Callable[[Message], object]) -> dict[str, Wrapped]:
    return {name: Wrapped(silo, before) for name, silo in silos.items()}


@pytest.mark.parametrize("n_jobs", [None, 1, 8])
def test_the_result_is_the_same_bytes_as_without_threads_and_each_silo_is_asked_once_a_round(silos, n_jobs):
    asked: list[tuple[int, str]] = []
    plain, threaded = make_coordinator(silos, SETTINGS), make_coordinator(silos, SETTINGS)
    drive(plain, silos)
    counting = wrapped(silos, lambda message: asked.append((message.round, message.silo)))
    run_in_process(threaded, counting, n_jobs=n_jobs)
    np.testing.assert_array_equal(threaded.outcome.basis, plain.outcome.basis)
    assert sorted(asked) == [(number, name) for number in range(len(plain.history)) for name in silos]


def test_silos_answer_at_the_same_time():
    """Two silos that each wait for the other can only finish side by side."""
    meeting = threading.Barrier(2, timeout=20)
    silos = make_silos(split(spiked_rows(), [300, 300]), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, wrapped(silos, lambda _: meeting.wait()), n_jobs=2)
    assert coordinator.done


def test_blas_threads_are_bounded_while_silos_work_and_given_back(silos):
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


def test_edges_are_read_where_the_study_protects_edges_of_that_weight_alone() -> None:
    edges = open_network(np.zeros((12, 12)), unit="edge", edge_weight=2.0)
    rows, study = open_source(np.zeros((4, 12))), exact_study(12, 3)
    others = replace(study, network="edge", edge_weight=3.0)
    for source, terms, wanted in ((edges, study, "rows"), (rows, others, "edges"), (edges, others, "edges")):
        with pytest.raises(InputError, match=f"must be read as {wanted}.*, which the study protects, got"):
            read_silos(terms, {"north": source}, RowTreatment())


# When a round is over: the rule, and an engine that obeys it. No test looks at a clock.

LONG = 300.0
"""Seconds that no test waits for: a round that ends does so for another reason."""


@contextmanager
def three(min_silos: int | None = None) -> Iterator[tuple[Coordinator, dict[str, Any], threading.Event]]:
    """Give a coordinator, its silos, and a gate that is open at the latest when the test is over."""
    silos: dict[str, Any] = dict(make_silos(split(spiked_rows(), [200] * 3), 3))
    settings = power_settings(exact_study(12, 3), 3, n_steps=8)
    gate = threading.Event()
    try:
        yield make_coordinator(silos, settings, min_silos=min_silos), silos, gate
    finally:
        gate.set()


def held(silo: Silo, gate: threading.Event) -> Wrapped:
    """Return a silo that gives no answer from round 1 on until the gate opens."""
    return Wrapped(silo, lambda message: message.round < 1 or gate.wait())


def test_grace_does_not_begin_before_enough_have_answered():
    """Two are held until the third was asked: without them there are too few, whatever the grace."""
    with three(min_silos=3) as (coordinator, silos, gate):
        for name in ("silo-0", "silo-1"):
            silos[name] = Wrapped(silos[name], lambda _: gate.wait())
        silos["silo-2"] = Wrapped(silos["silo-2"], lambda _: gate.set())
        run_in_process(coordinator, silos, deadline=LONG, grace=0.0)
    assert all(len(each.answers) == 3 for each in coordinator.history)


def test_a_silo_that_never_answers_does_not_hold_up_the_others_however_many_rounds_there_are():
    """More rounds than silos: each has a thread of its own, and the silent one only that one."""
    with three(min_silos=2) as (coordinator, silos, gate):
        silos["silo-1"] = held(silos["silo-1"], gate)
        run_in_process(coordinator, silos, deadline=LONG, grace=0.05)
    first, *others = coordinator.history
    assert len(others) > 2 * len(silos)
    assert tuple(first.answers) == tuple(silos)
    assert all(tuple(closed.answers) == ("silo-0", "silo-2") for closed in others)


def test_a_silo_is_not_asked_what_was_closed_while_it_slept():
    answered: list[int] = []

    def sleep(message: Message) -> None:
        if message.round == 1:
            gate.wait()
        answered.append(message.round)

    with three(min_silos=2) as (coordinator, silos, gate):
        silos["silo-0"] = Wrapped(silos["silo-0"], lambda message: message.round == 5 and gate.set())
        silos["silo-1"] = Wrapped(silos["silo-1"], sleep)
        run_in_process(coordinator, silos, deadline=LONG, grace=0.2)
    assert coordinator.done
    assert not set(answered) & {2, 3, 4}


def test_too_few_at_the_deadline_end_the_run_although_grace_never_began():
    with three() as (coordinator, silos, gate):
        silos["silo-1"] = held(silos["silo-1"], gate)
        with pytest.raises(ProtocolError, match="must have 3 answers, got 2; reconnect silo-1"):
            run_in_process(coordinator, silos, deadline=0.2, grace=LONG)
