"""A rule as Polars expressions: numbers from the cells of a column, and what no rule covers.

A value is null where there is no number: the cell is missing, or there is a problem. So a batch whose
features are all finite has no problem, and the expressions of problems run only over columns that are not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

from fedpower.rules.rules import KNOWN, LEVEL, OTHER, SECONDS, Rule
from fedpower.values import LARGEST_EXACT, pl, shown

_YES, _NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
_NO_NUMBERS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
"""What stands for a missing number in text, whatever the rule says: none of it can be one."""

_WHOLE = r"^([+-]?[0-9]+)\.0*$"
_DECIMALS = {",": r"^[+-]?\d*,\d+(?:[eE][+-]?\d+)?$", ".": r"^[+-]?\d*\.\d+(?:[eE][+-]?\d+)?$"}

MISSING = "a missing value (empty, null or NaN)"
"""What a problem calls a cell that is missing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cells:
    """A stored column: its name and type there, how text writes numbers, and the unit of the study."""

    own: str
    dtype: Any = None  # None where every row may have its own
    decimal: str = ""  # of text files, whose cells are read as numbers without a rule
    separator: str = ","
    logical: bool = False  # text of true and false
    factor: float = 1.0
    offset: float = 0.0
    words: Mapping[str, str] = field(default_factory=dict)  # to the study's, from the silo's own

    @property
    def converts(self) -> bool:
        return (self.factor, self.offset) != (1.0, 0.0)


class Problem(NamedTuple):
    """Cells that no rule covers: what must hold of their column, what they are, which, and what to do."""

    must: str
    got: str
    where: pl.Expr
    advice: str = "drop it, or give it a rule in a code book"

    def sentence(self, called: str, *, count: int, row: int) -> str:
        """Return it as a sentence about a column; rows are counted from 1."""
        where = f"in {count} cells, the first at row {row}" if count > 1 else f"at row {row}"
        return f"{called} must {self.must}, got {self.got} {where}; {self.advice}"


class Compiled(NamedTuple):
    """One expression for each feature of a rule, and its problems, over a batch with its stages."""

    rule: Rule
    values: list[pl.Expr]
    problems: list[Problem]
    stages: Mapping[str, pl.Expr] = {}


def staged(batch: pl.DataFrame, plan: Iterable[Compiled]) -> pl.DataFrame:
    """Return a raw batch with what several expressions of some rules start from."""
    return batch.with_columns(stage.alias(name) for made in plan for name, stage in made.stages.items())


def problems_in(batch: pl.DataFrame, plan: Iterable[Compiled]) -> list[tuple[Rule, Problem, int, int]]:
    """Return the problems of a staged batch with their rules, how many rows have them, and the first row."""
    listed = [(made.rule, problem) for made in plan for problem in made.problems]
    counts = [problem.where.sum().alias(f"n{place}") for place, (_, problem) in enumerate(listed)]
    firsts = [problem.where.arg_true().first().alias(f"{place}") for place, (_, problem) in enumerate(listed)]
    row = batch.lazy().select([*counts, *firsts]).collect().row(0) if listed else ()
    found = zip(listed, row, row[len(listed) :], strict=False)
    return [(*of, int(count), int(first)) for of, count, first in found if count]


class _Column(NamedTuple):
    """A column as a number or a code: null where it is missing or wrong."""

    value: pl.Expr
    missing: pl.Expr
    problems: tuple[Problem, ...] = ()
    stages: Mapping[str, pl.Expr] = {}


