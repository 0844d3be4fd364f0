"""What the private modes share: numbers leave noised once, charged before, the same for ever.

Every number that leaves goes through :meth:`Ledger.release` [docs/privacy.md, rules 1 and 2]: it is
charged and stored in one durable transaction, and the same question gets the stored bytes again.
"""

import hashlib

from fedpower.privacy.budget import Budget
from fedpower.privacy.data_version import THIS_FIT, DataVersion
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource
from fedpower.protocol.private_study import study_mu
from fedpower.protocol.releases import Moment
from fedpower.protocol.study import Study


class ChargedReleases:
    """A silo's rows, its ledger and the names under which it books releases.

    Parameters
    ----------
    moment
        The silo's rows, of norm at most 1.
    study, budget
        The agreed terms and the price list that follows from them.
    ledger
        The silo's own.
    source
        Where noise comes from.
    data
        Which rows these are, as their operator declares them; the ledger refuses any but those of their
        version. None for a ledger that lives no longer than the rows.
    """

    def __init__(
        self,
        moment: Moment,
        study: Study,
        budget: Budget,
        *,
        ledger: Ledger,
        source: NoiseSource,
        data: DataVersion | None,
    ) -> None:
        self._moment = moment
        self._study = study
        self._budget = budget
        self._ledger = ledger
        self._source = source
        self._data = data
        self._booked = THIS_FIT if data is None else ledger.booked_as(data)
        self._digest = study.digest
        self._run = ""

    @property
    def n_rows(self) -> int:
        """The public number of rows."""
        return self._moment.n_rows

    def begin(self, run: str) -> None:
        """Take note of the run whose question is answered next."""
        self._run = run

    def check_affordable(self) -> None:
        """Refuse now, in one sentence, a study that the ledger could not pay for to the end."""
        budget = self._budget
        mu = study_mu(budget, self.n_rows)
        slack = budget.slack_delta * budget.n_releases
        self._ledger.check_affordable(study=self._booked_as, mu=mu, slack_delta=slack)

    @property
    def _booked_as(self) -> str:
        """The ledger's name for this study on this version: another version is another release."""
        return f"{self._study.ledger_name}/{self._booked.name}"

    def _key(self, kind: str, *parts: bytes) -> str:
        """Return the identity of a question: equal questions get the stored answer."""
        digest = hashlib.sha256()
        for part in (kind.encode(), self._booked.key.encode(), *parts):
            digest.update(len(part).to_bytes(8, "little"))
            digest.update(part)
        return f"{kind}:{digest.hexdigest()}"
