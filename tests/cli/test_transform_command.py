"""`fedpower transform` gives FedPCA's scores in every format, block by block."""

from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet
import pytest
from hospitals import COLUMNS, EXACT, parts, run, succeed, table_of

from fedpower import FedPCA


@pytest.fixture
def scores(here: Path) -> np.ndarray:
    succeed("fit", "north.csv", "south.parquet", *EXACT, "-o", "out")
    held = parts()
    model = FedPCA(2, epsilon=float("inf"), random_state=1)
    model.fit_silos({"north": held["north"], "south": held["south"]})
    return model.transform(held["east"])


@pytest.mark.parametrize("block", [7, 1000])
@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_every_format_holds_the_estimators_scores(
    scores: np.ndarray, ending: str, block: int, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: block)
    succeed("transform", "out", "east.csv", "-o", f"scores.{ending}")
    if ending == "npy":
        found = np.load("scores.npy")
    else:
        read = pyarrow.csv.read_csv if ending == "csv" else pyarrow.parquet.read_table
        read_back = read(f"scores.{ending}")
        assert read_back.column_names == ["pc1", "pc2"]
        found = np.column_stack([column.to_numpy() for column in read_back.columns])
    np.testing.assert_allclose(found, scores, atol=1e-12)


def test_stdout_gets_csv(scores: np.ndarray):
    lines = succeed("transform", "out", "east.npy").stdout.splitlines()
    assert lines[0] == "pc1,pc2"
    found = np.array([[float(cell) for cell in line.split(",")] for line in lines[1:]])
    np.testing.assert_allclose(found, scores, atol=1e-12)


def test_columns_are_matched_by_name_and_others_left_out(scores: np.ndarray):
    shuffled = table_of(parts()["east"], COLUMNS[::-1])
    pyarrow.csv.write_csv(shuffled.append_column("id", [list(range(40))]), "ids.csv")
    by_name = succeed("transform", "out", "ids.csv").stdout
    assert by_name == succeed("transform", "out", "east.csv").stdout


def test_a_failure_half_way_leaves_no_file(scores: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: 2)
    before = sorted(Path().iterdir())
    assert run("transform", "out", "holes.csv", "-o", "scores.csv").exit_code == 2
    assert sorted(Path().iterdir()) == before


def test_a_file_is_replaced_only_by_force(scores: np.ndarray):
    succeed("transform", "out", "east.csv", "-o", "scores.csv")
    assert run("transform", "out", "east.csv", "-o", "scores.csv").exit_code == 2
    succeed("transform", "out", "east.csv", "-o", "scores.csv", "--force")


@pytest.mark.parametrize("plot", ["east.svg", "nowhere/east.svg"])
def test_a_picture_that_cannot_be_written_names_its_own_option(scores: np.ndarray, plot: str):
    Path("east.svg").write_text("an earlier one")
    found = run("transform", "out", "east.csv", "-o", "scores.csv", "--plot", plot)
    assert found.exit_code == 2
    assert plot in found.stderr
    assert not Path("scores.csv").exists()


IDS = [f"p,{number}" for number in range(40)]


def with_ids(path: str, ids: object = IDS) -> None:
    """Write the east's rows with a column of ids in the middle, and one of text that is nothing."""
    labelled = table_of(parts()["east"], COLUMNS[::-1]).add_column(2, "patient_id", [ids])
    labelled = labelled.append_column("ward", [["a b"] * 40])
    if path.endswith(".csv"):
        pyarrow.csv.write_csv(labelled, path)
    else:
        pyarrow.parquet.write_table(labelled, path)


@pytest.mark.parametrize("given", ["ids.csv", "ids.parquet"])
@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_an_id_column_comes_first_and_is_no_feature(
    scores: np.ndarray, given: str, ending: str, monkeypatch: pytest.MonkeyPatch
):
    with_ids(given)
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: 7)
    succeed("transform", "out", given, "--id-column", "patient_id", "-o", f"scores.{ending}")
    read = pyarrow.csv.read_csv if ending == "csv" else pyarrow.parquet.read_table
    found = read(f"scores.{ending}")
    assert found.column_names == ["patient_id", "pc1", "pc2"]
    assert found["patient_id"].to_pylist() == IDS
    np.testing.assert_allclose(found["pc2"], scores[:, 1], atol=1e-12)


def test_ids_keep_their_type_and_stdout_has_them_too(scores: np.ndarray):
    with_ids("ids.parquet", list(range(40)))
    succeed("transform", "out", "ids.parquet", "--id-column", "patient_id", "-o", "s.parquet")
    assert pyarrow.parquet.read_table("s.parquet")["patient_id"].to_pylist() == list(range(40))
    lines = succeed("transform", "out", "ids.parquet", "--id-column", "patient_id").stdout
    assert lines.splitlines()[0] == "patient_id,pc1,pc2"
    assert lines.splitlines()[40].startswith("39,")


def test_a_fit_without_names_takes_the_columns_beside_the_ids(scores: np.ndarray):
    succeed("fit", "north.npy", *EXACT, "-o", "nameless")
    numbered = table_of(parts()["east"]).add_column(0, "patient_id", [IDS])
    pyarrow.csv.write_csv(numbered, "ids.csv")
    succeed("transform", "nameless", "ids.csv", "--id-column", "patient_id", "-o", "scores.csv")
    plain = succeed("transform", "nameless", "east.npy").stdout.splitlines()
    found = pyarrow.csv.read_csv("scores.csv").drop_columns("patient_id")
    np.testing.assert_allclose(found["pc1"], [float(line.split(",")[0]) for line in plain[1:]])
