"""What a silo's operator is shown about its rows, and nobody else."""

import logging
import warnings

import numpy as np
import pandas as pd
import pytest

from benchmarks.fits import fed_pca
from fedpower import FedPCA
from fedpower.estimator.fit_warnings import RowsWarning
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.ruled import ruled
from fedpower.rules.codebook import CodeBook
from fedpower.rules.rules import Rule, TableRules
from fedpower.sums.survey import Survey, cells_warnings, odd_cells, other_words

INFINITE = float("inf")


def table(n_rows: int, *, fahrenheit: bool = False, seed: int = 0) -> pd.DataFrame:
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n_rows, 5)) + rng.normal(size=(n_rows, 1))
    rows[:, 2] = 37 + 0.5 * rows[:, 2]
    if fahrenheit:
        rows[:, 2] = 1.8 * rows[:, 2] + 32
    return pd.DataFrame(rows, columns=list("abcde"))


def said(silos: dict, **settings) -> list[str]:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        fed_pca(2, **settings).fit_silos(silos)
    return [str(each.message) for each in caught if each.category is RowsWarning]


@pytest.mark.parametrize("sizes", [(2000, 2000), (3000, 300)])
@pytest.mark.parametrize("settings", [{"epsilon": INFINITE}, {"epsilon": 2.0}], ids=str)
def test_a_column_in_other_units_is_shown_to_who_holds_the_rows(settings, sizes):
    north = table(sizes[0])
    same = said({"north": north, "south": table(sizes[1], seed=1)}, **settings)
    assert not same
    (one, *more) = said({"north": north, "south": table(sizes[1], fahrenheit=True, seed=1)}, **settings)[::-1]
    assert one == (
        "the values of silo 'south' in 'c' are far from those of all silos together; check that it is "
        "in the agreed units (only you see this)"
    )
    assert len(more) <= 1


RULES = TableRules(rules=(Rule(column="sex", kind="levels", levels=("F", "M")),))


def visits(words: str) -> pd.DataFrame:
    return pd.DataFrame({"sex": list(words), "age": np.arange(len(words), dtype=float)})


def test_words_that_are_no_level_are_counted_by_every_pass_anew():
    source = ruled(open_source(visits("FMXFMXX")), RULES)
    survey = Survey(source)
    for _ in range(2):
        survey.prepare()
        assert other_words(survey.source) == {"sex": (3, 7)}
    (told,) = cells_warnings(survey.source)
    assert "3 of 7 rows" in told
    assert "X" not in told


def weights(n_rows: int, *, odd: int = 0, seed: int = 0) -> pd.DataFrame:
    """Weights in a range, some of them codes for missing cells, and every tenth missing."""
    rows = np.random.default_rng(seed).uniform([40, 0, 0], [150, 1, 1], size=(n_rows, 3))
    made = pd.DataFrame(rows, columns=["weight", "a", "b"])
    made.loc[::10, "weight"] = np.nan
    made.loc[1 : 10 * odd : 10, "weight"] = 9999
    return made


@pytest.mark.parametrize("epsilon", [1.0, INFINITE])
@pytest.mark.parametrize("kind", ["rule", "ranges", "date", "file", "groups"])
def test_cells_outside_their_range_are_shown_to_who_holds_the_rows(tmp_path, kind, epsilon):
    silos = {"north": weights(2000), "south": weights(1000, odd=40, seed=1)}
    settings = {"codebook": {"weight": {"kind": "number", "range": [30, 200], "missing": "offset"}}}
    name, span = "silo 'south'", "30 to 200"
    if kind == "ranges":
        silos = {silo: table.fillna({"weight": 80}) for silo, table in silos.items()}
        settings = {"ranges": {"weight": (30, 200)}}
    elif kind == "date":
        rule = {"kind": "date", "origin": "2000-01-01", "range": [0, 5000], "missing": "offset"}
        settings, span = {"codebook": {"weight": rule}}, "0 to 5000"
        for table in silos.values():
            table["weight"] = pd.Timestamp("2000-01-01") + pd.to_timedelta(table["weight"], unit="D")
    elif kind == "file":
        for silo, table in silos.items():
            table.to_csv(tmp_path / f"{silo}.csv", index=False)
        silos = {silo: tmp_path / f"{silo}.csv" for silo in silos}
        name = str(silos["south"])
    elif kind == "groups":
        whole = pd.concat([table.assign(site=silo) for silo, table in silos.items()])
        silos, name = split_by_group(whole, "site"), f"{name} of the data frame"
    present = 1000 if kind == "ranges" else 900
    found = [each for each in said(silos, epsilon=epsilon, **settings) if "outside" in each]
    assert found == [
        f"40 of {present} cells of 'weight' in {name} are outside its range from {span} and count as its "
        "ends (only you see this); check units and codes for missing values"
    ]


def test_a_few_cells_outside_their_range_are_worth_no_sentence():
    rules = TableRules(rules=(Rule(column="weight", range=(30.0, 200.0)),))
    survey = Survey(ruled(open_source(weights(1000, odd=9, seed=1)), rules))
    survey.prepare()
    assert odd_cells(survey.source)["weight"] == (9, 900, (30, 200))
    assert not cells_warnings(survey.source)


def test_what_only_an_operator_may_know_is_in_no_file_of_a_result(tmp_path, caplog):
    caplog.set_level(logging.INFO, logger="fedpower.protocol.silo")
    north, south = table(2000), table(300, fahrenheit=True, seed=1)
    north["sex"], south["sex"] = ["F", "M"] * 1000, ["F", "X"] * 150
    south.loc[:29, "a"] = 9999.0
    rules = TableRules(rules=(*RULES.rules, Rule(column="a", range=(-5.0, 5.0))))
    model = FedPCA(2, epsilon=2.0, codebook=CodeBook(rules=rules))
    with pytest.warns(RowsWarning) as caught:
        model.fit_silos({"north": north, "south": south})
    told = {str(each.message) for each in caught if each.category is RowsWarning}
    assert any("150 of 300 rows of silo 'south'" in each for each in told)
    assert any("30 of 300 cells of 'a' in silo 'south'" in each for each in told)
    assert any("silo 'south' in 'c'" in each for each in told)
    assert any("silo 'south' in 'c'" in each for each in caplog.messages)
    model.result_.save(tmp_path / "result")
    for path in (tmp_path / "result").iterdir():
        content = path.read_bytes().decode("utf-8", errors="replace")
        assert "only you see" not in content
        assert "agreed units" not in content
        assert "count as 'other'" not in content
        assert "outside its range" not in content
    assert not any("south" in each for each in model.result_.record.remarks)
