"""The embedded engine: silos answer in parallel threads of this process."""

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from queue import Empty, SimpleQueue

import threadpoolctl

from fedpower.engines.pacing import Pace, paced
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import Answers, drive
from fedpower.protocol.messages import Message


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


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="silo")


class _Threads:
    """Carries questions to silos in threads.

    Parameters
    ----------
    silos, pools
        By name: who answers, and where.
    """

    def __init__(
        self, silos: Mapping[str, Answers], pools: Mapping[str, ThreadPoolExecutor]
    ) -> None:
        self._silos, self._pools = silos, pools
        self._pending: set[Future[Message]] = set()
        self._arrived: SimpleQueue[Future[Message]] = SimpleQueue()

    def send(self, question: Message) -> None:
        """Have the silo work on a question."""
        silo = self._silos[question.silo]
        future = self._pools[question.silo].submit(silo.answer, question)
        self._pending.add(future)
        future.add_done_callback(self._arrived.put)

    def wait(self, seconds: float | None) -> Message | None:
        """Return the next answer; None when that time is over, or all have answered."""
        if not self._pending:
            return None
        try:
            future = self._arrived.get(timeout=seconds)
        except Empty:
            return None
        self._pending.discard(future)
        return future.result()

    def leave(self) -> None:
        """Forget what is unanswered: a silo that slept must not begin with what is over."""
        for future in self._pending:
            future.cancel()
        self._pending, self._arrived = set(), SimpleQueue()
