"""Secure sums as a coordinator asks for them: one roll, then one sum after another over it."""

import itertools
from collections.abc import Callable, Generator, Iterable
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.linalg.words import Words
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.integer_release import packed_integers
from fedpower.privacy.shares import SumNoise, shared_noise, sum_noise
from fedpower.protocol.exchange import Ask, Round
from fedpower.protocol.messages import AskMasked, AskSum, CallRoll, KeyGone, MaskedMoment, MaskedSum, Present
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.roll import Place, Roll, n_neighbours
from fedpower.protocol.secure_releases import total
from fedpower.protocol.study import Study

Array = NDArray[np.float64]
Found = TypeVar("Found")

MOST_FREE_ROLLS = 20
"""So many rolls of a run that died at nobody's cost, and something else is wrong."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Total:
    """A secure sum of whole numbers, noised."""

    integers: NDArray[np.int64]
    noise: SumNoise

    @property
    def values(self) -> Array:
        """The sum in the units of the silos' numbers; each has noise of `std`."""
        return np.ldexp(self.integers.astype(np.float64), -self.noise.fineness)

    @property
    def std(self) -> float:
        """The standard deviation of the noise in each of `values`."""
        return self.noise.std


class _LostError(Exception):
    """Somebody on the roll did not upload: the attempt is lost."""

    def __init__(self, opened: Round, uploads: Iterable[str]) -> None:
        super().__init__()
        self.opened = opened
        self.uploads = set(uploads)


@dataclass(slots=True, kw_only=True)
class Sums:
    """One attempt at the sums of a study, over one roll; handed to the script of :func:`secure_sums`."""

    study: Study
    roll: Roll
    n_done: int = field(default=0, init=False)

    @property
    def sizes(self) -> dict[str, int]:
        """Rows by silo, of those whose numbers are summed: public."""
        return self.roll.sizes

    def total(
        self, label: str, public: bytes = b"", *, sensitivity: Fraction | float, per_row: int
    ) -> Generator[Ask, Round, Total]:
        """Return the study's next sum, which is called ``label``, as a :class:`Total`."""
        noise = self.noise(self.n_done, sensitivity=sensitivity, per_row=per_row)
        uploads = yield from self._next(label, public)
        return Total(integers=total(each.words for each in uploads.values()), noise=noise)

    def noise(self, index: int, *, sensitivity: Fraction | float, per_row: int) -> SumNoise:
        """Return the noise that the study's sum of this number has, from public facts."""
        budget = budget_of(self.study)
        assert budget is not None
        return sum_noise(
            budget.price_of_sum(index).multiplier,
            sensitivity=sensitivity,
            per_row=per_row,
            sizes=self.sizes.values(),
            colluders=self.study.colluders,
        )

    def moment(self, public: bytes = b"") -> Generator[Ask, Round, Array]:
        """Return the packed, noised summary of all rows: the sum of the moment, which is next."""
        uploads = yield from self._next(MOMENT, public)
        return summed(uploads, self.roll, self.study)

    def _next(self, label: str, public: bytes) -> Generator[Ask, Round, dict[str, MaskedMoment | MaskedSum]]:
        """Return everybody's upload of the next sum, in the roll's order."""
        listed = self.study.sums
        assert not listed or listed[self.n_done].label == label, "sums come in the study's order"
        content = self.roll.to_bytes()
        opened = yield Ask(
            body=AskSum(roll=content, index=self.n_done, label=label, public=public)
            if listed
            else AskMasked(roll=content),
            silos=tuple(self.sizes),
            step=self.n_done + 1,
        )
        answers = opened.answers
        uploads = {
            name: answers[name]
            for name in self.sizes
            if isinstance(answers.get(name), MaskedMoment | MaskedSum)
        }
        if len(uploads) < len(self.roll.places):
            raise _LostError(opened, uploads)
        opened.notes["change"] = 0.0
        self.n_done += 1
        return uploads


_Script = Callable[[Sums], Generator[Ask, Round, Found]]
"""Asks for the sums of a study one by one, and makes something of them; begun anew in each attempt."""


def secure_sums(
    study: Study, *, run: str, enrolled: Iterable[str], script: _Script[Found]
) -> Generator[Ask, Round, Found]:
    """Return what ``script`` makes of the sums of a study, of which the coordinator sees nothing else."""
    everybody = tuple(enrolled)
    there = everybody
    attempts = free = 0
    for number in itertools.count():
        called = yield Ask(body=CallRoll(attempt=number), silos=there, step=0)
        roll = _roll(called.answers, study, run=run, attempt=number)
        if len(roll.places) < study.min_silos:
            break
        sums = Sums(study=study, roll=roll)
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
        "a secure sum must have {fewest} silos that all upload within {attempts} attempts, but too "
        "few were left; nothing was learned from the attempts made: bring the others back, or agree "
        "on a study with a smaller {min_silos}",
        fewest=study.min_silos,
        attempts=study.attempts,
    )


def summed(uploads: dict[str, Any], roll: Roll, study: Study) -> Array:
    """Return the noised, packed summary of the pooled rows from everybody's upload."""
    budget = budget_of(study)
    assert budget is not None
    noise = shared_noise(budget, roll.sizes.values())
    integers = total(uploads[place.silo].words for place in roll.places)
    half = study.n_features * (study.n_features + 1) // 2
    return packed_integers(
        Words(low=integers[:half]),
        integers[half:-1] if study.center else None,
        int(integers[-1]),
        n_rows=noise.n_rows,
        noise=noise.share,
    )


def _roll(answers: dict[str, Present], study: Study, *, run: str, attempt: int) -> Roll:
    """Return the roll of those who can be charged once more; `receiving` has seen to the signatures."""
    places = [
        Place(silo=name, n_rows=each.n_rows, key=each.key, signature=each.signature)
        for name, each in ((name, answers.get(name)) for name, _ in study.identities)
        if each is not None and each.charged < study.attempts
    ]
    return Roll(
        study=study.digest,
        run=run,
        attempt=attempt,
        places=tuple(places),
        neighbours=n_neighbours(len(places), study.colluders),
    )


def _may_be_charged(opened: Round) -> bool:
    """Return whether an attempt may have been charged by anybody: who is silent may have uploaded."""
    gone = {name for name, body in opened.answers.items() if isinstance(body, KeyGone)}
    return bool(set(opened.asked) - gone - set(opened.refused))
