"""Noise: random words, exactly rounded normals, the lattice, and the one mechanism that releases."""

from __future__ import annotations

import ctypes
import math
import os
import threading
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from decimal import Decimal, localcontext
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpower import native
from fedpower.errors import InputError

_MAX_SCALE = 2**32 - 1
"""The largest `scale` whose products fit in 64 bits; `lattice` keeps to it."""

WIDEST_SCALE = 2**58
"""The largest `scale` of `gaussian_integers`: 14 times it fits in 62 bits."""

TV_PER_INTEGER = 2.0**-120
"""Bound on the total variation distance of one of `gaussian_integers` from its ideal law."""

_FEW = 2**10  # candidates that NumPy decides together where the loop leaves one of them open
_BATCH = 2**16  # candidates at a time: a few arrays of this many words stay in cache
_SHARE = 2**18  # integers that a core draws at once where there are more
_PART_BITS = 28
"""Of a word that begins two: those for the integer part; one in 2²⁴ candidates needs more of them."""

_ALL = np.uint64(2**64 - 1)
_DOUBT = 2.0**-40  # a float64 acceptance probability is trusted up to this; its error is below 2^-46
_EXTRA = 128  # further bits drawn, for x and for u, when 64 do not decide


class NoiseSource(Protocol):
    """Independent uniform 64-bit words."""

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return the next n words."""
        ...


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


class BatchedNoise:
    """Noise of many silos that one process simulates, drawn for all of them in one go."""

    def __init__(self, n_users: int, source: NoiseSource | None = None) -> None:
        self._n_users = n_users
        self._source = source or SystemNoise()
        self._lock = threading.Lock()
        self._left: dict[int, list[NDArray[np.int64]]] = {}

    def words(self, n: int) -> NDArray[np.uint64]:
        """Return n fresh words."""
        return self._source.words(n)

    def integers(self, n: int, scale: int) -> NDArray[np.int64]:
        """Return n integers of this scale that nobody has had, or will have."""
        with self._lock:
            taken = self._take(n, scale)
        if taken is not None:
            return taken
        # Outside the lock: threads draw at the same time, each as many as a core draws at once.
        users = min(self._n_users, max(1, _SHARE // max(1, n)))
        drawn = gaussian_integers(self._source, n * users, scale=scale)
        with self._lock:
            self._left.setdefault(scale, []).append(drawn[n:])
        return drawn[:n]

    def _take(self, n: int, scale: int) -> NDArray[np.int64] | None:
        """Return the next n integers of a batch of this scale, if one has as many."""
        batches = self._left.get(scale, [])
        for place, left in enumerate(batches):
            if left.size >= n:
                batches[place] = left[n:]
                if left.size == n:
                    del batches[place]
                return left[:n]
        return None


def gaussian_integers(source: NoiseSource, n: int, *, scale: int = 2**30) -> NDArray[np.int64]:
    """Return n independent integers distributed as round(scale·X), X a real standard normal."""
    if not 1 <= scale <= WIDEST_SCALE:
        raise InputError(f"scale must be between 1 and 2**58, got {scale}; use 2**30")
    if isinstance(source, BatchedNoise):
        return source.integers(n, scale)
    out = np.empty(n, dtype=np.int64)

    def fill(start: int, stop: int) -> None:
        for _ in _pieces(source, stop - start, scale, out[start:stop]):
            pass

    _shared_out(fill, n, source)
    return out


def _shared_out(work: Callable[[int, int], None], n: int, source: NoiseSource) -> None:
    """Do the work from each start to each stop of n integers, on several cores where that may be."""
    if n <= _SHARE or not isinstance(source, SystemNoise):
        work(0, n)
        return
    # The system's words have no order: cores draw shares of a large array beside each other.
    starts = range(0, n, _SHARE)
    with ThreadPoolExecutor(max_workers=os.cpu_count()) as pool:
        list(pool.map(work, starts, [min(start + _SHARE, n) for start in starts]))


def _pieces(
    source: NoiseSource, n: int, scale: int, out: NDArray[np.int64] | None = None
) -> Iterator[NDArray[np.int64]]:
    """Yield n integers in the order in which they are drawn, put into ``out`` if that is given."""
    if isinstance(source, BatchedNoise):
        yield source.integers(n, scale)
        return
    most = min(_BATCH, n + n // 2 + 16)
    room = np.empty(most, dtype=np.int64)
    signed = np.empty(most, dtype=np.int64) if out is None else out
    while n > 0:
        count = min(_BATCH, n + n // 2 + 16)
        magnitudes = _candidates(source, count, scale, room[:count])[:n]
        yield _with_signs(source, magnitudes, signed[: magnitudes.size])
        n -= magnitudes.size
        if out is not None:
            signed = signed[magnitudes.size :]


def _candidates(
    source: NoiseSource, n: int, scale: int, room: NDArray[np.int64] | None = None
) -> NDArray[np.int64]:
    """Return round(scale·|X|) of those of n candidates that are accepted, in ``room`` for n or anew."""
    room = np.empty(n, dtype=np.int64) if room is None else room
    if n >= _BATCH and isinstance(source, SystemNoise) and native.loops() is not None:
        # The system's words take longer to make than all that is done with them: where there are many.
        words = source.words(2 * n).reshape(2, n)
    else:
        words = np.ascontiguousarray(source.words(3 * n)).reshape(3, n)
    found = _in_one_go(words, scale, room)
    return _in_parts(source, words, scale, room) if found is None else found


def _in_parts(
    source: NoiseSource, words: NDArray[np.uint64], scale: int, room: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the same, a few at a time: where one needs further words NumPy decides those few."""
    if native.loops() is None:
        return _in_passes(source, words, scale)
    done = 0
    for start in range(0, words.shape[1], _FEW):
        part = words[:, start : start + _FEW]
        found = _in_one_go(part, scale, room[done:])
        if found is None:
            if len(part) == 2:
                part = _completed(part, source.words(part.shape[1]))
            found = _in_passes(source, part, scale)
            room[done : done + found.size] = found
        done += found.size
    return room[:done]


