"""What a process leaves behind when it is killed outright: nothing that we started."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest
from ground import SILOS, Ground, wait_for
from studies import COLUMNS, SIZES

from benchmarks.killed_outright import MARK, PROGRAM, marked
from fedpower.federation.kits import COORDINATOR
from fedpower.federation.processes import start

STARTER = """
import os, sys, time
from pathlib import Path
from fedpower.federation.processes import start

child = start([sys.executable, "-c", sys.argv[1]], {}, cwd=Path.cwd())
print(child.pid, flush=True)
time.sleep(600)
"""
LATE = """
import os, time
time.sleep(float(os.environ["BEGINS_AFTER"]))
import sys
sys.argv = ["party", "this"]  # a module that sleeps
from fedpower.federation import party
party.runpy.run_module = lambda *args, **options: time.sleep(600)
party.main()
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


def test_a_party_that_nobody_holds_does_not_start():
    said = subprocess.run(
        [sys.executable, "-m", "fedpower.federation.party", "this"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert said.returncode != 0
    assert "must be started by `fedpower coordinator`" in said.stderr
    assert "Traceback" not in said.stderr


def test_killing_one_process_s_child_leaves_another_s_alone(tmp_path):
    sleep = [sys.executable, "-c", "import time; time.sleep(600)"]
    one, other = (start(sleep, {}, cwd=tmp_path) for _ in range(2))
    os.killpg(one.pid, signal.SIGKILL)
    one.wait()
    assert other.poll() is None
    os.killpg(other.pid, signal.SIGKILL)
    other.wait()


REACHING = """
import sys, time
from fedpower.federation import party

party.LOOK_S = party.AGAIN_S = 0.2
party.end_when_unreached(("127.0.0.1", int(sys.argv[1])), within=float(sys.argv[2]))
time.sleep(float(sys.argv[3]))
"""


def reaching(port: int, *, within: float, sleep: float) -> int:
    words = [str(each) for each in (port, within, sleep)]
    return subprocess.run(
        [sys.executable, "-c", REACHING, *words], check=False, start_new_session=True
    ).returncode


@pytest.mark.programs
def test_a_job_that_cannot_reach_its_party_ends_and_one_that_can_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        threading.Thread(target=_take_all, args=(server,), daemon=True).start()
        assert reaching(port, within=0.5, sleep=3.0) == 0
        server.shutdown(socket.SHUT_RDWR)
    assert reaching(port, within=0.5, sleep=600.0) == -signal.SIGKILL


def _take_all(server: socket.socket) -> None:
    while True:
        try:
            server.accept()[0].close()
        except OSError:
            return


def jobs_of(party: int) -> list[int]:
    """Return the job processes of a party's process."""
    return [each.pid for each in psutil.Process(party).children(recursive=True)]


@pytest.mark.federation
@pytest.mark.parametrize("kind", ["silo", "coordinator"])
def test_a_party_killed_while_its_job_s_process_starts_leaves_no_job(kind, tmp_path):
    """The job has not run a line of its own when its parent is gone already."""
    ground = Ground(tmp_path, min_silos=4, deadline=30.0)
    ground.start()
    try:
        run = ground.run("killed-while-starting", patience=120.0)
        party = ground.processes["west" if kind == "silo" else COORDINATOR].pid
        wait_for(lambda: jobs_of(party), "a job's process")
        jobs = jobs_of(party)
        os.kill(party, signal.SIGKILL)
        wait_for(lambda: not any(map(is_there, jobs)), "the job's end")
        name = "west" if kind == "silo" else COORDINATOR
        ground.processes.pop(name).wait()
        ground.start(name)
        run.result()
        assert [len(ground.charges(each)) for each in SILOS] == [4] * 4
    finally:
        ground.stop()


GONE_S = 30.0
"""Only what is there can start more: once nothing is, nothing comes. Half of what a job without its party
has, so that nothing else can have ended it."""

MOMENTS = {
    "as it begins": lambda found: len(found) == 1,
    "as parties begin": lambda found: len(found) >= 3,
    "once all parties are there": lambda found: len(found) == 5,
    "as jobs begin": lambda found: len(found) >= 6,
    "once all jobs are there": lambda found: len(found) == 9,
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
