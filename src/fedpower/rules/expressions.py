"""A rule as Polars expressions: numbers from the cells of a column, and what no rule covers.

A value is null where there is no number: the cell is missing, or there is a problem. So a batch whose
features are all finite has no problem, and the expressions of problems run only over columns that are not.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from fedpower.errors import CellError
from fedpower.rows.columns import LARGEST_EXACT
from fedpower.rows.source import pl
from fedpower.rules.rules import KNOWN, LEVEL, OTHER, SECONDS, Rule

_YES, _NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
_NO_NUMBERS = ("", "#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
"""What stands for a missing number in text, whatever the rule says: none of it can be one."""

_WHOLE = r"^([+-]?[0-9]+)\.0*$"
_DECIMALS = {",": r"^[+-]?\d*,\d+(?:[eE][+-]?\d+)?$", ".": r"^[+-]?\d*\.\d+(?:[eE][+-]?\d+)?$"}


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
    first_object: tuple[int, str] | None = None  # in pandas: the first cell that is no number, and its type

    @property
    def converts(self) -> bool:
        """Whether a cell x counts as factor · x + offset."""
        return (self.factor, self.offset) != (1.0, 0.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Cells that no rule covers: what must hold of their column, what they are, what to do; and which."""

    must: str
    got: str
    advice: str
    where: pl.Expr
    row: int | None = None  # where it is known beforehand

    def sentence(self, called: str, *, count: int, row: int) -> str:
        """Return it as a sentence about a column; rows are counted from 1."""
        where = f"in {count} cells, the first at row {row}" if count > 1 else f"at row {row}"
        return f"{called} must {self.must}, got {self.got} {where}; {self.advice}"

    def error(self, called: str, row: int) -> CellError:
        """Return it as the error about its first row."""
        return CellError(
            f"{called} must {self.must}, got {self.got} at row "
            f"{row if self.row is None else self.row + 1}; {self.advice}"
        )


def staged(batch: pl.DataFrame, read: Iterable[Compiled]) -> pl.DataFrame:
    """Return a raw batch with what several expressions of some rules start from."""
    stages = [stage.alias(name) for each in read for name, stage in each.stages.items()]
    return batch.with_columns(stages) if stages else batch


def first_problem(batch: pl.DataFrame, problems: Sequence[Problem]) -> tuple[int, int] | None:
    """Return the first row of a staged batch with a problem and the first of its problems, or None."""
    if not problems:
        return None
    found = batch.select(
        problem.where.arg_true().first().alias(str(place)) for place, problem in enumerate(problems)
    ).row(0)
    return min(((int(row), place) for place, row in enumerate(found) if row is not None), default=None)


