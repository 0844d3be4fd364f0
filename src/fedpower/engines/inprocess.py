"""A whole federation in one process: silos over local sources; and when a round ends, for every engine."""

import os
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any, Protocol, TypeVar

import numpy as np

from fedpower.exceptions import InputError
from fedpower.linalg import blas
from fedpower.privacy.ledger import DEFAULT_VERSION, DataVersion, Ledger, check_label, columns_digest
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.coordinator import Answers, Arrived, Coordinator, Exchange, Round
from fedpower.protocol.messages import Message
from fedpower.protocol.outcome import REHEARSED, Outcome, conclude
from fedpower.protocol.secure import Identity
from fedpower.protocol.silo import PrivateReleases, assemble
from fedpower.protocol.solvers import SolverSettings, start
from fedpower.protocol.solvers.preparation import find_code_book
from fedpower.protocol.solvers.sums import summed
from fedpower.protocol.study import MOST_ROWS, Study, sums_moment
from fedpower.rows.fingerprint import fingerprint, reading_of
from fedpower.rows.networks import network_of
from fedpower.rows.source import RowSource, Watch
from fedpower.rules.codebook import CodeBook
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.local import LocalMoment, local_moment
from fedpower.sums.reduce import shares_blocks
from fedpower.sums.survey import Rows, Survey

Paths = Mapping[str, str | os.PathLike[str]]
# What the silos' operators call their rows: one name for all, or a name for each silo
Versions = str | Mapping[str, str]
Moments = Mapping[str, Rows]
_Rows = TypeVar("_Rows", LocalMoment, Survey)
# Called with a silo, the rows of a block just read, and how many the silo has, or None if not known
OnRows = Callable[[str, int, int | None], None]
OnClipped = Callable[[dict[str, tuple[int, int]]], None]
_USUAL_STEPS = 20  # how often rows are taken to be multiplied where a run ends when it has converged


@dataclass(frozen=True)
class Run:
    """How a fit runs: what it is charged to, which keys it uses, what is called; see `FedPCA.fit_silos`."""

    ledgers: Paths | None = None
    data_version: Versions | None = None
    data_set: str | None = None
    identities: Paths | None = None
    on_round: Callable[[Round], None] | None = None
    on_rows: OnRows | None = None
    on_clipped: OnClipped | None = None


def survey_silos(sources: Mapping[str, RowSource], **how: Any) -> dict[str, Survey]:
    """Return each silo's rows ready to be prepared: counted, and read once, so that bad data are refused."""
    return _read(sources, Survey, **how)


def read_silos(
    study: Study,
    sources: Mapping[str, RowSource],
    treatment: RowTreatment,
    *,
    steps: int | None = None,
    **how: Any,
) -> dict[str, LocalMoment]:
    """Return each silo's rows read as the study's terms ask for, in parallel, ready for use."""
    protected = f"edges of weight {study.edge_weight:g} at most" if study.network == "edge" else "rows"
    for source in sources.values():
        network = network_of(source)
        given = "rows" if network is None else f"edges of weight {network.edge_weight:g} at most"
        if given != protected:
            raise InputError(
                f"{source.name} must be read as {protected}, which the study protects, got {given}"
            )
    private, on_lattice = study.is_private, sums_moment(study)
    kind: dict[str, Any] = {
        "rank": study.iteration_rank,
        "steps": steps or study.n_steps or _USUAL_STEPS,
        "on_lattice": on_lattice,
        "rereads": study.noise == "clipped" or bool(study.scores),
    }

    def make(source: RowSource, **rows: Any) -> LocalMoment:
        density = 1.0 if private else source.density
        return local_moment(source, treatment, density=density, **kind, **rows)

    moments = _read(sources, make, **how)
    # The rounding of noised products is accounted for so many rows a person.
    for moment in moments.values() if private and not on_lattice else ():
        if moment.n_read > MOST_ROWS * moment.n_rows:
            must = f"{moment.source.name} must have at most {MOST_ROWS} rows per person on average"
            raise InputError(f"{must} for noised products, got more; use noise='covariance'")
    return moments


