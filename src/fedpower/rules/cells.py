"""Cells of a table read by its rules: numbers, and what is wrong with those that no rule covers."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.rows.columns import LARGEST_EXACT
from fedpower.rows.source import Vector
from fedpower.rows.tables import arrow, floats, plain
from fedpower.rules.rules import KNOWN, LEVEL, OTHER, SECONDS, Kind, Rule

_Mask = NDArray[np.bool_]

FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")
"""How dates are written unless a rule has a format; a T may stand for the blank."""

_YES, _NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
_NO_NUMBERS = ("#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
"""What stands for a missing number in text, whatever the rule says: none of it can be one."""

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Cells that no rule covers: what must hold of their column, what they are, what to do; and which."""

    must: str
    got: str
    advice: str
    places: _Mask

    def sentence(self, called: str, *, count: int, row: int) -> str:
        """Return it as a sentence about a column; rows are counted from 1."""
        where = f"in {count} cells, the first at row {row}" if count > 1 else f"at row {row}"
        return f"{called} must {self.must}, got {self.got} {where}; {self.advice}"


_NUMBERS = "hold numbers"
_NAMED = "name what means missing with missing_words, give it a rule, or drop it"


def read_cells(
    rule: Rule, cells: Any, *beside: Any, gaps: bool = False
) -> tuple[list[Vector], list[Problem]]:
    """Return the features of some cells, and what is wrong with those that the rule does not cover."""
    cells = plain(cells)
    if rule.kind == "comparison":
        return _comparisons(rule, cells, *map(plain, beside))
    values, missing, problems = _READERS[rule.kind](rule, cells)
    counts_for_nothing = gaps and rule.may_have_gaps
    if not (rule.covers_missing or counts_for_nothing) and missing.any():
        problems.append(
            Problem(
                must="have a rule for its missing cells",
                got="nothing",
                advice='give it missing = "offset" or a value in the code book, or drop it',
                places=missing,
            )
        )
    if rule.kind == "levels":
        names = (*rule.levels, OTHER)
        if rule.missing is not None:
            values = np.where(missing, names.index(str(rule.missing)), values)
        elif rule.indicator:
            values = np.where(missing, len(names), values)
        indicators = [np.where(values == place, LEVEL, 0.0) for place in range(len(rule.features))]
        return indicators, [each for each in problems if each.places.any()]
    if rule.kind == "rating":
        low, high = rule.range or (0.0, 1.0)
        apart = (np.clip(values, low, high) - (low + high) / 2) / ((high - low) / 2)
        found = [np.where(missing, 0.0, apart), np.where(missing, 0.0, KNOWN)]
        return found, [each for each in problems if each.places.any()]
    fill = np.nan if counts_for_nothing else rule.fill
    if fill is not None:
        values = np.where(missing, fill, values)
    if rule.range is not None:
        values = np.clip(values, *rule.range)
    marked = [missing.astype(np.float64)] if rule.indicator else []
    return [values, *marked], [each for each in problems if each.places.any()]


_Parts = tuple[Vector, _Mask, list[Problem]]
"""Numbers, where cells are missing, and problems; a number is NaN where there is none."""


def _numbers(rule: Rule, cells: Any) -> _Parts:
    types, kind = arrow().types, cells.type
    if types.is_null(kind):
        return _nothing(cells)
    if _is_text(kind):
        text, missing = _text_of(cells, (*_NO_NUMBERS, *rule.missing_words))
        compute = arrow("compute")
        is_number = _mask(compute.match_substring_regex(text, _NUMBER))
        values = floats(_kept(text, is_number & ~missing))
        bad = ~missing & ~np.isfinite(values)
        dated = bad & _mask(compute.match_substring_regex(text, r"^[0-9]{4}-[0-9]{2}-[0-9]{2}"))
        return values, missing, [_no_number(bad & ~dated, "text"), _dated(dated)]
    if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)
            or types.is_boolean(kind)):  # fmt: skip
        return _of_no_use(cells)
    values = floats(cells)
    missing = np.isnan(values) | _meant(values, rule.missing_words)
    problems = [_no_number(np.isinf(values) & ~missing, "an infinite number")]
    if types.is_int64(kind) or types.is_uint64(kind):
        problems.append(
            Problem(
                must="hold integers that are exact in float64, below 2^53 in size",
                got="larger ones",
                advice="drop it, or subtract a public number first",
                places=np.abs(np.where(missing, 0.0, values)) >= LARGEST_EXACT,
            )
        )
    return values, missing, problems


