"""When a round ends, for every engine; and the engine whose silos answer in threads of this process."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any, Protocol

from fedpower.linalg import blas
from fedpower.protocol.coordinator import Answers, Arrived, Asking, Coordinator, Transport, drive
from fedpower.protocol.messages import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a round may take. Durations on one machine's clock: clocks need not agree."""

    deadline: float | None = None
    grace: float | None = None
    enough: int = 1

    def left(self, elapsed: float, since_enough: float | None) -> float | None:
        """Return how many seconds the round has left, 0 when it is over; None without an end."""
        ends = [] if self.deadline is None else [self.deadline - elapsed]
        if self.grace is not None and since_enough is not None:
            ends.append(self.grace - since_enough)
        return max(0.0, min(ends)) if ends else None


class _Carrier(Protocol):
    """Carries questions to silos, all at once, and what comes back."""

    def send(self, question: Message) -> None:
        """Send a question on its way, and return at once."""

    def wait(self, seconds: float | None) -> Arrived | None:
        """Return what comes next; None when that time is over, or nothing can come any more."""

    def leave(self) -> None:
        """Wait for none of what was sent: the round is over."""


def paced(carrier: _Carrier, coordinator: Coordinator, pace: Pace) -> Transport:
    """Return what asks silos through a carrier, for as long as ``pace`` gives a round."""

    def ask(questions: tuple[Message, ...]) -> Asking:
        started, enough = time.monotonic(), None
        try:
            while True:
                for question in questions:
                    carrier.send(question)
                question = questions = ()  # type: ignore[assignment]  # they may be as large as a basis
                now = time.monotonic()
                if enough is None and len(coordinator.history[-1].answers) >= pace.enough:
                    enough = now
                left = pace.left(now - started, None if enough is None else now - enough)
                arrived = [carrier.wait(left)]
                if arrived[0] is None:
                    return
                # The driver's must be the only reference to a large answer.
                questions = (yield arrived.pop()) or ()  # type: ignore[misc]
        finally:
            carrier.leave()

    return ask


def run_in_process(
    coordinator: Coordinator,
    silos: Mapping[str, Answers],
    *,
    deadline: float | None = None,
    grace: float | None = None,
    n_jobs: int | None = None,
    stop: Callable[[], None] | None = None,
) -> None:
    """Run ``coordinator`` to its end over ``silos`` in threads."""
    busy, threads = share_cores(len(silos), n_jobs)
    pace = Pace(deadline=deadline, grace=grace, enough=coordinator.min_silos)
    with blas_threads(threads):
        if deadline is None and grace is None:
            pools = dict.fromkeys(silos, _pool(busy))
        else:
            # A thread for each silo and no more: one that sleeps through rounds must not take others'.
            pools = {name: _pool(1) for name in silos}
        try:
            drive(coordinator, paced(_Threads(silos, pools), coordinator, pace))
        except KeyboardInterrupt:
            if stop is not None:
                stop()
            for pool in pools.values():
                pool.shutdown(cancel_futures=True)
            raise
        finally:
            for pool in pools.values():
                pool.shutdown(wait=False, cancel_futures=True)


def share_cores(n_silos: int, n_jobs: int | None = None) -> tuple[int, int]:
    """Return how many silos work at once and how many BLAS threads each of them gets."""
    cores = available_cores()
    asked = cores if n_jobs is None else n_jobs if n_jobs > 0 else cores + 1 + n_jobs
    busy = max(1, min(asked, n_silos))
    return busy, max(1, cores // busy)


def available_cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class _SharedLimit:
    """The one BLAS limit of the process, shared by fits that run at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: Any = None

    @contextmanager
    def __call__(self, limit: int) -> Iterator[None]:
        """Bound the threads of every BLAS in this process while the block runs."""
        with self._lock:
            self._users += 1
            if self._limiter is None:
                self._limiter = blas().limit(limits=limit)
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._limiter is not None:
                    self._limiter.restore_original_limits()
                    self._limiter = None


blas_threads = _SharedLimit()


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="silo")


class _Threads:
    """Carries questions to silos in threads."""

    def __init__(self, silos: Mapping[str, Answers], pools: Mapping[str, ThreadPoolExecutor]) -> None:
        self._silos, self._pools = silos, pools
        self._begin()

    def _begin(self) -> None:
        self._open: set[Future[Message]] = set()
        self._arrived: SimpleQueue[Future[Message]] = SimpleQueue()

    def send(self, question: Message) -> None:
        """Give a silo's thread its question."""
        task = self._pools[question.silo].submit(self._silos[question.silo].answer, question)
        self._open.add(task)
        task.add_done_callback(self._arrived.put)

    def wait(self, seconds: float | None) -> Message | None:
        """Return the next answer; None when that time is over, or all have answered."""
        if not self._open:
            return None
        try:
            task = self._arrived.get(timeout=seconds)
        except Empty:
            return None
        self._open.remove(task)  # which holds the answer
        return task.result()

    def leave(self) -> None:
        """Forget what is unanswered: a slow silo must not begin with a round that is over."""
        for task in self._open:
            task.cancel()
        self._begin()
