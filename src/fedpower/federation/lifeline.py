"""Processes that end when the one that started them does.

A process that is killed outright cannot stop its children. A silo that went on without its supervisor
would be there twice once it is started again; so would a coordinator's job, on the same checkpoint.
"""

import os
import signal
import threading
import time

LOOK_S = 0.5


def end_with_parent() -> None:
    """Watch the process that started this one; when it is gone, kill this one and its group."""
    threading.Thread(target=_watch, args=(os.getppid(),), daemon=True).start()


def _watch(parent: int) -> None:
    while os.getppid() == parent:
        time.sleep(LOOK_S)
    os.killpg(os.getpgid(0), signal.SIGKILL)
