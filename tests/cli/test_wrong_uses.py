"""Every wrong use is one sentence and status 2; nothing is written and nothing is charged."""

import os
import re
import resource
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import run
from wrong_uses import GROUPS, Wrong, prepare

USES = {name: use for group in GROUPS.values() for name, use in group.items()}
ROOM = 1024
"""Bytes that a file may have on a disk that is full."""


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("prepared")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        prepare(folder)
    return folder


@pytest.fixture
def place(prepared: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A copy of what was prepared, and the working directory."""
    shutil.copytree(prepared, tmp_path / "here")
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


def reported(use: Wrong) -> tuple[int, str, str]:
    """Return exit status, stdout and stderr of a wrong use."""
    if not use.under:
        said = run(*use.words)
        return said.exit_code, said.stdout, said.stderr
    command = [sys.executable, "-c", "from fedpower.cli import main; main()", *map(str, use.words)]
    if use.under == "no permission" and os.geteuid() == 0:  # root may read and write all
        command = ["setpriv", "--bounding-set=-dac_override,-dac_read_search", *command]
    limit = (ROOM if use.under == "full disk" else resource.RLIM_INFINITY, resource.RLIM_INFINITY)
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    return done.returncode, done.stdout, done.stderr


def contents(folder: Path) -> dict[Path, bytes | None]:
    return {path: path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(
            name,
            marks=[pytest.mark.programs] * bool(use.under)
            + [pytest.mark.devices] * ("--device" in use.words),
        )
        for name, use in USES.items()
    ],
)
def test_a_wrong_use_is_told_in_its_sentence_and_leaves_no_trace(place: Path, name: str):
    use = USES[name]
    before = contents(place)
    status, printed, said = reported(use)
    assert (status, printed) == (2, ""), said
    *silos_log, sentence = said.splitlines()
    pattern = ".*".join(map(re.escape, use.sentence.split("...")))
    assert re.fullmatch(f"Error: {pattern}", sentence), sentence
    assert "Traceback" not in said
    assert not silos_log or use.under == "full disk", silos_log
    assert contents(place) == before


def test_at_least_forty_wrong_uses_of_every_kind_are_known():
    assert len(USES) == sum(map(len, GROUPS.values())) >= 40
    assert {use.under for use in USES.values()} == {"", "no permission", "full disk"}


def test_a_sentence_says_what_must_hold_or_where_help_is():
    for name, use in USES.items():
        assert "must" in use.sentence or "--help" in use.sentence or "never" in use.sentence or (
            "would spend" in use.sentence or "refused" in use.sentence
        ), name  # fmt: skip
