"""Rayleigh–Ritz over a growing basis of asked-about blocks: the loop of krylov."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.linalg.subspace import TALL, inverse_triangle_of, is_orthonormal, multiply_in_place, own_memory
from fedpower.linalg.symmetric import (
    DEPENDENT,
    complement,
    compressed,
    eigenvalues,
    leading_pairs,
    pairs_of_factors,
    product_noise,
    product_noise_of,
    rayleigh_ritz,
    rounding_level,
    subspace_error,
)
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskFactor, Factor, frozen, read_only
from fedpower.protocol.solvers.gains import Gains
from fedpower.protocol.solvers.power import Floor, Noise, Shift
from fedpower.protocol.solvers.products import Evidence, Product, Products
from fedpower.protocol.solvers.shared import (
    Participation,
    SiloSampler,
    Solution,
    enrol,
    pooled_columns,
    rank_for,
    shares,
    weighted_sum,
)
from fedpower.protocol.study import Weights, masses
from fedpower.sums.kernel import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

Array = NDArray[np.float64]

_MODEL_PRODUCTS = 12
"""Inner products with the model per round: at the coordinator, over arrays it holds."""


class _Expansion:
    """Grows V block by block until its leading Ritz vectors are the pooled eigenvectors."""

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
                modelled, vectors = leading_pairs(self._model, vectors, _MODEL_PRODUCTS)
                candidates, negligible = vectors, 1e-14
            if converged or self.products.exhausted or (whole and not stale):
                break
            if stale:
                block = self._restarted_block(vectors[:, :width])
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
            "heard": self.heard or (),
        }

    def _extend(self, block: Array, found: Product) -> None:
        self.basis = np.hstack([self.basis, block])
        self.product = np.hstack([self.product, found.value])
        self.doubt = np.append(self.doubt, np.full(block.shape[1], found.doubt))
        # A compression of one noised moment takes products by the same silos, all of them.
        self.heard = found.heard if self.heard in (None, found.heard) else ()

    def _restarted_block(self, vectors: Array) -> Array:
        """Forget products in which too much was filled in; ask about the best vectors anew."""
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


_RIDGE = 10.0
_CLEAR = 6.0
"""See :func:`averaged_product`."""

_ROUNDED = 2.0**-12
"""Of its noise's standard deviation, by how much an answer may be moved to be held in half the room."""

_SINGULAR_WEIGHTS = 1e-9
"""Below this share of the largest, a direction of a combined answer is rounding."""

_MOST_STEPS = 2**15 - 1
"""The largest whole number of 16 bits: of an answer whose numbers are no more than 16 times its noise."""

_NEARLY_DONE, _ORTHONORMAL = 0.5, 1e-14
"""From where one more of Cholesky's factors makes columns orthonormal, and when they are so already."""

STRIPE = 1024
"""Rows of what is held that are multiplied together: in float64 they stay in a core's own cache."""


def averaged(products: Products, start: Array, rank: int, n_steps: int) -> Exchange:
    """Return what a :class:`Solution` needs after exactly T noised products."""
    # What is no longer asked for is let go at once: each of these arrays is as large as a basis.
    n_features = len(start)
    basis, answers = frozen(start), Answers(start)
    del start
    for step in range(n_steps):
        found: Product = yield from products.multiply(basis)
        product, closed, heard = found.value, found.closed, found.heard
        del found
        if n_features >= TALL:
            _forget_products(closed)
        answers.add(basis, product)
        is_last = step == n_steps - 1 or products.exhausted
        inner = compressed(basis, product)
        del product, basis
        basis, left = answers.next_basis(rank)
        # sin θ_k by its cosines: to 1e-8, far below what noise leaves of it.
        cosines = np.linalg.svd(answers.turned() @ left[:, :rank], compute_uv=False)
        change = math.sqrt(max(0.0, 1.0 - float(cosines[-1]) ** 2))
        closed.notes["change"] = change
        if is_last:
            break
    del answers
    # Variance is told by the last product alone, whose noise is newer than its basis; the combination
    # holds noise that bases have taken up.
    return {
        "heard": heard,
        "basis": basis,
        "values": eigenvalues(inner),
        "vectors": np.matmul(basis, left, out=own_memory(basis.shape)),
        "rank": rank,
        "n_steps": products.step,
        "change": change,
        "converged": False,
    }


def _forget_products(closed: Round) -> None:
    """Leave of the answers in a round's record what is asked of them later: not their wide arrays."""
    nothing = read_only(np.empty((0, 0)))
    closed.answers = {
        name: replace(body, product=nothing, basis=None) for name, body in closed.answers.items()
    }


@dataclass(frozen=True, slots=True)
class _Held:
    """Columns as they are held: ``values`` times ``unit``."""

    values: NDArray[Any]
    unit: float = 1.0


