"""The lattice on which values and noise live, so that the low bits of floats tell nothing [M12].

A value v is quantised to q = round(v/g) and the integer K = round(mX), X a standard normal, is
added: q + K = round(q + mX) is literally the rounding of the Gaussian mechanism applied to q, that
is, its post-processing. So the exact accounting of the Gaussian mechanism holds as it stands, with
noise mg and the sensitivity of the quantised value; no theory of discrete Gaussians is needed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.privacy.noise import MAX_SCALE

BITS = 30
"""The noise is between 2³⁰ and 2³¹ lattice steps wide, more where quantisation has to be paid."""

_LARGEST_INTEGER = 2.0**61


@dataclass(frozen=True, slots=True, kw_only=True)
class Lattice:
    """The multiples of `spacing`, and noise of `scale` steps for a release of `sensitivity`.

    Attributes
    ----------
    spacing
        g, a power of two: dividing a float64 by it is exact, so quantising is exact rounding.
    scale
        m, the noise's standard deviation in steps.
    sensitivity
        Δ + g√N, of the quantised value.
    """

    spacing: float
    scale: int
    sensitivity: float

    @property
    def std(self) -> float:
        """The noise's standard deviation, mg."""
        return self.scale * self.spacing


def lattice_for_multiplier(multiplier: float, *, sensitivity: float, n_coordinates: int) -> Lattice:
    """Return the lattice whose noise is at least `multiplier` times the *quantised* sensitivity.

    Neighbours and norm are those of `sensitivity`, a Euclidean bound Δ on N coordinates.
    Theorem: the quantised value has sensitivity at most Δ + g√N. Proof: each coordinate of each
    neighbour moves by at most g/2, so their difference moves by at most g√N in norm. ∎

    g is the power of two with 2³⁰ ≤ multiplier·Δ/g < 2³¹, and m the smallest integer with
    mg ≥ multiplier·(Δ + g√N). The excess over the ideal noise is at most a relative
    2⁻³⁰(1 + multiplier·√N).
    """
    _check_noise("multiplier", multiplier)
    _check_noise("sensitivity", sensitivity)
    spacing = _spacing(multiplier * sensitivity)
    quantised = sensitivity / spacing + math.sqrt(n_coordinates)
    scale = math.ceil(multiplier * quantised * (1 + 2.0**-50))
    return _lattice(spacing, scale, sensitivity, n_coordinates)


def lattice_for_std(std: float, *, sensitivity: float, n_coordinates: int) -> Lattice:
    """Return the lattice whose noise is `std`, rounded up to a step of a relative 2⁻³⁰."""
    _check_noise("std", std)
    spacing = _spacing(std)
    return _lattice(spacing, math.ceil(std / spacing), sensitivity, n_coordinates)


def quantise(values: NDArray[np.float64], spacing: float) -> NDArray[np.int64]:
    """Return round(values/spacing), exact because `spacing` is a power of two, within ±2⁶¹.

    What lies beyond is brought back to it, which moves no two values farther apart: rows of norm ≤ 1 come
    there only where the noise is below 2⁻³⁰, and a refusal would tell that they did.
    """
    if not np.all(np.isfinite(values)):
        raise InputError("a release must be finite, got a NaN or an infinity; clean the rows first")
    steps = values / spacing
    return np.rint(np.clip(steps, -_LARGEST_INTEGER, _LARGEST_INTEGER)).astype(np.int64)


def _spacing(std: float) -> float:
    return math.ldexp(1.0, math.frexp(std)[1] - 1 - BITS)


def _lattice(spacing: float, scale: int, sensitivity: float, n_coordinates: int) -> Lattice:
    if scale > MAX_SCALE:
        raise InputError(
            f"quantising {n_coordinates} numbers must not double the noise, got {scale} lattice "
            "steps; release fewer numbers or ask for a larger epsilon"
        )
    total = sensitivity + spacing * math.sqrt(n_coordinates)
    return Lattice(spacing=spacing, scale=scale, sensitivity=total * (1 + 2.0**-50))


def _check_noise(name: str, value: float) -> None:
    if not 1e-200 < value < 1e200:
        raise InputError(f"{name} must be a positive number, got {value!r}; calibrate it first")
