"""Which releases a study allows a silo: exact, each step noised, the moment noised, a share of a sum."""

from typing import Any

from fedpower.errors import InputError
from fedpower.privacy.data_version import DataVersion
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments, SystemNoise
from fedpower.protocol.identity import Identity
from fedpower.protocol.moment_releases import MomentReleases
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.releases import ExactReleases, Moment
from fedpower.protocol.secure_releases import SecureReleases
from fedpower.protocol.silo import Releases
from fedpower.protocol.step_releases import StepReleases
from fedpower.protocol.study import Study


def open_releases(
    name: str,
    moment: Moment,
    study: Study,
    *,
    ledger: Ledger | None,
    identity: Identity | None = None,
    source: NoiseSource | None = None,
    data: DataVersion | None = None,
) -> Releases | SecureReleases:
    """Return what a silo lets out of ``study``: exact answers where nothing is private.

    Parameters
    ----------
    name, moment
        The silo and its rows.
    study
        The agreed terms.
    ledger
        The silo's own; a private study needs one.
    identity
        The key with which the silo signs; a secure sum needs one.
    source
        Where noise comes from; the operating system unless an experiment injects its own.
    data
        Which rows these are, as their operator declares them; None where the ledger lives no longer.
    """
    budget = budget_of(study)
    if budget is None:
        return ExactReleases(moment, center=study.center)
    if ledger is None:
        raise InputError(
            "a private study must be charged to a ledger, got none; create one with "
            "`fedpower budget init`"
        )
    if isinstance(source, SeededNoiseForExperiments) and not ledger.for_experiments:
        raise InputError(
            f"the ledger of silo {name!r} must book private releases, got seeded noise, which whoever "
            "knows the seed takes off again; leave the noise to the operating system, or make a ledger "
            "for experiments"
        )
    means: dict[str, Any] = {
        "ledger": ledger,
        "source": source or SystemNoise(),
        "data": data,
    }
    if study.aggregation == "secure":
        if identity is None:
            raise InputError(
                f"every silo of a secure sum must have an identity, got none for {name!r}; make one with "
                "`fedpower identity new`"
            )
        return SecureReleases(name, moment, study, budget, identity=identity, **means)
    kind = MomentReleases if budget.mode == "moment" else StepReleases
    return kind(moment, study, budget, **means)
