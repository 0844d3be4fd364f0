"""How far one row can move what a silo releases, and the noise that hides it: docs/officer/proof.md."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from numbers import Integral
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, require
from fedpower.linalg import Array
from fedpower.privacy.noise import WIDEST_SCALE, NoiseSource, gaussian_integers
from fedpower.rows.units import PARTS as UNIT_PARTS
from fedpower.rows.units import TALLY_PARTS
from fedpower.sums.lattice import CLIP_SIDE, SIDE, SLANT
from fedpower.sums.survey import CELL_SIDE

_UNIT_ROUNDOFF = 2.0**-53


Moved = Literal["covariance", "product", "mean", "paper"]


def moved_by_row(what: Moved, rank: int = 1) -> float:
    """Return how far one row of norm 1 at most moves a sum over rows, in the Euclidean norm.

    The sum is the second moment, A Z for Z d×r with ‖Z‖₂ ≤ 1, or the row; ``paper`` is of A Z as printed in
    [FP Thm 2, first step of the proof].
    """
    whole("iteration_rank", rank)
    if what == "paper":
        return 2.0 * math.sqrt(rank)
    return {"covariance": math.sqrt(2.0), "product": 1.0 if rank == 1 else math.sqrt(2.0), "mean": 2.0}[what]


def clipped_sensitivity(clip: float, iteration_rank: int) -> float:
    """Return Δ(α), how far one row moves Σ x·c(Zᵀx)ᵀ, where c shortens a vector to norm α ≤ 1."""
    require(0 < clip <= 1, "clip", "above 0 and at most 1", clip)
    square = clip * clip
    if whole("iteration_rank", iteration_rank) == 1:
        return 1.0 if square >= 0.5 else 2.0 * clip * math.sqrt(1.0 - square)
    if square <= 1.0 / 3.0:
        return 2.0 * clip * math.sqrt(1.0 - square)
    return (1.0 + square) / math.sqrt(2.0)


def rounding_slack(
    n_rows: int, n_features: int, *, iteration_rank: int = 1, longest_sum: int | None = None
) -> float:
    """Return what float64 arithmetic can add to the sensitivity of a moment or of a product."""
    longest = whole("longest_sum", longest_sum or n_rows)
    n = (longest + 8 * whole("n_features", n_features) + 64) * _UNIT_ROUNDOFF
    require(n < 0.5, "longest_sum", "below 2**52", longest, "add the rows in blocks")
    return 2.0 * math.sqrt(whole("iteration_rank", iteration_rank)) * n / (1.0 - n)


def whole(name: str, value: int) -> int:
    """Return `value` if it is a whole number of at least 1; refuse it in one sentence if not."""
    if type(value) is int and value >= 1:  # what every silo asks some thirty times
        return value
    good = not isinstance(value, bool) and isinstance(value, Integral) and value >= 1
    require(good, name, "a whole number of at least 1", value)
    return int(value)


LARGEST_MEAN_WEIGHT = 0.75  # in lemma 1

MEAN_WEIGHT = 0.5
"""c unless a study says otherwise: how much of the sensitivity the mean row may use."""


def summary_size(n_features: int, *, with_mean: bool) -> int:
    """Return the number of coordinates of a packed summary."""
    return n_features * (n_features + 1) // 2 + (n_features if with_mean else 0) + 1


SMALLEST_SHARE = 2**10
"""Sums of noise at least this many steps wide are within 2⁻¹⁰⁰⁰ of the theorem's law [proof, section 1a]."""

LEAST_SUMMED = 6
"""Sums of noise at least this many steps wide are within 2⁻²⁰⁰ of it."""

WIDE_SHARE = 2**20
"""Numbers of a secure sum are multiplied by a power of two until shares are this wide."""

REAL_SHARE = 2**30
"""The same for real numbers, which are rounded once they are multiplied."""

LARGEST_DRAW = 16
"""No draw of noise is as many standard deviations away: `gaussian_integers` ends at 14."""

_LARGEST_SUM = 2**62  # the ring, modulo 2⁶⁴, holds twice as much
_MOST_SHIFT = 32  # what `Words.shifted` divides by
_TRACE_SHARE = 10  # the trace beside a clipped product moves by a tenth of what the product moves by


class Group(NamedTuple):
    """Entries of an answer that have noise of one scale."""

    length: int
    weight: Fraction
    most: Fraction | int
    """The most that one row adds to an entry, in absolute value."""

    def most_of(self, n_rows: int, power: int) -> int:
        """Return the most that so many rows add to an entry times 2^power."""
        return math.ceil(n_rows * self.most * (2**power if power >= 0 else Fraction(1, 2**-power)))


