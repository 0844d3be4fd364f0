"""What is used of FLARE is what was looked at: this fails when a release of FLARE adds a way in."""

import importlib.metadata
import inspect
import re
import socket
import subprocess
import sys
import time
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
from ground import wait_for
from nvflare.fuel.f3.drivers.grpc.streamer_pb2_grpc import StreamerServicer
from nvflare.fuel.f3.message import Message
from nvflare.fuel.f3.sfm.conn_manager import ConnManager
from nvflare.fuel.f3.sfm.constants import Types
from studies import write_study

from fedpower.exceptions import InputError
from fedpower.federation import links as links_module
from fedpower.federation.kits import make_kits
from fedpower.federation.links import APP, ASK, Links
from fedpower.federation.local import free_port

FRAMES = {"DATA": 1, "FRAG": 2, "ACK": 3, "HELLO": 4, "READY": 5, "PING": 6, "PONG": 7}
"""Kinds of frames: data for a receiver, greetings, heartbeats, and two that FLARE does not read."""

READ = {"HELLO", "READY", "PING", "PONG", "DATA"}


def links(name="north", accepts=None, **settings):
    got, accepts = [], accepts or {"coordinator": ASK}
    settings["on_message"] = lambda *message: got.append(message)
    return Links(name, accepts=accepts, most_bytes=1000, **settings), got


def test_flare_knows_no_other_frames_and_calls_and_is_pinned_to_the_minor_version_that_was_read():
    found = {name: value for name, value in vars(Types).items() if not name.startswith("_")}
    assert found == FRAMES
    source = inspect.getsource(ConnManager.process_frame_task)
    assert set(re.findall(r"Types\.([A-Z]+)", source)) == READ
    calls = {name for name in vars(StreamerServicer) if not name.startswith("_")}
    assert calls == {"Stream"}
    lines = importlib.metadata.requires("fedpower") or []
    (pinned,) = {line.split(";")[0].strip() for line in lines if line.startswith("nvflare")}
    assert re.fullmatch(r"nvflare<2\.10,>=2\.9(\.\d+)?|nvflare~=2\.9\.\d+|nvflare==2\.9\.\*", pinned)
    assert importlib.metadata.version("nvflare").startswith("2.9.")


def test_nothing_of_flare_that_could_run_a_command_is_loaded():
    """Nor what routes messages, reads objects of any class, or starts jobs."""
    code = "import sys, fedpower.federation.links; print(*sys.modules)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = [name for name in run.stdout.split() if name.startswith("nvflare.")]
    closed = ("nvflare.private", "nvflare.fuel.hci", "nvflare.app_common", "nvflare.job_config")
    assert [name for name in loaded if name.startswith(closed)] == []
    assert "nvflare.fuel.f3.cellnet.core_cell" not in loaded
    assert "nvflare.fuel.f3.cellnet.cell" not in loaded


def test_one_kind_of_message_is_taken_from_each_peer():
    made, got = links()
    line = Mock()
    line.configure_mock(name="CN1")
    good = {"kind": ASK, "number": 3}

    def send(peer, app, headers):
        made.process_message(SimpleNamespace(name=peer), line, app, Message(headers, b"x"))

    send("coordinator", APP, good)
    assert got == [("coordinator", ASK, 3, b"x")]
    for peer, app, headers in (
        ("south", APP, good),
        ("server", APP, good),
        ("coordinator", 1, good),
        ("coordinator", APP, None),
        ("coordinator", APP, {**good, "more": 1}),
        ("coordinator", APP, {"kind": "answer", "number": 3}),
        ("coordinator", APP, {}),
        ("coordinator", APP, {"kind": ASK}),
        ("coordinator", APP, {"kind": [ASK], "number": 3}),
        *(("coordinator", APP, {"kind": ASK, "number": number}) for number in ("1", -1, True, 2**63)),
    ):
        send(peer, app, headers)
    assert not line.close.called
    for _ in range(60):
        send("coordinator", 1, {})
    assert len(got) == 1
    wait_for(lambda: line.close.called, "the end of a connection that sends nothing else")


def test_who_is_no_party_is_not_remembered_nor_a_long_greeting_read():
    made, _ = links("coordinator", {"north": "answer"})
    line = Mock(sfm_endpoint=None)
    line.conn.configure_mock(name="CN1")
    for name in ("north.x0", "west", "", None, ["north"]):
        made.update_endpoint(line, {"endpoint_name": name})
    greeting = bytearray(5000)
    greeting[6] = Types.HELLO
    made.process_frame_task(line, bytes(greeting))
    assert made.sfm_endpoints == {}
    assert made._refusals["CN1"] == 6


@pytest.mark.federation
def test_idle_links_stay_connected(tmp_path, monkeypatch):
    """Each end asks whether the other is there, more often than gRPC's servers like by default."""
    monkeypatch.setattr(links_module, "_PING_MS", 400)
    study = write_study(tmp_path, coordinator={"port": free_port()})
    make_kits(study.federation, tmp_path / "kits")
    changes = []
    chair, _ = links("coordinator", {"north": "answer"}, on_change=lambda *change: changes.append(change))
    silo, _ = links()
    try:
        chair.listen("localhost", study.port, tmp_path / "kits" / "coordinator" / "tls")
        silo.connect("localhost", study.port, tmp_path / "kits" / "north" / "tls")
        wait_for(lambda: changes, "the connection")
        time.sleep(4.0)  # ten pings; gRPC ends a connection at the third that it finds too many
        assert changes == [("north", True)]
    finally:
        silo.stop()
        chair.stop()


def test_a_port_that_is_taken_is_refused(tmp_path):
    made, _ = links()
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(InputError, match="must be free for the coordinator, got address already in use"):
            made.listen("127.0.0.1", taken.getsockname()[1], tmp_path)
