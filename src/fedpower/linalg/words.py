"""Whole numbers beyond 64 bits, as arrays of two words."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.symmetric import lower_of

Integers = NDArray[np.int64]
_Floats = NDArray[np.float64]

WORD = 32
"""Bits of the low word where there are two."""

_LOW_BITS = np.int64(2**WORD - 1)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Words:
    """An array of whole numbers: ``low``, or ``high``·2³² + ``low`` with 0 ≤ ``low`` < 2³²."""

    low: Integers
    high: Integers | None = None

    def two(self) -> "Words":
        """Return the same numbers in two words, the low one carried."""
        high = np.zeros_like(self.low) if self.high is None else self.high
        return Words(low=self.low & _LOW_BITS, high=high + (self.low >> WORD))

    def plus(self, more: Integers) -> "Words":
        """Return the numbers plus others of less than 2⁶² in size."""
        if self.high is None:
            return Words(low=self.low + more)
        whole = self.two()
        assert whole.high is not None
        return Words(low=whole.low + more, high=whole.high).two()

    def over(self, bits: int) -> "Words":
        """Return the numbers over 2^bits, rounded to whole ones, halves up; in one word unless by 1."""
        if bits == 0:
            return self
        whole = self.two()
        assert whole.high is not None
        half = np.int64(1 << bits >> 1)
        return Words(low=(whole.high << (WORD - bits)) + ((whole.low + half) >> bits))

    def below(self) -> "Words":
        """Return the numbers on or below the diagonal of a matrix, row by row."""
        high = None if self.high is None else lower_of(self.high)
        return Words(low=lower_of(self.low), high=high)

    def to_float(self) -> _Floats:
        """Return the numbers in float64, each rounded once as long as it is below 2⁸⁵."""
        if self.high is None:
            return self.low.astype(np.float64)
        return np.ldexp(self.high.astype(np.float64), WORD) + self.low

    def to_ints(self) -> NDArray[np.object_]:
        """Return the numbers as Python's own, which have no limit."""
        low = self.low.astype(object)
        return low if self.high is None else self.high.astype(object) * 2**WORD + low

    def equals(self, other: "Words") -> bool:
        """Return whether both hold the same numbers, in one word or in two."""
        one, two = self, other
        if (one.high is None) != (two.high is None):
            one, two = one.two(), two.two()
        same_high = one.high is None or np.array_equal(one.high, two.high)  # type: ignore[arg-type]
        return bool(same_high) and np.array_equal(one.low, two.low)

    def arrays(self) -> Iterable[Integers]:
        """Return the words, the low one first."""
        return (self.low,) if self.high is None else (self.low, self.high)
