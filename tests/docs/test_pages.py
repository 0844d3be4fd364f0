"""Blocks of the documentation run, with servers where needed, and give what is shown."""

import contextlib
import io
import os
import re
import shlex
import signal
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from grounds import GROUNDS, three_hospitals
from pages import OUTPUT, PAGES, PYTHON, ROOT, SHELL, Block, blocks

from fedpower.federation.local import free_port
from fedpower.federation.study_file import read_study

_NUMBER = r"[+-]?\d[\d.,:e+-]*"
_HASH = r"\b(?=[a-f]*\d)[0-9a-f]{12,}\b"
_VARIES = re.compile(rf"{_HASH}|{_NUMBER}")
_RUNS = ((re.compile(r"[─━]+"), "─"), (re.compile(r"[█░]+"), "█"), (re.compile(r"\s+"), " "))
_ANY_LINES = "..."


def is_shown(shown: str, got: str, *, numbers_vary: bool = False) -> bool:
    """Return whether ``got`` is what a page shows.

    Spaces, rules and bars may have another length. ``...`` stands for anything within a line, and
    alone on a line for any lines. Where numbers vary, a number or a hash stands for any other.
    """
    pattern = "".join(_line_pattern(line, numbers_vary) for line in _lines(shown))
    return re.fullmatch(pattern, "".join(f"{line}\n" for line in _lines(got))) is not None


def _lines(text: str) -> list[str]:
    tidied = []
    for line in text.splitlines():
        for run, single in _RUNS:
            line = run.sub(single, line)  # noqa: PLW2901  (each kind of run in turn)
        if line.strip():
            tidied.append(line.strip())
    return tidied


def _line_pattern(line: str, numbers_vary: bool) -> str:
    if line == _ANY_LINES:
        return r"(?:.*\n)*"
    return ".*".join(_part_pattern(part, numbers_vary) for part in line.split("...")) + r"\n"


def _part_pattern(part: str, numbers_vary: bool) -> str:
    if not numbers_vary:
        return re.escape(part)
    made, end = "", 0
    for found in _VARIES.finditer(part):
        made += re.escape(part[end : found.start()])
        made += _HASH if re.fullmatch(_HASH, found[0]) else _NUMBER
        end = found.end()
    return made + re.escape(part[end:])


RUN = {SHELL, PYTHON}
NOT_RUN = {
    "it runs this test": "make test",
    "needs a GPU": "cuda",
    "needs containers": "podman",
    "needs a PostgreSQL server": "postgresql",
    "takes minutes": "reproduce",
}
"""By allowed reason for a block that runs nowhere: a word that such a block holds."""
SHOWN = {"", OUTPUT, "toml", "yaml", "{toctree}", "{include}"}
"""Languages of blocks that nobody runs."""
LONGEST_S, WAIT_S = 600.0, 120.0
"""Seconds after which a command counts as hanging, however busy the machine, and a party as lost."""
RUNNABLE = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]
SERVED = [page for page in PAGES if any("run by" in block.remarks for block in blocks(page))]
FIRST = "docs/operator/federation.md"
"""The page whose federation the others take for granted, where they make none."""


@pytest.fixture(autouse=True)
def _reader_s_shell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the paper's models are there
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))


def run(command: str, status: int = 0) -> str | None:
    done = subprocess.run(
        ["bash", "-c", command], check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        stdin=subprocess.DEVNULL, text=True, timeout=LONGEST_S,
    )  # fmt: skip
    assert done.returncode == status, f"{command}\n{done.stdout}"
    return done.stdout


def run_commands(block: Block, do: Any = run) -> None:
    steps = block.commands()
    for number, (command, shown) in enumerate(steps, start=1):
        got = do(command, int(block.remarks.get("ends with", 0)) if number == len(steps) else 0)
        if shown.strip() and got is not None:
            compare(block, shown, got)


def run_python(block: Block, names: dict[str, Any]) -> str:
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102  (our own pages)
    return printed.getvalue()


def compare(block: Block, shown: str, got: str) -> None:
    vary = "numbers vary" in block.remarks
    assert is_shown(shown, got, numbers_vary=vary), f"{block.place} shows\n{shown}\nbut got\n{got}"