def _read(
    sources: Mapping[str, RowSource],
    make: Callable[..., _Rows],
    *,
    n_jobs: int | None = None,
    device: str | None = None,
    on_rows: OnRows | None = None,
    fingerprinted: bool = False,
) -> dict[str, _Rows]:
    """Return what is made of each silo's rows, read once, in parallel; a problem in one stops the others."""
    at_once, threads = share_cores(len(sources), n_jobs)
    how = {
        "device": None if device is None else open_device(device),
        "workers": threads,
        "fingerprinted": fingerprinted,
    }

    def watch(name: str, source: RowSource) -> Watch:
        return Watch(None if on_rows is None else lambda count: on_rows(name, count, source.n_rows))

    made = {name: make(source, watch=watch(name, source), **how) for name, source in sources.items()}
    # Where threads have blocks of their own, BLAS needs no others.
    in_blocks = all(shares_blocks(source.n_features) for source in sources.values())
    with blas_threads(1 if in_blocks else threads), _pool(at_once) as pool:
        try:
            list(pool.map(lambda rows: rows.prepare(), made.values()))
        except BaseException:
            _stop(made)
            raise
    return made


def check_ledgers(silos: list[str], study: Study, how: Run) -> None:
    """Refuse ledgers that are not one for each silo and its own, or cannot be opened."""
    _versions(silos, how.data_version)
    if how.data_set is not None:
        check_label("data_set", how.data_set)
    with ExitStack() as stack:
        _open_ledgers(silos, study, how, stack)


def federate(
    moments: Moments, *, settings: SolverSettings, rng: np.random.Generator, **options: Any
) -> Outcome:
    coordinator = _run(moments, settings.study, lambda run: start(settings, rng, run), **options)
    outcome = conclude(coordinator, settings)
    notes = (*outcome.privacy.notes, *[REHEARSED] * (settings.study.is_secure))
    kernels = {name: moment.choice.reason for name, moment in moments.items()}
    return replace(outcome, kernels=kernels, privacy=replace(outcome.privacy, notes=notes))


def prepare_silos(surveys: Mapping[str, Survey], *, study: Study, **options: Any) -> CodeBook:
    """Return the code book of the silos' rows: the tallies of ``study``, without its moment."""
    book = _run(surveys, study, lambda run: summed(study, find_code_book, run=run), **options).outcome
    assert isinstance(book, CodeBook), "preparation ends with a code book"
    return book


def _run(
    moments: Moments,
    study: Study,
    solve: Callable[[str], Exchange],
    *,
    how: Run | None = None,
    noise: NoiseSource | None = None,
    identities: Mapping[str, Identity] | None = None,
    min_silos: int | None = None,
    **pace: Any,
) -> Coordinator:
    run, how = secrets.token_hex(8), how or Run()
    with ExitStack() as stack:
        opened: dict[str, Ledger] = {}
        if study.is_private:
            _check_bounded(moments, study)
            opened = _open_ledgers(list(moments), study, how, stack)
        # A ledger in memory lives as long as this fit, whose rows do not change.
        versions = _versions(list(moments), how.data_version) if opened and how.ledgers else {}
        silos = {
            name: assemble(
                name,
                moment,
                study,
                ledger=opened.get(name),
                identity=(identities or {}).get(name),
                source=noise,
                data=declared(name, moment, study, versions[name], data_set=how.data_set)
                if versions
                else None,
            )
            for name, moment in moments.items()
        }
        # A study that one silo cannot afford, or not go on with, must not cost the others.
        peers: list[PrivateReleases] = []
        for silo in silos.values():
            silo.releases.check_affordable()
            if isinstance(silo.releases, PrivateReleases) and how.ledgers and not study.is_secure:
                peers.append(silo.releases)
                silo.releases.peers = peers
        coordinator = Coordinator(
            solve(run), list(silos), study=study, run=run, min_silos=min_silos, on_round=how.on_round
        )
        run_in_process(coordinator, silos, stop=lambda: _stop(moments), **pace)
    return coordinator


