"""What users of scikit-learn and pandas expect: whitening, likelihoods, categories and mappings."""

import json
import math

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.fits import fed_pca
from fedpower import CodeBook, Edge, FedCommunities, FedCovariance, FedPCA, load
from fedpower.analysis import Correlations
from fedpower.exceptions import InputError
from fedpower.report.export import write_onnx
from problems import spiked_rows

INF = math.inf
ROWS = spiked_rows(n_rows=400, n_features=5, rank=2, seed=3) + 1.0
FRAME = pd.DataFrame(ROWS, columns=list("abcde"))
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
    FRAME.to_csv(tmp_path / "rows.csv", index=False)
    found = FedPCA(**model.get_params()).fit(FRAME).score(tmp_path / "rows.csv")
    assert found == pytest.approx(model.score(ROWS))
    if not options:
        law = np.linalg.slogdet(covariance)[1] + 5 * np.log(2 * np.pi)
        about = ROWS - model.mean_
        far = np.einsum("ij,jk,ik->i", about, model.get_precision(), about)
        np.testing.assert_allclose(model.score_samples(ROWS), -(law + far) / 2)


def test_likelihoods_of_private_fits_use_variances_without_noise():
    model = FedPCA(2, epsilon=20.0, codebook=dict.fromkeys("abcde", (-30.0, 30.0))).fit(FRAME)
    assert model.noise_variance_ > 0
    assert np.isfinite(model.score(FRAME))
    step = fed_pca(2, epsilon=20.0, row_norm=9.0, noise="step", n_steps=2, standardize=False).fit(ROWS)
    if np.isnan(step.explained_variance_ratio_).any():
        with pytest.raises(InputError, match="must know the total variance"):
            step.score(ROWS)
    assert FedPCA(2, epsilon=INF).fit(ROWS[:3]).score(ROWS) < -1e6  # rows outside a plane


def test_code_books_are_mappings_and_categories_are_levels():
    frame = FRAME.assign(sex=SEXES, size=pd.Categorical(["s", "l"] * 200, ["s", "m", "l"], ordered=True))
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
    found = FedCommunities(2, epsilon=INF).fit_silos([frame])
    assert list(found.feature_names_in_) == names
    assert found.labels_.tolist() == [0] * 5 + [1] * 5
    mixed = FedCommunities(2, epsilon=INF, nodes=names[::-1]).fit_silos([frame])
    assert list(mixed.feature_names_in_) == names[::-1]
    assert FedCovariance(epsilon=INF, unit=Edge()).fit_silos([frame]).release_.names == tuple(names)
    with pytest.raises(InputError, match="nodes must be the labels of the data frame"):
        FedCommunities(2, epsilon=INF, nodes=[*names[1:], "other"]).fit_silos([frame])


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
