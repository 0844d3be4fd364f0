"""What a table holds, for its owner only: types, missing cells, levels, doubtful columns."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from importlib.resources import files as resources
from itertools import chain
from typing import Any, Literal

import numpy as np

from fedpower.exceptions import CellError, InputError
from fedpower.rows.arrays import DaskSource
from fedpower.rows.plink import PlinkSource
from fedpower.rows.ruled import rules_of_source
from fedpower.rows.source import RowSource
from fedpower.rows.tables import TableSource
from fedpower.rules.codebook import FORMAT
from fedpower.rules.expressions import MISSING, Cells, compiled, problems_in, staged
from fedpower.rules.rules import Rule
from fedpower.toml import as_toml, toml_key
from fedpower.values import Vector, pl

_Type = Literal["number", "yes/no", "date", "text", "nothing", "unknown"]
"""What cells are; ``unknown`` where a table stores them as text."""

_ROWS = 2**16
"""Rows that are read together; of a fit's tables the first so many are inspected before it begins."""

_MOST_LEVELS = 1000
"""More different cells than this are not counted."""

_MOST_REMEMBERED = 2**20
"""So many cells of a column are compared with each other at most."""

_FEWEST = 20
"""Rows below which different numbers, or the same ones, mean nothing."""

_OFTEN = 3
"""So many cells with one far number are more than a mistake."""

_FEW = 10
"""So many different whole numbers at most may be names of levels."""

_IDS = frozenset(
    ("id", "ids", "uid", "uuid", "guid", "pid", "pidnum", "ssn", "mrn", "nhs", "iban", "zip", "zipcode",
     "postcode", "plz", "phone", "email", "patient", "patno", "subject", "identifier", "rowid")
)  # fmt: skip
_PERSONS = "patient|person|subject|client|user|customer|visit|record|row|case|sample|account|member"
_OWN_ID = re.compile(rf"({_PERSONS})(id|no|nr|num|number)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_TRIED = {
    "number": Rule(column=""),
    "yes/no": Rule(column="", kind="yes/no"),
    "date": Rule(column="", kind="date", origin="1970-01-01"),
}
"""What cells are read as, to find what they are."""


def _is_named_like_an_id(name: str) -> bool:
    words = [word.lower() for word in _WORDS.findall(name)]
    return any(word in _IDS or _OWN_ID.fullmatch(word) for word in words)


@dataclass(slots=True, kw_only=True)
class ColumnLook:
    """What one column holds."""

    name: str
    type: _Type = "nothing"
    n_rows: int = 0
    n_missing: int = 0
    n_odd: int = 0
    levels: dict[str, int] | None = field(default_factory=dict)
    low: float | None = None
    high: float | None = None
    doubts: list[str] = field(default_factory=list)
    covered: Counter[str] = field(default_factory=Counter)
    missing: Counter[str] = field(default_factory=Counter)
    numbers: list[Vector] = field(default_factory=list)

    def add(self, cells: Mapping[str, Cells], batch: pl.DataFrame) -> None:
        """Count a batch's cells by what they can be read as, and remember levels and numbers."""
        self.n_rows += len(batch)
        for kind, rule in _TRIED.items():
            made = compiled(replace(rule, column=self.name), cells, batch.schema)
            ready = staged(batch, [made])
            for _, problem, count, _ in problems_in(ready, [made]):
                self.missing[kind] += count if problem.got == MISSING else 0
                self.covered[kind] -= count
            self.covered[kind] += len(batch)
            if kind == "number" and sum(map(len, self.numbers)) < _MOST_REMEMBERED:
                numbers = ready.select(made.values[0].alias("x"))["x"].drop_nulls().to_numpy()
                self.numbers.append(numbers[np.isfinite(numbers)])
        if self.levels is not None:
            for value, count in batch[self.name].drop_nulls().value_counts().iter_rows():
                if word := str(value).strip():
                    self.levels[word] = self.levels.get(word, 0) + count
            if len(self.levels) > _MOST_LEVELS:
                self.levels = None

    def finish(self, stored: _Type) -> ColumnLook:
        """Conclude what the column holds: by its cells, unless it is stored as truths or days."""
        covered = self.covered
        is_number = 2 * covered["number"] >= self.n_rows - self.missing["number"]
        self.n_missing = self.missing["number" if is_number else "yes/no"]
        present = self.n_rows - self.n_missing
        if present:
            if stored in ("yes/no", "date"):
                self.type = stored
            elif 2 * covered["number"] >= present:
                self.type = "number"
            elif covered["yes/no"] == present:
                self.type = "yes/no"
            else:
                self.type = "date" if 2 * covered["date"] >= present else "text"
            self.n_odd = 0 if self.type == stored != "number" else present - covered.get(self.type, present)
        if self.levels is not None:
            self.levels = dict(sorted(self.levels.items(), key=lambda level: (-level[1], level[0])))
        numbers = np.concatenate([*(self.numbers if self.type == "number" else ()), np.zeros(0)])
        if numbers.size:
            self.low, self.high = float(numbers.min()), float(numbers.max())
        self.doubts = list(_doubts(self, numbers))
        return self


