"""`fedpower inspect` and rules on the command line: what an owner sees, and what may be sent."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hospitals import run, succeed

from fedpower import CodeBook, load

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


def test_numbers_that_stand_for_missing_cells_are_named(tmp_path):
    table, rng = ward(1)[["age"]].fillna(40), np.random.default_rng(0)
    table["lab"], table["sex"], table["scale"] = 5 + rng.random((300, 1)), 1.0, 0
    table.loc[:150, ["sex", "scale"]] = 2, 1
    for place, codes in enumerate([(999, 99.99, 9, -1), (-1, 99.99, 9, -1), (9999, 99.99, 9, -1)]):
        table.loc[10 * place : 10 * place + 9] = codes
    table.to_csv(tmp_path / "t.csv", index=False)
    (columns,) = json.loads(succeed("inspect", str(tmp_path / "t.csv"), "--json").stdout)["files"].values()
    doubts = {each["name"]: [doubt for doubt in each["doubts"] if "code" in doubt] for each in columns}
    ages = [f"{code} in 10 cells: perhaps a code for missing" for code in (9999, 999, -1)]
    assert doubts == {
        "age": ages,
        "lab": ["99.99 in 30 cells: perhaps a code for missing"],
        "sex": ["9 in 30 cells: perhaps a code for missing"],
        "scale": [],
    }


def test_an_owner_sees_types_missing_cells_levels_and_what_to_doubt(wards):
    columns = json.loads(succeed("inspect", "north.csv", "--json").stdout)["files"]["north.csv"]
    found = {each["name"]: each for each in columns}
    types = ["number", "number", "text", "yes/no", "date", "number"]
    assert [each["type"] for each in found.values()] == types
    table = ward(1)
    assert found["age"]["n_missing"] == int(table["age"].isna().sum())
    assert found["cd4"]["n_odd"] == int((table["cd4"] == ".").sum())
    assert found["sex"]["levels"] == table["sex"].value_counts().to_dict()
    assert found["patient_id"]["doubts"] == ["named like an id", "different in every row"]
    shown = succeed("inspect", "north.csv").stdout
    assert "3 levels" in shown
    assert shown.startswith("north.csv (300 rows), 6 columns\n")
    both = succeed("inspect", "north.csv", "south.parquet").stdout
    assert both.startswith("north.csv (300 rows) and south.parquet (400 rows), 6 columns\n")
    assert both.count("smoker") == 1


def test_what_differs_between_files_of_equal_columns_is_shown_by_file(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    for name, unit, n_odd in (("north", 1, 7), ("south", 2.2, 5)):
        table = pd.DataFrame({"weight": unit * rng.uniform(40, 140, 300), "lab": rng.uniform(4, 9, 300)})
        table.loc[: n_odd - 1, "lab"] = 9999
        table.to_csv(f"{name}.csv", index=False)
    lines = " ".join(succeed("inspect", "north.csv", "south.csv").stdout.split())
    assert "in south.csv, 1" in lines[lines.index("max 30") :]
    assert "in north.csv: units?" in lines
    assert "9999 in 7 cells: perhaps a code for missing (north.csv); 9999 in 5" in lines.replace(" lab", "")
    assert lines.count("units?") == 1


OPEN = '{ kind = "" }  # fill in its kind, or levels\n'
NUMBER = '{ kind = "number", missing = "offset" }\n'
RULES_OF_TEXT = (
    '\npatient_id = { kind = "drop" }  # named like an id; if it is a measurement, give its kind\n'
    f"age = {OPEN}sex = {OPEN}smoker = {OPEN}seen = {OPEN}cd4 = {OPEN}"
)


def drafted(name: str, *words: str) -> str:
    succeed("inspect", name, "--draft", "draft.toml", "--force", *words)
    return Path("draft.toml").read_text()


def test_a_draft_has_names_and_stored_types_alone(wards):
    """Text has no types; a Parquet file tells numbers, and its texts may be anything."""
    assert drafted("north.csv").endswith(f"[rules]{RULES_OF_TEXT}")
    typed = RULES_OF_TEXT.replace(f"age = {OPEN}", f"age = {NUMBER}")
    assert drafted("south.parquet").endswith(f"[rules]{typed}")
    succeed("inspect", "south.parquet", "north.csv", "--draft", "both.toml")
    assert Path("both.toml").read_text() == drafted("south.parquet")
    said = run("fit", "north.csv", "-k", 1, "--epsilon", "inf", "--codebook", "both.toml")
    assert said.exit_code == 2
    assert "the rules of 'sex', 'smoker', 'seen', 'cd4' in both.toml must have a kind" in said.stderr
    assert said.stderr.count("levels") == 1


def _to_sqlite(table: pd.DataFrame, path: Path) -> None:
    with sqlite3.connect(path.with_suffix(".db")) as connection:
        table.to_sql("rows", connection, index=False, if_exists="replace")
    connection.close()
    address = f"sqlite:///{path.with_suffix('.db')}"
    path.write_text(f'[data]\nquery = "SELECT * FROM rows"\ndatabase = "{address}"\n')


WRITERS = {
    "csv": lambda table, path: table.to_csv(path, index=False),
    "parquet": lambda table, path: table.to_parquet(path, index=False),
    "toml": _to_sqlite,
}


@pytest.mark.parametrize("column", ["smoker", "sex", "seen", "note"])
@pytest.mark.parametrize("kind", WRITERS)
def test_tables_that_differ_in_one_cell_have_the_same_draft(kind, column, wards):
    """Among yes and no, among levels, among dates, and in a column with nothing else."""
    table = ward(1).assign(note=pd.Series([None] * 300, dtype=str))
    drafts = []
    for cell in (table.loc[7, column], "one word"):
        table.loc[7, column] = cell
        WRITERS[kind](table, Path(f"ward.{kind}").absolute())
        drafts.append(drafted(f"ward.{kind}"))
    assert drafts[0] == drafts[1]


def test_a_draft_from_rows_says_in_its_first_line_that_it_is_confidential(wards):
    said = drafted("north.csv", "--from-rows")
    assert said.splitlines()[0] == (
        "# Confidential: drafted from rows. Do not send; propose a code book from what you know instead."
    )
    assert 'smoker = { kind = "yes/no", missing = "offset" }' in said
    assert "sex = { levels = [] }" in said
    shown = succeed("inspect", "north.csv", "--draft", "other.toml", "--from-rows").stdout
    assert "It is confidential, as it comes from rows." in shown
    assert run("inspect", "north.csv", "--from-rows").exit_code == 2


def test_a_query_of_duckdb_tells_its_types(wards):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("adbc_driver_duckdb")
    with duckdb.connect("ward.duckdb") as connection:
        connection.execute("CREATE TABLE rows (age DOUBLE, smoker BOOLEAN, seen DATE, sex VARCHAR)")
        connection.execute("INSERT INTO rows VALUES (1.5, true, '2020-01-31', 'F')")
    Path("ward.toml").write_text('[data]\nquery = "SELECT * FROM rows"\ndatabase = "duckdb:///ward.duckdb"\n')
    assert drafted("ward.toml").split("[rules]\n")[1] == (
        f'age = {NUMBER}smoker = {{ kind = "yes/no", missing = "offset" }}\n'
        'seen = { kind = "date", origin = "", unit = "days", missing = "offset" }  '
        f"# fill in the day that counts as 0\nsex = {OPEN}"
    )


GERMAN = "größe;gewicht;ort\n1,75;70,5;Köln\n1,62;;München\n1,80;81,25;Köln\n"


@pytest.mark.parametrize("said", [(), ("--separator", ";", "--decimal", ",")])
def test_decimal_commas_and_other_encodings_are_read(said, wards):
    Path("ward.csv").write_bytes(GERMAN.encode("latin-1"))
    words = ("--encoding", "latin-1", *said)
    columns = json.loads(succeed("inspect", "ward.csv", "--json", *words).stdout)["files"]["ward.csv"]
    names = ("name", "type", "low", "high", "n_missing")
    assert [tuple(each[name] for name in names) for each in columns] == [
        ("größe", "number", 1.62, 1.8, 0),
        ("gewicht", "number", 70.5, 81.25, 1),
        ("ort", "text", None, None, 0),
    ]
    assert columns[2]["levels"] == {"Köln": 2, "München": 1}
    assert "größe" in drafted("ward.csv", *words)


def test_tables_go_from_rules_to_scores_with_commands_alone(wards):
    files = ("north.csv", "south.parquet")
    succeed("fit", "--prepare-only", *files, "--epsilon", 4, "--codebook", "codebook.toml", "-o", "full.toml")
    full = CodeBook.load("full.toml")
    assert full.columns == ("age", "sex=F", "sex=M", "sex=other", "smoker", "seen", "cd4")
    assert full.rules == CodeBook.load("codebook.toml").rules
    words = ("-k", 2, "--epsilon", 4, "--codebook", "full.toml", "-o", "result")
    said = succeed("fit", *files, *words)
    assert "named like an id" not in said.stderr
    assert "7 columns" in said.stdout
    rules = load("result").record.table_rules
    assert rules is not None
    assert rules.rules[0].missing == pytest.approx(float(full.offset[0]))
    succeed("transform", "result", "north.csv", "--id-column", "patient_id", "-o", "scores.csv")
    scores = pd.read_csv("scores.csv")
    assert scores["patient_id"].tolist() == ward(1)["patient_id"].tolist()
    assert np.isfinite(scores[["pc1", "pc2"]].to_numpy()).all()
    shown = succeed("plan", *files, "-k", 2, "--epsilon", 4, "--codebook", "codebook.toml")
    assert "700 rows, 7 columns" in shown.stdout


def test_transform_tells_of_cells_outside_their_range(wards):
    files = ("north.csv", "south.parquet", "--codebook", "codebook.toml")
    succeed("fit", *files, "-k", 1, "--epsilon", "inf", "-o", "out")
    other = pd.read_csv("north.csv")
    other.assign(age=2.2 * other["age"]).to_csv("other.csv", index=False)
    said = succeed("transform", "out", "other.csv", "--id-column", "patient_id", "-o", "scores.csv").stderr
    assert "cells of 'age' in other.csv are outside its range from 0 to 120 and count as its ends" in said
    assert "rows of other.csv have none of the levels of column 'sex'" in said
    assert "are outside" not in succeed("transform", "out", "north.csv", "-o", "own.csv").stderr


def test_all_problems_of_all_files_are_one_list_and_no_cell_is_in_it(wards):
    said = run("fit", "north.csv", "south.parquet", "-k", 1, "--epsilon", 1, "-o", "out")
    assert said.exit_code == 2
    assert said.stderr.splitlines() == [
        "Error: cells of 4 columns in 2 tables need rules:",
        "  text: 'sex', 'smoker', 'cd4'",
        "  dates: 'seen'",
        "Draft them with: fedpower inspect north.csv south.parquet --draft codebook.toml",
        "Every problem: add --verbose",
    ]
    said = run("fit", "north.csv", "south.parquet", "-k", 1, "--epsilon", 1, "-o", "out", "--verbose")
    lines = said.stderr.splitlines()[4:]
    assert [line for line in lines if not line.startswith("  ")] == ["north.csv:", "south.parquet:"]
    assert len(lines) == 10
    assert "secret" not in said.stderr
    assert not Path("out").exists()


def test_ids_and_constants_are_pointed_out_before_a_fit_and_dropped_on_request(wards):
    table = ward(3)[["patient_id", "age", "cd4"]].replace(".", "0").fillna(50.0).assign(ward=7)
    table.to_csv("west.csv", index=False)
    said = succeed("fit", "west.csv", "-k", 1, "--epsilon", "inf", "-o", "out")
    assert said.stderr == (
        "Note: 'patient_id' is named like an id and different in every row; 'ward' is constant; "
        "to leave such columns out, add --drop patient_id --drop ward\n"
    )
    record = Path("out/run.json").read_text() + Path("out/report.html").read_text()
    assert "named like" not in record
    drop = ("--drop", "patient_id", "--drop", "ward")
    said = succeed("fit", "west.csv", "-k", 1, "--epsilon", "inf", *drop, "-o", "less")
    assert "--drop" not in said.stderr


def test_a_study_takes_its_columns_and_rules_from_a_code_book(wards):
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
