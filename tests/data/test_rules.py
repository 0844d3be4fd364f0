"""Rules turn cells into numbers: alike in every kind of table, no row dropped, no cell told."""

import datetime as dt
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
import pytest

from benchmarks.fits import comparisons
from budgets import ledgers_in, spent
from fedpower import CodeBook, FedCovariance, FedPCA, load
from fedpower.exceptions import CellError, InputError
from fedpower.rows.fingerprint import reading_of
from fedpower.rows.opening import open_source
from fedpower.rows.ruled import match_tables, ruled
from fedpower.rules.expressions import Cells, compiled, staged
from fedpower.rules.rules import COMPARISON_BOUND, KNOWN, LEVEL, Rule, table_rules
from fedpower.toml import to_toml
from problems import Array

RULES: dict[str, Any] = {
    "pid": "drop",
    "age": {"kind": "number", "range": [0, 120], "missing": "offset", "indicator": True},
    "sex": ["F", "M"],
    "stage": {"ordered": ["low", "mid", "high"], "missing": "mid", "missing_words": ["?"]},
    "smoker": {"kind": "yes/no", "missing": 0.5},
    "seen": {"kind": "date", "origin": "2000-01-01", "unit": "days"},
    "cd4": {"kind": "number", "missing": 350, "missing_words": ["."]},
}
FEATURES = (*("age", "age missing", "sex=F", "sex=M", "sex=other"), *("stage", "smoker", "seen", "cd4"))
WORDS: dict[str, list[str]] = {
    "pid": ["7", "8", "9", "10"],
    "age": ["50", "", "130", "20.5"],
    "sex": ["F", "M", "X", " F "],
    "stage": ["low", "?", "high", ""],
    "smoker": ["yes", "FALSE", "", "1"],
    "seen": ["2000-01-02", "1999-12-31", "2000-01-01T12:00", "2000-02-01 00:00:00"],
    "cd4": ["400", ".", "1e2", "NA"],
}
WANTED = np.array(
    [
        [50.0, 0, LEVEL, 0, 0, 0, 1, 1, 400],
        [60.0, 1, 0, LEVEL, 0, 1, 0, -1, 350],
        [120.0, 0, 0, 0, LEVEL, 2, 0.5, 0.5, 100],
        [20.5, 0, LEVEL, 0, 0, 1, 1, 31, 350],
    ]
)


def read_cells(rule: Rule, cells: list[Any]) -> tuple[list[Any], list[list[bool]]]:
    """The numbers that a rule makes of a column's cells, and where each of its problems is, if anywhere."""
    frame = pl.DataFrame({rule.column: cells})
    found = compiled(rule, {rule.column: Cells(own=rule.column)}, frame.schema)
    frame = staged(frame, [found])
    values = [frame.select(each.alias("x"))["x"].to_numpy() for each in found.values]
    places = [frame.select(each.where.alias("x"))["x"].fill_null(value=False) for each in found.problems]
    return values, [each.to_list() for each in places if each.any()]


def rules(content: dict[str, Any] = RULES) -> Any:
    return table_rules(content, "the test")


def rows_of(data: Any, content: dict[str, Any] = RULES, block: int = 3) -> Array:
    source = ruled(open_source(data), rules(content))
    return np.vstack([np.asarray(each) for each in source.blocks(block)])


