"""Names that a spreadsheet would run are text in every CSV file, and themselves everywhere else."""

import csv
import io
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedpower import FedPCA, read_result
from fedpower.report.export import write_loadings_csv, write_scores_csv
from fedpower.report.files import as_text
from fedpower.report.result import Scores

NAMES = ["=HYPERLINK(1)", "+cmd", "-dose", "@sum", "'=quoted", "age", "-5", "+1e3"]
SHOWN = ["'=HYPERLINK(1)", "'+cmd", "'-dose", "'@sum", "''=quoted", "age", "-5", "+1e3"]


@given(st.text())
def test_a_cell_begins_with_nothing_that_is_run_and_comes_back_by_one_apostrophe(name: str) -> None:
    shown = as_text(name)
    if shown == name:
        try:
            float(name)
        except ValueError:
            assert not name.lstrip("'").startswith(("=", "+", "-", "@", "\t", "\r"))
    else:
        assert shown == f"'{name}"


def test_numbers_stay_numbers() -> None:
    assert [as_text(cell) for cell in (-1.5, 3, None, "-1.5", "")] == [-1.5, 3, None, "-1.5", ""]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rows = np.random.default_rng(0).standard_normal((40, len(NAMES)))
    table = pd.DataFrame(rows, columns=NAMES)
    model = FedPCA(2, epsilon=float("inf")).fit_silos([table[:20], table[20:]])
    model.save(tmp_path / "out")
    return tmp_path / "out"


def test_components_and_exports_hold_such_names_as_text_and_the_result_as_they_are(folder: Path) -> None:
    with (folder / "components.csv").open(encoding="utf-8") as stream:
        header, *lines = csv.reader(stream)
    assert [line[0] for line in lines] == SHOWN
    result = read_result(folder)
    assert list(result.feature_names or ()) == NAMES
    np.testing.assert_array_equal([[float(cell) for cell in line[1:]] for line in lines], result.components.T)
    assert header == ["feature", "pc1", "pc2"]
    write_loadings_csv(result, folder / "loadings.csv")
    with (folder / "loadings.csv").open(encoding="utf-8") as stream:
        assert [line["feature"] for line in csv.DictReader(stream)] == SHOWN


def test_scores_hold_such_ids_as_text() -> None:
    stream = io.StringIO()
    frame = pl.DataFrame({"@id": ["=1+1", "-7"], "pc1": [-1.5, 2.0]})
    write_scores_csv(stream, Scores(names=("pc1",), frames=[frame], label="@id"))
    assert stream.getvalue() == "'@id,pc1\n'=1+1,-1.5\n-7,2.0\n"
