"""A whole federation in one process: silos over local sources, a coordinator, and the thread engine."""

import os
import secrets
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from fedpower.engines.inprocess import blas_threads, run_in_process, share_cores
from fedpower.errors import InputError
from fedpower.privacy.ledger import DEFAULT_VERSION, DataVersion, Ledger, check_label, columns_digest
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.coordinator import Coordinator, Round
from fedpower.protocol.outcome import REHEARSED, Outcome, conclude
from fedpower.protocol.secure import Identity, PairSecrets
from fedpower.protocol.silo import assemble
from fedpower.protocol.solvers import PrepareSettings, SolverSettings, start
from fedpower.protocol.study import MOST_ROWS, Budget, Study, sums_moment
from fedpower.rows.fingerprint import fingerprint, reading_of
from fedpower.rows.networks import network_of
from fedpower.rows.source import RowSource, Watch
from fedpower.rules.codebook import CodeBook
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.local import LocalMoment, local_moment
from fedpower.sums.reduce import shares_blocks
from fedpower.sums.survey import Survey

LedgerPaths = Mapping[str, str | os.PathLike[str]]
# What the silos' operators call their rows: one name for all, or a name for each silo
Versions = str | Mapping[str, str]
Moments = Mapping[str, LocalMoment] | Mapping[str, Survey]
_Rows = TypeVar("_Rows", LocalMoment, Survey)
# Called with a silo, the rows of a block just read, and how many the silo has, or None if not known
OnRows = Callable[[str, int, int | None], None]
_USUAL_STEPS = 20  # how often rows are taken to be multiplied where a run ends when it has converged


def survey_silos(sources: Mapping[str, RowSource], **how: Any) -> dict[str, Survey]:
    """Return each silo's rows ready to be prepared: counted, and read once, so that bad data are refused."""
    by_blocks = _by_blocks(sources)
    return _read(
        sources,
        lambda source, workers, **rows: Survey(source, workers=workers if by_blocks else 1, **rows),
        **how,
    )


