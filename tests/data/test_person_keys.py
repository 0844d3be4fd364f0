"""One person, however her id is spelled: in every type, and in every kind of source."""

import datetime as dt
import sqlite3
from decimal import Decimal

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.ruled import ruled
from fedpower.rows.sql import SqlQuery
from fedpower.rows.units import by_unit, keys_of, with_ids
from fedpower.rules.rules import table_rules
from fedpower.rules.treatment import RowTreatment
from lattices import exact_moment

RULE = RowTreatment(row_norm=2.0)
WHERE = {"name": "t", "column": "person", "rows": 0}


def keys(cells):
    return keys_of(pl.Series(cells), **WHERE)


def moment(second):
    return pa.array([dt.datetime(2020, 1, 31, 0, 0, second)], pa.timestamp("ns"))


ONE = {
    "int64": pa.array([1]),
    "uint8": pa.array([1], pa.uint8()),
    "uint64": pa.array([1], pa.uint64()),
    "float64": pa.array([1.0]),
    "float32": pa.array([1.0], pa.float32()),
    "float16": pa.array(np.array([1.0], np.float16)),
    "decimal": pa.array([Decimal("1.00")]),
    "true": pa.array([True]),
    "string": pa.array([" 1\t"]),
    "large string": pa.array(["1"], pa.large_string()),
    "string view": pa.array(["1"], pa.string_view()),
    "dictionary": pa.array(["1"]).dictionary_encode(),
    "dictionary of views": pa.DictionaryArray.from_arrays([0], pa.array(["1"], pa.string_view())),
    "binary": pa.array([b"1"]),
    "1.0": pa.array(["1.0"]),
    "1.": pa.array(["1."]),
    "1,00": pa.array(["1,00"]),
    "1e0": pa.array(["1e0"]),
    "10E-1": pa.array(["10E-1"]),
    "full width": pa.array(["１"]),
    "another script": pa.array(["١"]),
    "truth": pa.array(["True"]),
}
SAME = {
    "nought": [pa.array([0]), pa.array([-0.0]), pa.array(["-0.0"]), pa.array(["0"]), pa.array(["-0"])],
    "negative": [pa.array([-7]), pa.array(["-7"]), pa.array(["-7.0"]), pa.array([-7.0])],
    "fraction": [pa.array([1.5]), pa.array(["1.50"]), pa.array([Decimal("1.500")]), pa.array(["15e-1"]),
                 pa.array([1.5], pa.float32())],
    "small fraction": [pa.array([1e-7]), pa.array(["0.0000001"]), pa.array(["1e-07"])],
    "2^53": [pa.array([2**53]), pa.array([2.0**53]), pa.array([f"{2**53}"]),
             pa.array(["9.007199254740992e+15"])],
    "beyond 2^63": [pa.array([2**64 - 1], pa.uint64()), pa.array([f"{2**64 - 1}"]),
                    pa.array([Decimal(2**64 - 1)], pa.decimal128(30, 2))],
    "beyond 2^64": [pa.array([Decimal(10**30)], pa.decimal128(38, 2)), pa.array([f"{10**30}"]),
                    pa.array(["1e30"]), pa.array([f"{10**30}.0"])],
    "1e300": [pa.array(["1e300"]), pa.array(["1e+300"]), pa.array([f"{10**300}"])],
    "day": [pa.array([dt.date(2020, 1, 31)]), pa.array(["2020-01-31"]), moment(0),
            pa.array(["2020-01-31T00:00:00Z"]), pa.array(["2020-01-31 01:00:00.000+01:00"])],
    "time": [moment(5), pa.array(["2020-01-31T00:00:05"]), moment(5).cast(pa.timestamp("s")),
             pa.array(["2020-01-31 00:00:05.000000"]), moment(5).cast(pa.timestamp("us", "UTC"))],
    "accent": [pa.array(["Zoë"]), pa.array(["Zoe\u0308"])],
}  # fmt: skip


