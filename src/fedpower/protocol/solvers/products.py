"""Pooled products: of exact answers with what is missing filled in, and the combination of noised ones."""

import math
from collections.abc import Collection, Generator, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.linalg.subspace import TALL, own_memory
from fedpower.linalg.symmetric import DEPENDENT, compressed, eigenvalues, product_noise, product_noise_of
from fedpower.protocol.coordinator import Ask, Round
from fedpower.protocol.messages import frozen, read_only
from fedpower.protocol.solvers.shared import Steps, StepSettings, align, shares, weighted_sum

Array = NDArray[np.float64]

_SINGULAR = 1e-9  # eigenvalues of SᵀA_iS below this share of the largest are rounding


class Evidence:
    """Exact pairs (S, A_iS) of one silo, and the Nyström model of A_i that follows."""

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
            kept = values > _SINGULAR * max(float(values[-1]), 0.0)
            self._factor = product @ (vectors[:, kept] / np.sqrt(values[kept]))
        return self._factor


def _fill_in(
    block: Array,
    known: Mapping[str, Array],
    missing: Collection[str],
    evidence: Mapping[str, Evidence],
    sizes: Mapping[str, int],
) -> dict[str, tuple[Array, float]]:
    """Return what missing silos are taken to say to a block, and how far from it silos usually are."""
    if not missing:
        return {}
    plain = _usual(known, shares(known, sizes))
    beyond = {
        name: value - evidence[name].model(block) for name, value in known.items() if not evidence[name].empty
    }
    rest, spread = _usual(beyond, shares(beyond, sizes)) if beyond else plain
    return {
        name: plain if evidence[name].empty else (evidence[name].model(block) + rest, spread)
        for name in missing
    }


