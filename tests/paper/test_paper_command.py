"""``python -m paper``: the same files whatever happens on the way, and sentences where it stops."""

import csv
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from fedpower.exceptions import InputError
from paper import communities
from paper.__main__ import main
from paper.settings import FIGURES as KNOWN
from paper.settings import Settings
from paper.store import Store, verdicts_on
from paper.table import read_table

pytestmark = pytest.mark.reproduce

SHORT = ["--quick", "--only", "silos"]


def run(*words: object) -> int:
    return main(*map(str, words))


def contents(folder: Path) -> dict[str, bytes]:
    """Return every output by name, settings and finished repetitions left out."""
    files = [path for path in folder.iterdir() if path.is_file() and path.name != "settings.json"]
    return {path.name: path.read_bytes() for path in files}


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("short") / "made"
    assert run(*SHORT, "-o", folder) == 0
    return folder


def test_a_quick_run_makes_every_file_and_says_it_is_not_the_paper_s_size(tmp_path, capsys):
    folder = tmp_path / "made"
    assert run("--quick", "--repetitions", 2, "-o", folder) == 0
    shown = capsys.readouterr()
    assert "not the paper's size" in shown.err
    assert "claims hold" in shown.out
    pictures = ("figure3", "figure4", "solvers", "schedules", "alignment", "silos", "rows")
    drawn = {f"{name}.{kind}" for name in pictures for kind in ("svg", "png")}
    assert contents(folder).keys() == drawn | {"runs.csv", "claims.json", "captions.json"}
    captions = json.loads((folder / "captions.json").read_text())
    assert captions.keys() == set(pictures)
    assert all("not the paper's size" in caption for caption in captions.values())
    record = json.loads((folder / "claims.json").read_text())
    assert record["settings"]["quick"] is True
    table = read_table((folder / "runs.csv").read_text())
    assert table.figures == tuple(KNOWN)
    verdicts = verdicts_on(Settings(quick=True, repetitions=2), table)
    assert [each.as_dict() for each in verdicts] == record["claims"]


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(short, tmp_path):
    assert run(*SHORT, "-o", tmp_path / "again") == 0
    assert contents(tmp_path / "again") == contents(short)
    assert run(*SHORT, "--seed", 1, "-o", tmp_path / "other") == 0
    other = contents(tmp_path / "other")
    assert other["runs.csv"] != contents(short)["runs.csv"]


def test_a_finished_folder_is_not_run_again_and_one_of_something_else_is_left_alone(
    short, tmp_path, monkeypatch
):
    before = contents(short)
    monkeypatch.setattr("paper.store.run_repetition", lambda *_, **__: pytest.fail("it was run again"))
    assert run(*SHORT, "-o", short) == 0
    settings = Settings(quick=True, figures=("silos",))
    for other, named in (
        (replace(settings, seed=1), "seed 0 there and 1 here"),
        (replace(settings, figures=("rows",)), r"figures \['silos'\] there and \['rows'\] here"),
    ):
        with pytest.raises(InputError, match=rf"same settings and versions.*{named}.*-o"):
            Store(short, other)
    assert contents(short) == before
    (tmp_path / "thesis.tex").write_text("mine")
    for place, named in (
        (tmp_path, r"holds 'thesis\.tex'; name another with -o"),
        (tmp_path / "thesis.tex", "must be a folder, got a file there"),
    ):
        with pytest.raises(InputError, match=named):
            Store(place, settings)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_killed_at_any_point_it_goes_on_and_gives_the_same_bytes(short, tmp_path):
    folder = tmp_path / "killed"
    command = [sys.executable, "-m", "paper", *SHORT, "--repetitions", "500", "-o", str(folder)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not list(folder.glob("finished/*.json")):
        time.sleep(0.002)
    process.kill()
    process.communicate()
    assert list(folder.glob("finished/*.json"))
    assert run(*SHORT, "-o", folder) == 0
    assert contents(folder) == contents(short)


def test_every_line_of_communities_is_in_the_table_and_in_the_picture(tmp_path, capsys):
    communities.main(["--quick", "--repetitions", "1", "-o", str(tmp_path)])
    with (tmp_path / "communities.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert [float(row["share"]) for row in rows if row["epsilon"] == "inf"] == [1.0, 1.0]
    assert len({(row["unit"], row["aggregation"]) for row in rows if row["epsilon"] == "1.0"}) == 4
    assert "At ε = 1: a row protected, noise at each silo 0." in capsys.readouterr().out