class Answers:
    """All questions and their noised answers, of which the answers alone are held."""

    def __init__(self, start: Array) -> None:
        self._width = start.shape[1]
        self._held = [_Held(start)]
        self._gram = start.T @ start
        self._questions = np.eye(self._width)  # C: a column for each one of W
        self._answers: list[int] = []  # where in what is held each column of Y is

    def add(self, question: Array, product: Array) -> None:
        """Take the answer to the last question, which is what :meth:`next_basis` gave."""
        most = _ROUNDED * product_noise(question, product)
        self._hold(_held(product, most))
        if not self._answers and 2.0**-25 * float(np.linalg.norm(product)) <= most:
            # No question is made of the first one, whose inner products with answers are all that is
            # asked of it: in float32 these are moved by no more than that.
            self._held[0] = _Held(_narrow(self._held[0].values))
        self._answers.extend(range(len(self._gram) - self._width, len(self._gram)))

    def next_basis(self, rank: int) -> tuple[Array, Array]:
        """Return the basis to ask about next, read-only, and what rotates it to Ritz vectors."""
        asked = self._gram @ self._questions
        gram, inner = self._questions.T @ asked, asked[self._answers].T
        latest = self._gram[-self._width :, -self._width :]
        weights = np.zeros((len(self._gram), self._width))
        weights[self._answers] = combination(
            gram, inner, latest, rank=rank, n_features=len(self._held[0].values)
        )
        basis, found, inner = self._orth(weights)
        held = np.zeros((len(self._gram), self._questions.shape[1]))
        held[: len(self._questions)] = self._questions
        self._questions = np.hstack([held, found])
        return frozen(basis), np.linalg.svd(inner)[0]

    def turned(self) -> Array:
        """Return Z_tᵀZ_{t+1} of the last two questions."""
        before, last = np.split(self._questions[:, -2 * self._width :], 2, axis=1)
        return np.asarray(before.T @ self._gram @ last)

    def _orth(self, weights: Array) -> tuple[Array, Array, Array]:
        """Return Z, C and R."""
        inverse, _ = inverse_triangle_of(weights.T @ self._gram @ weights)
        if inverse is not None:
            basis = self._columns(weights @ inverse)
            again, least = inverse_triangle_of(basis.T @ basis)
            if again is not None and least > _NEARLY_DONE:
                if not is_orthonormal(basis, _ORTHONORMAL):
                    multiply_in_place(basis, again)
                    inverse = inverse @ again
                return basis, weights @ inverse, np.asarray(np.linalg.inv(inverse), np.float64)
        product = self._columns(weights)
        basis = orth(product)
        inner = basis.T @ product
        if np.linalg.cond(inner) < 1 / _SINGULAR_WEIGHTS:
            return basis, weights @ np.linalg.inv(inner), inner
        self._hold(_Held(basis))  # orth has made columns up
        return basis, np.eye(len(self._gram))[:, -self._width :], inner

    def _hold(self, block: _Held) -> None:
        """Keep a block, and its inner products with all others."""
        self._held.append(block)
        before, width = len(self._gram), self._width
        new = np.zeros((before + width, width))
        for rows in self._stripes():
            new += rows.T @ rows[:, before:]
        new *= self._units() * block.unit
        grown = np.empty((before + width, before + width))
        grown[:before, :before] = self._gram
        grown[:, before:], grown[before:, :before] = new, new[:before].T
        self._gram = grown
        padded = np.zeros((before + width, self._questions.shape[1]))
        padded[:before] = self._questions
        self._questions = padded

    def _columns(self, weights: Array) -> Array:
        """Return what is held times ``weights``."""
        result: Array = own_memory((len(self._held[0].values), weights.shape[1]))
        weights = self._units() * weights
        done = 0
        for rows in self._stripes():
            np.matmul(rows, weights, out=result[done : done + len(rows)])
            done += len(rows)
        return result

    def _units(self) -> Array:
        """Return what the values of each column held count for, as a column."""
        return np.repeat([[block.unit] for block in self._held], self._width, axis=0)

    def _stripes(self) -> Iterator[Array]:
        """Yield the values of all that is held side by side, in float64, some rows at a time."""
        width, d = self._width, len(self._held[0].values)
        room = np.empty((min(STRIPE, d), width * len(self._held)))
        for start in range(0, d, STRIPE):
            rows = room[: min(STRIPE, d - start)]
            for place, block in enumerate(self._held):
                rows[:, place * width : (place + 1) * width] = block.values[start : start + STRIPE]
            yield rows


