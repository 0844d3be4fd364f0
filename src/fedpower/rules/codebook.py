"""The code book: rules of columns, and what preparation finds or people know about them. It is public."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from fedpower.errors import InputError, require
from fedpower.rules.rules import COMPARISON_BOUND, Rule, TableRules, table_rules
from fedpower.rules.treatment import RowTreatment
from fedpower.values import Vector, is_number, public_vector, shown

Ranges = tuple[tuple[float, float] | None, ...]
"""By column: what people know that its cells are between; None where that is not known."""

MEAN_WEIGHT = 0.25
"""c of fits whose rows were centred before: their mean is small, and needs little of the budget."""

UNSETTLED = "spread below the noise"
"""How ``found`` ends for a column whose spread could not be told from 0."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False, repr=False)
class CodeBook:
    """How each column is centred, scaled and bounded, and where these numbers come from.

    People write public numbers (``row_norm``, ``normalize``, ``offset``, ``scale``) and rules; preparation
    finds all others. A private fit that is given no number finds them. Rules of comparisons leave nothing to
    be found: their numbers follow from them.

    Attributes
    ----------
    columns
        Names, in order; None where columns have none. Where there are rules, those of their features.
    row_norm
        Public bound on the norm of a row; longer rows are clipped to it. None in a code book that was found.
    normalize
        Whether every row is scaled to norm 1, as the paper does.
    offset, scale
        What is subtracted from a column, and what it is divided by: one number per column, or a mapping from
        names. A public scale is a choice of units, in which covariances are given.
    low, high
        What its cells are clipped to first.
    bound
        B, to which the norm of a row so treated is clipped.
    found
        By column: how these numbers were found.
    epsilon, delta, mu
        What finding them cost each silo, all of it; zeros where people gave them.
    n_rows
        How many rows it was found from; 0 where it was from none.
    rules
        What the cells of tables become before all that; None where they are numbers already.
    clipped
        Shares of rows that the bound shortens and of their energy that it cuts off, by the noised counts
        of norms; None where these were not counted.
    present
        By column: about what share of the rows have a cell; None where that was not counted.
    outside
        By column: about what share of these cells is outside its range; None where that was not counted.

    Examples
    --------
    >>> from fedpower import CodeBook
    >>> CodeBook(row_norm=3.0, offset=[120.0, 80.0]).is_draft
    True
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
    rules: TableRules | None = None
    clipped: tuple[float, float] | None = None
    present: Vector | None = None
    outside: Vector | None = None

    def __post_init__(self) -> None:
        for name in ("offset", "scale", "low", "high", "present", "outside"):
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

    @property
    def has_public_numbers(self) -> bool:
        """Whether people gave a bound, offsets or scales, so that none are to be found."""
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
            raise InputError("a code book of comparisons must have the numbers of its rule, got others")
        for name, value in {**follow, "found": ("by the rule",) * width}.items():
            object.__setattr__(self, name, value)

    @property
    def is_draft(self) -> bool:
        """Whether it has no numbers that were found: only rules and public numbers."""
        return self.low.size == 0

    @property
    def table_rules(self) -> TableRules | None:
        """The rules, with the numbers that missing cells count for as far as they are known."""
        if self.rules is None or self.is_draft:
            return self.rules
        offsets = np.clip(self.offset, self.low, self.high).tolist()
        return self.rules.filled(dict(zip(self.columns or (), offsets, strict=True)))

    def warnings(self, spreads_known: Sequence[bool]) -> list[str]:
        """Return what to know of the columns, of which a release has shown the spreads of some."""
        warnings = []
        outsides = np.zeros(self.low.size) if self.outside is None else self.outside
        for place, outside in enumerate(outsides):
            name = f"x{place}" if self.columns is None else self.columns[place]
            ends = f"from {self.low[place]:.4g} to {self.high[place]:.4g}"
            if outside > 0:
                found = f"about {outside:.0%} of its cells are outside the range found, {ends}"
                warnings.append(f"column '{name}': {found}; give its range")
            elif self.found[place].endswith(UNSETTLED) and not spreads_known[place]:
                found = f"its spread is below the noise in the range {ends}; give a narrower range"
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


def comparisons(
    items: Sequence[str],
    *,
    winner: str = "winner",
    loser: str = "loser",
    margin: str | None = None,
    range: tuple[float, float] | None = None,
) -> CodeBook:
    """Return the code book of tables whose every row compares two items.

    Parameters
    ----------
    items
        What is ranked: public, and the same at every silo. Others are refused, in whatever row.
    winner, loser
        The columns that name the two items; each row has two different ones.
    margin, range
        The column of how clearly the first won, negative where it lost and 0 for a tie, and the public
        range that it is clipped to; without them the item in ``winner`` won.
    """
    rule: dict[str, Any] = {"items": list(items), "against": loser}
    rule |= {} if margin is None else {"margin": margin}
    rule |= {} if range is None else {"range": list(range)}
    return CodeBook(rules=table_rules({winner: rule}, "comparisons"))


def ranges_of(given: Any, columns: tuple[str, ...] | None, n_features: int) -> Ranges:
    """Return the known range of each column; anything that is no range, or of no column, is refused."""
    if given is None:
        return (None,) * n_features
    if isinstance(given, Mapping):
        known = columns or tuple(str(place) for place in range(n_features))
        unknown = [str(name) for name in given if str(name) not in known]
        if unknown:
            raise InputError(f"ranges must be of the columns {shown(known)}, got {shown(unknown)}")
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
