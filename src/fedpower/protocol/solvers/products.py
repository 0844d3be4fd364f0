"""What the coordinator knows of one silo's moment, from its answers, and what it can infer."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.solvers.shared import SiloSampler, align, mean_trace, shares, weighted_sum

Array = NDArray[np.float64]

_SINGULAR = 1e-9
"""Eigenvalues of SᵀA_iS below this share of the largest are taken for zero: rounding lives there."""


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


def _summed(matrices: Mapping[str, Array], weights: Mapping[str, float]) -> Array:
    """Return Σ w_i M_i, read-only perhaps: of a single silo what it sent, which may be large."""
    if len(matrices) == 1:
        (matrix,) = matrices.values()
        if not np.signbit(matrix[matrix == 0.0]).any():  # a sum is never -0
            return matrix
    return weighted_sum(matrices, weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """A pooled product and how good it is."""

    value: Array
    completeness: float
    doubt: float
    can_improve: bool
    closed: Round
    heard: tuple[str, ...] = ()


class Products:
    """Asks silos for products and keeps what each of them said."""

    def __init__(
        self,
        sampler: SiloSampler,
        *,
        center: Array | None,
        gains: Array | None = None,
        evidence: Mapping[str, Evidence] | None,
        lookahead: bool,
        max_reasks: int | None,
        max_rounds: int | None,
    ) -> None:
        self.rounds = 0
        self.step = 0
        self.evidence = evidence
        self._sampler = sampler
        self._center, self._gains = center, gains
        self._lookahead = lookahead
        self._max_reasks = self._usual_reasks() if max_reasks is None else max_reasks
        self._max_rounds = max_rounds
        self._traces: dict[str, list[float]] = {}
        self._absent: set[str] = set()
        self._heard_of: set[str] = set()
        self.left_out: set[str] = set()  # silos that were asked and never answered

    @property
    def n_silos(self) -> int:
        """The number of silos."""
        return len(self._sampler.sizes)

    @property
    def exhausted(self) -> bool:
        """Whether no exchange is left."""
        return self._max_rounds is not None and self.rounds >= self._max_rounds

    @property
    def total_variance(self) -> float:
        """Σ w_i tr A_i, or NaN."""
        return mean_trace(self._traces, self._sampler.sizes)

    def multiply(self, block: Array) -> Exchange:
        """Return the :class:`Product` of the pooled moment and an orthonormal block W."""
        n_steps = 2 if self._lookahead else 1
        self.step += n_steps
        known: dict[str, Array] = {}
        seconds: dict[str, tuple[Array, Array]] = {}
        silos: tuple[str, ...] | None = self._sampler.draw(None)
        reasks = self._max_reasks
        while True:
            closed: Round = yield from self._ask(block, n_steps, silos)
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
        if self._sampler.n_participants is None:  # everyone was asked, and a deadline passed
            self._absent |= self._sampler.sizes.keys() - known.keys()
        self.left_out |= self._absent - self._heard_of
        product = self._pool(block, known, closed)
        closed.notes["completeness"] = product.completeness
        if self.evidence is not None:
            for name, value in known.items():
                self.evidence[name].add(block, value)
            for name, (basis, value) in seconds.items():
                self.evidence[name].add(basis, value)
        return product

    def warm(self, start: Array, n_steps: int, shift: float) -> Exchange:
        """Return each silo's own leading directions after ``n_steps`` local steps, by name."""
        self.step += n_steps
        closed: Round = yield from self._ask(start, n_steps, self._sampler.draw(None), shift)
        bases: dict[str, Array] = {}
        for name, answer in closed.answers.items():
            basis = start if answer.basis is None else answer.basis
            bases[name] = orth(answer.product)
            if self.evidence is not None:
                self.evidence[name].add(basis, answer.product - shift * basis)
        _, spread = align(bases, bases, reference=next(iter(bases.values())))
        closed.notes["misalignment"] = spread
        return bases

    def model(self, block: Array) -> Array:
        """Return Σ w_i (N_i − c_iI)·block over the silos of which something is known."""
        models = {
            name: self._known_of(name).model(block)
            for name in self._sampler.sizes
            if not self._known_of(name).empty
        }
        return weighted_sum(models, shares(models, self._sampler.sizes))

    def _ask(self, block: Array, n_steps: int, silos: tuple[str, ...] | None, shift: float = 0.0) -> Exchange:
        everyone = tuple(self._sampler.sizes) if silos is None else silos
        asked = tuple(name for name in everyone if name not in self.left_out)
        enough = self._sampler.enough
        closed: Round = yield Ask(
            body=AskSteps(
                basis=read_only(block),
                n_local_steps=n_steps,
                center=self._center,
                shift=shift,
                gains=self._gains,
            ),
            silos=asked,
            enough=None if enough is None else min(enough, len(asked)),
            step=self.step,
        )
        self.rounds += 1
        answers: dict[str, LocalSteps] = closed.answers
        self._absent = (self._absent | closed.refused.keys()) - answers.keys()
        self._heard_of |= answers.keys()
        for name, answer in answers.items():
            if answer.total_variance is not None:
                self._traces.setdefault(name, []).append(answer.total_variance)
        return closed

    def _late(self, known: Mapping[str, Array]) -> tuple[str, ...]:
        """Return whom to ask again; nobody where all who can be expected to have answered."""
        late = tuple(n for n in self._sampler.sizes if n not in known and n not in self._absent)
        if self._sampler.n_participants is None:
            return tuple(self._sampler.sizes) if late else ()
        return late if self._sampler.enough else late[: self._sampler.n_participants]

    def _pool(self, block: Array, known: Mapping[str, Array], closed: Round) -> Product:
        """Return Σ w_i A_iW with what is missing filled in; summed in the order of the study."""
        pool = [name for name in self._sampler.sizes if name not in self.left_out]
        if self.evidence is None:
            pool = [name for name in pool if name in known]
        weights = shares(pool, self._sampler.sizes)
        missing = [name for name in pool if name not in known]
        filled = _fill_in(block, known, missing, self.evidence or {}, self._sampler.sizes)
        values = {**known, **{name: value for name, (value, _) in filled.items()}}
        rows = {n: s for n, s in self._sampler.sizes.items() if n not in self.left_out}
        return Product(
            value=_summed({name: values[name] for name in pool}, weights),
            completeness=sum(rows[name] for name in known) / sum(rows.values()),
            doubt=sum(weights[name] * spread for name, (_, spread) in filled.items()),
            can_improve=not filled or any(name not in self._absent for name in filled),
            closed=closed,
            heard=() if missing else tuple(pool),
        )

    def _usual_reasks(self) -> int:
        """Return how often to ask again: until K at a time are everyone; twice after a deadline."""
        at_a_time = self._sampler.n_participants
        return 2 if at_a_time is None else -(-self.n_silos // at_a_time)

    def _known_of(self, name: str) -> Evidence:
        assert self.evidence is not None
        return self.evidence[name]
