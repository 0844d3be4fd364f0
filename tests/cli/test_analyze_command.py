"""`fedpower analyze` computes from a fit's covariance, charges nothing and reads no row unless asked to."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed

from fedpower import load
from fedpower.analysis import Regression

FILES = ("north.csv", "south.parquet", "east.csv")
ANALYSES = {
    "factor": ("factor", "-k", 1),
    "regression": ("regress", "--target", "hdl", "--predictors", "age,bmi"),
    "adjusted": ("adjust", "-k", 2, "--covariates", "age"),
    "monitor": ("monitor", "-k", 2),
    "correlation": ("correlate",),
    "means": ("means", "-k", 1, "--null", "age=1", "--null", "bmi=1"),
    "ranking": ("ranking", "--method", "bradley-terry"),
}
ITEMS = """format = "fedpower-codebook/2"
[rules]
when = "drop"
winner = { items = ["a", "b", "c"], against = "loser" }
"""
GAMES = "winner,loser,when\na,b,day\nb,c,day\na,c,day\nc,a,day\nb,a,day\na,b,day\n"


@pytest.fixture
def place(here: Path) -> Path:
    succeed("fit", *FILES, "--epsilon", "inf", "--solver", "upload", "-o", "covariance")
    return here


def test_every_analysis_is_printed_told_and_kept(place):
    Path("items.toml").write_text(ITEMS)
    Path("games.csv").write_text(GAMES)
    words = ("--codebook", "items.toml", "--epsilon", "inf", "--solver", "upload", "-o", "games")
    succeed("fit", "games.csv", *words)
    for kind, words in ANALYSES.items():
        release = "games" if kind == "ranking" else "covariance"
        said = succeed("analyze", words[0], release, *words[1:], "-o", kind).stdout
        assert f"Report: {kind}/report.html" in said
        assert "NOT PRIVATE" in said
        told = json.loads(succeed("analyze", words[0], release, *words[1:], "--json").stdout)
        assert told["analysis"] == kind
        assert told.items() >= json.loads(Path(kind, "analysis.json").read_text()).items()
        assert Path(kind, "privacy.txt").exists()
    assert told["rank"] == [1, 2, 3]


def test_the_numbers_are_the_estimators_and_new_rows_are_flagged_where_they_are(place):
    words = ("analyze", "regress", "covariance", "--target", "hdl", "--json")
    told = json.loads(succeed(*words).stdout)
    assert told["coef"] == Regression("hdl").fit(load("covariance").release).coef_.tolist()
    assert len(json.loads(succeed(*words, "-k", 2).stdout)["coef"]) == 4
    flagged = ("--rows", "south.parquet", "--flags", "flags.csv")
    said = succeed("analyze", "monitor", "covariance", "-k", 2, *flagged)
    with Path("flags.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 50
    assert f"{sum(row['flag'] == '1' for row in rows)} of 50 rows exceed a limit" in said.stderr
    assert np.isfinite([float(row["t2"]) for row in rows]).all()


RATINGS = """format = "fedpower-codebook/2"
[rules]
user = "person"
film = "item"
stars = { kind = "rating", range = [1, 5], items = ["alien", "brazil", "casablanca"] }
"""


@pytest.mark.slow
def test_empty_cells_are_completed_where_they_are(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("ratings.toml").write_text(RATINGS)
    rng = np.random.default_rng(1)
    for place, name in enumerate(("north", "south")):
        given = [
            f"{name}-{user},{film},{rng.integers(1, 6)}"
            for user in range(50)
            for film in ("alien", "brazil", "casablanca")
            if film == "alien" or (user + place) % 2
        ]
        Path(f"{name}.csv").write_text("\n".join(["user,film,stars", *given]) + "\n")
    terms = ("--epsilon", "inf", "--no-center", "--codebook", "ratings.toml", "--solver", "upload")
    said = succeed("fit", "north.csv", "south.csv", *terms, "-o", "covariance").stdout
    assert "2 silos, 100 persons, 6 columns." in said
    asked = ("--rows", "north.csv", "--filled", "filled.csv")
    said = succeed("analyze", "complete", "covariance", "-k", 1, *asked, "-o", "completion")
    assert "Predicted 50 empty cells of 50 persons: filled.csv" in said.stderr
    with Path("filled.csv").open() as stream:
        rows = list(csv.DictReader(stream))
    assert {row["user"] for row in rows} == {f"north-{user}" for user in range(0, 50, 2)}
    assert {row["item"] for row in rows} == {"brazil", "casablanca"}
    for row in rows:
        assert 1 <= float(row["low"]) <= float(row["prediction"]) <= float(row["high"]) <= 5
    assert Path("completion", "loadings.csv").exists()
    refused = run("analyze", "complete", "covariance", "-k", 1, "--filled", "more.csv")
    assert refused.exit_code == 2
    assert "--rows and --filled must go together" in refused.stderr


def test_a_covariance_of_persons_protects_persons(place):
    rows = np.random.default_rng(0).normal(size=(600, 2))
    lines = [f"{a},{b},P{row // 3}" for row, (a, b) in enumerate(rows)]
    Path("visits.csv").write_text("\n".join(["a,b,patient", *lines]) + "\n")
    words = ("fit", "visits.csv", "--epsilon", 1, "--row-norm", 3, "--unit", "patient")
    said = succeed(*words, "-o", "persons").stdout
    assert "1 silo, 200 persons, 2 columns." in said
    assert "per person" in said
    release = load("persons").release
    assert release.silo_sizes == {"visits": 200}
    assert release.feature_names == ("a", "b")
