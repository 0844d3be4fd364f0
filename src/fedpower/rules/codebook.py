"""The code book: rules of columns, and what preparation finds or people know about them. It is public."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from os import PathLike
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from fedpower.exceptions import InputError, require
from fedpower.files import new_file
from fedpower.rules.rules import COMPARISON_BOUND, Rule, TableRules, table_rules
from fedpower.rules.treatment import RowTreatment
from fedpower.toml import Part, read_toml, to_toml
from fedpower.values import Vector, is_number, public_vector, shown

Ranges = tuple[tuple[float, float] | None, ...]
"""By column: what people know that its cells are between; None where that is not known."""

MEAN_WEIGHT = 0.25
"""c of fits whose rows were centred before: their mean is small, and needs little of the budget."""

EXACT = "mean and spread of all rows, not private"
UNSETTLED = "spread below the noise"
"""How ``found`` ends for a column whose spread is hidden by noise."""

FORMAT = "fedpower-codebook/2"
_PUBLIC = ("row_norm", "normalize", "offset", "scale")  # what people give
_FOUND = ("bound", "clipped", "epsilon", "delta", "mu", "n_rows")  # what preparation computes
_VECTORS = ("offset", "scale", "low", "high", "present", "outside")
_HEAD = "# A public code book: how cells become numbers, and how columns are centred, scaled and bounded.\n"
_COMPUTED = (
    "# Cells are clipped to low and high; then (cell - offset) / scale; then rows longer than bound are\n"
    "# clipped to it. clipped: the share of rows longer than bound, and of all squared length that this\n"
    "# removes. epsilon, delta and mu are its cost for each silo; later fits use it at no cost.\n"
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CodeBook:
    """What the columns of a table contain, and how they become numbers. A code book is public.

    You give rules and public numbers. A private fit finds missing numbers with part of its budget, and
    ``codebook_`` holds them for later fits. `FedPCA` also takes the rules alone, as a mapping.

    Parameters
    ----------
    rules : mapping from columns, default=None
        For each column: a list of levels, a pair of numbers for its range, a kind such as ``"date"``, or a
        mapping with both and more. Columns without a rule hold numbers.
    row_norm : float, default=None
        Public bound on the norm of a row. Longer rows are scaled down to it.
    normalize : bool, default=False
        Whether to scale every row to norm 1, as the paper does.
    offset, scale : array-like or mapping from names, default=None
        Public numbers to subtract from each column, and to divide it by.

    Attributes
    ----------
    columns : tuple of str or None
        Names of the columns that the rules make, in order.
    low, high : ndarray
        Ranges that cells are clipped to.
    bound : float
        Bound on the norm of a row after all that.
    found : tuple of str
        How the numbers of each column were found.
    epsilon, delta, mu : float
        What finding them cost each silo; 0 if they were given.
    n_rows : int
        Number of rows they were found from.
    clipped : tuple of float or None
        Share of rows above the bound, and share of the squared length that it removes.
    present, outside : ndarray or None
        Share of rows with a value in each column, and share of values outside its range.

    Examples
    --------
    >>> import pandas as pd
    >>> from fedpower import CodeBook, FedPCA
    >>> book = CodeBook(rules={"sex": ["f", "m"], "age": (0, 120)})
    >>> path = book.save("codebook.toml")
    >>> CodeBook.load(path).rules.features
    ('sex=f', 'sex=m', 'sex=other', 'age')
    >>> table = pd.DataFrame({"sex": ["f", "m", "f", "m"], "age": [31, 47, 62, 25]})
    >>> FedPCA(2, epsilon=float("inf"), codebook=book).fit(table).components_.shape
    (2, 4)
    """

    columns: tuple[str, ...] | None = None
    row_norm: float | None = None
    normalize: bool = False
    offset: Any = None
    scale: Any = None
    low: Vector = field(default_factory=lambda: np.zeros(0))
    high: Vector = field(default_factory=lambda: np.zeros(0))
    bound: float = 1.0
    found: tuple[str, ...] = ()
    epsilon: float = 0.0
    delta: float = 0.0
    mu: float = 0.0
    n_rows: int = 0
    rules: Any = None  # TableRules, or the mapping that they are made from
    clipped: tuple[float, float] | None = None
    present: Vector | None = None
    outside: Vector | None = None

    def __post_init__(self) -> None:
        if isinstance(self.rules, Mapping):
            object.__setattr__(self, "rules", table_rules(self.rules, "the code book"))
        for name in _VECTORS:
            if getattr(self, name) is None or (name in ("offset", "scale") and len(self.low) == 0):
                continue
            values = np.array(getattr(self, name), dtype=np.float64)
            values.setflags(write=False)
            object.__setattr__(self, name, values)
        if self.rules is not None and self.rules.comparison is not None:
            self._follow(self.rules.comparison)
        if self.is_draft:
            bound = self.row_norm
            positive = bound is None or (is_number(bound) and bound > 0)
            require(positive, "row_norm", "a positive finite number", bound)
            require(isinstance(self.normalize, bool | np.bool_), "normalize", "True or False", self.normalize)
        elif self.has_public_numbers:
            raise InputError("a code book with found numbers must not have row_norm or normalize, got one")
        else:
            self.check_columns(None, len(self.columns or self.low))
            _ = self.treatment  # which refuses numbers that cannot be

    def __repr__(self) -> str:
        given = [f"{name}={getattr(self, name)!r}" for name in ("row_norm", "offset", "scale")
                 if self.is_draft and getattr(self, name) is not None]  # fmt: skip
        given += ["normalize=True"] if self.normalize else []
        given += [] if self.is_draft else [f"numbers of {self.low.size} columns"]
        given += [] if self.rules is None else ["rules"]
        return f"CodeBook({', '.join(given)})"

    @classmethod
    def load(cls, path: str | PathLike[str]) -> "CodeBook":
        """Load a code book from a TOML file."""
        file = read_toml(path, CodeBookFile, "the code book")
        if file.format != FORMAT:
            raise InputError(f"{path} must be a code book of format {FORMAT!r}, got {file.format!r}")
        return file.book(str(path))

    def save(self, path: str | PathLike[str], *, force: bool = False) -> Path:
        """Save the code book as a TOML file and return its path."""
        with new_file(Path(path), force=force) as place:
            place.write_text(rendered(self), encoding="utf-8")
        return Path(path)

    @property
    def has_public_numbers(self) -> bool:
        """Whether a bound, offsets or scales are given, so that a fit finds none."""
        given = (self.row_norm, *((self.offset, self.scale) if self.is_draft else ()))
        return bool(self.normalize) or any(number is not None for number in given)

    @property
    def follows_rules(self) -> bool:
        """Whether all its numbers follow from its rules: those of comparisons."""
        return self.rules is not None and self.rules.comparison is not None

    def _follow(self, rule: Rule) -> None:
        """Fill in what a rule of comparisons leaves no choice about, or refuse other numbers."""
        width = len(rule.features)
        low, high = np.array(rule.ranges, dtype=np.float64).T
        follow: dict[str, Any] = {"columns": rule.features, "bound": COMPARISON_BOUND, "low": low}
        scale = np.append(np.ones(width - 1), rule.largest)
        follow |= {"high": high, "offset": np.zeros(width), "scale": scale}
        same = all(np.array_equal(getattr(self, name), value) for name, value in follow.items())
        if not (self.is_draft or same):
            raise InputError(
                "a code book of comparisons must have the numbers of its rule, got other numbers"
            )
        for name, value in {**follow, "found": ("by the rule",) * width}.items():
            object.__setattr__(self, name, value)

    @property
    def is_draft(self) -> bool:
        """Whether it has no numbers that were found: only rules and public numbers."""
        return self.low.size == 0

    @property
    def table_rules(self) -> TableRules | None:
        """The rules, with the numbers that missing cells count for as far as they are known."""
        rules: TableRules | None = self.rules
        if rules is None or self.is_draft:
            return rules
        offsets = np.clip(self.offset, self.low, self.high).tolist()
        return rules.filled(dict(zip(self.columns or (), offsets, strict=True)))

    def warnings(self, spreads_known: Sequence[bool]) -> list[str]:
        """Return what to know of the columns, of which a release has shown the spreads of some."""
        warnings = []
        outsides = np.zeros(self.low.size) if self.outside is None else self.outside
        for place, outside in enumerate(outsides):
            name = f"x{place}" if self.columns is None else self.columns[place]
            low, high = self.low[place], self.high[place]
            low, high = (0.0 if abs(end) < 1e-4 * (high - low) else end for end in (low, high))
            ends = f"from {low:.4g} to {high:.4g}"
            if outside > 0:
                found = f"about {outside:.0%} of its cells are outside the estimated range, {ends}"
                warnings.append(f"column '{name}': {found}; give its range")
            elif self.found[place].endswith(UNSETTLED) and not spreads_known[place]:
                found = f"noise hides its spread in the range {ends}; give a narrower range"
                warnings.append(f"column '{name}': {found}, or leave it out if it is constant")
        return warnings

    @property
    def treatment(self) -> RowTreatment:
        return RowTreatment(
            center=self.offset, scale=self.scale, row_norm=self.bound, low=self.low, high=self.high
        )

    @property
    def units(self) -> Vector:
        """By column: how much of a cell's own unit one of the treated rows is."""
        return np.asarray(self.bound * self.scale)

    def check_columns(self, columns: tuple[str, ...] | None, n_features: int) -> None:
        """Refuse rows of other columns than these."""
        if self.columns is not None and columns is not None and columns != self.columns:
            odd = sorted(set(columns) ^ set(self.columns)) or list(columns)
            raise InputError(f"a code book must have the columns of the fit in order, got {shown(odd)}")
        sizes = {np.size(numbers) for numbers in (self.offset, self.scale, self.low, self.high)}
        if sizes != {n_features}:
            got = np.size(self.offset)
            raise InputError(f"a code book must have numbers for each of the {n_features} columns, got {got}")


