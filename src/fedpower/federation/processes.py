"""Processes of a federation: each ends with the one that started it, however that ended.

A process that ended is not started again: that is what systemd or compose does (see examples/federation).
"""

import contextlib
import functools
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PROGRAM = "fedpower"  # the module that a party's process runs
# The variable with the reading end of a pipe whose other end the starter holds open while it lives
_LIFELINE = "FEDPOWER_LIFELINE"
_STOP_S, _POLL_S = 10.0, 0.1


def start_process(
    command: Sequence[str], environment: Mapping[str, str], *, pass_fds: Sequence[int] = (), **streams: Any
) -> subprocess.Popen[bytes]:
    """Return a process in its own group, which ends with this one once it calls `end_with_starter`."""
    pipe = _reading_end(os.getpid())
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        command,
        env={**environment, _LIFELINE: str(pipe)},
        pass_fds=(pipe, *pass_fds),
        start_new_session=True,
        **streams,
    )


def start_party(*words: str, log: int) -> subprocess.Popen[bytes]:
    """Return the process of `fedpower WORDS`, which ends with this one and writes to a log."""
    environment = {key: value for key, value in os.environ.items() if not key.startswith("FEDPOWER_")}
    command = [sys.executable, "-u", "-m", PROGRAM, *words]
    return start_process(command, environment, stdout=log, stderr=subprocess.STDOUT)


def end_with_starter() -> None:
    """End this process, with its group, as soon as the one that started it is gone, if it was started so."""
    if _LIFELINE not in os.environ:
        return
    try:
        pipe = int(os.environ.pop(_LIFELINE))
        os.set_inheritable(pipe, False)
    except (ValueError, OSError):
        raise SystemExit(
            "a process must be started by `fedpower node start` or `fedpower study run`"
        ) from None

    def watch() -> None:
        try:
            while os.read(pipe, 1):
                pass
        finally:
            end_group()

    threading.Thread(target=watch, name="lifeline", daemon=True).start()


@functools.cache
def _reading_end(starter: int) -> int:
    """Return the end that children of the process ``starter`` get; the other stays open while it lives."""
    reading, _writing = os.pipe()  # neither is inherited unless it is passed on
    return reading


def end_group() -> None:
    """Kill this process, and its group where it leads one."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def wait_for_signal(*, until: Callable[[], bool] = lambda: False) -> bool:
    """Return True after Ctrl-C or SIGTERM, False once ``until`` holds."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        while not until():
            time.sleep(_POLL_S)
    except KeyboardInterrupt:
        return True
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
    return False


def stop(*children: subprocess.Popen[bytes]) -> None:
    """End processes and their groups: ask first, then insist."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        for child in children:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, number)
        ends = time.monotonic() + _STOP_S
        for child in children:
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.wait(max(0.0, ends - time.monotonic()))
