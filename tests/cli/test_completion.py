"""Shells complete fedpower's words: bash is run for it, as a user's Tab runs it."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hospitals import run, succeed

from fedpower.cli import COMMANDS
from fedpower.cli.completion import SHELLS

BASH = shutil.which("bash")
needs_bash = pytest.mark.skipif(BASH is None, reason="runs bash")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder with a result and ledgers by their names, and fedpower on the path."""
    for path in ("result-a/components.npz", "north.ledger", "safe/east.ledger", "bin/fedpower"):
        (tmp_path / path).parent.mkdir(exist_ok=True)
        (tmp_path / path).touch()
    program = tmp_path / "bin" / "fedpower"
    program.write_text(f"#!{sys.executable}\nfrom fedpower.cli import main\nmain()\n")
    program.chmod(0o755)
    return tmp_path


def offered(place: Path, *words: str) -> list[str]:
    """Return what bash offers for the last of the words, sorted; paths are bash's own to find."""
    assert BASH is not None
    (place / "completion.bash").write_text(succeed("completion", "bash").stdout)
    quoted = " ".join(f"'{word}'" for word in ("fedpower", *words))
    script = (
        f"source completion.bash\nCOMP_WORDS=({quoted})\nCOMP_CWORD={len(words)}\n"
        'compopt() { echo "compopt $1 $2"; }\n_fedpower_completion fedpower\n'
        "printf '%s\\n' \"${COMPREPLY[@]}\"\n"
    )
    done = subprocess.run(
        [BASH, "--noprofile", "--norc", "-c", script],
        env={**os.environ, "PATH": f"{place / 'bin'}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        check=True,
        cwd=place,
    )
    assert done.stderr == ""
    return sorted(filter(None, done.stdout.splitlines()))


@pytest.mark.programs
@needs_bash
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("tr",), ["transform"]),
        (("",), sorted(COMMANDS)),
        (("--ver",), ["--version"]),
        (("fit", "--solver", ""), ["auto", "fedpower", "krylov", "moment"]),
        (("fit", "--row-"), ["--row-norm"]),
        (("fit", "nor"), ["compopt -o default"]),
        (("fit", "north.csv", "-o", "x"), ["compopt -o default"]),
        (("transform", ""), ["result-a"]),
        (("transform", "res"), ["result-a"]),
        (("transform", "zz"), ["compopt -o dirnames"]),
        (("transform", "result-a", "no"), ["compopt -o default"]),
        (("export", "result-a", "--to", ""), ["anndata", "csv", "onnx", "parquet", "plink"]),
        (("budget", ""), ["cap", "init", "north.ledger", "show"]),
        (("budget", "safe/"), ["safe/east.ledger"]),
        (("budget", "cap", "no"), ["north.ledger"]),
        (("budget", "zz"), ["compopt -o default"]),
        (("completion", ""), ["bash", "fish", "zsh"]),
        (("nonsense", "tr"), ["transform"]),
    ],
    ids=" ".join,
)
def test_bash_offers_commands_choices_results_and_ledgers(
    place: Path, words: tuple[str, ...], expected: list[str]
):
    assert offered(place, *words) == expected


@pytest.mark.parametrize("shell", SHELLS)
def test_a_script_is_printed_for_every_shell(shell: str):
    script = succeed("completion", shell).stdout
    assert f"_FEDPOWER_COMPLETE={shell}_complete" in script
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script, text=True, check=True)


def test_help_has_a_line_for_every_shell():
    lines = succeed("completion", "--help").stdout.splitlines()
    for shell in SHELLS:
        (reported,) = [line for line in lines if line.strip().startswith(f"{shell}:")]
        assert f"fedpower completion {shell} > ~/" in reported
    assert not [line for line in lines if "\\b" in line or "\b" in line]


def test_another_shell_is_refused():
    said = run("completion", "csh")
    assert said.exit_code == 2
    assert said.stderr.startswith("Error: ")


def test_completing_a_command_imports_nothing_heavy():
    script = (
        "import sys\nfrom fedpower.cli import main\n"
        "try:\n    main()\nexcept SystemExit as end:\n    assert end.code == 0\n"
        "print([name for name in ('numpy', 'sklearn', 'rich') if name in sys.modules])"
    )
    asked = {"_FEDPOWER_COMPLETE": "bash_complete", "COMP_WORDS": "fedpower f", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **asked}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.splitlines() == ["plain,fit", "plain,federation", "[]"]