def typed_table() -> pa.Table:
    """The same table as a database would hold it."""
    day = dt.date(2000, 1, 1)
    return pa.table(
        {
            "pid": [7, 8, 9, 10],
            "age": pa.array([50, None, 130, 20.5], pa.float32()),
            "sex": pa.array(["F", "M", "X", "F"]).dictionary_encode(),
            "stage": pa.array(["low", None, "high", None], pa.large_string()),
            "smoker": pa.array([True, False, None, True]),
            "seen": pa.array(
                [dt.datetime.combine(day, dt.time(h)) + dt.timedelta(days=d)
                 for d, h in ((1, 0), (-1, 0), (0, 12), (31, 0))],
                pa.timestamp("ms", "UTC"),
            ),
            "cd4": pa.array([400.0, float("nan"), 100, None]),
        }
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["text", "parquet", "arrow table", "data frame"])
def test_cells_of_every_kind_of_table_become_what_the_rules_say(tmp_path, kind):
    table: Any = typed_table()
    if kind == "text":
        pa.csv.write_csv(pa.table(WORDS), tmp_path / "t.csv")
        table = tmp_path / "t.csv"
    elif kind == "parquet":
        pa.parquet.write_table(table, tmp_path / "t.parquet")
        table = tmp_path / "t.parquet"
    elif kind == "data frame":
        table = table.to_pandas()
    assert ruled(open_source(table), rules()).columns == FEATURES
    np.testing.assert_array_equal(rows_of(table), WANTED)


@pytest.mark.parametrize("word", ["9999", 9999.0, "9.999e3"])
def test_a_missing_word_that_is_a_number_is_found_however_cells_write_it(tmp_path, word):
    rule = {"lab": {"kind": "number", "missing": 7, "missing_words": [word, "99.99"]}}
    path = tmp_path / "t.csv"
    for cell in ("9999", "9999.0", " 9.999e3", "99.99", "99.990"):
        for line, tail in ((f"{cell},1", "13,1"), (f"{cell.replace('.', ',')};1", "13,0;1")):
            path.write_text(f"lab{line[-2]}y\n{line}\n{tail}\n")
            np.testing.assert_array_equal(rows_of(path, rule), [[7, 1], [13, 1]])
    for kind in (pl.Float64, pl.Float32, pl.Int32, pl.Decimal(8, 2), pl.String):
        frame = pl.DataFrame({"lab": [9999, 13], "y": [1, 1]}).with_columns(pl.col("lab").cast(kind))
        frame.write_parquet(tmp_path / "t.parquet")
        for table in (frame, frame.to_pandas(), tmp_path / "t.parquet"):
            np.testing.assert_array_equal(rows_of(table, rule), [[7, 1], [13, 1]])
    cells = pl.DataFrame({"lab": pl.Series([99.99, 13], dtype=pl.Float32), "y": [1, 1]})
    np.testing.assert_array_equal(rows_of(cells, rule), [[7, 1], [13, 1]])
    path.write_text("lab,y\n9999.0,1\nnone,1\n")
    with pytest.raises(CellError, match="got text at row 2"):
        rows_of(path, rule)


@pytest.mark.parametrize("how", ["fit_silos", "fit", "csv"])
@pytest.mark.parametrize("span", [(-900, 1000), None])
@pytest.mark.parametrize("missing", [{}, {"missing": "offset"}])
def test_an_exact_fit_counts_missing_cells_for_nothing(tmp_path, how, span, missing):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(3000, 4)) + rng.normal(size=(3000, 1)), columns=list("abcd")) + 5
    table.loc[rng.random(3000) < 0.3, "b"] = np.nan
    silos: Any = {"north": table[:1000], "south": table[1000:]}
    rule = {"kind": "number", **missing, **({"range": list(span)} if span else {})}
    model = FedPCA(4, epsilon=math.inf, codebook={"b": rule})
    if how == "csv":
        for name, own in silos.items():
            own.to_csv(tmp_path / f"{name}.csv", index=False)
        silos = {name: tmp_path / f"{name}.csv" for name in silos}
    model.fit(table) if how == "fit" else model.fit_silos(silos)
    np.testing.assert_allclose(model.mean_, table.mean(), rtol=1e-9)
    present, filled = table.notna().mean().to_numpy(), table.fillna(table.mean())
    covariance = filled.cov(ddof=0).to_numpy() / np.outer(present, present)
    np.fill_diagonal(covariance, table.var(ddof=0))
    spread = np.sqrt(np.diagonal(covariance))
    values, vectors = np.linalg.eigh(covariance / np.outer(spread, spread))
    assert abs((model.components_ * vectors[:, ::-1].T).sum(axis=1)) == pytest.approx(1)
    np.testing.assert_allclose(model.explained_variance_, values[::-1] * 3000 / 2999, rtol=1e-9)
    model.result_.save(tmp_path / "result")
    assert not (tmp_path / "result" / "codebook.toml").exists() or "offset =" not in (
        (tmp_path / "result" / "codebook.toml").read_text()
    )
    scores = load(tmp_path / "result").transform(table[:5])
    np.testing.assert_allclose(scores, model.transform(filled[:5]), atol=1e-9)


