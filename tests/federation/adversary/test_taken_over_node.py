"""A node whose process runs the attacker's Python: rows, ledger and signing key stay out of reach."""

import json
import os
import socket
from pathlib import Path

import pytest

from adversary.hostile import Stage, wait_for
from federations import ASK_MOMENT
from fedpower.federation import isolation
from fedpower.federation.kits import COORDINATOR
from fedpower.protocol.messages import Enrol, Message, OpenSession, encode

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(not isolation.available(), reason="this kernel has no Landlock"),
]

INJECTED = """
import os
if "FEDPOWER_NODE" in os.environ:
    import threading
    from fedpower.federation import isolation
    confine = isolation.confine_node

    def taken_over(*args):
        confine(*args)
        import loot
        threading.Thread(target=loot.go, daemon=True).start()

    isolation.confine_node = taken_over
"""
"""Runs in every process; in the node it starts the attacker's program, which has the node's rights."""

LOOT = r'''
import gc, hashlib, json, os, shutil, socket, subprocess, sys
from multiprocessing.connection import Connection
from pathlib import Path

PLAN = json.loads((Path(__file__).parent / "plan.json").read_text())


def tried(call):
    """Return what a call gave, in a word, or its error."""
    try:
        return ["GOT", repr(call())[:200]]
    except BaseException as error:
        return ["refused", type(error).__name__]


def read(path):
    with open(path, "rb") as file:
        return file.read(100)


def write(path):
    with open(path, "ab") as file:
        file.write(b"x")


def cat(path):
    return subprocess.run(["/bin/cat", path], capture_output=True, check=True).stdout


def unix(path):
    made = socket.socket(socket.AF_UNIX)
    made.connect(path)


def ask_vault(stream, content):
    """Speak to the vault past the node's own code."""
    stream.send_bytes(content)
    return stream.recv_bytes()


def questions(stream):
    """Return the digests of what the vault gives away, for questions that the test prepared."""
    return [[name, hashlib.sha256(ask_vault(stream, bytes.fromhex(text))).hexdigest()]
            for name, text in PLAN["questions"]]


def go():
    found = {}
    for path in PLAN["secrets"]:
        for name, attempt in {
            "read": lambda: read(path), "write": lambda: write(path), "delete": lambda: os.unlink(path),
            "rename": lambda: os.rename(path, path + "x"), "chmod": lambda: os.chmod(path, 0o666),
            "truncate": lambda: os.truncate(path, 0), "utime": lambda: os.utime(path),
            "copy": lambda: shutil.copy(path, "/tmp/stolen"), "cat": lambda: cat(path),
        }.items():
            found[f"{name} {path}"] = tried(attempt)
    vault = os.getppid()
    for name in ("mem", "environ", *(f"fd/{number}" for number in range(3, 30))):
        found[f"proc {name}"] = tried(lambda: read(f"/proc/{vault}/{name}"))
    found["kill"] = tried(lambda: os.kill(vault, 0))
    found["unix"] = tried(lambda: unix(PLAN["listener"]))
    found["list kit"] = tried(lambda: os.listdir(PLAN["kit"]))
    for place in ("kit", "home"):
        found[f"new file in {place}"] = tried(lambda: write(PLAN[place] + "/planted"))
    found["new file in tmp"] = tried(lambda: write("/tmp/planted-by-node"))
    streams = [each for each in gc.get_objects() if isinstance(each, Connection)]
    given = questions(streams[0])
    sys.stdout.write("LOOT " + json.dumps({"tried": found, "given": given}) + "\n")
    sys.stdout.flush()
'''


@pytest.fixture(scope="module", params=["plain", "secure"])
def looted(request, tmp_path_factory):
    """A stage after a silo's node was taken over, and what the attacker got."""
    folder = tmp_path_factory.mktemp("taken")
    stage = Stage(folder, secure=request.param == "secure")
    study, _, _ = stage.study.terms()
    bodies = {
        "enrol": Enrol(),
        "moment": ASK_MOMENT,
        "moment again": ASK_MOMENT,
        "session": OpenSession(attempt=1),
    }
    asked = [
        Message(study=study.digest, run="r", round=place, silo="north", body=body)
        for place, body in enumerate(bodies.values())
    ]
    other = Message(study="0" * 64, run="r", round=0, silo="north", body=ASK_MOMENT)
    kit = stage.kits / "north"
    injected = folder / "injected"
    injected.mkdir()
    (injected / "sitecustomize.py").write_text(INJECTED)
    (injected / "loot.py").write_text(LOOT)
    secrets = [stage.rows["north"], stage.ledger("north"), kit / "silo.toml", stage.rows["south"]]
    secrets += [kit / "identity.pem"] if request.param == "secure" else []
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(str(folder / "agent.sock"))
    listener.listen()
    plan = {
        "secrets": [str(path) for path in secrets],
        "kit": str(kit),
        "home": str(Path.home()),
        "listener": str(folder / "agent.sock"),
        "questions": [
            *((name, encode(each).hex()) for name, each in zip(bodies, asked, strict=True)),
            ("another study", encode(other).hex()),
            ("junk", b"rows, please".hex()),
        ],
    }
    (injected / "plan.json").write_text(json.dumps(plan))
    stage.start(COORDINATOR, "south")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(injected), os.environ.get("PYTHONPATH", "")]))
        before = stage.record()
        stage.start("north")
    wait_for(lambda: "LOOT " in stage.log("north"), "the attacker's report")
    line = next(each for each in stage.log("north").splitlines() if each.startswith("LOOT "))
    yield stage, json.loads(line.removeprefix("LOOT ")), before, request.param
    listener.close()
    stage.stop()


def test_what_a_node_taken_over_gets_is_what_the_ledger_paid_for_and_nothing_else(looted):
    """One release where the study is plain, however often it asks; nothing where sums are masked."""
    stage, found, before, kind = looted
    assert found["tried"], "the attacker tried"
    assert {name: how for name, how in found["tried"].items() if how[0] != "refused"} == {}
    after = stage.record()
    ledger = str(stage.ledger("north"))
    changed = {path for path in before.files if after.files.get(path) != before.files[path]}
    assert {path for path in changed if not path.startswith(ledger)} == set()
    assert set(after.files) - set(before.files) <= {f"{ledger}-wal", f"{ledger}-shm"}
    assert not Path("/tmp/stolen").exists()  # noqa: S108
    assert not Path("/tmp/planted-by-node").exists()  # noqa: S108
    given = dict(found["given"])
    assert len(after.charges["north"]) == (kind == "plain")
    assert len({given["another study"], given["moment"], given["enrol"]}) == 3
    assert stage.processes["north"].poll() is None, "the vault answers on"
