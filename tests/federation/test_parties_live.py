"""Parties as commands of their own, a silo of two users, and whole studies on one machine."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import psutil
import pytest
from ground import SILOS, Ground, charges, fedpower, init_study, processes_naming, wait_for
from studies import COLUMNS, KEYS, SIZES, silo_rows, write_rows

from fedpower.federation import KEY, TLS
from fedpower.federation.kits import Kit
from fedpower.federation.runner import open_session
from fedpower.federation.study_file import COORDINATOR
from fedpower.linalg import sin_theta

PROGRAM = (sys.executable, "-m", "fedpower")

STOPPED_S, SEEN_S, GONE_S = 12.0, 5.0, 30.0
"""Seconds from a signal to an end, from an end to its notice, and until nothing that was started is left."""

VAULT_USER, NODE_USER, BOTH = 61001, 61002, 61003
"""Users that nobody is, and a group of both."""


def is_there(pid: int) -> bool:
    """Return whether a process runs; one that nobody has waited for yet does not."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_a_node_needs_a_vault():
    node = subprocess.run(
        [sys.executable, "-m", "fedpower.federation.node"], capture_output=True, text=True, check=False
    )
    assert node.returncode != 0
    assert "must be started with `fedpower node start`" in node.stderr
    assert "Traceback" not in node.stderr


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    """A coordinator and three silos; west is started by the tests."""
    made = Ground(tmp_path_factory.mktemp("parties"), deadline=30.0)
    made.start(COORDINATOR, *SILOS[:3])
    made.wait_until_connected(*SILOS[:3])
    yield made
    made.stop()


@contextmanager
def command(log: Path, *words: object, **options) -> Iterator[subprocess.Popen[bytes]]:
    """Give a command that a user started, and kill what is left of it."""
    with log.open("wb") as file:
        child = subprocess.Popen(
            [*PROGRAM, *map(str, words)], stdout=file, stderr=file, start_new_session=True, **options
        )
    try:
        yield child
    finally:
        if child.poll() is None:
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def process(*words: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )


def send(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal as it comes: Ctrl-C to all of a terminal's processes, SIGTERM to one."""
    if number == signal.SIGINT:
        os.killpg(child.pid, number)
    else:
        os.kill(child.pid, number)


@pytest.mark.federation
def test_a_coordinator_is_stopped_by_a_signal_with_a_last_sentence(ground, tmp_path):
    second = process("node", "start", ground.place(COORDINATOR), "--no-health")
    assert second.returncode == 2
    assert "must be free for the coordinator, got address already in use" in second.stderr
    assert len(second.stderr.splitlines()) == 1
    ground.stop(COORDINATOR)
    log = tmp_path / "coordinator.log"
    try:
        with command(log, "node", "start", ground.place(COORDINATOR), "--no-health") as coordinator:
            ground.wait_until_connected(*SILOS[:3])
            send(coordinator, signal.SIGTERM)
            assert coordinator.wait(STOPPED_S) == 0
    finally:
        ground.start(COORDINATOR)
        ground.wait_until_connected(*SILOS[:3])
    assert log.read_text().splitlines()[-1] == "fedpower: stopping; completed rounds are saved"
    assert "Traceback" not in log.read_text()


@pytest.mark.federation
def test_a_run_that_is_interrupted_says_how_it_is_taken_up_and_then_is(ground, tmp_path):
    """It waits for west, which is not there yet."""
    study, log, kit = ground.folder / "study.toml", tmp_path / "run.log", ground.place("west")
    words = ("study", "run", study, "--kit", ground.runner, "-o", tmp_path / "result")
    with command(log, *words) as run:
        wait_for(lambda: "waiting for west" in log.read_text(), "the run")
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(STOPPED_S) == 130
    assert "continue with --resume" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "result").exists()
    with command(tmp_path / "west.log", "node", "start", kit, kit / "silo.toml", "--no-health") as silo:
        done = fedpower(*map(str, words), "--resume", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["n_rounds"] == 4
        (node,) = psutil.Process(silo.pid).children()
        send(silo, signal.SIGINT)
        assert silo.wait(STOPPED_S) == 0
        assert not node.is_running()
    stopped = (tmp_path / "west.log").read_text()
    assert stopped.splitlines()[-1] == "fedpower: stopping; releases and charges are stored"
    assert "Traceback" not in stopped
    assert [len(ground.charges(name)) for name in SILOS] == [4] * 4


def can_run_as(user: int) -> bool:
    """Return whether commands can be run as another user, who can enter where Python is."""
    try:
        tried = subprocess.run([*PROGRAM, "--version"], check=False, capture_output=True, user=user)
    except PermissionError:
        return False
    return tried.returncode == 0


class OwnKit:
    """A copy of west's kit, in the hands of a vault's user and a node's: the tests' own where need be."""

    def __init__(self, ground: Ground, base: Path) -> None:
        self.kit, self.own, meeting = base / "kit", base / "own", base / "meeting"
        base.chmod(0o755)
        shutil.copytree(ground.place("west"), self.kit)
        for folder in (self.own, meeting):
            folder.mkdir()
        for name in ("silo.toml", "west.ledger", "identity.pem"):
            (self.kit / name).rename(self.own / name)
        rows = shutil.copy(ground.rows["west"], self.own)
        text = (self.own / "silo.toml").read_text()
        (self.own / "silo.toml").write_text(text.replace(str(ground.rows["west"]), Path(rows).name))
        self.socket = meeting / "vault.socket"
        self.vault = ("node", "start", self.kit, self.own / "silo.toml", *self.part("vault"))
        self.node = ("node", "start", self.kit, *self.part("node"))
        self.are_two = can_run_as(NODE_USER)
        self.vault_user, self.node_user = (
            {"user": user, "group": user, "extra_groups": [BOTH], "cwd": base} if self.are_two else {}
            for user in (VAULT_USER, NODE_USER)
        )
        if self.are_two:
            for path in (self.own, *self.own.iterdir()):
                give(path, VAULT_USER, VAULT_USER, 0o700 if path.is_dir() else 0o600)
            for path in (self.kit, *self.kit.rglob("*")):
                give(path, NODE_USER, BOTH, 0o750 if path.is_dir() else 0o640)
            give(self.kit / TLS / KEY, NODE_USER, NODE_USER, 0o600)
            give(meeting, VAULT_USER, BOTH, 0o2750)

    def part(self, name: str) -> tuple[object, ...]:
        return "--part", name, "--socket", self.socket, "--no-health"


def give(path: Path, user: int, group: int, mode: int) -> None:
    os.chown(path, user, group)
    path.chmod(mode)


@pytest.mark.federation
def test_vault_and_node_are_two_commands_of_two_users_that_meet_at_a_socket(ground, tmp_path):
    """The node may end and be started again; the vault stays, and charges nothing twice.

    The kit's key is the node's; rows, ledger and the silo's own file are the vault's.
    """
    base = Path(tempfile.mkdtemp())  # beside pytest's folders, which nobody else can enter
    try:
        west = OwnKit(ground, base)
        early = tmp_path / "early.log"
        with command(early, *west.node, **west.node_user) as node:
            wait_for(lambda: "waiting for the vault to listen" in early.read_text(), "the node to wait")
            send(node, signal.SIGINT)
            assert node.wait(STOPPED_S) == 0
        with command(tmp_path / "vault.log", *west.vault, **west.vault_user) as vault:
            wait_for(west.socket.is_socket, "the vault's socket")
            assert west.socket.stat().st_mode & 0o777 == 0o660
            for attempt in range(2):
                with command(tmp_path / f"node-{attempt}.log", *west.node, **west.node_user) as node:
                    ground.wait_until_connected()
                    words = ("--kit", str(ground.runner), "-o", str(tmp_path / f"{attempt}"), "--json")
                    done = fedpower("study", "run", str(ground.folder / "study.toml"), *words)
                    assert done.returncode == 0, done.stderr
                    assert json.loads(done.stdout)["federation"]["silent"] == dict.fromkeys(SILOS, 0)
                    if attempt == 0:
                        send(node, signal.SIGINT)
                        assert node.wait(STOPPED_S) == 0
                        assert vault.poll() is None
                    else:
                        vault.send_signal(signal.SIGTERM)
                        assert vault.wait(STOPPED_S) == 0
                        assert node.wait(STOPPED_S) != 0, "a node without its vault ends"
        assert not west.socket.exists()
        assert len(charges(west.own / "west.ledger")) == 4
        last = (tmp_path / "vault.log").read_text().splitlines()[-1]
        assert last == "fedpower: stopping; releases and charges are stored"
        assert processes_naming(west.kit) == []
        for secret in west.own.iterdir() if west.are_two else ():
            tried = subprocess.run(["cat", str(secret)], capture_output=True, check=False, **west.node_user)
            assert tried.returncode != 0
            assert tried.stdout == b""
    finally:
        shutil.rmtree(base)


@pytest.mark.federation
@pytest.mark.parametrize("killed", ["vault", "node"])
def test_vault_and_node_end_together_and_a_silo_that_ended_is_soon_not_connected(killed, ground):
    ground.start("west")
    ground.wait_until_connected()
    silo = ground.processes["west"]
    wait_for(lambda: psutil.Process(silo.pid).children(), "the node")
    (node,) = psutil.Process(silo.pid).children()
    with open_session(Kit(ground.runner), patience=60.0) as session:
        os.kill(silo.pid if killed == "vault" else node.pid, signal.SIGKILL)
        began = time.monotonic()
        wait_for(lambda: "west" not in session.status()["connected"], "west's absence")
        assert time.monotonic() - began < SEEN_S
    assert silo.wait(10) != 0
    wait_for(lambda: not is_there(node.pid), "the node's end")
    if killed == "node":
        assert "the node stopped, so the silo stops" in ground.log("west")
    del ground.processes["west"]


# --- rehearsals: the whole of a study on one machine, as a user runs it ---


@pytest.mark.federation
@pytest.mark.parametrize("processes", [3, 8], ids=["as parties begin", "once all nodes are there"])
def test_a_rehearsal_that_is_killed_outright_leaves_nothing_running(processes, tmp_path):
    mark = f"killed-outright-{os.getpid()}-{processes}"
    environment = {**os.environ, "PYTHON_MARK": mark, "TMPDIR": str(tmp_path)}
    init_study(tmp_path, "--epsilon=1")
    words = ("study", "run", "study.toml", "--local=3")
    with command(tmp_path / "run.log", *words, env=environment, cwd=tmp_path) as rehearsal:
        wait_for(lambda: len(processes_naming(mark)) >= processes, "its processes")
        rehearsal.kill()
    try:
        wait_for(lambda: not processes_naming(mark), "their end", GONE_S)
    finally:
        for child in processes_naming(mark):
            os.kill(child, signal.SIGKILL)


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows").mkdir()
    return tmp_path / "rows"


def rehearse(folder, *words) -> tuple[dict[str, Any], np.ndarray, str]:
    """Return the record, the components and the sentences of a rehearsal that ends with a result."""
    done = fedpower("study", "run", "study.toml", "--local=3", "--data=rows", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "result" / "components.npz") as arrays:
        return json.loads(done.stdout), arrays["components"], done.stderr


def components(rows):
    return np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2]


