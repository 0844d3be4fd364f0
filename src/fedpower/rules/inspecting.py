"""What a table holds, for the eyes of whoever has it: types, missing cells, levels, columns to doubt."""

from __future__ import annotations

import re
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np

from fedpower.errors import CellError, InputError
from fedpower.rows.dask_source import DaskSource
from fedpower.rows.plink import PlinkSource
from fedpower.rows.source import RowSource, Vector, pl
from fedpower.rows.sql import QuerySource
from fedpower.rows.tables import Part, TableSource
from fedpower.rows.units import features_of
from fedpower.rules.expressions import compiled, counted_problems, staged
from fedpower.rules.ruled import rules_of_source
from fedpower.rules.rules import Rule

_Type = Literal["number", "yes/no", "date", "text", "nothing", "untold"]
"""What cells are; ``untold`` where a table does not say, because it stores them as text."""

_ROWS = 2**16
"""Rows looked at together; of a fit's tables the first so many are looked at before it begins."""

_MOST_LEVELS = 1000
"""More different cells than this are not told apart."""

_MOST_REMEMBERED = 2**20
"""So many cells of a column are held against each other at most."""

_FEWEST = 20
"""Rows below which different numbers, or the same ones, mean nothing."""

_FEW = 10
"""So many different whole numbers at most may be names of levels."""

_IDS = frozenset(
    ("id", "ids", "uid", "uuid", "guid", "pid", "pidnum", "ssn", "mrn", "nhs", "iban", "zip", "zipcode",
     "postcode", "plz", "phone", "email", "patient", "patno", "subject", "identifier", "rowid")
)  # fmt: skip
_WHOSE = "patient|person|subject|client|user|customer|visit|record|row|case|sample|account|member"
_OWN_ID = re.compile(rf"({_WHOSE})(id|no|nr|num|number)")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")

_TRIED = {
    "number": Rule(column=""),
    "yes/no": Rule(column="", kind="yes/no"),
    "date": Rule(column="", kind="date", origin="1970-01-01"),
}
"""What cells are read as, to see what they are."""


def _is_named_like_an_id(name: str) -> bool:
    """Return whether a column's name says that it tells rows apart."""
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


class _Looked:
    """One column while it is read."""

    def __init__(self, name: str) -> None:
        self._look = ColumnLook(name=name)
        self._rules = {kind: replace(rule, column=name) for kind, rule in _TRIED.items()}
        self._counts = dict.fromkeys(_TRIED, 0)
        self._missing = {"number": 0, "words": 0}
        self._typed: _Type | None = None
        self._numbers: list[Vector] = []
        self._remembered = 0

    def add(self, part: Part, batch: pl.DataFrame) -> None:
        """Take note of some cells."""
        look = self._look
        cells = batch[part.cells[look.name].own]
        if cells.dtype == pl.Boolean:
            self._typed = "yes/no"
        elif cells.dtype.is_temporal():
            self._typed = "date"
        look.n_rows += len(cells)
        for kind, rule in self._rules.items():
            read = compiled(rule, part.cells, batch.schema)
            counts = counted_problems(staged(batch, [read]), read.problems)
            pairs = list(zip(read.problems, counts, strict=True))
            nothing = sum(count for problem, (count, _) in pairs if problem.got == "nothing")
            wrong = sum(count for problem, (count, _) in pairs if problem.got != "nothing")
            self._counts[kind] += len(cells) - nothing - wrong
            self._missing["number" if kind == "number" else "words"] += 0 if kind == "date" else nothing
            if kind == "number" and self._typed is None:
                numbers = batch.select(read.values[0].alias("value"))["value"].drop_nulls().to_numpy()
                self._note(numbers[np.isfinite(numbers)])
        self._count_levels(cells)

    def _note(self, numbers: Vector) -> None:
        look = self._look
        if numbers.size:
            look.low = float(min(numbers.min(), look.low if look.low is not None else np.inf))
            look.high = float(max(numbers.max(), look.high if look.high is not None else -np.inf))
        if self._remembered < _MOST_REMEMBERED:
            self._numbers.append(numbers)
            self._remembered += numbers.size

    def _count_levels(self, cells: pl.Series) -> None:
        levels = self._look.levels
        if levels is None:
            return
        for value, count in cells.drop_nulls().value_counts().iter_rows():
            word = str(value).strip()
            if word:
                levels[word] = levels.get(word, 0) + count
            if len(levels) > _MOST_LEVELS:
                self._look.levels = None
                return

    def look(self) -> ColumnLook:
        """Return what was found."""
        look, counts = self._look, self._counts
        look.n_missing = self._missing["words"]
        present = look.n_rows - look.n_missing
        if 2 * counts["number"] >= look.n_rows - self._missing["number"]:
            look.n_missing = self._missing["number"]
            present = look.n_rows - look.n_missing
        if present:
            likely: _Type = "number"
            if 2 * counts["number"] < present:
                likely = "date" if 2 * counts["date"] >= present else "text"
                likely = "yes/no" if counts["yes/no"] == present else likely
            look.type = self._typed or likely
            right = present if look.type == "text" else counts.get(look.type, present)
            look.n_odd = 0 if self._typed else present - right
        if look.levels is not None:
            look.levels = dict(sorted(look.levels.items(), key=lambda each: (-each[1], each[0])))
        if look.type != "number":
            look.low = look.high = None
        numbers = np.concatenate(self._numbers) if self._numbers else np.zeros(0)
        look.doubts = list(_doubts(look, numbers if look.type == "number" else numbers[:0]))
        return look


