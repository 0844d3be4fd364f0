"""Whether a ledger refuses a study depends on what is stored, never on how studies read it."""

import sqlite3
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet
import pytest
from scipy import sparse

from benchmarks.fits import fed_pca
from budgets import spent
from fedpower import Edge, FedCovariance, FedPCA, Node
from fedpower.exceptions import LedgerError
from fedpower.privacy import Ledger
from fedpower.rows.opening import open_source, split_by_group
from fedpower.rows.sql import SqlQuery
from layers import planted

NAMES = ("who", "family", "stage", "cd4", "day", "age")
DROP_IDS = {"who": {"kind": "drop"}, "family": {"kind": "drop"}}
READ = {
    "stage": {"ordered": ["I", "II", "III", "IV"]},
    "cd4": {"kind": "number", "range": [0, 10], "missing": 5},
    "day": {"kind": "date", "origin": "2020-01-01", "range": [0, 1000]},
}
"""How study A reads the columns that are not numbers."""


@dataclass(frozen=True, kw_only=True)
class Question:
    """What two studies could ask about a row by whether the second is refused.

    A cell of the first row differs between the worlds: ``column``, and ``other`` in the second. ``first`` and
    ``second`` are the studies' parameters, ``rules`` what the second one says otherwise of columns.
    """

    column: str
    other: str
    rules: dict[str, Any] = field(default_factory=dict)
    first: dict[str, Any] = field(default_factory=dict)
    second: dict[str, Any] = field(default_factory=dict)


def read_otherwise(column: str, **changed: Any) -> dict[str, Any]:
    """Return the rule of a column with some of it changed, by the column's name."""
    return {column: {**READ[column], **changed}}


QUESTIONS = {
    "does anyone have stage IV": Question(
        column="stage", other="IV", rules=read_otherwise("stage", ordered=["I", "II", "IV", "III"])
    ),
    "is any stage missing": Question(column="stage", other="", rules=read_otherwise("stage", missing="IV")),
    "is any cd4 above 10": Question(column="cd4", other="17", rules=read_otherwise("cd4", range=[0, 20])),
    "is any cd4 missing": Question(column="cd4", other="", rules=read_otherwise("cd4", missing=1)),
    "does a book say offset": Question(
        column="cd4", other="", rules=read_otherwise("cd4", range=[0, 12], missing="offset")
    ),
    "is any cd4 exactly 4.217": Question(
        column="cd4", other="4.217", rules=read_otherwise("cd4", missing_words=["4.217"])
    ),
    "was anyone seen late": Question(
        column="day", other="2024-01-01", rules=read_otherwise("day", range=[0, 2000])
    ),
    "do two persons share a family": Question(
        column="family", other="f2", first={"unit": "who"}, second={"unit": "family"}
    ),
    "does a person have two rows": Question(column="who", other="w2", second={"unit": "who"}),
    "does a person have three rows": Question(
        column="who",
        other="w2",
        first={"unit": "who", "rows_per_unit": 1},
        second={"unit": "who", "rows_per_unit": 2},
    ),
}
"""By what they ask. In the first world a missing stage counts as the first one: see `rules_of`."""


def rows_of(question: Question, world: int) -> list[list[str]]:
    rng = np.random.default_rng(5)
    rows = [
        [f"w{place}", f"f{place}", ["I", "II"][place % 2], f"{2 + place % 7}",
         f"2021-0{1 + place % 9}-11", f"{rng.normal(1):.3f}"]
        for place in range(24)
    ]  # fmt: skip
    if world:
        rows[0][NAMES.index(question.column)] = question.other
    return rows


def write_world(path: Path, question: Question, world: int) -> None:
    lines = [",".join(NAMES), *(",".join(row) for row in rows_of(question, world))]
    path.write_text("\n".join(lines) + "\n")


def rules_of(question: Question, *, second: bool) -> dict[str, Any]:
    read = {**READ, "stage": {**READ["stage"], "missing": "I"}}
    return {**DROP_IDS, **read, **(question.rules if second else {})}


def book_of(rules: dict[str, Any]) -> str:
    lines = ['format = "fedpower-codebook/2"', "[rules]"]
    for column, rule in rules.items():
        said = ", ".join(f"{key} = {_toml(value)}" for key, value in rule.items())
        lines.append(f"{column} = {{ {said} }}")
    return "\n".join(lines) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return f'"{value}"' if isinstance(value, str) else str(value)


