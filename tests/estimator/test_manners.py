"""What users of pandas and scikit-learn expect: labels, paths, jobs, and sentences where it cannot be."""

from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone

from fedpower import CodeBook, FedPCA
from fedpower.engines.inprocess import available_cores, share_cores
from fedpower.errors import InputError
from fedpower.report import read_result
from fits import fed_pca
from problems import Array, spiked_rows

INF = float("inf")
NAMES = list("abcdef")


@pytest.fixture
def rows() -> Array:
    return spiked_rows(n_rows=90, n_features=6, rank=2, seed=4) + 2.0


@pytest.fixture
def frame(rows: Array) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=NAMES)


def test_centres_scales_and_ranges_are_given_by_place_by_name_or_with_labels(
    frame: pd.DataFrame, tmp_path: Path
) -> None:
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
        result = read_result(model.save(tmp_path / "out", force=True))
        assert result.run["parameters"]["offset"] == center.to_dict()
        np.testing.assert_allclose(result.transform(frame), scores, atol=1e-10)


def test_labels_that_name_other_columns_are_refused(frame: pd.DataFrame) -> None:
    for given, sentence in (
        ({"scale": pd.Series(1.0, [*NAMES[:5], "z"])}, "scale must have .* every column .* got 'f' on one"),
        ({"offset": dict.fromkeys([*NAMES, "shoe"], 1)}, "offset must have a value for .*'shoe' on one"),
    ):
        with pytest.raises(InputError, match=sentence):
            FedPCA(2, epsilon=INF, codebook=CodeBook(**given)).fit_silos([frame])
        with pytest.raises(InputError, match="must come without labels where columns have no names"):
            FedPCA(2, epsilon=INF, codebook=CodeBook(**given)).fit_silos([frame.to_numpy()])


def test_what_is_no_list_of_tables_is_refused_with_advice_for_python(
    frame: pd.DataFrame, rows: Array
) -> None:
    reported = frame.assign(e="text")
    with pytest.raises(InputError, match=r"drop the column \(drop=\['e'\]\)"):
        FedPCA(2, epsilon=INF).fit_silos([reported])
    for silo in (frame, rows, pa.table(frame), sparse.csr_array(rows)):
        with pytest.raises(InputError, match=f"got {type(silo).__name__}; put a single silo into a list"):
            FedPCA(1, epsilon=INF).fit_silos(silo)
    with pytest.raises(InputError, match=r"got a structured one.*pandas\.DataFrame\(array\)"):
        FedPCA(1, epsilon=INF).fit_silos([frame.to_records(index=False)])


def test_integers_that_float64_does_not_hold_are_refused_by_fit_too(rows: Array) -> None:
    large = rows.astype(np.int64)
    large[3, 2] = 2**60
    with pytest.raises(InputError, match="column 3 of X must hold integers that are exact"):
        FedPCA(2, epsilon=INF).fit(large)
    with pytest.raises(InputError, match="column 'c' of X must hold integers that are exact"):
        FedPCA(2, epsilon=INF).fit(pd.DataFrame(large, columns=NAMES))


def test_transform_takes_the_path_of_a_file(frame: pd.DataFrame, tmp_path: Path) -> None:
    model = FedPCA(2, epsilon=INF, codebook=CodeBook(normalize=True)).fit_silos([frame])
    frame[NAMES[::-1]].assign(id="x").to_csv(tmp_path / "one.csv")
    for path in (tmp_path / "one.csv", str(tmp_path / "one.csv")):
        np.testing.assert_allclose(model.transform(path), model.transform(frame), atol=1e-10)
    frame.drop(columns="b").to_csv(tmp_path / "two.csv", index=False)
    with pytest.raises(InputError, match=r"two\.csv must have every column of the fit, got none named 'b'"):
        model.transform(tmp_path / "two.csv")


def test_jobs_count_from_the_cores_as_joblib_s_do(rows: Array) -> None:
    cores = available_cores()
    assert [share_cores(1000, n_jobs)[0] for n_jobs in (-1, -2, 3)] == [cores, max(1, cores - 1), 3]
    assert FedPCA(2, epsilon=INF, n_jobs=-1).fit_silos(np.split(rows, 3)).n_samples_ == 90


def test_the_same_rows_are_not_two_silos(rows: Array, frame: pd.DataFrame, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got the same ndarray for both 'silo-1' and 'silo-3'"):
        FedPCA(2, epsilon=INF).fit_silos([rows, rows.copy(), rows])
    frame.to_csv(tmp_path / "one.csv", index=False)
    (tmp_path / "two.csv").symlink_to(tmp_path / "one.csv")
    with pytest.raises(InputError, match=r"got .*two\.csv for both 'one' and 'two'"):
        FedPCA(2, epsilon=INF).fit_silos([tmp_path / "one.csv", tmp_path / "two.csv"])
