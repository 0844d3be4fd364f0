"""What tests do with ledgers: ask for a release, and open files from processes that may be killed."""

import multiprocessing
import os
import signal
from collections.abc import Callable

from fedpower.privacy.ledger import Ledger

EPSILON, DELTA = 1.0, 1e-6
SECRET = b"secret-noised-bytes"
KILLED = -signal.SIGKILL
fork = multiprocessing.get_context("fork")


def ask(ledger: Ledger, key: str = "k", payload: bytes | Callable[[], bytes] = SECRET, **terms) -> bytes:
    content = payload if callable(payload) else lambda: payload
    given = {"purpose": "covariance", "study": "s", "mu": 0.1} | terms
    return ledger.release(key=key, payload=content, **given)


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def run(*bodies: Callable[[], None]) -> list[int | None]:
    """Return how processes end that open ledgers for themselves."""
    children = [fork.Process(target=body) for body in bodies]
    for child in children:
        child.start()
    for child in children:
        child.join(30)
    return [child.exitcode for child in children]


def killed_at_commit(ledger: Ledger, key: str, payload: bytes) -> None:
    """Release with pages that reach the file before the commit, which never comes."""
    ledger._query("PRAGMA cache_size = 1")
    ledger._db.set_trace_callback(lambda sql: die() if sql == "COMMIT" else None)
    ask(ledger, key, payload)
