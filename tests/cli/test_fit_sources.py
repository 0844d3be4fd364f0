"""`fedpower fit` and its like over folders, sheets, German text and files of other names."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, parts, run, succeed

from workbooks import write_xlsx

pytestmark = pytest.mark.usefixtures("here")
ROWS = parts()


def components(folder: str = "result") -> np.ndarray:
    with np.load(Path(folder) / "components.npz") as arrays:
        return arrays["components"]


def same_axes(one: np.ndarray, other: np.ndarray) -> None:
    """Blocks of the same rows may be added up in another order."""
    np.testing.assert_allclose(one, other, rtol=0, atol=1e-12)


def frame(name: str) -> pd.DataFrame:
    return pd.DataFrame(ROWS[name], columns=COLUMNS)


def write_parts(name: str) -> None:
    Path(name).mkdir()
    for place, part in enumerate(np.array_split(ROWS[name], 3)):
        pd.DataFrame(part, columns=COLUMNS).to_csv(f"{name}/part-000{place}.csv", index=False)


def test_every_way_to_write_the_same_rows_gives_the_same_fit() -> None:
    succeed("fit", "north.csv", "south.parquet", "east.csv", *EXACT)
    write_parts("north")
    own = frame("south").rename(columns={"bmi": "koerper"})
    own.assign(koerper=own["koerper"] / 4).to_csv("own.csv", sep=";", decimal=",", index=False)
    Path("south.toml").write_text(
        '[data]\npath = "own.csv"\n[columns]\nrename = {koerper = "bmi"}\nfactors = {bmi = 4}\n'
    )
    write_xlsx(Path("wards.xlsx"), Notes=[["x"]], east=[COLUMNS, *ROWS["east"].tolist()])
    done = succeed("fit", "north", "south.toml", "wards.xlsx#east", *EXACT, "-o", "again")
    same_axes(components("again"), components())
    assert "Silos: north (60 rows), south (50 rows), east (40 rows)" in " ".join(done.stdout.split())
    succeed("fit", "north/part-*.csv", "south.toml", "wards.xlsx#east", *EXACT, "-o", "pattern")
    same_axes(components("pattern"), components())


def test_parts_given_as_silos_of_their_own_are_noted() -> None:
    write_parts("north")
    files = sorted(map(str, Path("north").glob("*.csv")))
    noted = succeed("fit", *files, *EXACT)
    assert "part-0000.csv, part-0001.csv, ... look like parts of one table" in noted.stderr
    assert "give the folder (north=north) or the pattern in quotes" in noted.stderr
    silent = succeed("fit", "north", "east.csv", *EXACT, "-o", "one")
    assert "look like parts" not in silent.stderr


def test_what_text_files_leave_in_doubt_is_told_and_columns_are_renamed_where_they_are() -> None:
    renamed = frame("north").rename(columns={"age": "Alter, Jahre"})
    renamed.to_csv("north.csv", sep=";", decimal=",", index=False, encoding="cp1252")
    words = ("north.csv", "south.parquet", *EXACT, "--rename", "Alter, Jahre=age")
    refused = run("fit", *words)
    assert "separator" in refused.stderr
    succeed("fit", *words, "--separator", ";", "--encoding", "cp1252")
    frame("north").to_csv("plain.csv", index=False)
    succeed("fit", "north=plain.csv", "south.parquet", *EXACT, "-o", "plain")
    same_axes(components(), components("plain"))
    said = succeed("plan", *words[:2], "-k", 2, "--epsilon", 1, "--separator", "semicolon",
                   "--rename", "Alter, Jahre=age", "--json")  # fmt: skip
    assert json.loads(said.stdout)["n_features"] == len(COLUMNS)
    scores = succeed("transform", "plain", "north.csv", "--separator", ";", "--decimal", ",",
                     "--rename", "Alter, Jahre=age").stdout  # fmt: skip
    assert scores == succeed("transform", "plain", "plain.csv").stdout
    succeed("study", "init", "study.toml", "--name", "s", "--silos", "a,b", "-k", 1, "--epsilon", 1,
            "--normalize", "--columns-of", "north.csv", "--separator", ";",
            "--rename", "Alter, Jahre=age")  # fmt: skip
    assert '"age"' in Path("study.toml").read_text()


def test_groups_are_told_apart_in_renamed_text_too() -> None:
    everybody = pd.read_csv("everybody.csv").rename(columns={"site": "haus"})
    everybody.to_csv("german.csv", sep=";", decimal=",", index=False)
    succeed("fit", "german.csv", "--rename", "haus=site", "--groups", "site", *EXACT)
    succeed("fit", "everybody.csv", "--groups", "site", *EXACT, "-o", "plain")
    same_axes(components(), components("plain"))


def test_the_promise_is_four_lines_unless_more_is_asked_for() -> None:
    brief = succeed("fit", "north.csv", "east.csv", *PRIVATE).stdout
    whole = succeed("fit", "north.csv", "east.csv", *PRIVATE, "--verbose", "-o", "more").stdout
    assert "Assumptions:" not in brief
    assert "see privacy.txt" in brief
    assert "Assumptions:" in whole
    assert Path("result/privacy.txt").read_text().startswith("Private: one row of one silo.\nNeighbours")
    assert "Assumptions:" in Path("result/privacy.txt").read_text()