def _doubts(look: ColumnLook, numbers: Vector) -> Iterator[str]:
    if look.type == "nothing":
        yield "every cell is missing"
        return
    yield from _suspicions(look.name, numbers)
    if look.type == "date":
        yield "needs a public origin and unit"
    if look.n_odd:
        yield f"{look.n_odd} cells are not {'dates' if look.type == 'date' else 'numbers'}"
    if look.levels is not None and len(look.levels) == 1 and look.n_rows > 1:
        yield "constant"
    if _is_whole(numbers) and look.levels and 1 < len(look.levels) <= _FEW:
        yield "few values: perhaps levels"
    for value, count in _codes(numbers):
        yield f"{value:.10g} in {count} cells: perhaps a code for missing"


def _codes(numbers: Vector) -> Iterator[tuple[float, int]]:
    """Yield numbers that are repeated and far from all others, as codes for missing cells are."""
    values, counts = np.unique(numbers, return_counts=True)
    while len(values) > 2 and counts.sum() >= _FEWEST:
        is_far = {-1: values[-1] + values[0] > 2 * values[-2], 0: values[-1] + values[0] < 2 * values[1]}
        is_far[0] |= len(values) > 3 and values[0] == -1 and values[1] >= 0
        # Among few values, which may be levels, a code is negative or has no digit but 9.
        few = len(values) <= _FEW
        coded = {end: values[end] < 0 or set(f"{values[end]:.10g}") <= {"9", "."} for end in is_far}
        places = [end for end in is_far if is_far[end] and counts[end] >= _OFTEN and (coded[end] or not few)]
        if not places:
            return
        yield float(values[places[0]]), int(counts[places[0]])
        values, counts = np.delete(values, places[0]), np.delete(counts, places[0])


def _suspicions(name: str | None, numbers: Vector) -> Iterator[str]:
    """Yield why a column may be an id and no measurement."""
    if name is not None and _is_named_like_an_id(name):
        yield "named like an id"
    if _is_whole(numbers) and np.unique(numbers).size == numbers.size:
        yield "different in every row"


def _is_whole(numbers: Vector) -> bool:
    return bool(numbers.size >= _FEWEST and np.all(numbers == np.floor(numbers)))


def look_at(source: RowSource) -> list[ColumnLook]:
    """Return what every column of a table holds, from all of its rows."""
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to be inspected, got unnamed columns"
        )
    columns = [ColumnLook(name=name) for name in source.columns]
    for part, _, batch in source.table.batches(source.columns, _ROWS):
        for column in columns:
            column.add(part.cells, batch)
    types = stored_types(source)
    return [column.finish(types[column.name]) for column in columns]


