"""What users of pandas and scikit-learn expect: tables, labels, whitening, likelihoods and sentences."""

import json
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.fits import fed_pca
from fedpower import CodeBook, Edge, FedCovariance, FedPCA, Node, load
from fedpower.analysis import Communities, Correlations
from fedpower.engines.inprocess import available_cores, share_cores
from fedpower.exceptions import InputError
from fedpower.report.export import write_onnx
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
REFUSED: dict[str, tuple[Any, str]] = {
    "text": (FRAME.assign(extra=CELL), "column 'extra' of X must hold numbers, got type String at row 1"),
    "text late": (
        FRAME.assign(extra=[1.0] * 59 + [CELL]),
        "'extra' of X must hold numbers, got text at row 60",
    ),
    "times": (
        FRAME.assign(extra=pd.Timestamp("2024-02-29")),
        "must hold numbers, got dates or times at row 1",
    ),
    "Polars text": (pl.DataFrame({"a": [1.0, 2.0], "b": [CELL] * 2}), "column 'b' of X must hold numbers"),
    "a lazy frame": (
        pl.DataFrame({"a": [1.0]}).lazy(),
        "X must be rows in memory, got 'LazyFrame'; collect it",
    ),
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


ROWS = spiked_rows(n_rows=400, n_features=5, rank=2, seed=3) + 1.0
SPIKED = pd.DataFrame(ROWS, columns=list("abcde"))
SEXES = pd.Categorical.from_codes(np.arange(400) % 2, ["f", "m"])


@pytest.mark.parametrize("standardize", [False, True])
def test_whitened_scores_are_those_of_scikit_learn_everywhere(standardize, tmp_path):
    model = FedPCA(2, epsilon=INF, standardize=standardize, whiten=True, solver="upload").fit(ROWS)
    scaler = [StandardScaler()] if standardize else []
    theirs = make_pipeline(*scaler, PCA(2, whiten=True)).fit(ROWS)
    scores, wanted = model.transform(ROWS), theirs.transform(ROWS)
    signs = np.sign((scores * wanted).sum(axis=0))
    # a standardised column has variance 1 by the divisor n - 1 here, and n there
    near = {"rtol": 2e-3} if standardize else {"rtol": 1e-8}
    np.testing.assert_allclose(scores * signs, wanted, atol=1e-2 if standardize else 1e-8, **near)
    np.testing.assert_allclose(scores.std(axis=0, ddof=1), 1.0)
    np.testing.assert_allclose(model.inverse_transform(scores), theirs.inverse_transform(wanted), atol=1e-8)
    np.testing.assert_allclose(model.to_sklearn().transform(ROWS), scores, atol=1e-10)
    read = load(model.save(tmp_path / "result"))
    np.testing.assert_array_equal(read.transform(ROWS), scores)
    plain = FedPCA(2, epsilon=INF, standardize=standardize).fit_covariance(model).transform(ROWS)
    np.testing.assert_allclose(scores * np.sqrt(model.explained_variance_), plain, atol=1e-10)
    onnxruntime = pytest.importorskip("onnxruntime")
    write_onnx(read, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"))
    np.testing.assert_allclose(session.run(None, {"rows": ROWS})[0], scores, atol=1e-8)


@pytest.mark.parametrize("options", [{}, {"normalize": True}, {"scale": [1.0, 2.0, 1.0, 3.0, 1.0]}])
def test_the_model_covariance_is_in_the_columns_units_and_has_its_inverse(options, tmp_path):
    model = fed_pca(2, epsilon=INF, **options).fit(ROWS)
    covariance = model.get_covariance()
    np.testing.assert_allclose(covariance @ model.get_precision(), np.eye(5), atol=1e-7)
    if not options:
        np.testing.assert_allclose(np.trace(covariance / np.cov(ROWS.T).diagonal()), 5.0, rtol=1e-6)
    SPIKED.to_csv(tmp_path / "rows.csv", index=False)
    found = FedPCA(**model.get_params()).fit(SPIKED).score(tmp_path / "rows.csv")
    assert found == pytest.approx(model.score(ROWS))
    if not options:
        law = np.linalg.slogdet(covariance)[1] + 5 * np.log(2 * np.pi)
        about = ROWS - model.mean_
        far = np.einsum("ij,jk,ik->i", about, model.get_precision(), about)
        np.testing.assert_allclose(model.score_samples(ROWS), -(law + far) / 2)


def test_likelihoods_of_private_fits_use_variances_without_noise():
    model = FedPCA(2, epsilon=20.0, codebook=dict.fromkeys("abcde", (-30.0, 30.0))).fit(SPIKED)
    assert model.noise_variance_ > 0
    assert np.isfinite(model.score(SPIKED))
    step = fed_pca(2, epsilon=20.0, row_norm=9.0, noise="step", n_steps=2, standardize=False).fit(ROWS)
    if np.isnan(step.explained_variance_ratio_).any():
        with pytest.raises(InputError, match="must know the total variance"):
            step.score(ROWS)
    assert FedPCA(2, epsilon=INF).fit(ROWS[:3]).score(ROWS) < -1e6  # rows outside a plane


def test_code_books_are_mappings_and_categories_are_levels():
    frame = SPIKED.assign(sex=SEXES, size=pd.Categorical(["s", "l"] * 200, ["s", "m", "l"], ordered=True))
    book = {"sex": ["f", "m"], "size": {"ordered": ["s", "m", "l"]}, "a": (-40, 40)}
    names = [*"abcde", "sex=f", "sex=m", "sex=other", "size"]
    model = FedPCA(2, epsilon=5.0, codebook=book).fit_silos([frame[:200], frame[200:]])
    assert sorted(model.feature_names_in_) == sorted(names)
    given = FedPCA(2, epsilon=INF, codebook=CodeBook(rules={**book, "a": "number"})).fit(frame)
    for declared in (FedPCA(2, epsilon=INF).fit(frame), FedPCA(2, epsilon=INF).fit_silos([frame])):
        assert list(declared.feature_names_in_) == names
        same = [list(given.feature_names_in_).index(name) for name in names]
        np.testing.assert_allclose(declared.components_, given.components_[:, same], atol=1e-8)
    with pytest.raises(InputError, match="levels of 'sex' must be given in a private fit"):
        FedPCA(2).fit(frame)
    other = frame.assign(sex=SEXES.add_categories("x"))
    with pytest.raises(InputError, match="'sex' must have the same categories in every silo"):
        FedPCA(2, epsilon=INF).fit_silos([frame, other])


@pytest.mark.filterwarnings("error")
def test_a_lazy_frame_is_asked_for_its_schema_once_and_its_levels_are_those_of_the_frame():
    frame = pl.DataFrame(SPIKED).with_columns(pl.Series("sex", list(SEXES), dtype=pl.Enum(["f", "m"])))
    lazy, held = (FedPCA(2, epsilon=INF).fit_silos([silo]) for silo in (frame.lazy(), frame))
    assert "sex=f" in lazy.feature_names_in_
    np.testing.assert_array_equal(lazy.components_, held.components_)


def test_analyses_take_whatever_keeps_a_covariance(tmp_path):
    model = FedPCA(2, epsilon=INF, solver="upload").fit(ROWS)
    alone = FedCovariance(epsilon=INF).fit(ROWS)
    folder = model.save(tmp_path / "result")
    for given in (model, model.result_, model.release_, alone, alone.save(tmp_path / "alone"), str(folder)):
        found = Correlations().fit(given).correlation_
        np.testing.assert_allclose(found, np.corrcoef(ROWS.T), atol=1e-10)
    np.testing.assert_allclose(alone.covariance_, np.cov(ROWS.T))
    np.testing.assert_allclose(alone.location_, ROWS.mean(axis=0))
    np.testing.assert_allclose(alone.get_precision(), np.linalg.inv(np.cov(ROWS.T)))
    with pytest.raises(InputError, match="must keep its covariance"):
        Correlations().fit(FedPCA(2, epsilon=INF, solver="krylov").fit(ROWS))
    for odd in (FedPCA(2), ROWS):
        with pytest.raises(InputError, match="fit it first"):
            Correlations().fit(odd)


def test_adjacency_data_frames_name_their_nodes():
    names = [f"n{place}" for place in range(10)]
    network = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    frame = pd.DataFrame(network, index=names, columns=names)
    found = Communities(2).fit(FedCovariance(epsilon=INF, unit=Edge()).fit_silos([frame]))
    assert list(found.feature_names_in_) == names
    assert found.labels_.tolist() == [0] * 5 + [1] * 5
    mixed = FedCovariance(epsilon=INF, unit=Edge(nodes=names[::-1])).fit_silos([frame])
    assert list(mixed.feature_names_in_) == names[::-1]
    with pytest.raises(InputError, match="nodes must be the labels of the data frame"):
        FedCovariance(epsilon=INF, unit=Node([*names[1:], "other"])).fit_silos([frame])


def test_the_report_is_a_page_at_a_path(tmp_path):
    model = FedPCA(2, epsilon=INF).fit(ROWS)
    page = model.report(tmp_path / "page.html")
    assert page.read_text().startswith("<!doctype html>")
    saved = model.save(tmp_path / "result")
    assert page.read_text() == (saved / "report.html").read_text()
    assert model.report(page) == page
    shown = model._repr_mimebundle_()["text/html"]
    assert shown == model._repr_html_()
    assert shown.startswith("<iframe srcdoc=")
    assert "2 of 2" in shown
    assert "&lt;svg role=" in shown
    assert "iframe" not in FedPCA(2)._repr_html_()
    record = json.loads((saved / "run.json").read_text())
    assert "whiten" not in record["parameters"]
