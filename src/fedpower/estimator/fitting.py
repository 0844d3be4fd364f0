"""The walk of a fit: sources → rules → study → run → result. It does not need scikit-learn."""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from os import PathLike
from typing import Any

import numpy as np

from fedpower.engines.inprocess import Run, check_ledgers, federate, prepare_silos, read_silos, survey_silos
from fedpower.estimator.fit_warnings import (
    ClippingWarning,
    warn_about_repeats,
    warn_about_rows,
    warn_about_study,
    weights_summary,
)
from fedpower.estimator.terms import (
    bounded,
    build_study,
    identities_of,
    public_rng,
    public_treatment,
    rank_and_width,
    shortens,
)
from fedpower.exceptions import CellError, InputError, NoiseWarning, is_showable, require, warn
from fedpower.options import Edge, Iterative, Node, Options, Upload
from fedpower.protocol.coordinator import check_silos
from fedpower.protocol.outcome import Outcome
from fedpower.protocol.pooled import varying
from fedpower.protocol.solvers import SolverSettings, upload
from fedpower.protocol.study import SolverChoice, Study
from fedpower.report.covariance import Covariance
from fedpower.report.outcome import recorded, result_of
from fedpower.report.result import Result
from fedpower.report.text import and_more, listed
from fedpower.report.view import cause_of_noise
from fedpower.rows.networks import NetworkSource, open_network, require_same_nodes, weighed_edges
from fedpower.rows.opening import name_of_silo, open_source, rows_at
from fedpower.rows.ruled import every_problem, match_tables, rules_of_source
from fedpower.rows.source import Extra, RowSource, block_rows
from fedpower.rows.units import by_unit, with_gaps, with_ranges
from fedpower.rules.codebook import EXACT, CodeBook
from fedpower.rules.rules import TableRules, table_rules
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Rows
from fedpower.values import shown


@dataclass(frozen=True, kw_only=True)
class Data:
    """The silos' rows, with the columns that all of them have, after their rules."""

    sources: dict[str, RowSource]
    columns: tuple[str, ...] | None
    rules: TableRules | None = None
    unused: Mapping[str, str] = field(default_factory=dict)

    @property
    def n_features(self) -> int:
        """Number of columns."""
        return next(iter(self.sources.values())).n_features


# --- sources ---------------------------------------------------------------------------------------


def open_data(silos: Any, options: Options, extra: Extra = "refuse") -> Data:
    """Return the silos' rows from any data that a user gives for them."""
    given, rules = named_sources(silos, options), options.rules_of_fit
    columns, sources = match_tables(given, rules, extra=extra)
    sources = {name: with_ranges(source, options.agreed_ranges) for name, source in sources.items()}
    unused = _not_everywhere(given, () if rules is None else rules.dropped)
    rules = rules_of_source(next(iter(sources.values())))
    return Data(sources=sources, columns=columns, rules=rules, unused=unused)


def _not_everywhere(sources: Mapping[str, RowSource], dropped: Sequence[str]) -> dict[str, str]:
    """Return the columns that some silo lacks, and which, without those that rules drop."""
    have = {name: dict.fromkeys(source.columns or ()) for name, source in sources.items()}
    common = set[str].intersection(*map(set, have.values())).union(dropped)
    odd = [column for column in dict.fromkeys(chain(*have.values())) if column not in common]
    lacking = {column: [name for name in have if column not in have[name]] for column in odd}
    return {column: f"not in {listed(and_more(names))}" for column, names in lacking.items()}


def open_silos(silos: Any, options: Options, extra: Extra = "refuse") -> tuple[Options, Data]:
    """Return the options, with the levels that data frames declare, and the rows of silos."""
    held = silos.values() if isinstance(silos, Mapping) else silos if isinstance(silos, list) else ()
    options = with_levels(options, held)
    return options, open_data(silos, options, extra)


