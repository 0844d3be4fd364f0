"""Parties as commands of their own: how they are stopped, and a silo in two parts for two users."""

import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from ground import SILOS, Ground, fedpower, processes_naming, wait_for
from studies import PROGRAM

from fedpower.federation.kits import COORDINATOR
from fedpower.federation.runner import open_session

pytestmark = pytest.mark.federation

STOPPED_S = 12.0
"""A party ends within so many seconds of a signal."""

VAULT_USER, NODE_USER, BOTH = 61001, 61002, 61003
"""Users that nobody is, and a group of both."""


@pytest.fixture(scope="module")
def ground(tmp_path_factory):
    made = Ground(tmp_path_factory.mktemp("parties"), min_silos=4, deadline=30.0)
    made.start(COORDINATOR, *SILOS[:3])
    wait_for_silos(made, SILOS[:3])
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
    """Return what became of a command in a process of its own."""
    return subprocess.run(
        [*PROGRAM, *map(str, words)], capture_output=True, text=True, check=False, timeout=60
    )


def west(ground: Ground) -> tuple[Path, Path]:
    kit = ground.place("west")
    return kit, kit / "silo.toml"


def wait_for_silos(ground: Ground, names: tuple[str, ...] = SILOS) -> None:
    with open_session(ground.runner, patience=60.0) as session:
        wait_for(lambda: set(session.status()["connected"]) == set(names), "the silos")


def send(child: subprocess.Popen[bytes], number: int) -> None:
    """Send a signal as it comes: Ctrl-C to all of a terminal's processes, SIGTERM to one."""
    if number == signal.SIGINT:
        os.killpg(child.pid, number)
    else:
        os.kill(child.pid, number)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_silo_is_stopped_by_a_signal_with_its_node_and_a_last_sentence(number, ground, tmp_path):
    log = tmp_path / "west.log"
    with command(log, "silo", *west(ground)) as silo:
        wait_for_silos(ground)
        (node,) = psutil.Process(silo.pid).children()
        began = time.monotonic()
        send(silo, number)
        assert silo.wait(STOPPED_S) == 0
        assert time.monotonic() - began < STOPPED_S
        assert not node.is_running()
    lines = log.read_text().splitlines()
    assert lines[-1] == "fedpower: stopping; releases and charges are on disk"
    assert "Traceback" not in log.read_text()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_coordinator_is_stopped_by_a_signal_while_silos_are_connected(number, ground, tmp_path):
    ground.stop(COORDINATOR)
    log = tmp_path / "coordinator.log"
    try:
        with command(log, "coordinator", ground.place(COORDINATOR)) as coordinator:
            wait_for_silos(ground, SILOS[:3])
            send(coordinator, number)
            assert coordinator.wait(STOPPED_S) == 0
    finally:
        ground.start(COORDINATOR)
        wait_for_silos(ground, SILOS[:3])
    assert log.read_text().splitlines()[-1] == "fedpower: stopping; closed rounds are on disk"
    assert "Traceback" not in log.read_text()


def test_a_second_coordinator_is_told_that_its_port_is_taken(ground):
    said = process("coordinator", ground.place(COORDINATOR))
    assert said.returncode == 2
    assert "must be free for the coordinator, got address already in use" in said.stderr
    assert len(said.stderr.splitlines()) == 1


def test_a_run_that_is_interrupted_says_how_it_is_taken_up_and_then_is(ground, tmp_path):
    """It waits for west, which is not there yet."""
    study, log = ground.folder / "study.toml", tmp_path / "run.log"
    words = ("run", study, "--kit", ground.runner, "-o", tmp_path / "result")
    with command(log, *words) as run:
        wait_for(lambda: "waiting for west" in log.read_text(), "the run")
        os.killpg(run.pid, signal.SIGINT)
        assert run.wait(STOPPED_S) == 130
    assert "take the run up again with --resume" in log.read_text()
    assert "Traceback" not in log.read_text()
    assert not (tmp_path / "result").exists()
    with command(tmp_path / "west.log", "silo", *west(ground)) as silo:
        done = fedpower(*map(str, words), "--resume", "--json")
        assert done.returncode == 0, done.stderr
        assert json.loads(done.stdout)["n_rounds"] == 4
        send(silo, signal.SIGTERM)
        assert silo.wait(STOPPED_S) == 0
    assert [len(ground.charges(name)) for name in SILOS] == [4] * 4


