"""Queries as a coordinator asks them: of silos that noise alone, or as secure sums in one session."""

import itertools
import math
from collections.abc import Callable, Generator, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.linalg import symmetric_of
from fedpower.protocol.coordinator import Ask, Round
from fedpower.protocol.messages import (
    AskQuery,
    KeyGone,
    Member,
    OpenSession,
    QueryAnswer,
    Session,
    SessionKey,
)
from fedpower.protocol.query import Query, moment_of
from fedpower.protocol.secure import n_neighbours, total
from fedpower.protocol.study import Study, budget_of, pooled_std

Array = NDArray[np.float64]
Found = TypeVar("Found")

MOST_FREE_ROLLS = 20
"""So many sessions of a run that died at nobody's cost, and something else is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """The sum of silos' noised answers to a query, in the units of its numbers."""

    values: Array
    stds: tuple[float, ...]
    """The noise in each group of the numbers."""
    by_silo: Mapping[str, Array]
    """What each silo answered; that of nobody, called "", where only the sum can be read."""


class _LostError(Exception):
    """A silo of the session did not upload: the attempt is lost."""

    def __init__(self, opened: Round, uploads: Iterable[str]) -> None:
        super().__init__()
        self.opened = opened
        self.uploads = set(uploads)


@dataclass(slots=True, kw_only=True)
class Sums:
    """Asks for the queries of a study: as sums in a session, or each silo's answer in plain."""

    study: Study
    sizes: dict[str, int]
    """Rows by silo, of those whose numbers are summed: public."""
    session: Session | None = None
    n_done: int = field(default=0, init=False)

    def total(self, query: Query, *, step: int | None = None) -> Generator[Ask, Round, Total]:
        """Return the sum of all silos' answers; who misses one that is not masked is asked nothing more."""
        answers = yield from self._answers(query, self.n_done + 1 if step is None else step)
        budget = budget_of(self.study)
        if budget is None:
            exact = {name: words.view(np.int64).astype(np.float64) for name, words in answers.items()}
            return Total(values=np.sum(list(exact.values()), axis=0), stds=(0.0,), by_silo=exact)
        if self.session is not None:
            noise = budget.noise(query.label, query.sensitivity, tuple(self.sizes.values()))
            values = noise.values(total(answers.values()))
            return Total(values=values, stds=noise.stds, by_silo={"": values})
        noises = {name: budget.noise(query.label, query.sensitivity, (self.sizes[name],)) for name in answers}
        read = {name: noises[name].values(words.view(np.int64)) for name, words in answers.items()}
        return Total(
            values=np.sum(list(read.values()), axis=0),
            stds=tuple(
                math.hypot(*stds) for stds in zip(*(noise.stds for noise in noises.values()), strict=True)
            ),
            by_silo=read,
        )

    @property
    def moment_std(self) -> float:
        """The noise on the diagonal of :meth:`moment`."""
        budget = budget_of(self.study)
        assert budget is not None, "exact moments are not summed as queries"
        return pooled_std(budget, self.sizes)

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, tuple[Array, Array | None, float]]:
        """Return the moment of all rows about their mean, that mean, and the trace."""
        query = moment_of(self.study, public)
        found = yield from self.total(query)
        below, mean, trace = query.read(found.values, sum(self.sizes.values()))
        moment = symmetric_of(below, self.study.n_features)
        if mean is None:
            return moment, None, trace
        return moment - np.outer(mean, mean), mean, trace - float(mean @ mean)

    def _answers(self, query: Query, step: int) -> Generator[Ask, Round, dict[str, NDArray[np.uint64]]]:
        """Return everybody's answer to the next query, in the order of the sizes."""
        labels = [terms.label for terms in self.study.queries]
        index = labels.index(query.label)
        assert self.session is None or index == self.n_done, "sums come in the study's order"
        ask = AskQuery(index=index, label=query.label, public=query.public, session=self.session)
        opened = yield Ask(body=ask, silos=tuple(self.sizes), step=step)
        found = {
            name: opened.answers[name].words
            for name in self.sizes
            if isinstance(opened.answers.get(name), QueryAnswer)
        }
        if self.session is not None and len(found) < len(self.sizes):
            raise _LostError(opened, found)
        opened.notes["change"] = 0.0
        self.n_done += 1
        self.sizes = {name: self.sizes[name] for name in found}
        return found


_Script = Callable[[Sums], Generator[Ask, Round, Found]]
"""Asks for the queries of a study one by one, and makes something of them; begun again in each attempt."""


def summed(
    study: Study, *, run: str, enrolled: dict[str, int], script: _Script[Found]
) -> Generator[Ask, Round, Found]:
    """Return what ``script`` makes of the answers to a study's queries, by the channel that it agreed on."""
    if study.aggregation == "plain":
        return (yield from script(Sums(study=study, sizes=enrolled)))
    return (yield from secure_sums(study, run=run, enrolled=enrolled, script=script))


def secure_sums(
    study: Study, *, run: str, enrolled: Iterable[str], script: _Script[Found]
) -> Generator[Ask, Round, Found]:
    """Return what ``script`` makes of the sums of a study, of which the coordinator sees nothing else."""
    everybody = tuple(enrolled)
    there = everybody
    attempts = free = 0
    for number in itertools.count():
        called = yield Ask(body=OpenSession(attempt=number), silos=there, step=0)
        session = _session(called.answers, study, run=run, attempt=number)
        if len(session.members) < study.min_silos:
            break
        sums = Sums(study=study, sizes=session.sizes, session=session)
        try:
            return (yield from script(sums))
        except _LostError as lost:
            opened, uploads = lost.opened, lost.uploads
        if sums.n_done or _may_be_charged(opened):
            attempts += 1
        else:
            free += 1
        if attempts == study.attempts or free == MOST_FREE_ROLLS:
            break
        there = tuple(
            name for name, body in opened.answers.items() if name in uploads or isinstance(body, KeyGone)
        )
        if len(there) < study.min_silos:
            there = everybody
    raise ProtocolError(
        f"a secure sum must have {study.min_silos} silos that all upload within "
        f"{study.attempts} attempts, but too few were left; nothing was learned from the "
        "attempts made: bring the others back, or agree on a study with a smaller "
        "min_silos"
    )


def _session(answers: dict[str, SessionKey], study: Study, *, run: str, attempt: int) -> Session:
    """Return the session of those who can be charged once more; `receiving` has seen to the signatures."""
    places = [
        Member(silo=name, n_rows=each.n_rows, key=each.key, signature=each.signature)
        for name, each in ((name, answers.get(name)) for name, _ in study.identities)
        if each is not None and each.charged < study.attempts
    ]
    return Session(
        study=study.digest,
        run=run,
        attempt=attempt,
        members=tuple(places),
        neighbours=n_neighbours(len(places), study.colluders),
    )


def _may_be_charged(opened: Round) -> bool:
    """Return whether an attempt may have been charged by anybody: who is silent may have uploaded."""
    gone = {name for name, body in opened.answers.items() if isinstance(body, KeyGone)}
    return bool(set(opened.asked) - gone - set(opened.refused))
