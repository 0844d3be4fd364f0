"""The walk of a fit: sources → rules → study → run → result. It does not need scikit-learn."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from os import PathLike
from typing import Any

from fedpower.engines.embedded import (
    LedgerPaths,
    OnRows,
    Versions,
    check_ledgers,
    federate,
    prepare_silos,
    read_for,
    survey_silos,
)
from fedpower.errors import InputError, is_showable
from fedpower.estimator.fit_warnings import (
    warn,
    warn_about_clipping,
    warn_about_copies,
    warn_about_costly_silos,
    warn_about_delta,
    warn_about_noise,
    warn_about_repeats,
    warn_about_rows,
    warn_about_weights,
)
from fedpower.estimator.terms import (
    IdentityPaths,
    build_study,
    identities_of,
    prepares,
    public_rng,
    public_treatment,
    rules_of,
    treatment_of,
)
from fedpower.options import Iterative, Options
from fedpower.protocol.coordinator import Round, check_silos
from fedpower.protocol.secure import Identity
from fedpower.protocol.solvers.shared import SiloSampler
from fedpower.protocol.study import Study, budget_of
from fedpower.report.outcome import result_of
from fedpower.report.result import Result
from fedpower.rows.networks import NetworkSource, open_network, require_same_nodes, weighed_edges
from fedpower.rows.opening import name_of_silo, open_source, rows_at
from fedpower.rows.source import Extra, RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import by_unit
from fedpower.rules.codebook import CodeBook
from fedpower.rules.ruled import every_problem, match_tables, rules_of_source
from fedpower.rules.rules import TableRules
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Survey

OnClipped = Callable[[dict[str, tuple[int, int]]], None]


@dataclass(frozen=True, kw_only=True)
class Run:
    """How a fit runs: what it is charged to, whose keys it takes, who is informed; see `FedPCA.fit_silos`."""

    ledgers: LedgerPaths | None = None
    data_version: Versions | None = None
    data_set: str | None = None
    identities: IdentityPaths | None = None
    on_round: Callable[[Round], None] | None = None
    on_rows: OnRows | None = None
    on_clipped: OnClipped | None = None

    @property
    def charged(self) -> dict[str, Any]:
        """Where releases are charged, for the engine."""
        return {"ledgers": self.ledgers, "data_version": self.data_version, "data_set": self.data_set}


@dataclass(frozen=True, kw_only=True)
class Data:
    """The silos' rows, with the columns that all of them have, after their rules."""

    sources: dict[str, RowSource]
    columns: tuple[str, ...] | None
    rules: TableRules | None = None

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return next(iter(self.sources.values())).n_features


@dataclass(frozen=True, kw_only=True)
class Fitted:
    """A result and the code book of its columns, with rules where tables had any."""

    result: Result
    codebook: CodeBook | None


# --- sources ---------------------------------------------------------------------------------------


def open_data(silos: Any, options: Options, extra: Extra = "refuse") -> Data:
    """Return the silos' rows from whatever a user gives for them."""
    columns, sources = match_tables(named_sources(silos, options), rules_of(options), extra=extra)
    return Data(sources=sources, columns=columns, rules=rules_of_source(next(iter(sources.values()))))


def named_sources(silos: Any, options: Options) -> dict[str, RowSource]:
    """Return the silos' sources by name: given names, or a file's, or its number."""
    items = named_silos(silos)
    network, person = options.network, options.person
    if network is not None:
        networks = {
            name: open_network(silo, unit=network.name, name=label, edge_weight=network.max_weight)
            for name, (silo, label) in items.items()
        }
        require_same_nodes(networks.values())
        return dict[str, RowSource](networks)
    odd = [silo.name for silo, _ in items.values() if isinstance(silo, NetworkSource)]
    if odd:
        raise InputError(f"{odd[0]} must be rows of a table, got a network; give unit=Edge() or Node()")
    sources = {name: open_source(silo, name=label) for name, (silo, label) in items.items()}
    if person.column is None:
        return sources
    return {name: by_unit(source, person.column, person.rows) for name, source in sources.items()}


def named_silos(silos: Any) -> dict[str, tuple[Any, str | None]]:
    """Return what was given for each silo by its name, with a label for messages unless it has its own."""
    if isinstance(silos, Mapping):
        items = [(str(name), silo) for name, silo in silos.items()]
    elif _is_path(silos) or _is_table(silos) or not isinstance(silos, Iterable):
        raise InputError(
            f"silos must be a list or a mapping of data, got {type(silos).__name__}; "
            "put a single silo into a list"
        )
    else:
        items = [
            (name_of_silo(silo) if _is_path(silo) else f"silo-{place}", silo)
            for place, silo in enumerate(silos, start=1)
        ]
    if not items:
        raise InputError("silos must hold at least one silo, got none; give the data of each")
    for name, count in Counter(name for name, _ in items).items():
        if not is_showable(name):
            raise InputError(
                f"a silo's name must have no control characters, got {name!a}; pass a mapping from names "
                "to data"
            )
        if count > 1:
            raise InputError(
                f"silos must have different names, got {name!r} more than once; pass a mapping from names to "
                "data, or on the command line NAME=PATH"
            )
    _require_own_rows(items)
    return {
        name: (silo, None if _is_path(silo) or callable(getattr(silo, "blocks", None)) else f"silo {name!r}")
        for name, silo in items
    }


