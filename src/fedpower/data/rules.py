"""Rules that turn the cells of a table into numbers: public, one a column, the same for every silo.

A rule says what a column is (a number, one of some levels, an ordered level, yes or no, a date) and what
stands for a cell that is missing. Nothing in it is read from rows. `RuledTable` applies rules while a
table is streamed, so that whatever comes after sees columns of numbers alone, such as ``sex=F``.
"""

import hashlib
import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from fedpower.data.columns import LARGEST, LARGEST_EXACT, match_columns, require_distinct, shown
from fedpower.data.source import Extra, RowSource, Vector
from fedpower.data.tables import TableReader, TableSource, arrow, floats, plain
from fedpower.errors import CellError, InputError, is_showable

Kind = Literal["number", "levels", "ordered", "yes/no", "date", "drop"]
_KINDS: tuple[Kind, ...] = get_args(Kind)
Mask = NDArray[np.bool_]

OTHER = "other"
"""What a level is called that the rule does not list."""

OFFSET = "offset"
"""A missing cell that counts for nothing once the column's offset is taken off."""

LEVEL = math.sqrt(0.5)
"""What a row's own level is in its column; the others are 0.

Two rows of different levels are then 1 apart, as a 0 and a 1 are: columns F and M are together what one
column of 0 and 1 is, with the same variance in the same direction.
"""

_SECONDS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 7 * 86400.0,
    "months": 365.25 / 12 * 86400.0,
    "years": 365.25 * 86400.0,
}
_FORMATS = ("%Y-%m-%d", "%Y-%m-%d %H:%M", "%Y-%m-%d %H:%M:%S")
"""How dates are written unless a rule has a format; a T may stand for the blank."""

_YES, _NO = ("yes", "true", "y", "t", "1"), ("no", "false", "n", "f", "0")
_NO_NUMBERS = ("#N/A", "N/A", "NA", "NULL", "NaN", "n/a", "nan", "null")
"""What stands for a missing number in text, whatever the rule says: none of it can be one."""

