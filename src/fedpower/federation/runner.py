"""The runner's session with the coordinator, and a run from its start to its result."""

import contextlib
import json
import logging
import queue
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedpower.errors import ProtocolError
from fedpower.federation.certificates import COORDINATOR, RUNNER
from fedpower.federation.files import write_private
from fedpower.federation.kits import check_certificate, kit_study
from fedpower.federation.study_file import StudyFile
from fedpower.protocol.receiving import cleaned

_CONNECT_S = 10.0
_MOST_REPLY_BYTES = 64 * 2**20
"""More than a piece of a result, or the record of a run."""


class CoordinatorLostError(ProtocolError):
    """The coordinator no longer answers."""

    def __init__(self) -> None:
        super().__init__("the coordinator must answer, got no word from it; see that it runs and try again")


class CoordinatorSession:
    """What a runner can do at the coordinator: see who is there, start a run, fetch its result."""

    def __init__(self, kit: Path, study: StudyFile) -> None:
        from fedpower.federation.links import REPLY, Links  # noqa: PLC0415 (needs FLARE)

        self._replies: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._number = 0
        self._links = Links(
            RUNNER,
            accepts={COORDINATOR: REPLY},
            most_bytes=_MOST_REPLY_BYTES,
            on_message=lambda _peer, _kind, number, content: self._replies.put((number, content)),
        )
        self._links.connect(study.host, study.port, kit / "startup")

    @property
    def connected(self) -> bool:
        """Whether the coordinator is connected."""
        return bool(self._links.connected())

    def status(self) -> dict[str, Any]:
        """Return who is connected, and how far the last run is."""
        return self._call("status")[0]

    def start(self, run: str) -> None:
        """Begin or resume a run; another one of the study is ended first."""
        self._call("start", run=run)

    def fetch(self, run: str, destination: Path) -> None:
        """Write the files of a run's result into a folder."""
        files, _ = self._call("fetch", run=run)
        for name, size in files["files"].items():
            if Path(name).name != name or name in ("", ".."):
                raise ProtocolError("a result must be plain files, got a path; do not trust it")
            with (destination / name).open("wb") as file:
                while file.tell() < size:
                    _, piece = self._call("fetch", run=run, file=name, offset=file.tell())
                    if not piece:
                        raise CoordinatorLostError
                    file.write(piece)

    def close(self) -> None:
        """Hang up."""
        self._links.stop()

    def _call(self, what: str, **facts: Any) -> tuple[dict[str, Any], bytes]:
        from fedpower.federation.links import CALL  # noqa: PLC0415

        self._number += 1
        content = json.dumps({"do": what, **facts}).encode()
        if not self._links.send(COORDINATOR, CALL, self._number, content):
            raise CoordinatorLostError
        ends = time.monotonic() + _CONNECT_S
        while True:
            try:
                number, reply = self._replies.get(timeout=max(0.0, ends - time.monotonic()))
            except queue.Empty:
                raise CoordinatorLostError from None
            if number == self._number:
                break
        head, _, more = reply.partition(b"\n")
        try:
            found: dict[str, Any] = dict(json.loads(head))
        except (ValueError, TypeError):
            raise ProtocolError(
                "the coordinator must answer as fedpower does, got something else; see that all parties "
                "run the same version"
            ) from None
        if "error" in found:
            raise ProtocolError(cleaned(found["error"]))
        return found, more


@contextlib.contextmanager
def open_session(kit: Path, *, patience: float = _CONNECT_S) -> Iterator[CoordinatorSession]:
    """Give a session with the coordinator; refuse in one sentence where there is none to be had."""
    kit = kit.absolute()
    study = kit_study(kit, RUNNER)
    check_certificate(kit)
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    session = CoordinatorSession(kit, study)
    try:
        ends = time.monotonic() + patience
        while not session.connected:
            if time.monotonic() >= ends:
                raise ProtocolError(
                    f"the coordinator must answer at {study.host}:{study.port}, got no connection in "
                    f"{patience:.0f} s; start it with `fedpower coordinator KIT` and check the network"
                )
            time.sleep(0.05)
        yield session
    finally:
        session.close()


LOOK_S = 0.2
_MOST_STARTS = 20
"""So many times without an end of the run, and something else is wrong."""

_IDLE_STARTS = 6
"""So many in a row in which no round was closed although all went well with the coordinator."""

LAST_RUN = "last_run.json"