def _require_own_rows(items: list[tuple[str, Any]]) -> None:
    """Refuse the same rows under two names: each row would count twice."""
    seen: dict[object, str] = {}
    for name, silo in items:
        for rows in rows_at(silo) or {str(silo)} if _is_path(silo) else {id(silo)}:
            if rows in seen:
                what = f"{silo}" if _is_path(silo) else f"the same {type(silo).__name__}"
                raise InputError(
                    f"each silo must have rows of its own, got {what} for both {seen[rows]!r} and {name!r}"
                )
            seen[rows] = name


def _is_table(silos: Any) -> bool:
    """Return whether a list of silos is the rows of one: its items would be taken for silos."""
    return getattr(silos, "ndim", None) == 2 or hasattr(silos, "__arrow_c_stream__")


def _is_path(silo: Any) -> bool:
    return isinstance(silo, str | PathLike)


# --- the walk --------------------------------------------------------------------------------------


def fit_silos(options: Options, silos: Any, run: Run, *, extra_columns: Extra = "refuse") -> Fitted:
    """Fit to silos: arrays, tables or paths of files, which are streamed and never pooled."""
    return fit_data(options, open_data(silos, options, extra_columns), run)


def fit_data(options: Options, data: Data, run: Run) -> Fitted:
    """Fit to rows that are open and have the same columns."""
    identities = identities_of(options, data.sources, run.identities)
    expected = preflight(options, data, run, identities)
    reading: dict[str, Any] = {
        "n_jobs": options.n_jobs,
        "device": options.device,
        "on_rows": run.on_rows,
        "fingerprinted": bool(run.ledgers),
    }
    solver = options.solver
    rows: dict[str, LocalMoment] | dict[str, Survey]
    with every_problem(data.sources.values()):
        treatment, leak = treatment_of(options, data.columns, data.sources.values())
        if treatment is None:
            rows = survey_silos(data.sources, **reading)
        else:
            steps = solver.n_steps if isinstance(solver, Iterative) else None
            rows = read_for(expected, data.sources, treatment, steps=steps, **reading)
            _report_cut(options, treatment, data.sources, rows, run.on_clipped)
    sizes = {name: each.n_rows for name, each in rows.items()}
    study, settings, choice = build_study(
        options,
        n_rows=sum(sizes.values()),
        n_features=data.n_features,
        treatment=treatment,
        columns=data.columns,
        identities={name: each.public for name, each in identities.items()},
        roster=sizes,
    )
    warn_about_delta(study, sizes.values())
    warn_about_copies(study, rows)
    warn_about_costly_silos(study, sizes)
    if not run.ledgers and leak is None:
        warn_about_repeats(study, data.sources.values())
    outcome = federate(
        rows,
        study=study,
        settings=settings,
        rng=public_rng(options, study if run.ledgers else None),
        identities=identities,
        min_silos=options.aggregation.min_silos,
        deadline=options.aggregation.deadline,
        n_jobs=options.n_jobs,
        on_round=run.on_round,
        **run.charged,
    )
    solution = outcome.solution
    if isinstance(solver, Iterative) and not solution.converged and len(outcome.rounds) >= solver.max_rounds:
        _warn_unconverged(solution.change, solver.max_rounds)
    warn_about_rows(study, rows)
    book = solution.code_book or options.book
    if book is not None and book.rules is None and data.rules is not None:
        book = replace(book, rules=data.rules)
    if treatment is None:
        assert book is not None, "a run without a treatment finds one"
        treatment = book.treatment
        counts = {name: each.clipped for name, each in rows.items() if isinstance(each, Survey)}
        if run.on_clipped is not None and all(counts.values()):
            run.on_clipped({name: each for name, each in counts.items() if each is not None})
    result = result_of(
        replace(outcome, privacy=replace(outcome.privacy, leak=leak)),
        options=options,
        treatment=treatment,
        feature_names=data.columns,
        solver=choice,
        rules=data.rules,
        code_book=book,
    )
    show_warnings(result, quiet=options.network is not None)  # communities have a verdict of their own
    return Fitted(result=result, codebook=book)


