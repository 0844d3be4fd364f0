"""The runner's session with the coordinator, and a run from its start to its result."""

import contextlib
import logging
import math
import queue
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from fedpower.exceptions import FedpowerError, ProtocolError
from fedpower.federation.certificates import await_pair
from fedpower.federation.kits import Kit, write_private
from fedpower.federation.processes import only_one
from fedpower.federation.study_file import COORDINATOR, RUNNER, StudyFile
from fedpower.federation.study_status import who_waits
from fedpower.protocol.receiving import cleaned
from fedpower.report.text import count, human_bytes

Standings = Mapping[str, Mapping[str, str]]  # where a proposal stands, by silo
_CONNECT_S = 10.0
_POLL_S, _REPLACE_S = 0.2, 2.0
_MOST_REPLY_BYTES = 64 * 2**20  # more than a piece of a result, or the record of a run
_MOST_RESULT_BYTES = 4 * 2**30
_IDLE_STARTS = 6  # a run is given up after so many starts in a row in which no round was closed
LAST_RUNS = "last_runs.json"  # by the hash of a study, the run that --resume continues


class CoordinatorLostError(ProtocolError):
    """The coordinator no longer answers."""

    def __init__(self) -> None:
        super().__init__("the coordinator must answer, got no reply; check that it runs and try again")


class CoordinatorSession:
    """What a runner can do at the coordinator: see who is connected, start a run, fetch its result."""

    def __init__(self, kit: Kit, name: str = RUNNER) -> None:
        from fedpower.federation.links import REPLY, Links  # noqa: PLC0415 (needs FLARE)

        self._replies: queue.Queue[tuple[int, bytes]] = queue.Queue()
        self._number = 0
        self._links = Links(
            name,
            accepts={COORDINATOR: REPLY},
            most_bytes=_MOST_REPLY_BYTES,
            on_message=lambda _peer, _kind, number, content: self._replies.put((number, content)),
        )
        self._links.connect(kit.federation.host, kit.federation.port, kit.tls)

    @property
    def connected(self) -> bool:
        return bool(self._links.connected())

    def status(self, run: str | None = None) -> dict[str, Any]:
        """Return who is connected, the state of the last run, and whether a named run has a result."""
        return self._call("status", run=run)[0]

    def start(self, run: str, study: StudyFile, signatures: Mapping[str, str]) -> None:
        self._call("start", run=run, content=study.content, signatures=signatures)

    def go_on(self, run: str) -> None:
        """Let a run begin without the silos that have not decided."""
        self._call("go on", run=run)

    def fetch(self, run: str, destination: Path) -> None:
        reply, _ = self._call("fetch", run=run)
        if sum(reply["files"].values()) > _MOST_RESULT_BYTES:
            raise ProtocolError(f"a result must have at most {human_bytes(_MOST_RESULT_BYTES)}, got more")
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
        content = msgspec.msgpack.encode({"do": what, **arguments})
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
            facts = _cleaned(msgspec.json.decode(head, type=dict[str, Any]))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            must = "the coordinator must run fedpower"
            raise ProtocolError(f"{must}, got something else; compare versions") from None
        if "error" in facts:
            raise ProtocolError(facts["error"])
        return facts, rest


@contextlib.contextmanager
def understood() -> Iterator[None]:
    """Refuse, in one sentence, a reply that has other contents than this version's."""
    try:
        yield
    except FedpowerError:
        raise
    except (KeyError, TypeError, ValueError, AttributeError, IndexError):
        must = "the coordinator must run the same version of fedpower"
        raise ProtocolError(f"{must}, got a reply that does not fit") from None


def _cleaned(value: Any) -> Any:
    """Return what a coordinator sent, its texts fit to be shown."""
    if isinstance(value, dict):
        return {cleaned(key): _cleaned(one) for key, one in value.items()}
    if isinstance(value, list):
        return [_cleaned(one) for one in value]
    return cleaned(value) if isinstance(value, str) else value


@contextlib.contextmanager
def open_session(
    kit: Kit, name: str = RUNNER, *, patience: float | None = _CONNECT_S
) -> Iterator[CoordinatorSession]:
    """Give a session with the coordinator; refuse where there is no connection, unless patience is None."""
    await_pair(kit.tls, _REPLACE_S)
    Kit(kit.folder).check()  # of the files as they are now
    logging.getLogger("nvflare").setLevel(logging.CRITICAL)
    session, began = CoordinatorSession(kit, name), time.monotonic()
    try:
        while patience is not None and not session.connected:
            if time.monotonic() >= began + patience:
                must = f"the coordinator must answer at {kit.federation.host}:{kit.federation.port}"
                hint = "start it with `fedpower node start KIT`, and check the network and your certificate"
                raise ProtocolError(f"{must}, got no connection in {patience:.0f} s; {hint}")
            time.sleep(0.05)
        yield session
    finally:
        session.close()


