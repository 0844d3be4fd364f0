"""Two worlds that differ in one cell, and pairs of studies that read that cell differently."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from fedpower.privacy import Ledger

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


QUESTIONS = {
    "does anyone have stage IV": Question(
        column="stage", other="IV", rules={"stage": {"ordered": ["I", "II", "IV", "III"]}}
    ),
    "is any stage missing": Question(
        column="stage", other="", rules={"stage": {"ordered": ["I", "II", "III", "IV"], "missing": "IV"}}
    ),
    "is any cd4 above 10": Question(
        column="cd4", other="17", rules={"cd4": {"kind": "number", "range": [0, 20], "missing": 5}}
    ),
    "is any cd4 missing": Question(
        column="cd4", other="", rules={"cd4": {"kind": "number", "range": [0, 10], "missing": 1}}
    ),
    "does a book say offset": Question(
        column="cd4", other="", rules={"cd4": {"kind": "number", "range": [0, 12], "missing": "offset"}}
    ),
    "is any cd4 exactly 4.217": Question(
        column="cd4",
        other="4.217",
        rules={"cd4": {"kind": "number", "range": [0, 10], "missing": 5, "missing_words": ["4.217"]}},
    ),
    "was anyone seen late": Question(
        column="day",
        other="2024-01-01",
        rules={"day": {"kind": "date", "origin": "2020-01-01", "range": [0, 2000]}},
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
