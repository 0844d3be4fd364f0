"""What programs get of a command: one JSON object on stdout, or lines to a reader who may go."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import COLUMNS, EXACT, succeed

COMMAND = "from fedpower.cli import main; main()"


def reported(*words: object) -> dict:
    return json.loads(succeed(*words, "--json").stdout)


def test_ledgers_are_made_and_changed_with_a_statement(here: Path):
    made = reported("ledger", "create", "north.ledger", "--epsilon", 2, "--delta", 1e-6)
    assert made["ledger"] == "north.ledger"
    assert made["silo"] == "north"
    assert made["cap"] == {"epsilon": 2, "delta": 1e-6}
    words = ("--epsilon", 3, "--delta", 1e-6, "--reason", "a longer study")
    changed = reported("ledger", "set-cap", "north.ledger", *words)
    assert changed["cap"]["epsilon"] == 3
    assert changed["cap_changes"][-1]["reason"] == "a longer study"


def test_what_was_written_is_told(here: Path):
    succeed("fit", "north.csv", *EXACT, "-o", "out")
    assert reported("transform", "out", "east.csv", "-o", "scores.csv") == {
        "file": "scores.csv",
        "rows": 40,
        "scores": ["pc1", "pc2"],
    }
    assert reported("export", "out", "--to", "csv", "-o", "out.csv") == {
        "to": "csv",
        "files": {"out.csv": "5 features by 2 components"},
    }
    assert reported("export", "out", "--to", "plink", "--rows", "east.csv", "-o", "east")["files"] == {
        "east.eigenvec": "40 samples",
        "east.eigenval": "their eigenvalues",
    }
    assert reported("show", "out")["feature_names"] == list(COLUMNS)


def test_a_study_in_order_is_told_with_its_hash(here: Path):
    columns = ("--columns", ",".join(COLUMNS))
    words = ("--name", "heart", "--silos", "a,b", *columns, "-k", 2, "--epsilon", 1, "--normalize")
    succeed("study", "init", "study.toml", *words)
    found = reported("study", "check", "study.toml")
    assert found["name"] == "heart"
    assert found["hash"] == json.loads(succeed("study", "show", "study.toml", "--json").stdout)["hash"]


@pytest.mark.programs
@pytest.mark.parametrize("words", [("transform", "out", "many.csv"), ("ledger", "show", "many.ledger")])
def test_a_reader_who_has_enough_ends_the_command_quietly(here: Path, words: tuple[str, ...]):
    """The pipe is closed before a word is written: nothing depends on who is faster."""
    succeed("fit", "north.csv", *EXACT, "-o", "out")
    rows = Path("north.csv").read_text().splitlines(keepends=True)
    Path("many.csv").write_text(rows[0] + "".join(rows[1:]) * 100)
    succeed("ledger", "create", "many.ledger", "--epsilon", 2, "--delta", 1e-6)
    command = subprocess.Popen(
        [sys.executable, "-c", COMMAND, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert command.stdout is not None
    command.stdout.close()
    assert command.stderr is not None
    said = command.stderr.read()
    command.stderr.close()
    assert command.wait() == 141
    assert said == b""