@dataclass(frozen=True)
class Sensitivity:
    """Neighbours differ by at most `squared` in Σ weight·|Δ|², over groups of entries."""

    squared: Fraction
    groups: tuple[Group, ...]
    real: bool = False
    """Whether entries are real numbers, which an answer rounds."""

    def __hash__(self) -> int:
        return self._hash

    @functools.cached_property
    def _hash(self) -> int:  # of fractions it takes longer than all else that a cached noise takes
        return hash((self.squared, self.groups, self.real))

    @property
    def size(self) -> int:
        return sum(group.length for group in self.groups)

    def scales(self, multiplier: float, exponents: Sequence[int] | None = None, honest: int = 1) -> list[int]:
        """Return the least whole scales of noise, for entries times 2^exponent: the theorem's."""
        powers = exponents or [0] * len(self.groups)
        rounded = [
            group.weight * group.length * Fraction(4) ** -power
            for group, power in zip(self.groups, powers, strict=True)
            if self.real or power < 0
        ]
        change = root_above(self.squared) + root_above(sum(rounded)) if rounded else None
        whole = Fraction(multiplier) ** 2 * (self.squared if change is None else change**2) / honest
        return [
            ceil_root(whole * Fraction(4) ** power / group.weight)
            for group, power in zip(self.groups, powers, strict=True)
        ]


@dataclass(frozen=True)
class Noise:
    """What one silo adds to the answer to a query, and by which powers of two entries are multiplied."""

    sensitivity: Sensitivity
    scales: tuple[int, ...]
    exponents: tuple[int, ...]
    n_rows: int
    n_silos: int

    @functools.cached_property
    def stds(self) -> tuple[float, ...]:
        together = math.sqrt(self.n_silos)
        return tuple(together * math.ldexp(scale, -power) for _, _, scale, power in self._parts())

    def draw(self, source: NoiseSource) -> NDArray[np.int64]:
        """Return a silo's part of the noise."""
        return np.concatenate(
            [gaussian_integers(source, group.length, scale=scale) for _, group, scale, _ in self._parts()]
        )

    def values(self, integers: NDArray[Any]) -> Array:
        """Return noised entries in their own units."""
        values = integers.astype(np.float64)
        for place, _, _, power in self._parts():
            if power:
                np.ldexp(values[place], -power, out=values[place])
        return values

    def bounded(self, integers: NDArray[np.int64], n_rows: int) -> NDArray[np.int64]:
        """Return exact entries within what so many rows give: others cannot be, and must not be refused."""
        clipped = integers.copy()
        for place, group, _, power in self._parts():
            limit = min(group.most_of(n_rows, power), _LARGEST_SUM)
            np.clip(clipped[place], -limit, limit, out=clipped[place])
        return clipped

    def holds(self, integers: NDArray[np.int64]) -> bool:
        """Return whether entries are as large as rows, bound and noise allow; loose, and for certain."""
        return all(
            -limit <= int(integers[place].min(initial=0)) and int(integers[place].max(initial=0)) <= limit
            for (place, *_), limit in zip(self._parts(), self.limits(), strict=True)
        )

    def limits(self) -> list[int]:
        """Return how large the entries of each group can be."""
        return [
            group.most_of(self.n_rows, power) + self.n_silos * (LARGEST_DRAW * scale + 1)
            for _, group, scale, power in self._parts()
        ]

    def _parts(self) -> Iterator[tuple[slice, Group, int, int]]:
        """Yield where each group of entries is, the group, its scale and its power of two."""
        start = 0
        for group, scale, power in zip(self.sensitivity.groups, self.scales, self.exponents, strict=True):
            yield slice(start, start + group.length), group, scale, power
            start += group.length


@functools.lru_cache(maxsize=1024)  # fractions take a tenth of a millisecond, and every silo asks
def noise_for(
    sensitivity: Sensitivity, multiplier: float, sizes: tuple[int, ...], colluders: int | None = None
) -> Noise:
    """Return a silo's noise for a sum over silos of these sizes; ``colluders=None`` is for one silo only."""
    require(0 < multiplier < math.inf, "multiplier", "a positive number", multiplier, "calibrate it first")
    m, n, honest = len(sizes), sum(sizes), len(sizes) - (colluders or 0)
    if honest < 1:
        raise InputError(
            f"a secure sum must have more silos than the {colluders} that may collude, got {m}; "
            "add silos or declare fewer colluders"
        )
    groups = sensitivity.groups
    least = REAL_SHARE if sensitivity.real else 1 if colluders is None else WIDE_SHARE
    exact = Fraction(multiplier) ** 2 * sensitivity.squared / honest
    exponents = [
        _exponent(exact / group.weight, least, real=sensitivity.real) if least > 1 else 0 for group in groups
    ]
    while True:
        scales = tuple(sensitivity.scales(multiplier, exponents, honest))
        noise = Noise(sensitivity, scales, tuple(exponents), n, m)
        tight = [place for place, limit in enumerate(noise.limits()) if limit > _LARGEST_SUM]
        if not tight:
            break
        for place in tight:
            exponents[place] -= 1
        if min(exponents) < -_MOST_SHIFT and not sensitivity.real:
            raise InputError(
                f"a secure sum must stay within 2**62 whole numbers, but {n} rows of {m} "
                "silos could need more"
            )
    least, most = min(scales), max(scales)
    require(most <= WIDEST_SCALE, "noise", f"at most {WIDEST_SCALE} steps of the rows' lattice", most)
    wide = colluders is None or least >= SMALLEST_SHARE
    require(wide, "a share of the noise", f"at least {SMALLEST_SHARE} lattice steps wide", least)
    return noise


