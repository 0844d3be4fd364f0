"""Rules that turn the cells of a table into numbers: public, one a column, the same for every silo."""

import hashlib
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime
from typing import Any, Literal, get_args

from fedpower.errors import InputError, is_showable
from fedpower.rows.columns import LARGEST, require_distinct
from fedpower.rows.source import Vector

Kind = Literal[
    "number", "levels", "ordered", "yes/no", "date", "rating", "person", "item", "comparison", "drop"
]
_KINDS: tuple[Kind, ...] = get_args(Kind)

_KNOWN_SUFFIX = " known"
"""After the name of an item: the column that says whether there is a rating of it."""

OTHER = "other"
"""What a level is called that the rule does not list."""

OUTCOME = "outcome"
"""The column of 1 beside comparisons that have no margin: whoever is named first won."""

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
"""What says beside a rating, which lies between −1 and 1, that there is one; 0 says that there is none.

Less of it leaves more of a row's length to the ratings, and noises the counts of pairs more: .3 and .5
were as good, .2 and .8 worse [decision 37].
"""

SECONDS = {
    "seconds": 1.0,
    "minutes": 60.0,
    "hours": 3600.0,
    "days": 86400.0,
    "weeks": 7 * 86400.0,
    "months": 365.25 / 12 * 86400.0,
    "years": 365.25 * 86400.0,
}
"""By unit of time: how many seconds it has."""

_KEYS: dict[Kind, tuple[str, ...]] = {
    "number": ("range", "missing", "indicator", "missing_words"),
    "levels": ("levels", "missing", "indicator", "missing_words"),
    "ordered": ("ordered", "missing", "indicator", "missing_words"),
    "yes/no": ("missing", "indicator", "missing_words"),
    "date": ("origin", "unit", "format", "range", "missing", "indicator", "missing_words"),
    "rating": ("range", "items", "missing_words"),
    "person": (),
    "item": (),
    "comparison": ("items", "against", "margin", "range"),
    "drop": (),
}
"""By kind: what a rule may say beside it."""

