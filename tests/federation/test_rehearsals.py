"""`fedpower run --local`: the whole of it on one machine, as a user runs it, a secure sum too."""

import json
import re
import shutil
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from ground import fedpower
from studies import COLUMNS, SIZES, silo_rows, write_rows

from fedpower import FedPCA, read_result
from fedpower.linalg import sin_theta
from fedpower.protocol.secure import Identity

pytestmark = pytest.mark.federation


def correlated(rows):
    """Return the components of the correlations of columns."""
    return np.linalg.svd((rows - rows.mean(axis=0)) / rows.std(axis=0), full_matrices=False)[2]


def test_a_study_with_a_secure_sum_is_rehearsed_with_one_command_and_its_moment_analysed(tmp_path):
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
    assert "round 2 (moment): 3 answered" in done.stderr
    record = json.loads(done.stdout)
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert "summed securely" in (tmp_path / "result" / "privacy.txt").read_text()
    with np.load(tmp_path / "result" / "components.npz") as arrays:
        found = arrays["components"]
    exact = correlated(np.vstack([silo_rows(name) for name in SIZES]))[:2]
    # The noise is real: some .1 on these rows once, so .002 on fifty times as many.
    assert sin_theta(found.T, exact.T) < 0.2
    derived = fedpower("derive", "result", "factor", "-k1", "--json", cwd=tmp_path)
    assert derived.returncode == 0, derived.stderr
    assert json.loads(derived.stdout)["columns"] == list(COLUMNS)


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


def write_hospitals(folder):
    """Write three hospitals' rows as they have them: in German, in parts, under other names and units."""
    folder.mkdir()
    rows = {name: np.tile(silo_rows(name), (20, 1)) for name in SIZES}
    german = pd.DataFrame(rows["north"], columns=COLUMNS).assign(nr="N-17")
    german.to_csv(folder / "north.csv", sep=";", decimal=",", index=False)
    (folder / "south").mkdir()
    for place, part in enumerate(np.array_split(rows["south"], 3)):
        write_rows(folder / "south" / f"part-{place}.csv", part)
    own = pd.DataFrame(rows["east"], columns=COLUMNS).rename(columns={COLUMNS[0]: "eigen"})
    own.assign(eigen=own["eigen"] / 4).to_parquet(folder / "table.parquet")
    (folder / "east.toml").write_text(
        '[data]\npath = "table.parquet"\n'
        f'[columns]\nrename = {{eigen = "{COLUMNS[0]}"}}\nfactors = {{{COLUMNS[0]} = 4}}\n'
    )
    return rows


