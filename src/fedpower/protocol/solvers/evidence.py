"""What the coordinator knows of one silo's moment, from its answers, and what it can infer."""

import math
from collections.abc import Collection, Mapping

import numpy as np
from numpy.typing import NDArray

from fedpower.protocol.solvers.pooling import shares, weighted_sum

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


def fill_in(
    block: Array,
    known: Mapping[str, Array],
    missing: Collection[str],
    evidence: Mapping[str, Evidence],
    sizes: Mapping[str, int],
) -> dict[str, tuple[Array, float]]:
    """Return what missing silos are taken to say to a block, and how far from it silos usually are.

    A silo of which something is known says what its model does, plus what those who answered had on
    average beyond their own models; another says what they said on average.

    Parameters
    ----------
    block
        W.
    known
        A_iW of the silos that answered.
    missing
        Those that did not.
    evidence, sizes
        By silo.
    """
    if not missing:
        return {}
    plain = _usual(known, shares(known, sizes))
    beyond = {
        name: value - evidence[name].model(block)
        for name, value in known.items()
        if not evidence[name].empty
    }
    rest, spread = _usual(beyond, shares(beyond, sizes)) if beyond else plain
    return {
        name: plain if evidence[name].empty else (evidence[name].model(block) + rest, spread)
        for name in missing
    }


def _usual(matrices: Mapping[str, Array], weights: Mapping[str, float]) -> tuple[Array, float]:
    """Return the weighted mean, and the root mean square distance from it in the spectral norm.

    A single matrix has nothing to be compared with: it may be off by all of itself.
    """
    mean = weighted_sum(matrices, weights)
    if len(matrices) == 1:
        return mean, float(np.linalg.norm(mean, 2))
    distances = {name: float(np.linalg.norm(each - mean, 2)) for name, each in matrices.items()}
    widened = np.sqrt(len(matrices) / (len(matrices) - 1))
    return mean, float(
        widened * math.hypot(*(math.sqrt(weights[n]) * each for n, each in distances.items()))
    )
