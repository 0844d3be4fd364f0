"""A fit that found nothing says why: the bound, the offset, epsilon, the rows or the columns."""

import numpy as np
import pytest

from fedpower import CodeBook, FedPCA
from fedpower.estimator.fit_warnings import NoiseWarning
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.report.view import cause_of_noise
from fits import fed_pca
from problems import Array


def rows(n_rows: int, n_columns: int = 5) -> Array:
    return np.random.default_rng(0).standard_normal((n_rows, n_columns))


@pytest.mark.parametrize(
    ("data", "terms", "cause"),
    [
        (rows(20_000), {"row_norm": 300.0}, "the likely cause is the bound"),
        (rows(20_000) * 0.01 + 10, {"row_norm": 30.0}, "the likely cause is the offset"),
        (rows(30, 20), {"row_norm": 6.0}, "the likely cause is the number of rows, 30,"),
        (rows(30, 20), {}, "the likely cause is the number of rows, 30,"),
        (rows(6_000) * 0.1, {"row_norm": 1.0, "epsilon": 0.01}, "the likely cause is epsilon=0.01"),
    ],
)
def test_the_warning_names_the_cause(
    data: Array, terms: dict[str, float], cause: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Noise counts as a component with probability 1% at most by the rule: the noise is seeded."""
    seeded = lambda: SeededNoiseForExperiments(1)  # noqa: E731
    monkeypatch.setattr("fedpower.protocol.silo.SystemNoise", seeded)
    with pytest.warns(NoiseWarning, match=cause):
        model = fed_pca(2, **{"epsilon": 0.5, "delta": 1e-6, **terms}).fit(data)
    assert cause_of_noise(model.result_) is not None


def test_a_fit_that_found_something_has_no_cause_to_name() -> None:
    found = rows(20_000) * [5, 1, 1, 1, 1]
    private = FedPCA(1, epsilon=1.0, standardize=False, codebook=CodeBook(row_norm=9.0))
    for model in (private, FedPCA(1, epsilon=float("inf"))):
        assert cause_of_noise(model.fit(found).result_) is None