def together(looks: Sequence[ColumnLook]) -> ColumnLook:
    """Return what a column holds in several files."""
    lows, highs = ([x for look in looks if (x := getattr(look, end)) is not None] for end in ("low", "high"))
    levels: Counter[str] | None = Counter()
    for look in looks:
        levels = None if levels is None or look.levels is None else levels + Counter(look.levels)
    ordered = None if levels is None else dict(levels.most_common())
    return replace(looks[0], levels=ordered, low=min(lows, default=None), high=max(highs, default=None))


def stored_types(source: RowSource) -> dict[str, _Type]:
    """Return the types under which a table stores its columns, which are public."""
    assert isinstance(source, TableSource), "it was inspected"

    def type_of(dtype: Any) -> _Type:
        if dtype in (pl.Date, pl.Datetime):
            return "date"
        is_number = dtype is not None and dtype.is_numeric()
        return "yes/no" if dtype == pl.Boolean else "number" if is_number else "unknown"

    return {name: type_of(source.table.cells[name].dtype) for name in source.columns}


def doubtful(source: RowSource) -> list[tuple[str, str]]:
    """Return columns of a fit that may be no measurements, and why; from the first rows, for its owner."""
    while hasattr(source, "rows"):  # what reads others adds persons, fills gaps or keeps count
        source = source.rows
    is_query = isinstance(source, TableSource) and source.table.query is not None
    if source.sparse or is_query or isinstance(source, DaskSource | PlinkSource):
        return []
    rules = rules_of_source(source)
    known = None
    if rules is not None:
        known = {rule.column for rule in rules.rules if rule.kind == "number" and not rule.range}
    blocks = source.blocks(_ROWS)
    try:
        rows = np.asarray(next(iter(blocks)))
    except CellError:  # the fit refuses them
        return []
    finally:
        if isinstance(blocks, Generator):
            blocks.close()  # left open, a reader's thread may outlive the interpreter
    names: Sequence[str] = source.columns or [f"{place + 1}" for place in range(rows.shape[1])]
    doubts = []
    for name, cells in zip(names, rows.T, strict=True):
        if known is not None and name not in known:
            continue
        reasons = list(_suspicions(name if source.columns else None, cells))
        if cells.size >= _FEWEST and cells.min() == cells.max():
            reasons.append("constant")
        if reasons:
            doubts.append((name, f"is {' and '.join(reasons)}"))
    return doubts


def _drafted(name: str, kinds: set[_Type]) -> tuple[dict[str, Any], str]:
    """Return the rule that a column's name and types suggest, and what is to be filled in."""
    if not name:
        return {"kind": "drop"}, "it has no name"
    if _is_named_like_an_id(name):
        return {"kind": "drop"}, "named like an id; if it is a measurement, give its kind"
    known = kinds - {"unknown", "nothing"}
    if len(known) > 1:
        return {"kind": ""}, "its type differs between tables: fill in its kind, or levels"
    if "text" in known:
        return {"levels": []}, "fill in the possible words"
    if "date" in known:
        rule = {"kind": "date", "origin": "", "unit": "days", "missing": "offset"}
        return rule, "fill in the day that counts as 0"
    if known:
        return {"kind": known.pop(), "missing": "offset"}, ""
    return {"kind": ""}, "fill in its kind, or levels"


_PUBLIC = "# Drafted from names and stored types alone: no row has a part in it.\n"
_CONFIDENTIAL = (
    "# Confidential: drafted from rows. Do not send; propose a code book from what you know instead.\n"
)


def drafted(tables: Sequence[Mapping[str, _Type]], *, from_rows: bool) -> str:
    """Return the text of a draft of a code book, from the types of columns in several tables."""
    help = resources("fedpower.rules").joinpath("draft.toml").read_text(encoding="utf-8")
    head = (_CONFIDENTIAL if from_rows else _PUBLIC) + help
    lines = [f"{head}format = {as_toml(FORMAT)}", "", "[rules]"]
    for column in dict.fromkeys(chain.from_iterable(tables)):
        rule, hint = _drafted(column, {table[column] for table in tables if column in table})
        lines.append(f"{toml_key(column)} = {as_toml(rule)}{f'  # {hint}' if hint else ''}")
    return "\n".join(lines) + "\n"
