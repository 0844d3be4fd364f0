"""Rules 4, 6 and 8 of docs/officer/threat-model.md from the outside.

No seed reaches the noise, no diagnostics get out, and no number in a row decides whether there is a result.

`docs/officer/proof.md` names the test of each rule; the others are in `tests/protocol`.
"""

import inspect
import json
import random
import re

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from scipy import sparse

from benchmarks.fits import fed_pca
from budgets import ledgers_in, spent
from fedpower import CodeBook, FedPCA
from fedpower.cli import main
from fedpower.engines import inprocess
from fedpower.estimator.fit_warnings import ClippingWarning
from fedpower.exceptions import InputError
from fedpower.privacy import noise
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol import silo as assembling

MODES = pytest.mark.parametrize("mode", ["covariance", "step", "paper"])


def silos(n_rows=120):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(n_rows, 5)) * [3, 2, 1, 1, 1] for name in ("a", "b")}


def fit(noise, **changes):
    terms = {"epsilon": 1.0, "noise": noise, "row_norm": 9.0, "standardize": False, "random_state": 7}
    return fed_pca(2, iteration_rank=2, **terms | changes).fit_silos(silos())


def noised_numbers(model):
    return np.concatenate([model.explained_variance_, model.components_.ravel(), model.mean_])


@pytest.mark.parametrize("mode", ["covariance", "step", "paper", "none"])
def test_the_same_random_state_never_gives_the_same_noise(mode):
    found = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        terms = {} if mode != "none" else {"epsilon": float("inf"), "noise": "auto"}
        found.append(noised_numbers(fit(**{"noise": mode, **terms})))
    # A variance that noise took below 0 is shown as 0, in whichever fit.
    same = (found[0] == found[1]) & (found[0] != 0)
    assert same.all() if mode == "none" else not same.any()  # the public randomness is the same