def compiled(
    rule: Rule,
    cells: Mapping[str, Cells],
    schema: Mapping[str, Any],
    *,
    gaps: bool = False,
    plain: bool = False,
) -> Compiled:
    """Return a rule as expressions over raw batches of this schema; ``plain`` for a default rule.

    Numbers and dates are yet to be clipped to the rule's range.
    """
    if rule.kind == "comparison":
        return _comparisons(rule, cells, schema)
    column = _READERS[rule.kind](rule, cells[rule.column], schema[rule.column], plain)
    problems = list(column.problems)
    counts_for_nothing = gaps and rule.may_have_gaps
    if not (rule.covers_missing or counts_for_nothing) and rule.features:
        number = 'give its rule a number for them (missing = 120), or missing = "offset" and a range'
        advice = 'give its rule missing = "other"' if rule.kind == "levels" else number
        problems.append(Problem("hold finite numbers", MISSING, column.missing, advice))
    values: list[pl.Expr] = []
    if rule.kind == "rating":
        low, high = rule.range or (0.0, 1.0)
        shifted = (column.value.clip(low, high) - (low + high) / 2) / ((high - low) / 2)
        known = pl.when(shifted.is_not_null()).then(KNOWN)
        values = [pl.when(column.missing).then(0.0).otherwise(value) for value in (shifted, known)]
    elif rule.kind == "levels":
        flags = [column.value == place for place in range(len(rule.levels) + 1)]
        if rule.indicator:
            flags = [*(flag.fill_null(value=False) for flag in flags), column.missing]
        values = [flag.cast(pl.Float64) * LEVEL for flag in flags]
    elif rule.features:
        value, fill = column.value, None if counts_for_nothing else rule.fill
        if fill is not None:
            value = pl.when(column.missing).then(fill).otherwise(value)
        values = [value, *([column.missing.cast(pl.Float64)] if rule.indicator else [])]
    return Compiled(rule=rule, values=values, problems=problems, stages=column.stages)


# --- numbers ----------------------------------------------------------------------------------------------


