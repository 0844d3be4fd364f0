"""The benchmark's fits are the product's fits: the same road, with noise that can be drawn again."""

import math

import numpy as np
import pytest

from benchmarks.data_sets import DataSet, split
from benchmarks.private_fits import METHODS, Federation
from fits import fed_pca
from problems import Array


@pytest.fixture
def data(rows: Array) -> DataSet:
    return DataSet(
        name="rows",
        rows=rows,
        labels=np.zeros(len(rows), dtype=np.int64),
        rank=3,
        n_silos=2,
        parameters={"normalize": True, "center": True},
        treatment="unit rows",
    )


def test_without_noise_a_fit_is_the_estimator_s(data: DataSet) -> None:
    places = split("at random", data.labels, 2, np.random.default_rng(0))
    fit = Federation(data, places).fit("fedpower", epsilon=math.inf, seed=0)
    model = fed_pca(3, epsilon=math.inf, **data.parameters)
    model.fit_silos([data.rows[rows] for rows in places])
    # The rows are those of private fits too: on their lattice, of steps of 2⁻²⁰.
    assert np.abs(fit.basis.T) == pytest.approx(np.abs(model.components_), abs=1e-6)
    assert fit.rounds == len(model.history_)


@pytest.mark.parametrize("method", METHODS)
def test_a_seed_gives_the_same_bytes_again_and_another_seed_others(data: DataSet, method: str) -> None:
    places = split("at random", data.labels, 2, np.random.default_rng(0))
    first, again, other = (
        Federation(data, places).fit(method, epsilon=1.0, seed=seed).basis for seed in (5, 5, 6)
    )
    assert first.tobytes() == again.tobytes()
    assert first.tobytes() != other.tobytes()
