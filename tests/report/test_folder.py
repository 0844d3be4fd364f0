"""A result folder holds what the estimator found, appears whole, and is checked when read."""

import json
from pathlib import Path

import numpy as np
import pytest

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.report import read_result
from fits import fed_pca
from problems import spiked_rows, split

COLUMNS = ["age", "größe", "a,b", 'quo"te', "e", "f"]
ROWS = spiked_rows(120, 6, rank=3, seed=1) + 2.0
CENTER, SCALE = np.linspace(0, 1, 6), np.linspace(1, 2, 6)


def fitted(**parameters: object) -> FedPCA:
    model = fed_pca(3, **{"epsilon": float("inf"), "random_state": 0, **parameters})
    return model.fit_silos(split(ROWS, [50, 70]))


def test_the_record_says_how_the_result_came_about(tmp_path: Path):
    model = fitted(epsilon=1.0, row_norm=9.0)
    result = model.result_.with_origin(command=["fedpower", "fit"], silos={"silo-1": {"rows": 50}})
    result.save(tmp_path / "out")
    reported = result.run
    text = (tmp_path / "out" / "run.json").read_text()
    stored = json.loads(text, parse_constant=pytest.fail)
    assert len(stored.pop("moment_sha256")) == 64
    assert stored == reported == read_result(tmp_path / "out").run
    assert reported["study"]["hash"] == model.study_.digest
    assert reported["privacy"] == json.loads(json.dumps(model.privacy_.as_dict()))
    assert reported["n_rounds"] == len(model.history_) == len(reported["rounds"])
    assert reported["bytes_up"] == sum(row["bytes_up"] for row in model.history_)
    assert reported["silos"][0]["rows"] == 50
    assert reported["silos"][1]["kernel"] == model.kernels_["silo-2"]
    assert set(reported["versions"]) >= {"python", "fedpower", "numpy", "scipy", "scikit-learn"}
    assert reported["parameters"]["row_norm"] == 9.0


def test_infinities_and_arrays_are_written_as_json_allows(tmp_path: Path):
    folder = fitted(center=CENTER, schedule=(2, 4)).save(tmp_path / "out")
    reported = json.loads((folder / "run.json").read_text())
    assert reported["parameters"]["epsilon"] == "inf"
    assert reported["parameters"]["offset"] == CENTER.tolist()


def test_no_file_is_a_pickle_and_rows_of_other_columns_are_refused(tmp_path: Path):
    fitted().save(tmp_path / "out")
    with np.load(tmp_path / "out" / "components.npz", allow_pickle=False) as stored:
        assert all(stored[key].dtype.kind in "fbU" for key in stored.files)
    with pytest.raises(InputError, match="6 columns of the fit, got 5"):
        read_result(tmp_path / "out").transform(ROWS[:, :5])


def test_a_failure_while_writing_leaves_what_was_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    model = fitted()
    model.save(tmp_path / "out")
    before = (tmp_path / "out" / "run.json").read_bytes()

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedpower.report.result.write_csv", full)
    with pytest.raises(OSError, match="No space"):
        model.save(tmp_path / "out", force=True)
    assert (tmp_path / "out" / "run.json").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(bytes(content))


def _narrow(path: Path) -> None:
    with np.load(path) as stored:
        arrays = {key: stored[key] for key in stored.files}
    np.savez(path, **{**arrays, "mean": arrays["mean"][:-1]})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("components.npz", Path.unlink),
        ("components.npz", _cut),
        ("components.npz", _flip),
        ("components.npz", _narrow),
        ("components.npz", lambda path: path.write_text("no array")),
        ("run.json", Path.unlink),
        ("run.json", _cut),
        ("run.json", lambda path: path.write_text("[1, 2]")),
        ("run.json", lambda path: path.write_text('{"format": "other/9"}')),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused_in_one_sentence(tmp_path: Path, name, damage):
    fitted().save(tmp_path / "out")
    damage(tmp_path / "out" / name)
    with pytest.raises(InputError) as caught:
        read_result(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "out") in str(caught.value)
