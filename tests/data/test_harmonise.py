"""A silo's own names and units become the study's before anything else, in every way of reading."""

from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from row_forms import FORMS, NAMES, forms, read_all, sample_rows
from test_bad_data import refused

from fedpower.rows.opening import Reading, open_source

ROWS = sample_rows()
TABLES = [
    name
    for name in FORMS
    if name.startswith(("pandas", "csv", "tsv", "parquet", "feather", "arrow", "polars", "xlsx"))
    or name in ("sqlite", "duckdb", "folder of csv", "pattern of parquet")
]
HARMONY: Reading = {
    "rename": {"age": "years", "dose": "age"},  # one takes the name that another had
    "factors": {"age": -2.5, "ß": 3.0},
    "offsets": {"ß": 0.25},
}


@pytest.mark.parametrize("form", forms(TABLES))
def test_every_table_is_renamed_and_converted(form: str, tmp_path: Path) -> None:
    source = open_source(FORMS[form](ROWS, tmp_path), **HARMONY)
    assert source.columns == ("years", "age", *NAMES[2:])
    expected = ROWS * [1, -2.5, 1, 1, 3.0] + [0, 0, 0, 0, 0.25]
    np.testing.assert_allclose(read_all(source, 7), expected, rtol=1e-12, atol=1e-12)
    np.testing.assert_array_equal(read_all(source.select(("ß",), extra="drop")), read_all(source)[:, 4:])


def test_empty_cells_stay_empty_and_text_has_no_unit(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n1,x\n,y\n")
    read = {"rename": {"a": "c"}, "factors": {"c": 2.0}}
    message = refused(tmp_path / "a.csv", drop=["b"], **read)
    assert "column 'c' of" in message
    assert "got a missing value (empty, null or NaN) at row 2" in message
    frame = pd.DataFrame({"a": ["x"]})
    assert "column 'a' of the data frame must hold numbers" in refused(frame, factors={"a": 2.0})


def test_unknown_names_are_refused_with_the_list() -> None:
    frame = pd.DataFrame({"gewicht_kg": [1.0], "alter": [2.0]})
    listed = "not 'gewicht_kg', 'alter'"
    assert f"rename must be of columns of the data frame, got 'gewicht', {listed}" in refused(
        frame, rename={"gewicht": "weight"}
    )
    renamed = {"gewicht_kg": "weight"}
    assert "got 'gewicht_kg', not 'weight', 'alter'" in refused(
        frame, rename=renamed, factors={"gewicht_kg": 2.2046}
    )
    assert "got 'alter' more than once" in refused(frame, rename={"gewicht_kg": "alter"})


def test_what_has_no_names_cannot_be_renamed(tmp_path: Path) -> None:
    np.save(tmp_path / "a.npy", ROWS)
    assert "must go with tables" in refused(tmp_path / "a.npy", rename={"a": "b"})
    assert "must go with tables" in refused(ROWS, factors={"a": 2.0})
    assert "rename must be a mapping from names" in refused(pd.DataFrame({"a": [1.0]}), rename=["a"])
