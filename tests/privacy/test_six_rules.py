"""Rules 4 and 6 of docs/privacy.md from the outside: no seed reaches the noise, no diagnostics get out.

`docs/privacy.md` names the test of each rule; the others are in `tests/protocol`.
"""

import inspect
import json
import random
import re

import numpy as np
import pytest

from fedpower import FedPCA
from fedpower.cli import main
from fedpower.engines import embedded
from fedpower.errors import InputError
from fedpower.privacy import noise
from fedpower.privacy.noise import SeededNoiseForExperiments, SystemNoise
from fedpower.protocol import open_releases

MODES = pytest.mark.parametrize("mode", ["moment", "step", "paper"])


def silos(n_rows=120):
    rng = np.random.default_rng(0)
    return {name: rng.normal(size=(n_rows, 5)) * [3, 2, 1, 1, 1] for name in ("a", "b")}


def fit(mode, **changes):
    terms = {"epsilon": 1.0, "noise": mode, "row_norm": 9.0, "random_state": 7} | changes
    return FedPCA(2, iteration_rank=2, **terms).fit_silos(silos())


def noised_numbers(model):
    return np.concatenate([model.explained_variance_, model.components_.ravel(), model.mean_])


@MODES
def test_the_same_random_state_never_gives_the_same_noise(mode):
    """Rule 4: also after every other seed in reach was set."""
    found = []
    for _ in range(2):
        random.seed(1)
        np.random.seed(1)  # noqa: NPY002
        found.append(noised_numbers(fit(mode)))
    assert not np.any(found[0] == found[1])
    exact = [noised_numbers(fit("auto", epsilon=float("inf"))) for _ in range(2)]
    assert np.array_equal(*exact)  # the public randomness is the same


@MODES
def test_all_noise_comes_from_the_operating_system(mode, monkeypatch):
    """Rule 4: with its generator replaced by a repeating one, fits repeat; by nothing else."""
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
    """Rule 4: what could, does not exist; `noise` takes a mode's name and nothing else."""
    allowed = {"noise", "random_state"}
    for function in (FedPCA.__init__, FedPCA.fit, FedPCA.fit_silos, FedPCA.fit_transform):
        names = set(inspect.signature(function).parameters)
        suspects = {
            name
            for name in names
            if any(
                word in name for word in ("noise", "seed", "random", "source", "rng", "generator")
            )
        }
        assert suspects <= allowed
    for source in (
        SeededNoiseForExperiments(1),
        SeededNoiseForExperiments,
        7,
        np.random.default_rng(1),
    ):
        with pytest.raises(InputError, match="noise must be one of"):
            FedPCA(2, noise=source, row_norm=9.0).fit_silos(silos())


def test_a_random_state_that_looks_like_noise_is_refused_or_public():
    with pytest.raises(ValueError, match="cannot be used to seed"):
        fit("moment", random_state=SeededNoiseForExperiments(1))


def test_a_federation_uses_the_system_s_noise_unless_an_experiment_says_otherwise(monkeypatch):
    made = []

    class Counted(SystemNoise):
        def __init__(self):
            made.append(self)

    monkeypatch.setattr(open_releases, "SystemNoise", Counted)
    fit("moment")
    assert made
    assert inspect.signature(embedded.federate).parameters["noise"].default is None


@MODES
def test_what_was_clipped_is_told_to_the_operator_and_to_nobody_else(mode):
    """Rule 6: 173 of 240 rows are clipped; no output says so."""
    rows = silos()
    norms = np.concatenate([np.linalg.norm(part, axis=1) for part in rows.values()])
    bound = float(np.sort(norms)[66:68].mean())
    told = {}
    model = FedPCA(2, iteration_rank=2, noise=mode, row_norm=bound, random_state=0)
    model.fit_silos(rows, on_clipped=told.update)
    assert [sum(counts) for counts in zip(*told.values(), strict=True)] == [173, 240]
    for kept in (model.history_, model.privacy_, model.privacy_.as_dict(), model.study_):
        assert "clip" not in repr(kept)
        assert not re.search(r"(?<![\w.])173(?![\w.])", repr(kept))


def test_nothing_of_the_rows_diagnostics_is_in_a_run_s_folder(tmp_path, capsys):
    """Rule 6: counts of clipped rows reach the operator's screen, and no file of the result."""
    paths = []
    for name, rows in silos().items():
        np.save(tmp_path / f"{name}.npy", rows)
        paths.append(str(tmp_path / f"{name}.npy"))
    out = tmp_path / "result"
    status = main(
        ["fit", *paths, "-k", "2", "--epsilon", "1", "--row-norm", "1", "-o", str(out)],
        standalone_mode=False,
    )
    assert status == 0
    assert "clipped" in capsys.readouterr().err
    record = json.loads((out / "run.json").read_text())
    assert record["privacy"]["private"] is True
    for file in out.iterdir():
        if file.suffix in (".json", ".csv", ".html", ".txt"):
            assert "n_clipped" not in file.read_text()
            assert "were clipped" not in file.read_text()
