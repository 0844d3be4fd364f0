"""Work on the items of one iterator in several threads, its results taken in the items' order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

_Item = TypeVar("_Item")
Result = TypeVar("Result")


def in_order(
    items: Iterator[_Item],
    worker: Callable[[], Callable[[_Item], Result]],
    take: Callable[[Result], None],
    *,
    workers: int,
) -> None:
    """Hand what workers make of the items to ``take``, one by one, in the order of the items."""
    if workers == 1:
        work = worker()
        for item in items:
            take(work(item))
        return
    line = _Line(items, worker, take)
    with ThreadPoolExecutor(max_workers=workers, thread_name_prefix="rows") as pool:
        for done in [pool.submit(line.run) for _ in range(workers)]:
            done.result()


class _Line:
    """The threads' common state: whose turn it is to read, and whose to hand over."""

    def __init__(
        self, items: Iterator[Any], worker: Callable[[], Callable[[Any], Any]], take: Callable[[Any], None]
    ) -> None:
        self._items = enumerate(items)
        self._worker = worker
        self._take = take
        self._reading = threading.Lock()
        self._turn = threading.Condition()
        self._next = 0
        self._failed = False

    def run(self) -> None:
        """Work until the items are used up or a thread failed."""
        try:
            work = self._worker()
            while True:
                with self._reading:
                    place, item = (-1, None) if self._failed else next(self._items, (-1, None))
                if place < 0 or not self._hand_over(place, work(item)):
                    return
        except BaseException:
            with self._turn:
                self._failed = True
                self._turn.notify_all()
            raise

    def _hand_over(self, place: int, result: Any) -> bool:
        """Take the result when its turn has come; False where another thread failed."""
        with self._turn:
            self._turn.wait_for(lambda: self._failed or self._next == place)
            if self._failed:
                return False
            self._take(result)
            self._next += 1
            self._turn.notify_all()
            return True
