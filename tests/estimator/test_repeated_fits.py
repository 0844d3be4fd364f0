"""Private fits of the same rows, again and again, without a ledger: Python says what that costs."""

import math
import re
import warnings
from collections import deque
from typing import Any

import numpy as np
import pandas as pd
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import GridSearchCV, KFold
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from benchmarks.fits import fed_pca
from budgets import ledgers_in
from fedpower import Edge, FedCovariance, FedPCA
from fedpower.estimator import fit_warnings as repeats
from fedpower.estimator.fit_warnings import RepeatedFitWarning
from layers import planted

KNOWN: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 6.0}


def rows(seed: int, n_rows: int = 400) -> NDArray[np.float64]:
    return np.random.default_rng(seed).standard_normal((n_rows, 5)) * [3.0, 2.0, 1.0, 1.0, 1.0]


@pytest.fixture(autouse=True)
def _nothing_fitted_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(repeats, "_spent", deque())


def told(recorded: list[warnings.WarningMessage]) -> list[str]:
    return [str(each.message) for each in recorded if each.category is RepeatedFitWarning]


@pytest.mark.filterwarnings("ignore")
def test_a_search_of_a_pipeline_is_warned_of_once_with_what_it_spent():
    model = make_pipeline(FunctionTransformer(np.asarray), fed_pca(2, **KNOWN))
    grid = {"fedpca__n_components": [1, 2]}
    search = GridSearchCV(model, grid, scoring=lambda fitted, X, y=None: 1.0, cv=KFold(3, shuffle=True))
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        search.fit(rows(1))
    (sentence,) = told(recorded)
    assert "fitted privately for the second time in this process" in sentence
    assert re.search(r"ε = 1\.4\d at δ = 1e-06", sentence)  # of two Gaussian releases of epsilon 1 each
    assert "ledgers" in sentence


@pytest.mark.parametrize("made", [np.asarray, pd.DataFrame])
def test_clones_and_copies_keep_counting(made):
    model = fed_pca(2, **KNOWN)
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        model.fit(made(rows(3)))
        assert told(recorded) == []
        clone(model).set_params(epsilon=2.0).fit(made(rows(3).copy()))
        assert len(told(recorded)) == 1
        clone(model).fit_silos([made(rows(3)[:200]), made(rows(3)[200:])])
        assert len(told(recorded)) == 1


def test_first_exact_and_recorded_fits_go_without_a_warning(tmp_path):
    ledgers = ledgers_in(tmp_path, ["north"], 3.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedFitWarning)
        for seed in (5, 6, 7):
            fed_pca(2, **KNOWN).fit(rows(seed))
            FedPCA(2, epsilon=math.inf).fit(rows(5))
            fed_pca(2, **KNOWN).fit_silos({"north": rows(8)}, ledgers=ledgers)
        for _ in range(2):  # zeros are in anybody's data
            FedCovariance(unit=Edge()).fit_silos([np.zeros((6, 6))])


def test_preparation_before_a_fit_is_no_second_fit_but_counts_in_the_sum():
    given: dict[str, Any] = {"epsilon": 1.0, "delta": 1e-6}
    sources = [rows(9, 3_000)]
    with warnings.catch_warnings():
        warnings.simplefilter("error", RepeatedFitWarning)
        book = fed_pca(2, **given).prepare_silos(sources)
        fed_pca(2, codebook=book, **given).fit_silos(sources)
    with pytest.warns(RepeatedFitWarning, match=r"ε = 1\.5\d at"):
        fed_pca(2, codebook=book, **given).fit_silos(sources)


def test_files_and_networks_are_known_again(tmp_path):
    np.save(tmp_path / "north.npy", rows(4))
    model = fed_pca(2, **KNOWN).fit_silos([tmp_path / "north.npy"])
    with pytest.warns(RepeatedFitWarning):
        clone(model).fit_silos([tmp_path / "north.npy"])
    repeats._spent.clear()
    layers = [planted(30, seed=seed)[0] for seed in range(3)]
    with warnings.catch_warnings(record=True) as recorded:
        warnings.simplefilter("always")
        FedCovariance(unit=Edge()).fit_silos(layers[:2])
        FedCovariance(unit=Edge()).fit_silos([planted(30, seed=9)[0]])
        assert told(recorded) == []
        FedCovariance(unit=Edge()).fit_silos(layers[1:])
    (sentence,) = told(recorded)
    assert sentence.startswith("these networks are fitted privately for the second time")
