"""Commands on a terminal: progress, and Ctrl-C in the middle of a real fit with sound ledgers."""

import os
import pty
import re
import signal
import subprocess
import termios
import threading
import time
from pathlib import Path
from types import TracebackType
from typing import Self
from unittest.mock import Mock

import numpy as np
import pytest
from hospitals import EXACT, PROGRAM, make_ledgers, run, succeed
from row_forms import write_zeros

from budgets import ledgers_in, spent

pytestmark = pytest.mark.programs

CODES = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
SECONDS = 120.0


class Terminal:
    """Runs ``fedpower WORDS`` with stderr on a pseudo-terminal, or all output on one of 80 columns."""

    def __init__(self, *words: object, on_80_columns: bool = False) -> None:
        self._reader, writer = pty.openpty()
        termios.tcsetwinsize(writer, (40, 80))
        self._raw = b""
        kept = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        size = {} if on_80_columns else {"COLUMNS": "160", "LINES": "40"}
        self.process = subprocess.Popen(
            [*PROGRAM, *map(str, words)],
            stdout=writer if on_80_columns else subprocess.PIPE,
            stderr=writer,
            stdin=subprocess.DEVNULL,
            env=kept | size | {"TERM": "xterm"},
            start_new_session=True,
        )
        os.close(writer)
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.process.kill()
        self.process.communicate()
        self._thread.join()
        os.close(self._reader)

    @property
    def said(self) -> str:
        """What was shown so far, without the codes that move the cursor."""
        return CODES.sub("", self._raw.decode(errors="replace"))

    def wait_for(self, pattern: str) -> None:
        until = time.monotonic() + SECONDS
        while not re.search(pattern, self.said):
            assert time.monotonic() < until, f"no {pattern!r} in {self.said!r}"
            assert self._thread.is_alive() or re.search(pattern, self.said), self.said
            time.sleep(0.02)

    def interrupt(self) -> int:
        self.process.send_signal(signal.SIGINT)
        return self.end()

    def end(self) -> int:
        """Return the exit status once the process has ended by itself."""
        self.process.wait(SECONDS)
        self._thread.join(SECONDS)
        return int(self.process.returncode)

    def _read(self) -> None:
        try:
            while more := os.read(self._reader, 65536):
                self._raw += more
        except OSError:  # Linux's word for a terminal that nobody writes to any more
            pass