def complete_run(ground: Ground, place: Path, name: str) -> None:
    words = ("--kit", str(ground.runner), "-o", str(place / name), "--json")
    done = fedpower("run", str(ground.folder / "study.toml"), *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["federation"]["silent"] == dict.fromkeys(SILOS, 0)


def test_vault_and_node_are_two_commands_that_meet_at_a_socket(ground, tmp_path):
    """The node may end and be started again; the vault stays, and charges nothing twice."""
    kit, own = west(ground)
    place = tmp_path / "vault.socket"
    vault_words = ("silo", kit, own, "--part", "vault", "--socket", place)
    node_words = ("silo", kit, "--part", "node", "--socket", place)
    too_soon = process(*node_words)
    assert too_soon.returncode == 2
    assert "the vault must listen at" in too_soon.stdout
    with command(tmp_path / "vault.log", *vault_words) as vault:
        wait_for(place.is_socket, "the vault's socket")
        assert place.stat().st_mode & 0o777 == 0o660
        for attempt in range(2):
            with command(tmp_path / f"node-{attempt}.log", *node_words) as node:
                wait_for_silos(ground)
                complete_run(ground, tmp_path, f"result-{attempt}")
                if attempt == 0:
                    send(node, signal.SIGINT)
                    assert node.wait(STOPPED_S) == 0
                    assert vault.poll() is None
                else:
                    vault.send_signal(signal.SIGTERM)
                    assert vault.wait(STOPPED_S) == 0
                    assert node.wait(STOPPED_S) != 0, "a node without its vault ends"
    assert not place.exists()
    assert len(ground.charges("west")) == 4
    said = (tmp_path / "vault.log").read_text()
    assert said.splitlines()[-1] == "fedpower: stopping; releases and charges are on disk"
    assert processes_naming(kit) == []


def give(path: Path, user: int, group: int, mode: int) -> None:
    os.chown(path, user, group)
    path.chmod(mode)


def can_run_as(user: int) -> bool:
    """Return whether commands can be run as another user, who can enter where Python is."""
    try:
        tried = subprocess.run([*PROGRAM, "--version"], check=False, capture_output=True, user=user)
    except PermissionError:
        return False
    return tried.returncode == 0


@pytest.mark.skipif(not can_run_as(NODE_USER), reason="no commands can be run as other users here")
def test_vault_and_node_of_two_users_complete_a_run_and_the_node_opens_nothing_of_the_vault_s(
    ground, tmp_path
):
    """The kit's key is the node's; rows, ledger and the silo's own file are the vault's."""
    base = Path(tempfile.mkdtemp())  # beside pytest's folders, which nobody else can enter
    base.chmod(0o755)
    kit, own = base / "kit", base / "own"
    try:
        shutil.copytree(ground.place("west"), kit)
        own.mkdir()
        rows = ground.folder.parent / "rows" / "west.csv"
        for source in (kit / "silo.toml", kit / "west.ledger", rows):
            shutil.copy(source, own / source.name)
        for name in ("silo.toml", "west.ledger"):
            (kit / name).unlink()
        text = (own / "silo.toml").read_text()
        (own / "silo.toml").write_text(text.replace(str(rows), "west.csv"))
        for path in (own, *own.iterdir()):
            give(path, VAULT_USER, VAULT_USER, 0o700 if path.is_dir() else 0o600)
        for path in (kit, *kit.rglob("*")):
            give(path, NODE_USER, BOTH, 0o750 if path.is_dir() else 0o640)
        give(kit / "startup" / "client.key", NODE_USER, NODE_USER, 0o600)
        meeting = base / "meeting"
        meeting.mkdir()
        give(meeting, VAULT_USER, BOTH, 0o2750)
        place = meeting / "vault.socket"
        users = {
            name: {"user": user, "group": user, "extra_groups": [BOTH], "cwd": base}
            for name, user in (("vault", VAULT_USER), ("node", NODE_USER))
        }
        parts = ("--part", "vault", "--socket", place)
        with command(
            tmp_path / "vault.log", "silo", kit, own / "silo.toml", *parts, **users["vault"]
        ) as vault:
            wait_for(place.is_socket, "the vault's socket")
            with command(
                tmp_path / "node.log", "silo", kit, "--part", "node", "--socket", place, **users["node"]
            ):
                wait_for_silos(ground)
                complete_run(ground, tmp_path, "result")
            vault.send_signal(signal.SIGTERM)
            assert vault.wait(STOPPED_S) == 0
        for secret in own.iterdir():
            tried = subprocess.run(["cat", str(secret)], capture_output=True, check=False, **users["node"])
            assert tried.returncode != 0
            assert tried.stdout == b""
    finally:
        shutil.rmtree(base)
