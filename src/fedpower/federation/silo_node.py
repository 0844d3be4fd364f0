"""A silo as its organisation runs it: its own file and the study's, put together and checked."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from fedpower.engines.embedded import read_for, survey_silos
from fedpower.errors import BudgetError
from fedpower.federation.silo_file import SiloFile
from fedpower.federation.study_file import StudyFile
from fedpower.privacy.budget import Budget
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.study import Study
from fedpower.rows.fingerprint import fingerprint, reading_of
from fedpower.rules.problems import every_problem
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Survey


@dataclass(frozen=True, slots=True, kw_only=True)
class SiloNode:
    """A silo that is ready to answer."""

    silo: Silo
    study: Study
    budget: Budget | None
    moment: LocalMoment | Survey
    ledger: Ledger | None
    fingerprint: str
    data_version: str | None = None

    @property
    def affordable(self) -> bool:
        """Whether the ledger can pay for the whole study, or for one more attempt at a secure sum."""
        try:
            self.silo.releases.check_affordable()
        except BudgetError:
            return False
        return True


@contextmanager
def open_silo(
    study_file: StudyFile, silo_file: SiloFile, *, noise: NoiseSource | None = None
) -> Iterator[SiloNode]:
    """Give a silo that is ready to answer, its rows read; refuse before anything is charged."""
    silo_file.check_agreed(study_file)
    study, _, _ = study_file.terms()
    private = study.is_private
    name = silo_file.name
    sources = {name: silo_file.source(study_file)}
    treatment = study_file.treatment
    moment: LocalMoment | Survey
    with every_problem(sources.values()):
        if treatment is None:
            moment = survey_silos(sources, fingerprinted=private)[name]
        else:
            moment = read_for(study, sources, treatment, fingerprinted=private)[name]
    found = fingerprint(moment.source) if private else ""
    ledger = silo_file.open_ledger() if private else None
    try:
        data = silo_file.data_version(study_file, found, reading_of(moment.source)) if private else None
        silo = assemble(
            name,
            moment,
            study,
            ledger=ledger,
            identity=silo_file.identity() if study.aggregation == "secure" else None,
            source=noise,
            data=data,
        )
        yield SiloNode(
            silo=silo,
            study=study,
            budget=budget_of(study),
            moment=moment,
            ledger=ledger,
            fingerprint=found,
            data_version=None if data is None else data.version,
        )
    finally:
        if ledger is not None:
            ledger.close()