@pytest.mark.federation
def test_persons_with_a_secure_sum_are_rehearsed_with_one_command_and_analysed(tmp_path, rows):
    for name in SIZES:
        table = np.tile(silo_rows(name), (50, 1))
        ids = np.arange(len(table)) % (len(table) // 2)
        write_rows(rows / f"{name}.csv", np.column_stack([table, ids]), (*COLUMNS, "patient_id"))
    keys = [f"--identity={name}={key.public}" for name, key in KEYS.items()]
    init_study(tmp_path, "--epsilon=50", "--unit=patient_id", *keys)
    record, found, said = rehearse(tmp_path)
    assert "round 2 (covariance): 3 answered" in said
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert record["n_samples"] == 25 * sum(SIZES.values())
    assert record["privacy"]["unit"] == "one person of one silo"
    assert "summed securely" in (tmp_path / "result" / "privacy.txt").read_text()
    pooled = np.vstack([silo_rows(name) for name in SIZES])
    # The noise is real: some .1 on these rows once, so .002 on fifty times as many.
    assert sin_theta(found.T, components(pooled / pooled.std(axis=0))[:2].T) < 0.2
    derived = fedpower("analyze", "factor", "result", "-k1", "--json", cwd=tmp_path)
    assert derived.returncode == 0, derived.stderr
    assert json.loads(derived.stdout)["columns"] == list(COLUMNS)


@pytest.mark.federation
def test_files_as_they_are_are_rehearsed_with_the_options_of_a_fit_and_a_failure_keeps_its_folder(
    tmp_path, rows
):
    """Hospitals' rows in German, in parts, and under other names and units."""
    tables = {name: np.tile(silo_rows(name), (20, 1)) for name in SIZES}
    german = pd.DataFrame(tables["north"], columns=COLUMNS).assign(nr="N-17")
    german.to_csv(rows / "north.csv", sep=";", decimal=",", index=False)
    (rows / "south").mkdir()
    for place, part in enumerate(np.array_split(tables["south"], 3)):
        write_rows(rows / "south" / f"part-{place}.csv", part)
    own = pd.DataFrame(tables["east"], columns=COLUMNS).rename(columns={COLUMNS[0]: "eigen"})
    own.assign(eigen=own["eigen"] / 4).to_parquet(rows / "table.parquet")
    (rows / "east.toml").write_text(
        '[data]\npath = "table.parquet"\n'
        f'[columns]\nrename = {{eigen = "{COLUMNS[0]}"}}\nfactors = {{{COLUMNS[0]} = 4}}\n'
    )
    init_study(tmp_path, "--epsilon=1")
    record, found, said = rehearse(tmp_path, "--drop=nr", "--epsilon=inf", "-k3")
    assert "the rehearsal changes settings of the study" in said
    assert record["parameters"]["n_components"] == 3
    pooled = np.vstack(list(tables.values()))
    pooled *= np.minimum(1, 12 / np.linalg.norm(pooled, axis=1))[:, None]
    assert sin_theta(found.T, components(pooled / pooled.std(axis=0))[:3].T) < 1e-6
    assert not Path(re.search(r"silos on this machine, in (.*)", said)[1]).exists()
    words = ("--local=3", "--data=rows", "--drop=nr", "--deadline=0.000001", "--force")
    failed = fedpower("study", "run", "study.toml", *words, cwd=tmp_path)
    assert failed.returncode == 2
    kept = Path(re.search(r"its files are in (.*)", failed.stderr)[1])
    try:
        for name in (*SIZES, "coordinator"):
            assert f"the log of {name}" in failed.stderr
            assert (kept / f"{name}.log").is_file()
        assert kept.stat().st_mode & 0o077 == 0
        last = failed.stderr.splitlines()[-1]
        assert last.startswith("Error: 3 silos must approve the study, got ")
        assert "unable, no answer in 1e-06 s" in last
    finally:
        shutil.rmtree(kept)
