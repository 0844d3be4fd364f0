"""`fedpower study run --local`: the whole of it on one machine, as a user runs it, a secure sum too."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from ground import fedpower, init_study
from studies import COLUMNS, KEYS, SIZES, silo_rows, write_rows

from fedpower.linalg import sin_theta

pytestmark = pytest.mark.federation


@pytest.fixture
def rows(tmp_path):
    (tmp_path / "rows").mkdir()
    return tmp_path / "rows"


def rehearse(folder, *words) -> tuple[dict[str, Any], np.ndarray, str]:
    """Return the record, the components and the sentences of a rehearsal that ends with a result."""
    done = fedpower("study", "run", "study.toml", "--local=3", "--data=rows", "--json", *words, cwd=folder)
    assert done.returncode == 0, done.stderr
    with np.load(folder / "result" / "components.npz") as arrays:
        return json.loads(done.stdout), arrays["components"], done.stderr


def components(rows):
    return np.linalg.svd(rows - rows.mean(axis=0), full_matrices=False)[2]


def test_persons_with_a_secure_sum_are_rehearsed_with_one_command_and_analysed(tmp_path, rows):
    for name in SIZES:
        table = np.tile(silo_rows(name), (50, 1))
        ids = np.arange(len(table)) % (len(table) // 2)
        write_rows(rows / f"{name}.csv", np.column_stack([table, ids]), (*COLUMNS, "patient_id"))
    keys = [f"--identity={name}={key.public}" for name, key in KEYS.items()]
    init_study(tmp_path, "--epsilon=50", "--unit=patient_id", *keys)
    record, found, said = rehearse(tmp_path)
    assert "round 2 (moment): 3 answered" in said
    assert record["study"]["terms"]["aggregation"] == "secure"
    assert record["n_samples"] == 25 * sum(SIZES.values())
    assert record["privacy"]["unit"] == "one person of one silo"
    assert "summed securely" in (tmp_path / "result" / "privacy.txt").read_text()
    pooled = np.vstack([silo_rows(name) for name in SIZES])
    # The noise is real: some .1 on these rows once, so .002 on fifty times as many.
    assert sin_theta(found.T, components(pooled / pooled.std(axis=0))[:2].T) < 0.2
    derived = fedpower("analyze", "factor", "result", "-k1", "--json", cwd=tmp_path)
    assert derived.returncode == 0, derived.stderr
    assert json.loads(derived.stdout)["columns"] == list(COLUMNS)


def test_files_as_they_are_are_rehearsed_with_the_options_of_a_fit_and_a_failure_keeps_its_folder(
    tmp_path, rows
):
    """Hospitals' rows in German, in parts, and under other names and units."""
    tables = {name: np.tile(silo_rows(name), (20, 1)) for name in SIZES}
    german = pd.DataFrame(tables["north"], columns=COLUMNS).assign(nr="N-17")
    german.to_csv(rows / "north.csv", sep=";", decimal=",", index=False)
    (rows / "south").mkdir()
    for place, part in enumerate(np.array_split(tables["south"], 3)):
        write_rows(rows / "south" / f"part-{place}.csv", part)
    own = pd.DataFrame(tables["east"], columns=COLUMNS).rename(columns={COLUMNS[0]: "eigen"})
    own.assign(eigen=own["eigen"] / 4).to_parquet(rows / "table.parquet")
    (rows / "east.toml").write_text(
        '[data]\npath = "table.parquet"\n'
        f'[columns]\nrename = {{eigen = "{COLUMNS[0]}"}}\nfactors = {{{COLUMNS[0]} = 4}}\n'
    )
    init_study(tmp_path, "--epsilon=1")
    record, found, said = rehearse(tmp_path, "--drop=nr", "--epsilon=inf", "-k3")
    assert "the study is tried with other settings" in said
    assert record["parameters"]["n_components"] == 3
    pooled = np.vstack(list(tables.values()))
    pooled *= np.minimum(1, 12 / np.linalg.norm(pooled, axis=1))[:, None]
    assert sin_theta(found.T, components(pooled / pooled.std(axis=0))[:3].T) < 1e-6
    assert not Path(re.search(r"are starting on this machine, in (.*)", said)[1]).exists()
    words = ("--local=3", "--data=rows", "--drop=nr", "--deadline=0.000001", "--force")
    failed = fedpower("study", "run", "study.toml", *words, cwd=tmp_path)
    assert failed.returncode == 2
    kept = Path(re.search(r"its folder is kept: (.*)", failed.stderr)[1])
    try:
        for name in (*SIZES, "coordinator"):
            assert f"the log of {name}" in failed.stderr
            assert (kept / f"{name}.log").is_file()
        assert kept.stat().st_mode & 0o077 == 0
        last = failed.stderr.splitlines()[-1]
        assert last.startswith("Error: round 0 needs 3 answers and got 0")
        assert "no round was closed in 6 starts in a row" in last
    finally:
        shutil.rmtree(kept)


def test_a_rehearsal_that_cannot_be_is_refused_before_anything_starts(tmp_path, rows):
    for name in SIZES:
        table = silo_rows(name)
        table[1, 2] = np.nan if name == "south" else table[1, 2]
        write_rows(rows / f"{name}.csv", table)
    init_study(tmp_path, "--epsilon=1")
    for words, sentence in (
        (("--local=3", "--data=rows"), "of the data of silo 'south' must hold finite numbers"),
        (("--separator=;",), "--separator must go with --local"),
        (("--local=3", "--drop=nr"), "--drop must go with --data"),
    ):
        refused = fedpower("study", "run", "study.toml", *words, cwd=tmp_path)
        assert refused.returncode == 2
        assert sentence in refused.stderr
        assert "are starting on this machine" not in refused.stderr
        assert not (tmp_path / "result").exists()