@pytest.mark.parametrize("how", ["csv", "frame", "array"])
@pytest.mark.parametrize("rule", [None, "number", (-900, 1000), {"kind": "number", "missing": "offset"}])
def test_a_private_fit_scores_its_own_rows_with_missing_cells_at_the_offset(tmp_path, how, rule):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(3000, 2)) + rng.normal(size=(3000, 1)), columns=["a", "b"]) + 5
    table.loc[rng.random(3000) < 0.3, "b"] = np.nan
    table.to_csv(tmp_path / "rows.csv", index=False)
    rows: Any = {"csv": tmp_path / "rows.csv", "frame": table, "array": table.to_numpy()}[how]
    if how == "array" and rule is not None:
        pytest.skip("rules are for tables")
    model = FedPCA(2, epsilon=1.0, codebook=rule and {"b": rule}, random_state=0).fit_silos([rows])
    offset = model.result_.code_book.offset
    expected = model.transform(table.fillna({"b": offset[1]}).to_numpy())
    path = model.save(tmp_path / "result")
    for scores in (model.transform(rows), load(path).transform(rows)):
        np.testing.assert_allclose(scores, expected, atol=1e-9)
    filled = model.score_samples(table.fillna({"b": offset[1]}).to_numpy())
    np.testing.assert_allclose(model.score_samples(rows), filled)


def test_an_exact_fit_refuses_a_column_without_any_cell():
    table = pd.DataFrame({"a": [1.0, 2.0, 4.0], "b": [np.nan] * 3})
    with pytest.raises(InputError, match="must have cells that are not missing, got none in 'b'"):
        FedPCA(1, epsilon=math.inf, codebook={"a": "number"}).fit_silos([table])


SPELLINGS = {"sex": {"Male": "male", "M": "male", "2": "female", "?": ""}, "lab": {"<5": "2.5"}}


@pytest.mark.parametrize("kind", ["csv", "parquet", "data frame", "described"])
def test_a_silo_translates_its_own_words_before_the_rules(tmp_path, kind):
    frame = pl.DataFrame({"SEX": [" Male ", "M", "2.0", "male", "?"], "lab": ["<5", "7", "9.5", "", "1"]})
    reading: dict[str, Any] = {"rename": {"SEX": "sex"}, "words": SPELLINGS}
    table: Any = frame
    if kind == "parquet":
        table = tmp_path / "t.parquet"
        frame.write_parquet(table)
    elif kind != "data frame":
        table = tmp_path / "t.csv"
        frame.write_csv(table)
    if kind == "described":
        table, own = tmp_path / "t.toml", {"data": {"path": "t.csv"}, "columns": reading}
        table.write_text(to_toml(own))
        reading = {}
    content = {
        "sex": {"ordered": ["male", "female"], "missing": 0.5},
        "lab": {"kind": "number", "missing": 0},
    }
    source = ruled(open_source(table, **reading), rules(content))
    got = np.vstack([np.asarray(block) for block in source.blocks(2)])
    np.testing.assert_array_equal(got, [[0, 2.5], [0, 7], [1, 9.5], [0, 0], [0.5, 1]])
    assert reading_of(source) != reading_of(ruled(open_source(frame.rename({"SEX": "sex"})), rules(content)))