_LISTED: dict[str, Kind] = {"levels": "levels", "ordered": "ordered", "items": "comparison"}
"""By key: the kind of a rule that lists words under it."""


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
        """The columns of a table that it reads."""
        return (self.column, *(name for name in (self.against, self.margin) if name))

    @property
    def called(self) -> str:
        """What sentences call them."""
        if self.against:
            return f"columns '{self.column}' and '{self.against}'"
        return f"column '{self.column}'"

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of numbers that come of it."""
        if self.kind in ("drop", "person", "item"):
            return ()
        if self.kind == "rating":
            return tuple(name for item in self.rated for name in (item, f"{item}{_KNOWN_SUFFIX}"))
        if self.kind == "comparison":
            return (*self.levels, self.margin or OUTCOME)
        marked = (f"{self.column} missing",) if self.indicator else ()
        if self.kind == "levels":
            return (*(f"{self.column}={level}" for level in (*self.levels, OTHER)), *marked)
        return (self.column, *marked)

    @property
    def rated(self) -> tuple[str, ...]:
        """Of ``rating``: what is rated; the column itself in a table of one row a person."""
        return () if self.kind != "rating" else self.items or (self.column,)

    @property
    def ranges(self) -> tuple[tuple[float, float] | None, ...]:
        """What each of these columns lies between; None where nobody said."""
        if self.kind == "rating":
            return ((-1.0, 1.0), (0.0, KNOWN)) * len(self.rated)
        if self.kind == "levels":
            return ((0.0, LEVEL),) * len(self.features)
        if self.kind == "comparison":
            return (*((-1.0, 1.0),) * len(self.levels), self.range or (0.0, 1.0))
        own = self.range
        if self.kind == "ordered":
            own = (0.0, float(len(self.levels) - 1))
        elif self.kind == "yes/no":
            own = (0.0, 1.0)
        return (own, (0.0, 1.0))[: len(self.features)]

    @property
    def covers_missing(self) -> bool:
        """Whether anything stands for a missing cell."""
        if self.kind == "rating" or (self.indicator and self.kind == "levels"):
            return True
        return self.fill is not None if self.missing == _OFFSET else self.missing is not None

    @property
    def may_have_gaps(self) -> bool:
        """Whether a missing cell counts for nothing: by default, where a column is one number."""
        single = self.kind in ("number", "ordered", "yes/no", "date")
        return single and self.missing in (None, _OFFSET)

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
    def is_plain(self) -> bool:
        """Whether its cells are read as the numbers that they are."""
        return self.kind in ("number", "rating") and not self.missing_words and not self.items

    @property
    def largest(self) -> float:
        """Of a comparison: the largest margin in size, which counts as an outcome of 1."""
        return max(map(abs, self.range)) if self.range else 1.0

    def as_content(self) -> dict[str, Any]:
        """Return the rule as a code book has it."""
        said: dict[str, Any] = {}
        listed = [key for key, kind in _LISTED.items() if kind == self.kind]
        if listed:
            said[listed[0]] = list(self.levels)
        else:
            said["kind"] = self.kind
        if self.kind == "date":
            said |= {"origin": self.origin, "unit": self.unit}
        said |= {key: each for key, each in (("against", self.against), ("margin", self.margin)) if each}
        if self.format:
            said["format"] = self.format
        if self.range is not None:
            said["range"] = list(self.range)
        if self.items:
            said["items"] = list(self.items)
        if self.missing is not None:
            said["missing"] = self.missing
        if self.indicator:
            said["indicator"] = True
        if self.missing_words:
            said["missing_words"] = list(self.missing_words)
        return said


@dataclass(frozen=True, slots=True, kw_only=True)
class TableRules:
    """The rules of a table's columns, in their order; a column without one holds numbers, all of them."""

    rules: tuple[Rule, ...]

    @property
    def dropped(self) -> tuple[str, ...]:
        """The columns that are left out wherever they are."""
        return tuple(rule.column for rule in self.rules if rule.kind == "drop")

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns of a table that its features come from."""
        return tuple(name for rule in self.rules if rule.kind != "drop" for name in rule.columns)

    @property
    def comparison(self) -> Rule | None:
        """The rule of comparisons, which stands alone; None where rows are none."""
        return next((rule for rule in self.rules if rule.kind == "comparison"), None)

    @property
    def features(self) -> tuple[str, ...]:
        """The columns of numbers that come of them."""
        return tuple(name for rule in self.rules for name in rule.features)

    @property
    def long(self) -> "LongForm | None":
        """The three columns of a table of one rating a row; None for tables of one row a person."""
        named = {rule.kind: rule for rule in self.rules if rule.kind != "rating" or rule.items}
        if not named.keys() >= {"person", "item", "rating"}:
            return None
        return LongForm(person=named["person"].column, item=named["item"].column,
                        rating=named["rating"])  # fmt: skip

    @property
    def spans(self) -> dict[str, tuple[float, float]]:
        """By rated item, in order: what its ratings lie between."""
        return {item: rule.range or (0.0, 1.0) for rule in self.rules for item in rule.rated}

    @property
    def digest(self) -> str:
        """SHA-256 of all that they say."""
        said = json.dumps(self.as_content(), sort_keys=False, separators=(",", ":"))
        return hashlib.sha256(said.encode()).hexdigest()

    def completed(self, columns: Iterable[str]) -> "TableRules":
        """Return a rule for each of these columns, in their order; those without one hold numbers."""
        known = {rule.column: rule for rule in self.rules}
        beside = {name for rule in self.rules for name in rule.columns[1:]}
        return TableRules(
            rules=tuple(
                known.get(column) or Rule(column=column) for column in columns if column not in beside
            )
        )

    def ranges(self, features: Sequence[str]) -> tuple[tuple[float, float] | None, ...]:
        """Return what features lie between, by the rules; None where these do not say."""
        known = {
            name: span for rule in self.rules for name, span in zip(rule.features, rule.ranges, strict=True)
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
                if rule.missing == _OFFSET and rule.column in known
                else rule
                for rule in self.rules
            )
        )

    def with_fills(self) -> "TableRules":
        """Return the rules with every missing cell's number in place of ``"offset"``."""
        return TableRules(
            rules=tuple(
                replace(rule, missing=rule.fill) if rule.missing == _OFFSET else rule for rule in self.rules
            )
        )

    def as_content(self) -> dict[str, Any]:
        """Return the rules as a code book has them, by column."""
        return {rule.column: rule.as_content() for rule in self.rules}


@dataclass(frozen=True, slots=True, kw_only=True)
class LongForm:
    """A table of one rating a row."""

    person: str
    item: str
    rating: Rule


def table_rules(content: Any, where: str) -> TableRules:
    """Return the rules that a mapping from columns gives; whatever is wrong is said in one sentence."""
    if not isinstance(content, Mapping):
        raise InputError(
            f"the rules in {where} must be a table from columns to rules, got "
            f"{type(content).__name__}; write for instance sex = {{ levels = ['F', 'M'] }}"
        )
    made = TableRules(rules=tuple(_rule(name, said, where) for name, said in content.items()))
    require_distinct(f"the rules in {where}", made.features)
    _check_long(made, where)
    require_alone(f"the rules in {where}", made)
    return made


def require_alone(called: str, rules: TableRules) -> None:
    """Refuse features beside those of comparisons: the bound on their norm would not hold."""
    alone = rules.comparison
    if alone is None:
        return
    odd = [rule.column for rule in rules.rules if rule not in (alone,) and rule.kind != "drop"]
    odd += [name for name in rules.dropped if name in alone.columns]
    if odd:
        raise InputError(
            f"{called} must have comparisons and no other column beside them, got '{odd[0]}'; drop it, "
            "or name it in the rule of the comparisons"
        )


