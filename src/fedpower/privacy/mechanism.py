"""The release mechanisms of a silo: the only code that turns a private array into a public one.

Each takes arrays with any number of leading axes, which are independent releases of the same kind
(the audit plays thousands at once); a silo passes a single one.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

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


def perturb_product(
    product: ArrayLike,
    *,
    sensitivity: float,
    slack: float,
    source: NoiseSource,
    multiplier: float | None = None,
    std: float | None = None,
) -> Noised:
    """Return A Z plus N(0, std²) in every entry, on a lattice.

    Neighbours: replace one row. Norm: Frobenius of the d×r product.

    Parameters
    ----------
    product
        (…, d, r).
    sensitivity, slack
        `product_sensitivity` and `rounding_slack`.
    source
        `SystemNoise()`, or words for an experiment.
    multiplier, std
        One of the two: the noise as a multiple of the full sensitivity (mode `step`), or as it is
        (mode `paper`, whose ν is printed). 0 adds nothing.
    """
    values = _array(product, "product", 2)
    n = values.shape[-1] * values.shape[-2]
    return _noised(values, _lattice(n, sensitivity + slack, multiplier, std), n, source)


def perturb_vector(
    vector: ArrayLike,
    *,
    sensitivity: float,
    slack: float,
    source: NoiseSource,
    multiplier: float | None = None,
    std: float | None = None,
) -> Noised:
    """Return a vector (the mean row) plus N(0, std²) in every entry, on a lattice.

    Neighbours: replace one row. Norm: Euclidean. Parameters as in `perturb_product`, with
    `mean_sensitivity`.
    """
    values = _array(vector, "vector", 1)
    n = values.shape[-1]
    return _noised(values, _lattice(n, sensitivity + slack, multiplier, std), n, source)


def perturb_moment(
    moment: ArrayLike,
    *,
    sensitivity: float,
    slack: float,
    source: NoiseSource,
    multiplier: float | None = None,
    std: float | None = None,
) -> Noised:
    """Return A plus symmetric noise, N(0, std²) on and N(0, std²/2) off the diagonal; symmetric.

    Neighbours: replace one row. Norm: Frobenius. S ↦ (S_jj, √2·S_jl for j > l) is an isometry from
    the symmetric matrices with the Frobenius norm to d(d+1)/2 coordinates with the Euclidean norm:
    the vector is quantised and noised, and mapped back. Only the lower triangle is read.

    Parameters as in `perturb_product`, with `moment_sensitivity` or `augmented_moment_sensitivity`.
    """
    values = _array(moment, "moment", 2)
    d = values.shape[-1]
    if values.shape[-2] != d:
        raise InputError(f"a moment must be square, got shape {values.shape[-2:]}; pass MᵀM/s")
    rows, columns = np.tril_indices(d)
    factors = np.where(rows == columns, 1.0, math.sqrt(2.0))
    flat, n = values[..., rows, columns] * factors, rows.size
    noised = _noised(flat, _lattice(n, sensitivity + slack, multiplier, std), n, source)
    symmetric = np.empty(values.shape)
    symmetric[..., rows, columns] = symmetric[..., columns, rows] = noised.value / factors
    symmetric.setflags(write=False)
    return replace(noised, value=symmetric)


def _noised(
    values: NDArray[np.float64],
    lattice: Lattice | None,
    n_coordinates: int,
    source: NoiseSource,
) -> Noised:
    """Return releases of n_coordinates numbers each, quantised, noised and back in float64."""
    if lattice is None:
        value = values.copy()
        value.setflags(write=False)
        return Noised(value=value, std=0.0, spacing=0.0, sensitivity=math.inf, tv=0.0)
    integers = quantise(values, lattice.spacing)
    integers += gaussian_integers(source, values.size, scale=lattice.scale).reshape(values.shape)
    value = integers.astype(np.float64) * lattice.spacing
    value.setflags(write=False)
    return Noised(
        value=value,
        std=lattice.std,
        spacing=lattice.spacing,
        sensitivity=lattice.sensitivity,
        tv=n_coordinates * TV_PER_INTEGER,
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


def _array(values: ArrayLike, name: str, n_axes: int) -> NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim < n_axes or array.size == 0:
        raise InputError(
            f"a {name} must be a non-empty array of at least {n_axes} axes, got shape "
            f"{array.shape}; check the rows and the basis"
        )
    return array