def _exponent(square: Fraction, least: int, *, real: bool) -> int:
    ratio = least**2 / square
    guess = (ratio.numerator.bit_length() - ratio.denominator.bit_length()) // 2 - 2
    power = guess if real else max(guess, 0)
    while square * Fraction(4) ** power < least**2:
        power += 1
    return power


@functools.lru_cache(maxsize=64)  # a thousand silos ask for the same one
def of_moment(
    n_features: int, *, mean_weight: float = 0.0, per_unit: int = 0, layers: int = 1
) -> Sensitivity:
    """Return that of Σ z zᵀ (diagonal, then below it), Σ z where it has a weight, and Σ ‖z‖² (lemma 1).

    A network adds up to so many ``layers`` to an entry.
    """
    within = 0 <= mean_weight <= LARGEST_MEAN_WEIGHT
    require(within, "mean_weight", f"between 0 and {LARGEST_MEAN_WEIGHT}, where lemma 1 holds", mean_weight)
    c, parts = Fraction(mean_weight), UNIT_PARTS if per_unit else 1
    d, one, square = n_features, Fraction(1), layers * SIDE**2
    change = 2 * ((1 + c**2) * SIDE**2 * max(1, per_unit)) ** 2
    diagonal, below = Group(d, one, square), Group(d * (d - 1) // 2, 2 * one, square)
    mean = Group(d if mean_weight else 0, 2 * (c * SIDE / parts) ** 2, SIDE * parts)
    groups = (diagonal, below, mean, Group(1, one, square))
    return Sensitivity(change, tuple(group for group in groups if group.length))


def of_counts(size: int, *, counted: int = 1, per_unit: int = 0) -> Sensitivity:
    """Return that of counts, each row adding to one in each of ``counted`` columns (lemma 2)."""
    parts = TALLY_PARTS if per_unit else 1
    change = 2 * whole("counted", counted) * (max(1, per_unit) * parts) ** 2
    return Sensitivity(Fraction(change), (Group(size, Fraction(1), parts),))


def of_means(n_features: int, *, per_unit: int = 0) -> Sensitivity:
    """Return that of Σ q, Σ q² and the number of cells of each column, |q| ≤ Q (lemma 3)."""
    parts, d = TALLY_PARTS if per_unit else 1, n_features
    change = 4 * whole("n_features", d) * CELL_SIDE**4 * (max(1, per_unit) * parts) ** 2
    cells = Group(d, Fraction(CELL_SIDE**2), CELL_SIDE * parts)
    squares = Group(d, Fraction(1), CELL_SIDE**2 * parts)
    return Sensitivity(Fraction(change), (cells, squares, Group(d, Fraction(CELL_SIDE**4), parts)))


def of_clipped_product(clip: float, width: int, n_features: int) -> tuple[Sensitivity, int]:
    """Return that of Σ y·c(Zᵀy)ᵀ and κ Σ ‖y‖² in whole numbers, and κ (lemma 4)."""
    off = SLANT + 2.0**-38 + clip * math.sqrt(width) / CLIP_SIDE
    bound = (clipped_sensitivity(clip, width) + 2.0 * off) * (1.0 + 2.0**-40)
    change = Fraction(bound) * SIDE * CLIP_SIDE / Fraction(clip)
    kappa = max(1, int(change) // _TRACE_SHARE)
    one, most = Fraction(1), max(SIDE * CLIP_SIDE, kappa)
    return Sensitivity(change**2 + (kappa + 1) ** 2, (Group(n_features * width + 1, one, most),)), kappa


def of_row_sum(n_features: int) -> Sensitivity:
    """Return that of Σ z: 2S."""
    return Sensitivity(Fraction(2 * SIDE) ** 2, (Group(n_features, Fraction(1), SIDE),))


def of_reals(bound: float, size: int, *, largest: float, n_rows: int) -> Sensitivity:
    """Return that of real numbers that a row moves by ``bound`` together (lemma 5)."""
    require(1e-200 < bound < 1e200, "sensitivity", "a positive number", bound, "send a nearer centre")
    return Sensitivity(
        Fraction(bound) ** 2, (Group(size, Fraction(1), Fraction(largest) / n_rows),), real=True
    )


def ceil_root(square: Fraction) -> int:
    """Return the least whole number, 1 or more, whose square is at least the given one."""
    least = -(-square.numerator // square.denominator)  # squares of whole numbers are whole
    return math.isqrt(least - 1) + 1 if least > 0 else 1


def root_above(square: Fraction | int) -> Fraction:
    """Return a number whose square is at least the given one, and hardly more."""
    whole = Fraction(square)
    bits = 60 + max(0, whole.denominator.bit_length() - whole.numerator.bit_length()) // 2
    return Fraction(ceil_root(whole * 4**bits), 2**bits)