def test_stored_numbers_may_be_translated_to_words():
    frame = pl.DataFrame({"sex": [1.0, 2.0], "arm": pl.Series([7, 8], dtype=pl.Int16)})
    words = {"sex": {"1": "F", "2": "M"}, "arm": {"7": "yes", "8": "no"}}
    source = ruled(open_source(frame, words=words), rules({"sex": {"ordered": ["M", "F"]}, "arm": "yes/no"}))
    np.testing.assert_array_equal(next(iter(source.blocks(9))), [[1, 1], [0, 0]])


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ({"sex": "male"}, "words of 'sex' must be a mapping from own words to words, got 'str'"),
        ({"sex": {"M": 1}}, "words of 'sex' must be a mapping from own words to words"),
        ({"sx": {"M": "male"}}, "words must be of columns of the table, got 'sx', not 'sex'"),
    ],
)
def test_wrong_translations_are_refused(words, said):
    with pytest.raises(InputError, match=said):
        open_source(pl.DataFrame({"sex": ["M"]}), words=words)


@pytest.mark.parametrize("given", [[["male", "M"], ["female", "F"]], "male", 7, ["male", {}]])
def test_words_that_are_no_list_are_refused_in_one_plain_sentence(given):
    with pytest.raises(InputError, match=r"ordered in the rule of 'sex' in here must be a list of words; a"):
        table_rules({"sex": {"ordered": given}}, "here")


def test_numbers_that_name_levels_are_the_same_however_they_are_written():
    rule = Rule(column="arm", kind="levels", levels=("0", "1"))
    for cells in (["0", "1", "2"], ["0.0", "1.", "2.0"], [0, 1, 2], [0.0, 1.0, 2.0]):
        values, problems = read_cells(rule, cells)
        np.testing.assert_array_equal(np.array(values), LEVEL * np.eye(3))
        assert not problems
    assert table_rules({"arm": [0, 1.0]}, "").rules[0].levels == ("0", "1")


def test_a_missing_level_is_other_or_a_level_of_its_own():
    cells = ["F", None, ""]
    other = table_rules({"sex": {"levels": ["F"], "missing": "other"}}, "").rules[0]
    np.testing.assert_array_equal(np.array(read_cells(other, cells)[0])[1], [0, LEVEL, LEVEL])
    own = table_rules({"sex": {"levels": ["F"], "indicator": True}}, "").rules[0]
    assert own.features == ("sex=F", "sex=other", "sex missing")
    np.testing.assert_array_equal(np.array(read_cells(own, cells)[0])[2], [0, LEVEL, LEVEL])


def test_a_day_that_is_none_is_refused_and_a_format_is_kept_to():
    rule = Rule(column="d", kind="date", origin="2000-01-01")
    (problem,) = read_cells(rule, ["2001-02-30", "2000-01-01", "soon"])[1]
    assert problem == [True, False, True]
    german = Rule(column="d", kind="date", origin="2000-01-01", format="%d.%m.%Y")
    values, (problem,) = read_cells(german, ["2.1.2000", "03.01.2000", "30.2.2000"])
    assert values[0][:2].tolist() == [1, 2]
    assert problem == [False, False, True]


def test_dates_are_counted_in_the_unit_of_their_rule():
    for unit, count in (("seconds", 365.25 * 86400), ("hours", 365.25 * 24), ("years", 1.0)):
        rule = Rule(column="d", kind="date", origin="2000-01-01", unit=unit)
        assert read_cells(rule, ["2000-12-31 06:00"])[0][0][0] == pytest.approx(count)


def clinic(n_rows: int, seed: int = 0) -> pd.DataFrame:
    """Rows with a category of unequal shares and cells missing, and the same with numbers alone."""
    rng = np.random.default_rng(seed)
    female = rng.random(n_rows) < 0.3
    age = 50 + 10 * rng.standard_normal(n_rows) + 8 * female
    weight = 75 + 9 * rng.standard_normal(n_rows) - 12 * female + (age - 50) / 2
    frame = pd.DataFrame({"sex": np.where(female, "F", "M"), "age": age, "weight": weight})
    frame.loc[rng.random(n_rows) < 0.1, "age"] = np.nan
    return frame