@pytest.mark.parametrize("kind", ONE)
def test_one_is_one_in_every_type(kind):
    assert keys(ONE[kind]) == keys([1])


@pytest.mark.parametrize("kind", SAME)
def test_an_id_has_one_key_however_it_is_written(kind):
    found = [int(keys(cells)[0]) for cells in SAME[kind]]
    assert found == [found[0]] * len(found)


def test_other_texts_are_other_persons():
    texts = ["1", "007", "07", "7", "+7", "1e9999", "P1", "p1", "1a", "1.2.3", "1-2", "2020-01-31",
             "2020-01-31 00:00:01", "2020-13-45 00:00:00", "-", ".", "e5", "truth", "false", "1.5", "Zoe",
             "Zoë", f"{10**18}", f"{10**18 + 1}", f"{10**25}", f"{10**25 + 1}", "1 000", "- 7", "--7",
             "9" * 5000, "0x1F", "1_0", "Ⅻ", "१२३"]  # fmt: skip
    assert len(set(keys(texts).tolist())) == len(texts)
    for text, key in zip(texts, keys(texts), strict=True):
        assert keys([text]) == [key]  # whatever stands beside it


@given(st.lists(st.integers(-(2**63), 2**64 - 1), min_size=1, max_size=20, unique=True))
def test_whole_numbers_are_who_their_texts_are(numbers):
    texts = [f"{number}" for number in numbers]
    wanted = keys(texts).tolist()
    assert len(set(wanted)) == len(numbers)
    assert [int(keys([number])[0]) for number in numbers] == wanted
    assert keys([f"{text}.00" for text in texts]).tolist() == wanted
    assert keys([*texts, "P1"])[:-1].tolist() == wanted


@given(st.lists(st.text(max_size=12).map(lambda text: text + "x"), min_size=1, max_size=20))
def test_a_key_does_not_depend_on_the_texts_beside_it(texts):
    texts = [text.encode("utf-8", "ignore").decode() for text in texts]
    together = keys([*texts, "1", "2.0", "٣"])
    assert together[:-3].tolist() == [int(keys([text])[0]) for text in texts]
    assert together[-3:].tolist() == keys([1, 2, 3]).tolist()


@pytest.mark.parametrize("cells", [pa.array([[1]]), pa.array([{"a": 1}])])
def test_other_types_are_refused(cells):
    with pytest.raises(InputError, match="must hold ids as texts, numbers or days"):
        keys(cells)


def test_bytes_that_are_no_text_are_ids_too():
    uuids = [bytes(15) + b"\xff", bytes(15) + b"\xfe", bytes(15) + b"\xff"]
    first, second, third = keys(pa.array(uuids, pa.uuid())).tolist()
    assert first == third != second
    assert keys([uuids[1]]) == [second]


@pytest.mark.parametrize("kind", [np.float64, np.float32])
def test_floats_that_cannot_tell_ids_apart_are_refused(kind):
    digits = np.finfo(kind).nmant + 1
    assert keys(np.array([2.0**digits], kind)) == keys([2**digits])
    for number in (2.0 ** (digits + 1), 1e30, np.inf):
        with pytest.raises(InputError, match=f"beyond 2\\^{digits}"):
            keys(np.array([number], kind))


SPELLED = [1, "1", 1.0, Decimal("1.00"), " 1 ", b"1", np.int8(1), np.float32(1), True, "1.0"]
"""Ten rows of one person."""

WITH_ANOTHER = [*SPELLED, "P2", 3]
PLAIN = [1] * len(SPELLED) + [2, 3]


def rows_of(ids):
    return np.random.default_rng(0).standard_normal((len(ids), 2)).round(3)


def wanted(ids=PLAIN):
    return exact_moment(with_ids(open_source(rows_of(ids)), np.array(ids)), RULE)


