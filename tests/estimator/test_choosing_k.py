"""The number of components chosen by the noise, or by a fraction of variance, in real fits."""

from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.privacy import Ledger
from fedpower.protocol.private_study import USED_BEFORE
from fedpower.protocol.solvers.signal import LEVEL
from fedpower.report import read_result, write_result
from problems import Array

D, PLANTED = 15, 3
PRIVATE = {"epsilon": 2.0, "delta": 1e-6, "row_norm": 1.0, "standardize": False}


def planted_rows(n_rows: int = 40_000, seed: int = 0) -> list[Array]:
    """Return two silos' rows, nearly all of whose variance is in three directions of unequal strength."""
    rng = np.random.default_rng(seed)
    scores = rng.standard_normal((n_rows, PLANTED)) * [0.3, 0.25, 0.2]
    rows = 0.01 * rng.standard_normal((n_rows, D))
    rows[:, :PLANTED] += scores + 0.2
    return np.split(rows, [n_rows // 3])


@pytest.mark.slow
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
@pytest.mark.parametrize("center", [True, False])
def test_as_many_as_were_planted_stand_above_the_noise(aggregation: str, center: bool) -> None:
    """Wrong with probability at most 1% a fit; over 5 fits with at most 2 wrong, 1e-5."""
    counts = []
    for seed in range(5):
        model = FedPCA("noise", aggregation=aggregation, center=center, **PRIVATE)
        model.fit_silos(planted_rows(seed=seed))
        counts.append(model.n_components_)
        assert model.n_above_noise_ == model.n_components_ == len(model.components_)
        assert model.spectrum_.shape == (D,)
        np.testing.assert_allclose(
            model.spectrum_[: model.n_components_], model.explained_variance_, rtol=1e-9
        )
        assert model.solver_.solver == "moment"
    assert sum(count != PLANTED for count in counts) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("rows", [np.zeros((300, 6)), np.full((300, 6), 0.3)])
def test_rows_without_any_variance_are_refused(rows: Array) -> None:
    """Found where nothing is with probability at most LEVEL a fit: fails with probability below 1e-6."""
    runs = 60
    refusals = []
    for _ in range(runs):
        try:
            FedPCA("noise", **PRIVATE).fit_silos([rows[:100], rows[100:]])
        except InputError as error:
            refusals.append(str(error))
    assert runs - len(refusals) <= stats.binom.isf(1e-6, runs, LEVEL)
    assert all("bring more rows or a larger epsilon" in each for each in refusals)
    assert not any("\n" in each for each in refusals)


def test_a_fraction_is_taken_of_the_variance_without_the_noise() -> None:
    """The three directions hold 44%, 75% and 95% of it; each within 1% but with probability 1e-6."""
    silos = planted_rows()
    exact = FedPCA(PLANTED, epsilon=float("inf"), standardize=False).fit_silos(silos)
    for fraction, count in ((0.3, 1), (0.6, 2), (0.9, 3)):
        model = FedPCA(fraction, **PRIVATE).fit_silos(silos)
        assert model.n_components_ == count
        np.testing.assert_allclose(
            model.denoised_variance_ratio_, exact.explained_variance_ratio_[:count], atol=0.02
        )
    with pytest.raises(InputError, match="must be reached by components that stand above"):
        FedPCA(0.9999, **PRIVATE).fit_silos(silos)


def test_choosing_costs_nothing_beside_the_release(tmp_path: Path) -> None:
    """A refusal, then a number of components: one charge together."""
    silo = {name: np.zeros((300, 6)) for name in ("north", "south")}
    ledgers = {name: tmp_path / f"{name}.ledger" for name in silo}
    for name, path in ledgers.items():
        Ledger.create(path, epsilon=8.0, delta=1e-6, silo=name).close()

    def charges() -> int:
        with Ledger.open(ledgers["north"]) as ledger:
            return ledger.spent().n_releases

    with pytest.raises(InputError, match="which the same releases allow at no further cost"):
        FedPCA(0.5, **PRIVATE).fit_silos(silo, ledgers=ledgers)
    assert charges() == 1
    again = FedPCA(2, **PRIVATE).fit_silos(silo, ledgers=ledgers)
    assert charges() == 1
    assert USED_BEFORE in again.privacy_.notes


def test_without_a_ledger_nothing_is_promised_for_the_next_fit() -> None:
    with pytest.raises(InputError, match="is spent and not kept, so another fit spends again"):
        FedPCA("noise", **PRIVATE).fit_silos({"north": np.zeros((300, 6))})


def test_what_is_known_is_kept_with_the_result(tmp_path: Path) -> None:
    silos = planted_rows()
    for model in (
        FedPCA("noise", **PRIVATE),
        FedPCA(2, epsilon=float("inf"), standardize=False),
        FedPCA(2, noise="step", **PRIVATE),
        FedPCA(2, solver="krylov", **PRIVATE),
    ):
        model.fit_silos(silos)
        write_result(tmp_path / "out", model, force=True)
        reported = read_result(tmp_path / "out").run
        assert reported["n_above_noise"] == model.n_above_noise_
        with np.load(tmp_path / "out" / "components.npz") as stored:
            np.testing.assert_array_equal(stored["spectrum"], model.spectrum_)
    assert model.n_above_noise_ >= 2
    assert np.isfinite(model.denoised_variance_).all()


def test_an_exact_fit_tells_the_whole_spectrum() -> None:
    rows = np.vstack(planted_rows(600))
    model = FedPCA(2, epsilon=float("inf"), standardize=False).fit(rows)
    expected = np.linalg.eigvalsh(np.cov(rows.T))[::-1]
    np.testing.assert_allclose(model.spectrum_, expected, rtol=1e-8)
    assert model.n_above_noise_ is None
    np.testing.assert_array_equal(model.denoised_variance_, model.explained_variance_)
    np.testing.assert_array_equal(model.denoised_variance_ratio_, model.explained_variance_ratio_)
    steps = FedPCA(
        2, epsilon=float("inf"), standardize=False, solver="krylov", iteration_rank=5
    ).fit(rows)
    np.testing.assert_allclose(steps.spectrum_[:2], expected[:2], rtol=1e-6)
