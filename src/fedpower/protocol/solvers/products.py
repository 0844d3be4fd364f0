"""Products of a basis: asked for until everyone answered; and the combination of noised ones."""

from collections.abc import Generator
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.linalg import DEPENDENT, Array, orth, product_noise, rayleigh_ritz, sin_theta
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import LocalSteps, frozen, read_only
from fedpower.protocol.solvers.shared import SolverSettings, Steps, shares, weighted_sum

TALL = 8192  # from so many columns on, answers are kept in float32, and the record keeps none
_TRIES = 3  # so often a question is asked in which somebody is silent


class Products(Steps):
    """Asks about a block until everyone answered: silos answer the same question with the same bytes."""

    def __init__(self, settings: SolverSettings, *opened: Any) -> None:
        super().__init__(settings, *opened)
        self.heard: tuple[str, ...] = ()  # who answered the last question
        self._absent: set[str] = set()  # asked in vain: waited for no more until they answer

    def multiply(self, block: Array) -> Generator[Ask, Round, tuple[Array, Round]]:
        """Return the pooled product of an orthonormal block, and the last round of the question."""
        answers, closed = yield from self.answers(block)
        products = {name: answer.product for name, answer in answers.items()}
        return weighted_sum(products, shares(products, self.mass)), closed

    def answers(
        self, block: Array, n_steps: int = 1
    ) -> Generator[Ask, Round, tuple[dict[str, LocalSteps], Round]]:
        """Return the silos' answers about an orthonormal block, and the last round of the question."""
        self.step += n_steps
        answers: dict[str, LocalSteps] = {}
        at_a_time, silos, tries = self.sampler.n_participants, self.sampler.draw(None), 0
        while True:
            enough = None if self.sampler.enough is None else min(self.sampler.enough, len(silos))
            closed = yield from self.ask(block, n_steps, silos=silos, enough=enough)
            answers |= closed.answers
            self._absent = (self._absent | closed.refused.keys()) - closed.answers.keys()
            tries += 1
            late = tuple(name for name in self.sizes if name not in answers and name not in self._absent)
            if not late or self.rounds_left <= 0 or (at_a_time is None and tries == _TRIES):
                break
            silos = tuple(self.sizes) if at_a_time is None else late
            if self.sampler.enough is None:
                silos = silos[:at_a_time]
        if at_a_time is None:
            self._absent |= self.sizes.keys() - answers.keys()
        self.heard = tuple(name for name in self.sizes if name in answers)
        return {name: answers[name] for name in self.heard}, closed


# --- noised products: each question is a combination of all answers before it ------------------------

_RIDGE = 10.0
_CLEAR = 6.0
_DEPENDENT = 1e-9  # below this share of the largest, a direction of a combined answer is rounding


def averaged(products: Products, start: Array, rank: int, n_steps: int) -> Exchange:
    """Return the :class:`Solution` after exactly T noised products."""
    basis, history = frozen(start), Answers(start)
    for step in range(n_steps):
        product, closed = yield from products.multiply(basis)
        if len(basis) >= TALL:  # the record keeps of answers what is asked of them later: no wide arrays
            forgotten = {"product": read_only(np.empty((0, 0))), "basis": None}
            closed.answers = {name: replace(body, **forgotten) for name, body in closed.answers.items()}
        history.add(product)
        before, (basis, left) = basis, history.next_basis(rank)
        vectors = basis @ left
        change = closed.notes["change"] = sin_theta(before, vectors[:, :rank])
        if step == n_steps - 1 or products.rounds_left <= 0:
            break
    # Variance is told by the last product alone, whose noise is newer than its basis; the combination
    # holds noise that bases have taken up.
    return products.solution(
        basis=basis,
        values=rayleigh_ritz(before, product)[0],
        vectors=vectors,
        rank=rank,
        change=change,
        converged=False,
        law=products.law(products.heard),
    )


class Answers:
    """The start and all noised answers, in float32 where they are tall: far below the noise.

    A later question is a combination of answers: its coefficients are kept in place of its array.
    """

    def __init__(self, start: Array) -> None:
        self._kind = np.float32 if len(start) >= TALL else np.float64
        self._parts: list[NDArray[Any]] = [start.astype(self._kind)]
        self._gram = start.T @ start
        self._asked = np.eye(start.shape[1])  # each question's coefficients, a column each

    def add(self, product: Array) -> None:
        cross = np.vstack([part.T @ product for part in self._parts])
        self._latest = product.T @ product
        self._gram = np.block([[self._gram, cross], [cross.T, self._latest]])
        self._asked = np.vstack([self._asked, np.zeros((len(self._latest), self._asked.shape[1]))])
        self._parts.append(product.astype(self._kind))

    def next_basis(self, rank: int) -> tuple[Array, Array]:
        """Return the basis to ask about next, read-only, and what rotates it to Ritz vectors."""
        answers, width = self._parts[1:], len(self._latest)
        inner = self._asked.T @ self._gram
        weights = combination(
            inner @ self._asked, inner[:, width:], self._latest, rank=rank, n_features=len(answers[0])
        )
        parts = np.split(weights, len(answers))
        product = np.asarray(sum(block @ part for block, part in zip(answers, parts, strict=True)))
        basis = orth(product)
        turn = basis.T @ product
        asked = np.vstack([np.zeros((width, width)), weights @ np.linalg.pinv(turn, rcond=_DEPENDENT)])
        self._asked = np.hstack([self._asked, asked])
        return frozen(basis), np.linalg.svd(turn)[0]


def combination(gram: Array, inner: Array, latest: Array, *, rank: int, n_features: int) -> Array:
    """Return the weights of answers that estimate A times the last one's span: no array in it is d long."""
    width = len(latest)
    noise = product_noise(inner) ** 2
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