def read_silos(
    study: Study,
    sources: Mapping[str, RowSource],
    treatment: RowTreatment,
    *,
    steps: int | None = None,
    **how: Any,
) -> dict[str, LocalMoment]:
    """Return each silo's rows read as the study's terms ask for, in parallel, ready for use."""
    agreed = f"edges of weight {study.edge_weight:g} at most" if study.network == "edge" else "rows"
    for source in sources.values():
        network = network_of(source)
        opened = "rows" if network is None else f"edges of weight {network.edge_weight:g} at most"
        if opened != agreed:
            raise InputError(
                f"{source.name} must be read as {agreed}, which the study protects, got {opened}"
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

    limit = 1 if _by_blocks(sources) else share_cores(len(sources), how.get("n_jobs"))[1]
    with blas_threads(limit):
        moments = _read(sources, make, **how)
    # The rounding of noised products is accounted for so many rows a person.
    for moment in moments.values() if private and not on_lattice else ():
        if moment.n_read > MOST_ROWS * moment.n_rows:
            raise InputError(
                f"{moment.source.name} must have {MOST_ROWS} rows a person at most, on average, where "
                "products are noised, got more; use noise='moment'"
            )
    return moments


def _by_blocks(sources: Mapping[str, RowSource]) -> bool:
    return shares_blocks(max(source.n_features for source in sources.values()))


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
    with ThreadPoolExecutor(max_workers=at_once, thread_name_prefix="silo") as pool:
        try:
            list(pool.map(lambda rows: rows.prepare(), made.values()))
        except BaseException:
            _stop(made)
            raise
    return made


def check_ledgers(
    silos: list[str],
    budget: Budget,
    ledgers: LedgerPaths,
    *,
    data_version: Versions | None = None,
    data_set: str | None = None,
) -> None:
    """Refuse ledgers that are not one for each silo and its own, or cannot be opened."""
    _versions(silos, data_version)
    if data_set is not None:
        check_label("data_set", data_set)
    with ExitStack() as stack:
        _open_ledgers(silos, budget, ledgers, stack, data_set)


def federate(
    moments: Moments, *, settings: SolverSettings, rng: np.random.Generator, **options: Any
) -> Outcome:
    """Return the outcome of a study over the silos' rows."""
    coordinator = _run(moments, settings, rng, **options)
    kernels = {name: moment.choice.reason for name, moment in moments.items()}
    outcome = replace(conclude(coordinator, settings), kernels=kernels)
    if settings.study.is_secure:
        notes = (*outcome.privacy.notes, REHEARSED)
        outcome = replace(outcome, privacy=replace(outcome.privacy, notes=notes))
    return outcome


def prepare_silos(surveys: Mapping[str, Survey], *, study: Study, **options: Any) -> CodeBook:
    """Return the code book of the silos' rows: the tallies of ``study``, without its moment."""
    book = _run(surveys, PrepareSettings(study=study), np.random.default_rng(0), **options).outcome
    assert isinstance(book, CodeBook), "preparation ends with a code book"
    return book


def _run(
    moments: Moments,
    settings: SolverSettings | PrepareSettings,
    rng: np.random.Generator,
    *,
    ledgers: LedgerPaths | None = None,
    data_version: Versions | None = None,
    data_set: str | None = None,
    noise: NoiseSource | None = None,
    identities: Mapping[str, Identity] | None = None,
    min_silos: int | None = None,
    on_round: Callable[[Round], None] | None = None,
    **pace: Any,
) -> Coordinator:
    """Return the coordinator of a run that has ended."""
    study, run = settings.study, secrets.token_hex(8)
    budget = study.budget
    with ExitStack() as stack:
        opened: dict[str, Ledger] = {}
        if budget is not None:
            _check_bounded(moments, study)
            opened = _open_ledgers(list(moments), budget, ledgers or {}, stack, data_set)
        # A ledger in memory lives as long as this fit, whose rows do not change.
        versions = _versions(list(moments), data_version) if opened and ledgers else {}
        exchange = PairSecrets()
        silos = {
            name: assemble(
                name,
                moment,
                study,
                ledger=opened.get(name),
                identity=(identities or {}).get(name),
                source=noise,
                exchange=exchange,
                data=None
                if name not in versions
                else DataVersion(
                    silo=name,
                    version=versions[name],
                    columns=columns_digest(study.columns, study.n_features),
                    fingerprint=fingerprint(moment.source, moment.watch),
                    reading=reading_of(moment.source),
                    data_set=data_set,
                ),
            )
            for name, moment in moments.items()
        }
        # A study that one silo cannot afford must not cost the others.
        for silo in silos.values():
            silo.releases.check_affordable()
        solver = start(settings, rng, run)
        coordinator = Coordinator(
            solver, list(silos), study=study, run=run, min_silos=min_silos, on_round=on_round
        )
        run_in_process(coordinator, silos, stop=lambda: _stop(moments), **pace)
    return coordinator


def _stop(moments: Moments) -> None:
    for moment in moments.values():
        moment.watch.stop()


def _versions(silos: list[str], declared: Versions | None) -> dict[str, str]:
    """Return the version of every silo's data, as declared or the first."""
    given = declared if isinstance(declared, Mapping) else {}
    unknown = [name for name in given if name not in silos]
    if unknown:
        raise InputError(f"data_version must be of the silos {', '.join(silos)}, got one for {unknown[0]!r}")
    one = DEFAULT_VERSION if declared is None or isinstance(declared, Mapping) else declared
    versions = {name: given.get(name, one) for name in silos}
    for version in versions.values():
        check_label("data_version", version)
    return versions


def _open_ledgers(
    silos: list[str], budget: Budget, paths: LedgerPaths, stack: ExitStack, data_set: str | None = None
) -> dict[str, Ledger]:
    if not isinstance(paths, Mapping):
        raise InputError(f"ledgers must be a mapping from silo names to files, got {type(paths).__name__}")
    for name in paths:
        if name not in silos:
            raise InputError(
                f"a ledger must belong to a silo of this fit ({', '.join(silos)}), got one for {name!r}"
            )
    if not paths:
        ledgers = {
            name: Ledger.in_memory(budget.study.epsilon, budget.study.delta, silo=name) for name in silos
        }
        return {name: stack.enter_context(ledger) for name, ledger in ledgers.items()}
    opened = {}
    for name in silos:
        if name not in paths:
            raise InputError(f"every silo must have a ledger or none, got none for {name!r}")
        opened[name] = stack.enter_context(Ledger.open(Path(paths[name])))
    for name, ledger in opened.items():
        ledger.check_owner(name, data_set)
    return opened


def _check_bounded(moments: Moments, study: Study) -> None:
    """Refuse rows that are not bounded as the study says, in float64: the noise is made for norm 1."""
    for name, moment in moments.items():
        if isinstance(moment, Survey):  # bounded by what the run finds
            continue
        rule = moment.treatment
        if not rule.bounded or rule.digest() != study.treatment:
            raise InputError(
                f"the rows of silo {name!r} must be treated as the private study says, got another treatment"
            )
