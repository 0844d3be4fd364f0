"""Noise: random words, and exactly rounded normals made of them."""

from __future__ import annotations

import os
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal, localcontext
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpower import native
from fedpower.exceptions import require

WIDEST_SCALE = 2**58
"""The largest `scale` of `gaussian_integers`: 14 times it fits in 62 bits."""

TV_PER_INTEGER = 2.0**-120
"""Bound on the total variation distance of one of `gaussian_integers` from its ideal law."""

_BATCH = 2**16  # candidates at a time: a few arrays of this many words stay in cache
_SHARE = 2**18  # integers that a core draws at once where there are more
_DOUBT = 2.0**-40  # a float64 acceptance probability is trusted up to this; its error is below 2^-46
_EXTRA = 128  # further bits drawn, for x and for u, when 64 do not decide


class NoiseSource(Protocol):
    """Independent uniform 64-bit words."""

    def words(self, n: int) -> NDArray[np.uint64]: ...


class SystemNoise:
    """Words of the operating system's cryptographic generator: what every real release uses."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return n fresh words; no two calls, processes or machines share any."""
        return np.frombuffer(os.urandom(8 * n), dtype=np.uint64)


class SeededNoiseForExperiments:
    """Repeatable words for experiments and tests. It gives NO privacy."""

    def __init__(self, seed: int) -> None:
        self._bits = np.random.Philox(seed)

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next n words of the stream."""
        return np.asarray(self._bits.random_raw(n), dtype=np.uint64)


def gaussian_integers(source: NoiseSource, n: int, *, scale: int = 2**30) -> NDArray[np.int64]:
    """Return n independent integers distributed as round(scale·X), X a real standard normal."""
    require(1 <= scale <= WIDEST_SCALE, "scale", "between 1 and 2**58", scale, "use 2**30")
    out = np.empty(n, dtype=np.int64)
    if n <= _SHARE or not isinstance(source, SystemNoise):
        _fill(source, scale, out)
        return out
    # The system's words have no order: cores draw shares of a large array at the same time.
    shares = [out[start : start + _SHARE] for start in range(0, n, _SHARE)]
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(lambda share: _fill(source, scale, share), shares))
    return out


def _fill(source: NoiseSource, scale: int, out: NDArray[np.int64]) -> None:
    while out.size:
        count = min(_BATCH, out.size + out.size // 2 + 16)
        magnitudes = _candidates(source, count, scale)[: out.size]
        bits = source.words(-(-magnitudes.size // 64)).view(np.uint8)
        negative = np.unpackbits(bits, count=magnitudes.size).astype(bool)
        out[: magnitudes.size] = np.negative(magnitudes, out=magnitudes, where=negative)
        out = out[magnitudes.size :]


def _candidates(source: NoiseSource, n: int, scale: int) -> NDArray[np.int64]:
    """Return round(scale·|X|) of those of n candidates that are accepted."""
    k_words, x, u = np.ascontiguousarray(source.words(3 * n)).reshape(3, n)
    if native.loops() is not None:
        room = np.empty(n, dtype=np.int64)
        taken = native.call("fedpower_candidates", k_words, x, u, n, scale, _CUMULATIVE_HIGH, room)
        if taken >= 0:
            return room[:taken]
    k = _integer_parts(source, k_words)
    fraction = x * 2.0**-64
    probability = np.exp(-0.5 * fraction * (2 * k + fraction))
    distance = probability - u * 2.0**-64
    accepted = distance > 0

    whole, open_ended = _product(x, scale)
    rounded = k * scale + whole
    doubtful = (np.abs(distance) < _DOUBT) | open_ended
    for i in np.flatnonzero(doubtful):
        accepted[i], rounded[i] = _settle(source, int(k[i]), int(x[i]), int(u[i]), scale)
    return np.asarray(rounded[accepted], dtype=np.int64)


def _product(x: NDArray[np.uint64], scale: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    high_scale, low_scale = np.uint64(scale >> 32), np.uint64(scale & (2**32 - 1))
    high_x, low_x = x >> half, x & low
    lowest, inner, outer = low_scale * low_x, low_scale * high_x, high_scale * low_x
    middle = (lowest >> half) + (inner & low) + (outer & low)
    whole = high_scale * high_x + (inner >> half) + (outer >> half) + (middle >> half)
    rest = (middle << half) | (lowest & low)
    top = np.uint64(2**63)
    whole += rest >= top
    rest += top  # modulo 2**64: the carry was counted
    # Further bits of x add less than scale·2⁻⁶⁴.
    return whole.astype(np.int64), rest > np.uint64(2**64 - scale)


def _settle(source: NoiseSource, k: int, x: int, u: int, scale: int) -> tuple[bool, int]:
    extra = [int(word) for word in source.words(4)]
    x = x << _EXTRA | extra[0] << 64 | extra[1]
    u = u << _EXTRA | extra[2] << 64 | extra[3]
    one = 1 << 64 + _EXTRA
    with localcontext() as context:
        context.prec = 100
        fraction = Decimal(x) / one
        accepted = Decimal(u) / one < (-fraction * (2 * k + fraction) / 2).exp()
    return accepted, scale * k + (scale * x + one // 2) // one


def _integer_parts(source: NoiseSource, words: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Return k ≥ 0 with probability ∝ e^(−k²/2), one per word; a tie asks for 64 more bits."""
    k = np.searchsorted(_CUMULATIVE_HIGH, words, side="left").astype(np.int64)
    ties = _CUMULATIVE_HIGH[np.minimum(k, len(_CUMULATIVE) - 1)] == words
    for i in np.flatnonzero(ties):
        k[i] = bisect_right(_CUMULATIVE, int(words[i]) << 64 | int(source.words(1)[0]))
    return k


def _cumulative_table() -> list[int]:
    """Return ⌊2¹²⁸·P[k ≤ j]⌋ for j = 0..12, P[k] ∝ e^(−k²/2)."""
    with localcontext() as context:
        context.prec = 60
        weights = [(Decimal(-k * k) / 2).exp() for k in range(14)]
        total = sum(weights)
        return [int(2**128 * sum(weights[: j + 1]) / total) for j in range(13)]


_CUMULATIVE = _cumulative_table()
_CUMULATIVE_HIGH = np.array([entry >> 64 for entry in _CUMULATIVE], dtype=np.uint64)
