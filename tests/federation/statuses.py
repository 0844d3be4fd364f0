"""What a coordinator reports of a study, for tests of its status; and a session that reports it."""

import shutil
from pathlib import Path
from typing import Any

import msgspec
from studies import RUN, SIZES

from fedpower.exceptions import ProtocolError
from fedpower.federation.runner import CoordinatorLostError
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.messages import Standing

HOSTILE = "<img src=x onerror=alert(1)>"


def standings(**changes: tuple[str, str]) -> dict[str, Any]:
    """Return where a proposal stands at each silo: approved, unless a state and a reason are given."""
    given = {**dict.fromkeys(SIZES, ("approved", "")), **changes}
    return {
        name: msgspec.to_builtins(Standing(state=state, reason=reason))  # type: ignore[arg-type]
        for name, (state, reason) in given.items()
    }


def closed_round(number: int, *silent: str) -> dict[str, Any]:
    return {
        "round": number,
        "kind": f"product {number}",
        "answered": [name for name in SIZES if name not in silent],
        "restarted": [],
        "silent": list(silent),
        "refused": {},
        "set_aside": {},
        "bytes_up": 1500,
        "change": None,
    }


def run_state(study: StudyFile, **changes: Any) -> dict[str, Any]:
    """Return the state of a run whose rounds have not begun."""
    return {
        "run": RUN,
        "study": study.digest,
        "name": study.name,
        "approved": True,
        "standings": standings(),
        "rounds": [],
        "open": None,
        "waiting_for": [],
        **changes,
    }


def open_round(number: int, *answered: str, **refused: str) -> dict[str, Any]:
    times = {"seconds_open": 12.4, "seconds_left": 47.6}
    return {"round": number, "kind": f"product {number}", "answered": answered, "refused": refused, **times}


class ScriptedSession:
    """A coordinator that reports what a test sets, and is away when it says so."""

    def __init__(self, result: Path | None = None) -> None:
        self.run: dict[str, Any] | None = None
        self.has_result = self.away = False
        self.problem = ""
        self.asked: list[str | None] = []
        self.fetched: list[str] = []
        self._result = result

    def status(self, last: str | None) -> dict[str, Any]:
        self.asked.append(last)
        if self.away:
            raise CoordinatorLostError
        if self.problem:
            raise ProtocolError(self.problem)
        return {"connected": ["north", "south"], "run": self.run, "result": self.has_result}

    def fetch(self, run: str, destination: Path) -> None:
        self.fetched.append(run)
        assert self._result is not None
        shutil.copytree(self._result, destination, dirs_exist_ok=True)