def with_levels(options: Options, tables: Iterable[Any]) -> Options:
    """Return the options with rules for the categories that data frames declare; private fits refuse them."""
    if options.network is not None:  # an edge list may declare its nodes
        return options
    book = CodeBook() if options.codebook is None else options.codebook
    rules = {} if book.rules is None else book.rules.as_content()
    found: dict[str, Any] = {}
    for table in tables:
        # A lazy frame of Polars warns of its cost where it is asked for dtypes.
        is_polars = hasattr(table, "collect_schema")
        kinds: Any = table.collect_schema() if is_polars else getattr(table, "dtypes", None)
        for name, kind in kinds.items() if hasattr(kinds, "items") else ():
            words = [*getattr(kind, "categories", ())]
            if name in rules or not words or not all(isinstance(word, str) for word in words):
                continue
            rule = {"ordered": words} if getattr(kind, "ordered", False) else words
            if found.setdefault(name, rule) != rule:
                raise InputError(f"column {name!r} must have the same categories in every silo, got others")
    if not found:
        return options
    if options.is_private:
        raise InputError(
            f"the levels of {next(iter(found))!r} must be given in a private fit, because categories can "
            "reveal rows; give codebook={'column': ['level', ...]}"
        )
    return replace(options, codebook=replace(book, rules=table_rules({**rules, **found}, "the code book")))


