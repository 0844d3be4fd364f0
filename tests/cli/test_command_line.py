"""The program as a process: light help, exit statuses, signals, pipes, unexpected errors."""

import re
import subprocess
import sys
from pathlib import Path
from unittest.mock import Mock

import click
import pytest
from hospitals import EXACT, run, succeed

from fedpower import __version__, load
from fedpower.cli import COMMANDS
from fedpower.cli.console import exit_status, print_table, reported, say

HEAVY = ("numpy", "scipy", "sklearn", "pyarrow", "rich", "pandas")


def test_help_imports_nothing_heavy():
    script = (
        "import sys\nfrom fedpower.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"print([name for name in {HEAVY} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name, (_, line) in COMMANDS.items():
        assert name in done.stdout
        assert line in done.stdout


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help(command):
    assert "Usage: " in succeed(command, "--help").stdout
    assert __version__ in succeed("--version").stdout
    assert succeed().stdout == succeed("--help").stdout


@pytest.mark.parametrize(
    ("words", "path"),
    [
        ("--help analyze regress", "analyze regress"),
        ("analyze --help regress", "analyze regress"),
        ("analyze regress model -h", "analyze regress"),
        ("fit north.csv --epsilon --help", "fit"),
        ("fit --help-all north.csv", "fit"),
        ("-h", ""),
    ],
)
def test_help_is_of_the_command_wherever_it_is_asked_for(words, path):
    assert succeed(*words.split()).stdout.startswith(f"Usage: fedpower {path}".rstrip())
    assert ("Solvers:" in succeed(*words.split()).stdout) == ("--help-all" in words)


BRIEF = {
    "-k", "--components", "--epsilon", "-o", "--output", "--force", "--ledger", "--unit", "--codebook",
    "--range", "--columns", "--drop", "--aggregation", "--json", "-q", "--quiet", "--verbose", "--help-all",
    "-h", "--help",
}  # fmt: skip


def options_in(text: str) -> set[str]:
    heads = (
        re.match(r"  (-[\w-]+)(?:, (--[\w-]+))?", line)
        for line in text.partition("\nOptions:")[2].splitlines()
    )
    return {word for head in heads if head for word in head.groups() if word}


def test_help_of_a_fit_lists_what_most_people_need_and_help_all_the_rest():
    assert options_in(succeed("fit", "--help").stdout) == BRIEF
    whole = succeed("fit", "--help-all").stdout
    assert {*BRIEF, "--row-norm", "--schedule", "--config", "--network"} <= options_in(whole)
    for heading in ("Privacy:", "Solvers:", "The paper's method:", "Rounds:"):
        assert heading in whole


def test_options_may_stand_in_a_file_and_those_of_the_line_come_first(here):
    lists = 'columns = ["bmi", "sbp", "hdl"]\ndrop = "hdl"\n'
    Path("fit.toml").write_text(f"k = 1\nepsilon = inf\n{lists}no-center = true\nrow-norm = 3\n")
    succeed("fit", "north.csv", "--config", "fit.toml", "-k", 2, "--columns", "bmi,sbp", "-o", "out")
    record = load("out").run
    assert (record["n_components"], record["n_features"]) == (2, 2)
    assert record["parameters"]["center"] is False
    assert record["parameters"]["row_norm"] == 3


@pytest.mark.parametrize("text", ["shoe = 1", "k = ", "[k]\na = 1", "help = true"])
def test_a_file_of_other_options_is_refused(here, text):
    Path("fit.toml").write_text(text)
    said = run("fit", "north.csv", "--config", "fit.toml")
    assert said.exit_code == 2
    assert "fit.toml must" in said.stderr


def test_what_others_sent_cannot_steer_a_terminal(capsys):
    sent = "a\x1b[2J\u202eb\u00a0é\r"
    say(sent, alarming=True)
    print_table(sent, [sent], [[sent]])
    printed = capsys.readouterr().out
    assert [part for part in ("\x1b[2J", "\u202e", "\r") if part in printed] == []
    assert printed.count("b\u00a0é") == 4


def test_an_unexpected_error_names_the_way_to_see_more(here, monkeypatch):
    monkeypatch.setattr("fedpower.cli.fit.open_silos", Mock(side_effect=ZeroDivisionError("by\nzero")))
    said = run("fit", "north.csv", *EXACT, "-o", "new")
    assert said.exit_code == 1
    (sentence,) = said.stderr.splitlines()
    assert "ZeroDivisionError: by zero" in sentence
    assert "--traceback" in sentence
    assert not Path("new").exists()
    for shown in (
        run("fit", "north.csv", *EXACT, "-o", "new", "--traceback"),
        run("fit", "north.csv", *EXACT, "-o", "new", env={"FEDPOWER_TRACEBACK": "1"}),
    ):
        assert shown.exit_code == 1
        assert "Traceback (most recent call last)" in shown.stderr


def test_errors_of_the_system_and_of_libraries_are_sentences():
    denied = PermissionError(13, "Permission denied", "secret.csv")
    assert exit_status(Mock(side_effect=denied), traceback=False) == 2
    assert "secret.csv" in reported(denied)[0]
    assert reported(ValueError("X has\n  nothing"))[1] == 2
    assert reported(click.FileError("x", "gone"))[1] == 2
    assert exit_status(lambda: 3, traceback=False) == 3
    assert exit_status(lambda: None, traceback=False) == 0
