"""Progress: on a terminal there is some, on a pipe or with --quiet nothing but the sentences."""

import os
import subprocess
from pathlib import Path

import numpy as np
import pytest
from hospitals import EXACT, succeed

from fedpower import FedPCA

if os.name != "posix":
    pytest.skip("needs pseudo-terminals", allow_module_level=True)

from terminals import PROGRAM, Terminal

pytestmark = pytest.mark.programs


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two silos of many rows, and a model of them."""
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((200_000, 20)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_fit_shows_rows_and_rounds(wide: Path) -> None:
    words = ("--solver", "fedpower", "--n-steps", "3", "--tol", "0", "-o", "out")
    with Terminal("fit", "north.npy", "south.npy", *EXACT, *words) as terminal:
        terminal.wait_for(r"rows .* \d+/400000 .* left")
        terminal.wait_for(r"steps .* 3/3 .*round \d, 2 of 2 answered, subspace moved")
        assert terminal.end() == 0
    assert "Error" not in terminal.said


def test_rows_of_unknown_number_are_counted(here: Path) -> None:
    with Terminal("fit", "north.csv", "east.csv", *EXACT, "-o", "out") as terminal:
        terminal.wait_for(r"rows .* 100/\?")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    "words",
    [
        ("transform", "out", "north.npy", "-o", "scores.npy"),
        ("plan", "north.csv", "-k", "2", "--epsilon", "1"),
    ],
    ids=["transform", "plan"],
)
def test_other_commands_show_rows(here: Path, words: tuple[str, ...]) -> None:
    succeed("fit", "north.npy", *EXACT, "-o", "out")
    with Terminal(*words) as terminal:
        terminal.wait_for(r"rows .* \d+/")
        assert terminal.end() == 0


def test_quiet_shows_nothing(here: Path) -> None:
    with Terminal("fit", "north.csv", *EXACT, "-o", "out", "--quiet") as terminal:
        assert terminal.end() == 0
    assert terminal.said == ""


def test_a_pipe_gets_the_sentences_only(here: Path) -> None:
    done = subprocess.run(
        [*PROGRAM, "fit", "north.csv", "--epsilon", "1", "--row-norm", "3", "-k", "2"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["Note:", "Note:"]
    assert "\x1b" not in done.stdout + done.stderr


def test_a_callback_is_told_of_every_row_of_every_pass(here: Path) -> None:
    seen: list[tuple[str, int, int | None]] = []
    model = FedPCA(2, epsilon=float("inf"))
    silos = {"north": "north.csv", "south": "south.parquet"}
    model.fit_silos(silos, on_rows=lambda *reported: seen.append(reported))
    assert sum(count for name, count, _ in seen if name == "north") == 60
    assert [(count, total) for name, count, total in seen if name == "south"] == [(50, 50)]
    assert {total for name, _, total in seen if name == "north"} == {None}
