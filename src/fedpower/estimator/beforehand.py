"""What public facts rule out is refused before a row is read."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from fedpower.data import RowSource
from fedpower.engines.embedded import LedgerPaths, check_ledgers
from fedpower.estimator.terms import agree, public_rng, public_treatment
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.identity import Identity
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.solvers import start
from fedpower.protocol.solvers.participation import Turnout

if TYPE_CHECKING:
    from fedpower.estimator.fedpca import FedPCA


def check_beforehand(
    model: "FedPCA",
    sources: Mapping[str, RowSource],
    *,
    identities: Mapping[str, Identity],
    ledgers: LedgerPaths | None,
) -> None:
    """Refuse terms that cannot be, and ledgers that are not the silos', before a pass over rows.

    Where only a pass can tell how many rows there are, they are taken to be enough; what that leaves
    open is refused after the pass. Nothing is charged.

    Parameters
    ----------
    model
        The parameters.
    sources
        The silos' rows, by name; none is read.
    identities, ledgers
        The silos' keys and ledger files, by name.
    """
    width = model.n_features_in_
    counts = [source.n_rows for source in sources.values()]
    known = [count for count in counts if count is not None]
    treatment = public_treatment(model)
    treatment.check_width(width)
    study, settings, _ = agree(
        model,
        n_rows=sum(known) if len(known) == len(counts) else max(2, width, sum(known)),
        n_features=width,
        treatment=treatment,
        identities={name: each.public for name, each in identities.items()},
    )
    budget = budget_of(study)
    rng = public_rng(model, study)
    Turnout(
        sizes=dict.fromkeys(sources, 1),
        rng=rng,
        n_participants=model.n_participants,
        participation=model.participation,
    )
    Coordinator(start(settings, rng), list(sources), study=study, run="", min_silos=model.min_silos)
    if budget is not None and ledgers:
        check_ledgers(list(sources), budget, ledgers)