@MODES
def test_all_noise_comes_from_the_operating_system(mode, monkeypatch):
    asked = []

    def fit_with_stream():
        stream = np.random.Philox(3)

        def urandom(n):
            asked.append(n)
            return stream.random_raw(-(-n // 8)).tobytes()[:n]

        monkeypatch.setattr(noise.os, "urandom", urandom)
        return noised_numbers(fit(mode, n_jobs=1))

    assert np.array_equal(fit_with_stream(), fit_with_stream())
    assert sum(asked) > 8 * 20


def test_no_parameter_of_the_estimator_can_carry_a_noise_source():
    allowed = {"noise", "random_state"}
    for function in (FedPCA.__init__, FedPCA.fit, FedPCA.fit_silos, FedPCA.fit_transform):
        names = " ".join(inspect.signature(function).parameters)
        assert set(re.findall(r"\w*(?:noise|seed|random|source|rng|generator)\w*", names)) <= allowed
    for source in (SeededNoiseForExperiments(1), SeededNoiseForExperiments, 7, np.random.default_rng(1)):
        with pytest.raises(InputError, match="noise must be a word or Noise"):
            FedPCA(2, codebook=CodeBook(row_norm=9.0), noise=source).fit_silos(silos())
    with pytest.raises(InputError, match="random_state must be a whole number, a RandomState or None"):
        fit("covariance", random_state=SeededNoiseForExperiments(1))


def test_a_federation_uses_the_system_s_noise_unless_an_experiment_says_otherwise(monkeypatch):
    made = []
    monkeypatch.setattr(assembling, "SystemNoise", lambda: made.append(1) or SystemNoise())
    fit("covariance")
    assert made
    assert inspect.signature(inprocess._run).parameters["noise"].default is None


@MODES
def test_what_was_clipped_is_told_to_the_operator_and_to_nobody_else(mode):
    rows = silos()
    norms = np.concatenate([np.linalg.norm(part, axis=1) for part in rows.values()])
    bound = float(np.sort(norms)[66:68].mean())
    reported = {}
    terms = {"noise": mode, "row_norm": bound, "standardize": False, "random_state": 0}
    model = fed_pca(2, iteration_rank=2, **terms)
    model.fit_silos(rows, on_clipped=reported.update)
    assert [sum(counts) for counts in zip(*reported.values(), strict=True)] == [173, 240]
    for kept in (model.history_, model.privacy_, model.privacy_.as_dict(), model.study_):
        assert "clip" not in repr(kept)
        assert not re.search(r"(?<![\w.])173(?![\w.])", repr(kept))


EXTREMES = [1.2e308, -1.7e308, 5e-324, 1e-200, 1e154, 2.0**53 + 2, 0.0]
TREATMENTS = {
    "a small bound": {"row_norm": 0.25},
    "a large bound": {"row_norm": 1e120},
    "unit rows": {"normalize": True},
    "scales": {"row_norm": 3.0, "scale": np.full(5, 1e-3)},
    "a far centre": {"row_norm": 3.0, "center": np.full(5, -1.7e308)},
    "both, unit rows": {"normalize": True, "center": np.full(5, -1e308), "scale": np.full(5, 1e-140)},
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "extremes",
    [
        pytest.param([[each] for each in EXTREMES], id="one", marks=pytest.mark.slow),
        pytest.param([EXTREMES], id="all"),
    ],
)
@pytest.mark.parametrize("kind", ["array", "sparse", "csv"])
@pytest.mark.parametrize("treatment", TREATMENTS)
@pytest.mark.parametrize("mode", ["covariance", "step"])
def test_no_number_in_a_row_decides_whether_there_is_a_result(tmp_path, kind, treatment, mode, extremes):
    for place, chosen in enumerate(extremes):
        rows = silos(20)["a"]
        for row, extreme in enumerate(chosen):
            rows[2 * row, 1] = rows[2 * row + 1] = extreme
        source = sparse.csr_array(rows) if kind == "sparse" else rows
        if kind == "csv":
            source = tmp_path / f"{place}.csv"
            heading = ",".join(f"c{column}" for column in range(rows.shape[1]))
            np.savetxt(source, rows, delimiter=",", header=heading, comments="", fmt="%.17g")
        terms = {"standardize": False, "center": False, **TREATMENTS[treatment]}
        model = fed_pca(2, epsilon=1.0, noise=mode, iteration_rank=2, random_state=0, **terms)
        assert np.isfinite(noised_numbers(model.fit_silos([source]))).all()


def test_rows_that_are_all_longer_than_the_bound_give_a_result_and_a_word_to_the_operator(tmp_path, capsys):
    rows = silos(30)["a"]
    rows *= 9 / np.linalg.norm(rows, axis=1, keepdims=True)
    outcomes = {}
    for name, first in {"all": 9.0, "all but one": 0.1}.items():
        rows[0] *= first / np.linalg.norm(rows[0])
        np.save(tmp_path / "rows.npy", rows)
        out = tmp_path / name
        words = ["fit", str(tmp_path / "rows.npy"), "-k", "2", "--epsilon", "1", "--row-norm", "1"]
        status = main([*words, "-o", str(out)], standalone_mode=False)
        outcomes[name] = (status, sorted(file.name for file in out.iterdir()))
        said = capsys.readouterr()
        assert "clipped" in said.err
        assert "clipped" not in said.out
        assert json.loads((out / "run.json").read_text())["privacy"]["private"] is True
        for file in out.iterdir():
            if file.suffix in (".json", ".csv", ".html", ".txt"):
                assert not re.search("n_clipped|were clipped", file.read_text())
    assert outcomes["all"] == outcomes["all but one"]
    with pytest.warns(ClippingWarning, match="every row is longer than row_norm"):
        FedPCA(2, epsilon=1.0, codebook=CodeBook(row_norm=0.01)).fit_silos([rows])


BAD = {"missing": [np.nan], "infinite": [np.inf], "beyond 2^53": [2**53 + 1], "text": ["twelve"]}


@pytest.mark.parametrize("what", BAD)
def test_what_cannot_be_a_number_is_refused_before_anything_is_charged(tmp_path, what):
    table, ledgers = (
        pa.table({"a": list(range(50)), "b": [*map(str, range(49)), "x"]}),
        ledgers_in(tmp_path, "n"),
    )
    path, asked = tmp_path / ("north.csv" if what == "text" else "north.parquet"), []
    if what == "text":
        csv.write_csv(table, path)
    else:
        parquet.write_table(pa.table({"a": list(range(50)), "b": [*range(49), *BAD[what]]}), path)
    with pytest.raises(InputError, match=r"column 'b' of .* row 50"):
        FedPCA(1, epsilon=1.0, codebook=CodeBook(row_norm=9.0)).fit_silos(
            {"n": path}, ledgers=ledgers, on_round=asked.append
        )
    assert not asked
    assert spent(ledgers["n"]).n_releases == 0
