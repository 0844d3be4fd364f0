"""What is published of a sum of silos' releases: the sum with a little more noise, which hides them."""

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import Array
from fedpower.privacy.noise import gaussian_integers
from fedpower.privacy.sensitivity import summary_size
from fedpower.protocol.study import Budget, masses
from fedpower.sums.lattice import SIDE

SHARE = 2.0**-7
"""The noise that is added, as a part of that in the sum: it adds 2⁻¹⁴ to its variance."""

STEPS = 22
"""That noise is between 2²² and 2²³ lattice steps wide."""

_LARGEST_SUM = 2.0**61
LARGEST_DRAW = 14.0  # where `gaussian_integers` ends
_UNIT_ROUNDOFF = 2.0**-53


@dataclass(frozen=True, slots=True, kw_only=True)
class Smoothing:
    """The noise that is added to a sum before anything is computed from it."""

    spacing: float
    scale: int
    error: float
    mu: float

    @property
    def std(self) -> float:
        return self.scale * self.spacing

    def __call__(self, summed: Array, key: bytes) -> Array:
        drawn = gaussian_integers(WordsOfKey(key), summed.size, scale=self.scale)
        steps = np.rint(np.clip(summed / self.spacing, -_LARGEST_SUM, _LARGEST_SUM)).astype(np.int64)
        return (steps + drawn).astype(np.float64) * self.spacing


class WordsOfKey:
    """The words that SHAKE-256 makes of a key: random to anyone who does not know it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._calls = 0

    def words(self, n: int) -> NDArray[np.uint64]:
        self._calls += 1
        stream = hashlib.shake_256(self._key + self._calls.to_bytes(8, "little"))
        return np.frombuffer(stream.digest(8 * n), dtype="<u8").astype(np.uint64)


def key_of(releases: Mapping[str, NDArray[np.integer[Any]]]) -> bytes:
    """Return SHA-256 of the named releases, in an order that does not depend on how they came."""
    digest = hashlib.sha256(b"fedpower publication 1")
    for name in sorted(releases):
        for part in (name.encode(), np.ascontiguousarray(releases[name], dtype="<u8").data.cast("B")):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
    return digest.digest()


def smoothing(budget: Budget, sizes: Mapping[str, int]) -> Smoothing | None:
    """Return what to add to the sum of silos' noised moments; None where the lattice has no room for it."""
    mass = masses(sizes, budget.study.weights)
    m, n, d = len(sizes), sum(mass.values()), budget.study.n_features
    size = summary_size(d, with_mean=budget.study.center)
    pairs = [(mass[name] / n, count) for name, count in sizes.items()]
    std = math.hypot(*(weight * budget.std(count) for weight, count in pairs))
    spacing = math.ldexp(1.0, math.frexp(SHARE * std)[1] - 1 - STEPS)
    scale = math.ceil(SHARE * std / spacing)
    widest = max(map(budget.std, sizes.values()))
    largest = (1.0 + 20.0 * widest * math.sqrt(d)) ** 2
    if 4.0 * largest / spacing + LARGEST_DRAW * scale > _LARGEST_SUM:
        return None
    rounded = sum(weight * whole_step(budget, count) for weight, count in pairs)
    roundings = math.sqrt(size) * (2 * m + 32) + 2 * (d + m + 32)
    off = 0.5 * (rounded + math.sqrt(size) * spacing) + 4.0 * largest * roundings * _UNIT_ROUNDOFF
    change = math.sqrt(budget.moment_noise((n,)).sensitivity.squared) / SIDE**2
    single = change * max(weight / count for weight, count in pairs) / std
    mu = math.hypot(single, 2.0 * off / (scale * spacing)) * (1 + 2.0**-40)
    return Smoothing(spacing=spacing, scale=scale, error=off, mu=mu)


def whole_step(budget: Budget, n_rows: int) -> float:
    """Return how long one whole number in each place of a silo's summary is, in units of the bound."""
    noise = budget.moment_noise((n_rows,))
    groups = zip(noise.sensitivity.groups, noise.exponents, strict=True)
    squared = sum(float(group.weight) * group.length * 4.0**-power for group, power in groups)
    return math.sqrt(squared) / (n_rows * float(SIDE) ** 2)
