"""Measurements in processes of their own: finished, ended at their limit, or failed in a sentence."""

import os
from pathlib import Path

import pytest

from benchmarks import processes as running
from benchmarks.processes import Runner, one_core, run_apart, scratch
from benchmarks.speed.kernel import EXACT, OURS

pytestmark = pytest.mark.benchmarks

SMALL = {"n_rows": 50, "n_features": 4, "dtype": "float64", "repeats": 1}


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(running.__file__).parents[1])


def test_a_process_hands_over_what_it_measured() -> None:
    found = run_apart("benchmarks.speed.kernel:dense", SMALL)
    assert {each["way"] for each in found["times"]} == {*OURS, *EXACT, "X.T @ X", "X.sum()"}


def test_a_process_at_its_limit_did_not_finish() -> None:
    assert run_apart("benchmarks.speed.kernel:dense", SMALL, limit_s=0.01) == {
        "ended": "did not finish in 0.01 s"
    }


def test_a_process_that_fails_is_told_by_its_last_line() -> None:
    found = run_apart("benchmarks.speed.wide:steps", {"path": "nothing.npy"})
    assert found["ended"].startswith("failed: FileNotFoundError")
    assert "nothing.npy" in found["ended"]


def test_memory_is_told_above_a_bare_interpreter() -> None:
    lines: list[str] = []
    run = Runner(apart=False, say=lines.append)
    assert 1 < run.bare_mb < 100
    found = run("benchmarks.speed.growth:fit_grown", label="a fit", shape=(50, 6))
    assert found["above_mb"] == found["peak_mb"] - run.bare_mb
    assert len(lines) == 1
    assert "a fit: " in lines[0]


def test_data_are_removed_afterwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "CACHE", tmp_path / "cache")
    with scratch("part") as folder:
        (folder / "rows").touch()
        assert folder.parent == tmp_path / "cache"
    assert os.listdir(tmp_path / "cache") == []  # noqa: PTH208


def test_one_core_is_kept_to_and_given_back() -> None:
    before = os.sched_getaffinity(0)
    with one_core():
        assert len(os.sched_getaffinity(0)) == 1
    assert os.sched_getaffinity(0) == before
