"""The embedded engine: silos answer in parallel threads of this process."""

import os
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue
from typing import Protocol

import threadpoolctl

from fedpower.engines.pacing import Pace
from fedpower.protocol.coordinator import Coordinator, Receipt
from fedpower.protocol.messages import Message

MOST_ATTEMPTS = 3
"""How often a question whose answer was malformed is asked again within a round."""


class Answers(Protocol):
    """Anything that answers like a silo."""

    def answer(self, message: Message) -> Message:
        """Return the answer to ``message``."""


def run_in_process(
    coordinator: Coordinator,
    silos: Mapping[str, Answers],
    *,
    deadline: float | None = None,
    grace: float | None = None,
    n_jobs: int | None = None,
    stop: Callable[[], None] | None = None,
) -> None:
    """Run ``coordinator`` to its end over ``silos`` in threads.

    Parameters
    ----------
    coordinator
        Holds the outcome and the history afterwards.
    silos
        By name.
    deadline, grace
        Seconds after which a round is closed with those who answered, and seconds that stragglers get
        once the coordinator's ``min_silos`` answered; None waits. See :class:`Pace`.
    n_jobs
        How many silos work at once; the number of cores unless given. The cores are shared out: each
        silo's BLAS gets cores // n_jobs threads, so that together they use every core once.
    stop
        Called on Ctrl-C, to have the silos end what they are at; they are waited for, so that none
        is still at its ledger when that is closed.
    """
    busy, threads = share_cores(len(silos), n_jobs)
    pace = Pace(deadline=deadline, grace=grace, enough=coordinator.min_silos)
    with blas_threads(threads):
        if deadline is None and grace is None:
            pools = dict.fromkeys(silos, _pool(busy))
        else:
            # A thread for each silo and no more: one that sleeps through rounds must not take others'.
            pools = {name: _pool(1) for name in silos}
        try:
            while not coordinator.done:
                _run_round(coordinator, silos, pools, pace)
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
    """Return how many silos work at once and how many BLAS threads each of them gets.

    A negative ``n_jobs`` counts from the number of cores: -1 takes all, -2 all but one.
    """
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
    """The one BLAS limit of the process, shared by fits that run at the same time.

    Each fit that set and restored it by itself could restore another's limit for good.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._users = 0
        self._limiter: threadpoolctl.threadpool_limits | None = None

    @contextmanager
    def __call__(self, limit: int) -> Iterator[None]:
        """Bound the threads of every BLAS in this process while the block runs."""
        with self._lock:
            self._users += 1
            if self._limiter is None:
                self._limiter = threadpoolctl.threadpool_limits(limits=limit, user_api="blas")
        try:
            yield
        finally:
            with self._lock:
                self._users -= 1
                if self._users == 0 and self._limiter is not None:
                    self._limiter.restore_original_limits()
                    self._limiter = None


blas_threads = _SharedLimit()


Pools = Mapping[str, ThreadPoolExecutor]
"""By silo: where it works."""


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="silo")


def _run_round(
    coordinator: Coordinator, silos: Mapping[str, Answers], pools: Pools, pace: Pace
) -> None:
    pending = {
        pools[question.silo].submit(silos[question.silo].answer, question)
        for question in coordinator.next()
    }
    try:
        _collect(coordinator, silos, pools, pace, pending)
    finally:
        for future in pending:
            future.cancel()  # a silo that slept must not begin with what is over


def _collect(
    coordinator: Coordinator,
    silos: Mapping[str, Answers],
    pools: Pools,
    pace: Pace,
    pending: set[Future[Message]],
) -> None:
    """Take answers until the round is closed; ``pending`` are those to come, and left behind."""
    started, this_round = time.monotonic(), coordinator.history[-1].number
    enough: float | None = None
    attempts: dict[str, int] = {}
    arrived: SimpleQueue[Future[Message]] = SimpleQueue()
    for future in pending:
        future.add_done_callback(arrived.put)
    while pending:
        now = time.monotonic()
        left = pace.left(now - started, None if enough is None else now - enough)
        try:
            future = arrived.get(timeout=left)
        except Empty:
            break
        pending.discard(future)
        answer = future.result()
        if coordinator.receive(answer) is Receipt.MALFORMED:
            attempts[answer.silo] = attempts.get(answer.silo, 0) + 1
            for again in _ask_again(coordinator, silos, pools, answer.silo, attempts[answer.silo]):
                pending.add(again)
                again.add_done_callback(arrived.put)
        if coordinator.done or coordinator.history[-1].number != this_round:
            return
        if enough is None and len(coordinator.history[-1].answers) >= pace.enough:
            enough = time.monotonic()
    coordinator.deadline()


def _ask_again(
    coordinator: Coordinator,
    silos: Mapping[str, Answers],
    pools: Pools,
    silo: str,
    attempt: int,
) -> set[Future[Message]]:
    if attempt >= MOST_ATTEMPTS:
        return set()
    return {
        pools[silo].submit(silos[silo].answer, question)
        for question in coordinator.next()
        if question.silo == silo
    }
