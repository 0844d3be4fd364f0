"""Independent tasks on every core, one core and one BLAS thread each, with progress shown."""

import multiprocessing
import os
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from typing import TypeVar

from fedpower.engines.inprocess import available_cores

Task = TypeVar("Task", bound=Hashable)
Found = TypeVar("Found")


def on_every_core(work: Callable[[Task], Found], tasks: Sequence[Task]) -> dict[Task, Found]:
    """Return what `work` found for each task, in the tasks' order; a line is printed for each.

    Workers are processes bound to a core of their own, so that the product's own sharing of cores
    gives each a single BLAS thread and nothing depends on what the other does.
    """
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in _cores():
        cores.put(core)
    began = time.monotonic()
    found: dict[Task, Found] = {}
    with ProcessPoolExecutor(
        available_cores(), mp_context=context, initializer=_take_core, initargs=(cores,)
    ) as workers:
        waiting = {workers.submit(work, task): task for task in tasks}
        for count, done in enumerate(as_completed(waiting), start=1):
            task = waiting[done]
            found[task] = done.result()
            print(f"{count} of {len(tasks)}, {time.monotonic() - began:.0f} s: {task}", flush=True)
    return {task: found[task] for task in tasks}


def _cores() -> list[int | None]:
    if hasattr(os, "sched_getaffinity"):
        return list(os.sched_getaffinity(0))
    return [None] * available_cores()


def _take_core(cores: "multiprocessing.Queue[int | None]") -> None:
    """Bind this process to the next free core, where the system can."""
    core = cores.get()
    if core is not None:
        os.sched_setaffinity(0, {core})