def init(folder):
    made = fedpower(
        "study", "init", "study.toml", "--name=rehearsed", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=1", "--row-norm=12", "--deadline=60",
        cwd=folder,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr


def test_files_as_they_are_are_rehearsed_with_the_options_of_a_fit(tmp_path):
    rows = write_hospitals(tmp_path / "rows")
    init(tmp_path)
    done = fedpower(
        "run", "study.toml", "--local=3", "--data=rows", "--drop=nr", "--epsilon=inf", "-k3",
        "--json", cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "the study is tried with other settings" in done.stderr
    assert json.loads(done.stdout)["parameters"]["n_components"] == 3
    with np.load(tmp_path / "result" / "components.npz") as arrays:
        found = arrays["components"]
    pooled = np.vstack(list(rows.values()))
    pooled *= np.minimum(1, 12 / np.linalg.norm(pooled, axis=1))[:, None]
    exact = correlated(pooled)[:3]
    assert sin_theta(found.T, exact.T) < 1e-6
    folder = Path(re.search(r"are starting on this machine, in (.*)", done.stderr)[1])
    assert not folder.exists()


def test_a_rehearsal_that_fails_keeps_its_folder_and_shows_the_logs(tmp_path):
    write_hospitals(tmp_path / "rows")
    init(tmp_path)
    failed = fedpower(
        "run", "study.toml", "--local=3", "--data=rows", "--drop=nr", "--deadline=0.000001", cwd=tmp_path
    )
    assert failed.returncode == 2
    kept = Path(re.search(r"its folder is kept: (.*)", failed.stderr)[1])
    try:
        for name in (*SIZES, "coordinator"):
            assert f"the log of {name} " in failed.stderr
            assert (kept / f"{name}.log").is_file()
        assert kept.stat().st_mode & 0o077 == 0
        last = failed.stderr.splitlines()[-1]
        assert last.startswith("Error: round 0 needs 3 answers and got 0")
        assert "no round was closed in 6 starts in a row" in last
    finally:
        shutil.rmtree(kept)


def test_options_of_a_rehearsal_go_with_one(tmp_path):
    init(tmp_path)
    for words, sentence in (
        (("--epsilon=2",), "--epsilon must go with --local"),
        (("--separator=;",), "--separator must go with --local"),
        (("--local=3", "--drop=nr"), "--drop must go with --data"),
    ):
        refused = fedpower("run", "study.toml", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert sentence in refused.stderr


RULES = """
format = "fedpower-codebook/2"
[rules]
pid = "drop"
sex = ["F", "M"]
cd4 = { kind = "number", range = [0, 1500], missing = "offset", missing_words = ["."] }
"""


def test_a_study_with_rules_gives_over_flare_what_it_gives_in_process(tmp_path):
    (tmp_path / "rows").mkdir()
    (tmp_path / "codebook.toml").write_text(RULES)
    for place, name in enumerate(("north", "south")):
        rng = np.random.default_rng(place)
        cells = zip(
            range(80),
            rng.choice(["F", "M", "X"], 80),
            np.where(rng.random(80) < 0.2, ".", rng.normal(400, 90, 80).round(2).astype(str)),
            strict=True,
        )
        lines = ["pid,sex,cd4", *(",".join(map(str, row)) for row in cells)]
        (tmp_path / "rows" / f"{name}.csv").write_text("\n".join(lines) + "\n")
    made = fedpower(
        "study", "init", "study.toml", "--name=ruled", "--silos=north,south", "-k2",
        "--epsilon=inf", "--codebook=codebook.toml", "--deadline=60", cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = fedpower("run", "study.toml", "--local=2", "--data=rows", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    over = read_result(tmp_path / "result")
    files = {name: tmp_path / "rows" / f"{name}.csv" for name in ("north", "south")}
    book = tmp_path / "codebook.toml"
    here = FedPCA(2, epsilon=float("inf"), codebook=book).fit_silos(files)
    assert over.feature_names == ("sex=F", "sex=M", "sex=other", "cd4")
    np.testing.assert_allclose(over.components, here.components_, atol=1e-12)
    scores = over.transform(files["south"])
    np.testing.assert_allclose(scores, here.transform(files["south"]), atol=1e-9)


def test_persons_are_rehearsed_with_one_command(tmp_path):
    (tmp_path / "rows").mkdir()
    for name in SIZES:
        rows = np.tile(silo_rows(name), (20, 1))
        ids = np.arange(len(rows)) % (len(rows) // 2)
        write_rows(tmp_path / "rows" / f"{name}.csv", np.column_stack([rows, ids]), (*COLUMNS, "patient_id"))
    made = fedpower(
        "study", "init", "study.toml", "--name=persons", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=20", "--row-norm=12", "--deadline=60",
        "--unit=patient_id", cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["n_samples"] == 10 * sum(SIZES.values())
    assert record["study"]["terms"]["unit"] == "patient_id"
    assert record["privacy"]["unit"] == "one person of one silo"


def test_a_clipped_study_with_secure_sums_is_rehearsed_with_one_command(tmp_path):
    (tmp_path / "rows").mkdir()
    for name in SIZES:
        write_rows(tmp_path / "rows" / f"{name}.csv", np.tile(silo_rows(name), (50, 1)))
    keys = [f"--identity={name}={Identity.new().public}" for name in SIZES]
    made = fedpower(
        "study", "init", "study.toml", "--name=clipped", f"--silos={','.join(SIZES)}",
        f"--columns={','.join(COLUMNS)}", "-k2", "--epsilon=50", "--delta=1e-6", "--row-norm=12",
        "--noise=clipped", "--no-standardize", "--energy=0.9", "--deadline=60",
        *keys, cwd=tmp_path,
    )  # fmt: skip
    assert made.returncode == 0, made.stderr
    done = fedpower("run", "study.toml", "--local=3", "--data=rows", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    record = json.loads(done.stdout)
    assert record["study"]["terms"]["noise"] == "clipped"
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert [each["kind"] for each in record["rounds"]] == [
        "call-roll",
        "moment",
        *(f"product {step}" for step in range(1, 7)),
    ]
    with np.load(tmp_path / "result" / "components.npz") as arrays:
        found = arrays["components"]
    pooled = np.vstack([silo_rows(name) for name in SIZES])
    exact = np.linalg.svd(pooled - pooled.mean(axis=0), full_matrices=False)[2][:2]
    # Clipping bends what few columns hold by some percent; the noise is less.
    assert sin_theta(found.T, exact.T) < 0.4