def prepare(options: Options, silos: Any, run: Run, *, extra_columns: Extra = "refuse") -> CodeBook:
    """Return the code book of the silos' columns, found privately; nothing is fitted."""
    if not prepares(options):
        raise InputError(
            "preparation must be given nothing but a finite epsilon, rules and ranges, got more; leave out "
            "row_norm, normalize, public offsets and scales, and settings of other solvers"
        )
    data = open_data(silos, options, extra_columns)
    identities = identities_of(options, data.sources, run.identities)
    preflight(options, data, run, identities)
    with every_problem(data.sources.values()):
        surveys = survey_silos(
            data.sources,
            n_jobs=options.n_jobs,
            device=options.device,
            on_rows=run.on_rows,
            fingerprinted=bool(run.ledgers),
        )
        sizes = {name: each.n_rows for name, each in surveys.items()}
    study, _, _ = build_study(
        options,
        n_rows=sum(sizes.values()),
        n_features=data.n_features,
        treatment=None,
        columns=data.columns,
        identities={name: each.public for name, each in identities.items()},
        roster=sizes,
    )
    warn_about_delta(study, sizes.values())
    if not run.ledgers:
        warn_about_repeats(study, data.sources.values(), fits=0)
    found = prepare_silos(
        surveys,
        study=study,
        identities=identities,
        n_jobs=options.n_jobs,
        on_round=run.on_round,
        **run.charged,
    )
    warn_about_rows(study, surveys)
    return found if options.codebook is None else replace(found, rules=options.codebook.rules)


def preflight(options: Options, data: Data, run: Run, identities: Mapping[str, Identity]) -> Study:
    """Return the study as far as it is known before a pass over rows; refuse what public facts rule out."""
    _check_charged(options, run)
    counts = [source.n_rows for source in data.sources.values()]
    known = [count for count in counts if count is not None]
    if options.book is not None:
        options.book.check_columns(data.columns, data.n_features)
    treatment = None
    if not prepares(options):
        treatment = public_treatment(options, data.columns)
        treatment.check_width(data.n_features)
    n_rows = sum(known) if len(known) == len(counts) else max(2, data.n_features, sum(known))
    study, _, _ = build_study(
        options,
        n_rows=n_rows,
        n_features=data.n_features,
        treatment=treatment,
        columns=data.columns,
        identities={name: each.public for name, each in identities.items()},
    )
    if isinstance(options.solver, Iterative):
        SiloSampler(
            sizes=dict.fromkeys(data.sources, 1),
            rng=public_rng(options, study),
            n_participants=options.solver.n_participants,
            participation=options.solver.participation,
        )
    check_silos(list(data.sources), options.aggregation.min_silos)
    budget = budget_of(study)
    if budget is not None and run.ledgers:
        check_ledgers(
            list(data.sources), budget, run.ledgers, data_version=run.data_version, data_set=run.data_set
        )
    return study


def _check_charged(options: Options, run: Run) -> None:
    """Refuse to charge what is not private, and names for what is not charged."""
    if not run.ledgers:
        if (run.data_version, run.data_set) != (None, None):
            raise InputError("data_version and data_set must go with ledgers, got one without")
        return
    if not options.is_private:
        raise InputError(
            "a ledger must be charged a finite epsilon, got epsilon=inf, which releases exact numbers; "
            "give a "
            "finite one, or leave the ledgers out"
        )
    by_edge = options.network is not None and options.network.name == "edge"
    public = options.public
    bounded = options.book is not None or public.row_norm is not None or public.normalize
    if not (prepares(options) or by_edge or bounded):
        raise InputError(
            "a fit with ledgers must have a public bound on the norm of a row, got none, and one that is "
            "read "
            "from the rows is not private; give row_norm or normalize, or leave the ledgers out"
        )


def _report_cut(
    options: Options,
    treatment: RowTreatment,
    sources: Mapping[str, RowSource],
    rows: Mapping[str, LocalMoment],
    on_clipped: OnClipped | None,
) -> None:
    """Report to whoever holds them what a public bound did to rows, or a public maximum to edges."""
    if weighed := weighed_edges(sources):
        if on_clipped is None:
            warn_about_weights(weighed.values())
        else:
            on_clipped({name: (each.n_capped, each.n_edges) for name, each in weighed.items()})
    # A code book's bound is where clipping and noise balance: no reason for a warning.
    elif treatment.row_norm is not None and (options.book is None or on_clipped is not None):
        report = warn_about_clipping if on_clipped is None else on_clipped
        report({name: (each.n_clipped, each.n_read) for name, each in rows.items()})


def _warn_unconverged(change: float, rounds: int) -> None:
    from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - only where it is needed

    warn(
        f"the subspace still moved by sin θ = {change:.2g} in the last of {rounds} rounds; raise max_rounds, "
        "tol or iteration_rank",
        ConvergenceWarning,
    )


_MOST_SHOWN = 5


def show_warnings(result: Result, *, quiet: bool = False) -> None:
    """Warn of the first few sentences of a result, and of a fit that found nothing for certain."""
    found = result.warnings
    for sentence in found[:_MOST_SHOWN]:
        warn(sentence)
    if len(found) > _MOST_SHOWN:
        more = f"{len(found) - _MOST_SHOWN} more warnings are in warnings_ and in the report"
        warn(more)
    if not quiet:
        warn_about_noise(result)
