"""`-k auto` and `-k 0.9` on the command line: fit, plan and study files."""

import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed

PRIVATE = ("--epsilon", "4", "--row-norm", "1", "--delta", "1e-6")


@pytest.fixture
def silo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a silo whose variance is in two directions."""
    rng = np.random.default_rng(0)
    rows = 0.01 * rng.standard_normal((30_000, 8))
    rows[:, :2] += rng.standard_normal((30_000, 2)) * [0.3, 0.2]
    np.save(tmp_path / "north.npy", rows)
    np.save(tmp_path / "empty.npy", np.zeros((200, 8)))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_fit_finds_as_many_as_are_determined(silo: Path) -> None:
    said = succeed("fit", "north.npy", "-k", "auto", *PRIVATE, "--no-standardize", "-o", "out")
    assert "pc1 and pc2 are determined: each is within 45° of the component" in said.stdout
    record = json.loads(Path("out/run.json").read_text())
    assert (record["n_components"], record["angles"]["determined"]) == (2, [True, True])
    succeed("fit", "north.npy", "-k", "0.6", *PRIVATE, "--no-standardize", "-o", "half")
    assert json.loads(Path("half/run.json").read_text())["n_components"] == 1


def test_where_nothing_is_determined_the_cause_is_printed(silo: Path) -> None:
    said = succeed("fit", "empty.npy", "-k", "auto", *PRIVATE, "-o", "out").stdout
    assert "not determined (" in said
    assert "No component is determined: each may be more than 45° off, at 90% confidence." in said
    assert "The likely cause is " in said


def test_a_plan_tells_how_many_a_spectrum_would_give() -> None:
    words = ("plan", "--n-features", 8, "--rows", "2x20000", "--epsilon", 1, "-k", "auto")
    reported = succeed(*words, "--spectrum", "0.3,0.2,0.001", "--json")
    ways = json.loads(reported.stdout)["candidates"]
    assert {(way["solver"], way["aggregation"]) for way in ways} == {
        ("moment", "plain"),
        ("moment", "secure"),
    }
    assert [way["rank"] for way in ways] == [2, 2]
    assert "It would find 2 components for -k auto." in succeed(*words, "--spectrum", "0.3,0.2,0.001").stdout
    none = succeed(*words, "--spectrum", "0.00001").stdout
    assert "It would determine no component for -k auto." in none
    refused = run(*words, "--gap", "0.1")
    assert refused.exit_code == 2
    assert "--gap must go with a number of components" in refused.stderr


def test_a_study_may_agree_on_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    words = ("--silos", "north,south", "--columns", "a,b,c", "--epsilon", "1", "--row-norm", "2")
    succeed("study", "init", "--name", "heart", *words, "-k", "auto")
    assert 'n_components = "auto"' in Path("study.toml").read_text()
    reported = json.loads(succeed("study", "show", "study.toml", "--json").stdout)
    assert (reported["n_components"], reported["solver"], reported["iteration_rank"]) == ("auto", "moment", 3)
