"""Persons: one key however an id is spelled, what rows weigh, and that nobody's weigh more than one."""

import datetime as dt
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from row_forms import write_duckdb, write_sqlite
from scipy import sparse

from fedpower.exceptions import InputError
from fedpower.protocol.query import Tally
from fedpower.rows import units
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.ruled import ruled
from fedpower.rows.sql import SqlQuery
from fedpower.rows.units import PARTS, TALLY_PARTS, Weights, by_unit, keys_of, with_ids
from fedpower.rules.rules import table_rules
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.lattice import SIDE, LatticeRows
from fedpower.sums.local import KernelChoice, LocalMoment, local_moment
from fedpower.sums.passes import enrolled
from fedpower.sums.survey import STAGES, Stage, Survey
from problems import exact_moment

PRODUCTS = KernelChoice(kind="product", reason="none is made")
D = 4
NAMES = tuple("abcd")
RULE = RowTreatment(row_norm=2.0)


def visits(n_rows=600, n_persons=150, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(n_persons, size=n_rows)
    ids[: n_rows // 10] = 0  # somebody comes often
    return rng.standard_normal((n_rows, D)) * [2.0, 1.0, 0.5, 0.2], rng.permutation(ids)


def table_of(rows, ids):
    columns = {name: rows[:, place] for place, name in enumerate(NAMES)}
    return pa.table({**columns, "person": pa.array([f"P{each}" for each in ids])})


def weighted(rows, ids, most=1):
    """Return number, mean and moment of bounded rows with weights min(1, C/m), the plain way."""
    _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    weights = np.minimum(1.0, most / counts[place])
    bounded = rows / 2.0
    bounded /= np.maximum(1.0, np.linalg.norm(bounded, axis=1))[:, None]
    n = int(np.minimum(counts, most).sum())
    return n, weights @ bounded / n, (bounded * weights[:, None]).T @ bounded / n


@given(counts=st.lists(st.integers(1, 2**30), min_size=1, max_size=8), most=st.integers(1, 50))
@settings(max_examples=20)
def test_no_persons_rows_weigh_more_than_they_may_in_whole_numbers(counts, most):
    array = np.array(counts, dtype=np.float64)
    weights = Weights(array, most)
    shares, tallies = weights.shares(), weights.tallies()
    for m, share, tally in zip(counts, shares.tolist(), tallies.tolist(), strict=True):
        assert share == int(share)
        assert m * int(share) ** 2 <= min(m, most) * PARTS**2
        assert m * (int(share) + 1) ** 2 > most * PARTS**2 or share == PARTS
        assert m * tally <= min(m, most) * TALLY_PARTS
        assert Fraction(tally, TALLY_PARTS) <= Fraction(int(share) ** 2, PARTS**2)
    assert (weights.exact() == [min(1.0, most / m) for m in counts]).all()


@given(
    rows=st.lists(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), min_size=1, max_size=6),
    normalize=st.booleans(),
)
@settings(max_examples=20)
def test_no_row_of_a_person_is_longer_than_its_own_side(rows, normalize):
    """‖z‖² ≤ (S·k/P)², in whole numbers: what the proof of the joint release rests on."""
    treatment = RowTreatment(normalize=True) if normalize else RULE
    lattice = LatticeRows(treatment, 3)
    array = np.array(rows)
    counts = np.arange(1, len(rows) + 1, dtype=np.float64) ** 3
    shares = Weights(counts, 1).shares() / PARTS
    sides = shares * SIDE
    found, _ = lattice.of_dense(array, shares=shares)
    for integers, side in zip(found.tolist(), sides.tolist(), strict=True):
        assert sum(int(each) ** 2 for each in integers) <= int(side) ** 2


@pytest.mark.parametrize("most", [1, 3])
def test_the_moment_and_the_mean_are_those_of_weighted_rows(most):
    rows, ids = visits()
    n, mean, moment = weighted(rows, ids, most)
    source = with_ids(open_source(rows), ids, most)
    found = exact_moment(source, RULE)
    assert (found.n_rows, source.n_read) == (n, len(rows))
    # A weight is off by a relative 2√m/P at most, and somebody has 64 rows here.
    assert found.to_float().about() == pytest.approx(moment, abs=2 * 8 / PARTS)
    assert found.to_float().mean == pytest.approx(mean, abs=2 * 8 / PARTS)
    exact = LocalMoment(source, RULE, choice=PRODUCTS)
    assert exact.moment() == pytest.approx(moment, abs=1e-13)
    assert exact.summary.mean == pytest.approx(mean, abs=1e-13)
    assert exact.product(np.eye(D)) == pytest.approx(moment, abs=1e-13)
    assert exact.summary.trace() == pytest.approx(np.trace(moment), abs=1e-13)
    about = moment - np.outer(mean, mean)
    assert exact.product(np.eye(D), mean) == pytest.approx(about, abs=1e-13)
    assert exact.moment(mean) == pytest.approx(about, abs=1e-13)


def test_a_factor_has_the_moment_of_weighted_rows():
    rows, ids = np.random.default_rng(0).standard_normal((6, 9)) / 9, np.array([1, 2, 2, 3, 2, 1])
    silo = LocalMoment(with_ids(open_source(rows), ids), RowTreatment(row_norm=1.0), choice=PRODUCTS)
    factor = silo.factor(silo.summary.mean)
    assert factor.T @ factor == pytest.approx(silo.moment(silo.summary.mean), abs=1e-13)


def test_the_order_of_rows_and_the_size_of_blocks_have_no_part():
    rows, ids = visits()
    order = np.argsort(ids)
    one = exact_moment(with_ids(open_source(rows), ids), RULE)
    assert one == exact_moment(with_ids(open_source(rows[order]), ids[order]), RULE, max_rows=7)


def _csv(table, path):
    table.to_pandas().to_csv(path, index=False)
    return path


def test_silos_in_one_table_have_their_own_persons():
    rows, ids = visits()
    table = table_of(rows, ids).append_column("silo", pa.array(np.where(ids % 2, "odd", "even")))
    for silo, data in split_by_group(table, "silo").items():
        chosen = (ids % 2 == 1) == (silo == "odd")
        made = by_unit(open_source(data), "person")
        assert made.columns == NAMES
        wanted = with_ids(open_source(rows[chosen]), [f" P{each}" for each in ids[chosen]])
        assert exact_moment(made, RULE) == exact_moment(wanted, RULE)


@pytest.mark.parametrize(
    ("ids", "row"), [(["P1", None, "P2"], 2), (["P1", "P2", "  "], 3), ([1.0, np.nan, 2.0], 2)]
)
def test_a_missing_id_is_refused_by_its_row_and_no_cell_is_quoted(ids, row):
    rows = np.ones((3, D))
    table = pa.table({**dict.fromkeys(NAMES, rows[:, 0]), "person": pa.array(ids, from_pandas=True)})
    with pytest.raises(InputError, match=f"got a missing id at row {row}") as error:
        _ = by_unit(open_source(table), "person").n_units
    assert "P1" not in str(error.value)


def test_a_file_whose_ids_change_between_the_passes_is_refused(tmp_path):
    """One row moves to a person with another number of rows: no value changed, and weights are wrong."""
    rows, ids = visits(40, 10)
    path = _csv(table_of(rows, ids), tmp_path / "t.csv")
    source = by_unit(open_source(path), "person")
    assert source.n_units == len(np.unique(ids))
    changed = ids.copy()
    changed[np.flatnonzero(ids == ids[0])[0]] = ids[ids != ids[0]][0]
    for other in (changed, ids + 1000):  # or a person who was not counted
        _csv(table_of(rows, other), path)
        with pytest.raises(InputError, match="must not change while it is in use"):
            exact_moment(source, RULE)


def test_the_fingerprint_does_not_tell_who_has_how_many_rows():
    rows, ids = visits(40, 10)
    found = {
        fingerprint(enrolled(with_ids(open_source(rows), each), contents=False))
        for each in (ids, np.arange(40))
    }
    assert found == {fingerprint(open_source(rows))}


@pytest.mark.parametrize("kind", STAGES)
@pytest.mark.parametrize("most", [1, 2])
def test_no_person_moves_a_tally_farther_than_its_noise_is_made_for(kind, most):
    """All rows of one person of five are replaced by others, as many of which count."""
    d = 3
    ones = np.ones(d)
    stage = Stage(
        kind=kind,
        n_features=d,
        open_columns=np.arange(d),
        low=None if kind == "octaves" else -ones,
        high=None if kind == "octaves" else ones,
        offset={"norms": 0 * ones, "zoom": ones}.get(kind),
        scale=ones if kind == "norms" else None,
    )
    bound = Tally(stage=stage, per_unit=most).sensitivity.squared
    rng = np.random.default_rng(0)
    others = rng.standard_normal((7, d))
    for mine, yours in [(4, 3), (2, 9), (3, 3)]:
        worlds = []
        for count, sign in ((mine, 1.0), (yours, -1.0)):
            rows = np.vstack([others, sign * np.ones((count, d)) * (1 if sign > 0 else 0.4)])
            ids = np.append(np.array([1, 1, 1, 2, 2, 3, 4]), np.full(count, 9))
            worlds.append(Survey(with_ids(open_source(rows), ids, most)).tally(stage))
        moved = (worlds[0] - worlds[1]).tolist()
        if kind == "means":
            moved = [each * 2**12 for each in moved[:d]] + moved[d : 2 * d]
        assert 0 < sum(each**2 for each in moved) <= bound


def test_what_cannot_weigh_rows_refuses_in_one_sentence():
    rows, ids = visits()
    table = table_of(rows, ids)
    for make, data, unit, sentence in [
        (by_unit, rows, "person", "must be a table with named columns"),
        (with_ids, sparse.csr_array(rows), ids, "must be dense rows in memory to be used with units"),
        (with_ids, rows, ids[:-1], "units must have one id per row"),
        (with_ids, rows, ids * 1j, "units must be texts, numbers or days, got dtype complex"),
        (with_ids, rows[:2], np.ma.array([1, 2], mask=[False, True]), "got a missing id at row 2"),
        (by_unit, table, "patient", "unit must be a column of"),
        (by_unit, table.select(["person"]), "person", "must have at least one column other than 'person'"),
    ]:
        with pytest.raises(InputError, match=sentence):
            make(open_source(data), unit)


@pytest.mark.devices
def test_a_device_refuses_persons():
    pytest.importorskip("torch")
    rows, ids = visits()
    source = with_ids(open_source(rows), ids)
    with pytest.raises(InputError, match="the device 'cpu'"):
        local_moment(source, RULE, rank=2, steps=3, device=open_device("cpu"))
    with pytest.raises(InputError, match="the device 'cpu'"):
        Survey(source, device=open_device("cpu"))


def test_more_persons_than_sums_have_room_for_are_refused(monkeypatch):
    rows, ids = visits()
    monkeypatch.setattr(units, "_MOST_UNITS", 10)
    with pytest.raises(InputError, match="must have at most 10 persons"):
        _ = with_ids(open_source(rows), ids).n_units


def keys(cells):
    return keys_of(pl.Series(cells), name="t", column="person", rows=0)


def instant(second):
    return pa.array([dt.datetime(2020, 1, 31, 0, 0, second)], pa.timestamp("ns"))


SAME = {
    "one": [pa.array([1]), pa.array([1], pa.uint8()), pa.array([1], pa.uint64()), pa.array([1.0]),
            pa.array([1.0], pa.float32()), pa.array(np.array([1.0], np.float16)),
            pa.array([Decimal("1.00")]), pa.array([True]), pa.array([" 1\t"]), pa.array(["1"],
            pa.large_string()), pa.array(["1"], pa.string_view()), pa.array(["1"]).dictionary_encode(),
            pa.DictionaryArray.from_arrays([0], pa.array(["1"], pa.string_view())), pa.array([b"1"]),
            pa.array(["1.0"]), pa.array(["1."]), pa.array(["1,00"]), pa.array(["1e0"]), pa.array(["10E-1"]),
            pa.array(["１"]), pa.array(["١"]), pa.array(["True"])],
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
    "day": [pa.array([dt.date(2020, 1, 31)]), pa.array(["2020-01-31"]), instant(0),
            pa.array(["2020-01-31T00:00:00Z"]), pa.array(["2020-01-31 01:00:00.000+01:00"])],
    "time": [instant(5), pa.array(["2020-01-31T00:00:05"]), instant(5).cast(pa.timestamp("s")),
             pa.array(["2020-01-31 00:00:05.000000"]), instant(5).cast(pa.timestamp("us", "UTC"))],
    "accent": [pa.array(["Zoë"]), pa.array(["Zoe\u0308"])],
}  # fmt: skip


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
@settings(max_examples=20)
def test_whole_numbers_are_who_their_texts_are(numbers):
    texts = [f"{number}" for number in numbers]
    wanted = keys(texts).tolist()
    assert len(set(wanted)) == len(numbers)
    assert [int(keys([number])[0]) for number in numbers] == wanted
    assert keys([f"{text}.00" for text in texts]).tolist() == wanted
    assert keys([*texts, "P1"])[:-1].tolist() == wanted


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


def wanted(ids=PLAIN, most=1):
    return exact_moment(with_ids(open_source(rows_of(ids)), np.array(ids), most), RULE)


@pytest.mark.parametrize("most", [1, 3])
def test_given_ids_of_several_types_are_one_person(most):
    rows = open_source(rows_of(PLAIN))
    source = with_ids(rows, np.array(WITH_ANOTHER, dtype=object), most)
    assert source.n_units == min(len(SPELLED), most) + 2
    assert exact_moment(source, RULE) == wanted(most=most)
    assert exact_moment(with_ids(rows, WITH_ANOTHER, most), RULE) == wanted(most=most)


@pytest.mark.parametrize("missing", [None, np.nan, "", " ", pd.NA, pd.NaT, Decimal("NaN")])
def test_a_missing_id_among_several_types_is_refused(missing):
    for ids in ([1, missing, "1"], np.array([1, missing, "1"], dtype=object)):
        with pytest.raises(InputError, match="got a missing id at row 2"):
            with_ids(open_source(np.ones((3, 2))), ids)


STORED = [*SPELLED[:7], "P2", 3]
STORED_PLAIN = [1] * 7 + [2, 3]


def frame_of(ids):
    return pd.DataFrame(rows_of(ids), columns=["a", "b"]).assign(person=ids)


def _in_sqlite(folder):
    cells = [str(each) if isinstance(each, Decimal | np.int8) else each for each in STORED]
    url = write_sqlite(frame_of(cells).to_numpy(), folder / "t.db", ("a", "b", "person"))
    return SqlQuery("SELECT * FROM visits", url)


def _in_duckdb(folder):
    table = pa.Table.from_pandas(frame_of(STORED_PLAIN))
    url = write_duckdb(table, folder / "t.duckdb", "a, b, person::DECIMAL(10, 2) AS person")
    return SqlQuery("SELECT * FROM visits", url)


def _in_parts(folder):
    frame = frame_of(STORED_PLAIN)
    for part, kind in enumerate(("Float64", "string")):
        some = frame[4 * part : 4 * part + 4 + part]
        some.astype({"person": kind}).to_parquet(folder / f"{part}.parquet", index=False)
    return folder


HELD = {
    "CSV": lambda folder: _csv(pa.Table.from_pandas(frame_of(STORED_PLAIN)), folder / "t.csv"),
    "mixed": lambda folder: frame_of(pd.Series(STORED, dtype=object)),
    "Int64": lambda folder: frame_of(pd.Series(STORED_PLAIN).astype("Int64")),
    "category": lambda folder: frame_of(pd.Series(STORED_PLAIN).astype("category")),
    "SQLite": _in_sqlite,
    "DuckDB": _in_duckdb,
    "parts of several types": _in_parts,
}


@pytest.mark.parametrize("kind", HELD)
def test_a_column_of_any_type_has_the_same_persons(kind, tmp_path):
    source = by_unit(open_source(HELD[kind](tmp_path)), "person")
    assert exact_moment(source, RULE) == wanted(STORED_PLAIN)


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
