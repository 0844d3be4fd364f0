"""Secure sum: a roll call, one masked upload, and the eigendecomposition of what they add up to.

All or nothing. If anybody on the roll does not upload, what has come in is uniform noise; the next
attempt calls a new roll of those who did. No sum is ever taken over a part of a roll.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.privacy.shares import shared_noise
from fedpower.privacy.summary import summary_size, unpack
from fedpower.protocol.exchange import Ask, Exchange
from fedpower.protocol.masks import total
from fedpower.protocol.messages import read_only
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.roll import Place, Roll
from fedpower.protocol.secure_messages import AskMasked, CallRoll, MaskedMoment, Present
from fedpower.protocol.solvers.opening import enrol
from fedpower.protocol.solvers.signal import Rank
from fedpower.protocol.solvers.solution import Solution
from fedpower.protocol.solvers.upload import decompose
from fedpower.protocol.study import Study

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSettings:
    """What to make of the sum.

    Attributes
    ----------
    study
        The terms; they hold the silos' identities and how many attempts there may be.
    rank
        k, a fraction of variance, or ``"noise"``.
    run
        The run's identity, which silos sign; given by whoever makes the coordinator.
    """

    study: Study
    rank: Rank
    run: str = ""


def secure(settings: SecureSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment, of which the coordinator sees nothing else.

    Two rounds, if everybody who answers the roll call uploads. Silos that refuse, or do not answer in
    time, are not on the next attempt's roll; every attempt is charged by those who uploaded.
    """
    del rng  # nothing is random here
    study = settings.study
    there = yield from enrol()
    for attempt in range(study.attempts):
        called = yield Ask(body=CallRoll(attempt=attempt), silos=tuple(there), step=0)
        roll = _roll(called.answers, study, run=settings.run, attempt=attempt)
        if len(roll.places) < study.min_silos:
            break
        opened = yield Ask(body=AskMasked(roll=roll.to_bytes()), silos=tuple(roll.sizes), step=1)
        uploads: dict[str, MaskedMoment] = {
            name: body for name, body in opened.answers.items() if _fits(body, study)
        }
        if len(uploads) == len(roll.places):
            opened.notes["change"] = 0.0
            return _solution(uploads, roll, settings)
        there = dict.fromkeys(uploads)
    raise ProtocolError(
        f"a secure sum must have {study.min_silos} silos that all upload within {study.attempts} "
        "attempts, but too few were left; nothing was learned from the attempts made: bring the "
        "others back, or agree on a study with a smaller min_silos"
    )


def summed(uploads: dict[str, MaskedMoment], roll: Roll, study: Study) -> Array:
    """Return the noised, packed summary of the pooled rows from everybody's upload."""
    budget = budget_of(study)
    assert budget is not None
    spacing = shared_noise(budget, roll.sizes.values()).lattice.spacing
    integers = total(uploads[place.silo].words for place in roll.places)
    return integers.astype(np.float64) * spacing


def _roll(answers: dict[str, Present], study: Study, *, run: str, attempt: int) -> Roll:
    """Return the roll of those whose place is signed by the identity that the study lists for them."""
    places = []
    for name, public in study.identities:
        if name not in answers:
            continue
        told = answers[name]
        place = Place(silo=name, n_rows=told.n_rows, key=told.key, signature=told.signature)
        if place.is_signed(public, study=study.digest, run=run, attempt=attempt):
            places.append(place)
    return Roll(study=study.digest, run=run, attempt=attempt, places=tuple(places))


def _fits(body: MaskedMoment, study: Study) -> bool:
    return body.words.size == summary_size(study.n_features, with_mean=study.center)


def _solution(uploads: dict[str, MaskedMoment], roll: Roll, settings: SecureSettings) -> Solution:
    study = settings.study
    budget = budget_of(study)
    assert budget is not None
    vector = summed(uploads, roll, study)
    moment, mean, trace = unpack(vector, study.n_features, with_mean=study.center)
    if mean is not None:
        moment -= np.outer(mean, mean)
        trace -= float(mean @ mean)
    return decompose(
        moment,
        center=None if mean is None else read_only(mean),
        total_variance=trace,
        sizes=roll.sizes,
        rank=settings.rank,
        iteration_rank=study.iteration_rank,
        noise_std=pooled_std(budget, roll.sizes),
        kept=False,
    )
