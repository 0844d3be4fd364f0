"""One repetition of a model: every curve on the same rows from the same start."""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass, replace
from itertools import groupby

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedpower.engines.inprocess import available_cores, blas_threads
from fedpower.linalg import sin_theta
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol.coordinator import Answers, Coordinator
from fedpower.protocol.silo import Silo
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.study import Study
from paper.curves import Curve, terms_of
from paper.driven import (
    KeptMoment,
    Ledgers,
    RememberingSilo,
    drive_silos,
    keep,
    ledgers_for,
    pooled_moment,
    silos_of,
)
from paper.settings import DELTA, N_STEPS, ModelName, Settings, derived_seed

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Point:
    """Where a run stands after a round.

    Attributes
    ----------
    round
        Communications so far.
    bytes_up
        What all silos sent so far.
    error
        sin θ_k between the basis and the leading eigenspace of the pooled rows [FP eq. 2.6].
    misalignment
        ρ_t of the round, NaN where no bases were aligned [FP eq. 3.3].
    """

    round: int
    bytes_up: int
    error: float
    misalignment: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A curve's points in one repetition, and the sizes that came out for it."""

    curve: Curve
    n_rows: int
    n_silos: int
    points: tuple[Point, ...]


def run_repetition(
    settings: Settings,
    model: ModelName,
    repetition: int,
    curves: Sequence[Curve],
    *,
    on_curves: Callable[[int], None] | None = None,
    n_jobs: int | None = None,
) -> list[Run]:
    """Return the runs of ``curves``, in their order.

    Groups of curves run in parallel, each with linear algebra on one thread and noise of its own, so
    that the outcome depends on neither ``n_jobs`` nor timing.

    Parameters
    ----------
    settings
        Seed and sizes.
    model, repetition
        Which rows.
    curves
        All of this model.
    on_curves
        Called with the number of curves after each group.
    n_jobs
        How many groups run at once; the number of cores unless given.
    """
    groups = [
        list(group) for _, group in groupby(sorted(curves, key=_release_name), key=lambda each: each.release)
    ]
    groups.sort(key=len, reverse=True)  # the longest first, so that cores end together
    with blas_threads(1):
        silos = keep(settings.model(model, repetition), n_jobs=n_jobs)
        repeated = _Repetition(settings, model, repetition, silos)
        pool = ThreadPoolExecutor(max_workers=n_jobs or available_cores())
        try:
            made: dict[Curve, Run] = {}
            for done in as_completed([pool.submit(repeated.run_group, group) for group in groups]):
                made.update(done.result())
                if on_curves is not None:
                    on_curves(len(done.result()))
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
    return [made[curve] for curve in curves]


def _release_name(curve: Curve) -> str:
    return repr(curve.release)


class _Repetition:
    def __init__(
        self, settings: Settings, model: ModelName, repetition: int, silos: dict[str, KeptMoment]
    ) -> None:
        self.settings = settings
        self.size = settings.sizes[model]
        self.name = f"{settings.seed}/{repetition}/{model}"
        self.silos = silos
        self.truth = self._truth(silos)

    def run_group(self, group: Sequence[Curve]) -> dict[Curve, Run]:
        """Return the runs of curves that share a release, or of a single one."""
        first = group[0]
        silos, truth = self.silos, self.truth
        if first.silo_share != 1:
            count = round(first.silo_share * len(silos))
            silos = dict(list(silos.items())[:count])
            truth = self._truth(silos)
        if first.copies != 1:
            silos = {name: silo.with_copies(first.copies) for name, silo in silos.items()}
        if math.isinf(first.epsilon):
            return self._run_on(silos, truth, {}, group)
        with ledgers_for(silos, epsilon=first.epsilon, delta=DELTA) as ledgers:
            return self._run_on(silos, truth, ledgers, group)

    def _run_on(
        self, moments: dict[str, KeptMoment], truth: Array, ledgers: Ledgers, group: Sequence[Curve]
    ) -> dict[Curve, Run]:
        sizes = {name: moment.n_rows for name, moment in moments.items()}
        released = "/".join(str(part) for part in group[0].release)

        def noise(silo: str) -> SeededNoiseForExperiments:
            return SeededNoiseForExperiments(derived_seed(self.name, released, silo))

        asked: dict[Study, dict[str, Silo]] = {}
        runs = {}
        for curve in group:
            study, settings = terms_of(curve, self.size, sizes)
            if study not in asked:  # curves of the same study ask the same silos
                asked[study] = silos_of(moments, study, ledgers=ledgers, noise=noise)
            points = self._points(curve, study, settings, asked[study], truth)
            runs[curve] = Run(
                curve=curve, n_rows=sum(sizes.values()), n_silos=len(sizes), points=tuple(points)
            )
        return runs

    def _points(
        self, curve: Curve, study: Study, settings: SolverSettings, silos: dict[str, Silo], truth: Array
    ) -> Iterator[Point]:
        """Yield a point a round.

        The basis after a round is what the next one asks about, and after the last what comes out.
        Where krylov extrapolates from all rounds it is what comes out if that round is the last: it is
        run once for every number of rounds, on the same releases.
        """
        if settings.method == "krylov" and settings.n_steps is None:
            remembered = {name: RememberingSilo(silo) for name, silo in silos.items()}
            for count in range(1, N_STEPS + 1):
                option = replace(settings.solver, max_rounds=count)
                finished = self._drive(study, replace(settings, solver=option), remembered)[0]
                rounds = [each for each in finished.history if each.kind != "enrol"]
                if len(rounds) < count:
                    return
                yield _point(finished, count, sin_theta(finished.outcome.basis, truth))
            return
        finished, bases = self._drive(study, settings, silos)
        last = finished.outcome.basis
        if curve.solver == "default":  # whose r is larger than the paper's: it is held to its k
            last = finished.outcome.vectors[:, : self.size.rank]
        for count, basis in enumerate([*bases[1:], last], start=1):
            yield _point(finished, count, sin_theta(basis, truth))

    def _drive(
        self, study: Study, settings: SolverSettings, silos: Mapping[str, Answers]
    ) -> tuple[Coordinator, list[Array]]:
        rng = np.random.default_rng(derived_seed(self.name, "start"))
        return drive_silos(start(settings, rng), silos, study=study)

    def _truth(self, silos: dict[str, KeptMoment]) -> Array:
        pooled = pooled_moment(silos)
        d = len(pooled)
        leading = [d - self.size.rank, d - 1]
        return np.asarray(scipy.linalg.eigh(pooled, subset_by_index=leading)[1])


def _point(finished: Coordinator, count: int, error: float) -> Point:
    rounds = [each for each in finished.history if each.kind != "enrol"][:count]
    return Point(
        round=count,
        bytes_up=sum(each.bytes_up for each in rounds),
        error=error,
        misalignment=rounds[-1].notes.get("misalignment", math.nan),
    )
