"""A node whose process runs the attacker's Python: rows, ledger and signing key stay out of reach."""

import json
import os
import socket
from pathlib import Path

import pytest

from adversary.hostile import Stage, wait_for
from federations import ASK_MOMENT
from fedpower.federation import isolation
from fedpower.federation.study_file import COORDINATOR
from fedpower.protocol.messages import Enrol, Message, OpenSession, Propose, encode

pytestmark = [
    pytest.mark.federation,
    pytest.mark.skipif(not isolation.available(), reason="this kernel has no Landlock"),
]

INJECTED = r"""
import os
if "FEDPOWER_NODE" in os.environ:
    import gc, hashlib, json, shutil, socket, sys
    from multiprocessing.connection import Connection
    from pathlib import Path
    from fedpower.federation import isolation

    confine = isolation.confine_node
    plan = json.loads((Path(__file__).parent / "plan.json").read_text())
    tried = {}

    def attempt(name, act):
        try:
            tried[name] = ["GOT", repr(act())[:200]]
        except BaseException as error:
            tried[name] = ["refused", type(error).__name__]

    def ask_vault(content):  # past the node's own code
        stream = next(each for each in gc.get_objects() if isinstance(each, Connection))
        stream.send_bytes(bytes.fromhex(content))
        return hashlib.sha256(stream.recv_bytes()).hexdigest()

    def go():
        for path in plan["secrets"]:
            attempt(f"read {path}", lambda: Path(path).read_bytes())
            attempt(f"write {path}", lambda: open(path, "ab"))
            attempt(f"delete {path}", lambda: os.unlink(path))
            attempt(f"copy {path}", lambda: shutil.copy(path, "/tmp/stolen"))
        for name in ("mem", "environ", *(f"fd/{number}" for number in range(3, 30))):
            attempt(name, lambda: open(f"/proc/{os.getppid()}/{name}", "rb").read(100))
        attempt("kill", lambda: os.kill(os.getppid(), 0))
        attempt("unix", lambda: socket.socket(socket.AF_UNIX).connect(plan["listener"]))
        attempt("list", lambda: os.listdir(plan["kit"]))
        for folder in (plan["kit"], str(Path.home()), "/tmp"):
            attempt(f"new file in {folder}", lambda: open(f"{folder}/planted-by-node", "wb"))
        given = [[name, ask_vault(content)] for name, content in plan["questions"]]
        sys.stdout.write("LOOT " + json.dumps({"tried": tried, "given": given}) + "\n")
        sys.stdout.flush()

    def taken_over(*args):
        confine(*args)
        go()  # before the node itself talks to its vault

    isolation.confine_node = taken_over
"""
"""Runs in every process; in the node it starts the attacker's program, which has the node's rights."""


@pytest.mark.parametrize("kind", ["plain", "secure"])
def test_what_a_node_taken_over_gets_is_what_the_ledger_paid_for_and_nothing_else(kind, tmp_path):
    """One release where the study is plain, however often it asks; nothing where sums are masked."""
    stage = Stage(tmp_path, secure=kind == "secure")
    study, _, _ = stage.study.terms()

    def asked(place, body, digest=study.digest) -> str:
        return encode(Message(study=digest, run="r", round=place, silo="north", body=body)).hex()

    kit, injected = stage.kits / "north", tmp_path / "injected"
    injected.mkdir()
    (injected / "sitecustomize.py").write_text(INJECTED)
    secrets = [stage.rows["north"], stage.ledger("north"), kit / "silo.toml", stage.rows["south"]]
    secrets += [kit / "identity.pem"] if kind == "secure" else []
    plan = {
        "secrets": [str(path) for path in secrets],
        "kit": str(kit),
        "listener": str(tmp_path / "agent.sock"),
        "questions": [
            ("a proposal", asked(0, Propose(content=stage.study.content))),
            ("enrol", asked(0, Enrol())),
            ("covariance", asked(1, ASK_MOMENT)),
            ("covariance again", asked(2, ASK_MOMENT)),
            ("session", asked(3, OpenSession(attempt=1))),
            ("another study", asked(0, ASK_MOMENT, "0" * 64)),
            ("junk", b"rows, please".hex()),
        ],
    }
    (injected / "plan.json").write_text(json.dumps(plan))
    with socket.socket(socket.AF_UNIX) as listener, pytest.MonkeyPatch.context() as patch:
        listener.bind(plan["listener"])
        listener.listen()
        try:
            stage.start(COORDINATOR, "south")
            patch.setenv("PYTHONPATH", os.pathsep.join([str(injected), os.environ.get("PYTHONPATH", "")]))
            stage.wait_until_connected("south")
            before = stage.record()
            stage.start("north")
            wait_for(lambda: "LOOT " in stage.log("north"), "the attacker's report")
            after = stage.record()
            assert stage.processes["north"].poll() is None, "the vault answers on"
        finally:
            stage.stop()
    line = next(each for each in stage.log("north").splitlines() if each.startswith("LOOT "))
    found = json.loads(line.removeprefix("LOOT "))
    assert found["tried"], "the attacker tried"
    assert {name: how for name, how in found["tried"].items() if how[0] != "refused"} == {}
    changed = {path for path, held in before.files.items() if after.files.get(path) != held}
    assert changed <= {stage.ledger("north")}
    made = {path.relative_to(kit).parts[0] for path in after.files.keys() - before.files.keys()}
    assert {name.partition("-")[0] for name in made} <= {"north.ledger", "north.inbox", "north.log"}
    assert not Path("/tmp/stolen").exists()  # noqa: S108
    given = dict(found["given"])
    assert len(after.charges["north"]) == (kind == "plain")
    assert len({given["another study"], given["covariance"], given["enrol"]}) == 3
