"""Tasks in processes of their own: one at a time with a limit, or on every core at once."""

import importlib
import json
import multiprocessing
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

from benchmarks.common import CACHE

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
        len(_cores()), mp_context=context, initializer=_take_core, initargs=(cores,)
    ) as workers:
        waiting = {workers.submit(work, task): task for task in tasks}
        for count, done in enumerate(as_completed(waiting), start=1):
            task = waiting[done]
            found[task] = done.result()
            print(f"{count} of {len(tasks)}, {time.monotonic() - began:.0f} s: {task}", flush=True)
    return {task: found[task] for task in tasks}


def _cores() -> list[int | None]:
    """Return the cores that this process may use, by number where the system tells."""
    if hasattr(os, "sched_getaffinity"):
        return list(os.sched_getaffinity(0))
    return [None] * (os.cpu_count() or 1)


def _take_core(cores: "multiprocessing.Queue[int | None]") -> None:
    """Bind this process to the next free core, where the system can."""
    core = cores.get()
    if core is not None:
        os.sched_setaffinity(0, {core})


LIMIT_S = 300.0
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

BARE = """
for line in open("/proc/self/status"):
    if line.startswith("VmHWM"):
        print(int(line.split()[1]) * 1024 / 1e6)
"""
"""What a process does that measures nothing but itself."""


@contextmanager
def scratch(name: str) -> Iterator[Path]:
    """Give a folder for data that is removed afterwards."""
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE, prefix=f"speed-{name}-") as folder:
        yield Path(folder)


@contextmanager
def one_core() -> Iterator[None]:
    """Keep this process and its BLAS to a single core while the block runs.

    Threads that wait for each other over tiny arrays cost seconds wherever cores are shared.
    """
    import threadpoolctl

    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {max(cores)})
    try:
        with threadpoolctl.threadpool_limits(limits=1):
            yield
    finally:
        os.sched_setaffinity(0, cores)


class Runner:
    """Runs tasks and says how far it is.

    Parameters
    ----------
    apart
        Whether every task gets a process of its own; without, peaks of memory mean nothing.
    say
        Called with each line of progress.
    """

    def __init__(self, *, apart: bool, say: Callable[[str], None]) -> None:
        self.apart = apart
        self._say = say
        self._began = time.monotonic()
        self.bare_mb = bare_mb()

    def say(self, line: str) -> None:
        """Show a line of progress with the time since the beginning."""
        self._say(f"{time.monotonic() - self._began:6.0f} s  {line}")

    def __call__(
        self, task: str, *, label: str, threads: int | None = None, limit_s: float = LIMIT_S, **arguments: Any
    ) -> dict[str, Any]:
        """Return what a task measured or, under ``ended``, why there is nothing.

        Where it gives a peak of memory, ``above_mb`` is that above a bare interpreter's.

        Parameters
        ----------
        task
            ``module:function``.
        label
            What to call it in the progress.
        threads
            Of every BLAS; as many as there are cores by default.
        limit_s
            Seconds on the clock that its process gets.
        arguments
            The task's own.
        """
        if self.apart:
            found = run_apart(task, arguments, threads=threads, limit_s=limit_s)
        else:
            found = run_task(task, arguments)
        if "peak_mb" in found:
            found["above_mb"] = found["peak_mb"] - self.bare_mb
        seconds = found.get("seconds")
        self.say(f"{label}: " + (f"{seconds:.3g} s" if seconds is not None else _ending(found)))
        return found


def bare_mb() -> float:
    """Return the memory of an interpreter that has imported nothing, in MB."""
    done = subprocess.run([sys.executable, "-c", BARE], check=True, stdout=subprocess.PIPE)
    return float(done.stdout)


def run_task(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a task measures in this process."""
    module, function = task.split(":")
    found: dict[str, Any] = getattr(importlib.import_module(module), function)(**arguments)
    return found


def run_apart(
    task: str, arguments: dict[str, Any], *, threads: int | None = None, limit_s: float | None = LIMIT_S
) -> dict[str, Any]:
    """Return what a task measures in a process of its own, or how that process ended."""
    count = str(len(_cores()) if threads is None else threads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.processes", task, json.dumps(arguments)],
            timeout=limit_s,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | dict.fromkeys(THREAD_VARIABLES, count),
        )
    except subprocess.TimeoutExpired:
        return {"ended": f"did not finish in {limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"ended": f"failed: {lines[-1] if lines else f'status {done.returncode}'}"}
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measured_apart(task: str, **arguments: Any) -> dict[str, Any]:
    """Return what a task measures in a process of its own, however long it takes; fail where it does."""
    found = run_apart(task, arguments, limit_s=None)
    if "ended" in found:
        raise RuntimeError(f"{task} {found['ended']}")
    return found


def _ending(found: dict[str, Any]) -> str:
    return str(found.get("ended", "measured"))


if __name__ == "__main__":
    print(json.dumps(run_task(sys.argv[1], json.loads(sys.argv[2]))))
