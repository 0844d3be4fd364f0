"""Every block of the README and of docs/ that a reader could run is run, and gives what is shown."""

import contextlib
import io
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from grounds import GROUNDS
from pages import OUTPUT, PAGES, PYTHON, ROOT, SHELL, Block, blocks
from shown import is_shown

RUN = {SHELL, PYTHON}
NOT_RUN = {
    "it runs this test": "make test",
    "needs a GPU": "cuda",
    "needs a PostgreSQL server": "postgresql",
    "takes minutes": "reproduce",
}
"""By allowed reason for a block that runs nowhere: a word that such a block holds."""
SHOWN = {"", OUTPUT, "toml", "{toctree}", "{include}"}
"""Languages of blocks that nobody runs."""
LONGEST_S = 600.0
"""Seconds after which a command counts as hanging, however busy the machine."""
RUNNABLE = [page for page in PAGES if any(block.language in RUN for block in blocks(page))]


@pytest.mark.pages
@pytest.mark.parametrize("page", RUNNABLE)
def test_every_block_runs_and_gives_what_is_shown(
    page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
    path = [str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]  # the paper's models are there
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path))
    GROUNDS.get(page, lambda folder: None)(tmp_path)
    names: dict[str, Any] = {"__name__": "__main__"}
    printed: str | None = None
    for block in blocks(page):
        if "file" in block.remarks:
            (tmp_path / block.remarks["file"]).write_text(block.text, encoding="utf-8")
        elif block.language == OUTPUT and printed is not None:
            _compare(block, block.text, printed)
        printed = None
        if block.language == SHELL and block.runs_here:
            _run_commands(block)
        elif block.language == PYTHON and block.runs_here:
            printed = _run_python(block, names)


@pytest.mark.parametrize("page", PAGES)
def test_every_block_is_of_a_language_that_is_known(page: str) -> None:
    for block in blocks(page):
        assert block.language in RUN | SHOWN, block.place
        if block.language == "toml":
            tomllib.loads(block.text)


def test_a_block_that_runs_nowhere_says_why() -> None:
    reasons = set()
    for block in (block for page in RUNNABLE for block in blocks(page)):
        if "not run" in block.remarks:
            reason = block.remarks["not run"]
            assert reason in NOT_RUN, block.place
            assert NOT_RUN[reason] in block.text, f"{block.place}: nothing here {reason}"
            reasons.add(reason)
    assert reasons == set(NOT_RUN)


def _run_commands(block: Block) -> None:
    steps = block.commands()
    for number, (command, output) in enumerate(steps, start=1):
        done = subprocess.run(
            ["bash", "-c", command],
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=LONGEST_S,
        )
        status = int(block.remarks.get("ends with", 0)) if number == len(steps) else 0
        assert done.returncode == status, f"{block.place}: {command}\n{done.stdout}"
        if output.strip():
            _compare(block, output, done.stdout)


def _run_python(block: Block, names: dict[str, Any]) -> str:
    code = compile("\n" * block.line + block.text, str(block.page), "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        exec(code, names)  # noqa: S102  (our own pages)
    return printed.getvalue()


def _compare(block: Block, output: str, got: str) -> None:
    vary = "numbers vary" in block.remarks
    assert is_shown(output, got, numbers_vary=vary), f"{block.place} shows\n{output}\nbut got\n{got}"
