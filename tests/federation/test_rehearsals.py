"""`fedpower run --local`: the whole of it on one machine, as a user runs it, a secure sum too."""

import json

import numpy as np
import pytest
from ground import fedpower
from studies import COLUMNS, SIZES, silo_rows, write_rows

from fedpower.linalg import sin_theta
from fedpower.protocol.roll import Identity

pytestmark = pytest.mark.federation


def test_a_study_with_a_secure_sum_is_rehearsed_with_one_command(tmp_path):
    rows = tmp_path / "rows"
    rows.mkdir()
    for name in SIZES:
        write_rows(rows / f"{name}.csv", np.tile(silo_rows(name), (50, 1)))
    keys = [f"--identity={name}={Identity.new().public}" for name in SIZES]
    made = fedpower(
        "study", "init", "study.toml", "--name=rehearsed", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=50", "--delta=1e-6", "--row-norm=12",
        "--deadline=60", *keys, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "round 2 (masked-moment): 3 answered" in done.stderr
    record = json.loads(done.stdout)
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert "summed securely" in (tmp_path / "result" / "privacy.txt").read_text()
    with np.load(tmp_path / "result" / "components.npz") as arrays:
        found = arrays["components"]
    pooled = np.vstack([silo_rows(name) for name in SIZES])
    exact = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:2]
    # The noise is real: some .1 on these rows once, so .002 on fifty times as many.
    assert sin_theta(found.T, exact.T) < 0.2


def test_a_rehearsal_that_cannot_be_is_refused_before_anything_starts(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "gap").mkdir()
    for name in SIZES:
        rows = silo_rows(name)
        rows[1, 2] = np.nan if name == "south" else rows[1, 2]
        write_rows(tmp_path / "gap" / f"{name}.csv", rows)
    fedpower(
        "study", "init", "study.toml", "--name=rehearsed", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=1", "--row-norm=12", cwd=tmp_path,
    )  # fmt: skip
    for words, sentence in (
        (("--local=2",), "a rehearsal must have all 3 silos of the study, got 2"),
        (("--local=3", "--data=empty"), "must hold one file for silo 'north', got 0"),
        (("--local=3", "--data=gap"), "of the data of silo 'south' must hold finite numbers"),
    ):
        refused = fedpower("run", "study.toml", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert "are starting on this machine" not in refused.stderr
        assert not (tmp_path / "result").exists()


@pytest.mark.parametrize("solver", ["moment", "krylov"])
def test_an_exact_study_over_secure_sums_is_rehearsed_with_one_command(tmp_path, solver):
    rows = tmp_path / "rows"
    rows.mkdir()
    for name in SIZES:
        write_rows(rows / f"{name}.csv", silo_rows(name))
    keys = [f"--identity={name}={Identity.new().public}" for name in SIZES]
    made = fedpower(
        "study", "init", "study.toml", "--name=exact", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=inf", "--deadline=60", *keys, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    study = tmp_path / "study.toml"
    study.write_text(f'{study.read_text()}\n[solver]\nsolver = "{solver}"\n')
    shown = fedpower("study", "show", "study.toml", "--json", cwd=tmp_path)
    assert json.loads(shown.stdout)["solver"] == solver, shown.stderr
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    kinds = [each["kind"] for each in record["rounds"]]
    assert kinds[0] == "call-roll"
    assert set(kinds[1:]) == {"masked-sum"}
    statement = (tmp_path / "result" / "privacy.txt").read_text()
    assert "NOT differentially private" in statement
    assert "read sums over 3 silos and nothing of a single one" in statement
    with np.load(tmp_path / "result" / "components.npz") as arrays:
        found = arrays["components"]
    pooled = np.vstack([silo_rows(name) for name in SIZES])
    exact = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:2]
    assert sin_theta(found.T, exact.T) < 1e-8
