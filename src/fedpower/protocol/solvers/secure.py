"""Secure sum: a roll call, one masked upload, and the eigendecomposition of what they add up to.

All or nothing. If anybody on the roll does not upload, what has come in is uniform noise, and the next
attempt calls a new roll. No sum is ever taken over a part of a roll.

A roll dies with a silo that is started again before it has uploaded, for keys are in memory only. The
silo says so (`KeyGone`), the round closes and is written down with that, and the next roll is called. A
coordinator that takes up a run asks an open roll once more: it hears the same, or gets from the silos'
ledgers what was uploaded already.
"""

import itertools
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.linalg.words import Words
from fedpower.privacy.integer_release import packed_integers
from fedpower.privacy.shares import shared_noise
from fedpower.privacy.summary import unpack
from fedpower.protocol.exchange import Ask, Exchange, Round
from fedpower.protocol.masks import total
from fedpower.protocol.messages import read_only
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.roll import Place, Roll
from fedpower.protocol.secure_messages import AskMasked, CallRoll, KeyGone, MaskedMoment, Present
from fedpower.protocol.solvers.opening import enrol
from fedpower.protocol.solvers.signal import Rank
from fedpower.protocol.solvers.solution import Solution
from fedpower.protocol.solvers.upload import decompose
from fedpower.protocol.study import Study

Array = NDArray[np.float64]

MOST_FREE_ROLLS = 20
"""So many rolls of a run that died at nobody's cost, and something else is wrong."""


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
    time, are not called to the next attempt unless it needs them; those that were started again are.
    Every attempt is charged by those who uploaded, and one in which nobody can have is not counted.
    """
    del rng  # nothing is random here
    study = settings.study
    enrolled = yield from enrol()
    there = tuple(enrolled)
    attempts = free = 0
    for number in itertools.count():
        called = yield Ask(body=CallRoll(attempt=number), silos=there, step=0)
        roll = _roll(called.answers, study, run=settings.run, attempt=number)
        if len(roll.places) < study.min_silos:
            break
        opened = yield Ask(body=AskMasked(roll=roll.to_bytes()), silos=tuple(roll.sizes), step=1)
        uploads: dict[str, MaskedMoment] = {
            name: body for name, body in opened.answers.items() if isinstance(body, MaskedMoment)
        }
        if len(uploads) == len(roll.places):
            opened.notes["change"] = 0.0
            return _solution(uploads, roll, settings)
        if _may_be_charged(opened):
            attempts += 1
        else:
            free += 1
        if attempts == study.attempts or free == MOST_FREE_ROLLS:
            break
        there = tuple(
            name
            for name, body in opened.answers.items()
            if name in uploads or isinstance(body, KeyGone)
        )
        if len(there) < study.min_silos:
            there = tuple(enrolled)
    raise ProtocolError(
        f"a secure sum must have {study.min_silos} silos that all upload within {study.attempts} "
        "attempts, but too few were left; nothing was learned from the attempts made: bring the "
        "others back, or agree on a study with a smaller min_silos"
    )


def summed(uploads: dict[str, MaskedMoment], roll: Roll, study: Study) -> Array:
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
    """Return the roll of those whose place is signed by the identity that the study lists for them."""
    places = []
    for name, public in study.identities:
        if name not in answers or not 0 <= answers[name].charged < study.attempts:
            continue
        told = answers[name]
        place = Place(silo=name, n_rows=told.n_rows, key=told.key, signature=told.signature)
        if place.is_signed(public, study=study.digest, run=run, attempt=attempt):
            places.append(place)
    return Roll(study=study.digest, run=run, attempt=attempt, places=tuple(places))


def _may_be_charged(opened: Round) -> bool:
    """Return whether an attempt may have been charged by anybody: who is silent may have uploaded."""
    gone = {name for name, body in opened.answers.items() if isinstance(body, KeyGone)}
    return bool(set(opened.asked) - gone - set(opened.refused))


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