def _usual(matrices: Mapping[str, Array], weights: Mapping[str, float]) -> tuple[Array, float]:
    """Return the weighted mean, and the root mean square distance from it in the spectral norm."""
    mean = weighted_sum(matrices, weights)
    if len(matrices) == 1:
        return mean, float(np.linalg.norm(mean, 2))
    distances = {name: float(np.linalg.norm(each - mean, 2)) for name, each in matrices.items()}
    widened = np.sqrt(len(matrices) / (len(matrices) - 1))
    return mean, float(widened * math.hypot(*(math.sqrt(weights[n]) * each for n, each in distances.items())))


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A pooled product and how good it is."""

    value: Array
    completeness: float
    doubt: float
    can_improve: bool
    closed: Round
    heard: tuple[str, ...] = ()


class Products(Steps):
    """Asks silos for products, and after :meth:`remember` keeps what each of them answered."""

    def __init__(self, settings: StepSettings, *opened: Any) -> None:
        super().__init__(settings, *opened)
        # Until K at a time are everyone; twice after a deadline.
        at_a_time = settings.n_participants
        self.max_reasks = 2 if at_a_time is None else -(-len(self.sizes) // at_a_time)
        self.lookahead = False
        self.evidence: dict[str, Evidence] = {}
        self._absent: set[str] = set()
        self.left_out: set[str] = set()  # silos that were asked and never answered

    def remember(self, n_features: int, *, shift: float, most: int, lookahead: bool) -> None:
        """Keep so many columns of each silo's answers, for models and to fill in what is missing."""
        self.evidence = {name: Evidence(n_features, shift=shift, most=most) for name in self.sizes}
        self.lookahead = lookahead

    @property
    def exhausted(self) -> bool:
        return self.rounds_left <= 0

    def multiply(self, block: Array) -> Generator[Ask, Round, Product]:
        """Return the :class:`Product` of the pooled moment and an orthonormal block W."""
        n_steps = 2 if self.lookahead else 1
        self.step += n_steps
        known: dict[str, Array] = {}
        seconds: dict[str, tuple[Array, Array]] = {}
        silos = self.sampler.draw(None)
        reasks = self.max_reasks
        while True:
            closed = yield from self._ask(block, n_steps, silos)
            for name, answer in closed.answers.items():
                if answer.basis is None:
                    known[name] = answer.product
                else:
                    known[name] = answer.basis @ (answer.product.T @ block)
                    seconds[name] = (answer.basis, answer.product)
            silos = self._late(known)
            if not silos or reasks == 0 or self.exhausted:
                break
            reasks -= 1
        if self.sampler.n_participants is None:  # everyone was asked, and a deadline passed
            self._absent |= self.sizes.keys() - known.keys()
        self.left_out |= self._absent - self.answered
        product = self._pool(block, known, closed)
        closed.notes["completeness"] = product.completeness
        if self.evidence:
            for name, value in known.items():
                self.evidence[name].add(block, value)
            for name, (basis, value) in seconds.items():
                self.evidence[name].add(basis, value)
        return product

    def warm(self, start: Array, n_steps: int, shift: float) -> Generator[Ask, Round, dict[str, Array]]:
        """Return each silo's own leading directions after ``n_steps`` local steps, by name."""
        self.step += n_steps
        closed = yield from self._ask(start, n_steps, self.sampler.draw(None), shift)
        bases: dict[str, Array] = {}
        for name, answer in closed.answers.items():
            basis = start if answer.basis is None else answer.basis
            bases[name] = orth(answer.product)
            self.evidence[name].add(basis, answer.product - shift * basis)
        _, spread = align(bases, bases, reference=next(iter(bases.values())))
        closed.notes["misalignment"] = spread
        return bases

    def model(self, block: Array) -> Array:
        """Return Σ w_i (N_i − c_iI)·block over the silos of which something is known."""
        models = {name: each.model(block) for name, each in self.evidence.items() if not each.empty}
        return weighted_sum(models, shares(models, self.mass))

    def _ask(
        self, block: Array, n_steps: int, silos: tuple[str, ...], shift: float = 0.0
    ) -> Generator[Ask, Round, Round]:
        asked = tuple(name for name in silos if name not in self.left_out)
        enough = None if self.sampler.enough is None else min(self.sampler.enough, len(asked))
        closed = yield from self.ask(block, n_steps, silos=asked, enough=enough, shift=shift)
        self._absent = (self._absent | closed.refused.keys()) - closed.answers.keys()
        return closed

    def _late(self, known: Mapping[str, Array]) -> tuple[str, ...]:
        """Return whom to ask again; nobody where all who can be expected to have answered."""
        late = tuple(name for name in self.sizes if name not in known and name not in self._absent)
        if self.sampler.n_participants is None:
            return tuple(self.sizes) if late else ()
        return late if self.sampler.enough else late[: self.sampler.n_participants]

    def _pool(self, block: Array, known: Mapping[str, Array], closed: Round) -> Product:
        """Return Σ w_i A_iW with what is missing filled in; summed in the order of the study."""
        mass = {name: mass for name, mass in self.mass.items() if name not in self.left_out}
        pool = [name for name in mass if self.evidence or name in known]
        weights = shares(pool, mass)
        missing = [name for name in pool if name not in known]
        filled = _fill_in(block, known, missing, self.evidence, self.mass)
        values = {**known, **{name: value for name, (value, _) in filled.items()}}
        return Product(
            value=weighted_sum({name: values[name] for name in pool}, weights),
            completeness=sum(mass[name] for name in known) / sum(mass.values()),
            doubt=sum(weights[name] * spread for name, (_, spread) in filled.items()),
            can_improve=not filled or any(name not in self._absent for name in filled),
            closed=closed,
            heard=() if missing else tuple(pool),
        )


# --- noised products: a combination of all answers, of which the answers are kept ---------------------

_RIDGE = 10.0
_CLEAR = 6.0
_ROUNDED = 2.0**-12  # part of its noise by which an answer may move to be kept in half the memory
_SINGULAR_WEIGHTS = 1e-9  # below this share of the largest, a direction of a combined answer is rounding
_STRIPE = 1024  # rows that are multiplied together: in float64 they stay in a core's own cache


def averaged(
    products: Products, start: Array, rank: int, n_steps: int
) -> Generator[Ask, Round, dict[str, Any]]:
    """Return what a :class:`Solution` needs after exactly T noised products."""
    # What is no longer asked for is let go at once: each of these arrays is as large as a basis.
    n_features = len(start)
    basis, answers = frozen(start), Answers(start)
    del start
    for step in range(n_steps):
        found = yield from products.multiply(basis)
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
        "change": change,
        "converged": False,
    }


