"""The in-process engine: moves messages, bounds threads, keeps deadlines."""

import threading
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import threadpoolctl
from msgspec import structs

from fedpower.engines.inprocess import available_cores, blas_threads, run_in_process
from fedpower.errors import ProtocolError
from fedpower.protocol import Silo, decaying
from fedpower.protocol.messages import AskSteps, LocalSteps, Message
from fedpower.protocol.solvers import PowerSettings
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


def test_a_silo_that_answers_nonsense_is_asked_again_and_then_given_up(silos: dict[str, Silo]) -> None:
    for times, message in ((2, None), (1000, "bring back silo-1")):
        left = iter(range(times))

        def nonsense(asked: Message, left: Iterator[int] = left) -> Message | None:
            if isinstance(asked.body, AskSteps) and next(left, None) is not None:
                return structs.replace(asked, body=LocalSteps(product=np.full((12, 3), np.nan)))
            return None

        coordinator = make_coordinator(silos, SETTINGS)
        crew = {**silos, "silo-1": Wrapped(silos["silo-1"], nonsense)}
        with nullcontext() if message is None else pytest.raises(ProtocolError, match=message):
            run_in_process(coordinator, crew)
        assert coordinator.done == (message is None)


def test_of_many_silos_every_one_is_asked_once_in_every_round() -> None:
    asked: list[tuple[str, int]] = []
    silos = make_silos(split(spiked_rows(), [10] * 60), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    counting = wrapped(silos, lambda message: asked.append((message.silo, message.round)))
    run_in_process(coordinator, counting, n_jobs=2)
    assert coordinator.done
    rounds = range(len(coordinator.history))
    assert sorted(asked) == sorted((name, number) for number in rounds for name in silos)
