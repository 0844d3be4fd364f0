"""A study for tests of federations, what its ledgers hold, and processes that a test started."""

import sqlite3
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil

MARK = "PYTHON_KILLED_OUTRIGHT"
"""In the environment of all that is started here, and so of all that it starts: a silo's node inherits
few variables, those of Python among them."""

PROGRAM = (sys.executable, "-m", "fedpower")
"""What starts fedpower in a process of its own, wherever it is installed."""

N_RELEASES = 4  # one release a step


def study_content(name: str, silos: Sequence[str], *, epsilon: float, **rounds: Any) -> dict[str, Any]:
    """Return a study of so many silos in which every step is noised, as its file holds it."""
    return {
        "name": name,
        "columns": {"names": list("abcdef")},
        "rows": {"row_norm": 8.0, "center": False, "standardize": False},
        "components": {"n_components": 2, "iteration_rank": 3},
        "privacy": {"epsilon": epsilon, "delta": 1e-6, "noise": "step"},
        "solver": {"solver": "fedpower", "n_steps": N_RELEASES},
        "rounds": rounds,
        "silos": {"names": list(silos)},
        "coordinator": {"host": "localhost", "port": 8002},
    }


def charges(ledger: Path) -> list[tuple[Any, ...]]:
    """Return key, purpose, price and digest of every release in a ledger, in order."""
    if not ledger.exists():
        return []
    with sqlite3.connect(ledger) as database:
        wanted = "SELECT key, purpose, mu, sha256 FROM release ORDER BY seq"
        return database.execute(wanted).fetchall()


def marked(mark: str) -> list[psutil.Process]:
    """Return the processes that descend from what was started under a mark, zombies aside."""
    found = []
    for each in psutil.process_iter():
        try:
            if each.environ().get(MARK) == mark and each.status() != psutil.STATUS_ZOMBIE:
                found.append(each)
        except psutil.Error:
            continue
    return found
