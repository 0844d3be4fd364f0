"""Block Krylov: Rayleigh–Ritz over a growing basis of blocks that silos multiplied."""

import math

import numpy as np
from msgspec.structs import replace

from fedpower.linalg import (
    Array,
    complement,
    leading_pairs,
    orth,
    pairs_of_factors,
    product_noise,
    rayleigh_ritz,
    rounding_level,
    subspace_error,
)
from fedpower.protocol.coordinator import Ask, Exchange
from fedpower.protocol.messages import AskMoment, LocalSteps, MomentPart, read_only
from fedpower.protocol.pooled import varying
from fedpower.protocol.solvers.products import Products, averaged
from fedpower.protocol.solvers.shared import Solution, SolverSettings, enrol, rank_for, shares, weighted_sum
from fedpower.protocol.study import masses
from fedpower.sums.moment import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

_MODEL_PRODUCTS = 12  # inner products with the model per round: at the coordinator, over arrays it has
_FRACTION_BLOCK = 16  # columns of a block where the number of components is to be found
_MOST_BYTES = 2**30  # what the coordinator keeps of all silos' answers, where the choice is left to it
_SINGULAR = 1e-9  # eigenvalues of SᵀA_iS below this share of the largest are rounding


def solve(settings: SolverSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the :class:`Solution` by block Krylov and Rayleigh–Ritz over the pooled products."""
    sizes, d = (yield from enrol()), settings.study.n_features
    if _factors_fit(settings, sizes):
        return (yield from _by_factors(settings, sizes))
    products = yield from Products.opened(settings, sizes, rng)
    start = orth(rng.standard_normal((d, _width(settings))))
    if settings.n_steps is None:
        return (yield from _Expansion(products, settings).run(start))
    assert not isinstance(settings.rank, float), "a private study has a given rank"
    steps = averaged(products, start, int(settings.rank), settings.n_steps)
    del start  # what is asked about later takes its memory
    return (yield from steps)


def _width(settings: SolverSettings) -> int:
    wanted = _FRACTION_BLOCK if isinstance(settings.rank, float) else settings.study.iteration_rank
    return min(settings.study.n_features, wanted)


def _looks_ahead(settings: SolverSettings) -> bool:
    """Return whether each round asks for a second, local step, from which silos are modelled."""
    asked = settings.solver.lookahead
    return not settings.study.is_private if asked is None else bool(asked)


def _factors_fit(settings: SolverSettings, sizes: dict[str, int]) -> bool:
    """Return whether all silos together have so few rows that each sends its moment by its factor."""
    d, total = settings.study.n_features, sum(sizes.values())
    exact = settings.n_steps is None and not settings.study.is_private and settings.pooled_std is None
    wide = d > MOST_SQUARE_FEATURES and total <= d and 8 * d * total <= MOST_FACTOR_BYTES
    return exact and wide and _looks_ahead(settings) and settings.solver.n_participants is None


class _Expansion:
    """Grows V block by block until its leading Ritz vectors are the pooled eigenvectors."""

    def __init__(self, products: Products, settings: SolverSettings) -> None:
        self.products, self.settings, self.local = products, settings, _looks_ahead(settings)
        self.shift = products.shift(2)
        d, width, m = settings.study.n_features, _width(settings), len(products.sizes)
        self.most = min(d, max(min(10 * width, _MOST_BYTES // (32 * d * m)), 3 * width))  # columns of V
        self.known = {name: [np.empty((d, 0)), np.empty((d, 0))] for name in products.sizes}
        self.factors: dict[str, Array] = {}
        self.basis = self.product = np.empty((d, 0))

    def run(self, block: Array) -> Exchange:
        """Return the :class:`Solution`, from a first block of orthonormal columns."""
        (d, width), products, local, vectors = block.shape, self.products, self.local, block
        while True:
            answers, closed = yield from products.answers(block, 2 if local else 1)
            missing = products.sizes.keys() - answers.keys()
            begun = self.basis.shape[1] > 0
            if missing and begun and products.rounds_left <= 0:
                break
            for name in missing:  # it is asked nothing more
                del products.sizes[name], products.mass[name]
            if missing and begun:  # V's products are sums over the same silos: they are forgotten
                self.basis = self.product = np.empty((d, 0))
                block = vectors[:, :width]
                continue
            self._extend(block, answers)
            values, coefficients = rayleigh_ritz(self.basis, self.product)
            rank, reached = self._rank(values)
            wanted = min(max(width, rank), values.size)
            leading = coefficients[:, :wanted]
            modelled, vectors = values[:wanted], self.basis @ leading
            residual = self.product @ leading - vectors * values[:wanted]
            rounding = self._rounding(values)
            size, whole = float(np.linalg.norm(residual[:, :rank], 2)), self.basis.shape[1] == d
            change = 0.0 if whole else subspace_error(values, size, rank, rounding)
            closed.notes["change"] = change
            converged = reached and (whole or size <= rounding or change <= products.tol)
            candidates, negligible = residual, rounding
            if local and not whole:
                # Ritz pairs and one correction by the model, as the paper's output is one step more.
                modelled, vectors = leading_pairs(self._model, vectors, _MODEL_PRODUCTS)
                candidates, negligible = vectors, 1e-14
            if converged or products.rounds_left <= 0 or whole:
                break
            block = self._next_block(candidates, width, negligible)
            self._restart(coefficients, wanted, width)
        return products.solution(
            basis=vectors,
            values=modelled,
            vectors=vectors,
            rank=rank,
            change=change,
            converged=converged,
            law=products.law(products.sizes),
        )

    def _extend(self, block: Array, answers: dict[str, LocalSteps]) -> None:
        products = {}
        for name, answer in answers.items():
            second = [] if answer.basis is None else [(answer.basis, answer.product)]
            products[name] = answer.product
            for basis, product in second:  # A_iW lies in the span of the basis that it gave
                products[name] = basis @ (product.T @ block)
            if self.local:
                self._learn(name, (block, products[name]), *second)
        self.basis = np.hstack([self.basis, block])
        self.product = np.hstack([self.product, weighted_sum(products, shares(products, self.products.mass))])

    def _rank(self, values: Array) -> tuple[int, bool]:
        """Return k, and whether the values found so far are enough for it."""
        rank = self.settings.rank
        if isinstance(rank, float):
            rank = rank_for(rank, values, self.products.total_variance)
        rank = int(rank)
        return min(rank, values.size), rank <= values.size

    def _rounding(self, values: Array) -> float:
        """Return the size of a residual that is rounding, be it of sums or of messages."""
        d, columns = self.basis.shape
        noise = product_noise(self.basis.T @ self.product)
        return max(rounding_level(values, d), 4 * noise * (math.sqrt(d) + math.sqrt(columns)))

    def _next_block(self, candidates: Array, width: int, negligible: float) -> Array:
        """Return the next question: an orthonormal block outside V."""
        block = complement(candidates, self.basis, width, negligible)
        if not block.shape[1]:  # V is invariant: only chance finds what lies outside
            fresh = self.products.rng.standard_normal((len(self.basis), width))
            block = complement(fresh, self.basis, width, 0.0)
        return block

    def _restart(self, coefficients: Array, wanted: int, width: int) -> None:
        """Keep the leading Ritz vectors where V would grow beyond its bound [thick restart]."""
        if isinstance(self.settings.rank, float) or self.basis.shape[1] + width <= self.most:
            return
        kept = coefficients[:, : max(wanted, self.most // 2)]
        self.basis, self.product = self.basis @ kept, self.product @ kept

    # --- models of the silos: from pairs (S, A_iS) follows N_i = FFᵀ, which is A_i on S [Nyström] ---------

    def _learn(self, name: str, *pairs: tuple[Array, Array]) -> None:
        """Take pairs (S, A_iS) of one silo and model it by them; the oldest columns are forgotten."""
        before, after = self.known[name], [np.hstack(blocks) for blocks in zip(*pairs, strict=True)]
        self.known[name] = [np.hstack(both)[:, -2 * self.most :] for both in zip(before, after, strict=True)]
        basis, product = self.known[name]
        product = product + self.shift * basis
        inner = basis.T @ product
        values, vectors = np.linalg.eigh((inner + inner.T) / 2)
        kept = values > _SINGULAR * max(float(values[-1]), 0.0)
        self.factors[name] = product @ (vectors[:, kept] / np.sqrt(values[kept]))

    def _model(self, block: Array) -> Array:
        """Return the model of A times ``block``: exact on V, the silos' models outside."""
        inside = self.basis.T @ block
        outside = block - self.basis @ inside
        factors = {name: self.factors[name] for name in self.products.sizes}
        models = {name: factor @ (factor.T @ outside) for name, factor in factors.items()}
        modelled = weighted_sum(models, shares(models, self.products.mass)) - self.shift * outside
        modelled -= self.basis @ (self.basis.T @ modelled)
        across = self.product.T @ outside
        return np.asarray(self.product @ inside + self.basis @ across + modelled)


def _by_factors(settings: SolverSettings, sizes: dict[str, int]) -> Exchange:
    """Return the :class:`Solution` from all silos' moments, in one round, however small the gap."""
    closed = yield Ask(body=AskMoment(label="factor"), silos=tuple(sizes), step=1)
    answers: dict[str, MomentPart] = closed.answers
    sizes = {name: sizes[name] for name in answers}
    weights = shares(sizes, masses(sizes, settings.study.weights))
    factors = [math.sqrt(weights[name]) * answer.values for name, answer in answers.items()]
    total = sum(weights[name] * answer.total_variance for name, answer in answers.items())
    center = None
    if settings.study.center:
        means = {n: answer.mean for n, answer in answers.items() if answer.mean is not None}
        center = read_only(weighted_sum(means, weights))
        shifts = np.array([math.sqrt(weights[n]) * (mean - center) for n, mean in means.items()])
        factors.append(shifts)
        total += float(np.vdot(shifts, shifts))
    gains, gains_of = None, settings.gains
    if gains_of is not None:
        variances = sum(np.einsum("ij,ij->j", each, each) for each in factors)
        gains = gains_of(varying(variances, center, sum(sizes.values())))
        factors = [each * gains for each in factors]
        total = sum(float(np.vdot(each, each)) for each in factors)
    nothing = read_only(np.empty((0, 0)))  # the record keeps no wide array
    closed.answers = {name: replace(answer, values=nothing) for name, answer in answers.items()}
    asked = settings.rank
    by_share = isinstance(asked, float)
    values, vectors = pairs_of_factors(factors, None if by_share else _width(settings))
    rank = rank_for(float(asked), values, total) if by_share else int(asked)
    closed.notes["change"] = 0.0
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=rank,
        total_variance=total,
        center=center,
        sizes=sizes,
        gains=gains,
    )
