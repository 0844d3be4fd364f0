"""Rayleigh–Ritz over a growing basis of asked-about blocks: the loop of krylov."""

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.rayleigh_ritz import (
    complement,
    leading_pairs,
    product_noise,
    rayleigh_ritz,
    rounding_level,
    subspace_error,
)
from fedpower.protocol.exchange import Exchange
from fedpower.protocol.solvers.products import Product, Products
from fedpower.protocol.solvers.solution import rank_for

Array = NDArray[np.float64]

MODEL_PRODUCTS = 12
"""Inner products with the model per round: at the coordinator, over arrays it holds."""


class Expansion:
    """Grows V block by block until its leading Ritz vectors are the pooled eigenvectors.

    Parameters
    ----------
    products
        Gives pooled products, and the silos' models.
    rank
        k, or a fraction of variance.
    tol
        The error estimate to stop at.
    lookahead
        Whether the silos' models say where to look next, or the residual.
    max_basis
        Columns of V at most; None for no bound.
    rng
        For directions where V is invariant.
    """

    def __init__(
        self,
        products: Products,
        *,
        rank: int | float,
        tol: float,
        lookahead: bool,
        max_basis: int | None,
        rng: np.random.Generator,
    ) -> None:
        self.products = products
        self.rank = rank
        self.tol = tol
        self.lookahead = lookahead
        self.max_basis = max_basis
        self.rng = rng

    def run(self, start: Array) -> Exchange:
        """Return what a :class:`Solution` needs, from a first block of orthonormal columns."""
        d, width = start.shape
        self.basis, self.product, self.doubt = np.empty((d, 0)), np.empty((d, 0)), np.empty(0)
        self.heard: tuple[str, ...] | None = None
        block, completeness = start, 1.0
        while True:
            found: Product = yield from self.products.multiply(block)
            completeness = min(completeness, found.completeness)
            self._extend(block, found)
            values, coefficients = rayleigh_ritz(self.basis, self.product)
            rank, reached = self._rank(values)
            wanted = min(max(width, rank), values.size)
            leading = coefficients[:, :wanted]
            modelled, vectors = values[:wanted], self.basis @ leading
            residual = self.product @ leading - vectors * values[:wanted]
            rounding = self._rounding(values)
            doubt = self._doubt_of(leading[:, :rank])
            # New blocks lessen what of the residual lies outside V; inside, it is what was filled in.
            outside = residual - self.basis @ (self.basis.T @ residual)
            stale = found.can_improve and doubt > max(_norm(outside[:, :rank]), rounding)
            size = _norm(residual[:, :rank]) + doubt
            whole = self.basis.shape[1] == d
            done = size <= rounding or (whole and doubt <= rounding)
            change = 0.0 if done and whole else subspace_error(values, size, rank, rounding)
            found.closed.notes["change"] = change
            converged = reached and (done or change <= self.tol)
            candidates, negligible = residual, rounding
            if self.lookahead and not whole:
                # Ritz pairs and one correction by the model, as the paper's output is one step more.
                modelled, vectors = leading_pairs(self._model, vectors, MODEL_PRODUCTS)
                candidates, negligible = vectors, 1e-14
            if converged or self.products.exhausted or (whole and not stale):
                break
            if stale:
                block = self._afresh(vectors[:, :width])
                continue
            block = self._next_block(candidates, width, negligible)
            self._restart(coefficients, wanted, width)
        return {
            "basis": vectors,
            "values": modelled,
            "vectors": vectors,
            "rank": rank,
            "n_steps": self.products.step,
            "change": change,
            "converged": converged,
            "completeness": completeness,
            "told_by": (self.basis, self.product, self.heard or ()),
        }

    def _extend(self, block: Array, found: Product) -> None:
        self.basis = np.hstack([self.basis, block])
        self.product = np.hstack([self.product, found.value])
        self.doubt = np.append(self.doubt, np.full(block.shape[1], found.doubt))
        # A compression of one noised moment takes products by the same silos, all of them.
        self.heard = found.heard if self.heard in (None, found.heard) else ()

    def _afresh(self, vectors: Array) -> Array:
        """Forget products in which too much was filled in; ask about the best vectors anew.

        What each silo said is kept, so that less has to be filled in every time.
        """
        self.basis, self.product = self.basis[:, :0], self.product[:, :0]
        self.doubt = self.doubt[:0]
        self.heard = None
        return vectors

    def _rank(self, values: Array) -> tuple[int, bool]:
        """Return k, and whether the values found so far suffice to tell it."""
        rank = self.rank
        if not isinstance(rank, float):
            return min(rank, values.size), rank <= values.size
        needed = rank_for(rank, values, self.products.total_variance)
        return min(needed, values.size), needed <= values.size

    def _rounding(self, values: Array) -> float:
        """Return the size of a residual that is rounding, be it of sums or of messages."""
        d, columns = self.basis.shape
        level = rounding_level(values, d)
        if self.doubt.any():  # then asymmetry shows what was filled in
            return level
        noise = product_noise(self.basis, self.product)
        return max(level, 4 * noise * float(np.sqrt(d) + np.sqrt(columns)))

    def _doubt_of(self, coefficients: Array) -> float:
        """Return about how far A·(V·coefficients) is off because silos were missing."""
        return _norm(self.doubt[:, np.newaxis] * coefficients)

    def _next_block(self, candidates: Array, width: int, negligible: float) -> Array:
        """Return where to look next: an orthonormal block outside V."""
        block = complement(candidates, self.basis, width, negligible)
        if not block.shape[1]:  # V is invariant: only chance finds what lies outside
            fresh = self.rng.standard_normal((len(self.basis), width))
            block = complement(fresh, self.basis, width, 0.0)
        return block

    def _model(self, block: Array) -> Array:
        """Return the model of A times ``block``: exact on V, the silos' models outside.

        With P = I − VVᵀ it is VVᵀA + PAVVᵀ + P(Σ w_iN_i)P, where VᵀA = (AV)ᵀ.
        """
        inside = self.basis.T @ block
        outside = block - self.basis @ inside
        modelled = self.products.model(outside)
        modelled -= self.basis @ (self.basis.T @ modelled)
        across = self.product.T @ outside
        return np.asarray(self.product @ inside + self.basis @ across + modelled)

    def _restart(self, coefficients: Array, wanted: int, width: int) -> None:
        """Keep the leading Ritz vectors where V would grow beyond its bound [thick restart]."""
        most = self.max_basis
        if most is None or self.basis.shape[1] + width <= most:
            return
        kept = coefficients[:, : max(wanted, most // 2)]
        self.basis = self.basis @ kept
        self.product = self.product @ kept
        self.doubt = np.linalg.norm(self.doubt[:, np.newaxis] * kept, axis=0)


def _norm(matrix: Array) -> float:
    return float(np.linalg.norm(matrix, 2))