def _doubts(look: ColumnLook, numbers: Vector) -> Iterator[str]:
    """Yield what makes a column doubtful."""
    if _is_named_like_an_id(look.name):
        yield "named like an id"
    if look.type == "nothing":
        yield "every cell is missing"
        return
    if look.type == "date":
        yield "needs a public origin and unit"
    if look.n_odd:
        yield f"{look.n_odd} cells are no {'dates' if look.type == 'date' else 'numbers'}"
    if look.levels is not None and len(look.levels) == 1 and look.n_rows > 1:
        yield "constant"
    if _all_different(numbers):
        yield "all different, as an id is"
    elif look.type == "number" and _is_whole(numbers) and look.levels and (
        1 < len(look.levels) <= _FEW
    ):  # fmt: skip
        yield "few different: perhaps levels"


def _is_whole(numbers: Vector) -> bool:
    return bool(numbers.size >= _FEWEST and np.all(numbers == np.floor(numbers)))


def _all_different(numbers: Vector) -> bool:
    return _is_whole(numbers) and np.unique(numbers).size == numbers.size


def look_at(source: RowSource) -> list[ColumnLook]:
    """Return what every column of a table holds, from all of its rows."""
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to be inspected, got rows without them; "
            "give a CSV, Parquet or Feather file, or a query"
        )
    looked = [_Looked(name) for name in source.columns]
    for part, _, batch in source.table.batches((), _ROWS, words=source.columns):
        for each in looked:
            each.add(part, batch)
    return [each.look() for each in looked]


def stored_types(source: RowSource) -> dict[str, _Type]:
    """Return what a table says of its columns without its rows: the types under which it stores them."""
    assert isinstance(source, TableSource), "it was looked at"
    return {name: _type_of(source.table.cells[name].dtype) for name in source.columns}


def _type_of(kind: Any) -> _Type:
    """Return what cells of a type are."""
    if kind is None:
        return "untold"
    if kind == pl.Boolean:
        return "yes/no"
    if kind in (pl.Date, pl.Datetime):
        return "date"
    return "number" if kind.is_numeric() else "untold"


def doubtful(source: RowSource) -> list[tuple[str, str]]:
    """Return columns of a fit that may be no measurements, and why; from the first rows, for its owner."""
    source = features_of(source)
    if source.sparse or isinstance(source, DaskSource | QuerySource | PlinkSource):
        return []
    rules = rules_of_source(source)
    known = None
    if rules is not None:
        known = {rule.column for rule in rules.rules if rule.kind == "number" and not rule.range}
    blocks = source.blocks(_ROWS)
    try:
        rows = np.asarray(next(iter(blocks)))
    except CellError:  # the fit will tell
        return []
    finally:
        if isinstance(blocks, Generator):
            blocks.close()  # left open, a reader's thread may outlive the interpreter
    names: Sequence[str] = source.columns or [f"{place + 1}" for place in range(rows.shape[1])]
    found = []
    for name, cells in zip(names, rows.T, strict=True):
        if known is not None and name not in known:
            continue
        why = []
        if source.columns is not None and _is_named_like_an_id(name):
            why.append("is named like an id")
        if cells.size >= _FEWEST and cells.min() == cells.max():
            why.append("is constant")
        if _all_different(cells):
            why.append("has whole numbers that are all different, as an id has")
        if why:
            found.append((name, " and ".join(why)))
    return found


def draft_of(tables: Iterable[Mapping[str, _Type]]) -> dict[str, tuple[dict[str, Any], str]]:
    """Return by column the rule that its name and types suggest, and what is to be filled in."""
    found: dict[str, set[_Type]] = {}
    for types in tables:
        for name, kind in types.items():
            found.setdefault(name, set()).add(kind)
    return {name: _drafted(name, kinds) for name, kinds in found.items()}


def _drafted(name: str, kinds: set[_Type]) -> tuple[dict[str, Any], str]:
    if not name:
        return {"kind": "drop"}, "it has no name"
    if _is_named_like_an_id(name):
        return {"kind": "drop"}, "by its name an id; if it is a measurement, say its kind"
    told = kinds - {"untold", "nothing"}
    if len(told) > 1:
        return {"kind": ""}, "tables differ in its type: fill in its kind, or levels"
    if "text" in told:
        return {"levels": []}, "fill in the words of the form"
    if "date" in told:
        drafted = {"kind": "date", "origin": "", "unit": "days", "missing": "offset"}
        return drafted, "fill in the day that is 0"
    if told:
        return {"kind": told.pop(), "missing": "offset"}, ""
    return {"kind": ""}, "fill in its kind, or levels"