def make_ledger(path: Path) -> Path:
    Ledger.create(path, epsilon=60.0, delta=1e-5, silo="north").close()
    return path


pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")
TERMS = {"n_components": 1, "epsilon": 0.01, "delta": 1e-6, "row_norm": 3.0}
WORLDS = (0, 1)


def fit(silo: Any, ledger: Path, *, version: str = "1", **terms: Any) -> FedPCA:
    model = fed_pca(**{**TERMS, **terms})
    return model.fit_silos({"north": silo}, ledgers={"north": ledger}, data_version=version)


def read_frame(path: Path) -> pd.DataFrame:
    return pd.read_csv(path, keep_default_na=False, dtype={"cd4": str})


def read_query(path: Path) -> SqlQuery:
    place, table = path.with_suffix(".sqlite"), read_frame(path)
    table["cd4"] = pd.to_numeric(table["cd4"], errors="coerce")
    with closing(sqlite3.connect(place)) as database:
        table.to_sql("visits", database, index=False, if_exists="replace")
    return SqlQuery("SELECT * FROM visits", f"sqlite:///{place}")


FORMS: dict[str, Callable[[Path], Any]] = {
    "file": lambda path: path,
    "data frame": read_frame,
    "Arrow table": lambda path: pa.Table.from_pandas(read_frame(path)),
    "query": read_query,
}
FEW = "is any cd4 missing", "do two persons share a family"


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("form", "asked"), [(form, asked) for form in FORMS for asked in (QUESTIONS if form == "file" else FEW)]
)
def test_a_second_study_of_a_file_is_answered_in_both_worlds(tmp_path, form, asked, world):
    question = QUESTIONS[asked]
    path, ledger = tmp_path / "north.csv", make_ledger(tmp_path / "north.ledger")
    write_world(path, question, world)
    for second, more in enumerate((question.first, question.second)):
        book = tmp_path / f"{second}.toml"
        book.write_text(book_of(rules_of(question, second=bool(second))))
        fit(FORMS[form](path), ledger, codebook=book, **more)
        assert spent(ledger).n_releases == second + 1


@pytest.mark.parametrize("form", ["file", "query"])
def test_a_missing_cell_is_prepared_charged_and_stated_as_an_extreme_one_is(tmp_path, form):
    told: list[Any] = []
    for other in ("", "1e300"):
        folder = tmp_path / f"world {other}"
        folder.mkdir()
        path, ledger = folder / "north.csv", make_ledger(folder / "north.ledger")
        question = Question(column="cd4", other=other)
        write_world(path, question, 1)
        for rule in ({}, {"range": [0, 10]}):
            cd4 = {"kind": "number", "missing": "offset", **rule}
            book = folder / f"{len(rule)}.toml"
            book.write_text(book_of({**rules_of(question, second=False), "cd4": cd4}))
            model = fit(FORMS[form](path), ledger, codebook=book, row_norm=None, epsilon=1.0)
            told.append((str(model.privacy_), model.privacy_.as_dict()))
        with Ledger.open(ledger) as opened:
            told.append([(each.purpose, each.study, each.mu) for each in opened.entries()])
    assert told[:3] == told[3:]
    assert len(told[2]) == 12


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({"factors": {"b": 2.0}}, {"factors": {"b": 3.0}}),
        ({"offsets": {"b": 0.0}}, {"offsets": {"b": 1.0}}),
        ({"rename": {"b": "x"}}, {"rename": {"c": "x"}}),
        ({"drop": ["c"]}, {"drop": ["c"], "factors": {"b": -1.0}}),
        ({}, {"columns": ["a", "b"], "extra": "drop"}),
    ],
    ids=["factors", "offsets", "names", "dropped columns", "chosen columns"],
)
def test_a_silo_s_own_names_and_units_are_answered_in_both_worlds(tmp_path, first, second, world):
    rows = np.zeros((20, 3))
    rows[:, 0] = np.arange(20) / 20
    rows[0, 1] = world
    ledger, path = make_ledger(tmp_path / "north.ledger"), tmp_path / "north.csv"
    pd.DataFrame(rows, columns=["a", "b", "c"]).to_csv(path, index=False)
    for version, reading in enumerate((first, second), start=1):
        source = open_source(path, **reading)
        columns = tuple(name for name in ("a", "x") if name in source.columns)
        source = source.select(columns, extra="drop") if "rename" in reading else source
        if version == 2 and "columns" not in reading:
            with pytest.raises(LedgerError, match=r"match version '1' .* with data_version=\{'north': '2'\}"):
                fit(source, ledger)
            assert spent(ledger).n_releases == 1
        fit(source, ledger, version=str(version))


