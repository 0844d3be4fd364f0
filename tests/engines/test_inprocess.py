"""The in-process engine: moves messages, bounds threads, keeps deadlines."""

import threading
import time

import numpy as np
import pytest
import threadpoolctl

from fedpower.engines.inprocess import available_cores, blas_threads, in_runs, run_in_process
from fedpower.errors import ProtocolError
from fedpower.protocol import Silo, decaying
from fedpower.protocol.messages import AskSteps, LocalSteps, Message
from fedpower.protocol.solvers import PowerSettings
from problems import Array, spiked_rows, split
from runs import drive, make_coordinator, make_silos

SETTINGS = PowerSettings(
    n_features=12, rank=3, iteration_rank=3, n_steps=8, schedule=decaying(3), center=True
)
SIZES = [100, 200, 300]


class Slow:
    """A silo that takes its time in one round."""

    def __init__(self, silo: Silo, number: int, seconds: float) -> None:
        self.silo, self.number, self.seconds = silo, number, seconds

    def answer(self, message: Message) -> Message:
        if message.round == self.number:
            time.sleep(self.seconds)
        return self.silo.answer(message)


@pytest.mark.parametrize("n_jobs", [None, 1, 2, 8])
def test_the_result_is_the_same_bytes_as_without_threads(n_jobs: int | None) -> None:
    silos = make_silos(split(spiked_rows(), SIZES), 3, center=True)
    plain = make_coordinator(silos, SETTINGS)
    drive(plain, silos)
    threaded = make_coordinator(silos, SETTINGS)
    run_in_process(threaded, silos, n_jobs=n_jobs)
    np.testing.assert_array_equal(threaded.outcome.basis, plain.outcome.basis)


def test_silos_answer_at_the_same_time() -> None:
    """Two silos that each wait for the other can only finish side by side."""
    meeting = threading.Barrier(2, timeout=20)

    class Meets:
        def __init__(self, silo: Silo) -> None:
            self.silo = silo

        def answer(self, message: Message) -> Message:
            meeting.wait()
            return self.silo.answer(message)

    silos = make_silos(split(spiked_rows(), [300, 300]), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, {name: Meets(silo) for name, silo in silos.items()}, n_jobs=2)
    assert coordinator.done


def test_blas_threads_are_bounded_while_silos_work_and_given_back() -> None:
    seen: list[int] = []

    def now() -> list[int]:
        # PyTorch, where a test has imported it, brings a BLAS that only PyTorch calls.
        info = [each for each in threadpoolctl.threadpool_info() if each["user_api"] == "blas"]
        return [each["num_threads"] for each in info if "torch" not in each["filepath"]]

    class Looks:
        def __init__(self, silo: Silo) -> None:
            self.silo = silo

        def answer(self, message: Message) -> Message:
            seen.extend(now())
            return self.silo.answer(message)

    before = now()
    silos = make_silos(split(spiked_rows(), SIZES), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, {name: Looks(silo) for name, silo in silos.items()})
    busy = min(available_cores(), len(silos))
    assert max(seen) <= max(1, available_cores() // busy)
    assert now() == before


def test_overlapping_limits_restore_the_original_ones() -> None:
    def now() -> list[int]:
        return [each["num_threads"] for each in threadpoolctl.threadpool_info()]

    before = now()
    first, second = blas_threads(1), blas_threads(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert now() == before


@pytest.mark.slow
def test_a_straggler_is_left_behind_at_the_deadline() -> None:
    silos = make_silos(split(spiked_rows(), SIZES), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS, min_silos=2)
    crew = {**silos, "silo-1": Slow(silos["silo-1"], number=3, seconds=2.0)}
    run_in_process(coordinator, crew, deadline=0.5)
    answered = [len(each.answers) for each in coordinator.history]
    assert answered[3] == 2
    assert coordinator.done


def test_too_few_by_the_deadline_end_the_run_in_one_sentence() -> None:
    silos = make_silos(split(spiked_rows(), SIZES), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    crew = {**silos, "silo-1": Slow(silos["silo-1"], number=3, seconds=1.5)}
    with pytest.raises(ProtocolError, match="needs 3 answers and got 2; bring back silo-1"):
        run_in_process(coordinator, crew, deadline=0.3)


def test_a_silo_that_answers_nonsense_is_asked_again_and_then_given_up() -> None:
    class Nonsense:
        def __init__(self, silo: Silo, times: int) -> None:
            self.silo, self.left = silo, times

        def answer(self, message: Message) -> Message:
            if isinstance(message.body, AskSteps) and self.left > 0:
                self.left -= 1
                return Message(
                    study=message.study,
                    run=message.run,
                    round=message.round,
                    silo=message.silo,
                    body=LocalSteps(product=np.full((12, 3), np.nan)),
                )
            return self.silo.answer(message)

    parts: list[Array] = split(spiked_rows(), SIZES)
    silos = make_silos(parts, 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, {**silos, "silo-1": Nonsense(silos["silo-1"], 2)})
    assert coordinator.done
    coordinator = make_coordinator(silos, SETTINGS)
    with pytest.raises(ProtocolError, match="bring back silo-1"):
        run_in_process(coordinator, {**silos, "silo-1": Nonsense(silos["silo-1"], 1000)})


@pytest.mark.parametrize(("count", "at_once"), [(0, 2), (1, 2), (20, 2), (100, 3), (1000, 2), (9, 0)])
def test_runs_have_every_silo_once_in_order_and_leave_every_thread_several(count: int, at_once: int) -> None:
    runs = list(in_runs(range(count), at_once))
    assert [item for run in runs for item in run] == list(range(count))
    assert all(runs)
    assert len(runs) >= min(count, 8 * at_once)


def test_of_many_silos_every_one_is_asked_once_in_every_round() -> None:
    asked: list[tuple[str, int]] = []

    class Counting:
        def __init__(self, silo: Silo) -> None:
            self.silo = silo

        def answer(self, message: Message) -> Message:
            asked.append((message.silo, message.round))
            return self.silo.answer(message)

    silos = make_silos(split(spiked_rows(), [10] * 60), 3, center=True)
    coordinator = make_coordinator(silos, SETTINGS)
    run_in_process(coordinator, {name: Counting(silo) for name, silo in silos.items()}, n_jobs=2)
    assert coordinator.done
    rounds = range(len(coordinator.history))
    assert sorted(asked) == sorted((name, number) for number in rounds for name in silos)