def table_of(rows, ids, kind=None):
    return pa.table({"a": rows[:, 0], "b": rows[:, 1], "person": pa.array(ids, kind)})


@pytest.mark.parametrize("most", [1, 3])
def test_given_ids_of_several_types_are_one_person(most):
    rows = rows_of(PLAIN)
    source = with_ids(open_source(rows), np.array(WITH_ANOTHER, dtype=object), most)
    assert source.n_units == min(len(SPELLED), most) + 2
    plain = with_ids(open_source(rows), np.array(PLAIN), most)
    assert exact_moment(source, RULE) == exact_moment(plain, RULE)
    assert exact_moment(with_ids(open_source(rows), WITH_ANOTHER, most), RULE) == exact_moment(plain, RULE)


@pytest.mark.parametrize("missing", [None, np.nan, "", " ", pd.NA, pd.NaT, Decimal("NaN")])
def test_a_missing_id_among_several_types_is_refused(missing):
    for ids in ([1, missing, "1"], np.array([1, missing, "1"], dtype=object)):
        with pytest.raises(InputError, match="got a missing id at row 2"):
            with_ids(open_source(np.ones((3, 2))), ids)


def test_masked_ids_are_missing_and_others_are_refused():
    with pytest.raises(InputError, match="got a missing id at row 2"):
        with_ids(open_source(np.ones((2, 2))), np.ma.array([1, 2], mask=[False, True]))
    with pytest.raises(InputError, match="units must be texts, numbers or days, got dtype complex"):
        with_ids(open_source(np.ones((2, 2))), np.array([1j, 2j]))


@pytest.mark.parametrize("kind", ["mixed", "Int64", "float64", "category", "object", "string[pyarrow]"])
def test_every_type_of_a_data_frame_has_the_same_persons(kind):
    ids = pd.Series(WITH_ANOTHER, dtype=object) if kind == "mixed" else pd.Series(PLAIN).astype(kind)
    frame = pd.DataFrame(rows_of(PLAIN), columns=["a", "b"]).assign(person=ids)
    assert exact_moment(by_unit(open_source(frame), "person"), RULE) == wanted()


@pytest.mark.parametrize("lazy", [False, True])
@pytest.mark.parametrize("kind", ["Int32", "Float64", "String", "Categorical", "Decimal"])
def test_every_type_of_polars_has_the_same_persons(kind, lazy):
    polars = pytest.importorskip("polars")
    rows = rows_of(PLAIN)
    frame = polars.DataFrame({"a": rows[:, 0], "b": rows[:, 1], "person": PLAIN})
    ids = polars.col("person").cast(polars.String) if kind == "Categorical" else polars.col("person")
    dtype = polars.Decimal(10, 2) if kind == "Decimal" else getattr(polars, kind)
    frame = frame.with_columns(ids.cast(dtype))
    source = open_source(frame.lazy() if lazy else frame)
    assert exact_moment(by_unit(source, "person"), RULE) == wanted()


FOLDERS = {
    "integers and texts": (pa.int64(), pa.string()),
    "integers and floats": (pa.int64(), pa.float64()),
    "texts and decimals": (pa.large_string(), pa.decimal128(25, 2)),
    "texts and floats": (pa.dictionary(pa.int32(), pa.string()), pa.float32()),
}


@pytest.mark.parametrize("kinds", FOLDERS)
def test_a_person_in_two_files_of_a_folder_is_one(kinds, tmp_path):
    ids = [1, 2, 3, 3, 1, 1, 2, 4]
    rows = rows_of(ids)
    for part, kind in enumerate(FOLDERS[kinds]):
        some = slice(4 * part, 4 * part + 4)
        cells = pa.array(ids[some])
        cells = cells.cast(pa.string()).cast(kind) if "texts" in kinds and not part else cells.cast(kind)
        parquet.write_table(table_of(rows[some], cells), tmp_path / f"{part}.parquet")
    source = by_unit(open_source(tmp_path), "person")
    assert source.n_units == 4
    assert exact_moment(source, RULE) == wanted(ids)


