"""Rows by persons: whose they are, what they weigh, and that nobody's rows weigh more than one."""

from fractions import Fraction

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from fedpower.errors import InputError
from fedpower.protocol.query import Tally
from fedpower.rows import units
from fedpower.rows.fingerprint import fingerprint
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.units import (
    PARTS,
    TALLY_PARTS,
    Persons,
    by_unit,
    exact_weights,
    lattice_shares,
    tally_weights,
    with_ids,
)
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.lattice import SIDE, LatticeRows
from fedpower.sums.local import KernelChoice, LocalMoment, local_moment
from fedpower.sums.passes import enrolled
from fedpower.sums.survey import STAGES, Stage, Survey
from lattices import exact_moment

PRODUCTS = KernelChoice(kind="product", reason="none is made")
D = 4
NAMES = tuple("abcd")
RULE = RowTreatment(row_norm=2.0)


def visits(n_rows=600, n_persons=150, seed=0):
    rng = np.random.default_rng(seed)
    ids = rng.integers(n_persons, size=n_rows)
    ids[: n_rows // 10] = 0  # somebody comes often
    return rng.standard_normal((n_rows, D)) * [2.0, 1.0, 0.5, 0.2], rng.permutation(ids)


def table_of(rows, ids, column="person"):
    columns = {name: rows[:, place] for place, name in enumerate(NAMES)}
    return pa.table({**columns, column: pa.array([f"P{each}" for each in ids])})


def weighted(rows, ids, most=1):
    """Return number, mean and moment of bounded rows with weights min(1, C/m), the plain way."""
    _, place, counts = np.unique(ids, return_inverse=True, return_counts=True)
    weights = np.minimum(1.0, most / counts[place])
    bounded = rows / 2.0
    bounded /= np.maximum(1.0, np.linalg.norm(bounded, axis=1))[:, None]
    n = int(np.minimum(counts, most).sum())
    return n, weights @ bounded / n, (bounded * weights[:, None]).T @ bounded / n


@given(counts=st.lists(st.integers(1, 2**30), min_size=1, max_size=8), most=st.integers(1, 50))
def test_no_persons_rows_weigh_more_than_they_may_in_whole_numbers(counts, most):
    array = np.array(counts, dtype=np.float64)
    shares, tallies = lattice_shares(array, most), tally_weights(array, most)
    for m, share, tally in zip(counts, shares.tolist(), tallies.tolist(), strict=True):
        assert share == int(share)
        assert m * int(share) ** 2 <= min(m, most) * PARTS**2
        assert m * (int(share) + 1) ** 2 > most * PARTS**2 or share == PARTS
        assert m * tally <= min(m, most) * TALLY_PARTS
        assert Fraction(tally, TALLY_PARTS) <= Fraction(int(share) ** 2, PARTS**2)
    assert (exact_weights(array, most) == [min(1.0, most / m) for m in counts]).all()


@given(
    rows=st.lists(st.lists(st.floats(-1e300, 1e300), min_size=3, max_size=3), min_size=1, max_size=6),
    normalize=st.booleans(),
)
def test_no_row_of_a_person_is_longer_than_its_own_side(rows, normalize):
    """‖z‖² ≤ (S·k/P)², in whole numbers: what the proof of the joint release rests on."""
    treatment = RowTreatment(normalize=True) if normalize else RULE
    lattice = LatticeRows(treatment, 3)
    array = np.array(rows)
    counts = np.arange(1, len(rows) + 1, dtype=np.float64) ** 3
    shares = lattice_shares(counts, 1) / PARTS
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


def test_a_row_of_somebody_who_has_no_other_is_the_row_itself():
    rows, _ = visits()
    single = exact_moment(with_ids(open_source(rows), np.arange(len(rows))), RULE)
    plain = exact_moment(open_source(rows), RULE)
    assert (single.squares.low == plain.squares.low).all()
    assert (single.total == plain.total * PARTS).all()
    assert (single.n_rows, single.n_clipped) == (plain.n_rows, plain.n_clipped)


def test_a_factor_has_the_moment_of_weighted_rows():
    rows, ids = np.random.default_rng(0).standard_normal((6, 9)) / 9, np.array([1, 2, 2, 3, 2, 1])
    silo = LocalMoment(with_ids(open_source(rows), ids), RowTreatment(row_norm=1.0), choice=PRODUCTS)
    factor = silo.factor(silo.summary.mean)
    assert factor.T @ factor == pytest.approx(silo.moment(silo.summary.mean), abs=1e-13)


def test_persons_within_the_silos_of_one_table():
    rows, ids = visits()
    table = table_of(rows, ids).append_column("silo", pa.array(np.where(ids % 2, "odd", "even")))
    for name, source in split_by_group(table, "silo").items():
        chosen = (ids % 2 == 1) == (name == "odd")
        found = exact_moment(by_unit(source, "person"), RULE)
        assert found == exact_moment(with_ids(open_source(rows[chosen]), ids[chosen]), RULE)


def test_the_order_of_rows_and_the_size_of_blocks_have_no_part():
    rows, ids = visits()
    order = np.argsort(ids)
    one = exact_moment(with_ids(open_source(rows), ids), RULE)
    assert one == exact_moment(with_ids(open_source(rows[order]), ids[order]), RULE, max_rows=7)


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_persons_are_counted_whatever_the_chunks(size):
    keys = np.random.default_rng(0).integers(50, size=1000).astype(np.uint64)
    wanted, counts = np.unique(keys, return_counts=True)
    found = Persons(keys[start : start + size] for start in range(0, 1000, size))
    assert (found.keys == wanted).all()
    assert (found.counts == counts).all()


def test_blanks_around_an_id_make_no_second_person():
    rows, _ = visits(4)
    assert with_ids(open_source(rows), ["P1", " P1", "P1 ", "P2"]).n_units == 2


def _csv(table, path):
    table.to_pandas().to_csv(path, index=False)
    return path


@pytest.mark.parametrize("kind", ["table", "t.csv", "t.csv.gz", "t.parquet", "array"])
def test_every_kind_of_table_gives_the_same_whole_numbers(kind, tmp_path):
    rows, ids = visits()
    rows = np.round(rows, 3)
    table, source = table_of(rows, ids), tmp_path / kind
    wanted = exact_moment(with_ids(open_source(rows), ids), RULE)
    if kind == "t.parquet":
        parquet.write_table(table, source)
    elif kind.startswith("t."):
        _csv(table, source)
    if kind == "array":
        made = with_ids(open_source(rows), [f"P{each}" for each in ids])
    else:
        made = by_unit(open_source(table if kind == "table" else source), "person")
    assert made.columns in (NAMES, None)
    assert exact_moment(made, RULE) == wanted


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
    counted = source.n_units
    changed = ids.copy()
    changed[np.flatnonzero(ids == ids[0])[0]] = ids[ids != ids[0]][0]
    _csv(table_of(rows, changed), path)
    with pytest.raises(InputError, match="must hold the same rows whenever it is read"):
        exact_moment(source, RULE)
    assert counted == len(np.unique(ids))


def test_a_person_who_was_not_counted_is_refused(tmp_path):
    rows, ids = visits(40, 10)
    path = _csv(table_of(rows, ids), tmp_path / "t.csv")
    source = by_unit(open_source(path), "person")
    assert source.n_units
    _csv(table_of(rows, ids + 1000), path)
    with pytest.raises(InputError, match="must hold the same rows whenever it is read"):
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


def test_tallies_add_up_to_the_persons():
    rows, ids = visits()
    survey = Survey(with_ids(open_source(rows), ids))
    stage = Stage(kind="octaves", n_features=D, open_columns=np.arange(D))
    counts = survey.tally(stage).reshape(D, -1).sum(axis=1) / TALLY_PARTS
    assert survey.n_rows == len(np.unique(ids))
    assert (counts <= survey.n_rows).all()
    assert counts == pytest.approx([survey.n_rows] * D, rel=0.02)


def test_what_a_silo_asks_of_its_rows_counts_persons():
    rows, ids = visits()
    n, mean, moment = weighted(rows, ids)
    source = by_unit(open_source(table_of(rows, ids)), "person")
    for made in (
        local_moment(source, RULE, rank=2, steps=3),
        LocalMoment(source, RULE, choice=PRODUCTS),
        local_moment(source, RULE, rank=2, steps=3, on_lattice=True),
    ):
        assert (made.n_rows, made.n_read) == (n, len(rows))
        assert made.product(np.eye(D)) == pytest.approx(moment, abs=3e-4)
        assert made.summary.mean == pytest.approx(mean, abs=3e-4)


def test_what_cannot_weigh_rows_refuses_in_one_sentence():
    rows, ids = visits()
    with pytest.raises(InputError, match="must be a table with named columns"):
        by_unit(open_source(rows), "person")
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(InputError, match="must be dense rows in memory to be given units"):
        with_ids(open_source(sparse.csr_array(rows)), ids)
    with pytest.raises(InputError, match="units must have one id per row"):
        with_ids(open_source(rows), ids[:-1])
    with pytest.raises(InputError, match=r"unit must be a column of"):
        by_unit(open_source(table_of(rows, ids)), "patient")
    with pytest.raises(InputError, match="must have a feature besides the ids in 'person'"):
        by_unit(open_source(table_of(rows, ids).select(["person"])), "person")


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
    with pytest.raises(InputError, match="must have 10 persons at most"):
        _ = with_ids(open_source(rows), ids).n_units