_NUMBER = r"^[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
_KEYS: dict[Kind, tuple[str, ...]] = {
    "number": ("range", "missing", "indicator", "missing_words"),
    "levels": ("levels", "missing", "indicator", "missing_words"),
    "ordered": ("ordered", "missing", "indicator", "missing_words"),
    "yes/no": ("missing", "indicator", "missing_words"),
    "date": ("origin", "unit", "format", "range", "missing", "indicator", "missing_words"),
    "drop": (),
}
"""By kind: what a rule may say beside it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the cells of one column of a table become.

    Attributes
    ----------
    column
        Its name in the tables.
    kind
        What it holds; ``drop`` leaves it out.
    range
        What numbers, or dates in their unit, lie between; cells beyond are taken to be at its end.
    levels
        Of ``levels`` and ``ordered``: the words, in order.
    origin, unit, format
        Of ``date``: the day that is 0, what is counted from there, and how dates are written, as
        strptime has it.
    missing
        What stands for a missing cell: a number, one of the words, or ``"offset"``; None for nothing.
    indicator
        Whether one more column says where cells are missing.
    missing_words
        What else than an empty cell means that it is missing.
    """

    column: str
    kind: Kind = "number"
    range: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    origin: str = ""
    unit: str = "days"
    format: str = ""
    missing: float | str | None = None
    indicator: bool = False
    missing_words: tuple[str, ...] = ()

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of numbers that come of it."""
        if self.kind == "drop":
            return ()
        marked = (f"{self.column} missing",) if self.indicator else ()
        if self.kind == "levels":
            return (*(f"{self.column}={level}" for level in (*self.levels, OTHER)), *marked)
        return (self.column, *marked)

    @property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """What each of these columns lies between; None where nobody said."""
        if self.kind == "levels":
            return ((0.0, LEVEL),) * len(self.features)
        own = self.range
        if self.kind == "ordered":
            own = (0.0, float(len(self.levels) - 1))
        elif self.kind == "yes/no":
            own = (0.0, 1.0)
        return (own, (0.0, 1.0))[: len(self.features)]

    @property
    def covers_missing(self) -> bool:
        """Whether anything stands for a missing cell."""
        return self.missing is not None or (self.indicator and self.kind == "levels")

    @property
    def fill(self) -> float | None:
        """The number that stands for a missing cell; None where there is none, and for levels."""
        if self.missing is None or self.kind == "levels":
            return None
        if self.missing == OFFSET:
            low, high = self.ranges[0] or (0.0, 0.0)
            return low / 2 + high / 2
        if isinstance(self.missing, str):
            return float(self.levels.index(self.missing))
        return float(self.missing)

    @property
    def is_plain(self) -> bool:
        """Whether its cells are read as the numbers that they are."""
        return self.kind == "number" and not self.missing_words

    def as_content(self) -> dict[str, Any]:
        """Return the rule as a code book has it."""
        said: dict[str, Any] = {}
        if self.kind in ("levels", "ordered"):
            said[self.kind] = list(self.levels)
        else:
            said["kind"] = self.kind
        if self.kind == "date":
            said |= {"origin": self.origin, "unit": self.unit}
        if self.format:
            said["format"] = self.format
        if self.range is not None:
            said["range"] = list(self.range)
        if self.missing is not None:
            said["missing"] = self.missing
        if self.indicator:
            said["indicator"] = True
        if self.missing_words:
            said["missing_words"] = list(self.missing_words)
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of a table's columns, in their order; a column without one holds numbers, all of them.

    Attributes
    ----------
    rules
        One for each column at most.
    """

    rules: tuple[Rule, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns that are left out wherever they are."""
        return tuple(rule.column for rule in self.rules if rule.kind == "drop")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that its features come from."""
        return tuple(rule.column for rule in self.rules if rule.kind != "drop")

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of numbers that come of them."""
        return tuple(name for rule in self.rules for name in rule.features)

    @property
    def digest(self) -> str:
        """SHA-256 of all that they say."""
        said = json.dumps(self.as_content(), sort_keys=False, separators=(",", ":"))
        return hashlib.sha256(said.encode()).hexdigest()

    def completed(self, columns: Iterable[str]) -> "TableRules":
        """Return a rule for each of these columns, in their order; those without one hold numbers."""
        known = {rule.column: rule for rule in self.rules}
        return TableRules(
            rules=tuple(known.get(column) or Rule(column=column) for column in columns)
        )

    def ranges(self, features: Sequence[str]) -> tuple[tuple[float, float] | None, ...]:
        """Return what features lie between, by the rules; None where these do not say."""
        known = {
            name: span
            for rule in self.rules
            for name, span in zip(rule.features, rule.ranges, strict=True)
        }
        return tuple(known.get(name) for name in features)

    def groups(self, features: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the places of features that are one column's levels, column by column."""
        places = {name: place for place, name in enumerate(features)}
        found = (
            tuple(places[name] for name in rule.features if name in places)
            for rule in self.rules
            if rule.kind == "levels"
        )
        return tuple(each for each in found if len(each) > 1)

    def with_offsets(self, features: Sequence[str], offsets: Vector) -> "TableRules":
        """Return the rules with the numbers that ``missing = "offset"`` comes to."""
        known = dict(zip(features, offsets.tolist(), strict=True))
        return TableRules(
            rules=tuple(
                replace(rule, missing=known[rule.column])
                if rule.missing == OFFSET and rule.column in known
                else rule
                for rule in self.rules
            )
        )

    def with_fills(self) -> "TableRules":
        """Return the rules with every missing cell's number in place of ``"offset"``."""
        return TableRules(
            rules=tuple(
                replace(rule, missing=rule.fill) if rule.missing == OFFSET else rule
                for rule in self.rules
            )
        )

    def as_content(self) -> dict[str, Any]:
        """Return the rules as a code book has them, by column."""
        return {rule.column: rule.as_content() for rule in self.rules}


def table_rules(content: Any, where: str) -> TableRules:
    """Return the rules that a mapping from columns gives; whatever is wrong is said in one sentence.

    Parameters
    ----------
    content
        By column: a table of a rule's keys, the word for a kind, or a list of levels.
    where
        What sentences call the file.
    """
    if not isinstance(content, Mapping):
        raise InputError(
            f"the rules in {where} must be a table from columns to rules, got "
            f"{type(content).__name__}; write for instance sex = {{ levels = ['F', 'M'] }}"
        )
    made = TableRules(rules=tuple(_rule(name, said, where) for name, said in content.items()))
    require_distinct(f"the rules in {where}", made.features)
    return made


def _rule(column: str, said: Any, where: str) -> Rule:
    """Return one rule, read and looked over."""
    called = f"the rule of '{column}' in {where}"
    if not is_showable(column) or not (column or said in ("drop", {"kind": "drop"})):
        raise InputError(
            f"the rules in {where} must be of columns whose names can be shown, got {column!a}; "
            "rename it, or drop a column without a name"
        )
    if isinstance(said, str):
        said = {"kind": said}
    elif isinstance(said, list):
        said = {"levels": said}
    if not isinstance(said, Mapping):
        raise InputError(
            f"{called} must be a table, a kind or a list of levels, got {type(said).__name__}; write "
            "for instance { kind = 'number' }"
        )
    kind = _kind_of(called, said)
    allowed = ("kind", *_KEYS[kind])
    odd = [key for key in said if key not in allowed]
    if odd:
        raise InputError(
            f"{called} must have only the keys {', '.join(allowed)} for a column of kind {kind!r}, got "
            f"{odd[0]!r}; leave it out"
        )
    rule = Rule(
        column=column,
        kind=kind,
        range=_range(called, said["range"]) if "range" in said else None,
        levels=_words(called, kind, said[kind]) if kind in ("levels", "ordered") else (),
        origin=_origin(called, said) if kind == "date" else "",
        unit=_unit(called, said.get("unit", "days")),
        format=_text(called, "format", said.get("format", "")),
        indicator=_flag(called, said.get("indicator", False)),
        missing_words=_words(called, "missing_words", said.get("missing_words", [])),
    )
    return replace(rule, missing=_missing(called, rule, said.get("missing")))


def _kind_of(called: str, said: Mapping[str, Any]) -> Kind:
    given = [key for key in ("levels", "ordered") if key in said]
    kind = said.get("kind", given[0] if given else None)
    if kind not in _KINDS:
        raise InputError(
            f"{called} must have a kind, one of {', '.join(_KINDS)}, or levels, got {kind!r}; choose one"
        )
    if kind in ("levels", "ordered") and kind not in said:
        raise InputError(
            f"{called} must list its {kind}, got none; write {kind} = ['low', 'high'] with the words "
            "that all silos agree on"
        )
    known: Kind = kind
    return known


def _words(called: str, key: str, given: Any) -> tuple[str, ...]:
    """Return levels or words as text: 1, 1.0 and "1" are the same."""
    is_list = isinstance(given, list | tuple)
    if not is_list or not all(isinstance(each, str | int | float) for each in given):
        raise InputError(f"{key} in {called} must be a list of words, got {given!r}; list them")
    words = tuple(_word(each) for each in given)
    if len(set(words)) < len(words):
        raise InputError(
            f"{key} in {called} must be different words, got one twice; take one of them out"
        )
    if key == "missing_words":
        return words
    if len(words) < (1 if key == "levels" else 2):
        raise InputError(
            f"{key} in {called} must be {'a word' if key == 'levels' else 'two words'} or more, got "
            f"{len(words)}; fill in those that all silos agree on, and never read them from rows"
        )
    if "" in words or not all(is_showable(word) for word in words):
        raise InputError(
            f"{key} in {called} must be words that can be shown, got an empty one or one with control "
            "characters; an empty cell is missing"
        )
    if key == "levels" and OTHER in words:
        raise InputError(
            f"levels in {called} must not have {OTHER!r} among them, which is added for all words that "
            "are not listed; leave it out"
        )
    return words


def _word(given: Any) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    text = str(given).strip()
    if isinstance(given, float) and given.is_integer():
        text = str(int(given))
    whole, point, rest = text.partition(".")
    is_whole = point and not rest.strip("0") and whole.lstrip("+-").isdecimal()
    return whole if is_whole else text


def _range(called: str, given: Any) -> tuple[float, float]:
    numbers = isinstance(given, list | tuple) and len(given) == 2 and all(map(_is_number, given))
    if not numbers or not given[0] < given[1] or max(map(abs, given)) > LARGEST:
        raise InputError(
            f"range in {called} must be two finite numbers, the smaller first, got {given!r}; write "
            "for instance range = [0, 120]"
        )
    return float(given[0]), float(given[1])


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _origin(called: str, said: Mapping[str, Any]) -> str:
    given = said.get("origin")
    if isinstance(given, datetime):
        given = given.date()
    if isinstance(given, date):
        return given.isoformat()
    try:
        return date.fromisoformat(given or "").isoformat()
    except (TypeError, ValueError):
        raise InputError(
            f"origin in {called} must be the day that counts as 0, as in 2000-01-31, got {given!r}; "
            "agree on one"
        ) from None


def _unit(called: str, given: Any) -> str:
    if given not in _SECONDS:
        raise InputError(
            f"unit in {called} must be one of {', '.join(_SECONDS)}, got {given!r}; choose one"
        )
    return str(given)


def _text(called: str, key: str, given: Any) -> str:
    if not isinstance(given, str):
        raise InputError(f"{key} in {called} must be text in quotes, got {given!r}; change it")
    return given


def _flag(called: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"indicator in {called} must be true or false, got {given!r}; change it")
    return given


def _missing(called: str, rule: Rule, given: Any) -> float | str | None:
    """Return what stands for a missing cell."""
    if given is None:
        if rule.indicator and rule.kind != "levels":
            raise InputError(
                f"{called} must say what stands for a missing cell beside its indicator, got no "
                f"missing; write missing = {OFFSET!r} or a number"
            )
        return None
    if rule.kind == "levels":
        known = (*rule.levels, OTHER)
        if rule.indicator or _word(given) not in known:
            raise InputError(
                f"missing in {called} must be one of {', '.join(known)}, and without an indicator, "
                f"which is a level of its own, got {given!r}; choose one of the two"
            )
        return _word(given)
    if given == OFFSET:
        if rule.ranges[0] is None:
            raise InputError(
                f"{called} must have a range for missing = {OFFSET!r}, whose middle stands for the "
                "offset until one is found, got none; give a range, or a public number"
            )
        return OFFSET
    if rule.kind == "ordered" and _word(given) in rule.levels:
        return _word(given)
    if not _is_number(given) or abs(given) > LARGEST:
        raise InputError(
            f"missing in {called} must be {OFFSET!r} or a number, got {given!r}; choose one"
        )
    low, high = rule.ranges[0] or (-LARGEST, LARGEST)
    if not low <= given <= high:
        raise InputError(
            f"missing in {called} must lie in its range from {low:g} to {high:g}, got {given:g}; choose "
            "one within"
        )
    return float(given)


@dataclass(frozen=True, slots=True, kw_only=True)
class Problem:
    """Cells that no rule covers: what must hold of their column, what they are, what to do; and which."""

    must: str
    got: str
    advice: str
    places: Mask

    def sentence(self, called: str, *, count: int, row: int) -> str:
        """Return it as a sentence about a column; rows are counted from 1."""
        where = f"in {count} cells, the first at row {row}" if count > 1 else f"at row {row}"
        return f"{called} must {self.must}, got {self.got} {where}; {self.advice}"


_NUMBERS = "hold numbers"
_NAMED = "name what means missing with missing_words, give it a rule, or drop it"


def read_cells(rule: Rule, cells: Any) -> tuple[list[Vector], list[Problem]]:
    """Return the features of some cells, and what is wrong with those that the rule does not cover.

    Parameters
    ----------
    rule
        Of their column.
    cells
        An Arrow array; text, or of whatever type the table has.
    """
    cells = plain(cells)
    values, missing, problems = _READERS[rule.kind](rule, cells)
    if not rule.covers_missing and missing.any():
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
    fill = rule.fill
    if fill is not None:
        values = np.where(missing, fill, values)
    if rule.range is not None:
        values = np.clip(values, *rule.range)
    marked = [missing.astype(np.float64)] if rule.indicator else []
    return [values, *marked], [each for each in problems if each.places.any()]


_Parts = tuple[Vector, Mask, list[Problem]]
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


def _no_number(places: Mask, got: str) -> Problem:
    return Problem(must=_NUMBERS, got=got, advice=_NAMED, places=places)


def _dated(places: Mask) -> Problem:
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


def _codes(
    rule: Rule, cells: Any, words: Sequence[str], *, lower: bool = False
) -> tuple[Vector, Mask]:
    """Return the place of each cell among words, −1 for none of them, and where cells are missing."""
    pa, compute = arrow(), arrow("compute")
    text, missing = _text_of(cells, rule.missing_words)
    text = compute.utf8_lower(text) if lower else text
    found = compute.fill_null(
        compute.index_in(text, value_set=pa.array(list(words), pa.string())), -1
    )
    return np.asarray(found.to_numpy(zero_copy_only=False), dtype=np.float64), missing


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
    return (since / 1e6 - origin.total_seconds()) / _SECONDS[rule.unit], missing, problems


def _parsed(text: Any, written: str) -> Any:
    """Return moments, null where a text is none.

    Arrow takes the 30th of February for the 1st of March: a date must read the same when it is written.
    """
    pa, compute = arrow(), arrow("compute")
    found = pa.nulls(len(text), pa.timestamp("s"))
    bare = compute.replace_substring_regex(text, r"^(\S{10})T(\S*?)Z?$", r"\1 \2")
    asked = text if written else bare
    for form in (written,) if written else _FORMATS:
        moments = compute.strptime(asked, form, unit="s", error_is_null=True)
        again = _without_zeros(compute.strftime(moments, form))
        same = compute.equal(again, _without_zeros(asked))
        found = compute.coalesce(found, compute.if_else(same, moments, None))
    return found


def _without_zeros(text: Any) -> Any:
    compute = arrow("compute")
    return compute.replace_substring_regex(compute.utf8_lower(text), r"\b0+([0-9])", r"\1")


_READERS: dict[Kind, Callable[[Rule, Any], _Parts]] = {
    "number": _numbers,
    "levels": _levels,
    "ordered": _ordered,
    "yes/no": _yes_or_no,
    "date": _dates,
}


def _is_text(kind: Any) -> bool:
    types = arrow().types
    return bool(types.is_string(kind) or types.is_large_string(kind) or types.is_string_view(kind))


def _text_of(cells: Any, words: Sequence[str]) -> tuple[Any, Mask]:
    """Return cells as text, 1.0 as 1, and which are missing: null, NaN, empty, or one of these words."""
    pa, compute = arrow(), arrow("compute")
    gone = compute.is_null(cells, nan_is_null=True)
    text = compute.utf8_trim_whitespace(cells.cast(pa.string()))
    text = compute.replace_substring_regex(text, r"^([+-]?[0-9]+)\.0*$", r"\1")
    empty = compute.is_in(text, value_set=pa.array(["", *words], pa.string()))
    return text, _mask(gone) | _mask(empty)


def _meant(values: Vector, words: Sequence[str]) -> Mask:
    """Return which numbers a list of words has: 999 is 999.0."""
    listed = []
    for word in words:
        try:
            listed.append(float(word))
        except ValueError:
            continue
    return np.isin(values, listed)


def _kept(text: Any, keep: Mask) -> Any:
    """Return numbers from text, null where it is not kept."""
    pa, compute = arrow(), arrow("compute")
    return compute.if_else(pa.array(keep), text, pa.scalar(None, pa.string())).cast(pa.float64())


def _mask(flags: Any) -> Mask:
    filled = arrow("compute").fill_null(flags, False)
    return np.asarray(filled.to_numpy(zero_copy_only=False), dtype=np.bool_)


@dataclass(frozen=True, kw_only=True, eq=False)
class RuledTable:
    """A table whose columns are the features that rules make of another's, as a reader of batches.

    Parameters
    ----------
    name : what error sentences call it.
    table : the table as it is.
    rules : one for each of its columns that are used.
    """

    name: str
    table: TableReader
    rules: TableRules

    @property
    def columns(self) -> tuple[str, ...]:
        """The features, and after them the table's own columns, for labels."""
        features = self.rules.features
        return (*features, *(name for name in self.table.columns if name not in features))

    @property
    def n_rows(self) -> int | None:
        """Number of rows, where known."""
        return self.table.n_rows

    def batches(
        self, columns: tuple[str, ...], max_rows: int, *, labels: tuple[str, ...] = ()
    ) -> Iterator[Any]:
        """Yield the wanted features, and labels as they are; a cell that no rule covers is refused."""
        pa = arrow()
        wanted = set(columns)
        used = [rule for rule in self.rules.rules if wanted.intersection(rule.features)]
        numbers = tuple(rule.column for rule in used if rule.is_plain)
        words = tuple(
            dict.fromkeys([*(rule.column for rule in used if not rule.is_plain), *labels])
        )
        places = {name: place for place, name in enumerate((*numbers, *words))}
        row = 0
        for batch in self.table.batches(numbers, max_rows, labels=words):
            found: dict[str, Vector] = {}
            for rule in used:
                values, problems = read_cells(rule, batch.column(places[rule.column]))
                for problem in problems:
                    raise CellError(
                        problem.sentence(
                            f"column '{rule.column}' of {self.name}",
                            count=1,
                            row=row + int(np.flatnonzero(problem.places)[0]) + 1,
                        )
                    )
                found |= zip(rule.features, values, strict=True)
            row += batch.num_rows
            arrays = [pa.array(found[name]) for name in columns]
            arrays += [batch.column(places[name]) for name in labels]
            yield pa.RecordBatch.from_arrays(arrays, names=[*columns, *labels])
            del batch, found, arrays


def made_up(rule: Rule, values: Vector) -> list[Any]:
    """Return cells that a rule covers, as text, from numbers around 0: nobody's data, for rehearsals."""
    if rule.kind in ("number", "date"):
        low, high = rule.range or (0.0, 1.0)
        numbers = low + (high - low) / (1.0 + np.exp(-values)) if rule.range else values
        if rule.kind == "number":
            return [repr(each) for each in numbers.tolist()]
        start = datetime.fromisoformat(rule.origin)
        days = (numbers * _SECONDS[rule.unit] / _SECONDS["days"]).tolist()
        form = rule.format or _FORMATS[0]
        return [(start + timedelta(days=int(each))).strftime(form) for each in days]
    words = rule.levels or ("no", "yes")
    return [words[int(place)] for place in np.abs(values * 1e6) % len(words)]


def ruled(source: RowSource, rules: TableRules) -> TableSource:
    """Return the source of the features that rules make of a table's columns, in its order.

    Parameters
    ----------
    source
        A table with named columns; those that rules drop are left out.
    rules
        Of its columns; one without a rule holds numbers.
    """
    if not isinstance(source, TableSource):
        raise InputError(
            f"{source.name} must be a table with named columns to have rules, got rows without them; "
            "give a CSV, Parquet or Feather file, a data frame or a query, or a code book without rules"
        )
    if isinstance(source.reader, RuledTable):
        return source
    kept = tuple(column for column in source.columns if column not in rules.dropped)
    own = rules.completed(kept)
    require_distinct(source.name, own.features)
    if not own.features:
        raise InputError(
            f"{source.name} must keep at least one column, got rules that drop all; keep one"
        )
    reader = RuledTable(name=source.name, table=source.reader, rules=own)
    return replace(source, reader=reader, columns=own.features)


def match_tables(
    sources: Mapping[str, RowSource], rules: TableRules | None, *, extra: Extra = "refuse"
) -> tuple[tuple[str, ...] | None, dict[str, RowSource]]:
    """Return the columns of a fit, and the silos' sources with exactly these, by their rules.

    Parameters
    ----------
    sources
        The silos' rows, by name.
    rules
        Of their columns; None without any.
    extra
        Whether columns that not every silo has are refused or dropped.
    """
    if rules is None:
        columns, matched = match_columns(list(sources.values()), extra=extra)
        return columns, dict(zip(sources, matched, strict=True))
    tables = [ruled(source, rules).reader for source in sources.values()]
    held = {column for table in tables for column in table.columns}  # those left out, too
    unknown = [name for name in rules.columns if name not in held]
    if unknown:
        raise InputError(
            f"rules must be of columns that the tables have, got one for {shown(unknown)}, which none "
            "has; correct the name, or leave the rule out"
        )
    kept = [
        source.select(
            tuple(name for name in source.columns or () if name not in rules.dropped), extra="drop"
        )
        for source in sources.values()
    ]
    _, matched = match_columns(kept, extra=extra)
    made = [ruled(source, rules) for source in matched]
    return made[0].columns, dict(zip(sources, made, strict=True))


def rules_of_source(source: RowSource) -> TableRules | None:
    """Return the rules that a source's features come from; None where they come as they are."""
    reader = getattr(source, "reader", None)
    return reader.rules if isinstance(reader, RuledTable) else None
