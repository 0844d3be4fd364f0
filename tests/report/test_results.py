"""A result that was read back does all that the fitted estimator does, and is saved as it was."""

import math
import subprocess
import sys
from dataclasses import FrozenInstanceError
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from msgspec import structs
from sklearn.exceptions import NotFittedError

from fedpower import CodeBook, FedPCA, read_result
from fedpower.errors import InputError
from fedpower.report import Result
from fedpower.report.result import FILES
from fedpower.rows.opening import open_source
from fits import fed_pca
from problems import spiked_rows
from sample_results import with_run

COLUMNS = ["age", "bmi", "sbp", "dbp", "hdl", "ldl"]
ROWS = spiked_rows(120, 6, rank=3, seed=1) + 2.0
FRAME = pd.DataFrame(ROWS, columns=COLUMNS)
CENTER, SCALE = np.linspace(0, 1, 6), np.linspace(1, 2, 6)
PRIVATE = {"epsilon": 2.0, "row_norm": 9.0}
FITS = [
    {},
    {"center": CENTER, "scale": SCALE},
    {"normalize": True, "center": CENTER, "scale": SCALE},
    {"solver": "krylov", "center": False},
    {"n_components": 0.5},
    PRIVATE,
    {**PRIVATE, "noise": "step", "n_steps": 3, "scale": SCALE, "standardize": False},
    {**PRIVATE, "aggregation": "secure"},
    {"epsilon": 2.0},  # its bound is read from the rows, which voids the promise
]
SHOWN = ("silo_sizes", "n_samples", "n_components", "n_steps", "solver",
         "privacy", "study", "kernels", "warnings")  # fmt: skip
NUMBERS = ("components", "explained_variance", "explained_variance_ratio", "singular_values",
           "spectrum", "mean")  # fmt: skip


@pytest.fixture(scope="module", params=FITS, ids=str)
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[FedPCA, Result]:
    """A fitted estimator, and the result that its folder gives back."""
    model = fed_pca(**{"n_components": 3, "epsilon": math.inf, "random_state": 0, **request.param})
    model.fit_silos({"north": FRAME[:50], "south": FRAME[50:]})
    return model, read_result(model.save(tmp_path_factory.mktemp("saved") / "out"))


def test_every_number_and_fact_is_the_estimators(both: tuple[FedPCA, Result]) -> None:
    model, result = both
    for name in NUMBERS:
        np.testing.assert_array_equal(getattr(result, name), getattr(model, f"{name}_"))
    for name in SHOWN:
        assert getattr(result, name) == getattr(model, f"{name}_"), name
    assert repr(result.rounds) == repr(model.history_)  # NaN is unequal to itself
    assert result.study.digest == model.study_.digest
    assert str(result.privacy) == str(model.privacy_)
    assert result.run == model.result_.run
    assert result.parameters["epsilon"] == ("inf" if math.isinf(model.epsilon) else model.epsilon)


def test_rows_and_scores_are_turned_into_each_other_as_by_the_estimator(
    both: tuple[FedPCA, Result], tmp_path: Path
) -> None:
    model, result = both
    scores = model.transform(FRAME)
    np.testing.assert_array_equal(result.transform(FRAME), scores)
    np.testing.assert_array_equal(result.inverse_transform(scores), model.inverse_transform(scores))
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    np.testing.assert_array_equal(
        result.transform(tmp_path / "rows.csv"), model.transform(tmp_path / "rows.csv")
    )
    labelled = FRAME.assign(id=range(len(FRAME)))
    (found,) = result.scored(open_source(labelled), "id").frames
    assert found["id"].to_list() == list(range(len(FRAME)))
    np.testing.assert_array_equal(found.drop("id").to_numpy(), scores)
    assert list(result.get_feature_names_out()) == list(result.score_names)
    assert len(model.get_feature_names_out()) == len(result.get_feature_names_out())


def test_a_result_read_back_is_saved_as_the_same_bytes(both: tuple[FedPCA, Result], tmp_path: Path) -> None:
    model, result = both
    first, second = model.save(tmp_path / "first"), result.save(tmp_path / "second")
    for name in [path.name for path in first.iterdir()]:
        assert (first / name).read_bytes() == (second / name).read_bytes(), name


def test_an_estimator_saves_its_folder_and_report_from_python(tmp_path: Path) -> None:
    model = FedPCA(2, epsilon=math.inf).fit(FRAME)
    place = model.save(tmp_path / "out")
    assert sorted(path.name for path in place.iterdir()) == sorted(FILES)
    with pytest.raises(InputError, match="must be new or empty"):
        model.save(place)
    model.save(str(place), force=True)
    with pytest.raises(NotFittedError):
        FedPCA(2).save(tmp_path / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


def test_what_is_no_result_is_not_written(tmp_path: Path) -> None:
    found = FedPCA(2, epsilon=math.inf).fit(FRAME).result_
    broken = found.with_record(structs.replace(found.record, rounds=[]))
    with pytest.raises(InputError, match=r"the record of a result must be as .* at least one round"):
        broken.save(tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_where_a_fit_came_from_is_kept_when_it_is_saved_again(tmp_path: Path) -> None:
    model = FedPCA(2, epsilon=math.inf).fit_silos({"north": FRAME})
    reported = {"north": {"source": "north.csv"}}
    result = model.result_.with_origin(command=["fedpower", "fit"], silos=reported)
    again = read_result(read_result(result.save(tmp_path / "out")).save(tmp_path / "again"))
    record = result.run
    assert again.run == record
    assert record["silos"][0]["source"] == "north.csv"
    assert list(record["silos"][0]) == ["name", "rows", "source", "kernel"]
    assert model.result_.run["command"] is None


def test_terms_that_do_not_have_their_hash_are_refused() -> None:
    found = FedPCA(2, epsilon=math.inf).fit(FRAME).result_
    study = found.run["study"]
    for changed in ({**study, "terms": {**study["terms"], "iteration_rank": 1}}, {**study, "terms": {}}):
        with pytest.raises(InputError, match=r"the record of a result must be as .* at `\$\.study"):
            with_run(found, {**found.run, "study": changed})


def test_a_result_is_frozen_and_parameters_changed_after_the_fit_change_no_score() -> None:
    model = FedPCA(2, epsilon=math.inf, codebook=CodeBook(scale=SCALE)).fit(FRAME)
    before = model.transform(FRAME)
    model.set_params(codebook=CodeBook(normalize=True))
    np.testing.assert_array_equal(model.transform(FRAME), before)
    with pytest.raises(FrozenInstanceError):
        model.result_.mean = np.zeros(6)


def test_reading_a_result_takes_neither_estimator_nor_scikit_learn(tmp_path: Path) -> None:
    FedPCA(2, epsilon=math.inf).fit(ROWS).save(tmp_path / "out")
    code = (
        "import sys, numpy, fedpower\n"
        f"result = fedpower.read_result({str(tmp_path / 'out')!r})\n"
        "result.inverse_transform(result.transform(numpy.ones((2, 6))))\n"
        "print(result.privacy, result.study, file=sys.stderr)\n"
        "heavy = ('sklearn', 'scipy.stats', 'pandas', 'fedpower.estimator', 'fedpower.engines')\n"
        "print([name for name in heavy if name in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"
