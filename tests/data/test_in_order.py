"""Work shared out to threads comes back in order, and an error ends it."""

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from fedpower.sums.in_order import in_order


@pytest.mark.parametrize("workers", [1, 2, 5])
@pytest.mark.parametrize("n_items", [0, 1, 3, 50])
def test_results_are_taken_in_the_order_of_the_items(workers: int, n_items: int) -> None:
    taken: list[int] = []
    in_order(iter(range(n_items)), lambda: lambda item: item * item, taken.append, workers=workers)
    assert taken == [item * item for item in range(n_items)]


def test_threads_work_at_the_same_time() -> None:
    meeting = threading.Barrier(2, timeout=60)

    def meet(item: int) -> int:
        meeting.wait()
        return item

    taken: list[int] = []
    in_order(iter(range(6)), lambda: meet, taken.append, workers=2)
    assert taken == list(range(6))


def test_a_worker_s_memory_is_taken_before_it_is_used_again() -> None:
    def worker() -> Any:
        memory = [0]

        def work(item: int) -> list[int]:
            memory[0] = item
            return memory

        return work

    taken: list[int] = []
    in_order(iter(range(200)), worker, lambda memory: taken.append(memory[0]), workers=3)
    assert taken == list(range(200))


def test_items_are_read_by_one_thread_at_a_time() -> None:
    reading = threading.Lock()

    def items() -> Iterator[int]:
        for item in range(100):
            assert reading.acquire(blocking=False)
            reading.release()
            yield item

    in_order(items(), lambda: lambda item: item, lambda item: None, workers=4)


@pytest.mark.parametrize("workers", [1, 2, 4])
@pytest.mark.parametrize("where", ["reading", "working", "taking"])
def test_an_error_ends_it(where: str, workers: int) -> None:
    taken: list[int] = []

    def fail_at_seven(item: int, place: str) -> int:
        if item == 7 and place == where:
            raise ValueError(where)
        return item

    items = (fail_at_seven(item, "reading") for item in range(20))
    with pytest.raises(ValueError, match=where):
        in_order(
            items,
            lambda: lambda item: fail_at_seven(item, "working"),
            lambda item: taken.append(fail_at_seven(item, "taking")),
            workers=workers,
        )
    assert taken == list(range(len(taken)))
    assert len(taken) <= 7
