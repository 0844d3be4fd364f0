"""Agreement on columns between sources, and silos inside one table."""

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet
import pytest
from row_forms import read_all

from fedpower.errors import InputError
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.source import match_columns


def frame(**columns: Any) -> pd.DataFrame:
    return pd.DataFrame(columns)


NORTH = frame(a=[1.0, 2], b=[3.0, 4], c=[5.0, 6])


def test_the_first_source_sets_the_order_and_the_others_follow() -> None:
    south = open_source(frame(c=[9.0], a=[7.0], b=[8.0]), name="silo 'south'")
    columns, sources = match_columns([open_source(NORTH), south])
    assert columns == ("a", "b", "c")
    assert read_all(sources[1]).tolist() == [[7, 8, 9]]


def test_missing_extra_and_duplicate_columns_are_refused_by_name() -> None:
    south = open_source(frame(a=[7.0], d=[8.0]), name="silo 'south'")
    north = open_source(NORTH, name="silo 'north'")
    with pytest.raises(InputError, match=r"silo 'south' must have .* without 'b', 'c';"):
        match_columns([north, south])
    with pytest.raises(InputError, match=r"silo 'south' must have only .* also 'd'; .*extra_columns=\"dro"):
        match_columns([open_source(frame(a=[1.0])), south])
    assert match_columns([north, south], columns=["a"], extra="drop")[0] == ("a",)
    with pytest.raises(InputError, match="distinct column names, got 'a' more than once"):
        match_columns([north], columns=["a", "a"], extra="drop")


def test_unnamed_sources_are_matched_by_width() -> None:
    one, two = open_source(np.ones((2, 3)), name="one"), open_source(np.ones((2, 4)), name="two")
    assert match_columns([one, one])[0] is None
    with pytest.raises(InputError, match="two must have 3 columns as one has, got 4"):
        match_columns([one, two])
    with pytest.raises(InputError, match="one must have 2 columns as one has, got 3"):
        match_columns([one], columns=["a", "b"])
    assert match_columns([one], columns=["a", "b", "c"])[0] == ("a", "b", "c")


def test_named_and_unnamed_sources_do_not_mix_until_named() -> None:
    one = open_source(np.ones((2, 3)), name="one.npy")
    with pytest.raises(InputError, match=r"got names in the data frame and none in one.npy; name"):
        match_columns([open_source(NORTH), one])
    renamed = open_source(one, columns=["c", "b", "a"])
    assert match_columns([open_source(NORTH), renamed])[0] == ("a", "b", "c")
    with pytest.raises(InputError, match="at least one source"):
        match_columns([])


PATIENTS = frame(
    id=[1, 2, 3, 4, 5],
    site=["west", "NA", "west", "east", "NA"],
    x=[1.0, 2, 3, 4, 5],
    y=[True, False, True, True, False],
)


def stored(data: pd.DataFrame, kind: str, folder: Path) -> Any:
    path = folder / f"p.{kind}"
    if kind == "csv":
        data.to_csv(path, index=False)
    elif kind == "parquet":
        data.to_parquet(path, row_group_size=2)
    elif kind == "feather":
        pyarrow.feather.write_feather(pa.Table.from_pandas(data), path, chunksize=2)
    elif kind == "arrow table":
        return pa.Table.from_pandas(data)
    else:
        return data
    return path


KINDS = ["frame", "arrow table", "csv", "parquet", "feather"]


@pytest.mark.parametrize("kind", KINDS)
def test_each_value_of_a_column_is_a_silo(kind: str, tmp_path: Path) -> None:
    silos = split_by_group(stored(PATIENTS, kind, tmp_path), "site", drop=["id"])
    assert list(silos) == ["NA", "east", "west"]
    assert [silo.n_rows for silo in silos.values()] == [2, 1, 2]
    assert silos["west"].columns == ("x", "y")
    assert read_all(silos["west"], 1).tolist() == [[1, 1], [3, 1]]
    assert read_all(silos["NA"]).tolist() == [[2, 0], [5, 0]]
    assert len({fingerprint(silo) for silo in silos.values()}) == 1  # that of the whole table
    assert read_all(silos["west"].select(("y",), extra="drop")).tolist() == [[1], [1]]


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_a_silo_is_refused(kind: str, tmp_path: Path) -> None:
    data = PATIENTS.assign(site=["west", "east", None, "west", None])
    with pytest.raises(InputError, match=r"column 'site' of .* a missing value at row 3"):
        split_by_group(stored(data, kind, tmp_path), "site", drop=["id"])


def test_a_split_needs_a_table_and_one_of_its_columns(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="got ndarray"):
        split_by_group(np.ones((2, 2)), "site")
    with pytest.raises(InputError, match="must have the column 'clinic' to split by"):
        split_by_group(PATIENTS, "clinic")
    with pytest.raises(InputError, match=r"drop must be columns of .*'label'"):
        split_by_group(PATIENTS, "site", drop=["label"])
    with pytest.raises(InputError, match="at least one column"):
        split_by_group(PATIENTS[["site"]], "site")
    with pytest.raises(InputError, match="must name silos, got 10001 values"):
        split_by_group(frame(a=np.arange(10_001), b=np.ones(10_001)), "a")


@pytest.mark.parametrize("kind", [".csv", ".parquet"])
def test_a_nameless_column_is_refused_only_where_it_is_used(kind: str, tmp_path: Path) -> None:
    table = pa.table({"": [0, 1], "a": [1.0, 2.0], "b": [3.0, 5.0]})
    path = tmp_path / f"index{kind}"
    write = pyarrow.csv.write_csv if kind == ".csv" else pyarrow.parquet.write_table
    write(table, path)
    with pytest.raises(InputError, match=r"must have a name, got one without"):
        match_columns([open_source(path)])
    columns, _ = match_columns([open_source(path, drop=[""])])
    assert columns == ("a", "b")
    columns, (chosen,) = match_columns([open_source(path, columns=["b", "a"], extra="drop")])
    assert columns == ("b", "a")
    assert np.vstack(list(chosen.blocks(7))).tolist() == [[3, 1], [5, 2]]
