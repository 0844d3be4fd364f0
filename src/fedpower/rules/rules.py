"""Rules that turn the cells of a table into numbers: public, one per column, the same for every silo."""

import datetime as dt
import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import msgspec

from fedpower.exceptions import InputError, is_showable
from fedpower.values import LARGEST, require_distinct, shown

Kind = Literal[
    "number", "levels", "ordered", "yes/no", "date", "rating", "person", "item", "comparison", "drop"
]
_KINDS: tuple[Kind, ...] = get_args(Kind)

OTHER = "other"
"""What a level is called that the rule does not list."""

OUTCOME = "outcome"
"""The column of 1 after comparisons that have no margin: the item that is named first won."""

COMPARISON_BOUND = 1.7321
"""√3 rounded up: e_i − e_j and an outcome in [−1, 1] have a norm of √3 at most; no row is shortened."""

_OFFSET = "offset"
"""A missing cell that counts for nothing once the column's offset is taken off."""

LEVEL = math.sqrt(0.5)
"""What a row's own level is in its column; the others are 0.

Two rows of different levels are then 1 apart, as a 0 and a 1 are: columns F and M are together what one
column of 0 and 1 is, with the same variance in the same direction.
"""

KNOWN = 0.5
"""What says after a rating, which is between −1 and 1, that there is one; 0 says that there is none.

Less of it leaves more of a row's length to the ratings, and noises the counts of pairs more: .3 and .5
were as good, .2 and .8 worse [decision 19].
"""

_DAY = 86400.0
SECONDS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": _DAY,
    "weeks": 7 * _DAY,
    "months": 365.25 / 12 * _DAY,
    "years": 365.25 * _DAY,
}
"""By unit of time: how many seconds it has."""

_WORDS = ("levels", "items", "missing_words")
_MUST_LIST = "a list of words; a silo's own file translates other spellings of a word"
_MISSING = ("missing", "indicator", "missing_words")
_KEYS: dict[Kind, tuple[str, ...]] = {
    "number": ("range", *_MISSING),
    "levels": ("levels", *_MISSING),
    "ordered": ("ordered", *_MISSING),
    "yes/no": _MISSING,
    "date": ("origin", "unit", "format", "range", *_MISSING),
    "rating": ("range", "items", "missing_words"),
    "person": (),
    "item": (),
    "comparison": ("items", "against", "margin", "range"),
    "drop": (),
}
"""By kind: what a rule may give with it."""