def counted_problems(batch: pl.DataFrame, problems: Sequence[Problem]) -> list[tuple[int, int]]:
    """Return of each problem how many rows of a staged batch have it, and the first of them."""
    if not problems:
        return []
    counts = [problem.where.sum().alias(f"n{place}") for place, problem in enumerate(problems)]
    firsts = [problem.where.arg_true().first().alias(f"{place}") for place, problem in enumerate(problems)]
    found = batch.lazy().select([*counts, *firsts]).collect().row(0)
    half = len(problems)
    return [
        (int(count or 0), int(first or 0)) for count, first in zip(found[:half], found[half:], strict=True)
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compiled:
    """One expression for each feature of a rule, and its problems, over a batch with its stages."""

    values: list[pl.Expr]
    problems: list[Problem]
    stages: dict[str, pl.Expr] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Column:
    """A column as a number or a code: null where it is missing or wrong."""

    value: pl.Expr
    missing: pl.Expr
    problems: tuple[Problem, ...] = ()
    stages: dict[str, pl.Expr] = field(default_factory=dict)


def compiled(
    rule: Rule,
    cells: Mapping[str, Cells],
    schema: Mapping[str, Any],
    *,
    gaps: bool = False,
    plain: bool = False,
) -> Compiled:
    """Return a rule as expressions over raw batches of this schema; ``plain`` where nobody gave one."""
    own = [cells[name] for name in rule.columns]
    kinds = [schema[each.own] for each in own]
    if rule.kind == "comparison":
        return _comparisons(rule, own, kinds)
    column = _KINDS[rule.kind](rule, own[0], kinds[0], plain)
    problems = list(column.problems)
    counts_for_nothing = gaps and rule.may_have_gaps
    if not (rule.covers_missing or counts_for_nothing):
        problems.append(_missing(column.missing, plain))
    if rule.kind == "rating":
        low, high = rule.range or (0.0, 1.0)
        shifted = (column.value.clip(low, high) - (low + high) / 2) / ((high - low) / 2)
        values = [
            pl.when(column.missing).then(other).otherwise(value)
            for value, other in ((shifted, 0.0), (pl.when(shifted.is_not_null()).then(KNOWN), 0.0))
        ]
        return Compiled(values=values, problems=problems)
    if rule.kind == "levels":
        return Compiled(values=_indicators(rule, column), problems=problems, stages=column.stages)
    if rule.kind in ("person", "item"):
        return Compiled(values=[], problems=list(column.problems), stages=column.stages)
    value = column.value
    fill = None if counts_for_nothing else rule.fill
    if fill is not None:
        value = pl.when(column.missing).then(fill).otherwise(value)
    if rule.range is not None:
        value = value.clip(*rule.range)
    marked = [column.missing.cast(pl.Float64)] if rule.indicator else []
    return Compiled(values=[value, *marked], problems=problems, stages=column.stages)


def _missing(where: pl.Expr, plain: bool) -> Problem:
    if plain:
        return Problem(
            must="hold finite numbers",
            got="a missing value (empty, null or NaN)",
            advice="fill it in or give the column a rule for missing cells in a code book",
            where=where,
        )
    return Problem(
        must="have a rule for its missing cells",
        got="nothing",
        advice='give it missing = "offset" or a value in the code book, or drop it',
        where=where,
    )


# --- numbers ----------------------------------------------------------------------------------------------


def _numbers(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    cell = pl.col(cells.own)
    if dtype == pl.Null:
        return _Column(value=cell.cast(pl.Float64), missing=cell.is_null())
    if _is_text(dtype) and (cells.decimal or not plain):
        return _in_unit(_text_numbers(rule, cells, dtype, plain), cells, plain)
    if not (dtype.is_numeric() or dtype == pl.Boolean) or cells.first_object is not None:
        return _no_numbers(rule, cells, dtype, plain)
    value, problems = cell.cast(pl.Float64), []
    if dtype in (pl.Int64, pl.UInt64, pl.Int128):
        exact = cell.is_between(1 - int(LARGEST_EXACT), int(LARGEST_EXACT) - 1)
        value = pl.when(exact).then(value)
        problems.append(
            Problem(
                must="hold integers that are exact in float64, below 2^53 in size",
                got="a larger one" if plain else "larger ones",
                advice="subtract a public number first, or leave the column out"
                if plain
                else "drop it, or subtract a public number first",
                where=~exact,
            )
        )
    missing = cell.is_null() | value.is_nan() if dtype.is_float() else cell.is_null()
    listed = [number for word in rule.missing_words if (number := _as_number(word)) is not None]
    if listed:
        missing = missing | cell.cast(pl.Float64).is_in(listed)
    if listed or (dtype.is_float() and not plain):
        value = pl.when(~missing).then(value)
    return _in_unit(_Column(value=value, missing=missing, problems=tuple(problems)), cells, plain)


def _in_unit(column: _Column, cells: Cells, plain: bool) -> _Column:
    """Return numbers in the study's unit; what is then infinite is a problem."""
    value = column.value * cells.factor + cells.offset if cells.converts else column.value
    infinite = Problem(
        must="hold finite numbers" if plain else "hold numbers",
        got="an infinite value" if plain else "an infinite number",
        advice="fill it in or leave that row out" if plain else _NAMED,
        where=value.is_infinite() & ~column.missing,
    )
    return _Column(value=value, missing=column.missing, problems=(*column.problems, infinite))


_NAMED = "name what means missing with missing_words, give it a rule, or drop it"


def _text_numbers(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    """Return numbers that are written as text, with a decimal point or comma."""
    text = _decoded(cells, dtype).str.strip_chars()
    missing = text.is_null() | text.is_in([*_NO_NUMBERS, *rule.missing_words])
    pointed = text
    if cells.decimal == ",":
        no_point = ~text.str.contains(".", literal=True)
        pointed = pl.when(no_point).then(text.str.replace(",", ".", literal=True))
    value = pointed.cast(pl.Float64, strict=False)
    if cells.logical:
        truth = text.str.to_lowercase()
        value = pl.when(truth == "true").then(1.0).when(truth == "false").then(0.0).otherwise(value)
    wrong = ~missing & (value.is_null() | value.is_nan())
    if rule.missing_words or not plain:
        value = pl.when(~missing).then(value)
    return _Column(value=value, missing=missing, problems=tuple(_no_texts(rule, cells, text, wrong, plain)))


def _no_texts(rule: Rule, cells: Cells, text: pl.Expr, wrong: pl.Expr, plain: bool) -> list[Problem]:
    """Return what is wrong with texts that are no numbers: dates, other decimals, or anything."""
    if not plain:
        dated = wrong & text.str.contains(r"^[0-9]{4}-[0-9]{2}-[0-9]{2}")
        return [Problem(must="hold numbers", got="text", advice=_NAMED, where=wrong & ~dated), _dated(dated)]
    if cells.separator == ",":
        return [_no_number(rule, "text", wrong)]
    other, got, before = (",", "comma", "point") if cells.decimal == "." else (".", "point", "comma")
    swapped = wrong & text.str.contains(_DECIMALS[other])
    hint = Problem(
        must=f"hold numbers with a decimal {before}",
        got=f"one with a {got}",
        advice="say which it is with decimal, and write all of them so",
        where=swapped,
    )
    return [hint, _no_number(rule, "text", wrong & ~swapped)]


def _no_number(rule: Rule, got: str, where: pl.Expr) -> Problem:
    """Return the problem of a column that is not numeric, where it has no rule."""
    advice = (
        f"drop the column (table.drop(columns='{rule.column}'), or open_source(path, "
        f"drop=['{rule.column}']) for a file), or turn it into numbers, by a rule in a "
        "code book for instance"
    )
    return Problem(must="hold numbers", got=got, advice=advice, where=where)


def _no_numbers(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    """Return that nothing in a column of this type is a number, and why."""
    cell = pl.col(cells.own)
    if plain:
        row, got = cells.first_object or (None, f"type {dtype}")
        problem = replace(_no_number(rule, got, cell.is_null().or_(True)), row=row)
    elif dtype.is_temporal():
        problem = _dated(cell.is_not_null())
    else:
        problem = Problem(
            must="hold numbers", got=f"type {dtype}", advice="drop it", where=cell.is_not_null()
        )
    nothing = pl.when(cell.is_null().and_(False)).then(0.0)
    return _Column(value=nothing, missing=cell.is_null(), problems=(problem,))


def _dated(where: pl.Expr) -> Problem:
    return Problem(
        must="hold numbers",
        got="dates or times",
        advice='give it a rule with kind = "date" and a public origin and unit, or drop it',
        where=where,
    )


def _as_number(word: str) -> float | None:
    try:
        return float(word)
    except ValueError:
        return None


# --- words ------------------------------------------------------------------------------------------------


def _is_text(dtype: Any) -> bool:
    return bool(dtype in (pl.String, pl.Categorical, pl.Enum))


def _decoded(cells: Cells, dtype: Any) -> pl.Expr:
    """Return cells as text, NaN as null."""
    cell = pl.col(cells.own)
    if dtype.is_float():
        cell = cell.fill_nan(None)
    return cell if dtype == pl.String else cell.cast(pl.String, strict=False)


def _text(cells: Cells, dtype: Any, missing: Sequence[str] = (), words: Sequence[str] = ()) -> pl.Expr:
    """Return cells as text without blanks around them, 1.0 as 1, null where they are missing."""
    text = _decoded(cells, dtype).str.strip_chars()
    if dtype.is_float() or any(word[:1] in "+-0123456789" for word in (*missing, *words) if word):
        text = text.str.replace(_WHOLE, "$1")
    return pl.when(~text.is_in(["", *missing])).then(text)


def _staged(rule: Rule, text: pl.Expr) -> tuple[pl.Expr, dict[str, pl.Expr]]:
    """Return the text as a column of its own, for all that start from it, and how it is made."""
    name = f"\0{rule.column}"
    return pl.col(name), {name: text}


def codes(text: pl.Expr, words: Sequence[str]) -> pl.Expr:
    """Return the place of each text among words, null for none of them."""
    places = {word: float(place) for place, word in enumerate(words)}
    return text.replace_strict(places, default=None, return_dtype=pl.Float64)


def item_codes(cells: Cells, dtype: Any, items: Sequence[str]) -> pl.Expr:
    """Return the place of each cell among items; null for those that do not count."""
    return codes(_text(cells, dtype, words=items), items)


def _levels(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    """Return the place of each cell among the levels, one after them for other words."""
    text = _text(cells, dtype, rule.missing_words, rule.levels)
    places = {word: place for place, word in enumerate((*rule.levels, OTHER))}
    code = text.replace_strict(places, default=places[OTHER], return_dtype=pl.Int32)
    missing = None if rule.missing is None else places[str(rule.missing)]
    code = pl.when(text.is_not_null()).then(code).otherwise(missing)
    value, stages = _staged(rule, code)
    return _Column(value=value, missing=value.is_null(), stages=stages)


def _indicators(rule: Rule, column: _Column) -> list[pl.Expr]:
    """Return a column for each level, one for all other words, and perhaps one for missing cells."""
    flags = [column.value == place for place in range(len(rule.levels) + 1)]
    if rule.indicator:
        flags = [*(flag.fill_null(value=False) for flag in flags), column.missing]
    return [flag.cast(pl.Float64) * LEVEL for flag in flags]


def _ordered(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    text, stages = _staged(rule, _text(cells, dtype, rule.missing_words, rule.levels))
    value = codes(text, rule.levels)
    problem = Problem(
        must="hold its ordered levels and nothing else",
        got="other words",
        advice="agree on a place for it among the levels, or list it in missing_words",
        where=text.is_not_null() & value.is_null(),
    )
    return _Column(value=value, missing=text.is_null(), problems=(problem,), stages=stages)


def _yes_or_no(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    words = _text(cells, dtype, rule.missing_words, (*_YES, *_NO)).str.to_lowercase()
    text, stages = _staged(rule, words)
    meant = dict.fromkeys(_YES, 1.0) | dict.fromkeys(_NO, 0.0)
    value = text.replace_strict(meant, default=None, return_dtype=pl.Float64)
    problem = Problem(
        must="hold yes or no (true or false, 1 or 0) and nothing else",
        got="other words",
        advice="give it levels, or list the word in missing_words",
        where=text.is_not_null() & value.is_null(),
    )
    return _Column(value=value, missing=text.is_null(), problems=(problem,), stages=stages)


def _names(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    """Return that whoever rates, and what is rated, must be named in every row."""
    text = _text(cells, dtype)
    problem = Problem(
        must=f"name the {rule.kind} in every row",
        got="nothing",
        advice="fill it in, or leave that row out",
        where=text.is_null(),
    )
    return _Column(value=text, missing=pl.lit(value=False), problems=(problem,))


def _dates(rule: Rule, cells: Cells, dtype: Any, plain: bool) -> _Column:
    cell = pl.col(cells.own)
    stages: dict[str, pl.Expr] = {}
    problems: tuple[Problem, ...] = ()
    if dtype == pl.Null:
        return _Column(value=cell.cast(pl.Float64), missing=cell.is_null())
    if _is_text(dtype):
        text, stages = _staged(rule, _text(cells, dtype, rule.missing_words))
        moments, missing = _parsed(text, rule.format), text.is_null()
        written = rule.format or "2000-01-31, or 2000-01-31 23:59"
        problem = Problem(
            must=f"hold dates written as {written}",
            got="something else",
            advice="give its rule the format that they have, or list the word in missing_words",
            where=~missing & moments.is_null(),
        )
        problems = (problem,)
    elif dtype in (pl.Date, pl.Datetime):
        zone = getattr(dtype, "time_zone", None)
        moments = cell.dt.convert_time_zone("UTC").dt.replace_time_zone(None) if zone else cell
        moments, missing = moments.cast(pl.Datetime("us")), cell.is_null()
    else:
        problem = Problem(
            must="hold dates, for its rule says so",
            got=f"type {dtype}",
            advice="correct the rule, or drop it",
            where=cell.is_not_null(),
        )
        nothing = pl.when(cell.is_null().and_(False)).then(0.0)
        return _Column(value=nothing, missing=cell.is_null(), problems=(problem,))
    origin = (datetime.fromisoformat(rule.origin) - datetime(1970, 1, 1)).total_seconds()
    since = moments.dt.epoch("us").cast(pl.Float64) / 1e6 - origin
    return _Column(value=since / SECONDS[rule.unit], missing=missing, problems=problems, stages=stages)


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


def _comparisons(rule: Rule, cells: Sequence[Cells], kinds: Sequence[Any]) -> Compiled:
    """Return e_winner − e_loser, item by item, and the outcome beside it: the margin, or 1."""
    winner, loser = (_text(each, kind) for each, kind in zip(cells[:2], kinds[:2], strict=True))
    won, lost = codes(winner, rule.levels), codes(loser, rule.levels)
    missing = winner.is_null() | loser.is_null()
    unknown = won.is_null() | lost.is_null()
    problems = [
        Problem(
            must="name an item each in every row",
            got="nothing",
            advice="fill it in or leave that row out",
            where=missing,
        ),
        Problem(
            must="name items of the public list and nothing else",
            got="others",
            advice="add them to the items at all silos, or leave those rows out",
            where=~missing & unknown,
        ),
        Problem(
            must="name two different items",
            got="one twice",
            advice="leave that row out: it compares nothing",
            where=~unknown & (won == lost),
        ),
    ]
    outcome: pl.Expr = pl.when(won != lost).then(1.0)
    if rule.margin:
        column = _numbers(rule, cells[2], kinds[2], plain=False)
        must, advice = (
            f"have a number in '{rule.margin}' beside them",
            "fill it in (a tie is 0), or leave that row out",
        )
        wrong = pl.any_horizontal(each.where.fill_null(value=False) for each in column.problems)
        problems.append(Problem(must=must, got="nothing", advice=advice, where=column.missing))
        problems.append(Problem(must=must, got="something else", advice=advice, where=wrong))
        outcome = column.value.clip(*(rule.range or (0.0, 1.0)))
    signed = [
        pl.when(won != lost).then((won == place).cast(pl.Float64) - (lost == place).cast(pl.Float64))
        for place in range(len(rule.levels))
    ]
    return Compiled(values=[*signed, outcome], problems=problems)


_KINDS = {
    "number": _numbers,
    "levels": _levels,
    "ordered": _ordered,
    "yes/no": _yes_or_no,
    "date": _dates,
    "rating": _numbers,
    "person": _names,
    "item": _names,
}
