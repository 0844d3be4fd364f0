"""The speed benchmark from beginning to end at tiny sizes: everything runs and everything is kept."""

import json
from pathlib import Path
from typing import Any

import pytest

from benchmarks import common as facts
from benchmarks import pictures
from benchmarks.render import section
from benchmarks.speed import __main__ as speed
from benchmarks.speed.sizes import QUICK
from benchmarks.speed.targets import TARGETS
from fedpower.experiments.look import drawing, saved

pytestmark = pytest.mark.benchmarks


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("results")
    speed.main(["--quick", "--results", str(folder)])
    return folder


def kept(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"speed_{name}.json").read_text(encoding="utf-8"))
    return found


def test_every_part_is_kept_with_the_facts_of_the_machine(results: Path) -> None:
    names = {*speed.PARTS, "targets"}
    assert {path.name for path in results.iterdir()} == {f"speed_{name}.json" for name in names}
    for name in names:
        found = kept(results, name)
        assert found["measured"]
        assert found["table"]["rows"]
        assert {"cpu", "cores", "BLAS", "polars", "commit", facts.LOAD} <= set(found["machine"])
        assert all(len(row) == len(found["table"]["columns"]) for row in found["table"]["rows"])


def test_every_repeat_of_every_fit_is_kept(results: Path) -> None:
    for name, key in (("peers", "way"), ("end_to_end", "way"), ("growth", "size")):
        for each in kept(results, name)["measured"]:
            assert each["seconds"] > 0
            assert each[key]
        assert {each["repeat"] for each in kept(results, name)["measured"]} == {0, 1}
    errors = [each["error"] for each in kept(results, "peers")["measured"]]
    assert min(errors) < 1e-8


def test_the_targets_are_those_of_this_run(results: Path) -> None:
    found = kept(results, "targets")
    assert [row[0] for row in found["table"]["rows"]] == [target.what for target in TARGETS]
    assert set(found["measured"]) == set(speed.PARTS)
    assert not any("runs" in note for note in found["notes"])


def test_measuring_one_part_again_says_that_the_targets_are_of_two_runs(
    results: Path, tmp_path: Path
) -> None:
    for path in results.iterdir():
        found = json.loads(path.read_text(encoding="utf-8"))
        found["machine"]["started"] = "earlier"
        (tmp_path / path.name).write_text(json.dumps(found), encoding="utf-8")
    speed.main(["--quick", "--parts", "kernel", "--repeats", "1", "--results", str(tmp_path)])
    assert any(note.startswith("The parts are of 2 runs") for note in kept(tmp_path, "targets")["notes"])
    assert {each["repeat"] for each in kept(tmp_path, "kernel")["measured"]} == {1}


@pytest.mark.parametrize(("load", "busy"), [("0.10", False), ("3.00", True)])
def test_a_busy_machine_is_told_from_its_load(load: str, busy: bool) -> None:
    assert facts.is_busy({facts.LOAD: load}) is busy


def test_the_curves_are_drawn_from_what_was_kept(results: Path) -> None:
    measured = kept(results, "growth")["measured"]
    with drawing() as Figure:
        figure = Figure(figsize=(9, 4))
        pictures.draw_growth(figure, measured)
        assert len(figure.axes) == 10
        assert b"<svg" in saved(figure, "svg")
    labels = [axes.get_xlabel() for axes in figure.axes[5:]]
    assert labels == ["rows n", "columns d", "silos m", "silos m, exact", "rank r"]
    assert sorted({each["size"] for each in measured if each["curve"] == "rows n"}) == list(QUICK.grown_rows)


def test_a_part_is_rendered_once_it_has_been_measured(
    results: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("benchmarks.render.HERE", tmp_path)
    assert section("speed_growth") == "\nNot measured yet.\n\n"
    (tmp_path / "results").symlink_to(results)
    text = section("speed_growth")
    assert "exponent of the time" in text
    assert "Every point:" in text