def _held(product: Array, most: float) -> _Held:
    """Return an answer in as little room as moves none of its numbers by more than ``most``."""
    peak = max(float(product.max()), -float(product.min()))
    unit = peak / _MOST_STEPS
    if 0.0 < 0.5 * unit <= most:
        whole = own_memory(product.shape, np.int16)
        for start in range(0, len(product), STRIPE):
            steps = product[start : start + STRIPE] / unit
            whole[start : start + STRIPE] = np.rint(steps, out=steps)
        return _Held(whole, unit)
    with np.errstate(over="ignore"):
        narrow = _narrow(product)
    moved = max(
        float(np.abs(narrow[start : start + STRIPE] - product[start : start + STRIPE]).max())
        for start in range(0, len(product), STRIPE)
    )
    return _Held(narrow if moved <= most else product)


def _narrow(numbers: Array) -> NDArray[np.float32]:
    """Return the numbers in float32."""
    narrow: NDArray[np.float32] = own_memory(numbers.shape, np.float32)
    narrow[...] = numbers
    return narrow


def averaged_product(blocks: Array, products: Array, rank: int, width: int) -> Array:
    """Return an estimate of A·X from all noisy products, X spanning the last one's columns."""
    latest = products[:, -width:]
    weights = combination(
        blocks.T @ blocks, blocks.T @ products, latest.T @ latest, rank=rank, n_features=len(blocks)
    )
    return np.asarray(products @ weights)


def combination(gram: Array, inner: Array, latest: Array, *, rank: int, n_features: int) -> Array:
    """Return the combination of answers that :func:`averaged_product` is: no array in it is d long."""
    width = len(latest)
    noise = product_noise_of(inner) ** 2
    squares, turn = np.linalg.eigh(latest)
    signal = max(float(squares[::-1][rank - 1]), 0.0)
    reach = np.sqrt(noise) * (np.sqrt(n_features) + np.sqrt(width))
    if signal < (_CLEAR * reach) ** 2:
        return gram[:, -width:]
    ridge = _RIDGE * n_features * noise / signal if signal > 0 else 0.0
    # X = latest·T has orthonormal columns, as many as are no rounding beside the largest.
    clear = squares > DEPENDENT**2 * squares[-1]
    unit = turn[:, clear] / np.sqrt(squares[clear])
    target = inner[:, -width:] @ unit  # WᵀX
    asked, right = np.linalg.eigh(gram)
    kept = asked > DEPENDENT**2 * asked[-1]
    gains = 1.0 / (asked[kept] + ridge)
    found = right[:, kept] @ (gains[:, np.newaxis] * (right[:, kept].T @ target))
    # The ridge shrinks: in the span of X the combination is scaled back to one.
    weights = np.zeros((len(gram), width))
    weights[:, : unit.shape[1]] = found @ np.linalg.pinv(target.T @ found, rcond=1e-3)
    return weights


_FRACTION_BLOCK = 16
"""Columns of a block where the number of components is to be found."""

_RANDOM_COLUMNS = 2
"""Columns of a warm start that stay random."""

_MOST_BYTES = 2**30
"""What the coordinator keeps of all silos' answers, where the choice is left to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KrylovSettings:
    """How to iterate."""

    n_features: int
    rank: int | float
    iteration_rank: int
    tol: float = 1e-9
    max_rounds: int | None = None
    n_steps: int | None = None
    warm: bool = True
    warm_steps: int = 24
    lookahead: bool = True
    max_basis: int | None = None
    n_participants: int | None = None
    participation: Participation = "sampled"
    max_reasks: int | None = None
    center: bool = False
    shift: Shift | None = None
    floor: Floor | None = None
    noise: Noise | None = None
    weights: Weights = "rows"
    gains: Gains | None = None


def krylov(settings: KrylovSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` by block Krylov and Rayleigh–Ritz over the pooled products."""
    sizes = yield from enrol()
    if _factors_fit(settings, sizes):
        return (yield from _by_factors(settings, sizes))
    center, gains, answered = yield from pooled_columns(
        masses(sizes, settings.weights), center=settings.center, gains=settings.gains
    )
    sizes = {name: sizes[name] for name in answered}
    sampler = SiloSampler(
        sizes=masses(sizes, settings.weights),
        rng=rng,
        n_participants=settings.n_participants,
        participation=settings.participation,
    )
    free = settings.n_steps is None
    shift = settings.shift(sizes, 2) if settings.shift is not None else 0.0
    most = _max_basis(settings, len(sizes))
    products = Products(
        sampler,
        center=center,
        gains=gains,
        evidence={name: Evidence(settings.n_features, shift=shift, most=2 * most) for name in sizes}
        if free
        else None,
        lookahead=free and settings.lookahead,
        max_reasks=settings.max_reasks,
        max_rounds=settings.max_rounds,
    )
    start = orth(_drawn(rng, (settings.n_features, _block_width(settings))))
    if settings.n_steps is not None:
        assert not isinstance(settings.rank, float), "a private study has a given rank"
        steps = averaged(products, start, settings.rank, settings.n_steps)
        del start  # what is asked about later takes its room
        outcome = yield from steps
    else:
        if settings.warm and settings.max_rounds != 1:
            start = yield from _warm_start(products, start, settings, shift)
        expansion = _Expansion(
            products,
            rank=settings.rank,
            tol=settings.tol if settings.floor is None else max(settings.tol, settings.floor(sizes)),
            lookahead=settings.lookahead,
            max_basis=None if isinstance(settings.rank, float) else most,
            rng=rng,
        )
        outcome = yield from expansion.run(start)
    heard = outcome.pop("heard") or sizes
    law = None
    if settings.noise is not None:
        norm = 0.0 if center is None else float(np.linalg.norm(center))
        law = settings.noise({name: sizes[name] for name in heard}, norm)
    sizes = {name: size for name, size in sizes.items() if name not in products.left_out}
    return Solution(
        **outcome, total_variance=products.total_variance, center=center, sizes=sizes, law=law, gains=gains
    )


