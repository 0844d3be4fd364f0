"""Block Krylov: Rayleigh–Ritz over a growing basis of blocks that silos multiplied."""

import math
from collections.abc import Generator
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.linalg.symmetric import (
    complement,
    leading_pairs,
    pairs_of_factors,
    product_noise,
    rayleigh_ritz,
    rounding_level,
    subspace_error,
)
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskMoment, MomentPart, read_only
from fedpower.protocol.solvers.products import Product, Products, averaged
from fedpower.protocol.solvers.shared import Solution, StepSettings, enrol, rank_for, shares, weighted_sum
from fedpower.protocol.study import masses
from fedpower.sums.moment import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

Array = NDArray[np.float64]

_MODEL_PRODUCTS = 12  # inner products with the model per round: at the coordinator, over arrays it has
_FRACTION_BLOCK = 16  # columns of a block where the number of components is to be found
_WARM_STEPS = 24  # local steps that a run opens with
_RANDOM_COLUMNS = 2  # columns of a warm start that stay random
_MOST_BYTES = 2**30  # what the coordinator keeps of all silos' answers, where the choice is left to it


@dataclass(frozen=True, slots=True, kw_only=True)
class KrylovSettings(StepSettings):
    """How to iterate: `local` opens with local steps, and asks for a second one in each round."""

    tol: float = 1e-9
    local: bool = True

    @property
    def width(self) -> int:
        """Columns of a block."""
        wanted = _FRACTION_BLOCK if isinstance(self.rank, float) else self.study.iteration_rank
        return min(self.study.n_features, wanted)

    def solve(self, rng: np.random.Generator, run: str = "") -> Exchange:
        """Return the :class:`Solution` by block Krylov and Rayleigh–Ritz over the pooled products."""
        sizes, d = (yield from enrol()), self.study.n_features
        if self._factors_fit(sizes):
            return (yield from _by_factors(self, sizes))
        products = yield from Products.opened(self, sizes, rng)
        start = orth(rng.standard_normal((d, self.width)))
        if self.n_steps is not None:
            assert not isinstance(self.rank, float), "a private study has a given rank"
            steps = averaged(products, start, self.rank, self.n_steps)
            del start  # what is asked about later takes its memory
            outcome = yield from steps
        else:
            shift, most = products.shift(2), self._most_columns(len(products.sizes))
            products.remember(d, shift=shift, most=2 * most, lookahead=self.local)
            if self.local and self.max_rounds != 1:
                start = yield from _warm_start(products, start, self, shift)
            outcome = yield from _Expansion(products, self, most).run(start)
        law = products.law(outcome.pop("heard") or products.sizes)
        sizes = {name: size for name, size in products.sizes.items() if name not in products.left_out}
        return products.solution(**outcome, sizes=sizes, law=law)

    def _factors_fit(self, sizes: dict[str, int]) -> bool:
        """Return whether all silos together have so few rows that each sends its moment by its factor."""
        d, total = self.study.n_features, sum(sizes.values())
        exact = self.n_steps is None and not self.study.is_private and self.pooled_std is None
        wide = d > MOST_SQUARE_FEATURES and total <= d and 8 * d * total <= MOST_FACTOR_BYTES
        return exact and wide and self.local and self.n_participants is None

    def _most_columns(self, n_silos: int) -> int:
        """Return the bound on V's columns, three blocks at least."""
        d = self.study.n_features
        return min(d, max(min(10 * self.width, _MOST_BYTES // (32 * d * n_silos)), 3 * self.width))


class _Expansion:
    """Grows V block by block until its leading Ritz vectors are the pooled eigenvectors."""

    def __init__(self, products: Products, settings: KrylovSettings, most: int) -> None:
        self.products = products
        self.settings = settings
        self.max_basis = None if isinstance(settings.rank, float) else most

    def run(self, start: Array) -> Generator[Ask, Round, dict[str, Any]]:
        """Return what a :class:`Solution` needs, from a first block of orthonormal columns."""
        d, width = start.shape
        self.basis, self.product, self.doubt = np.empty((d, 0)), np.empty((d, 0)), np.empty(0)
        self.heard: tuple[str, ...] | None = None
        block, completeness = start, 1.0
        while True:
            found = yield from self.products.multiply(block)
            completeness = min(completeness, found.completeness)
            self._extend(block, found)
            values, coefficients = rayleigh_ritz(self.basis, self.product)
            rank, reached = self._rank(values)
            wanted = min(max(width, rank), values.size)
            leading = coefficients[:, :wanted]
            modelled, vectors = values[:wanted], self.basis @ leading
            residual = self.product @ leading - vectors * values[:wanted]
            rounding = self._rounding(values)
            doubt = _norm(self.doubt[:, np.newaxis] * leading[:, :rank])  # of silos that were missing
            # New blocks lessen what of the residual lies outside V; inside, it is what was filled in.
            outside = residual - self.basis @ (self.basis.T @ residual)
            stale = found.can_improve and doubt > max(_norm(outside[:, :rank]), rounding)
            size = _norm(residual[:, :rank]) + doubt
            whole = self.basis.shape[1] == d
            done = size <= rounding or (whole and doubt <= rounding)
            change = 0.0 if done and whole else subspace_error(values, size, rank, rounding)
            found.closed.notes["change"] = change
            converged = reached and (done or change <= self.products.tol)
            candidates, negligible = residual, rounding
            if self.settings.local and not whole:
                # Ritz pairs and one correction by the model, as the paper's output is one step more.
                modelled, vectors = leading_pairs(self._model, vectors, _MODEL_PRODUCTS)
                candidates, negligible = vectors, 1e-14
            if converged or self.products.exhausted or (whole and not stale):
                break
            if stale:
                # Too much was filled in: forget all products, and ask about the best vectors again.
                self.basis, self.product = self.basis[:, :0], self.product[:, :0]
                self.doubt, self.heard, block = self.doubt[:0], None, vectors[:, :width]
                continue
            block = self._next_block(candidates, width, negligible)
            self._restart(coefficients, wanted, width)
        return {
            "basis": vectors,
            "values": modelled,
            "vectors": vectors,
            "rank": rank,
            "change": change,
            "converged": converged,
            "completeness": completeness,
            "heard": self.heard or (),
        }

    def _extend(self, block: Array, found: Product) -> None:
        self.basis = np.hstack([self.basis, block])
        self.product = np.hstack([self.product, found.value])
        self.doubt = np.append(self.doubt, np.full(block.shape[1], found.doubt))
        # A compression of one noised moment takes products by the same silos, all of them.
        self.heard = found.heard if self.heard in (None, found.heard) else ()

    def _rank(self, values: Array) -> tuple[int, bool]:
        """Return k, and whether the values found so far are enough for it."""
        rank = self.settings.rank
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

    def _next_block(self, candidates: Array, width: int, negligible: float) -> Array:
        """Return the next question: an orthonormal block outside V."""
        block = complement(candidates, self.basis, width, negligible)
        if not block.shape[1]:  # V is invariant: only chance finds what lies outside
            fresh = self.products.rng.standard_normal((len(self.basis), width))
            block = complement(fresh, self.basis, width, 0.0)
        return block

    def _model(self, block: Array) -> Array:
        """Return the model of A times ``block``: exact on V, the silos' models outside."""
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


def _by_factors(settings: KrylovSettings, sizes: dict[str, int]) -> Exchange:
    """Return the :class:`Solution` from all silos' moments, in one round, however small the gap."""
    closed = yield Ask(body=AskMoment(label="factor"), silos=tuple(sizes), step=1)
    answers: dict[str, MomentPart] = closed.answers
    weights = shares(answers, masses(sizes, settings.study.weights))
    factors = [math.sqrt(weights[name]) * answer.values for name, answer in answers.items()]
    total = sum(weights[name] * answer.total_variance for name, answer in answers.items())
    center = None
    if settings.study.center:
        means = {n: answer.mean for n, answer in answers.items() if answer.mean is not None}
        center = read_only(weighted_sum(means, weights))
        shifts = np.array([math.sqrt(weights[n]) * (mean - center) for n, mean in means.items()])
        factors.append(shifts)
        total += float(np.vdot(shifts, shifts))
    gains = None
    if settings.gains is not None:
        gains = settings.gains(sum(np.einsum("ij,ij->j", each, each) for each in factors))
        factors = [each * gains for each in factors]
        total = sum(float(np.vdot(each, each)) for each in factors)
    nothing = read_only(np.empty((0, 0)))  # the record keeps no wide array
    closed.answers = {name: replace(answer, values=nothing) for name, answer in answers.items()}
    by_share = isinstance(settings.rank, float)
    values, vectors = pairs_of_factors(factors, None if by_share else settings.width)
    rank = rank_for(settings.rank, values, total) if by_share else int(settings.rank)
    closed.notes["change"] = 0.0
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=rank,
        total_variance=total,
        center=center,
        sizes={name: sizes[name] for name in answers},
        n_steps=1,
        change=0.0,
        converged=True,
        completeness=sum(sizes[name] for name in answers) / sum(sizes.values()),
        gains=gains,
    )


def _warm_start(
    products: Products, start: Array, settings: KrylovSettings, shift: float
) -> Generator[Ask, Round, Array]:
    """Return the leading directions of Σ w_i N_i, each N_i from the silo's own leading directions."""
    bases = yield from products.warm(start, _WARM_STEPS, shift)
    first = next(iter(bases.values()))
    leading: Array = leading_pairs(products.model, first, 2 * _MODEL_PRODUCTS)[1]
    width = leading.shape[1]
    trusted = width // 2 if isinstance(settings.rank, float) else settings.rank
    kept = min(_RANDOM_COLUMNS, max(width - trusted, 0))
    if not kept:
        return orth(leading + 1e-3 * start[:, :width])
    return orth(np.hstack([leading[:, : width - kept], start[:, :kept]]))
