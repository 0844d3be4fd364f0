"""Processes that end when the one that started them does, however it ended."""

import functools
import os
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

_LIFELINE = "FEDPOWER_LIFELINE"
"""Tells a process which of its file descriptors is the reading end."""


def start_process(
    command: Sequence[str],
    environment: Mapping[str, str],
    *,
    cwd: Path | None = None,
    pass_fds: Sequence[int] = (),
    **streams: Any,
) -> subprocess.Popen[bytes]:
    """Return a process in a group of its own, which ends with this one once it calls :func:`hold_on`."""
    end = _reading_end(os.getpid())
    return subprocess.Popen(  # noqa: S603 (our own interpreter)
        command,
        cwd=cwd,
        env={**environment, _LIFELINE: str(end)},
        pass_fds=(end, *pass_fds),
        start_new_session=True,
        **streams,
    )


def is_held() -> bool:
    """Return whether this process was handed a lifeline."""
    return _LIFELINE in os.environ


def hold_on() -> None:
    """End this process, with its group, as soon as the one that started it is gone."""
    try:
        end = int(os.environ.pop(_LIFELINE, ""))
        os.set_inheritable(end, False)
    except (ValueError, OSError):
        raise SystemExit(
            "this process must be started by `fedpower silo` or `fedpower run`, got no lifeline; use one "
            "of them"
        ) from None
    threading.Thread(target=_watch, args=(end,), name="lifeline", daemon=True).start()


@functools.cache
def _reading_end(holder: int) -> int:
    """Return the end that children of the process ``holder`` get; the other stays open while it lives."""
    reading, _writing = os.pipe()  # neither is inherited unless it is handed down
    return reading


def _watch(end: int) -> None:
    try:
        while os.read(end, 1):
            pass
    finally:
        end_group()


def end_group() -> None:
    """Kill this process, and those in its group where that is its own."""
    if os.getpgrp() == os.getpid():
        os.killpg(os.getpid(), signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)
