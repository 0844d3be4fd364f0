"""What a process leaves behind when it is killed outright: nothing that we started."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from ground import SILOS, Ground, wait_for
from studies import COLUMNS, MARK, PROGRAM, SIZES, marked

from fedpower.federation.kits import COORDINATOR
from fedpower.federation.processes import start_process
from fedpower.federation.runner import open_session

STARTER = """
import os, sys, time
from fedpower.federation.processes import start_process

child = start_process([sys.executable, "-c", sys.argv[1]], os.environ)
print(child.pid, flush=True)
time.sleep(600)
"""
LATE = """
import os, time
time.sleep(float(os.environ["BEGINS_AFTER"]))
from fedpower.federation.processes import end_with_starter
end_with_starter()
time.sleep(600)
"""


def is_there(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.programs
@pytest.mark.parametrize("begins_after", [0.0, 2.0])
def test_a_party_ends_with_its_starter_also_one_that_begins_when_that_is_gone(begins_after):
    starter = subprocess.Popen(
        [sys.executable, "-c", STARTER, LATE],
        stdout=subprocess.PIPE,
        env={**os.environ, "BEGINS_AFTER": str(begins_after)},
    )
    child = int(starter.stdout.readline())
    assert is_there(child)
    starter.kill()
    starter.wait()
    wait_for(lambda: not is_there(child), "the child's end")


def test_a_node_that_no_vault_started_does_not_start():
    said = subprocess.run(
        [sys.executable, "-m", "fedpower.federation.node"], capture_output=True, text=True, check=False
    )
    assert said.returncode != 0
    assert "must be started by `fedpower silo`" in said.stderr
    assert "Traceback" not in said.stderr


def test_killing_one_process_s_child_leaves_another_s_alone(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    one, other = (start_process(sleep, {}, cwd=tmp_path) for _ in range(2))
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert other.poll() is None
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()


def node_of(vault: int) -> int:
    """Return the process of a silo's node, as soon as it is there."""
    wait_for(lambda: psutil.Process(vault).children(), "the node")
    (node,) = psutil.Process(vault).children()
    return node.pid


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    made = Ground(tmp_path_factory.mktemp("lifeline"), min_silos=4, deadline=30.0)
    made.start()
    yield made
    made.stop()


def connected(ground: Ground) -> set[str]:
    with open_session(ground.runner, patience=60.0) as session:
        return set(session.status()["connected"])


SEEN_S = 5.0
"""Within so many seconds a silo that ended is shown as not connected."""


@pytest.mark.federation
@pytest.mark.parametrize("killed", ["vault", "node"])
def test_vault_and_node_end_together_and_a_silo_that_ended_is_soon_not_connected(killed, ground):
    wait_for(lambda: connected(ground) == set(SILOS), "four silos")
    silo = ground.processes["west"]
    node = node_of(silo.pid)
    with open_session(ground.runner, patience=60.0) as session:
        os.kill(silo.pid if killed == "vault" else node, signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda: "west" not in session.status()["connected"], "west's absence")
        assert time.monotonic() - began < SEEN_S
    assert silo.wait(10) != 0
    wait_for(lambda: not is_there(node), "the node's end")
    if killed == "node":
        assert "the node stopped, so the silo stops too" in ground.log("west")
    del ground.processes["west"]
    ground.start("west")


@pytest.mark.federation
@pytest.mark.parametrize("name", ["west", COORDINATOR])
def test_a_party_killed_as_a_run_starts_leaves_nothing_and_the_run_goes_on(name, ground):
    ground.fresh()
    run = ground.run(f"killed-{name}", patience=120.0)
    party = ground.processes[name].pid
    wait_for(lambda: any("asking" in each for each in ground.sentences), "the run's start")
    started = [each.pid for each in psutil.Process(party).children(recursive=True)]
    os.kill(party, signal.SIGKILL)
    wait_for(lambda: not any(map(is_there, started)), "the end of what it started")
    ground.processes.pop(name).wait()
    ground.start(name)
    run.result()
    assert [len(ground.charges(each)) for each in SILOS] == [4] * 4


GONE_S = 30.0
"""Only what is there can start more: once nothing is, nothing comes."""

MOMENTS = {
    "as parties begin": lambda found: len(found) >= 3,
    "as nodes begin": lambda found: len(found) >= 6,
    "once all nodes are there": lambda found: len(found) == 8,
}


@pytest.mark.federation
@pytest.mark.parametrize("moment", MOMENTS)
def test_a_rehearsal_that_is_killed_outright_leaves_nothing_running(moment, tmp_path):
    mark = f"{os.getpid()}-{moment}"
    environment = {**os.environ, MARK: mark, "TMPDIR": str(tmp_path)}
    made = subprocess.run(
        [
            *PROGRAM, "study", "init", "study.toml", "--name=rehearsed", f"--silos={','.join(SIZES)}",
            f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=1", "--row-norm=12",
        ],
        check=False, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0
    with Path(tmp_path / "run.log").open("wb") as log:
        rehearsal = subprocess.Popen(
            [*PROGRAM, "run", "study.toml", "--local=3"],
            env=environment, cwd=tmp_path, stdout=log, stderr=log, start_new_session=True,
        )  # fmt: skip
    try:
        wait_for(lambda: MOMENTS[moment](marked(mark)), moment)
    finally:
        rehearsal.kill()
        rehearsal.wait()
    ends = time.monotonic() + GONE_S
    while marked(mark) and time.monotonic() < ends:
        time.sleep(0.2)
    left = marked(mark)
    for each in left:
        each.kill()
    assert not left