def test_a_person_in_two_texts_and_in_the_name_of_a_folder_is_one(tmp_path):
    ids = [1, 2, 3, 3, 1, 1, 2, 4]
    rows = rows_of(ids)
    spelled = ["1", "2", "3", "3", "1.0", "1.0", "2.0", "4.0"]
    for part in (0, 1):
        some = slice(4 * part, 4 * part + 4)
        frame = table_of(rows[some], spelled[some]).to_pandas()
        frame.to_csv(tmp_path / f"{part}.csv", index=False)
    assert exact_moment(by_unit(open_source(tmp_path), "person"), RULE) == wanted(ids)


MIXED = [1, "1", 1.0, "1.0", b"1", 2**53, 2.0**53, "P2", 9007199254740991, 9007199254740991.0]
MIXED_PLAIN = [1, 1, 1, 1, 1, 2, 2, 3, 4, 4]


def test_a_column_of_sqlite_with_several_types_has_one_person(tmp_path):
    pytest.importorskip("adbc_driver_sqlite")
    rows = rows_of(MIXED)
    with sqlite3.connect(tmp_path / "t.db") as connection:
        connection.execute("CREATE TABLE visits (a REAL, b REAL, person)")
        connection.executemany(
            "INSERT INTO visits VALUES (?, ?, ?)",
            [(*row, each) for row, each in zip(rows.tolist(), MIXED, strict=True)],
        )
    connection.close()
    query = SqlQuery(query="SELECT * FROM visits", database=f"sqlite:///{tmp_path / 't.db'}")
    source = by_unit(open_source(query), "person")
    assert source.n_units == 4
    assert exact_moment(source, RULE) == wanted(MIXED_PLAIN)


@pytest.mark.parametrize("kind", ["BIGINT", "VARCHAR", "DOUBLE", "DECIMAL(10, 2)", "HUGEINT"])
def test_every_type_of_duckdb_has_the_same_persons(kind, tmp_path):
    duckdb = pytest.importorskip("duckdb")
    pytest.importorskip("adbc_driver_manager")
    table = table_of(rows_of(PLAIN), PLAIN)
    with duckdb.connect(str(tmp_path / "t.duckdb")) as connection:
        connection.register("given", table)
        connection.execute(f"CREATE TABLE visits AS SELECT a, b, person::{kind} AS person FROM given")
    query = SqlQuery(query="SELECT * FROM visits", database=f"duckdb:///{tmp_path / 't.duckdb'}")
    assert exact_moment(by_unit(open_source(query), "person"), RULE) == wanted()


RATED = {
    "user": "person",
    "film": "item",
    "stars": {"kind": "rating", "range": [1, 5], "items": ["Alien", "Brazil"]},
}


@pytest.mark.parametrize("spelled", [["1", "1.0", "2", "3"], [1, 1.0, Decimal("2.00"), "3"]])
def test_a_person_of_a_long_table_is_one_row(spelled):
    table = {"film": ["Alien", "Brazil", "Alien", "Brazil"], "stars": [1.0, 5.0, 3.0, 2.0]}
    rules = table_rules(RATED, "the test")
    found, plain = (
        ruled(open_source(pd.DataFrame({"user": pd.Series(ids, dtype=object), **table})), rules)
        for ids in (spelled, ["1", "1", "2", "3"])
    )
    assert found.n_units == 3
    assert exact_moment(found, RULE) == exact_moment(plain, RULE)


def test_a_second_rating_in_another_spelling_is_refused():
    table = {"user": ["1", "1.0"], "film": ["Alien", "Alien"], "stars": [1.0, 5.0]}
    source = ruled(open_source(pd.DataFrame(table)), table_rules(RATED, "the test"))
    with pytest.raises(InputError, match="got a second one at row 2"):
        _ = source.n_units