CLINIC = {"sex": ["F", "M"], "age": {"kind": "number", "range": [0, 120], "missing": 50.0}}


def test_a_private_fit_prepares_features_and_spends_nothing_on_what_rules_say(tmp_path):
    silos = [clinic(1500, seed) for seed in (1, 2)]
    told = {"sex": ["F", "M"], "age": CLINIC["age"], "weight": {"kind": "number", "range": [0, 200]}}
    model = FedPCA(2, epsilon=4.0, codebook=CodeBook(rules=rules(told))).fit_silos(silos)
    assert model.study_.open_columns.size == 0
    assert model.study_.groups == ((0, 1, 2),)
    book = model.codebook_
    assert book is not None
    assert len(set(book.scale[:3])) == 1
    model.save(tmp_path / "result")
    again = load(tmp_path / "result")
    assert again.study == model.study_
    np.testing.assert_array_equal(again.transform(silos[0]), model.transform(silos[0]))
    kept = CodeBook.load(tmp_path / "result" / "codebook.toml")
    assert kept.rules is not None
    assert kept.rules.features == book.columns
    reused = FedPCA(2, epsilon=4.0, codebook=kept).fit_silos(silos)
    np.testing.assert_array_equal(reused.result_.center, book.offset)


def test_the_saved_code_book_of_a_fit_drops_what_the_fit_dropped(tmp_path):
    silos = [clinic(1500, seed).assign(pid=range(1500)) for seed in (1, 2)]
    book = CodeBook(rules=rules({"pid": "drop", **CLINIC}))
    model = FedPCA(2, epsilon=4.0, codebook=book).fit_silos(silos)
    model.save(tmp_path)
    kept = CodeBook.load(tmp_path / "codebook.toml")
    assert kept.rules.dropped == ("pid",)
    np.testing.assert_array_equal(load(tmp_path).transform(silos[0]), model.transform(silos[0]))
    again = FedPCA(2, epsilon=4.0, codebook=kept).fit_silos(silos)
    assert again.feature_names_in_.tolist() == ["sex=F", "sex=M", "sex=other", "age", "weight"]
    single = FedPCA(2, epsilon=math.inf, codebook=book).fit(silos[0])
    assert single.result_.record.table_rules.dropped == ("pid",)


def test_columns_are_dropped_where_they_are_and_matched_by_their_own_names(tmp_path):
    one, other = clinic(9).assign(pid=1), clinic(9, 1)[["weight", "age", "sex"]]
    opened = {"one": open_source(one), "other": open_source(other)}
    columns, sources = match_tables(opened, rules({"pid": "drop", **CLINIC}))
    assert columns == ("sex=F", "sex=M", "sex=other", "age", "weight")
    assert sources["other"].columns == columns
    with pytest.raises(InputError, match="has no column 'weight', 'sex'"):
        match_tables({"a": opened["other"], "b": open_source(other[["age"]])}, rules(CLINIC))
    with pytest.raises(InputError, match="no column 'height', for which there is a rule"):
        match_tables(opened, rules({"height": "number"}))


NOBODY = "Zaphod"


