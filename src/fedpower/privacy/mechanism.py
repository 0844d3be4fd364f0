"""The release mechanism of a silo: the only code that turns a private array into a public one."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedpower.errors import InputError
from fedpower.privacy.lattice import (
    Lattice,
    lattice_for_multiplier,
    lattice_for_std,
    quantise,
)
from fedpower.privacy.noise import TV_PER_INTEGER, NoiseSource, gaussian_integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Noised:
    """A release and what it cost.

    Attributes
    ----------
    value
        The noised array, read-only.
    std
        The standard deviation really used, lattice included.
    spacing
        The lattice's step; 0 if nothing was noised (ε = ∞).
    sensitivity
        The sensitivity really paid for: the stated one, the float slack and the quantisation;
        ∞ if nothing was noised.
    tv
        Total variation distance of this release from the ideal mechanism's: see
        `accounting.delta_with_distance`.
    """

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
    """Return everything one release holds, plus N(0, std²) in every number, on a lattice.

    Neighbours: replace one row. Norm: Euclidean, over all the numbers together. What has another norm
    is brought to this one by an isometry first: `summary.pack` does so for a symmetric moment.

    Parameters
    ----------
    values
        The numbers, in an array of any shape.
    sensitivity
        Of all the numbers together, what float64 adds to it included (`rounding_slack`).
    source
        `SystemNoise()`, or words for an experiment.
    multiplier, std
        One of the two: the noise as a multiple of the sensitivity (modes `step` and `moment`), or as
        it is (mode `paper`, whose ν is printed). 0 adds nothing.
    """
    array = np.asarray(values, dtype=np.float64)
    if array.size == 0:
        raise InputError(
            f"a release must hold at least one number, got shape {array.shape}; check the basis"
        )
    lattice = _lattice(array.size, sensitivity, multiplier, std)
    if lattice is None:
        value = array.copy()
        value.setflags(write=False)
        return Noised(value=value, std=0.0, spacing=0.0, sensitivity=math.inf, tv=0.0)
    integers = quantise(array, lattice.spacing)
    integers += gaussian_integers(source, array.size, scale=lattice.scale).reshape(array.shape)
    value = integers.astype(np.float64) * lattice.spacing
    value.setflags(write=False)
    return Noised(
        value=value,
        std=lattice.std,
        spacing=lattice.spacing,
        sensitivity=lattice.sensitivity,
        tv=array.size * TV_PER_INTEGER,
    )


def _lattice(
    n_coordinates: int, sensitivity: float, multiplier: float | None, std: float | None
) -> Lattice | None:
    if (multiplier is None) == (std is None):
        raise InputError("one of multiplier and std must be given, got both or none; pass one")
    if multiplier == 0 or std == 0:
        return None
    if multiplier is not None:
        return lattice_for_multiplier(
            multiplier, sensitivity=sensitivity, n_coordinates=n_coordinates
        )
    assert std is not None
    return lattice_for_std(std, sensitivity=sensitivity, n_coordinates=n_coordinates)
