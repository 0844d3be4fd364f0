"""``python -m paper.simulate``: files that read back as the model's rows, all or nothing."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from fedpower.rows.opening import open_source
from paper.models import Array, Model, spiked_covariance, stochastic_block
from paper.simulate import simulate

SMALL = ["--rows", "50", "--features", "6", "--silos", "3", "--rank", "2", "--seed", "4"]


def run(*arguments: object) -> Result:
    return CliRunner().invoke(simulate, [str(each) for each in arguments])


def read(path: Path) -> Array:
    return np.vstack(list(open_source(path).blocks(1000)))


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


@pytest.mark.parametrize("kind", ["npy", "parquet", "csv"])
def test_each_format_reads_back_as_the_models_rows(kind, tmp_path):
    folder = tmp_path / "a" / "data"
    result = run("spiked", "-o", folder, "--format", kind, "--json", *SMALL)
    assert result.exit_code == 0, result.output
    names = [f"silo-{place:02}.{kind}" for place in (1, 2, 3)]
    assert contents(folder).keys() == {*names, "model.json", "truth.npz"}
    model = spiked_covariance(n_rows=50, n_features=6, n_silos=3, rank=2, seed=4)
    for silo, name in enumerate(names):
        assert np.array_equal(read(folder / name), np.vstack(list(model.blocks(silo, 9))))
    if kind != "npy":
        assert open_source(folder / names[0]).columns == tuple(f"x00{place}" for place in range(1, 7))
    with np.load(folder / "truth.npz") as truth:
        assert np.array_equal(truth["basis"], model.basis)
    assert json.loads((folder / "model.json").read_text()) == {**model.facts, "files": names}
    reported = json.loads(result.stdout)  # nothing else is printed there
    assert (reported["model"], reported["n_rows"]) == ("spiked", 50)
    assert reported["bytes"] == sum((folder / name).stat().st_size for name in names)


def test_sizes_default_to_moderate_and_to_the_papers(tmp_path, monkeypatch):
    asked: list[Model] = []
    monkeypatch.setattr("paper.simulate.write_model", lambda model, *_, **__: asked.append(model) or [])
    for words, sizes in (
        ("spiked", (5000,) * 4),
        ("spiked --paper-size", (100_000,) * 20),
        ("spiked --paper-size --silos 5", (400_000,) * 5),
        ("sbm", (200,) * 4),
        ("sbm --paper-size", (1000,) * 20),
    ):
        assert run(*words.split(), "-o", tmp_path / "d").exit_code == 0
        assert asked.pop().sizes == sizes


def test_an_earlier_simulation_is_replaced_by_force_alone_and_nothing_else_is(tmp_path):
    folder, other = tmp_path / "data", tmp_path / "other"
    other.mkdir()
    run("spiked", "-o", folder, *SMALL)
    before = contents(folder)
    again = run("spiked", "-o", folder, *SMALL[:-1], "5")
    assert "must be new or empty, got one with 'model.json'" in str(again.exception)
    assert contents(folder) == before
    (other / "thesis.tex").write_text("mine")
    refused = run("spiked", "-o", other, "--force", *SMALL)
    assert "an earlier result and nothing else to be replaced" in str(refused.exception)
    assert contents(other) == {"thesis.tex": b"mine"}
    made = run("sbm", "-o", folder, "--nodes", 20, "--silos", 2, "--no-normalize", "--force")
    assert made.exit_code == 0, made.output
    assert "-k 2" in made.stdout
    model = stochastic_block(n_nodes=20, n_silos=2, normalize=False, seed=0)
    assert np.array_equal(read(folder / "silo-02.npy"), np.vstack(list(model.blocks(1, 20))))
    assert contents(folder).keys() == {"model.json", "silo-01.npy", "silo-02.npy", "truth.npz"}
    assert {path.name for path in tmp_path.iterdir()} == {"data", "other"}
    impossible = run("spiked", "-o", tmp_path / "d", "--features", "3")
    assert "n_features must be at least rank=4, got 3" in str(impossible.exception)
    assert not (tmp_path / "d").exists()
