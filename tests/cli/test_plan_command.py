"""`fedpower plan`: a table or JSON from public facts, with nothing charged."""

import json
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from fedpower.cli.plan import plan_command
from fedpower.errors import FedpowerError
from fedpower.privacy import Ledger

FACTS = ["--features", "30", "--silos", "4x5000", "-k", "3", "--epsilon", "1"]


def invoke(*words: str) -> str:
    result = CliRunner().invoke(plan_command, list(words), catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_a_table_tells_every_way_and_the_one_to_be_taken() -> None:
    out = invoke(*FACTS, "--gap", "0.05")
    assert "→" in out
    assert "4 silos, 20,000 rows of 30 columns; epsilon=1" in out
    for word in ("moment", "fedpower", "step", "paper", "predicted"):
        assert word in out


def test_json_holds_the_same() -> None:
    record = json.loads(invoke(*FACTS, "--spectrum", "0.2,0.1,0.08,0.01", "--json"))
    assert record["n_features"] == 30
    assert sum(way["chosen"] for way in record["ways"]) == 1
    assert all(way["error"] > 0 for way in record["ways"])
    exact = json.loads(invoke(*FACTS[:-1], "inf", "--json"))
    assert exact["epsilon"] == "inf"


def test_a_plan_takes_the_options_that_its_own_sentences_name() -> None:
    words = ["--aggregation", "secure", "--colluders", "2", "--min-silos", "3", "--json"]
    assert sum(way["chosen"] for way in json.loads(invoke(*FACTS, *words))["ways"]) == 1
    steps = invoke(*FACTS, "--noise", "step", "--spectrum", "0.2,0.1,0.08,0.01")
    assert "--noise moment is predicted to be more accurate" in steps
    uneven = ["--features", "30", "--silos", "20000,1,1,1", "-k", "3", "--epsilon", "1"]
    assert "silo-2 (1 rows), silo-3 (1 rows), silo-4 (1 rows)" in invoke(*uneven)
    assert "(1 rows)" not in invoke(*uneven, "--weights", "noise")


def test_files_tell_sizes_and_columns(tmp_path: Path) -> None:
    for name, rows in (("north", 50), ("south", 70)):
        np.save(tmp_path / f"{name}.npy", np.ones((rows, 6)))
    files = [str(tmp_path / f"{name}.npy") for name in ("north", "south")]
    record = json.loads(invoke(*files, "-k", "2", "--epsilon", "1", "--json"))
    assert record["silos"] == {"north": 50, "south": 70}
    assert record["n_features"] == 6


def test_a_ledger_is_asked_and_not_charged(tmp_path: Path) -> None:
    path = tmp_path / "north.ledger"
    Ledger.create(path, epsilon=2.0, delta=1e-6).close()
    before = path.read_bytes()
    record = json.loads(invoke(*FACTS, "--ledger", str(path), "--json"))
    (after,) = record["ledgers"].values()
    assert after["fits"]
    assert 0 < after["left"] < 2
    assert path.read_bytes() == before
    assert "too little" in invoke(*FACTS[:-1], "5", "--ledger", str(path))


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["-k", "3", "--epsilon", "1"], "must know the silos' sizes"),
        ([*FACTS, "--gap", "0.1", "--spectrum", "1"], "must not be given together"),
        ([*FACTS, "--gap", "0.9"], "an eigengap must lie"),
        ([*FACTS, "--spectrum", "a,b"], "--spectrum must be"),
        (
            ["--features", "3", "--silos", "0", "-k", "1", "--epsilon", "1"],
            "--silos must be numbers of rows",
        ),
        (["x.npy", *FACTS], "FILES must stand alone"),
    ],
)
def test_wrong_uses_are_refused_in_one_sentence(words: list[str], sentence: str) -> None:
    with pytest.raises(FedpowerError, match=sentence):
        CliRunner().invoke(plan_command, words, catch_exceptions=False)
