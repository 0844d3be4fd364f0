"""`to_sklearn` gives scikit-learn's own objects, which do what the estimator and its folder do."""

import warnings

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.decomposition import PCA
from sklearn.pipeline import Pipeline

from fedpower import FedPCA
from fits import fed_pca
from problems import spiked_rows, split

COLUMNS = ["age", "bmi", "sbp", "dbp", "hdl", "ldl"]
ROWS = spiked_rows(120, 6, rank=3, seed=1) + 2.0
FRAME = pd.DataFrame(ROWS, columns=COLUMNS)
CENTER, SCALE = np.linspace(0, 1, 6), np.linspace(1, 2, 6)
INF = float("inf")
PLAIN = [{"center": False}, {"center": CENTER}, {"epsilon": 2.0, "row_norm": 9.0}]
SCALED = [{"scale": SCALE}, {"scale": SCALE, "center": CENTER}]
NORMALISED = [{"normalize": True}, {"normalize": True, "center": CENTER, "scale": SCALE}]


def fitted(**parameters: object) -> FedPCA:
    model = fed_pca(3, **{"epsilon": INF, "standardize": False, "random_state": 0, **parameters})
    return model.fit_silos({"north": FRAME[:50], "south": FRAME[50:]})


def same(found: object, expected: object) -> None:
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-12)


def test_an_exact_fit_is_scikit_learns_own() -> None:
    ours, theirs = fitted().to_sklearn(), PCA(3, svd_solver="full").fit(ROWS)
    assert type(ours) is PCA
    signs = np.sign(np.einsum("ij,ij->i", ours.components_, theirs.components_))
    np.testing.assert_allclose(ours.components_ * signs[:, None], theirs.components_, atol=1e-10)
    of_components = ("explained_variance_", "explained_variance_ratio_", "singular_values_")
    for name in ("mean_", "noise_variance_", *of_components):
        np.testing.assert_allclose(getattr(ours, name), getattr(theirs, name), rtol=1e-10)
    for name in ("n_components_", "n_features_in_", "n_samples_"):
        assert getattr(ours, name) == getattr(theirs, name)
    np.testing.assert_allclose(ours.get_covariance(), theirs.get_covariance(), atol=1e-10)
    np.testing.assert_allclose(ours.score(FRAME), theirs.score(ROWS), rtol=1e-10)


@pytest.mark.parametrize("parameters", [*PLAIN, *SCALED, *NORMALISED], ids=str)
def test_rows_are_transformed_as_by_the_estimator(parameters: dict[str, object]) -> None:
    model = fitted(**parameters)
    converted = model.to_sklearn()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # scikit-learn warns where names do not fit together
        same(converted.transform(FRAME), model.transform(FRAME))
    assert list(converted.feature_names_in_) == COLUMNS
    assert converted.n_features_in_ == 6
    if "normalize" in parameters:
        assert isinstance(converted, Pipeline)
        assert not hasattr(converted, "inverse_transform")
    else:
        scores = model.transform(FRAME)
        same(converted.inverse_transform(scores), model.inverse_transform(scores))


def test_sparse_rows_stay_sparse_where_nothing_is_subtracted_before() -> None:
    for parameters in ({"scale": SCALE}, {"normalize": True, "scale": SCALE, "center": False}):
        model = fed_pca(3, epsilon=INF, standardize=False, **parameters).fit_silos(split(ROWS, [50, 70]))
        same(model.to_sklearn().transform(sparse.csr_array(ROWS)), model.transform(ROWS))