def named_sources(silos: Any, options: Options) -> dict[str, RowSource]:
    """Return the silos' sources by name: given names, or a file's, or its number."""
    items = named_silos(silos)
    network, person = options.network, options.person
    if network is not None:
        networks = {
            name: open_network(
                silo, unit=network.name, nodes=network.nodes, name=label, edge_weight=network.max_weight
            )
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
    # The rows of one table would be taken for silos.
    is_table = getattr(silos, "ndim", None) == 2 or hasattr(silos, "__arrow_c_stream__")
    if isinstance(silos, Mapping):
        items = [(str(name), silo) for name, silo in silos.items()]
    elif _is_path(silos) or is_table or not isinstance(silos, Iterable):
        raise InputError(
            f"silos must be a list or a mapping, got {type(silos).__name__}; put a single silo into a list"
        )
    else:
        items = [
            (name_of_silo(silo) if _is_path(silo) else f"silo-{place}", silo)
            for place, silo in enumerate(silos, start=1)
        ]
    if not items:
        raise InputError("silos must hold at least one silo, got none")
    require_distinct(items)
    return {
        name: (silo, None if _is_path(silo) or callable(getattr(silo, "blocks", None)) else f"silo {name!r}")
        for name, silo in items
    }


def require_distinct(items: Sequence[tuple[str, Any]]) -> None:
    """Refuse silos that have the same name, or the same rows."""
    owners: dict[object, str] = {}
    times = Counter(name for name, _ in items)
    for name, silo in items:
        require(is_showable(name), "a silo's name", "without control characters", name)
        if times[name] > 1:
            paths = [f"{given}" for other, given in items if other == name and _is_path(given)]
            got = f"{name!r} more than once{' for ' if paths else ''}{listed(paths)}"
            raise InputError(f"silos must have different names, got {got}; give a mapping, or NAME=PATH")
        for rows in rows_at(silo) or {str(silo)} if _is_path(silo) else {id(silo)}:
            if rows in owners:
                what = f"{silo}" if _is_path(silo) else f"the same {type(silo).__name__}"
                raise InputError(
                    f"each silo must have rows of its own, got {what} for both {owners[rows]!r} and {name!r}"
                )
            owners[rows] = name


def _is_path(silo: Any) -> bool:
    return isinstance(silo, str | PathLike)


# --- the walk --------------------------------------------------------------------------------------


class _Fit:
    """Rows that are open, the options and the run of a fit, and what follows from these."""

    def __init__(self, options: Options, data: Data, run: Run) -> None:
        self.options, self.data, self.run = options, data, run
        self.identities = identities_of(options, data.sources, run.identities)
        self.reading: dict[str, Any] = {
            "n_jobs": options.n_jobs,
            "device": options.device,
            "on_rows": run.on_rows,
            "fingerprinted": bool(run.ledgers),
        }
        self.running: dict[str, Any] = {"how": run, "identities": self.identities, "n_jobs": options.n_jobs}

    def terms(
        self, n_rows: int, treatment: RowTreatment | None, roster: Mapping[str, int] | None = None
    ) -> tuple[Study, SolverSettings, SolverChoice]:
        return build_study(
            self.options,
            n_rows=n_rows,
            n_features=self.data.n_features,
            treatment=treatment,
            columns=self.data.columns,
            identities={name: identity.public for name, identity in self.identities.items()},
            roster=roster,
        )

    def expected(self) -> tuple[Study, RowTreatment | None]:
        """Return what is known of study and treatment before a pass; refuse what public facts rule out."""
        options, run, sources, d = self.options, self.run, self.data.sources, self.data.n_features
        if not run.ledgers and (run.data_version, run.data_set) != (None, None):
            raise InputError("data_version and data_set must be used with ledgers, got no ledgers")
        if run.ledgers and not options.is_private:
            raise InputError(
                "a ledger must be used with a finite epsilon, got epsilon=inf; leave ledgers out"
            )
        counts = [source.n_rows for source in sources.values()]
        known = sum(count or 0 for count in counts)
        if options.book is not None:
            options.book.check_columns(self.data.columns, d)
        treatment = public_treatment(options, self.data.columns)
        if treatment is not None:
            treatment.check_width(d)
            if run.ledgers and not treatment.bounded:
                raise InputError(
                    "a ledger must be used with a public bound on row norms, got none; give row_norm"
                )
        study, _, _ = self.terms(max(2, d, known) if None in counts else known, treatment)
        count = getattr(options.solver, "n_participants", None)
        require((count or 1) <= len(sources), "n_participants", f"at most the {len(sources)} silos", count)
        check_silos(list(sources), options.aggregation.min_silos)
        if run.ledgers:
            check_ledgers(list(sources), study, run)
        return study, treatment

    def study_of(
        self, rows: Mapping[str, Rows], treatment: RowTreatment | None
    ) -> tuple[Study, SolverSettings, SolverChoice]:
        """Return the study of rows that were counted; warn of what is odd about it."""
        sizes = {name: silo.n_rows for name, silo in rows.items()}
        made = self.terms(sum(sizes.values()), treatment, sizes)
        warn_about_study(made[0], rows)
        return made

    def report_cut(self, treatment: RowTreatment, rows: Mapping[str, LocalMoment]) -> None:
        """Report to the operator what a public bound did to rows, or a public maximum to edges."""
        summary, on_clipped = None, self.run.on_clipped
        if weighed := weighed_edges(self.data.sources):
            counts = {name: (network.n_capped, network.n_edges) for name, network in weighed.items()}
            summary = weights_summary(weighed.values())
        # A code book's bound is where clipping and noise balance: no reason for a warning.
        elif treatment.row_norm is not None and (self.options.book is None or on_clipped is not None):
            counts = {name: (silo.n_clipped, silo.n_read) for name, silo in rows.items()}
            if all(count == read for count, read in counts.values()):
                summary = "every row is longer than row_norm, so only directions count; use a larger row_norm"
        else:
            return
        if on_clipped is not None:
            on_clipped(counts)
        elif summary is not None:
            warn(summary, ClippingWarning)


def fit_data(options: Options, data: Data, run: Run) -> Result:
    """Fit to rows that are open and have the same columns."""
    try:
        return _fitted(options, data, run)
    except CellError:
        if not options.finds_offsets:
            raise
        # Cells are missing, or the next pass refuses all that is wrong.
        with every_problem(data.sources.values(), gaps=True):
            book = _exact_book(options, data)
        solver = Upload(iteration_rank=options.solver.iteration_rank)
        found = _fitted(replace(options, codebook=book, solver=solver), data, run)
        return found.with_record(code_book=None)  # it is not for private fits: its numbers are exact


def _exact_book(options: Options, data: Data) -> CodeBook:
    """Return a code book of the means, spreads and shares of the cells that are there, in all silos."""
    width = data.n_features
    n_rows, count, mean, squares = 0, *np.zeros((3, width))
    for source in data.sources.values():
        for block in with_gaps(source).blocks(block_rows(width)):
            cells = np.ma.masked_invalid(np.asarray(block))
            own, n_rows = cells.count(axis=0), n_rows + len(block)
            count += own
            away = cells.mean(axis=0).filled(0.0) - mean
            part = np.where(own > 0, own / np.maximum(count, 1), 0.0)
            squares += cells.var(axis=0).filled(0.0) * own + away**2 * part * (count - own)
            mean += away * part
    names = data.columns or tuple(map(str, range(width)))
    if empty := [name for name, cells in zip(names, count, strict=True) if not cells]:
        raise InputError(f"every column must have cells that are not missing, got none in {shown(empty)}")
    scale = np.sqrt(varying(squares / count, mean, n_rows))
    scale[scale == 0] = 1.0
    reach = 2.0 * math.sqrt(n_rows)  # no cell is as many standard deviations from the mean
    return CodeBook(
        columns=data.columns,
        offset=mean,
        scale=scale,
        low=mean - reach * scale,
        high=mean + reach * scale,
        bound=reach * math.sqrt(width),
        found=(EXACT,) * width,
        n_rows=n_rows,
        rules=None if options.codebook is None else options.codebook.rules,
        present=count / n_rows,
    )


def _fitted(options: Options, data: Data, run: Run) -> Result:
    fit, sources, solver = _Fit(options, data, run), data.sources, options.solver
    expected, treatment = fit.expected()
    rows: Mapping[str, Rows]
    with every_problem(sources.values(), gaps=options.takes_gaps):
        treatment, leak = bounded(options, treatment, sources.values())
        if treatment is None:
            rows = survey_silos(sources, **fit.reading)
        else:
            steps = solver.n_steps if isinstance(solver, Iterative) else None
            rows = moments = read_silos(expected, sources, treatment, steps=steps, **fit.reading)
            fit.report_cut(treatment, moments)
    study, settings, choice = fit.study_of(rows, treatment)
    if not run.ledgers and leak is None:
        warn_about_repeats(study, sources.values())
    outcome = federate(
        rows,
        settings=settings,
        rng=public_rng(options, study if run.ledgers else None),
        min_silos=options.aggregation.min_silos,
        deadline=options.aggregation.deadline,
        **fit.running,
    )
    solution = outcome.solution
    if isinstance(solver, Iterative) and not solution.converged and len(outcome.rounds) >= solver.max_rounds:
        from sklearn.exceptions import ConvergenceWarning  # noqa: PLC0415 - only where it is needed

        change = f"changed by sin θ = {solution.change:.2g} in the last of {solver.max_rounds} rounds"
        warn(f"the subspace still {change}; raise max_rounds, tol or iteration_rank", ConvergenceWarning)
    warn_about_rows(study, rows)
    if treatment is None and run.on_clipped is not None:
        known = {name: silo.n_clipped for name, silo in rows.items()}
        counts = {name: (count, rows[name].n_read) for name, count in known.items() if count is not None}
        if len(counts) == len(rows):
            run.on_clipped(counts)
    rules = data.rules
    if rules is not None and options.rules is not None and not options.is_private:
        rules = options.rules.completed(rules.columns)
    result = result_of(
        replace(outcome, privacy=replace(outcome.privacy, leak=leak)),
        options=options,
        treatment=treatment,
        feature_names=data.columns,
        solver=choice,
        rules=rules,
    )
    show_warnings(result, quiet=options.network is not None)  # communities have a verdict of their own
    return result.with_record(unused=dict(data.unused))


def prepare_data(options: Options, data: Data, run: Run) -> CodeBook:
    """Return the code book of the silos' columns, found privately; nothing is fitted."""
    if not options.prepares:
        raise InputError(
            "preparation must have a finite epsilon, and no options but rules and ranges; leave out "
            "row_norm, normalize, public offsets and scales, and settings of other solvers"
        )
    fit = _Fit(options, data, run)
    fit.expected()
    with every_problem(data.sources.values(), gaps=True):
        surveys = survey_silos(data.sources, **fit.reading)
    study, _, _ = fit.study_of(surveys, None)
    if not run.ledgers:
        warn_about_repeats(study, data.sources.values(), fits=0)
    book = prepare_silos(surveys, study=study, **fit.running)
    warn_about_rows(study, surveys)
    return book if options.codebook is None else replace(book, rules=options.codebook.rules)


_MOST_SHOWN = 5


def show_warnings(result: Result, *, quiet: bool = False) -> None:
    """Warn of the first few sentences of a result, and of a fit that found nothing for certain."""
    remarks = result.record.remarks
    for sentence in remarks[:_MOST_SHOWN]:
        warn(sentence)
    if len(remarks) > _MOST_SHOWN:
        warn(f"{len(remarks) - _MOST_SHOWN} more warnings are in warnings_ and in the report")
    cause = None if quiet else cause_of_noise(result)
    if cause is not None:
        warn(f"no component is determined: each may be more than 45° off; {cause}", NoiseWarning)


# --- released covariances ---------------------------------------------------------------------------

# Options of a fit that a released covariance leaves open
_CHOSEN = ("n_components", "iteration_rank", "standardize", "whiten", "solver")
# What the record of such a fit has from the run that released the covariance
_OF_THE_RUN = (
    "command", "started", "silos", "n_rounds", "bytes_up", "bytes_down", "rounds", "federation",
    "code_book", "absent", "unused",
)  # fmt: skip


def result_from(release: Covariance, options: Options) -> Result:
    """Return the result of a fit to a released covariance, by the functions that a direct fit has."""
    record, study = release.record, release.study
    released, untouched = record.parameters, recorded(Options())
    for name, value in recorded(options).items():
        known = (untouched.get(name), released.get(name))
        must = f"left out in a fit to a released covariance, or that of the release, {known[1]!r}"
        require(name in _CHOSEN or value in known, name, must, value)
    rank, width = rank_and_width(options, release.n_samples, release.n_features, study.noise)
    network = {"": None, "edge": Edge(), "row": Node()}[study.network]
    meant = replace(
        options,
        center=release.centered,
        codebook=CodeBook(normalize=True) if release.treatment.normalize else record.book,
        unit=options.unit if network is None else network,
    )
    book, rules = record.book, record.table_rules
    settings = SolverSettings(
        study=replace(study, iteration_rank=width),
        rank=rank,
        standardize=meant.standardizes,
        shortens=shortens(study, rules, normalize=release.treatment.normalize),
    )
    solution = upload.decompose(settings, release.pooled, release.silo_sizes, book)
    found = result_of(
        Outcome(solution=solution, rounds=[], study=study, privacy=release.privacy),
        options=meant,
        treatment=release.treatment,
        feature_names=release.feature_names,
        solver=SolverChoice(solver="upload", reason="it is computed from a released covariance"),
        rules=rules,
    )
    origin = {name: value for name in _OF_THE_RUN if (value := getattr(record, name))}
    chosen = {name: value for name, value in recorded(options).items() if name in _CHOSEN}
    kept = {name: value for name, value in released.items() if name not in _CHOSEN}
    return replace(found, release=release).with_record(**origin, parameters=kept | chosen)


def released_covariance(result: Result) -> Covariance:
    """Return the covariance that a fit kept; its record leaves open how many components there are to be."""
    release = result.release
    assert release is not None, "an upload is kept"
    open_terms = {"n_components": None, "standardize": None, "solver": "auto"}
    return release.with_record(parameters={**release.record.parameters, **open_terms})
