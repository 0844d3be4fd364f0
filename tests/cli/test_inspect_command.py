"""`fedpower inspect` and rules on the command line: what an owner sees, and what may be sent."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hospitals import run, succeed

from fedpower import read_code_book, read_result

FILLED = """
format = "fedpower-codebook/2"
[rules]
patient_id = "drop"
age = { kind = "number", range = [0, 120], missing = "offset" }
sex = ["F", "M"]
smoker = "yes/no"
seen = { kind = "date", origin = 2000-01-01, unit = "years", range = [0, 30] }
cd4 = { kind = "number", range = [0, 1500], missing = 350, missing_words = ["."] }
"""


def ward(seed: int, n_rows: int = 300) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    table = pd.DataFrame(
        {
            "patient_id": rng.permutation(n_rows) + 1000 * seed,
            "age": rng.integers(18, 90, n_rows) + rng.random(n_rows).round(2),
            "sex": rng.choice(["F", "M", f"secret-{seed}"], n_rows),
            "smoker": rng.choice(["yes", "no"], n_rows),
            "seen": rng.choice([f"20{seed:02}-01-31", f"20{seed:02}-02-28"], n_rows),
            "cd4": (350 + 80 * rng.standard_normal(n_rows)).round(3).astype(str),
        }
    )
    table.loc[rng.random(n_rows) < 0.1, "cd4"] = "."
    table.loc[rng.random(n_rows) < 0.05, "age"] = np.nan
    return table


@pytest.fixture
def wards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    ward(1).to_csv("north.csv", index=False)
    ward(2, 400).to_parquet("south.parquet", index=False)
    Path("codebook.toml").write_text(FILLED)
    return tmp_path


def test_an_owner_sees_types_missing_cells_levels_and_what_to_doubt(wards: Path):
    columns = json.loads(succeed("inspect", "north.csv", "--json").stdout)["files"]["north.csv"]
    found = {each["name"]: each for each in columns}
    types = {name: each["type"] for name, each in found.items()}
    assert types == {
        "patient_id": "number",
        "age": "number",
        "sex": "text",
        "smoker": "yes/no",
        "seen": "date",
        "cd4": "number",
    }
    table = ward(1)
    assert found["age"]["n_missing"] == int(table["age"].isna().sum())
    assert found["cd4"]["n_odd"] == int((table["cd4"] == ".").sum())
    assert found["sex"]["levels"] == table["sex"].value_counts().to_dict()
    assert found["patient_id"]["doubts"] == ["named like an id", "all different, as an id is"]
    shown = succeed("inspect", "north.csv").stdout
    assert "3 levels" in shown
    assert "for your eyes" in shown


def test_a_draft_has_names_and_types_alone(wards: Path):
    """Tables with the same schema, other rows, levels, dates and sizes give the same bytes."""
    for name in ("north.csv", "south.parquet"):
        succeed("inspect", name, "--draft", f"{name}.toml")
    one, other = Path("north.csv.toml").read_bytes(), Path("south.parquet.toml").read_bytes()
    assert one == other
    succeed("inspect", "south.parquet", "north.csv", "--draft", "both.toml")
    assert Path("both.toml").read_bytes() == one
    rules = one.decode().split("[rules]")[1]
    assert "secret" not in rules
    assert not any(letter.isdecimal() for letter in rules.replace("cd4", "").replace("is 0", ""))
    said = run("fit", "north.csv", "-k", 1, "--epsilon", "inf", "--codebook", "both.toml")
    assert said.exit_code == 2
    assert "must be" in said.stderr


def test_tables_go_from_rules_to_scores_with_commands_alone(wards: Path):
    files = ("north.csv", "south.parquet")
    succeed("prepare", *files, "--epsilon", 4, "--codebook", "codebook.toml", "-o", "full.toml")
    full = read_code_book("full.toml")
    assert full.columns == ("age", "sex=F", "sex=M", "sex=other", "smoker", "seen", "cd4")
    assert full.rules == read_code_book("codebook.toml").rules
    words = ("-k", 2, "--epsilon", 4, "--codebook", "full.toml", "-o", "result")
    said = succeed("fit", *files, *words)
    assert "named like an id" not in said.stderr
    assert "7 columns" in said.stdout
    rules = read_result("result").rules
    assert rules is not None
    assert rules.rules[0].missing == pytest.approx(float(full.offset[0]))
    succeed("transform", "result", "north.csv", "--id-column", "patient_id", "-o", "scores.csv")
    scores = pd.read_csv("scores.csv")
    assert scores["patient_id"].tolist() == ward(1)["patient_id"].tolist()
    assert np.isfinite(scores[["pc1", "pc2"]].to_numpy()).all()
    shown = succeed("plan", *files, "-k", 2, "--epsilon", 4, "--codebook", "codebook.toml")
    assert "700 rows of 7 columns" in shown.stdout


def test_all_problems_of_all_files_are_one_list_and_no_cell_is_in_it(wards: Path):
    said = run("fit", "north.csv", "south.parquet", "-k", 1, "--epsilon", 1, "-o", "out")
    assert said.exit_code == 2
    first, *lines = said.stderr.splitlines()
    assert first.startswith("Error: tables must hold nothing but what rules cover, got 10 problems")
    assert [line for line in lines if not line.startswith("  ")] == ["north.csv:", "south.parquet:"]
    assert "secret" not in said.stderr
    assert not Path("out").exists()


def test_ids_and_constants_are_pointed_out_before_a_fit_and_dropped_on_request(wards: Path):
    table = ward(3)[["patient_id", "age", "cd4"]].replace(".", "0").fillna(50.0).assign(ward=7)
    table.to_csv("west.csv", index=False)
    said = succeed("fit", "west.csv", "-k", 1, "--epsilon", "inf", "-o", "out")
    ids, constant = (line for line in said.stderr.splitlines() if "--drop" in line)
    assert "column 'patient_id' of west.csv is named like an id and has whole numbers" in ids
    assert "--drop patient_id" in ids
    assert "column 'ward' of west.csv is constant" in constant
    record = Path("out/run.json").read_text() + Path("out/report.html").read_text()
    assert "named like" not in record
    drop = ("--drop", "patient_id", "--drop", "ward")
    said = succeed("fit", "west.csv", "-k", 1, "--epsilon", "inf", *drop, "-o", "less")
    assert "--drop" not in said.stderr


def test_a_study_takes_its_columns_and_rules_from_a_code_book(wards: Path):
    words = ("--name", "trial", "--silos", "north,south", "-k", 2, "--epsilon", 4)
    succeed("study", "init", *words, "--codebook", "codebook.toml")
    shown = json.loads(succeed("study", "show", "study.toml", "--json").stdout)
    assert shown["columns"][:4] == ["age", "sex=F", "sex=M", "sex=other"]
    assert shown["columns_of_tables"] == ["age", "sex", "smoker", "seen", "cd4"]
    changed = FILLED.replace("missing = 350", "missing = 351")
    Path("other.toml").write_text(changed)
    succeed("study", "init", "other-study.toml", *words, "--codebook", "other.toml")
    other = json.loads(succeed("study", "show", "other-study.toml", "--json").stdout)
    assert other["hash"] != shown["hash"]
