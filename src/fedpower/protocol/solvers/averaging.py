"""Noised products: a combination of all answers, of which the answers alone are kept."""

import math
from collections.abc import Generator, Iterator
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.linalg.subspace import TALL, own_memory
from fedpower.linalg.symmetric import DEPENDENT, compressed, eigenvalues, product_noise, product_noise_of
from fedpower.protocol.coordinator import Ask, Round
from fedpower.protocol.messages import frozen, read_only
from fedpower.protocol.solvers.products import Products

Array = NDArray[np.float64]

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