def _no_number(places: _Mask, got: str) -> Problem:
    return Problem(must=_NUMBERS, got=got, advice=_NAMED, places=places)


def _dated(places: _Mask) -> Problem:
    return Problem(
        must=_NUMBERS,
        got="dates or times",
        advice='give it a rule with kind = "date" and a public origin and unit, or drop it',
        places=places,
    )


def _of_no_use(cells: Any) -> _Parts:
    """Return that nothing in a column of this type is a number, and why."""
    missing = _mask(arrow("compute").is_null(cells))
    problem = Problem(must=_NUMBERS, got=f"type {cells.type}", advice="drop it", places=~missing)
    if arrow().types.is_temporal(cells.type):
        problem = _dated(~missing)
    return np.zeros(len(cells)), missing, [problem]


def _nothing(cells: Any) -> _Parts:
    return np.full(len(cells), np.nan), np.ones(len(cells), dtype=np.bool_), []


def _levels(rule: Rule, cells: Any) -> _Parts:
    found, missing = _codes(rule, cells, rule.levels)
    return np.where(found < 0, len(rule.levels), found), missing, []


def _ordered(rule: Rule, cells: Any) -> _Parts:
    found, missing = _codes(rule, cells, rule.levels)
    problem = Problem(
        must="hold its ordered levels and nothing else",
        got="other words",
        advice="agree on a place for it among the levels, or list it in missing_words",
        places=(found < 0) & ~missing,
    )
    return found, missing, [problem]


def _yes_or_no(rule: Rule, cells: Any) -> _Parts:
    found, missing = _codes(rule, cells, (*_YES, *_NO), lower=True)
    problem = Problem(
        must="hold yes or no (true or false, 1 or 0) and nothing else",
        got="other words",
        advice="give it levels, or list the word in missing_words",
        places=(found < 0) & ~missing,
    )
    return np.where(found < len(_YES), 1.0, 0.0), missing, [problem]


