"""A result that was read back does all that the fitted estimator does, is saved as it was, and checked."""

import json
import math
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from sklearn.exceptions import NotFittedError

from benchmarks.fits import fed_pca
from fedpower import FedPCA, load
from fedpower.exceptions import InputError
from fedpower.report.record import Record
from fedpower.report.result import FILES
from fedpower.rows.opening import open_source
from problems import spiked_rows

COLUMNS = ["age", "größe", "a,b", 'quo"te', "e", "f"]
ROWS = spiked_rows(120, 6, rank=3, seed=1) + 2.0
FRAME = pd.DataFrame(ROWS, columns=COLUMNS)
CENTER, SCALE = np.linspace(0, 1, 6), np.linspace(1, 2, 6)
PRIVATE = {"epsilon": 2.0, "row_norm": 9.0}
FITS = [
    {"center": CENTER, "scale": SCALE},
    {"scale": SCALE, "standardize": False},
    {"normalize": True, "center": CENTER, "scale": SCALE},
    {"solver": "krylov", "center": False},
    {"n_components": 0.5},
    {**PRIVATE, "noise": "step", "n_steps": 3, "scale": SCALE, "standardize": False},
    {**PRIVATE, "aggregation": "secure"},
    {"epsilon": 2.0},  # its bound is read from the rows, which voids the promise
]
SHOWN = ("silo_sizes", "n_components", "solver", "privacy", "study", "kernels")
NUMBERS = ("components", "explained_variance", "explained_variance_ratio", "singular_values",
           "spectrum", "mean")  # fmt: skip


@pytest.fixture(scope="module")
def exact() -> FedPCA:
    return fed_pca(3, epsilon=math.inf, random_state=0).fit_silos({"north": FRAME[:50], "south": FRAME[50:]})


@pytest.mark.parametrize("terms", FITS, ids=str)
def test_a_result_read_back_is_the_estimators_and_is_saved_as_the_same_bytes(terms, tmp_path):
    model = fed_pca(**{"n_components": 3, "epsilon": math.inf, "random_state": 0, **terms})
    model.fit_silos({"north": FRAME[:50], "south": FRAME[50:]})
    result = load(model.save(tmp_path / "out"))
    for name in NUMBERS:
        np.testing.assert_array_equal(getattr(result, name), getattr(model, f"{name}_"))
    for name in SHOWN:
        assert getattr(result, name) == getattr(model, f"{name}_"), name
    assert (result.record.n_steps, result.record.remarks) == (model.n_steps_, model.warnings_)
    assert repr(result.rounds) == repr(model.history_)  # NaN is unequal to itself
    assert str(result.privacy) == str(model.privacy_)
    assert result.run == model.result_.run
    scores = model.transform(FRAME)
    np.testing.assert_array_equal(result.transform(FRAME), scores)
    np.testing.assert_array_equal(result.inverse_transform(scores), model.inverse_transform(scores))
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_array_equal(result.transform(tmp_path / "rows.csv"), scores)
    (found,) = result.scored(open_source(FRAME.assign(id=range(len(FRAME)))), "id")
    assert found["id"].to_list() == list(range(len(FRAME)))
    np.testing.assert_array_equal(found.drop("id").to_numpy(), scores)
    assert list(model.get_feature_names_out()) == list(result.score_names)
    converted = model.to_sklearn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns where names do not fit together
        np.testing.assert_allclose(converted.transform(FRAME), scores, atol=1e-12)
    assert list(converted.feature_names_in_) == COLUMNS
    assert hasattr(converted, "inverse_transform") != ("normalize" in terms)
    if "normalize" not in terms:
        back = model.inverse_transform(scores)
        np.testing.assert_allclose(converted.inverse_transform(scores), back, rtol=1e-9)
    again = result.save(tmp_path / "again")
    for path in (tmp_path / "out").iterdir():
        assert path.read_bytes() == (again / path.name).read_bytes(), path.name