def test_another_reading_and_silos_by_another_column_are_new_versions_and_other_releases(tmp_path):
    table = pd.DataFrame(np.random.default_rng(0).normal(size=(30, 2)), columns=["a", "b"])
    path = tmp_path / "north.csv"
    table.to_csv(path, index=False)
    columns = {"ward": ["north", "south", "south"] * 10, "clinic": ["south", "north", "south"] * 10}
    table = table.assign(**columns)
    readings = (
        [open_source(path, factors={"a": factor}) for factor in (0.1, 0.2)],
        [split_by_group(table, by, drop=[*{*columns} - {by}])["north"] for by in columns],
    )
    for name, (one, other) in zip(("units", "groups"), readings, strict=True):
        ledger = make_ledger(tmp_path / f"{name}.ledger")
        for reading, version, expected in ((one, "1", 1), (other, "2", 2), (one, "1", 2)):
            fit(reading, ledger, version=version)
            assert spent(ledger).n_releases == expected
            with pytest.raises(LedgerError, match="must match version"):
                fit(other if reading is one else one, ledger, version=version)


@pytest.mark.parametrize("world", WORLDS)
@pytest.mark.parametrize("first", [Edge(1.0), Node()], ids=["edge_weight", "edge or row"])
def test_a_network_is_answered_in_both_worlds(tmp_path, first, world):
    path = tmp_path / "north.csv"
    path.write_text(f"source,target,weight\nv0,v{world},1\n")
    held = (path, [f"v{place}" for place in range(12)]), (sparse.csr_array(planted(12)[0]), None)
    for place, (silo, nodes) in enumerate(held):
        ledger = make_ledger(tmp_path / f"{place}.ledger")
        for unit in (first, Edge(2.0)):
            model = FedCovariance(epsilon=0.01, delta=1e-6, unit=replace(unit, nodes=nodes))
            model.fit_silos({"north": silo}, ledgers={"north": ledger})


def a_csv(folder: Path, question: Question, world: int) -> Path:
    write_world(folder / "north.csv", question, world)
    return folder / "north.csv"


def a_folder(folder: Path, question: Question, world: int) -> Path:
    (folder / "north").mkdir(exist_ok=True)
    for place, other in enumerate((0, world)):
        a_csv(folder, question, other).replace(folder / "north" / f"{place}.csv")
    return folder / "north"


def a_parquet(folder: Path, question: Question, world: int) -> Path:
    table = pa.Table.from_pandas(read_frame(a_csv(folder, question, world)))
    pa.parquet.write_table(table, folder / "n.parquet")
    return folder / "n.parquet"


CHANGED: dict[str, Callable[[Path, Question, int], Any]] = {
    "folder": a_folder,
    "parquet": a_parquet,
    **{form: lambda *where, of=of: of(a_csv(*where)) for form, of in FORMS.items()},
}


@pytest.mark.parametrize(
    ("form", "column"),
    [*((form, "cd4") for form in CHANGED), *(("file", column) for column in NAMES if column != "cd4")],
)
def test_data_that_changed_under_a_version_are_refused(tmp_path, form, column):
    """Also in columns that the rules drop."""
    ledger, book = make_ledger(tmp_path / "north.ledger"), tmp_path / "book.toml"
    question = Question(column=column, other=rows_of(QUESTIONS[FEW[0]], 0)[1][NAMES.index(column)])
    book.write_text(book_of(rules_of(question, second=False)))
    for _ in range(2):
        fit(CHANGED[form](tmp_path, question, 0), ledger, codebook=book)
    with pytest.raises(LedgerError, match="the data of silo 'north' must match version"):
        fit(CHANGED[form](tmp_path, question, 1), ledger, codebook=book)
    assert spent(ledger).n_releases == 1


@pytest.mark.parametrize("made", [np.asarray, sparse.csr_array, np.asfortranarray])
def test_arrays_are_known_by_their_numbers(tmp_path, made):
    rows = np.random.default_rng(0).integers(0, 3, (20, 3)).astype(float)
    ledger = make_ledger(tmp_path / "north.ledger")
    for each in (rows, made(rows)):
        fit(each, ledger)
    assert spent(ledger).n_releases == 1
    rows[3, 1] += 1e-9
    with pytest.raises(LedgerError, match="got other data"):
        fit(made(rows), ledger)
