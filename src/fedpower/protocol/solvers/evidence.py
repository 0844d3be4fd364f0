"""What the coordinator knows of one silo's moment, from its answers, and what it can infer."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

SINGULAR = 1e-9
"""Eigenvalues of SᵀA_iS below this share of the largest are taken for zero: rounding lives there."""


class Evidence:
    """Exact pairs (S, A_iS) of one silo, and the Nyström model of A_i that follows.

    N_i = A_iS (SᵀA_iS)⁺ (A_iS)ᵀ agrees with A_i on the span of S, and with its rows there by symmetry;
    elsewhere it is a lower bound in the order of semi-definite matrices [Gittens & Mahoney 2016]. So a
    sum of such models never shows a direction more variance than it has: Ritz values that grow by it
    are not misled. A noised moment is shifted by its noise's edge c first: A_i + cI is what is modelled.

    Parameters
    ----------
    n_features
        d.
    shift
        c, zero for a semi-definite moment.
    most
        Columns of S to keep; the oldest are forgotten.
    """

    def __init__(self, n_features: int, *, shift: float, most: int) -> None:
        self._basis = np.empty((n_features, 0))
        self._product = np.empty((n_features, 0))
        self._factor: Array | None = None
        self._shift = shift
        self._most = most

    def add(self, basis: Array, product: Array) -> None:
        """Take S and A_iS, both d×q."""
        self._basis = np.hstack([self._basis, basis])[:, -self._most :]
        self._product = np.hstack([self._product, product])[:, -self._most :]
        self._factor = None

    @property
    def empty(self) -> bool:
        """Whether nothing is known."""
        return self._basis.shape[1] == 0

    def model(self, block: Array) -> Array:
        """Return (N_i − cI)·block; zero where nothing is known."""
        if self.empty:
            return np.zeros_like(block)
        factor = self._nystrom_factor()
        return factor @ (factor.T @ block) - self._shift * block

    def _nystrom_factor(self) -> Array:
        """Return F with N_i = FFᵀ."""
        if self._factor is None:
            product = self._product + self._shift * self._basis
            inner = self._basis.T @ product
            values, vectors = np.linalg.eigh((inner + inner.T) / 2)
            kept = values > SINGULAR * max(float(values[-1]), 0.0)
            self._factor = product @ (vectors[:, kept] / np.sqrt(values[kept]))
        return self._factor