class _Column(Part, frozen=True):
    offset: float
    scale: float
    low: float
    high: float
    name: str | None = None
    present: float | None = None
    outside: float | None = None
    found: str = "given"


class CodeBookFile(Part, frozen=True):
    """The content of a code book's file."""

    format: str
    row_norm: float | None = None
    normalize: bool = False
    offset: list[float] | dict[str, float] | None = None
    scale: list[float] | dict[str, float] | None = None
    bound: float | None = None
    clipped: tuple[float, float] | None = None
    epsilon: float = 0.0
    delta: float = 0.0
    mu: float = 0.0
    n_rows: int = 0
    rules: Any = None
    column: list[_Column] | None = None

    @classmethod
    def of(cls, book: CodeBook) -> "CodeBookFile":
        content: dict[str, Any] = {"rules": None if book.rules is None else book.rules.as_content()}
        if book.follows_rules:
            return cls(format=FORMAT, **content)
        for key in _PUBLIC if book.is_draft else _FOUND:
            value = getattr(book, key)
            plain = value is None or isinstance(value, float | int | tuple | Mapping)
            content[key] = value if plain else np.asarray(value, dtype=float).tolist()
        if not book.is_draft:
            columns = {key: getattr(book, key) for key in (*_VECTORS, "found")} | {"name": book.columns}
            known = {key: np.asarray(v).tolist() for key, v in columns.items() if v is not None}
            rows = zip(*known.values(), strict=True)
            content["column"] = [_Column(**dict(zip(known, row, strict=True))) for row in rows]
        return cls(format=FORMAT, **content)

    def book(self, where: str, rules: TableRules | None = None) -> CodeBook:
        """Return the code book, with these rules or its own; problems are reported as those of ``where``."""
        if self.rules is not None and rules is None:
            rules = table_rules(self.rules, where)
            if not rules.features and self.column is None:
                raise InputError(f"the rules in {where} must keep at least one column, got none")
        public = {key: getattr(self, key) for key in _PUBLIC}
        if self.column is None and (rules is not None or any(public.values())):
            return CodeBook(rules=rules, **public)
        columns = self.column or []
        numbers = [self.bound, *(getattr(column, key) for column in columns for key in _VECTORS[:4])]
        if not columns or not all(value is not None and math.isfinite(value) for value in numbers):
            raise InputError(f"the code book {where} must have a bound and finite numbers of every column")
        if len({column.name is None for column in columns}) > 1:
            raise InputError(f"the code book {where} must name all columns or none, got some")
        vectors: dict[str, Any] = {key: [getattr(column, key) for column in columns] for key in _VECTORS}
        return CodeBook(
            columns=None if columns[0].name is None else tuple(str(column.name) for column in columns),
            **{key: values for key, values in vectors.items() if None not in values},
            **{key: getattr(self, key) for key in _FOUND},
            found=tuple(column.found for column in columns),
            rules=rules,
        )