def test_all_problems_of_all_tables_are_told_in_one_list_and_no_cell_is():
    bad = clinic(40).assign(when="2020-01-01", stage=NOBODY)
    worse = clinic(40, 1).assign(when="2020-01-01", stage="low")
    worse.loc[5, "stage"] = NOBODY
    said = {"sex": ["F", "M"], "stage": {"ordered": ["low", "high"]}}
    model = FedPCA(1, epsilon=1.0, codebook=CodeBook(rules=rules(said)))
    with pytest.raises(CellError) as caught:
        model.fit_silos({"bad": bad, "worse": worse})
    first, *lines = str(caught.value).splitlines()
    assert first == "cells of 2 columns in 2 tables do not fit the rules:"
    at = lines.index("  words that are not in the rule: 'stage' in 41 cells")
    assert lines[at + 1] == "    'stage' must hold only the words 'low', 'high'"
    assert lines[at + 2].startswith(
        "    translate them in the silo's file ([columns.words]), or list them in"
    )
    with pytest.raises(CellError) as caught:
        model.fit_silos({"bad": bad.drop(columns="when")})
    assert str(caught.value).startswith(
        "column 'stage' of silo 'bad' must hold only the words 'low', 'high', got other words in 40 cells"
    )
    with pytest.raises(CellError) as caught:
        model.fit_silos({"bad": bad, "worse": worse})
    problems = caught.value.problems
    assert [*problems] == ["silo 'bad'", "silo 'worse'"]
    told = "\n".join(sentence for own in problems.values() for sentence in own)
    assert (
        "column 'stage' must hold only the words 'low', 'high', got other words at row 6; translate them in"
        in told
    )
    assert 'kind = "date" and a public origin and unit' in told
    assert NOBODY not in f"{caught.value}{told}"


def test_nothing_is_charged_for_tables_that_are_refused(tmp_path):
    ledgers = ledgers_in(tmp_path, ["a"])
    model = FedPCA(1, epsilon=1.0, delta=1e-6, codebook=CodeBook(rules=rules({"sex": ["F"]})))
    frame = clinic(50).astype({"age": object})
    frame.loc[3, "age"] = "?"
    with pytest.raises(CellError):
        model.fit_silos({"a": frame}, ledgers=ledgers)
    assert spent(ledgers["a"]).epsilon == 0


BOOK = comparisons(["ash", "birch", "oak"])
MARGINS = comparisons(["ash", "birch", "oak"], winner="home", loser="away", margin="goals", range=(-5, 5))


def signed(table: pd.DataFrame, book: CodeBook) -> np.ndarray:
    assert book.rules is not None
    (block,) = ruled(open_source(table), book.rules).blocks(100)
    return np.asarray(block)


def test_ratings_outside_their_range_count_as_its_ends():
    rating = {"kind": "rating", "range": [1, 5]}
    long = pd.DataFrame({"who": ["u", "u", "v"], "what": ["x", "y", "x"], "stars": [9.0, -3.0, 3.0]})
    wide = long.pivot_table(index="who", columns="what", values="stars")
    by_row = {"who": "person", "what": "item", "stars": {**rating, "items": ["x", "y"]}}
    expected = [[1, KNOWN, -1, KNOWN], [0, KNOWN, 0, 0]]
    assert signed(wide, CodeBook(rules={"x": rating, "y": rating})).tolist() == expected
    assert [row[:4] for row in signed(long, CodeBook(rules=by_row)).tolist()] == expected


def test_a_comparison_is_the_winner_less_the_loser_and_the_outcome():
    table = pd.DataFrame({"loser": ["oak", "ash"], "winner": [" ash ", "birch"]})
    assert signed(table, BOOK).tolist() == [[1, 0, -1, 1], [-1, 1, 0, 1]]
    assert BOOK.columns == ("ash", "birch", "oak", "outcome")


def test_no_row_is_longer_than_the_bound():
    table = pd.DataFrame({"home": ["ash"] * 4, "away": ["oak"] * 4, "goals": [9, -9, 5, 0]})
    treated, _ = MARGINS.treatment.apply(signed(table, MARGINS))
    assert np.linalg.norm(treated, axis=1).max() < 1
    assert pytest.approx(3**0.5, rel=3e-5) == COMPARISON_BOUND
    assert COMPARISON_BOUND > 3**0.5


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"winner": "yew"}, "must name only items of the public list, got other names"),
        ({"winner": "oak"}, "must name two different items, got the same item twice"),
        ({"loser": None}, "must name an item in every row, got nothing"),
        ({"points": None}, "must have a number in 'points', got nothing"),
    ],
)
def test_what_compares_nothing_is_refused_by_its_row_and_never_quoted(change, said):
    table = pd.DataFrame({"winner": ["ash"] * 3, "loser": ["oak"] * 3, "points": [1.0, 2.0, 3.0]})
    table.loc[1, list(change)] = list(change.values())
    book = comparisons(["ash", "birch", "oak"], margin="points", range=(0, 9))
    with pytest.raises(CellError, match=f"columns 'winner' and 'loser' of .* {said} at row 2") as no:
        FedCovariance(epsilon=1.0, codebook=book).fit_silos([table])
    assert "yew" not in str(no.value)