def _completed(pairs: NDArray[np.uint64], rest: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Return three words a candidate, of two whose first was the beginning of two words, and their rest."""
    first, fractions = pairs
    bits, left = np.uint64(_PART_BITS), np.uint64(64 - _PART_BITS)
    ahead = first >> left << left
    return np.array([ahead | rest >> bits, fractions, first << bits | rest & ~(_ALL << bits)])


def _in_one_go(words: NDArray[np.uint64], scale: int, room: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return what `_in_passes` returns, by the compiled loop, or None where that does not decide."""
    loops = native.loops()
    if loops is None:
        return None
    run = loops.fedpower_candidates
    run.restype = ctypes.c_int64
    whole = len(words) == 3
    taken = run(
        _at(words[0]),
        _at(words[1]),
        _at(words[2]) if whole else None,
        ctypes.c_int64(words.shape[1]),
        ctypes.c_int32(64 if whole else _PART_BITS),
        ctypes.c_uint64(scale),
        _at(_CUMULATIVE_HIGH),
        _at(room),
    )
    return None if taken < 0 else room[:taken]


def _at(array: NDArray[Any]) -> ctypes.c_void_p:
    """Return where an array lies in memory."""
    return ctypes.c_void_p(array.ctypes.data)


def _in_passes(source: NoiseSource, words: NDArray[np.uint64], scale: int) -> NDArray[np.int64]:
    """Return the same of candidates with these three words each; the source has more where needed."""
    k_words, x, u = words
    k = _integer_parts(source, k_words)
    fraction = x * 2.0**-64
    probability = np.exp(-0.5 * fraction * (2 * k + fraction))
    distance = probability - u * 2.0**-64
    accepted = distance > 0

    whole, open_ended = (_product if scale <= _MAX_SCALE else _wide_product)(x, scale)
    rounded = k * scale + whole
    doubtful = (np.abs(distance) < _DOUBT) | open_ended
    for i in np.flatnonzero(doubtful):
        accepted[i], rounded[i] = _settle(source, int(k[i]), int(x[i]), int(u[i]), scale)
    return np.asarray(rounded[accepted], dtype=np.int64)


def _product(x: NDArray[np.uint64], scale: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return scale·x + 1/2 with x = 2⁻⁶⁴·(its word), rounded down, and where further bits may count."""
    # The whole part and the top 32 bits of the rest, exactly.
    half, low = np.uint64(32), np.uint64(2**32 - 1)
    wide = np.uint64(scale) * (x >> half) + (np.uint64(scale) * (x & low) >> half)
    wide += np.uint64(2**31)
    # Further bits of x can carry into the whole part only if those top 32 bits are all ones.
    return (wide >> half).astype(np.int64), (wide & low) == low


def _wide_product(x: NDArray[np.uint64], scale: int) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """Return the same for a scale of more than 32 bits, from all 128 bits of the product."""
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
    """Return acceptance and rounding of one candidate from 192 bits of x and of u."""
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


def _with_signs(
    source: NoiseSource, magnitudes: NDArray[np.int64], room: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the magnitudes with fair signs, in ``room``: one bit each, also for 0."""
    bits = source.words(-(-magnitudes.size // 64)).view(np.uint8)
    loops = native.loops()
    if loops is not None:
        run = loops.fedpower_signs
        run.restype = None
        run(_at(magnitudes), ctypes.c_int64(magnitudes.size), _at(bits), _at(room))
    else:
        negative = np.unpackbits(bits, count=magnitudes.size).astype(bool)
        np.negative(magnitudes, out=room)
        np.copyto(room, magnitudes, where=~negative)
    return room


def _cumulative_table() -> list[int]:
    """Return ⌊2¹²⁸·P[k ≤ j]⌋ for j = 0..12, P[k] ∝ e^(−k²/2)."""
    with localcontext() as context:
        context.prec = 60
        weights = [(Decimal(-k * k) / 2).exp() for k in range(14)]
        total = sum(weights)
        return [int(2**128 * sum(weights[: j + 1]) / total) for j in range(13)]


_CUMULATIVE = _cumulative_table()
_CUMULATIVE_HIGH = np.array([entry >> 64 for entry in _CUMULATIVE], dtype=np.uint64)


BITS = 30
"""The noise is between 2³⁰ and 2³¹ lattice steps wide, more where quantisation has to be paid."""

_LARGEST_INTEGER = 2.0**61


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lattice:
    """The multiples of `spacing`, and noise of `scale` steps for a release of `sensitivity`."""

    spacing: float
    scale: int
    sensitivity: float

    @property
    def std(self) -> float:
        """The noise's standard deviation, mg."""
        return self.scale * self.spacing


def lattice_for_multiplier(multiplier: float, *, sensitivity: float, n_coordinates: int) -> _Lattice:
    """Return the lattice whose noise is at least `multiplier` times the *quantised* sensitivity."""
    _check_noise("multiplier", multiplier)
    _check_noise("sensitivity", sensitivity)
    spacing = _spacing(multiplier * sensitivity)
    quantised = sensitivity / spacing + math.sqrt(n_coordinates)
    scale = math.ceil(multiplier * quantised * (1 + 2.0**-50))
    return _lattice(spacing, scale, sensitivity, n_coordinates)


def lattice_for_std(std: float, *, sensitivity: float, n_coordinates: int) -> _Lattice:
    """Return the lattice whose noise is `std`, rounded up to a step of a relative 2⁻³⁰."""
    _check_noise("std", std)
    spacing = _spacing(std)
    return _lattice(spacing, math.ceil(std / spacing), sensitivity, n_coordinates)


def quantise(values: NDArray[np.float64], spacing: float) -> NDArray[np.int64]:
    """Return round(values/spacing), exact because `spacing` is a power of two, within ±2⁶¹."""
    _require_finite(values)
    steps = values / spacing
    np.clip(steps, -_LARGEST_INTEGER, _LARGEST_INTEGER, out=steps)
    return np.rint(steps, out=steps).astype(np.int64)


def _require_finite(values: NDArray[np.float64]) -> None:
    # A NaN is the largest and the smallest of numbers, here.
    if not (math.isfinite(values.max(initial=0.0)) and math.isfinite(values.min(initial=0.0))):
        raise InputError("a release must be finite, got a NaN or an infinity; clean the rows first")


def _spacing(std: float) -> float:
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - BITS)


def _lattice(spacing: float, scale: int, sensitivity: float, n_coordinates: int) -> _Lattice:
    if scale > _MAX_SCALE:
        raise InputError(
            f"quantising {n_coordinates} numbers must not double the noise, got {scale} lattice "
            "steps; release fewer numbers or ask for a larger epsilon"
        )
    total = sensitivity + spacing * math.sqrt(n_coordinates)
    return _Lattice(spacing=spacing, scale=scale, sensitivity=total * (1 + 2.0**-50))


def _check_noise(name: str, value: float) -> None:
    if not 1e-200 < value < 1e200:
        raise InputError(f"{name} must be a positive number, got {value!r}; calibrate it first")


@dataclass(frozen=True, slots=True, kw_only=True)
class Noised:
    """A release and what it cost."""

    value: NDArray[np.float64]
    std: float
    spacing: float
    sensitivity: float
    tv: float

    @property
    def mu(self) -> float:
        """The release's Gaussian-DP parameter: sensitivity over std; ∞ without noise."""
        return math.inf if self.std == 0 else self.sensitivity / self.std


def perturb(
    values: ArrayLike,
    *,
    sensitivity: float,
    source: NoiseSource,
    multiplier: float | None = None,
    std: float | None = None,
) -> Noised:
    """Return everything one release holds, plus N(0, std²) in every number, on a lattice."""
    value = np.array(values, dtype=np.float64, order="C")
    lattice = perturb_in_place(value, sensitivity=sensitivity, source=source, multiplier=multiplier, std=std)
    value.setflags(write=False)
    if lattice is None:
        return Noised(value=value, std=0.0, spacing=0.0, sensitivity=math.inf, tv=0.0)
    return Noised(
        value=value,
        std=lattice.std,
        spacing=lattice.spacing,
        sensitivity=lattice.sensitivity,
        tv=value.size * TV_PER_INTEGER,
    )


def perturb_in_place(
    *arrays: NDArray[np.float64],
    sensitivity: float,
    source: NoiseSource,
    multiplier: float | None = None,
    std: float | None = None,
) -> _Lattice | None:
    """Return the lattice of one release after the noise was added to its numbers where they lie."""
    parts = [array.reshape(-1) for array in arrays]
    assert all(array.flags.c_contiguous and array.flags.writeable for array in arrays)
    size = sum(part.size for part in parts)
    if size == 0:
        raise InputError(
            f"a release must hold at least one number, got shape {arrays[0].shape}; check the basis"
        )
    lattice = _lattice_for(size, sensitivity, multiplier, std)
    if lattice is None:
        return None
    for part in parts:
        _require_finite(part)

    def add(start: int, stop: int) -> None:
        for piece in _pieces(source, stop - start, lattice.scale):
            _add_steps(parts, start, piece, lattice.spacing)
            start += piece.size

    _shared_out(add, size, source)
    return lattice


def _add_steps(
    parts: Sequence[NDArray[np.float64]], start: int, steps: NDArray[np.int64], spacing: float
) -> None:
    """Quantise the numbers from ``start`` on, counted through the parts, and add these steps to them."""
    for part in parts:
        here = part[start : start + steps.size] if start < part.size else part[:0]
        if here.size:
            _add_to(here, steps[: here.size], spacing)
            start, steps = part.size, steps[here.size :]
        start -= part.size


def _add_to(values: NDArray[np.float64], steps: NDArray[np.int64], spacing: float) -> None:
    loops = native.loops()
    if loops is None:
        np.multiply(quantise(values, spacing) + steps, spacing, out=values)
        return
    run = loops.fedpower_noised
    run.restype = None
    run(
        _at(values),
        ctypes.c_int64(values.size),
        ctypes.c_double(spacing),
        ctypes.c_double(_LARGEST_INTEGER),
        _at(steps),
    )


def _lattice_for(
    n_coordinates: int, sensitivity: float, multiplier: float | None, std: float | None
) -> _Lattice | None:
    if (multiplier is None) == (std is None):
        raise InputError("one of multiplier and std must be given, got both or none; pass one")
    if multiplier == 0 or std == 0:
        return None
    if multiplier is not None:
        return lattice_for_multiplier(multiplier, sensitivity=sensitivity, n_coordinates=n_coordinates)
    assert std is not None
    return lattice_for_std(std, sensitivity=sensitivity, n_coordinates=n_coordinates)
