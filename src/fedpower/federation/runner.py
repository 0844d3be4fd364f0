"""The runner's session with the coordinator, and a run from its start to its result."""

import contextlib
import logging
import queue
import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedpower.exceptions import ProtocolError
from fedpower.federation.kits import COORDINATOR, RUNNER, Kit, write_private
from fedpower.protocol.receiving import cleaned
from fedpower.toml import Part

_CONNECT_S = 10.0
_POLL_S = 0.2
_MOST_REPLY_BYTES = 64 * 2**20  # more than a piece of a result, or the record of a run
_IDLE_STARTS = 6  # a run is given up after so many starts in a row in which no round was closed
LAST_RUN = "last_run.json"


class LastRun(Part, frozen=True):
    """The run that --resume continues."""

    study: str
    run: str


class CoordinatorLostError(ProtocolError):
    """The coordinator no longer answers."""

    def __init__(self) -> None:
        super().__init__("the coordinator must answer, got no reply; check that it runs and try again")


class CoordinatorSession:
    """What a runner can do at the coordinator: see who is connected, start a run, fetch its result."""

    def __init__(self, kit: Kit) -> None:
        from fedpower.federation.links import REPLY, Links  # noqa: PLC0415 (needs FLARE)

        self._replies: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._number = 0
        self._links = Links(
            RUNNER,
            accepts={COORDINATOR: REPLY},
            most_bytes=_MOST_REPLY_BYTES,
            on_message=lambda _peer, _kind, number, content: self._replies.put((number, content)),
        )
        self._links.connect(kit.study.host, kit.study.port, kit.tls)

    @property
    def connected(self) -> bool:
        return bool(self._links.connected())

    def status(self) -> dict[str, Any]:
        return self._call("status")[0]

    def start(self, run: str) -> None:
        self._call("start", run=run)

    def fetch(self, run: str, destination: Path) -> None:
        reply, _ = self._call("fetch", run=run)
        for name, size in reply["files"].items():
            if Path(name).name != name or name in ("", ".."):
                raise ProtocolError("a result must be plain files, got a path; do not trust it")
            with (destination / name).open("wb") as file:
                while file.tell() < size:
                    _, piece = self._call("fetch", run=run, file=name, offset=file.tell())
                    if not piece:
                        raise CoordinatorLostError
                    file.write(piece)

    def close(self) -> None:
        self._links.stop()

    def _call(self, what: str, **arguments: Any) -> tuple[dict[str, Any], bytes]:
        from fedpower.federation.links import CALL  # noqa: PLC0415

        self._number += 1
        content = msgspec.json.encode({"do": what, **arguments})
        if not self._links.send(COORDINATOR, CALL, self._number, content):
            raise CoordinatorLostError
        end, number = time.monotonic() + _CONNECT_S, 0
        while number != self._number:
            try:
                number, reply = self._replies.get(timeout=max(0.0, end - time.monotonic()))
            except queue.Empty:
                raise CoordinatorLostError from None
        head, _, rest = reply.partition(b"\n")
        try:
            facts = msgspec.json.decode(head, type=dict[str, Any])
        except (msgspec.DecodeError, UnicodeDecodeError):
            must = "the coordinator must run fedpower"
            raise ProtocolError(f"{must}, got something else; compare versions") from None
        if "error" in facts:
            raise ProtocolError(cleaned(facts["error"]))
        return facts, rest


@contextlib.contextmanager
def open_session(kit: Kit, *, patience: float = _CONNECT_S) -> Iterator[CoordinatorSession]:
    """Give a session with the coordinator; refuse where there is no connection."""
    kit.check()
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    session, end = CoordinatorSession(kit), time.monotonic() + patience
    try:
        while not session.connected:
            if time.monotonic() >= end:
                must = f"the coordinator must answer at {kit.study.host}:{kit.study.port}"
                hint = "start it with `fedpower node start KIT` and check the network"
                raise ProtocolError(f"{must}, got no connection in {patience:.0f} s; {hint}")
            time.sleep(0.05)
        yield session
    finally:
        session.close()


@dataclass(kw_only=True)
class Runner:
    """Follows a run to its result. When a party is restarted, it continues after the last closed round."""

    kit: Kit
    patience: float
    say: Callable[[str], None]
    on_round: Callable[[dict[str, Any]], None]
    _shown: int = field(init=False, default=-1)

    def run(self, destination: Path, *, resume: bool) -> dict[str, Any]:
        run, idle = self._begin(resume), 0
        while True:
            shown = self._shown
            state = self._follow(run, destination)
            if state.get("done"):
                return state
            reason = state.get("reason") or "the coordinator stopped before the run was complete"
            if not state.get("again", True):
                raise ProtocolError(reason)
            idle = idle + 1 if self._shown == shown else 0
            if idle == _IDLE_STARTS:
                hint = "fix the problem and run again with --resume"
                raise ProtocolError(f"{reason}: {idle} starts in a row completed no round; {hint}")
            self.say(f"restarting the run: {reason}")
            time.sleep(_POLL_S)

    def _follow(self, run: str, destination: Path) -> dict[str, Any]:
        """Return the state in which a run ended, its result fetched; nothing where it was lost."""
        with open_session(self.kit, patience=max(self.patience, _CONNECT_S)) as session:
            try:
                present = self._gather(session)
                session.start(run)
                self.say(f"run {run}: asking {', '.join(present)}")
                under_way, state = True, dict[str, Any]()
                while under_way:
                    time.sleep(_POLL_S)
                    status = session.status()
                    under_way, state = status["under_way"], status["run"] or {}
                    if state.get("run") != run:  # it was lost with the coordinator's process
                        raise CoordinatorLostError
                    for closed in state["rounds"][self._shown + 1 :]:
                        self._shown = closed["round"]
                        self.on_round(closed)
                if state.get("done"):
                    session.fetch(run, destination)
            except CoordinatorLostError:
                self.say("the connection to the coordinator was lost; reconnecting")
                return {}
        return state

    def _gather(self, session: CoordinatorSession) -> list[str]:
        """Return the silos that are connected: all, or after ``patience`` seconds enough."""
        silos, end, shown = self.kit.study.silos, time.monotonic() + self.patience, ""
        while True:
            connected = session.status()["connected"]
            present = [name for name in silos if name in connected]
            missing = ", ".join(name for name in silos if name not in connected)
            if not missing:
                return present
            left = end - time.monotonic()
            if missing != shown:
                self.say(f"waiting for {missing} to connect, at most {max(0.0, left):.0f} s")
                shown = missing
            if left <= 0:
                if len(present) >= self.kit.study.min_silos:
                    self.say(f"continuing without {missing}")
                    return present
                got = f"{len(present)} after {self.patience:.0f} s"
                hint = f"start {missing} and run again with --resume"
                raise ProtocolError(f"{self.kit.study.min_silos} silos must be connected, got {got}; {hint}")
            time.sleep(_POLL_S)

    def _begin(self, resume: bool) -> str:
        """Return the name of the last run, or of a new one."""
        study, path = self.kit.study.digest, self.kit.folder / LAST_RUN
        if not resume:
            last = LastRun(study=study, run=secrets.token_hex(8))
            write_private(path, msgspec.json.encode(last))
            return last.run
        with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
            last = msgspec.json.decode(path.read_bytes(), type=LastRun)
            if last.study == study:
                return last.run
        must = f"{self.kit.folder} must have a run of this study to resume"
        raise ProtocolError(f"{must}, got none; run without --resume")