PAIR = {"items": ["a", "b"], "against": "loser"}


@pytest.mark.parametrize(
    ("rule", "others", "said"),
    [
        ({"items": ["a", "b"]}, {}, "must be the column of the item that lost"),
        ({**PAIR, "items": ["a"]}, {}, "must be the words that silos agree on"),
        ({"kind": "comparison", "against": "x"}, {}, "must be the words that silos agree on, got none"),
        ({**PAIR, "against": "winner"}, {}, "must be another column"),
        ({**PAIR, "margin": "m"}, {}, "margin in .* must be given with range"),
        ({**PAIR, "range": [0, 1]}, {}, "margin in .* must be given with range"),
        (PAIR, {"age": "number"}, "must have comparisons and no other column, got 'age'"),
        (PAIR, {"loser": "drop"}, "no other column, got 'loser'"),
        ({**PAIR, "items": ["a", "outcome"]}, {}, "distinct column names"),
        ({**PAIR, "against": 3}, {}, "must have values of the right types"),
    ],
)
def test_wrong_rules_of_comparisons_are_refused(rule, others, said):
    with pytest.raises(InputError, match=said):
        table_rules({"winner": rule, **others}, "here")


def test_columns_beside_comparisons_are_refused_unless_they_are_dropped():
    table = pd.DataFrame({"winner": ["ash"], "loser": ["oak"], "day": [1.0]})
    with pytest.raises(InputError, match="no other column, got 'day'; drop it"):
        signed(table, BOOK)
    with pytest.raises(InputError, match="has no column 'loser', for which"):
        signed(table[["winner"]], BOOK)
    said = {"winner": {"items": ["ash", "oak"], "against": "loser"}, "day": "drop"}
    assert signed(table, CodeBook(rules=table_rules(said, ""))).tolist() == [[1, -1, 1]]


def test_the_book_is_the_same_after_it_was_written_and_has_no_other_numbers(tmp_path):
    path = MARGINS.save(tmp_path / "items.toml")
    again = CodeBook.load(path)
    assert again.rules == MARGINS.rules
    assert again.treatment.digest() == MARGINS.treatment.digest()
    assert not again.is_draft
    with pytest.raises(InputError, match="must have the numbers of its rule"):
        replace(BOOK, bound=1.0)


@pytest.mark.parametrize("standardize", [True, False])
def test_a_covariance_of_rows_with_gaps_gives_the_fit_and_no_private_code_book(standardize):
    rng = np.random.default_rng(0)
    table = pd.DataFrame(rng.normal(size=(300, 3)) + rng.normal(size=(300, 1)), columns=list("abc")) * 7
    table.loc[:50, "b"] = np.nan
    released = FedCovariance(epsilon=math.inf, codebook={"b": "number"}).fit_silos([table])
    whole = FedPCA(2, epsilon=math.inf, codebook={"b": "number"}, standardize=standardize)
    whole.fit_silos([table])
    part = FedPCA(2, epsilon=math.inf, standardize=standardize).fit_covariance(released.release_)
    np.testing.assert_allclose(part.components_, whole.components_, rtol=1e-9)
    np.testing.assert_allclose(part.explained_variance_, whole.explained_variance_, rtol=1e-9)
    for book in filter(None, (released.codebook_, part.result_.record.book)):
        with pytest.raises(InputError, match="must be public in a private fit"):
            FedPCA(2, epsilon=1.0, codebook=book).fit_silos([table])