def _drawn(rng: np.random.Generator, shape: tuple[int, int]) -> Array:
    """Return standard normals."""
    numbers: Array = own_memory(shape)
    return rng.standard_normal(out=numbers)


def _factors_fit(settings: KrylovSettings, sizes: dict[str, int]) -> bool:
    """Return whether all silos together have so few rows that their moments are sent, each by its factor."""
    d, total = settings.n_features, sum(sizes.values())
    exact = settings.n_steps is None and settings.noise is None and settings.shift is None
    wide = d > MOST_SQUARE_FEATURES and total <= d and 8 * d * total <= MOST_FACTOR_BYTES
    return exact and wide and settings.lookahead and settings.n_participants is None


def _by_factors(settings: KrylovSettings, sizes: dict[str, int]) -> Exchange:
    """Return the :class:`Solution` from all silos' moments, in one round, however small the gap."""
    closed = yield Ask(body=AskFactor(), silos=tuple(sizes), step=1)
    answers: dict[str, Factor] = closed.answers
    weights = shares(answers, masses(sizes, settings.weights))
    factors = [math.sqrt(weights[name]) * each.factor for name, each in answers.items()]
    total = sum(weights[name] * each.total_variance for name, each in answers.items())
    center = None
    if settings.center:
        means = {n: each.mean for n, each in answers.items() if each.mean is not None}
        center = read_only(weighted_sum(means, weights))
        apart = np.array([math.sqrt(weights[n]) * (mean - center) for n, mean in means.items()])
        factors.append(apart)
        total += float(np.vdot(apart, apart))
    gains = None
    if settings.gains is not None:
        gains = settings.gains(sum(np.einsum("ij,ij->j", each, each) for each in factors))
        factors = [each * gains for each in factors]
        total = sum(float(np.vdot(each, each)) for each in factors)
    nothing = read_only(np.empty((0, 0)))  # the record keeps no wide array
    closed.answers = {name: replace(each, factor=nothing) for name, each in answers.items()}
    by_share = isinstance(settings.rank, float)
    values, vectors = pairs_of_factors(factors, None if by_share else _block_width(settings))
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


def _warm_start(products: Products, start: Array, settings: KrylovSettings, shift: float) -> Exchange:
    """Return the leading directions of Σ w_i N_i, each N_i from the silo's own leading directions."""
    bases: dict[str, Array] = yield from products.warm(start, settings.warm_steps, shift)
    first = next(iter(bases.values()))
    leading: Array = leading_pairs(products.model, first, 2 * _MODEL_PRODUCTS)[1]
    width = leading.shape[1]
    trusted = width // 2 if isinstance(settings.rank, float) else settings.rank
    kept = min(_RANDOM_COLUMNS, max(width - trusted, 0))
    if not kept:
        return orth(leading + 1e-3 * start[:, :width])
    return orth(np.hstack([leading[:, : width - kept], start[:, :kept]]))


def _block_width(settings: KrylovSettings) -> int:
    if isinstance(settings.rank, float):
        return min(settings.n_features, _FRACTION_BLOCK)
    return min(settings.n_features, settings.iteration_rank)


def _max_basis(settings: KrylovSettings, n_silos: int) -> int:
    """Return the bound on V's columns, three blocks at least."""
    width = _block_width(settings)
    asked = settings.max_basis
    if asked is None:
        asked = min(10 * width, _MOST_BYTES // (32 * settings.n_features * n_silos))
    return min(settings.n_features, max(asked, 3 * width))
