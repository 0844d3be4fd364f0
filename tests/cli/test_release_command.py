"""`fedpower release` writes what `fedpower fit` pays for, once."""

import json
from pathlib import Path

import numpy as np
import pytest
from hospitals import run, succeed, write_hospitals

from fedpower import FedPCA, read_moment, read_result
from fedpower.privacy.ledger import Ledger

FILES = ("north.csv", "south.parquet", "east.csv")
TERMS = ("--epsilon", "1", "--row-norm", "10")


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_hospitals(tmp_path)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_release_and_a_fit_share_their_charge_and_their_numbers(place: Path):
    for name in ("north", "south", "east"):
        succeed("ledger", "create", f"ledgers/{name}.ledger", "--epsilon", 2, "--delta", "1e-6")
    booked = ("--ledgers", "ledgers", "--delta", "1e-6")
    said = succeed("release", *FILES, *TERMS, *booked, "-o", "moment").stdout
    assert "analyse it with `fedpower analyze ANALYSIS moment`" in said
    assert "the published moment and all that is computed from it" in said
    succeed("fit", *FILES, *TERMS, *booked, "-k", 2, "--solver", "moment", "-o", "fitted")
    with pytest.warns(UserWarning, match="no component is determined"):
        model = FedPCA(2).fit_moment("moment")
    assert np.array_equal(model.components_, read_result("fitted").components)
    with Ledger.open("ledgers/north.ledger") as ledger:
        assert ledger.spent().n_releases == 1
    assert sorted(each.name for each in Path("moment").iterdir()) == [
        "moment.npz", "privacy.txt", "report.html", "run.json",
    ]  # fmt: skip


def test_a_release_that_is_told_nothing_leaves_its_code_book(place: Path):
    told = json.loads(succeed("release", *FILES, "--epsilon", 4, "-o", "moment", "--json").stdout)
    assert told["moment"] == "moment"
    assert told["privacy"]["private"]
    assert read_moment("moment").code_book is not None
    assert Path("moment/codebook.toml").exists()


def test_an_earlier_moment_is_replaced_only_where_that_is_said(place: Path):
    words = ("release", *FILES, "--epsilon", "inf", "-o", "moment")
    assert "NOT PRIVATE" in succeed(*words).stdout
    refused = run(*words)
    assert refused.exit_code == 2
    assert "or pass --force to replace" in refused.stderr
    succeed(*words, "--force")


def test_a_fit_on_the_command_line_keeps_its_moment_if_told(place: Path):
    succeed("fit", *FILES, "-k", 2, "--epsilon", "inf", "--solver", "moment", "-o", "fitted")
    assert read_moment("fitted").n_features == 5
    succeed("fit", *FILES, "-k", 2, "--epsilon", "inf", "-o", "fitted", "--force")
    assert not Path("fitted/moment.npz").exists()


def test_a_release_by_persons_protects_persons(place: Path):
    rows = np.random.default_rng(0).normal(size=(600, 2))
    lines = [f"{a},{b},P{row // 3}" for row, (a, b) in enumerate(rows)]
    Path("visits.csv").write_text("\n".join(["a,b,patient", *lines]) + "\n")
    words = ("release", "visits.csv", "--epsilon", 1, "--row-norm", 3, "--unit", "patient")
    said = succeed(*words, "-o", "persons").stdout
    assert "visits (200 persons); 200 persons in all" in said
    assert "one person" in said
    moment = read_moment("persons")
    assert moment.silo_sizes == {"visits": 200}
    assert moment.feature_names == ("a", "b")
