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


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_every_format_holds_the_estimators_scores(scores: np.ndarray, ending: str):
    succeed("transform", "out", "east.csv", "-o", f"scores.{ending}")
    if ending == "npy":
        found = np.load("scores.npy")
    else:
        read = pyarrow.csv.read_csv if ending == "csv" else pyarrow.parquet.read_table
        read_back = read(f"scores.{ending}")
        assert read_back.column_names == ["pc1", "pc2"]
        found = np.column_stack([column.to_numpy() for column in read_back.columns])
    np.testing.assert_allclose(found, scores, atol=1e-12)


@pytest.mark.parametrize("ending", ["csv", "parquet", "npy"])
def test_many_blocks_make_one_file(
    scores: np.ndarray, ending: str, monkeypatch: pytest.MonkeyPatch
):
    succeed("transform", "out", "east.csv", "-o", f"whole.{ending}")
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: 7)
    succeed("transform", "out", "east.csv", "-o", f"parts.{ending}")
    source = f"whole.{ending}", f"parts.{ending}"
    if ending == "npy":
        whole, pieces = (np.load(name) for name in source)
        np.testing.assert_allclose(whole, pieces, atol=1e-14)
    else:
        read = pyarrow.csv.read_csv if ending == "csv" else pyarrow.parquet.read_table
        whole, pieces = (read(name) for name in source)
        assert whole.num_rows == pieces.num_rows == 40
        np.testing.assert_allclose(whole["pc2"], pieces["pc2"], atol=1e-14)


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


def test_a_missing_column_is_refused(scores: np.ndarray):
    pyarrow.csv.write_csv(table_of(parts()["east"], COLUMNS[1:]), "less.csv")
    said = run("transform", "out", "less.csv", "-o", "scores.csv")
    assert said.exit_code == 2
    assert "'age'" in said.stderr
    assert not Path("scores.csv").exists()


def test_a_failure_half_way_leaves_no_file(scores: np.ndarray, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("fedpower.report.result.block_rows", lambda *_, **__: 2)
    before = sorted(Path().iterdir())
    assert run("transform", "out", "holes.csv", "-o", "scores.csv").exit_code == 2
    assert sorted(Path().iterdir()) == before


def test_a_file_is_replaced_only_by_force(scores: np.ndarray):
    succeed("transform", "out", "east.csv", "-o", "scores.csv")
    assert run("transform", "out", "east.csv", "-o", "scores.csv").exit_code == 2
    succeed("transform", "out", "east.csv", "-o", "scores.csv", "--force")