def test_an_estimator_saves_its_folder_and_report_from_python(exact, tmp_path):
    place = exact.save(tmp_path / "out")
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    with np.load(place / "components.npz", allow_pickle=False) as stored:  # no file is a pickle
        assert all(stored[key].dtype.kind in "fbU" for key in stored.files)
    with pytest.raises(InputError, match="must be new or empty"):
        exact.save(place)
    exact.save(str(place), force=True)
    with pytest.raises(NotFittedError):
        FedPCA(2).save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    with pytest.raises(InputError, match="6 columns of the fit, got 5"):
        load(place).transform(ROWS[:, :5])
    assert repr(load(place)) == "<Result: 3 components of 6 columns, 120 rows, not private>"


def test_the_record_says_how_the_result_came_about(tmp_path):
    model = fed_pca(3, schedule=(2, 4), solver="fedpower", center=CENTER, epsilon=math.inf, random_state=0)
    model.fit_silos({"north": ROWS[:50], "south": ROWS[50:]})
    result = model.result_.with_record(command=["fedpower", "fit"])
    again = load(load(result.save(tmp_path / "out")).save(tmp_path / "again"))
    text = (tmp_path / "out" / "run.json").read_text()
    stored = json.loads(text, parse_constant=pytest.fail)
    assert set(stored.pop("sha256")) == {"components.npz"}
    run = again.run
    assert stored == run == result.run
    assert model.result_.run["command"] is None
    assert list(run["silos"][0]) == ["name", "rows", "kernel"]
    assert run["study"]["hash"] == model.study_.digest
    assert run["n_rounds"] == len(model.history_) == len(run["rounds"])
    assert run["bytes_up"] == sum(row["bytes_up"] for row in model.history_)
    assert run["silos"][1]["kernel"] == model.kernels_["south"]
    assert set(run["versions"]) >= {"python", "fedpower", "numpy", "scipy", "scikit-learn"}
    assert run["parameters"]["epsilon"] == "inf"
    assert run["parameters"]["offset"] == CENTER.tolist()


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _narrow(path: Path) -> None:
    with np.load(path) as stored:
        np.savez(path, **{**stored, "mean": stored["mean"][:-1]})


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("components.npz", Path.unlink),
        ("components.npz", _cut),
        ("components.npz", _narrow),
        ("run.json", Path.unlink),
        ("run.json", _cut),
        ("run.json", lambda path: path.write_text("[1, 2]")),
        ("run.json", lambda path: path.write_text('{"format": "other/9"}')),
    ],
)
def test_a_damaged_or_foreign_folder_is_refused_in_one_sentence(exact, tmp_path, name, damage):
    exact.save(tmp_path / "out")
    damage(tmp_path / "out" / name)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert str(tmp_path / "out") in str(caught.value)


@pytest.mark.parametrize("instead", [None, "", [], 7.5, [{}], {"a": 1}], ids=repr)
def test_a_record_without_what_a_report_shows_is_refused_in_one_sentence(instead, exact):
    empty, run = (None, []), exact.result_.run
    allowed = {"parameters": ({"a": 1},), "command": empty, "started": empty[:1], "remarks": empty[1:],
               "rounds": empty[1:]}  # fmt: skip
    for key in [field.name for field in structs.fields(Record) if field.required]:
        if key == "format" or instead in allowed.get(key, ()):
            continue
        with pytest.raises(InputError, match=rf"must be as fedpower wrote it, got .*{key}") as caught:
            Record.of({**run, key: instead})
        assert "\n" not in str(caught.value)
    study = run["study"]
    for changed, sentence in (
        ({"surprise": instead}, "unknown field `surprise`"),
        ({"study": {**study, "surprise": 1}}, "unknown field `surprise`"),
        ({"study": {**study, "terms": {**study["terms"], "iteration_rank": 1}}}, r"at `\$\.study"),
        ({"study": {**study, "terms": {}}}, r"at `\$\.study"),
    ):
        with pytest.raises(InputError, match=f"must be as .*{sentence}"):
            Record.of({**run, **changed})


@pytest.mark.programs
def test_reading_a_result_takes_neither_estimator_nor_scikit_learn(exact, tmp_path):
    exact.save(tmp_path / "out")
    code = (
        "import sys, numpy, fedpower\n"
        f"result = fedpower.load({str(tmp_path / 'out')!r})\n"
        "result.inverse_transform(result.transform(numpy.ones((2, 6))))\n"
        "print(result.privacy, result.study, file=sys.stderr)\n"
        "heavy = ('sklearn', 'scipy.stats', 'pandas', 'fedpower.estimator', 'fedpower.engines')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