@dataclass(kw_only=True)
class Runner:
    """Sees a run through."""

    kit: Path
    patience: float
    say: Callable[[str], None]
    on_round: Callable[[dict[str, Any]], None]
    study: StudyFile = field(init=False)
    _shown: int = field(init=False, default=-1)

    def __post_init__(self) -> None:
        self.study = kit_study(self.kit, RUNNER)

    def run(self, destination: Path, *, resume: bool) -> dict[str, Any]:
        """Return the final state of a run whose result folder is now at ``destination``."""
        run = self._resumed() if resume else self._begun()
        idle = 0
        for _ in range(_MOST_STARTS):
            shown = self._shown
            state = self._followed(run, destination)
            if state.get("done"):
                return state
            idle = idle + 1 if state and self._shown == shown else 0
            if idle == _IDLE_STARTS and state.get("reason"):
                raise ProtocolError(
                    f"{state['reason']}: so it was {idle} times in a row; once that is settled run "
                    "again with --resume"
                )
            self._consider(state)
        raise ProtocolError(
            f"a run must end within {_MOST_STARTS} starts, got none that did; look into the coordinator's log"
        )

    def _followed(self, run: str, destination: Path) -> dict[str, Any]:
        """Return the state in which a run ended, its result fetched; nothing where it was lost."""
        with open_session(self.kit, patience=max(self.patience, _CONNECT_S)) as session:
            try:
                present = self._gather(session)
                session.start(run)
                self.say(f"run {run}: asking {', '.join(present)}")
                state = self._follow(session, run)
                if state.get("done"):
                    session.fetch(run, destination)
            except CoordinatorLostError:
                self.say("the connection to the coordinator was lost; trying to find it again")
                return {}
        return state

    def _gather(self, session: CoordinatorSession) -> list[str]:
        """Return the silos that are there: all, or after ``patience`` seconds enough."""
        study, ends, last_sentence = self.study, time.monotonic() + self.patience, ""
        while True:
            there = session.status()["connected"]
            missing = [name for name in study.silos if name not in there]
            if not missing:
                return list(study.silos)
            sentence = f"waiting for {', '.join(missing)} to connect"
            if sentence != last_sentence:
                self.say(f"{sentence}, {max(0.0, ends - time.monotonic()):.0f} s at most")
                last_sentence = sentence
            if time.monotonic() >= ends:
                if len(study.silos) - len(missing) >= study.min_silos:
                    self.say(f"going on without {', '.join(missing)}")
                    return [name for name in study.silos if name in there]
                raise ProtocolError(
                    f"{study.min_silos} silos must be connected, got "
                    f"{len(study.silos) - len(missing)} after {self.patience:.0f} s; start "
                    f"{', '.join(missing)} and run again with --resume"
                )
            time.sleep(LOOK_S)

    def _follow(self, session: CoordinatorSession, run: str) -> dict[str, Any]:
        """Return the state in which a run ended; it is lost with the coordinator's process."""
        while True:
            status = session.status()
            state: dict[str, Any] = status["run"] or {}
            if state.get("run") != run:
                raise CoordinatorLostError
            self._show(state)
            if not status["under_way"]:
                return state
            time.sleep(LOOK_S)

    def _consider(self, state: dict[str, Any]) -> None:
        """Say why the run is started again, or refuse where that could not help."""
        reason = state.get("reason")
        if reason and not state.get("again", True):
            raise ProtocolError(reason)
        if reason and state.get("refused", False):
            absent = [
                name
                for name in self.study.silos
                if any(name in each["silent"] for each in state.get("rounds", ()))
            ]
            if absent:
                # Questions follow from earlier answers: without a silo they are others, and not free.
                raise ProtocolError(
                    f"{reason}; this run is without {', '.join(absent)}, so it asks other questions than "
                    "one that was complete: bring back who is missing and run again without --resume, "
                    "which charges nothing twice"
                )
            raise ProtocolError(
                f"{reason}; what was released stays known: once that is settled run again with --resume"
            )
        self.say(f"starting the run again: {reason or 'the coordinator ended before it was done'}")
        time.sleep(LOOK_S)

    def _show(self, state: dict[str, Any]) -> None:
        for each in state.get("rounds", ()):
            if each["round"] > self._shown:
                self._shown = each["round"]
                self.on_round(each)

    def _begun(self) -> str:
        run = secrets.token_hex(8)
        record = {"study": self.study.digest, "run": run}
        write_private(self.kit / LAST_RUN, json.dumps(record))
        return run

    def _resumed(self) -> str:
        try:
            record = json.loads((self.kit / LAST_RUN).read_text())
            study, run = str(record["study"]), str(record["run"])
        except (OSError, ValueError, LookupError, TypeError):
            raise ProtocolError(
                f"there must be a run to resume, got no trace of one in {self.kit}; run without --resume"
            ) from None
        if study != self.study.digest:
            raise ProtocolError(
                f"the last run must be of this study, got one of study {study[:12]}; run without --resume"
            )
        return run
