"""What public facts rule out is refused before a row is read."""

from collections.abc import Mapping

from fedpower.engines.embedded import LedgerPaths, Versions, check_ledgers
from fedpower.errors import InputError, Sentence
from fedpower.estimator.solving import public_rng
from fedpower.estimator.terms import build_study
from fedpower.estimator.treatment import code_book_of, prepares, public_treatment
from fedpower.parameters import Parameters
from fedpower.protocol.coordinator import check_silos
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.roll import Identity
from fedpower.protocol.solvers.shared import SiloSampler
from fedpower.protocol.study import Study
from fedpower.rows.source import RowSource


def preflight(
    parameters: Parameters,
    sources: Mapping[str, RowSource],
    *,
    columns: tuple[str, ...] | None,
    identities: Mapping[str, Identity],
    ledgers: LedgerPaths | None,
    data_version: Versions | None = None,
    data_set: str | None = None,
) -> Study:
    """Return the study as far as public facts give it before a pass over rows; refuse what it rules out."""
    _check_booked(parameters, ledgers, declared=(data_version, data_set) != (None, None))
    width = next(iter(sources.values())).n_features
    counts = [source.n_rows for source in sources.values()]
    known = [count for count in counts if count is not None]
    book = code_book_of(parameters)
    if book is not None:
        book.check_columns(columns, width)
    treatment = None
    if not prepares(parameters):
        treatment = public_treatment(parameters, columns)
        treatment.check_width(width)
    study, _, _ = build_study(
        parameters,
        n_rows=sum(known) if len(known) == len(counts) else max(2, width, sum(known)),
        n_features=width,
        treatment=treatment,
        columns=columns,
        identities={name: each.public for name, each in identities.items()},
    )
    budget = budget_of(study)
    SiloSampler(
        sizes=dict.fromkeys(sources, 1),
        rng=public_rng(parameters, study),
        n_participants=parameters.n_participants,
        participation=parameters.participation,
    )
    check_silos(list(sources), parameters.min_silos)
    if budget is not None and ledgers:
        check_ledgers(list(sources), budget, ledgers, data_version=data_version, data_set=data_set)
    return study


def _check_booked(parameters: Parameters, ledgers: LedgerPaths | None, *, declared: bool) -> None:
    """Refuse to book what is not private, and names for what is not booked."""
    if not ledgers:
        if declared:
            raise InputError(
                Sentence(
                    "{data_version} and {data_set} must go with ledgers, which know rows by them, got "
                    "one without; give ledgers, or leave it out"
                )
            )
        return
    if not parameters.is_private:
        raise InputError(
            Sentence(
                "a ledger must be charged a finite epsilon, got {epsilon:inf}, which releases exact "
                "numbers; give a finite one, or leave the ledgers out"
            )
        )
    if (
        not prepares(parameters)
        and parameters.network != "edge"
        and parameters.row_norm is None
        and not (parameters.normalize or code_book_of(parameters) is not None)
    ):
        raise InputError(
            Sentence(
                "a fit with ledgers must know a public bound on the norm of a row, got none, and one "
                "read from the rows is not private, so that no ledger books it; give {row_norm:B} or "
                "{normalize:True}, or leave the ledgers out"
            )
        )
