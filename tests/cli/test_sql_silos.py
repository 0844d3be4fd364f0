"""A silo in a database on the command line: north.toml beside files, with the same results."""

import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from hospitals import COLUMNS, EXACT, PRIVATE, parts, run, succeed


@pytest.fixture
def ward(here: Path) -> Path:
    """North's rows in a SQLite file, and the file that names them."""
    (here / "ward").mkdir()
    with sqlite3.connect(here / "ward" / "north.db") as connection:
        connection.execute(f"CREATE TABLE visits ({', '.join(COLUMNS)}, who TEXT)")
        rows = [(*row, "x") for row in parts()["north"].tolist()]
        connection.executemany("INSERT INTO visits VALUES (?, ?, ?, ?, ?, ?)", rows)
    connection.close()
    path = here / "ward" / "north.toml"
    path.write_text(
        '[data]\ndatabase = "sqlite:///north.db"\n'
        f'query = """\nSELECT {", ".join(COLUMNS)}\nFROM visits\n"""\n'
    )
    return path


def test_a_query_gives_what_the_file_gives(ward: Path, here: Path) -> None:
    succeed("fit", ward, "south.parquet", *EXACT, "-o", "sql")
    files, sql = (json.loads((here / name / "run.json").read_text()) for name in ("model", "sql"))
    assert sql["silos"][0]["source"] == str(ward)
    assert [silo["rows"] for silo in sql["silos"]] == [silo["rows"] for silo in files["silos"]]
    scores = [succeed("transform", *words).stdout for words in (("sql", ward), ("model", "north.csv"))]
    one, other = (np.loadtxt(text.splitlines(), delimiter=",", skiprows=1) for text in scores)
    np.testing.assert_allclose(one, other, rtol=1e-12, atol=1e-12)
    planned = json.loads(succeed("plan", ward, "south.parquet", "-k", 2, "--epsilon", 1, "--json").stdout)
    assert planned["silos"] == {"north": 60, "south": 50}


def test_columns_can_be_dropped_and_silos_split_in_a_query(ward: Path, here: Path) -> None:
    ward.write_text('[data]\ndatabase = "sqlite:///north.db"\nquery = "SELECT * FROM visits"\n')
    refused = run("fit", ward, "south.parquet", *EXACT, "-o", "a")
    assert refused.exit_code == 2
    succeed("fit", ward, "south.parquet", "--drop", "who", *EXACT, "-o", "b")
    succeed("fit", ward, "--groups", "who", *EXACT, "-o", "c")
    (silo,) = json.loads((here / "c" / "run.json").read_text())["silos"]
    assert (silo["name"], silo["rows"]) == ("x", 60)


def test_an_unchanged_table_gets_its_release_again_and_a_changed_one_must_be_declared(
    ward: Path, here: Path
) -> None:
    for silo in ("north", "south"):
        succeed("ledger", "create", here / f"{silo}.ledger", "--epsilon", 3, "--delta", 1e-4)

    words = (ward, "south.parquet", *PRIVATE, "--delta", "1e-6", "--ledgers", here)

    def fit(output: str, *more: str) -> list[str]:
        succeed("fit", *words, *more, "-o", output)
        reported = json.loads(succeed("ledger", "show", here / "north.ledger", "--json").stdout)
        return [f"{reported['left']}", (here / output / "components.csv").read_text()]

    first = fit("one")
    with sqlite3.connect(ward.parent / "north.db") as connection:
        connection.execute("CREATE TABLE turned AS SELECT * FROM visits ORDER BY bmi DESC")
        connection.execute("DROP TABLE visits")
        connection.execute("ALTER TABLE turned RENAME TO visits")
    assert fit("two") == first
    with sqlite3.connect(ward.parent / "north.db") as connection:
        connection.execute("UPDATE visits SET age = age + 1 WHERE rowid = 1")
    connection.close()
    refused = run("fit", *words, "-o", "three")
    assert refused.exit_code == 2
    assert "'north' must be those that its ledger knows as version '1', got others" in refused.stderr
    third = fit("three", "--data-version", "north=2")
    assert third[0] != first[0]
    assert third[1] != first[1]


def test_a_private_fit_makes_a_single_pass(ward: Path, here: Path) -> None:
    succeed("ledger", "create", here / "north.ledger", "--epsilon", 3, "--delta", 1e-4)
    columns = ", ".join(f"random() / 1e19 AS {name}" for name in COLUMNS)  # other rows in every pass
    ward.write_text(f'[data]\ndatabase = "sqlite:///north.db"\nquery = "SELECT {columns} FROM visits"\n')
    succeed("fit", ward, *PRIVATE, "--delta", "1e-6", "--ledgers", here, "-o", "result")


@pytest.mark.parametrize("command", ["fit", "plan"])
def test_a_query_that_cannot_be_run_is_one_sentence(ward: Path, command: str) -> None:
    ward.write_text(ward.read_text().replace("visits", "vists"))
    words = (*EXACT, "-o", "a") if command == "fit" else ("-k", 2, "--epsilon", 1)
    refused = run(command, ward, *words)
    assert refused.exit_code == 2
    assert refused.stderr.count("\n") == 1
    assert f"{ward} must be a query that its database can run, got 'no such table" in (refused.stderr)