def _check_long(rules: TableRules, where: str) -> None:
    """Refuse half of a table of one rating a row."""
    kept = [rule for rule in rules.rules if rule.kind != "drop"]
    marked = [rule for rule in kept if rule.kind in ("person", "item") or rule.items]
    kinds = sorted(rule.kind for rule in marked)
    if marked and (kinds != ["item", "person", "rating"] or len(kept) > len(marked)):
        raise InputError(
            f"the rules in {where} must be a person, an item and a rating with its items, and nothing "
            f"else but columns to drop, for tables of one rating a row, got {_shown_kinds(kept)}; name "
            "the three columns, or leave person, item and items out where a row is a person"
        )


def _shown_kinds(rules: Sequence[Rule]) -> str:
    """Return what columns are, for a sentence."""
    listed = [f"{rule.column} = {rule.kind}" for rule in rules[:4]]
    return ", ".join(listed) + (", ..." if len(rules) > 4 else "")


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
    listed = [key for key, each in _LISTED.items() if each == kind]
    rule = Rule(
        column=column,
        kind=kind,
        range=_range(called, said["range"]) if "range" in said else None,
        levels=_words(called, listed[0], said[listed[0]]) if listed else (),
        items=_words(called, "items", said["items"]) if kind == "rating" and "items" in said else (),
        origin=_origin(called, said) if kind == "date" else "",
        unit=_unit(called, said.get("unit", "days")),
        format=_text(called, "format", said.get("format", "")),
        indicator=_flag(called, said.get("indicator", False)),
        missing_words=_words(called, "missing_words", said.get("missing_words", [])),
        against=_beside(called, "against", said.get("against", "")),
        margin=_beside(called, "margin", said.get("margin", "")),
    )
    if kind == "comparison":
        _check_comparison(called, rule)
    return replace(rule, missing=_missing(called, rule, said.get("missing")))


def _kind_of(called: str, said: Mapping[str, Any]) -> Kind:
    given = [kind for key, kind in _LISTED.items() if key in said]
    kind = said.get("kind", given[0] if given else None)
    if kind not in _KINDS:
        raise InputError(
            f"{called} must have a kind, one of {', '.join(_KINDS)}, or levels, got {kind!r}; choose one"
        )
    for key in (key for key, each in _LISTED.items() if each == kind and key not in said):
        raise InputError(
            f"{called} must list its {key}, got none; write {key} = ['low', 'high'] with the words "
            "that all silos agree on"
        )
    if kind == "rating" and "range" not in said:
        raise InputError(
            f"{called} must have a range, which ratings lie between, got none; write for instance "
            "range = [1, 5]"
        )
    known: Kind = kind
    return known


def _beside(called: str, key: str, given: Any) -> str:
    text = _text(called, key, given)
    if not is_showable(text):
        raise InputError(
            f"{key} in {called} must be the name of a column that can be shown, got {text!a}; rename it"
        )
    return text


def _check_comparison(called: str, rule: Rule) -> None:
    if not rule.against:
        raise InputError(
            f"{called} must say which column has the item that lost, got no against; write for instance "
            "against = 'loser'"
        )
    if len(set(rule.columns)) < len(rule.columns):
        raise InputError(f"{called} must read different columns, got one twice; correct against and margin")
    if bool(rule.margin) != (rule.range is not None):
        raise InputError(
            f"{called} must have margin and range together, so that one comparison counts for no more "
            f"than is public, got only {'margin' if rule.margin else 'range'}; write for instance "
            "margin = 'points', range = [0, 30]"
        )


def _words(called: str, key: str, given: Any) -> tuple[str, ...]:
    """Return levels or words as text: 1, 1.0 and "1" are the same."""
    is_list = isinstance(given, list | tuple)
    if not is_list or not all(isinstance(each, str | int | float) for each in given):
        raise InputError(f"{key} in {called} must be a list of words, got {given!r}; list them")
    words = tuple(_word(each) for each in given)
    if len(set(words)) < len(words):
        raise InputError(f"{key} in {called} must be different words, got one twice; take one of them out")
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
    if given not in SECONDS:
        raise InputError(f"unit in {called} must be one of {', '.join(SECONDS)}, got {given!r}; choose one")
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
                f"missing; write missing = {_OFFSET!r} or a number"
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
    if given == _OFFSET:
        return _OFFSET
    if rule.kind == "ordered" and _word(given) in rule.levels:
        return _word(given)
    if not _is_number(given) or abs(given) > LARGEST:
        raise InputError(f"missing in {called} must be {_OFFSET!r} or a number, got {given!r}; choose one")
    low, high = rule.ranges[0] or (-LARGEST, LARGEST)
    if not low <= given <= high:
        raise InputError(
            f"missing in {called} must lie in its range from {low:g} to {high:g}, got {given:g}; choose "
            "one within"
        )
    return float(given)