def rendered(book: CodeBook) -> str:
    """Return the text of a code book's file."""
    file = CodeBookFile.of(book)
    content = msgspec.to_builtins(file, builtin_types=(date,))
    return _HEAD + (_COMPUTED if file.column else "") + to_toml(content)


def ranges_of(given: Any, columns: tuple[str, ...] | None, n_features: int) -> Ranges:
    """Return the known range of each column; anything that is no range, or of no column, is refused."""
    if given is None:
        return (None,) * n_features
    if isinstance(given, Mapping):
        known = columns or tuple(str(place) for place in range(n_features))
        unknown = [str(name) for name in given if str(name) not in known]
        if unknown:
            raise InputError(f"ranges must be for the columns {shown(known)}, got {shown(unknown)}")
        return tuple(_range(name, given[name]) if name in given else None for name in known)
    listed: Sequence[Any] = list(given)
    if len(listed) == 2 and all(np.ndim(end) == 0 and end is not None for end in listed):
        return (_range("all columns", listed),) * n_features
    if len(listed) != n_features:
        raise InputError(f"ranges must be one for each of the {n_features} columns, got {len(listed)}")
    return tuple(None if pair is None else _range(f"column {n}", pair) for n, pair in enumerate(listed, 1))


def _range(name: str, given: Any) -> tuple[float, float]:
    try:
        low, high = (float(end) for end in given)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (math.isfinite(low) and math.isfinite(high) and low < high):
        raise InputError(f"the range of {name} must be two finite numbers, the smaller first, got {given!r}")
    public_vector("range", [low, high])
    return low, high