_LISTED: dict[Kind, str] = {"levels": "levels", "ordered": "ordered", "comparison": "items"}
"""By kind: the key of the words that such a rule lists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """What the cells of one column of a table become."""

    column: str
    kind: Kind = "number"
    range: tuple[float, float] | None = None
    levels: tuple[str, ...] = ()
    items: tuple[str, ...] = ()
    origin: str = ""
    unit: str = "days"
    format: str = ""
    missing: float | str | None = None
    indicator: bool = False
    missing_words: tuple[str, ...] = ()
    against: str = ""
    margin: str = ""

    @property
    def columns(self) -> tuple[str, ...]:
        return (self.column, *(name for name in (self.against, self.margin) if name))

    @property
    def called(self) -> str:
        return f"columns '{self.column}' and '{self.against}'" if self.against else f"column '{self.column}'"

    @property
    def features(self) -> tuple[str, ...]:
        if self.kind in ("drop", "person", "item"):
            return ()
        if self.kind == "rating":
            return tuple(name for item in self.rated for name in (item, f"{item} known"))
        if self.kind == "comparison":
            return (*self.levels, self.margin or OUTCOME)
        marked = (f"{self.column} missing",) if self.indicator else ()
        if self.kind == "levels":
            return (*(f"{self.column}={level}" for level in (*self.levels, OTHER)), *marked)
        return (self.column, *marked)

    @property
    def rated(self) -> tuple[str, ...]:
        return () if self.kind != "rating" else self.items or (self.column,)

    @property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """What each of these columns is between; None where that is not known."""
        if self.kind == "rating":
            return ((-1.0, 1.0), (0.0, KNOWN)) * len(self.rated)
        if self.kind == "levels":
            return ((0.0, LEVEL),) * len(self.features)
        if self.kind == "comparison":
            return (*((-1.0, 1.0),) * len(self.levels), self.range or (0.0, 1.0))
        own = {"ordered": (0.0, float(len(self.levels) - 1)), "yes/no": (0.0, 1.0)}.get(self.kind, self.range)
        return (own, (0.0, 1.0))[: len(self.features)]

    @property
    def span(self) -> tuple[float, float] | None:
        """What numbers and dates are set to the ends of."""
        return self.range if self.kind in ("number", "date") else None

    @property
    def covers_missing(self) -> bool:
        """Whether anything stands for a missing cell."""
        if self.kind == "rating" or (self.indicator and self.kind == "levels"):
            return True
        return self.fill is not None if self.missing == _OFFSET else self.missing is not None

    @property
    def may_have_gaps(self) -> bool:
        """Whether a missing cell counts for nothing: by default, where a column is one number."""
        return self.kind in ("number", "ordered", "yes/no", "date") and self.missing in (None, _OFFSET)

    @property
    def fill(self) -> float | None:
        """The number that stands for a missing cell; None where there is none, and for levels."""
        if self.missing is None or self.kind == "levels":
            return None
        if self.missing == _OFFSET:
            known = self.ranges[0]
            return None if known is None else known[0] / 2 + known[1] / 2
        if isinstance(self.missing, str):
            return float(self.levels.index(self.missing))
        return float(self.missing)

    @property
    def numbers(self) -> tuple[str, ...]:
        """Its columns whose cells are read as numbers, where a text may be parsed so."""
        if self.kind in ("number", "rating") and not self.missing_words and not self.items:
            return self.columns
        return (self.margin,) if self.margin else ()

    @property
    def largest(self) -> float:
        """Of a comparison: the largest margin in size, which counts as an outcome of 1."""
        return max(map(abs, self.range)) if self.range else 1.0

    def as_content(self) -> dict[str, Any]:
        """Return the rule as a code book has it."""
        key = _LISTED.get(self.kind)
        content: dict[str, Any] = {key: list(self.levels)} if key else {"kind": self.kind}
        for name in _KEYS[self.kind]:
            value = None if name == key else getattr(self, name)
            if value is not None and value not in ((), "") and value is not False:
                content[name] = list(value) if isinstance(value, tuple) else value
        return content


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of a table's columns, in their order; a column without one holds numbers, all of them."""

    rules: tuple[Rule, ...]

    @property
    def kept(self) -> tuple[Rule, ...]:
        return tuple(rule for rule in self.rules if rule.kind != "drop")

    @property
    def dropped(self) -> tuple[str, ...]:
        return tuple(rule.column for rule in self.rules if rule.kind == "drop")

    @property
    def columns(self) -> tuple[str, ...]:
        return tuple(name for rule in self.kept for name in rule.columns)

    @property
    def comparison(self) -> Rule | None:
        return next((rule for rule in self.rules if rule.kind == "comparison"), None)

    @property
    def features(self) -> tuple[str, ...]:
        return tuple(name for rule in self.rules for name in rule.features)

    @property
    def long(self) -> tuple[Rule, ...] | None:
        """The rules of persons, items and ratings in a table of one rating per row."""
        named = {rule.kind: rule for rule in self.rules if rule.kind != "rating" or rule.items}
        kinds: tuple[Kind, ...] = ("person", "item", "rating")
        return tuple(named[kind] for kind in kinds) if named.keys() >= set(kinds) else None

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        return {item: rule.range or (0.0, 1.0) for rule in self.rules for item in rule.rated}

    @property
    def digest(self) -> str:
        content = json.dumps(self.as_content(), sort_keys=False, separators=(",", ":"))
        return hashlib.sha256(content.encode()).hexdigest()

    def completed(self, columns: Iterable[str]) -> "TableRules":
        """Return a rule for each of these columns, in their order, and all drops; others hold numbers."""
        known = {rule.column: rule for rule in self.kept}
        read = {name for rule in self.kept for name in rule.columns[1:]}
        rules = [known.get(name) or Rule(column=name) for name in columns if name not in read]
        return TableRules(rules=(*rules, *(rule for rule in self.rules if rule.kind == "drop")))

    def ranges(self, features: Sequence[str]) -> tuple[tuple[float, float] | None, ...]:
        """Return what features are between, by the rules; None where these do not say."""
        spans = (span for rule in self.rules for span in rule.ranges)
        known = dict(zip(self.features, spans, strict=True))
        return tuple(known.get(name) for name in features)

    def groups(self, features: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the places of features that are one column's levels, column by column."""
        places = {name: place for place, name in enumerate(features)}
        levels = (rule.features for rule in self.rules if rule.kind == "levels")
        groups = (tuple(places[name] for name in names if name in places) for names in levels)
        return tuple(group for group in groups if len(group) > 1)

    def filled(self, offsets: Mapping[str, float]) -> "TableRules":
        """Return the rules with the number that ``missing = "offset"`` comes to, by column or by range."""
        rules = (
            replace(rule, missing=offsets.get(rule.column, rule.fill)) if rule.missing == _OFFSET else rule
            for rule in self.rules
        )
        return TableRules(rules=tuple(rules))

    @property
    def unfilled(self) -> "TableRules":
        """The rules with no number for missing cells where the column's offset is to be found."""
        known = (replace(rule, missing=None) if rule.missing == _OFFSET else rule for rule in self.rules)
        return TableRules(rules=tuple(known))

    def as_content(self) -> dict[str, Any]:
        """Return the rules as a code book has them, by column."""
        return {rule.column: rule.as_content() for rule in self.rules}


# --- content ----------------------------------------------------------------------------------------------


def table_rules(content: Any, where: str) -> TableRules:
    """Return the rules that a mapping from columns gives, or refuse them in one sentence."""
    if not isinstance(content, Mapping):
        raise InputError(f"the rules in {where} must be a table from columns to rules, got {content!r}")
    for name in content:
        if not is_showable(str(name)):
            must = "be of columns whose names can be shown"
            raise InputError(f"the rules in {where} must {must}, got {name!a}")
    full = {name: _in_full(given) for name, given in content.items()}
    odd = [name for name, rule in full.items() if isinstance(rule, Mapping) and _kind_of(rule) not in _KINDS]
    if odd:
        called = f"the rule{'s' if len(odd) > 1 else ''} of {shown(odd)} in {where}"
        got = _kind_of(full[odd[0]])
        raise InputError(f"{called} must have a kind, one of {', '.join(_KINDS)}, got {got!r}")
    rules = TableRules(rules=tuple(_rule(name, given, where) for name, given in full.items()))
    require_distinct(f"the rules in {where}", rules.features)
    marked = sorted(rule.kind for rule in rules.kept if rule.kind in ("person", "item") or rule.items)
    if marked and (marked != ["item", "person", "rating"] or len(rules.kept) > len(marked)):
        got = ", ".join(f"{rule.column} = {rule.kind}" for rule in rules.kept[:4])
        must = "a person, an item and a rating with its items, and nothing else but columns to drop"
        raise InputError(f"the rules in {where} must be {must}, got {got}")
    require_alone(f"the rules in {where}", rules)
    return rules


def require_alone(called: str, rules: TableRules) -> None:
    """Refuse other features than those of comparisons: the bound on their norm would not hold."""
    only = rules.comparison
    if only is None:
        return
    odd = [rule.column for rule in rules.kept if rule is not only]
    odd += [name for name in rules.dropped if name in only.columns]
    if odd:
        raise InputError(f"{called} must have comparisons and no other column, got '{odd[0]}'; drop it")


def _in_full(given: Any) -> Any:
    """Return the table that stands for a kind, a list of levels, or a pair of numbers."""
    if isinstance(given, str):
        return {"kind": given}
    if isinstance(given, tuple) and all(isinstance(end, int | float) for end in given):
        return {"kind": "number", "range": list(given)}
    return {"levels": list(given)} if isinstance(given, list | tuple) else given


def _kind_of(given: Mapping[str, Any]) -> Any:
    return given.get("kind", next((kind for kind, key in _LISTED.items() if key in given), None))


def _rule(column: str, given: Any, where: str) -> Rule:
    called = f"the rule of '{column}' in {where}"

    def require(holds: bool, key: str, must: str) -> None:
        if not holds:
            got = "none" if given.get(key) is None else repr(given[key])
            raise InputError(f"{key} in {called} must be {must}, got {got}")

    if not isinstance(given, Mapping):
        raise InputError(f"{called} must be a table, a kind or a list of levels, got {type(given).__name__}")
    kind = _kind_of(given)
    if not (column or kind == "drop"):
        raise InputError(f"the rules in {where} must be of columns with names, got {column!a}")
    odd = [key for key in given if key not in ("kind", *_KEYS[kind])]
    if odd:
        allowed = ", ".join(("kind", *_KEYS[kind]))
        raise InputError(f"{called} must have only the keys {allowed} for kind {kind!r}, got {odd[0]!r}")
    key = _LISTED.get(kind, "")
    content = {"levels" if name == key else name: value for name, value in given.items()}
    for name in set(_WORDS) & content.keys():
        content[name] = words = _words(content[name])
        listed = isinstance(words, list) and all(isinstance(word, str) for word in words)
        require(listed, key if name == "levels" else name, _MUST_LIST)
    if isinstance(content.get("origin"), dt.date):
        content["origin"] = content["origin"].isoformat()
    try:
        rule = msgspec.convert({**content, "column": column, "kind": kind, "missing": None}, Rule)
    except msgspec.ValidationError as error:
        reason = str(error).replace("Expected", "expected", 1)
        raise InputError(f"{called} must have values of the right types, got {reason}") from None
    lists = {key: rule.levels, "missing_words": rule.missing_words}
    lists |= {"items": rule.items} if kind == "rating" and "items" in given else {}
    for name, words in lists.items():
        require(len(set(words)) == len(words), name, "different words")
        require(all(map(is_showable, words)), name, "words to be shown")
        if name and name != "missing_words":
            require(len(words) >= (1 if name == "levels" else 2), name, "the words that silos agree on")
            require("" not in words, name, "words that are not empty")
    require(
        kind != "levels" or OTHER not in rule.levels, key, f"words without {OTHER!r}, which is always added"
    )
    span = rule.range
    if span is not None:
        good = span[0] < span[1] and max(map(abs, span)) <= LARGEST
        require(good, "range", "two finite numbers, the smaller first")
    require(kind != "rating" or span is not None, "range", "the smallest and largest rating, as in [1, 5]")
    require(kind != "date" or _is_day(rule.origin), "origin", "the day that counts as 0")
    require(rule.unit in SECONDS, "unit", f"one of {', '.join(SECONDS)}")
    for name in ("against", "margin"):
        require(is_showable(getattr(rule, name)), name, "the name of a column that can be shown")
    if kind == "comparison":
        require(bool(rule.against), "against", "the column of the item that lost")
        different = len(set(rule.columns)) == len(rule.columns)
        require(different, "against", "another column than its own and margin")
        both = bool(rule.margin) == (span is not None)
        require(both, "margin", "given with range, which bounds what one comparison counts")
    return replace(rule, missing=_missing(rule, given.get("missing"), require))


def _is_day(text: str) -> bool:
    try:
        return bool(dt.date.fromisoformat(text))
    except ValueError:
        return False


def _words(given: Any) -> Any:
    """Return words as text, 1.0 as 1; what is no list of them is left to be refused."""
    if not isinstance(given, list | tuple):
        return given
    return [_word(word) if isinstance(word, str | int | float) else word for word in given]


def _word(given: Any) -> str:
    if isinstance(given, bool):
        return str(given).lower()
    text = str(int(given)) if isinstance(given, float) and given.is_integer() else str(given).strip()
    whole, point, rest = text.partition(".")
    return whole if point and not rest.strip("0") and whole.lstrip("+-").isdecimal() else text


def _missing(rule: Rule, given: float | str | None, require: Any) -> float | str | None:
    if rule.kind == "levels" and given is not None:
        known = (*rule.levels, OTHER)
        good = not rule.indicator and _word(given) in known
        require(good, "missing", f"one of {', '.join(known)}, and without an indicator")
        return _word(given)
    if given is None and (rule.kind == "levels" or not rule.indicator):
        return None
    if given in (None, _OFFSET):
        return _OFFSET
    if not isinstance(given, str | int | float):
        given = ""
    if rule.kind == "ordered" and _word(given) in rule.levels:
        return _word(given)
    low, high = rule.ranges[0] or (-LARGEST, LARGEST)
    is_within = isinstance(given, int | float) and low <= given <= high
    require(is_within, "missing", f"{_OFFSET!r} or a number from {low:g} to {high:g}")
    return float(given)
