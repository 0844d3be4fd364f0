"""A released moment gives the same numbers as the fit that releases it, in process and in a study."""

import json
from typing import Any

import numpy as np
import pytest

from benchmarks.fits import fed_covariance, fed_pca
from budgets import ledgers_in, spent
from fedpower import FedCovariance, FedPCA, load
from fedpower.exceptions import InputError
from fedpower.report.record import COVARIANCE, RUN
from problems import spiked_rows

INF = float("inf")
NAMES = ("north", "south", "east")
WAYS: dict[str, dict[str, Any]] = {
    "plain": {"epsilon": 1.0, "delta": 1e-6, "row_norm": 8.0},
    "uncentred": {"epsilon": 1.0, "delta": 1e-6, "row_norm": 8.0, "center": False},
    "normalised": {"epsilon": 1.0, "delta": 1e-6, "normalize": True},
    "scaled": {"epsilon": 1.0, "delta": 1e-6, "row_norm": 8.0, "scale": [2.0, 1.0, 1.0, 3.0, 1.0, 1.0]},
    "prepared": {"epsilon": 2.0, "delta": 1e-6},
    "exact": {"epsilon": INF},
}
FITS: tuple[dict[str, Any], ...] = (
    {"n_components": 2},
    {"n_components": 3, "standardize": True},
    {"n_components": 0.5},
)


def silos(rows: int = 900) -> dict[str, Any]:
    held = spiked_rows(rows, 6, rank=2, seed=3) + 1.0
    return dict(zip(NAMES, np.array_split(held, 3), strict=True))


def same(one: FedPCA, other: FedPCA) -> None:
    for name in ("components_", "explained_variance_", "explained_variance_ratio_", "mean_",
                 "spectrum_", "singular_values_", "denoised_variance_", "basis_", "component_angles_",
                 "subspace_angles_"):  # fmt: skip
        assert np.array_equal(getattr(one, name), getattr(other, name), equal_nan=True), name
    for name in ("n_samples_seen_", "silo_sizes_", "n_components_"):
        assert getattr(one, name) == getattr(other, name), name


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("way", WAYS)
def test_a_fit_to_the_moment_has_the_numbers_of_the_direct_fit_and_is_charged_nothing(way, tmp_path):
    terms, data = WAYS[way], silos(6_000)
    ledgers = ledgers_in(tmp_path, NAMES, 3.0) if np.isfinite(terms["epsilon"]) else None
    released = fed_covariance(**terms).fit_silos(data, ledgers=ledgers)
    for fit in FITS:
        direct = fed_pca(**{**fit, **terms, "solver": "upload"}).fit_silos(data, ledgers=ledgers)
        for release in (released.release_, released.save(tmp_path / "covariance", force=True)):
            model = fed_pca(**fit).fit_covariance(release)
            same(model, direct)
            rows = np.asarray(data["north"][:5])
            assert np.array_equal(model.transform(rows), direct.transform(rows))
    charged = 6 if way == "prepared" else 1
    assert all(spent(path).n_releases == charged for path in (ledgers or {}).values())


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("told", [{}, {"row_norm": 8.0}], ids=["prepared", "bounded"])
@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_fit_gives_its_moment_back_from_memory_and_from_folders(aggregation, told, tmp_path):
    terms = {"epsilon": 2.0, "delta": 1e-6, "aggregation": aggregation, **told}
    model = fed_pca(2, **terms).fit_silos(silos(3000))
    model.save(tmp_path / "result")
    again = FedPCA(2).fit_covariance(model.release_)
    again.save(tmp_path / "again")
    read = load(model.release_.save(tmp_path / "covariance"))
    for release in (read, tmp_path / "result", tmp_path / "again"):
        same(FedPCA(2).fit_covariance(release), model)
    assert (read.code_book is None) == bool(told)
    assert str(read.privacy) == str(model.privacy_)
    if aggregation == "secure":
        assert "the published covariance and everything computed from it" in str(read.privacy)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_the_noise_of_the_mean_and_the_moment_has_the_law_that_the_moment_tells():
    """Fails with probability below 1e-8: 6 deviations of variances of 7,600 and 800 draws."""
    rows = np.zeros((500, 20))
    model = fed_covariance(**WAYS["plain"], n_jobs=1)
    drawn = [model.fit_silos([rows]).release_ for _ in range(40)]
    law, lower = drawn[0], np.tril_indices(20, -1)
    means = np.array([each.pooled.center for each in drawn])
    about_origin = np.array([each.pooled.covariance for each in drawn]) + means[:, :, None] * means[:, None]
    off = about_origin[:, *lower] / (law.noise_std / np.sqrt(2))
    assert np.var(off) == pytest.approx(1.0, abs=0.10)
    assert np.var(means / law.mean_noise_std) == pytest.approx(1.0, abs=0.30)


def test_parameters_of_the_release_cannot_be_changed_afterwards():
    release = FedCovariance(epsilon=INF).fit_silos(silos()).release_
    for changed, name in ((FedPCA(2, epsilon=0.5), "epsilon"), (fed_pca(2, row_norm=3.0), "row_norm")):
        with pytest.raises(InputError, match=f"{name} must be left out in a fit to a released covariance"):
            changed.fit_covariance(release)
    FedPCA(2, epsilon=INF).fit_covariance(release)


def test_changed_and_foreign_folders_are_refused_in_one_sentence(tmp_path):
    folder = FedCovariance(epsilon=INF).fit_silos(silos()).save(tmp_path / "covariance")
    (tmp_path / "empty").mkdir()
    FedPCA(2, epsilon=INF).fit_silos(silos()).save(tmp_path / "fitted")
    content = json.loads((folder / RUN).read_text())
    for key in ("epsilon", "n_features"):
        study = {**content["study"], "terms": {**content["study"]["terms"], key: 1}}
        (folder / RUN).write_text(json.dumps({**content, "study": study}))
        with pytest.raises(InputError, match="must be as fedpower wrote it"):
            load(folder)
    (folder / RUN).write_text(json.dumps(content))
    load(folder)
    with np.load(folder / COVARIANCE) as stored:
        np.savez(folder / COVARIANCE, **{**stored, "covariance": stored["covariance"] * 1.0000001})
    for name, sentence in {
        "none": "no result folder at",
        "empty": r"got one without components\.npz",
        "fitted": "the fit must keep its covariance, got one without it",
        folder.name: "got files that were changed since",
    }.items():
        with pytest.raises(InputError, match=sentence):
            FedPCA(2).fit_covariance(tmp_path / name)
