"""Ctrl-C in the middle of a real fit: one sentence, status 130, sound ledgers, and the way on."""

import os
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed

from fedpower.privacy import Ledger

if os.name != "posix":
    pytest.skip("sends signals and needs pseudo-terminals", allow_module_level=True)

from terminals import Terminal

pytestmark = pytest.mark.programs

STEPS = 120
NOISED = ("-k", "1", "--epsilon", "1", "--delta", "1e-6", "--row-norm", "1")


def last_line(terminal: Terminal) -> str:
    assert "Traceback" not in terminal.said
    return terminal.said.replace("\r", "\n").rstrip().splitlines()[-1].strip()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with two small silos and their ledgers."""
    rng = np.random.default_rng(0)
    for name in ("north", "south"):
        np.save(tmp_path / f"{name}.npy", rng.standard_normal((500, 4)) / 4)
        Ledger.create(tmp_path / f"{name}.ledger", epsilon=4.0, delta=1e-6, silo=name).close()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def spent(name: str) -> tuple[int, float]:
    with Ledger.open(f"{name}.ledger") as ledger:
        reported = ledger.spent()
    return reported.n_releases, reported.epsilon


def test_while_rows_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of zeros that takes no disk, and longer to read than anybody waits."""
    monkeypatch.chdir(tmp_path)
    shape = (200_000_000, 20)
    header = {"descr": "<f8", "fortran_order": False, "shape": shape}
    with Path("north.npy").open("wb") as file:
        np.lib.format.write_array_header_1_0(file, header)
        file.truncate(file.tell() + 8 * shape[0] * shape[1])
    with Terminal("fit", "north.npy", "-k", "2", "--epsilon", "inf", "-o", "result") as terminal:
        terminal.wait_for(rf"rows .* [1-9]\d*/{shape[0]} ")
        assert terminal.interrupt() == 130
    assert last_line(terminal) == (
        "Error: interrupted, so no result was written; run the same command again to start over"
    )
    assert [path.name for path in tmp_path.iterdir()] == ["north.npy"]


def test_between_rounds_of_an_exact_fit(place: Path) -> None:
    words = ("--solver", "fedpower", "--tol", "0", "--max-rounds", "1000000", "-o", "result")
    with Terminal("fit", "north.npy", "-k", "1", "--epsilon", "inf", *words) as terminal:
        terminal.wait_for(r"round \d+, 1 of 1 answered")
        assert terminal.interrupt() == 130
    assert last_line(terminal).startswith("Error: interrupted, so no result was written; run the")
    assert not list(place.glob("*result*"))


def test_between_noised_steps_what_was_charged_is_not_charged_again(place: Path) -> None:
    """T steps and the mean are charged over both attempts together, as they would be over one."""
    words = ("fit", "north.npy", "south.npy", *NOISED, "--ledgers", ".", "-o", "result")
    noised = ("--no-standardize", "--noise", "step", "--solver", "fedpower", "--n-steps", STEPS)
    steps = (*words, *noised)
    with Terminal(*steps) as terminal:
        terminal.wait_for(r"round \d+, 2 of 2 answered")
        assert terminal.interrupt() == 130
    assert last_line(terminal).endswith(
        "run the same command again: nothing that was charged is charged again"
    )
    assert not list(place.glob("*result*"))
    before = {name: spent(name)[0] for name in ("north", "south")}
    assert all(1 <= count < STEPS + 1 for count in before.values())
    succeed(*steps, "--quiet")
    for name in before:
        count, epsilon = spent(name)
        assert count == STEPS + 1
        assert epsilon == pytest.approx(1.0, rel=1e-6)


def test_a_noised_moment_that_was_charged_is_used_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Interrupted once the release is made and before there is a result."""
    words = ("fit", "north.npy", "south.npy", *NOISED, "--ledgers", ".", "-o", "result")

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("fedpower.report.result.Result.write_into", interrupted)
        said = run(*words)
    assert said.exit_code == 130
    assert "nothing that was charged is charged again" in said.stderr
    charged = {name: spent(name) for name in ("north", "south")}
    assert {count for count, _ in charged.values()} == {1}
    assert not list(place.glob("*result*"))
    succeed(*words)
    assert {name: spent(name) for name in charged} == charged


def test_a_secure_sum_says_that_it_is_charged_afresh(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("fedpower.report.result.Result.write_into", interrupted)
    words = (*NOISED, "--ledgers", ".", "--aggregation", "secure", "-o", "result")
    said = run("fit", "north.npy", "south.npy", *words)
    assert said.exit_code == 130
    assert "a secure sum is charged again" in said.stderr