def declared(name: str, moment: Rows, study: Study, version: str, **more: Any) -> DataVersion:
    return DataVersion(
        silo=name,
        version=version,
        columns=columns_digest(study.columns, study.n_features),
        fingerprint=fingerprint(moment.source, moment.watch),
        reading=reading_of(moment.source),
        **more,
    )


def _stop(moments: Moments) -> None:
    for moment in moments.values():
        moment.watch.stop()


def _versions(silos: list[str], declared: Versions | None) -> dict[str, str]:
    if not isinstance(declared, Mapping):
        declared = dict.fromkeys(silos, DEFAULT_VERSION if declared is None else declared)
    for name, version in declared.items():
        if name not in silos:
            raise InputError(
                f"data_version must be of the silos {', '.join(silos)}, got a version for {name!r}"
            )
        check_label("data_version", version)
    return {name: declared.get(name, DEFAULT_VERSION) for name in silos}


def _open_ledgers(silos: list[str], study: Study, how: Run, stack: ExitStack) -> dict[str, Ledger]:
    paths = how.ledgers or {}
    if not isinstance(paths, Mapping):
        raise InputError(f"ledgers must be a mapping from silo names to files, got {type(paths).__name__}")
    for name in paths:
        if name not in silos:
            raise InputError(f"ledgers must be of the silos {', '.join(silos)}, got a ledger for {name!r}")
    opened = {}
    for name in silos:
        if paths and name not in paths:
            raise InputError(f"every silo must have a ledger or none, got none for {name!r}")
        ledger = (
            Ledger.open(paths[name]) if paths else Ledger.in_memory(study.epsilon, study.delta, silo=name)
        )
        opened[name] = stack.enter_context(ledger)
        ledger.check_owner(name, how.data_set)
    return opened


def _check_bounded(moments: Moments, study: Study) -> None:
    """Refuse rows that are not bounded as the study says, in float64: the noise is made for norm 1."""
    if study.preparation:  # rows are bounded by what the run finds
        return
    for name, moment in moments.items():
        rule = moment.treatment
        if not rule.bounded or rule.digest() != study.treatment:
            must = f"the rows of silo {name!r} must have the treatment of the private study"
            raise InputError(f"{must}, got another treatment")


# --- rounds and threads ----------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How long a round may take. Durations on one machine's clock: clocks need not agree."""

    deadline: float | None = None
    grace: float | None = None
    enough: int = 1

    def left(self, elapsed: float, since_enough: float | None) -> float | None:
        """Return how many seconds the round has left, 0 when it is over; None without an end."""
        ends = [] if self.deadline is None else [self.deadline - elapsed]
        if self.grace is not None and since_enough is not None:
            ends.append(self.grace - since_enough)
        return max(0.0, min(ends)) if ends else None


class Carrier(Protocol):
    """Carries questions to silos, all at once, and what comes back until nothing can or time is over."""

    def send(self, question: Message) -> None: ...
    def wait(self, seconds: float | None) -> Arrived | None: ...
    def leave(self) -> None: ...


MOST_ATTEMPTS = 3
"""How often a question is asked within a round whose answers are malformed."""


def drive(coordinator: Coordinator, carrier: Carrier, pace: Pace) -> None:
    """Run a coordinator to its end, for as long as ``pace`` gives each round; it holds the outcome."""
    while not coordinator.done:
        try:
            _drive_round(coordinator, carrier, pace)
        finally:
            carrier.leave()


