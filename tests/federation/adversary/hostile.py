"""Parties with valid credentials that do what they should not, and a record of what honest ones hold.

Attacks come in two ways: in the words of NVIDIA FLARE's own channels, from a real FLARE cell, and as
fedpower's messages with forged names, headers and contents.
"""

import contextlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from ground import Ground, wait_for
from nvflare.fuel.f3.cellnet.core_cell import CoreCell
from nvflare.fuel.f3.cellnet.core_cell import Message as CellMessage
from nvflare.fuel.f3.cellnet.defs import CellChannel, CellChannelTopic, MessageHeaderKey
from nvflare.fuel.f3.endpoint import EndpointState
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.private.admin_defs import Message as AdminMessage
from nvflare.private.defs import RequestHeader, SysCommandTopic, TrainingTopic
from nvflare.private.fed.client.client_req_processors import ClientRequestProcessors

from fedpower.federation import AUTHORITY_CERTIFICATE, CERTIFICATE, KEY, TLS
from fedpower.federation.kits import Kit
from fedpower.federation.links import APP, Links
from fedpower.federation.runner import Runner
from fedpower.federation.study_file import COORDINATOR

SILOS = ("north", "south", "east")
HONEST = ("north", "south")
"""Whose processes run; the keys of east are in the hands of the adversary."""


React = Callable[[int, bytes], None] | None
"""What a party does with the number and the content of a question."""


class Stage(Ground):
    """A live federation with an honest coordinator and two honest silos of three."""

    def __init__(self, folder: Path, *, secure: bool = False) -> None:
        kind = "secure" if secure else "covariance"
        super().__init__(folder, kind, silos=SILOS, min_silos=2, deadline=8.0, grace=2.0)

    def begin(self) -> None:
        self.start(COORDINATOR, *HONEST)
        self.wait_until_connected(*HONEST)

    def tls(self, party: str) -> Path:
        return self.kits / party / TLS

    def honest_run(self, folder: Path) -> dict[str, Any]:
        """Return the record of a run that must end with a result of the honest silos."""
        folder.mkdir()
        say = on_round = lambda _: None
        runner = Runner(kit=Kit(self.runner), study=self.study, patience=0.0, say=say, on_round=on_round)
        state = runner.run(folder, resume=False)
        assert state["done"]
        assert (folder / "components.npz").is_file()
        assert set(HONEST) <= set(state["rounds"][-1]["answered"])
        return state

    def record(self) -> "Record":
        """Return what the honest parties hold: files with their bytes and modes, charges, processes."""
        places = [self.rows[name] for name in HONEST]
        for party in (COORDINATOR, *HONEST):
            kit = self.kits / party
            places += [path for path in kit.rglob("*") if path.is_file() and not is_written(path)]
        return Record(
            files={path: (path.stat().st_mode, path.stat().st_uid, path.read_bytes()) for path in places},
            charges={name: tuple(self.charges(name)) for name in HONEST},
            processes={name: child.pid for name, child in self.processes.items() if child.poll() is None},
        )


def is_written(path: Path) -> bool:
    """Return whether a question may change a file: runs, the audit log, and its head in the ledger."""
    return "runs" in path.parts or path.suffix == ".ledger" or path.parent.suffix == ".log"


class Record(NamedTuple):
    files: dict[Path, tuple[int, int, bytes]]
    charges: dict[str, tuple[Any, ...]]
    processes: dict[str, int]


@contextlib.contextmanager
def untouched(stage: Stage) -> Iterator[None]:
    """Assert that nothing is written, deleted, charged or stopped at honest parties meanwhile."""
    before = stage.record()
    yield
    time.sleep(0.3)
    assert stage.record() == before


def new_cell(tls: Path, name: str, port: int) -> CoreCell:
    side = "server" if name == "server" else "client"
    credentials = {
        "ca_cert": str(tls / AUTHORITY_CERTIFICATE),
        f"{side}_cert": str(tls / CERTIFICATE),
        f"{side}_key": str(tls / KEY),
        "connection_security": "mtls",
    }
    return CoreCell(fqcn=name, root_url=f"grpc://localhost:{port}", secure=True, credentials=credentials)


@contextlib.contextmanager
def flare_cell(stage: Stage, party: str) -> Iterator[CoreCell]:
    """Give a FLARE cell with a party's certificate, connected to the coordinator: FLARE's own client."""
    cell = new_cell(stage.tls(party), party, stage.study.port)
    cell.start()
    try:
        yield cell
    finally:
        CoreCell.ALL_CELLS.pop(cell.get_fqcn(), None)
        threading.Thread(target=cell.stop, daemon=True).start()


def assert_gets_nothing(stage: Stage, cell: CoreCell, *targets: str) -> None:
    """Send every request that FLARE knows to parties, some at a time, and wait half a second for a reply."""

    def answers(request: tuple[str, str, str, Any]) -> bool:
        target, channel, topic, payload = request
        message = CellMessage({}, payload)
        reply = cell.send_request(channel, topic, target, message, timeout=0.5, optional=True)
        return bool(reply.get_header(MessageHeaderKey.RETURN_CODE) == "ok")

    asked = [(target, *request) for target in targets for request in flare_requests(stage)]
    assert len(asked) > 60
    with ThreadPoolExecutor(16) as pool:
        assert [each for each, got in zip(asked, pool.map(answers, asked), strict=True) if got] == []


