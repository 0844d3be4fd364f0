"""Measurements in processes of their own, ended when their time is over, with progress shown."""

import importlib
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.common import CACHE
from benchmarks.memory import BARE

LIMIT_S = 300.0
THREAD_VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")

TASKS = {
    "moment of an array": "benchmarks.speed.kernel:dense",
    "moment of a sparse matrix": "benchmarks.speed.kernel:sparse",
    "passes over rows": "benchmarks.speed.passes:one_thread",
    "product of rows": "benchmarks.speed.passes:every_core",
    "fit of one array": "benchmarks.speed.peers:fit_array",
    "fit of pooled rows": "benchmarks.speed.end_to_end:fit_pooled",
    "fit of files": "benchmarks.speed.end_to_end:fit_files",
    "fit of grown rows": "benchmarks.speed.growth:fit_grown",
    "steps over wide rows": "benchmarks.speed.wide:steps",
    "exact fits of wide rows": "benchmarks.speed.wide:exact",
}
"""By name: what a process may be asked to measure."""


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
        self.bare_mb = _bare_mb()

    def say(self, line: str) -> None:
        """Show a line of progress with the time since the beginning."""
        self._say(f"{time.monotonic() - self._began:6.0f} s  {line}")

    def __call__(
        self,
        task: str,
        *,
        label: str,
        threads: int | None = None,
        limit_s: float = LIMIT_S,
        **arguments: Any,
    ) -> dict[str, Any]:
        """Return what a task measured or, under ``ended``, why there is nothing.

        Where it gives a peak of memory, ``above_mb`` is that above a bare interpreter's.

        Parameters
        ----------
        task
            A name in `TASKS`.
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


def run_task(task: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Return what a task measures in this process."""
    module, function = TASKS[task].split(":")
    found: dict[str, Any] = getattr(importlib.import_module(module), function)(**arguments)
    return found


def run_apart(
    task: str, arguments: dict[str, Any], *, threads: int | None = None, limit_s: float = LIMIT_S
) -> dict[str, Any]:
    """Return what a task measures in a process of its own, or how that process ended."""
    from fedpower.engines.inprocess import available_cores

    count = str(available_cores() if threads is None else threads)
    try:
        done = subprocess.run(
            [sys.executable, "-m", "benchmarks.speed.running", task, json.dumps(arguments)],
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


def _bare_mb() -> float:
    done = subprocess.run([sys.executable, "-c", BARE], check=True, stdout=subprocess.PIPE)
    return float(json.loads(done.stdout)["peak_mb"])


def _ending(found: dict[str, Any]) -> str:
    return str(found.get("ended", "measured"))


if __name__ == "__main__":
    print(json.dumps(run_task(sys.argv[1], json.loads(sys.argv[2]))))