def item_codes(cells: Any, items: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each cell among items; −1 for those that do not count."""
    return _places(_text_of(plain(cells), ())[0], items)


def _places(text: Any, words: Sequence[str]) -> NDArray[np.int64]:
    """Return the place of each text among words, −1 for none of them."""
    pa, compute = arrow(), arrow("compute")
    found = compute.index_in(text, value_set=pa.array(list(words), pa.string()))
    return np.asarray(compute.fill_null(found, -1).to_numpy(zero_copy_only=False), dtype=np.int64)


def _comparisons(rule: Rule, winners: Any, losers: Any, *margins: Any) -> tuple[list[Vector], list[Problem]]:
    """Return e_winner − e_loser, item by item, and the outcome beside it: the margin, or 1."""
    (won, missing), (lost, gone) = (_codes(rule, each, rule.levels) for each in (winners, losers))
    missing = missing | gone
    problems = [
        Problem(
            must="name an item each in every row",
            got="nothing",
            advice="fill it in or leave that row out",
            places=missing,
        ),
        Problem(
            must="name items of the public list and nothing else",
            got="others",
            advice="add them to the items at all silos, or leave those rows out",
            places=((won < 0) | (lost < 0)) & ~missing,
        ),
        Problem(
            must="name two different items",
            got="one twice",
            advice="leave that row out: it compares nothing",
            places=(won == lost) & (won >= 0) & ~missing,
        ),
    ]
    outcome = np.ones(len(won))
    for cells in margins:
        outcome, empty, wrong = _numbers(rule, cells)
        must = f"have a number in '{rule.margin}' beside them"
        advice = "fill it in (a tie is 0), or leave that row out"
        problems.append(Problem(must=must, got="nothing", advice=advice, places=empty))
        places = np.logical_or.reduce([each.places for each in wrong])
        problems.append(Problem(must=must, got="something else", advice=advice, places=places))
        outcome = np.clip(outcome, *(rule.range or (0.0, 1.0)))
    signed = [(won == place).astype(np.float64) - (lost == place) for place in range(len(rule.levels))]
    return [*signed, outcome], [each for each in problems if each.places.any()]


def _codes(rule: Rule, cells: Any, words: Sequence[str], *, lower: bool = False) -> tuple[Vector, _Mask]:
    """Return the place of each cell among words, −1 for none of them, and where cells are missing."""
    text, missing = _text_of(cells, rule.missing_words)
    text = arrow("compute").utf8_lower(text) if lower else text
    return _places(text, words).astype(np.float64), missing


def _dates(rule: Rule, cells: Any) -> _Parts:
    pa, compute = arrow(), arrow("compute")
    types, kind = pa.types, cells.type
    if types.is_null(kind):
        return _nothing(cells)
    stamp = pa.timestamp("us")
    problems = []
    if _is_text(kind):
        text, missing = _text_of(cells, rule.missing_words)
        moments = _parsed(text, rule.format)
        problems.append(
            Problem(
                must=f"hold dates written as {rule.format}"
                if rule.format
                else "hold dates written as 2000-01-31, or 2000-01-31 23:59",
                got="something else",
                advice="give its rule the format that they have, or list the word in missing_words",
                places=_mask(compute.is_null(moments)) & ~missing,
            )
        )
    elif types.is_date(kind) or types.is_timestamp(kind):
        missing = _mask(compute.is_null(cells))
        moments = cells.cast(pa.timestamp(kind.unit)) if types.is_timestamp(kind) else cells
        moments = moments.cast(stamp, safe=False)
    else:
        missing = _mask(compute.is_null(cells))
        problems.append(
            Problem(
                must="hold dates, for its rule says so",
                got=f"type {kind}",
                advice="correct the rule, or drop it",
                places=~missing,
            )
        )
        return np.zeros(len(cells)), missing, problems
    since = floats(moments.cast(stamp).cast(pa.int64()))
    origin = datetime.fromisoformat(rule.origin) - datetime(1970, 1, 1)
    return (since / 1e6 - origin.total_seconds()) / SECONDS[rule.unit], missing, problems


def _parsed(text: Any, written: str) -> Any:
    """Return moments, null where a text is none."""
    pa, compute = arrow(), arrow("compute")
    found = pa.nulls(len(text), pa.timestamp("s"))
    bare = compute.replace_substring_regex(text, r"^(\S{10})T(\S*?)Z?$", r"\1 \2")
    asked = text if written else bare
    for form in (written,) if written else FORMATS:
        moments = compute.strptime(asked, form, unit="s", error_is_null=True)
        again = _without_zeros(compute.strftime(moments, form))
        same = compute.equal(again, _without_zeros(asked))
        found = compute.coalesce(found, compute.if_else(same, moments, None))
    return found


def _without_zeros(text: Any) -> Any:
    compute = arrow("compute")
    return compute.replace_substring_regex(compute.utf8_lower(text), r"\b0+([0-9])", r"\1")


def _names(rule: Rule, cells: Any) -> _Parts:
    """Return that whoever rates, and what is rated, must be named in every row."""
    _, missing = _text_of(cells, ())
    problem = Problem(
        must=f"name the {rule.kind} in every row",
        got="nothing",
        advice="fill it in, or leave that row out",
        places=missing,
    )
    return np.zeros(len(cells)), np.zeros(len(cells), np.bool_), [problem]


_READERS: dict[Kind, Callable[[Rule, Any], _Parts]] = {
    "number": _numbers,
    "levels": _levels,
    "ordered": _ordered,
    "yes/no": _yes_or_no,
    "date": _dates,
    "rating": _numbers,
    "person": _names,
    "item": _names,
}


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _text_of(cells: Any, words: Sequence[str]) -> tuple[Any, _Mask]:
    """Return cells as text, 1.0 as 1, and which are missing: null, NaN, empty, or one of these words."""
    pa, compute = arrow(), arrow("compute")
    gone = compute.is_null(cells, nan_is_null=True)
    text = compute.utf8_trim_whitespace(cells.cast(pa.string()))
    text = compute.replace_substring_regex(text, r"^([+-]?[0-9]+)\.0*$", r"\1")
    empty = compute.is_in(text, value_set=pa.array(["", *words], pa.string()))
    return text, _mask(gone) | _mask(empty)


def _meant(values: Vector, words: Sequence[str]) -> _Mask:
    """Return which numbers a list of words has: 999 is 999.0."""
    listed = []
    for word in words:
        try:
            listed.append(float(word))
        except ValueError:
            continue
    return np.isin(values, listed)


def _kept(text: Any, keep: _Mask) -> Any:
    """Return numbers from text, null where it is not kept."""
    pa, compute = arrow(), arrow("compute")
    return compute.if_else(pa.array(keep), text, pa.scalar(None, pa.string())).cast(pa.float64())


def _mask(flags: Any) -> _Mask:
    filled = arrow("compute").fill_null(flags, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)
