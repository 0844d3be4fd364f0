"""Blocks of the documentation that need servers are run with servers, as a reader would run them."""

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from grounds import three_hospitals
from pages import PAGES, SHELL, blocks
from shown import is_shown

from fedpower.federation.local import free_port

SERVED = [page for page in PAGES if any("run by" in block.remarks for block in blocks(page))]
FIRST = "docs/how-to/run-a-federation.md"
"""The page whose federation the others take for granted, where they make none."""
LONGEST_S = 300.0
WAIT_S = 120.0


class Parties:
    """The processes that a page starts and leaves running, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def do(self, command: str) -> str | None:
        """Run a command and return its output; None for a party, which is left running."""
        words = shlex.split(command, comments=True)
        if words[:2] == ["fedpower", "node"] and words[2] in ("request", "accept"):
            for party in ("coordinator", "runner", "south", "east"):
                self.run(command.replace("north", party))
        if words[:2] == ["fedpower", "study"] and words[2] == "init":
            host = words[words.index("--host") + 1]
            command = command.replace(host, f"localhost --port {self.port}")
        if words[:3] == ["fedpower", "node", "start"]:
            self.start(words)
            return None
        return self.run(command)

    def run(self, command: str) -> str:
        """Run a command that ends by itself, and return its output."""
        words = shlex.split(command, comments=True)
        done = subprocess.run(
            ["bash", "-c", command], check=False, cwd=self.folder, stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, text=True, timeout=LONGEST_S,
        )  # fmt: skip
        assert done.returncode == 0, f"{command}\n{done.stdout}"
        if words[:3] == ["fedpower", "study", "run"]:
            result = self.folder / words[words.index("-o") + 1]
            assert (result / "components.csv").is_file(), command
        return done.stdout

    def start(self, words: list[str]) -> None:
        kit = Path(words[3]).name
        with (self.folder / f"{kit}.log").open("wb") as log:
            self.running[kit] = subprocess.Popen(
                words, cwd=self.folder, stdout=log, stderr=log, start_new_session=True
            )

    def start_the_others(self) -> None:
        """Start the silos of which a page says "and likewise", and wait until all are connected."""
        for kit in ("north", "south", "east"):
            if kit not in self.running:
                if not (self.folder / f"{kit}.ledger").exists():
                    self.do(f"fedpower ledger create {kit}.ledger --epsilon 3 --delta 1e-6")
                self.start(["fedpower", "node", "start", f"kits/{kit}", f"{kit}.toml"])
        ends = time.monotonic() + WAIT_S
        status = ["fedpower", "study", "status", "study.toml"]
        while True:
            reported = subprocess.run(
                status, check=False, cwd=self.folder, capture_output=True, text=True, timeout=LONGEST_S
            )
            if reported.returncode == 0 and " no " not in reported.stdout:
                return
            assert time.monotonic() < ends, "a party does not connect"

    def stop(self, kit: str) -> None:
        process = self.running.pop(kit)
        os.killpg(process.pid, signal.SIGINT)
        try:
            process.wait(timeout=60)
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)


@contextmanager
def _parties(folder: Path) -> Iterator[Parties]:
    three_hospitals(folder)
    parties = Parties(folder)
    try:
        yield parties
    finally:
        for kit in list(parties.running):
            parties.stop(kit)


@pytest.mark.pages
@pytest.mark.federation
@pytest.mark.parametrize("page", SERVED)
def test_blocks_that_need_servers_give_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    own = [block for block in blocks(page) if block.language == SHELL or "file" in block.remarks]
    makes_its_own = any("node ca-init" in block.text for block in own)
    with _parties(tmp_path) as parties:
        if not makes_its_own:
            _set_up(parties)
        for block in own:
            if "file" in block.remarks:
                (tmp_path / block.remarks["file"]).write_text(block.text, encoding="utf-8")
            elif "not run" not in block.remarks:
                for command, shown in block.commands():
                    if makes_its_own and command.startswith(("fedpower study run", "fedpower study status")):
                        parties.start_the_others()
                    got = parties.do(command)
                    if shown.strip() and got is not None:
                        assert is_shown(shown, got, numbers_vary="numbers vary" in block.remarks), got


def _set_up(parties: Parties) -> None:
    """Make the federation of the first page and lose one of its silos, which had connected."""
    for block in blocks(FIRST):
        if block.language == SHELL:
            for command, _ in block.commands():
                if command.startswith("fedpower study status"):
                    parties.start_the_others()
                    parties.stop("east")
                    return
                parties.do(command)


def test_the_pages_that_need_servers_are_those_about_a_federation() -> None:
    assert {"README.md", FIRST} <= set(SERVED)