@pytest.fixture
def wide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two silos of many rows, and a model of them."""
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((200_000, 20)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_fit_shows_rows_and_rounds(wide):
    words = ("--solver", "fedpower", "--n-steps", "3", "--tol", "0", "-o", "out")
    with Terminal("fit", "north.npy", "south.npy", *EXACT, *words) as terminal:
        terminal.wait_for(r"rows .* \d+/400000 .* left")
        terminal.wait_for(r"steps .* 3/3 .*round \d, 2 of 2 answered, change sin")
        assert terminal.end() == 0
    assert "Error" not in terminal.said


@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (("fit", "north.csv", "east.csv", *EXACT, "-o", "out"), r"100/\?"),
        (("transform", "model", "north.npy", "-o", "scores.npy"), "60/60"),
        (("plan", "north.csv", "-k", "2", "--epsilon", "1"), r"60/\?"),
    ],
    ids=["fit", "transform", "plan"],
)
def test_rows_are_counted_also_where_their_number_is_unknown(here, words, rows):
    with Terminal(*words) as terminal:
        terminal.wait_for(rf"rows .* {rows}")
        assert terminal.end() == 0


AT_80 = """
fit north.csv south.parquet east.csv -k 2 --epsilon 1 --ledger l -o out -q --verbose
fit north.csv south.parquet east.csv -k 2 --epsilon 1 -o out -q --force
fit words.csv north.csv -k 2 --epsilon 1 -o new -q --verbose
show out --verbose
show out --against model
plan --n-features 100 --rows 20x5000 -k 4 --epsilon 1 --gap 0.02 --no-standardize --all
inspect words.csv north.csv
ledger show l/north.ledger --what-if 1
analyze correlate out
analyze factor out -k 1
study show study.toml
doctor
fit --help-all
node --help
"""


def test_lines_fit_80_columns_and_break_between_words(here):
    make_ledgers("l")
    Path("words.csv").write_text("age,sex,seen\n1,F,2020-01-01\n2,M,2020-01-02\n")
    succeed("study", "init", "--name", "s", "--silos", "a,b", "--columns", "x,y", "-k", 1, "--epsilon", 1)
    for command in AT_80.strip().splitlines():
        with Terminal(*command.split(), on_80_columns=True) as terminal:
            assert terminal.end() in (0, 2), terminal.said
        lines = terminal.said.splitlines()
        assert [line for line in lines if len(line) > 80 and " " in line.strip()] == [], command
        assert len(lines) > 1, command
        # a table's number is never cut: a line that holds but part of one would begin with it
        assert not [line for line in lines if re.fullmatch(r"\s*[\d.]{1,3}", line)], command


def test_quiet_shows_nothing(here):
    with Terminal("fit", "north.csv", *EXACT, "-o", "out", "--quiet") as terminal:
        assert terminal.end() == 0
    assert terminal.said == ""


def test_a_pipe_gets_the_sentences_only(here):
    done = subprocess.run(
        [*PROGRAM, "fit", "north.csv", "--epsilon", "1", "--row-norm", "3", "-k", "2"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert [line.split()[0] for line in done.stderr.splitlines()] == ["Note:"]
    assert "\x1b" not in done.stdout + done.stderr


STEPS = 120
SECURE = ("--aggregation", "secure")
NOISED = ("-k", "1", "--epsilon", "1", "--delta", "1e-6", "--row-norm", "1")


def last_line(terminal: Terminal) -> str:
    assert "Traceback" not in terminal.said
    return terminal.said.replace("\r", "\n").rstrip().splitlines()[-1].strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two small silos and their ledgers."""
    ledgers_in(tmp_path, ("north", "south"), 4.0)
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((500, 4)) / 4)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_while_rows_are_read(tmp_path, monkeypatch):
    """A file that takes longer to read than anybody waits."""
    monkeypatch.chdir(tmp_path)
    write_zeros(Path("north.npy"), (200_000_000, 20))
    with Terminal("fit", "north.npy", "-k", "2", "--epsilon", "inf", "-o", "result") as terminal:
        terminal.wait_for(r"rows .* [1-9]\d*/200000000 ")
        assert terminal.interrupt() == 130
    assert last_line(terminal) == (
        "Error: interrupted, so no result was written; run the same command again to start over"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["north.npy"]


def test_between_noised_steps_what_was_charged_is_not_charged_again(place):
    """T steps and the mean are charged over both attempts together, as they would be over one."""
    words = ("fit", "north.npy", "south.npy", *NOISED, "--ledger", ".", "-o", "result")
    noised = ("--no-standardize", "--noise", "step", "--solver", "fedpower", "--n-steps", STEPS)
    steps = (*words, *noised)
    with Terminal(*steps) as terminal:
        terminal.wait_for(r"round \d+, 2 of 2 answered")
        assert terminal.interrupt() == 130
    assert last_line(terminal).endswith(
        "run the same command again: nothing that was charged is charged again"
    )
    assert not list(place.glob("*result*"))
    before = {name: spent(place / f"{name}.ledger").n_releases for name in ("north", "south")}
    assert all(1 <= count < STEPS + 1 for count in before.values())
    succeed(*steps, "--quiet")
    for name in before:
        after = spent(place / f"{name}.ledger")
        assert after.n_releases == STEPS + 1
        assert after.epsilon == pytest.approx(1.0, rel=1e-6)


@pytest.mark.parametrize(
    ("more", "sentence", "releases"),
    [((), "nothing that was charged is charged again", 1), (SECURE, "a secure sum is charged again", 2)],
    ids=["plain", "secure"],
)
def test_what_was_charged_when_a_fit_is_interrupted_before_its_result(
    place, monkeypatch, more, sentence, releases
):
    words = ("fit", "north.npy", "south.npy", *NOISED, "--ledger", ".", "-o", "result", *more)
    with monkeypatch.context() as patched:
        interrupted = Mock(side_effect=KeyboardInterrupt)
        patched.setattr("fedpower.report.result.Result.write_into", interrupted)
        said = run(*words)
    assert said.exit_code == 130
    assert sentence in said.stderr
    assert not list(place.glob("*result*"))
    assert [spent(place / f"{name}.ledger").n_releases for name in ("north", "south")] == [1, 1]
    succeed(*words)
    assert [spent(place / f"{name}.ledger").n_releases for name in ("north", "south")] == [releases, releases]