def _forget_products(closed: Round) -> None:
    """Leave of the answers in a round's record what is asked of them later: not their wide arrays."""
    nothing = read_only(np.empty((0, 0)))
    closed.answers = {
        name: replace(body, product=nothing, basis=None) for name, body in closed.answers.items()
    }


class Answers:
    """Noised answers, kept in float32 where their noise allows; each question is a combination of them."""

    def __init__(self, start: Array) -> None:
        self._width = start.shape[1]
        self._kept: list[NDArray[Any]] = [start]
        self._gram = start.T @ start
        self._questions = np.eye(self._width)  # C: a column for each one of W
        self._answers: list[int] = []  # where in what is kept each column of Y is

    def add(self, question: Array, product: Array) -> None:
        """Take the answer to the last question, which is what :meth:`next_basis` gave."""
        most = _ROUNDED * product_noise(question, product)
        # float32 is off by 2⁻²⁵ of a number at most.
        narrow = 2.0**-25 * max(float(product.max()), -float(product.min())) <= most
        self._keep(_narrow(product) if narrow else product)
        if not self._answers and 2.0**-25 * float(np.linalg.norm(product)) <= most:
            # No question is made of the first one: only its inner products with answers are needed.
            self._kept[0] = _narrow(self._kept[0])
        self._answers.extend(range(len(self._gram) - self._width, len(self._gram)))

    def next_basis(self, rank: int) -> tuple[Array, Array]:
        """Return the basis to ask about next, read-only, and what rotates it to Ritz vectors."""
        asked = self._gram @ self._questions
        gram, inner = self._questions.T @ asked, asked[self._answers].T
        latest = self._gram[-self._width :, -self._width :]
        weights = np.zeros((len(self._gram), self._width))
        weights[self._answers] = combination(gram, inner, latest, rank=rank, n_features=len(self._kept[0]))
        product = self._columns(weights)
        basis = orth(product)
        inner = basis.T @ product
        if np.linalg.cond(inner) < 1 / _SINGULAR_WEIGHTS:
            question = weights @ np.linalg.inv(inner)
        else:  # orth has made columns up
            self._keep(basis)
            question = np.eye(len(self._gram))[:, -self._width :]
        self._questions = np.hstack([self._padded(), question])
        return frozen(basis), np.linalg.svd(inner)[0]

    def turned(self) -> Array:
        """Return Z_tᵀZ_{t+1} of the last two questions."""
        before, last = np.split(self._questions[:, -2 * self._width :], 2, axis=1)
        return np.asarray(before.T @ self._gram @ last)

    def _keep(self, block: NDArray[Any]) -> None:
        """Keep a block, and its inner products with all others."""
        self._kept.append(block)
        before = len(self._gram)
        new = np.zeros((before + self._width, self._width))
        for _, rows in self._stripes():
            new += rows.T @ rows[:, before:]
        self._gram = np.block([[self._gram, new[:before]], [new[:before].T, new[before:]]])
        self._questions = self._padded()

    def _padded(self) -> Array:
        """Return the questions with zeros for what was kept since."""
        return np.pad(self._questions, ((0, len(self._gram) - len(self._questions)), (0, 0)))

    def _columns(self, weights: Array) -> Array:
        result: Array = own_memory((len(self._kept[0]), weights.shape[1]))
        for start, rows in self._stripes():
            np.matmul(rows, weights, out=result[start : start + len(rows)])
        return result

    def _stripes(self) -> Iterator[tuple[int, Array]]:
        """Yield some rows at a time of all that is kept, in float64."""
        for start in range(0, len(self._kept[0]), _STRIPE):
            part = [block[start : start + _STRIPE] for block in self._kept]
            yield start, np.concatenate(part, axis=1, dtype=np.float64)


def _narrow(numbers: NDArray[Any]) -> NDArray[np.float32]:
    narrow: NDArray[np.float32] = own_memory(numbers.shape, np.float32)
    narrow[...] = numbers
    return narrow


def combination(gram: Array, inner: Array, latest: Array, *, rank: int, n_features: int) -> Array:
    """Return the weights of answers that estimate A times the last one's span: no array in it is d long."""
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