@dataclass(kw_only=True)
class Runner:
    """Follows a run to its result. When a party is restarted, it continues after the last closed round."""

    kit: Kit
    study: StudyFile
    signatures: Mapping[str, str] = field(default_factory=dict)
    patience: float
    say: Callable[[str], None]
    on_round: Callable[[dict[str, Any]], None]
    _shown: int = field(init=False, default=-1)

    def run(self, destination: Path, *, resume: bool) -> dict[str, Any]:
        """Return the state in which the run ended; two runs at a time would end each other."""
        busy = f"{self.kit.folder} must run one study at a time, got another that already runs"
        with only_one(self.kit.tls, busy):
            return self._run(destination, resume=resume)

    def _run(self, destination: Path, *, resume: bool) -> dict[str, Any]:
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
        with open_session(self.kit, patience=max(self.patience, _CONNECT_S)) as session, understood():
            try:
                session.start(run, self.study, self.signatures)
                end, waiting = time.monotonic() + self.patience, "nobody so far"
                under_way, state = True, dict[str, Any]()
                while under_way:
                    time.sleep(_POLL_S)
                    status = session.status()
                    under_way, state = status["under_way"], status["run"] or {}
                    if state.get("run") != run:  # it was lost with the coordinator's process
                        raise CoordinatorLostError
                    if under_way and not state["approved"]:
                        waiting = self._say_waiting(state["standings"], waiting)
                        if time.monotonic() >= end:
                            end = math.inf
                            self._stop_waiting(session, run, state["standings"])
                    elif waiting and state["approved"]:
                        self._say_asking(run, state["standings"])
                        waiting = ""
                    for closed in state["rounds"][self._shown + 1 :]:
                        self._shown = closed["round"]
                        self.on_round(closed)
                if state.get("done"):
                    session.fetch(run, destination)
            except CoordinatorLostError:
                self.say("the connection to the coordinator was lost; reconnecting")
                return {}
        return state

    def _say_waiting(self, standings: Standings, shown: str) -> str:
        """Say for whom the run waits, where that has changed; return it."""
        now = who_waits({"approve": _with("waiting", standings), "connect": _with("absent", standings)})
        if now and now != shown:
            self.say(f"waiting for {now}")
        return now or shown

    def _say_asking(self, run: str, standings: Standings) -> None:
        for name in _with("refused unable", standings):
            self.say(f"{name} {standings[name]['state']}: {standings[name]['reason']}")
        self.say(f"run {run}: asking {', '.join(_with('approved', standings))}")

    def _stop_waiting(self, session: CoordinatorSession, run: str, standings: Standings) -> None:
        """Go on with the silos that have approved, or may do so at once, if they are enough."""
        ready, needed = len(_with("approved asked", standings)), self.study.min_silos
        missing = ", ".join(_with("waiting absent", standings))
        if ready < needed:
            must = (
                f"{count(needed, 'silo')} must connect and approve, got {ready} after {self.patience:.0f} s"
            )
            raise ProtocolError(f"{must}; run again with --resume when you have {missing}")
        if missing:
            self.say(f"continuing without {missing}")
        session.go_on(run)

    def _begin(self, resume: bool) -> str:
        """Return the name of the study's last run, or of a new one."""
        study, runs = self.study.digest, last_runs(self.kit)
        if resume and study not in runs:
            must = f"{self.kit.folder} must have a run of this study to resume"
            raise ProtocolError(f"{must}, got none; run without --resume")
        if not resume:
            runs[study] = secrets.token_hex(8)
            write_private(self.kit.folder / LAST_RUNS, msgspec.json.encode(runs))
        return runs[study]


def last_runs(kit: Kit) -> dict[str, str]:
    """Return the last run of each study that the runner began, by the hash of the study."""
    with contextlib.suppress(OSError, msgspec.DecodeError, UnicodeDecodeError):
        return msgspec.json.decode((kit.folder / LAST_RUNS).read_bytes(), type=dict[str, str])
    return {}


def _with(states: str, standings: Standings) -> list[str]:
    """Return the names of the silos in some states."""
    return [name for name, one in standings.items() if one["state"] in states.split()]
