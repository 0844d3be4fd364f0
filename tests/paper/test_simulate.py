"""``python -m paper.simulate``: files that read back as the model's rows, all or nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from paper import models
from paper.models import Array, Model, spiked_covariance, stochastic_block
from paper.simulate import simulate

SMALL = ["--rows", "50", "--features", "6", "--silos", "3", "--rank", "2", "--seed", "4"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(each) for each in arguments])


def refused(*arguments: object) -> str:
    result = run(*arguments)
    assert isinstance(result.exception, InputError)
    return str(result.exception)


def read(path: Path) -> Array:
    return np.vstack(list(open_source(path).blocks(1000)))


def small_model() -> Model:
    return spiked_covariance(n_rows=50, n_features=6, n_silos=3, rank=2, seed=4)


@pytest.mark.parametrize("kind", ["npy", "parquet", "csv"])
def test_each_format_reads_back_as_the_models_rows(kind: str, tmp_path: Path) -> None:
    folder = tmp_path / "data"
    result = run("spiked", "-o", folder, "--format", kind, *SMALL)
    assert result.exit_code == 0, result.output
    names = [f"silo-{place:02}.{kind}" for place in (1, 2, 3)]
    assert sorted(p.name for p in folder.iterdir()) == sorted([*names, "model.json", "truth.npz"])
    model = small_model()
    for silo, name in enumerate(names):
        assert np.array_equal(read(folder / name), np.vstack(list(model.blocks(silo, 9))))
    if kind != "npy":
        assert open_source(folder / names[0]).columns == ("x001", "x002", "x003", "x004", *EXTRA)
    with np.load(folder / "truth.npz") as truth:
        assert np.array_equal(truth["basis"], model.basis)
    facts = json.loads((folder / "model.json").read_text())
    assert facts == {**model.facts, "files": names}


EXTRA = ("x005", "x006")


def test_networks_are_written_one_a_silo(tmp_path: Path) -> None:
    result = run("sbm", "-o", tmp_path / "nets", "--nodes", 20, "--silos", 2, "--no-normalize")
    assert result.exit_code == 0, result.output
    model = stochastic_block(n_nodes=20, n_silos=2, normalize=False, seed=0)
    written = read(tmp_path / "nets" / "silo-02.npy")
    assert np.array_equal(written, np.vstack(list(model.blocks(1, 20))))
    assert "-k 2" in result.stdout


def test_many_silos_sort_by_name(tmp_path: Path) -> None:
    run("spiked", "-o", tmp_path / "d", "--rows", 101, "--features", 4, "--silos", 101)
    files = sorted(path.name for path in (tmp_path / "d").glob("silo-*"))
    assert (files[0], files[-1]) == ("silo-001.npy", "silo-101.npy")


def test_json_goes_to_stdout_and_nothing_else_does(tmp_path: Path) -> None:
    result = run("spiked", "-o", tmp_path / "d", "--json", *SMALL)
    reported = json.loads(result.stdout)
    assert reported["model"] == "spiked"
    assert reported["n_rows"] == 50
    assert reported["bytes"] == sum(Path(path).stat().st_size for path in reported["files"])


@pytest.mark.parametrize(
    ("arguments", "sizes"),
    [
        (["spiked"], (5000,) * 4),
        (["spiked", "--paper-size"], (100_000,) * 20),
        (["spiked", "--paper-size", "--silos", "5"], (400_000,) * 5),
        (["sbm"], (200,) * 4),
        (["sbm", "--paper-size"], (1000,) * 20),
    ],
)
def test_sizes_default_to_moderate_and_to_the_papers(
    arguments: list[str], sizes: tuple[int, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Model] = []

    def write(model: Model, folder: Path, **_: object) -> list[Path]:
        asked.append(model)
        return []

    monkeypatch.setattr("paper.simulate.write_model", write)
    result = run(*arguments, "-o", tmp_path / "d")
    assert result.exit_code == 0, result.output
    assert asked[0].sizes == sizes


def test_a_folder_that_holds_something_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    run("spiked", "-o", folder, *SMALL)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    sentence = refused("spiked", "-o", folder, *SMALL[:-1], "5")
    assert "must be new or empty, got a folder that holds 'model.json'" in sentence
    assert "force=True" in sentence
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before


def test_force_replaces_an_earlier_simulation_whole(tmp_path: Path) -> None:
    folder = tmp_path / "data"
    run("spiked", "-o", folder, *SMALL)
    result = run("sbm", "-o", folder, "--nodes", 9, "--silos", 1, "--format", "csv", "--force")
    assert result.exit_code == 0, result.output
    names = sorted(path.name for path in folder.iterdir())
    assert names == ["model.json", "silo-01.csv", "truth.npz"]
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


def test_force_never_removes_what_is_not_a_simulation(tmp_path: Path) -> None:
    (tmp_path / "thesis.tex").write_text("mine")
    sentence = refused("spiked", "-o", tmp_path, "--force", *SMALL)
    assert "an earlier result and nothing else to be replaced" in sentence
    assert "'thesis.tex'" in sentence
    assert (tmp_path / "thesis.tex").read_text() == "mine"


def test_an_empty_folder_is_used(tmp_path: Path) -> None:
    result = run("spiked", "-o", tmp_path / "a" / "b", *SMALL)
    assert result.exit_code == 0, result.output
    (tmp_path / "empty").mkdir()
    assert run("spiked", "-o", tmp_path / "empty", *SMALL).exit_code == 0


def test_nothing_is_left_behind_when_writing_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(models.np, "savez", full)
    sentence = refused("spiked", "-o", tmp_path / "data", *SMALL)
    assert "no space left on device" in sentence
    assert not list(tmp_path.iterdir())


def test_an_earlier_simulation_survives_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "data"
    run("spiked", "-o", folder, *SMALL)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def interrupted(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(models.np, "savez", interrupted)
    run("spiked", "-o", folder, "--force", *SMALL[:-1], "5")
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["spiked", "--features", "3"], "n_features must be at least rank=4, got 3"),
        (["spiked", "--rows", "2"], "n_rows must be at least one per silo, got 2 for 4 silos"),
        (["spiked", "--sigma", "-1"], "noise must be a finite number of at least 0, got -1"),
        (["sbm", "--nodes", "2", "--communities", "3"], "n_nodes must be at least n_communities=3"),
    ],
)
def test_impossible_models_are_refused_in_one_sentence(
    arguments: list[str], sentence: str, tmp_path: Path
) -> None:
    assert sentence in refused(*arguments, "-o", tmp_path / "d")
    assert not (tmp_path / "d").exists()


def test_a_file_in_the_folders_place_is_refused_by_name(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    result = run("spiked", "-o", tmp_path / "data", *SMALL)
    assert result.exit_code == 2
    assert "data" in result.output