@pytest.mark.pages
@pytest.mark.parametrize("page", RUNNABLE)
def test_every_block_runs_and_gives_what_is_shown(page, tmp_path):
    GROUNDS.get(page, lambda folder: None)(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks(page):
        if "file" in block.remarks:
            write(block)
        elif block.language == OUTPUT and printed is not None:
            compare(block, block.text, printed)
        printed = None
        if block.language == SHELL and block.runs_here:
            run_commands(block)
        elif block.language == PYTHON and block.runs_here:
            printed = run_python(block, names)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_is_known(page):
    for block in blocks(page):
        assert block.language in RUN | SHOWN, block.place
        if block.language == "toml":
            tomllib.loads(block.text)


def test_a_block_that_runs_nowhere_or_with_servers_says_why():
    reasons = set()
    for block in (block for page in RUNNABLE for block in blocks(page)):
        if "not run" in block.remarks:
            reason = block.remarks["not run"]
            assert reason in NOT_RUN, block.place
            assert NOT_RUN[reason] in block.text, f"{block.place}: nothing here {reason}"
            reasons.add(reason)
    assert reasons == set(NOT_RUN)
    assert FIRST in SERVED


def write(block: Block) -> None:
    """Write the file that a page shows, in the folder of the test."""
    path = Path(block.remarks["file"])
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(block.text, encoding="utf-8")


class Parties:
    """The processes that a page starts and leaves running, in the folder of the test."""

    def __init__(self, *, gathers: bool) -> None:
        self.gathers, self.port = gathers, free_port()
        self.running: dict[str, subprocess.Popen[bytes]] = {}

    def do(self, command: str, status: int = 0) -> str | None:
        """Run a command and return its output; None for a party, which is left running."""
        words = shlex.split(command, comments=True)
        verb = " ".join(words[:3])
        if verb in ("fedpower node request", "fedpower node accept"):
            for party in ("coordinator", "runner", "south", "east"):
                run(command.replace("north", party))
        if verb == "fedpower study init":
            host = words[words.index("--host") + 1]
            command = command.replace(host, f"localhost --port {self.port}")
        if self.gathers and verb in ("fedpower study run", "fedpower study status"):
            self.start_the_others()
        if verb == "fedpower node start":
            self.start(words)
            return None
        got = run(command, status)
        if verb == "fedpower study run":
            assert (Path(words[words.index("-o") + 1]) / "components.csv").is_file(), command
        return got

    def start(self, words: list[str]) -> None:
        kit = Path(words[3]).name
        with Path(f"{kit}.log").open("wb") as log:
            self.running[kit] = subprocess.Popen(  # of other parties on this machine
                [*words, "--no-health"], stdout=log, stderr=log, start_new_session=True
            )

    def start_the_others(self) -> None:
        """Start the silos of which a page says "and likewise", and wait until all are connected."""
        for kit in ("north", "south", "east"):
            if kit not in self.running:
                own = Path("kits", kit)
                if not (own / f"{kit}.ledger").exists():
                    run(f"fedpower ledger create {own}/{kit}.ledger --epsilon 3 --delta 1e-6")
                    text = Path(f"{kit}.toml").read_text().replace('path = "', 'path = "../../', 1)
                    rule = f'[approve]\nstudy = "{read_study(Path("study.toml")).digest}"\n'
                    (own / "silo.toml").write_text(text.partition("[ledger]")[0] + rule)
                self.start(["fedpower", "node", "start", str(own)])
        ends, status = time.monotonic() + WAIT_S, ["fedpower", "study", "status", "study.toml"]
        while True:
            reported = subprocess.run(status, check=False, capture_output=True, text=True, timeout=LONGEST_S)
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

    def lose_one(self) -> None:
        """Make the federation of the first page and lose one of its silos, which had connected."""
        for block in blocks(FIRST):
            if "file" in block.remarks:
                write(block)
            runs = block.language == SHELL and "not run" not in block.remarks
            for command, _ in block.commands() if runs else ():
                if command.startswith("fedpower study status"):
                    self.start_the_others()
                    return self.stop("east")
                self.do(command)
        raise AssertionError(f"{FIRST} must ask for the status")


@contextlib.contextmanager
def parties(*, gathers: bool) -> Iterator[Parties]:
    made = Parties(gathers=gathers)
    try:
        yield made
    finally:
        for kit in list(made.running):
            made.stop(kit)


@pytest.mark.pages
@pytest.mark.federation
@pytest.mark.parametrize("page", SERVED)
def test_blocks_that_need_servers_give_what_is_shown(page, tmp_path):
    own = [block for block in blocks(page) if block.language == SHELL or "file" in block.remarks]
    three_hospitals(tmp_path)
    makes_its_own = any("node ca-init" in block.text for block in own)
    with parties(gathers=makes_its_own) as served:
        if not makes_its_own:
            served.lose_one()
        for block in own:
            if "file" in block.remarks:
                write(block)
            elif "not run" not in block.remarks:
                run_commands(block, served.do)