def _numbers(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    cell = pl.col(rule.column)
    if dtype == pl.Null:
        return _Column(cell.cast(pl.Float64), cell.is_null())
    if _is_text(dtype) and (cells.decimal or not plain):
        column = _text_numbers(rule, cells, dtype, plain)
    elif not (dtype.is_numeric() or dtype == pl.Boolean):
        return _nothing(rule, dtype, plain)
    else:
        column = _typed_numbers(rule, dtype, plain)
    value = column.value * cells.factor + cells.offset if cells.converts else column.value
    infinite = Problem("hold finite numbers", "an infinite value", value.is_infinite() & ~column.missing)
    return _Column(value, column.missing, (*column.problems, infinite))


def _typed_numbers(rule: Rule, dtype: Any, plain: bool) -> _Column:
    cell = pl.col(rule.column)
    value: pl.Expr = cell.cast(pl.Float64)
    problems: tuple[Problem, ...] = ()
    if dtype in (pl.Int64, pl.UInt64, pl.Int128):
        exact = cell.is_between(1 - int(LARGEST_EXACT), int(LARGEST_EXACT) - 1)
        value = pl.when(exact).then(value)
        must = "hold integers that are exact in float64, below 2^53 in size"
        problems = (Problem(must, "a larger one", ~exact, "subtract a public number"),)
    missing = cell.is_null() | value.is_nan() if dtype.is_float() else cell.is_null()
    listed = _listed_numbers(rule, pl.Float32 if dtype == pl.Float32 else pl.Float64)
    if listed:
        missing = missing | cell.cast(pl.Float64).is_in(listed)
    if listed or (dtype.is_float() and not plain):
        value = pl.when(~missing).then(value)
    return _Column(value, missing, problems)


def _listed_numbers(rule: Rule, dtype: Any) -> list[float]:
    """Return the missing words that are numbers, as a column of a type stores them."""
    if not rule.missing_words:  # the usual case, for each of thousands of columns
        return []
    words = pl.Series(rule.missing_words, dtype=pl.String).cast(pl.Float64, strict=False).drop_nulls()
    return words.cast(dtype).cast(pl.Float64).to_list()


def _text_numbers(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    text = _decoded(rule.column, dtype).str.strip_chars()
    missing = text.is_null() | text.is_in([*_NO_NUMBERS, *rule.missing_words])
    pointed = text
    if cells.decimal == ",":
        no_point = ~text.str.contains(".", literal=True)
        pointed = pl.when(no_point).then(text.str.replace(",", ".", literal=True))
    value = pointed.cast(pl.Float64, strict=False)
    if cells.logical:
        truth = text.str.to_lowercase()
        value = pl.when(truth == "true").then(1.0).when(truth == "false").then(0.0).otherwise(value)
    if listed := _listed_numbers(rule, pl.Float64):
        missing = missing | value.is_in(listed).fill_null(value=False)
    wrong = ~missing & (value.is_null() | value.is_nan())
    if rule.missing_words or not plain:
        value = pl.when(~missing).then(value)
    problems = []
    if not plain:
        dated = wrong & text.str.contains(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}")
        problems, wrong = [_dated(dated)], wrong & ~dated
    elif cells.separator != ",":
        sign, got, must = (",", "comma", "point") if cells.decimal == "." else (".", "point", "comma")
        swapped = wrong & text.str.contains(_DECIMALS[sign])
        must = f"hold numbers with a decimal {must}"
        problems = [Problem(must, f"one with a {got}", swapped, "give decimal")]
        wrong = wrong & ~swapped
    return _Column(value, missing, (*problems, _no_number(rule, "text", wrong)))


def _no_number(rule: Rule, got: str, where: pl.Expr) -> Problem:
    advice = f"drop the column (drop=['{rule.column}']), or give it a rule in a code book"
    return Problem("hold numbers", got, where, advice)


def _nothing(rule: Rule, dtype: Any, plain: bool) -> _Column:
    cell = pl.col(rule.column)
    got, everywhere = f"type {dtype}", cell.is_null().or_(True) if plain else cell.is_not_null()
    if rule.kind == "date":
        problem = Problem("hold dates, as its rule states", got, everywhere)
    elif dtype.is_temporal():
        problem = _dated(everywhere)
    else:
        problem = _no_number(rule, got, everywhere)
    return _Column(pl.when(cell.is_null().and_(False)).then(0.0), cell.is_null(), (problem,))


def _dated(where: pl.Expr) -> Problem:
    advice = 'give it a rule with kind = "date" and a public origin and unit, or drop it'
    return Problem("hold numbers", "dates or times", where, advice)


# --- words ------------------------------------------------------------------------------------------------


def _is_text(dtype: Any) -> bool:
    return bool(dtype in (pl.String, pl.Categorical, pl.Enum))


def _decoded(column: str, dtype: Any) -> pl.Expr:
    cell = pl.col(column)
    if dtype.is_float():
        cell = cell.fill_nan(None)
    return cell if dtype == pl.String else cell.cast(pl.String, strict=False)


def _text(column: str, dtype: Any, missing: Sequence[str] = (), words: Sequence[str] = ()) -> pl.Expr:
    """Return cells as text without blanks around them, 1.0 as 1, null where they are missing."""
    text = _decoded(column, dtype).str.strip_chars()
    if dtype.is_float() or any(word[:1] in "+-0123456789" for word in (*missing, *words) if word):
        text = text.str.replace(_WHOLE, "$1")
    return pl.when(~text.is_in(["", *missing])).then(text)


def translated(column: str, dtype: Any, words: Mapping[str, str]) -> pl.Expr:
    """Return cells as text in which some words are replaced by others."""
    return _text(column, dtype, words=tuple(words)).replace(words).alias(column)


def _staged(rule: Rule, text: pl.Expr) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """Return the text as a column of its own, for all that start from it, and how it is made."""
    name = f"\0{rule.column}"
    return pl.col(name), {name: text}


def codes(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """Return the place of each text among words, null for none of them."""
    places = {word: float(place) for place, word in enumerate(words)}
    return text.replace_strict(places, default=None, return_dtype=pl.Float64)


def item_codes(column: str, dtype: Any, items: Sequence[str]) -> pl.Expr:
    """Return the place of each cell among items; null for those that do not count."""
    return codes(_text(column, dtype, words=items), items)


def _levels(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    """Return the place of each cell among the levels, one after them for other words."""
    text = _text(rule.column, dtype, rule.missing_words, rule.levels)
    places = {word: place for place, word in enumerate((*rule.levels, OTHER))}
    code = text.replace_strict(places, default=places[OTHER], return_dtype=pl.Int32)
    missing = None if rule.missing is None else places[str(rule.missing)]
    code = pl.when(text.is_not_null()).then(code).otherwise(missing)
    value, stages = _staged(rule, code)
    return _Column(value, value.is_null(), stages=stages)


def _words(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    if rule.kind == "ordered":
        meant = {word: float(place) for place, word in enumerate(rule.levels)}
        must = f"hold only the words {shown(rule.levels)}"
    else:
        meant = dict.fromkeys(_YES, 1.0) | dict.fromkeys(_NO, 0.0)
        must = "hold only yes or no (true or false, 1 or 0)"
    words = _text(rule.column, dtype, rule.missing_words, tuple(meant))
    text, stages = _staged(rule, words if rule.kind == "ordered" else words.str.to_lowercase())
    value = text.replace_strict(meant, default=None, return_dtype=pl.Float64)
    wrong = text.is_not_null() & value.is_null()
    advice = "translate them in the silo's file ([columns.words]), or list them in missing_words of its rule"
    problem = Problem(must, "other words", wrong, advice)
    return _Column(value, text.is_null(), (problem,), stages)


def _names(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    text = _text(rule.column, dtype)
    problem = Problem(f"name the {rule.kind} in every row", "nothing", text.is_null(), "leave that row out")
    return _Column(text, pl.lit(value=False), (problem,))


def _dates(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    cell, stages = pl.col(rule.column), dict[str, pl.Expr]()
    missing, problems = cell.is_null(), tuple[Problem, ...]()
    if dtype == pl.Null:
        return _Column(cell.cast(pl.Float64), missing)
    if _is_text(dtype):
        text, stages = _staged(rule, _text(rule.column, dtype, rule.missing_words))
        moments, missing = _parsed(text, rule.format), text.is_null()
        must = f"hold dates written as {rule.format or '2000-01-31, or 2000-01-31 23:59'}"
        advice = "give its rule a format, or list the word in missing_words"
        problems = (Problem(must, "something else", ~missing & moments.is_null(), advice),)
    elif dtype in (pl.Date, pl.Datetime):
        zone = getattr(dtype, "time_zone", None)
        moments = cell.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else cell
        moments = moments.cast(pl.Datetime("us"))
    else:
        return _nothing(rule, dtype, plain)
    origin = (datetime.fromisoformat(rule.origin) - datetime(1970, 1, 1)).total_seconds()
    since = moments.dt.epoch("us").cast(pl.Float64) / 1e6 - origin
    return _Column(since / SECONDS[rule.unit], missing, problems, stages)


def _parsed(text: pl.Expr, written: str) -> pl.Expr:
    """Return moments, null where a text is none: days, and times of days with or without seconds."""
    if written:
        return text.str.strptime(pl.Datetime("us"), written, strict=False)
    day = text.str.slice(0, 10).str.to_date("%Y-%m-%d", strict=False)
    rest = pl.when(text.str.len_bytes() > 10).then(text.str.slice(10))
    clock: pl.Expr = pl.when(rest.str.contains("^[T ]")).then(rest.str.slice(1).str.strip_suffix("Z"))
    clock = pl.when(clock.str.len_bytes() == 5).then(clock + ":00").otherwise(clock)
    time = clock.str.to_time("%H:%M:%S", strict=False)
    return pl.when(rest.is_null()).then(day.cast(pl.Datetime("us"))).otherwise(day.dt.combine(time))


def _comparisons(rule: Rule, cells: Mapping[str, Cells], schema: Mapping[str, Any]) -> Compiled:
    """Return e_winner − e_loser, item by item, and the outcome after it: the margin, or 1."""
    winner, loser = (_text(name, schema[name]) for name in rule.columns[:2])
    won, lost = codes(winner, rule.levels), codes(loser, rule.levels)
    missing = winner.is_null() | loser.is_null()
    unknown, leave = won.is_null() | lost.is_null(), "leave that row out"
    add = "add them to the items of all silos, or leave those rows out"
    problems = [
        Problem("name an item in every row", "nothing", missing, leave),
        Problem("name only items of the public list", "other names", ~missing & unknown, add),
        Problem("name two different items", "the same item twice", ~unknown & (won == lost), leave),
    ]
    outcome: pl.Expr = pl.when(won != lost).then(1.0)
    if rule.margin:
        margin = Rule(column=rule.margin)
        column = _numbers(margin, cells[rule.margin], schema[rule.margin], plain=False)
        wrong = pl.any_horizontal(problem.where.fill_null(value=False) for problem in column.problems)
        must = f"have a number in '{rule.margin}'"
        problems.append(Problem(must, "nothing", column.missing, leave))
        problems.append(Problem(must, "something else", wrong, leave))
        outcome = column.value.clip(*(rule.range or (0.0, 1.0)))
    signed = [
        pl.when(won != lost).then((won == place).cast(pl.Float64) - (lost == place).cast(pl.Float64))
        for place in range(len(rule.levels))
    ]
    return Compiled(rule=rule, values=[*signed, outcome], problems=problems)


_READERS: dict[str, Callable[[Rule, Cells, Any, bool], _Column]] = {
    "number": _numbers,
    "levels": _levels,
    "ordered": _words,
    "yes/no": _words,
    "date": _dates,
    "rating": _numbers,
    "person": _names,
    "item": _names,
}
