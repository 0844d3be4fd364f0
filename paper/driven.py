"""Runs of the protocol that are looked into: real silos, and the basis asked about in each round."""

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from copy import copy
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from fedpower.engines.inprocess import available_cores, blas_threads, run_in_process
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.coordinator import Answers, Coordinator, Exchange
from fedpower.protocol.messages import AskSteps, Message, encode
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.study import Study
from fedpower.rows.opening import open_source
from fedpower.rows.source import UNWATCHED, RowSource
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import ExactMoments, Words
from fedpower.sums.local import KernelChoice, LocalMoment
from fedpower.sums.moment import Moments
from paper.models import Model

Array = NDArray[np.float64]
Ledgers = Mapping[str, Ledger]


@contextmanager
def ledgers_for(silos: Iterable[str], *, epsilon: float, delta: float) -> Iterator[Ledgers]:
    """Give a ledger in memory to each silo, with a cap of (ε, δ)."""
    with ExitStack() as stack:
        yield {name: stack.enter_context(Ledger.in_memory(epsilon, delta, silo=name)) for name in silos}


def silos_of(
    moments: Mapping[str, Any], study: Study, *, ledgers: Ledgers, noise: Callable[[str], NoiseSource]
) -> dict[str, Silo]:
    """Return the silos of ``study`` over ``covariances``."""
    # No version: these ledgers live no longer than these rows.
    return {
        name: assemble(
            name,
            moment,
            study,
            ledger=ledgers[name] if study.is_private else None,
            source=noise(name) if study.is_private else None,
        )
        for name, moment in moments.items()
    }


class RememberingSilo:
    """A silo that is asked the same questions in run after run and works each answer out once."""

    def __init__(self, silo: Silo) -> None:
        self._silo = silo
        self._answers: dict[bytes, Message] = {}

    def answer(self, message: Message) -> Message:
        """Return the silo's answer to ``message``."""
        question = encode(replace(message, run="", round=0))
        if question not in self._answers:
            self._answers[question] = self._silo.answer(message)
        return replace(self._answers[question], run=message.run, round=message.round)


class _NotingSilo:
    """A silo of which is noted which basis it was asked about in each round."""

    def __init__(self, silo: Answers, bases: dict[int, Array]) -> None:
        self._silo, self._bases = silo, bases

    def answer(self, message: Message) -> Message:
        """Return the silo's answer to ``message``."""
        if isinstance(message.body, AskSteps):
            self._bases[message.round] = message.body.basis
        return self._silo.answer(message)


def drive_silos(
    solver: Exchange, silos: Mapping[str, Answers], *, study: Study
) -> tuple[Coordinator, list[Array]]:
    """Return the finished coordinator and the basis asked about in each round of steps."""
    coordinator = Coordinator(solver, list(silos), study=study, run="experiment")
    bases: dict[int, Array] = {}
    run_in_process(coordinator, {name: _NotingSilo(silo, bases) for name, silo in silos.items()}, n_jobs=1)
    return coordinator, list(bases.values())


TREATMENT = RowTreatment(row_norm=1.0)
"""Rows of the paper's models have norm 1 already; the bound is what a private study must state."""


class KeptMoment:
    """A silo's covariance, made once and used by every run; it stands in for the rows."""

    def __init__(self, moments: Moments, exact: Callable[[], ExactMoments], *, copies: int = 1) -> None:
        self.summary = moments
        self._exact = exact
        self._sums: ExactMoments | None = None
        self._whole = moments.about(None)
        self.n_rows = moments.n_rows * copies
        self.source = open_source(self._whole, name="covariance")  # identifies it to a ledger
        self.treatment = TREATMENT
        self.watch = UNWATCHED
        self.choice = KernelChoice(reason="the covariance is made once for all runs")
        self.device = None

    def with_copies(self, copies: int) -> "KeptMoment":
        """Return the same silo, holding each of its rows ``copies`` times."""
        other = copy(self)
        other.n_rows = self.summary.n_rows * copies
        other._exact = self._once
        other._sums = None
        return other

    def treated(self, treatment: RowTreatment | None = None) -> "KeptMoment":
        """Return this covariance."""
        return self

    def moment(self, center: Array | None = None) -> Array:
        """Return A_i."""
        return self._whole if center is None else self.summary.about(center)

    def product(self, basis: Array, center: Array | None = None) -> Array:
        """Return A_i Z."""
        if center is None:
            return np.asarray(self._whole @ basis)
        return self.summary.product(basis, center)

    def factor(self, center: Array | None = None) -> Array:
        """Return F with FᵀF = A_i."""
        values, vectors = np.linalg.eigh(self.moment(center))
        return np.asarray(np.sqrt(np.maximum(values, 0.0))[:, np.newaxis] * vectors.T)

    def sums(self) -> ExactMoments:
        """Return the sums over the rows in whole numbers, made on first use."""
        if self._sums is None:
            once = self._once()
            copies, squares = self.n_rows // once.n_rows, once.squares.two()
            self._sums = dataclasses.replace(
                once,
                n_rows=self.n_rows,
                total=once.total * copies,
                squares=Words(low=squares.low * copies, high=squares.high * copies).two(),
                n_clipped=once.n_clipped * copies,
            )
        return self._sums

    def _once(self) -> ExactMoments:
        found = self._exact()
        self._exact = lambda: found
        return found


def keep(model: Model, *, n_jobs: int | None = None) -> dict[str, KeptMoment]:
    """Return each silo's covariance, from one pass over its rows; a few blocks are held at a time."""
    workers = n_jobs or available_cores()
    with blas_threads(1), ThreadPoolExecutor(max_workers=workers) as pool:
        made = pool.map(lambda silo: kept(model.source(silo), TREATMENT), range(model.n_silos))
        return {f"silo-{place:02}": moment for place, moment in enumerate(made, start=1)}


def kept(source: RowSource, treatment: RowTreatment) -> KeptMoment:
    """Return the covariance of a source's rows."""
    return KeptMoment(
        LocalMoment(source, treatment).summary, LocalMoment(source, treatment, on_lattice=True).sums
    )


def pooled_moment(silos: dict[str, KeptMoment]) -> Array:
    """Return A = Σ w_i A_i, w_i = s_i/n."""
    n_rows = sum(silo.n_rows for silo in silos.values())
    first = next(iter(silos.values()))
    total = np.zeros_like(first.moment())
    for silo in silos.values():
        total += silo.n_rows / n_rows * silo.moment()
    return total