def _drive_round(coordinator: Coordinator, carrier: Carrier, pace: Pace) -> None:
    """Carry the open round to its end; what is malformed is asked for again."""
    current, attempts = coordinator.history[-1], Counter[str]()
    questions, started, enough = coordinator.next(), time.monotonic(), None
    while not coordinator.done and coordinator.history[-1] is current:
        for question in questions:
            carrier.send(question)
        question = questions = ()  # type: ignore[assignment]  # they may be as large as a basis
        now = time.monotonic()
        if enough is None and len(current.answers) >= pace.enough:
            enough = now
        # The coordinator's must be the only reference to a large answer.
        arrived = [carrier.wait(pace.left(now - started, None if enough is None else now - enough))]
        if arrived[0] is None:
            coordinator.deadline()
            return
        silo = arrived[0].silo
        if coordinator.receive(arrived.pop()):  # type: ignore[arg-type]
            attempts[silo] += 1
            if attempts[silo] < MOST_ATTEMPTS:
                questions = tuple(each for each in coordinator.next() if each.silo == silo)


def run_in_process(
    coordinator: Coordinator,
    silos: Mapping[str, Answers],
    *,
    deadline: float | None = None,
    grace: float | None = None,
    n_jobs: int | None = None,
    stop: Callable[[], None] = lambda: None,
) -> None:
    """Run ``coordinator`` to its end over ``silos`` in threads."""
    busy, threads = share_cores(len(silos), n_jobs)
    pace = Pace(deadline=deadline, grace=grace, enough=coordinator.min_silos)
    with blas_threads(threads):
        if deadline is None and grace is None:
            pools = dict.fromkeys(silos, _pool(busy))
        else:
            # A thread for each silo and no more: one that sleeps through rounds must not take others'.
            pools = {name: _pool(1) for name in silos}
        waits = False
        try:
            drive(coordinator, _Threads(silos, pools), pace)
        except KeyboardInterrupt:
            stop()
            waits = True
            raise
        finally:
            for pool in pools.values():
                pool.shutdown(wait=waits, cancel_futures=True)


def share_cores(n_silos: int, n_jobs: int | None = None) -> tuple[int, int]:
    """Return how many silos work at once and how many BLAS threads each of them gets."""
    cores = available_cores()
    asked = cores if n_jobs is None else n_jobs if n_jobs > 0 else cores + 1 + n_jobs
    busy = max(1, min(asked, n_silos))
    return busy, max(1, cores // busy)


def available_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


_blas_lock, _blas_limits = threading.Lock(), list[Any]()


@contextmanager
def blas_threads(limit: int) -> Iterator[None]:
    """Bound the threads of every BLAS in this process while the block runs."""
    with _blas_lock:  # fits that run at the same time share one limit: the last one lifts it
        limiter = _blas_limits[0] if _blas_limits else blas().limit(limits=limit)
        _blas_limits.append(limiter)
    try:
        yield
    finally:
        with _blas_lock:
            _blas_limits.pop()
            if not _blas_limits:
                limiter.restore_original_limits()


def _pool(workers: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(max_workers=workers, thread_name_prefix="silo")


class _Threads:
    """Carries questions to silos in threads."""

    def __init__(self, silos: Mapping[str, Answers], pools: Mapping[str, ThreadPoolExecutor]) -> None:
        self._silos, self._pools = silos, pools
        self._done, self._open = SimpleQueue[Future[Message]](), set[Future[Message]]()

    def send(self, question: Message) -> None:
        task = self._pools[question.silo].submit(self._silos[question.silo].answer, question)
        self._open.add(task)
        task.add_done_callback(self._done.put)

    def wait(self, seconds: float | None) -> Message | None:
        """Return the next answer; None when that time is over, or all have answered."""
        if not self._open:
            return None
        try:
            task = self._done.get(timeout=seconds)
        except Empty:
            return None
        self._open.remove(task)
        return task.result()

    def leave(self) -> None:
        tasks, self._open, self._done = self._open, set(), SimpleQueue()
        for task in tasks:
            task.cancel()
