"""The processes of a federation: how they are started, told to stop, and waited for."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from fedpower.federation.lifeline import start_process

PROGRAM = "fedpower"
"""The module that a party's process runs."""

_STOP_S = 10.0
_LOOK_S = 0.1


def start_party(*words: str, log: int | None = None) -> subprocess.Popen[bytes]:
    """Return the process of `fedpower WORDS`, which ends with this one."""
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FEDPOWER_")}
    return start_process(
        [sys.executable, "-u", "-m", PROGRAM, *words],
        kept,
        stdout=log,
        stderr=subprocess.STDOUT if log is not None else None,
    )


def wait_for_signal(*, until: Callable[[], bool] = lambda: False) -> bool:
    """Return True after Ctrl-C or SIGTERM, False once ``until`` holds."""
    received: list[int] = []
    earlier = {
        number: signal.signal(number, lambda number, _: received.append(number))
        for number in (signal.SIGINT, signal.SIGTERM)
    }
    try:
        while not received:
            if until():
                return False
            time.sleep(_LOOK_S)
        return True
    finally:
        for number, handler in earlier.items():
            signal.signal(number, handler)


def stop(child: subprocess.Popen[bytes]) -> None:
    """End a process and its group: ask first, then insist."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            break
        try:
            child.wait(_STOP_S)
        except subprocess.TimeoutExpired:
            continue
    child.wait()