def flare_requests(stage: Stage) -> list[tuple[str, str, Any]]:
    """Return requests to every processor and channel that FLARE's clients and servers know."""
    secrets = (stage.rows["north"], stage.tls("north") / KEY)
    commands = [*(f"head {secret}" for secret in secrets), "ls -a", "grep . silo.toml", "tail log.txt"]
    orders = [AdminMessage(SysCommandTopic.SHELL, command) for command in commands]
    for job in (TLS, "..", "north.ledger"):
        for order in (AdminMessage(TrainingTopic.DELETE_RUN, ""), AdminMessage(TrainingTopic.DEPLOY, b"PK")):
            order.set_header(RequestHeader.JOB_ID, job)
            order.set_header(RequestHeader.JOB_META, {"name": "stage"})
            order.set_header(RequestHeader.APP_NAME, "app")
            orders.append(order)
    for processor in ClientRequestProcessors.request_processors:
        orders += [AdminMessage(topic, "") for topic in processor.get_topics()]
    jobs = (CellChannel.SERVER_COMMAND, CellChannel.CLIENT_COMMAND, CellChannel.SERVER_PARENT_LISTENER,
            CellChannel.AUX_COMMUNICATION)  # fmt: skip
    topics = {
        **dict.fromkeys(jobs, ("abort", "abort_task", "shutdown", "get_task", "submit_update", "byoc")),
        "net_manager": ("peers", "cells", "stop", "stop_cell", "change_root", "process_info"),
        CellChannel.SERVER_MAIN: (CellChannelTopic.Register, CellChannelTopic.Quit),
        CellChannel.HCI: ("command",),
        CellChannel.CELLNET: (CellChannelTopic.Bye, "bulk"),
        "credential_manager": ("key_exchange",),
    }
    requests: list[tuple[str, str, Any]] = [(CellChannel.CLIENT_MAIN, "admin", order) for order in orders]
    return requests + [(channel, topic, {}) for channel, of_it in topics.items() for topic in of_it]


class Peer(Links):
    """A party that sends what it likes: any kind, any headers, raw frames; and keeps what it gets."""

    def __init__(self, stage: Stage, party: str, *, name: str | None = None, react: React = None) -> None:
        self.got: list[tuple[str, str, int, bytes]] = []
        self._react = react
        peers = (*SILOS, "runner", COORDINATOR, "server")
        super().__init__(
            name or party, accepts=dict.fromkeys(peers, "anything"), most_bytes=2**28, on_message=self._keep
        )
        self._tls = stage.tls(party)
        self._port = stage.study.port

    def _keep(self, peer: str, kind: str, number: int, content: bytes) -> None:
        self.got.append((peer, kind, number, content))
        if self._react is not None and kind == "ask":
            threading.Thread(target=self._react, args=(number, content), daemon=True).start()

    def _problem_with(self, peer: str, app_id: int, message: Any) -> None:
        """Take everything."""

    def join(self) -> "Peer":
        self.connect("localhost", self._port, self._tls)
        ends = time.monotonic() + 3.0  # it may be refused
        while not self.connected() and time.monotonic() < ends:
            time.sleep(0.02)
        return self

    def preside(self, *silos: str) -> "Peer":
        self.listen("localhost", self._port, self._tls)
        wait_for(lambda: set(silos) <= set(self.connected()), "silos", 40.0)
        return self

    def put(self, to: str, headers: Any, content: bytes = b"", *, app: int = APP) -> None:
        """Send a message with any headers; what is not connected any more is no matter."""
        endpoint = self.find_endpoint(to)
        if endpoint is not None and endpoint.state == EndpointState.READY:
            with contextlib.suppress(Exception):
                self.send_message(endpoint, app, headers, content)

    def put_frame(self, frame: bytes) -> None:
        for connection in list(self.sfm_conns.values()):
            with contextlib.suppress(Exception):
                connection.conn.send_frame(frame)

    def asked(self, to: str, content: bytes, number: int, seconds: float = 20.0) -> bytes | None:
        """Return what a silo answers to a question; None where nothing comes."""
        before = len(self.got)
        self.put(to, {"kind": "ask", "number": number}, content)
        ends = time.monotonic() + seconds
        while time.monotonic() < ends:
            for peer, kind, replied, answer in self.got[before:]:
                if (peer, kind, replied) == (to, "answer", number):
                    return answer
            time.sleep(0.02)
        return None

    def leave(self) -> None:
        threading.Thread(target=lambda: ConnManager.stop(self), daemon=True).start()


@contextlib.contextmanager
def peer(stage: Stage, party: str, **options: Any) -> Iterator[Peer]:
    made = Peer(stage, party, **options)
    try:
        yield made.join()
    finally:
        made.leave()


def resident_bytes(pid: int) -> int:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024
    raise AssertionError(os.strerror(0))
