"""Processes of a federation: each ends with the one that started it, however that ended.

A process that ended is not started again: that is what systemd or compose does (see examples/federation).
"""

import contextlib
import fcntl
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from fedpower.exceptions import InputError

PROGRAM = "fedpower"  # the module that a party's process runs
_LIFELINE = "FEDPOWER_LIFELINE"  # a variable that says: standard input is open while the starter lives
_STOP_S, _POLL_S = 10.0, 0.1
_LONGEST_RECORD = 20_000  # letters: others must not fill the disk with one message


def start_process(
    command: Sequence[str], environment: Mapping[str, str], **files: Any
) -> subprocess.Popen[bytes]:
    """Return a process in its own group, which ends with this one once it calls `end_with_starter`."""
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        command,
        env={**environment, _LIFELINE: "stdin"},
        stdin=subprocess.PIPE,
        start_new_session=True,
        **files,
    )


def start_party(*words: str, log: IO[bytes] | int) -> subprocess.Popen[bytes]:
    """Return the process of `fedpower WORDS`, which ends with this one and writes to a log."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FEDPOWER_")}
    command = [sys.executable, "-u", "-m", PROGRAM, *words]
    return start_process(command, environment, stdout=log, stderr=subprocess.STDOUT)


def end_with_starter() -> None:
    """End this process, with its group, as soon as the one that started it is gone, if it was started so."""
    if os.environ.pop(_LIFELINE, None) is None:
        return

    def watch() -> None:
        try:
            while os.read(0, 1):
                pass
        finally:
            end_group()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


class _Formatter(logging.Formatter):
    """Keeps what another party sent from looking like a line of the log, or a command to a terminal."""

    def format(self, record: logging.LogRecord) -> str:
        lines = super().format(record)[:_LONGEST_RECORD].split("\n")
        shown = ["".join(one if one.isprintable() else ascii(one)[1:-1] for one in line) for line in lines]
        return "\n    ".join(shown)


def log_to_console() -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(_Formatter("%(asctime)s %(levelname)s %(message)s"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.getLogger("nvflare").setLevel(logging.ERROR)


def end_group() -> None:
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_signal(*, until: Callable[[], bool] = lambda: False, every: float = _POLL_S) -> bool:
    """Return True after Ctrl-C or SIGTERM, False once ``until`` holds; it is called every few moments."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        while not until():
            time.sleep(every)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return False


def stop(*children: subprocess.Popen[bytes]) -> None:
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        ends = time.monotonic() + _STOP_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, ends - time.monotonic()))


@contextlib.contextmanager
def only_one(folder: Path, problem: str) -> Iterator[None]:
    """Hold a folder; refuse where another process holds it."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(problem) from None
        yield
    finally:
        os.close(handle)
