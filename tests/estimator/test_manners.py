"""What users of pandas and scikit-learn expect: tables, labels, paths, jobs, and sentences of refusal."""

import datetime as dt
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone

from benchmarks.fits import fed_pca
from fedpower import CodeBook, FedPCA, load
from fedpower.engines.inprocess import available_cores, share_cores
from fedpower.exceptions import InputError
from problems import Array, spiked_rows

INF = float("inf")
NAMES = list("abcdef")


@pytest.fixture
def rows() -> Array:
    return spiked_rows(n_rows=90, n_features=6, rank=2, seed=4) + 2.0


@pytest.fixture
def frame(rows: Array) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=NAMES)


def test_centres_scales_and_ranges_are_given_by_place_by_name_or_with_labels(frame, tmp_path):
    center, scale = frame.mean(), frame.std() * np.arange(1, 7)
    ranges = {"a": (0, 9)}
    placed = {"offset": center.to_numpy(), "scale": scale.to_numpy(), "ranges": [(0, 9), *[None] * 5]}
    labelled = {"offset": center[::-1], "scale": scale.sample(frac=1, random_state=0), "ranges": ranges}
    named = {"offset": center.to_dict(), "scale": scale[::-1].to_dict(), "ranges": ranges}
    expected = fed_pca(2, epsilon=INF, **placed).fit_silos([frame])
    scores = expected.transform(frame)
    for given in (labelled, named):
        model = clone(fed_pca(2, epsilon=INF, **given))
        for fitted in (model.fit_silos([frame]), model.fit(frame)):
            np.testing.assert_allclose(fitted.transform(frame), scores, atol=1e-10)
            back = fitted.inverse_transform(scores)
            np.testing.assert_allclose(back, expected.inverse_transform(scores), atol=1e-9)
        result = load(model.save(tmp_path / "out", force=True))
        assert result.run["parameters"]["offset"] == center.to_dict()
        np.testing.assert_allclose(result.transform(frame), scores, atol=1e-10)


def test_labels_that_name_other_columns_are_refused(frame):
    for given, sentence in (
        ({"scale": pd.Series(1.0, [*NAMES[:5], "z"])}, "scale must have .* every column .* got 'f' on one"),
        ({"offset": dict.fromkeys([*NAMES, "shoe"], 1)}, "offset must have a value for .*'shoe' on one"),
    ):
        with pytest.raises(InputError, match=sentence):
            FedPCA(2, epsilon=INF, codebook=CodeBook(**given)).fit_silos([frame])
        with pytest.raises(InputError, match="must come without labels where columns have no names"):
            FedPCA(2, epsilon=INF, codebook=CodeBook(**given)).fit_silos([frame.to_numpy()])


def test_what_is_no_list_of_tables_is_refused_with_advice_for_python(frame, rows):
    reported = frame.assign(e="text")
    with pytest.raises(InputError, match=r"drop the column \(drop=\['e'\]\)"):
        FedPCA(2, epsilon=INF).fit_silos([reported])
    for silo in (frame, rows, pa.table(frame), sparse.csr_array(rows)):
        with pytest.raises(InputError, match=f"got {type(silo).__name__}; put a single silo into a list"):
            FedPCA(1, epsilon=INF).fit_silos(silo)
    with pytest.raises(InputError, match=r"got a structured one.*pandas\.DataFrame\(array\)"):
        FedPCA(1, epsilon=INF).fit_silos([frame.to_records(index=False)])


def test_integers_that_float64_does_not_hold_are_refused_by_fit_too(rows):
    large = rows.astype(np.int64)
    large[3, 2] = 2**60
    with pytest.raises(InputError, match="column 3 of X must hold integers that are exact"):
        FedPCA(2, epsilon=INF).fit(large)
    with pytest.raises(InputError, match="column 'c' of X must hold integers that are exact"):
        FedPCA(2, epsilon=INF).fit(pd.DataFrame(large, columns=NAMES))


def test_jobs_count_from_the_cores_as_joblib_s_do(rows):
    cores = available_cores()
    assert [share_cores(1000, n_jobs)[0] for n_jobs in (-1, -2, 3)] == [cores, max(1, cores - 1), 3]
    assert FedPCA(2, epsilon=INF, n_jobs=-1).fit_silos(np.split(rows, 3)).n_samples_seen_ == 90


def test_the_same_rows_are_not_two_silos(rows, frame, tmp_path):
    with pytest.raises(InputError, match="got the same ndarray for both 'silo-1' and 'silo-3'"):
        FedPCA(2, epsilon=INF).fit_silos([rows, rows.copy(), rows])
    frame.to_csv(tmp_path / "one.csv", index=False)
    (tmp_path / "two.csv").symlink_to(tmp_path / "one.csv")
    with pytest.raises(InputError, match=r"got .*two\.csv for both 'one' and 'two'"):
        FedPCA(2, epsilon=INF).fit_silos([tmp_path / "one.csv", tmp_path / "two.csv"])


CELL = "Meier, 4711"
NUMBERS = np.random.default_rng(3).normal(size=(60, 3)) * [3, 2, 1] + [5, 0, 1]
FRAME = pd.DataFrame(NUMBERS, columns=["age", "bmi", "sbp"])
DAY = dt.date(2024, 2, 29)


def with_column(cells: Any) -> pd.DataFrame:
    return FRAME.assign(extra=cells)


REFUSED: dict[str, tuple[Any, str]] = {
    "text": (with_column(CELL), "column 'extra' of X must hold numbers, got type String at row 1"),
    "text late": (with_column([1.0] * 59 + [CELL]), "'extra' of X must hold numbers, got text at row 60"),
    "times": (with_column(pd.Timestamp(DAY)), "must hold numbers, got dates or times at row 1"),
    "Polars text": (pl.DataFrame({"a": [1.0, 2.0], "b": [CELL] * 2}), "column 'b' of X must hold numbers"),
    "an array of text": (np.array([["1", CELL]] * 3), "column 1 of X must hold numbers, got text"),
    "an array of objects": (np.array([[1, CELL]] * 3, dtype=object), "column 2 of X must hold numbers"),
    "a list": ([[1.0, CELL], [2.0, CELL]], "column 2 of X must hold numbers, got text at row 1"),
}


@pytest.mark.parametrize("kind", REFUSED)
def test_text_and_dates_are_refused_in_our_own_sentence(kind):
    data, sentence = REFUSED[kind]
    with pytest.raises(InputError) as caught:
        FedPCA(1, epsilon=INF).fit(data)
    assert sentence in str(caught.value)
    assert CELL not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.filterwarnings("ignore:no component is determined", "ignore:rows longer than")
def test_the_promise_is_one_line_and_its_whole_is_in_the_folder(tmp_path):
    model = FedPCA(1, epsilon=1.0, codebook=CodeBook(row_norm=9.0), aggregation="secure")
    said = model.fit_silos([FRAME + place for place in range(3)]).privacy_.brief
    whose = "per row, even if the coordinator and 1 silo of the 3 work together."
    assert said == f"Privacy: ε = 1, δ = {model.privacy_.delta:.3g} {whose}".replace("e-0", "e-")
    whole = (model.save(tmp_path / "r") / "privacy.txt").read_text()
    assert whole == f"{model.privacy_}\n"
    assert len(whole.splitlines()) > 4
    promise = FedPCA(1, epsilon=INF).fit(FRAME).privacy_
    assert promise.brief.startswith("NOT PRIVATE")
