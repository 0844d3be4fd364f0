"""The distinguishing game against a secure sum: its coordinator's view, helped by a colluding silo."""

import math
from contextlib import ExitStack
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from fedpower.experiments.audit_worlds import (
    SILO,
    Progress,
    budget_for,
    neighbours,
    play_worlds,
    rows_as_held,
)
from fedpower.linalg.words import Words
from fedpower.privacy.integer_release import packed_integers
from fedpower.privacy.ledger import Ledger
from fedpower.privacy.noise import NoiseSource, SeededNoiseForExperiments
from fedpower.privacy.sensitivity import pack
from fedpower.privacy.shares import shared_noise
from fedpower.protocol.coordinator import Coordinator
from fedpower.protocol.driving import drive, in_turn
from fedpower.protocol.messages import MaskedMoment
from fedpower.protocol.releases import Moment
from fedpower.protocol.roll import Identity
from fedpower.protocol.secure_releases import share_of_sum, total
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.solvers.upload import SecureSettings, secure
from fedpower.protocol.study import Study

Array = NDArray[np.float64]

HONEST, COLLUDER = "honest", "colluder"
RUN = "audit"


def secured(study: Study) -> tuple[Study, dict[str, Identity]]:
    """Return a moment study as that of a secure sum over three silos, of which one colludes."""
    keys = {name: Identity.new() for name in (SILO, HONEST, COLLUDER)}
    terms = replace(
        study,
        aggregation="secure",
        colluders=1,
        identities=tuple((name, key.public) for name, key in keys.items()),
        min_silos=len(keys),
    )
    return terms, keys


class SecureGame:
    """Both worlds of the audited silo in a secure sum, and the score of a coordinator's view."""

    def __init__(self, study: Study, n_rows: int, source: NoiseSource) -> None:
        self._study, self._keys = secured(study)
        self._budget = budget_for(self._study)
        self._source = source
        self._noise = shared_noise(self._budget, [n_rows] * len(self._keys))
        before, after = (
            rows_as_held(rows, study, world) for world, rows in enumerate(neighbours(study, n_rows))
        )
        self._worlds = (before, after)
        self._others = before  # rows that the attacker knows
        std = math.sqrt(2) * self._noise.share.std(self._noise.n_rows)
        moved = (self._packed(after) - self._packed(before)) / len(self._keys)
        self._direction = moved / std**2
        self.mu = float(np.linalg.norm(moved)) / std
        self._played = 0

    def play(self, n_runs: int, on_progress: Progress | None) -> tuple[Array, Array]:
        """Return the scores of both worlds."""
        return play_worlds(self._score, n_runs, on_progress)

    def _score(self, world: int) -> float:
        """Return the score of one run of the whole protocol, with fresh silos, keys and ledgers."""
        self._played += 1
        held = {SILO: self._worlds[world], HONEST: self._others, COLLUDER: self._others}
        known = self._played  # the colluder's noise, which it tells the coordinator
        with ExitStack() as stack:
            silos = {name: self._silo(name, rows, known, stack) for name, rows in held.items()}
            uploads = self._uploads(silos)
        seen = total(body.words for body in uploads.values()) - share_of_sum(
            self._others, self._noise, with_mean=self._study.center, source=SeededNoiseForExperiments(known)
        )
        half = self._study.n_features * (self._study.n_features + 1) // 2
        summary = packed_integers(
            Words(low=seen[:half]),
            seen[half:-1] if self._study.center else None,
            int(seen[-1]),
            n_rows=self._noise.n_rows,
            noise=self._noise.share,
        )
        return float(self._direction @ summary)

    def _uploads(self, silos: dict[str, Silo]) -> dict[str, MaskedMoment]:
        """Return what came in when the protocol was run over the silos."""
        settings = SecureSettings(study=self._study, rank=1, run=RUN)
        coordinator = Coordinator(
            secure(settings, np.random.default_rng(0)), list(silos), study=self._study, run=RUN
        )
        drive(coordinator, in_turn(silos))
        uploads: dict[str, MaskedMoment] = coordinator.history[-1].answers
        return uploads

    def _silo(self, name: str, rows: Moment, known: int, stack: ExitStack) -> Silo:
        budget = self._budget
        ledger = Ledger.in_memory(budget.epsilon, budget.delta, silo=name)
        source = SeededNoiseForExperiments(known) if name == COLLUDER else self._source
        return assemble(
            name,
            rows,
            self._study,
            ledger=stack.enter_context(ledger),
            identity=self._keys[name],
            source=source,
        )

    def _packed(self, rows: Moment) -> Array:
        mean = rows.mean() if self._study.center else None
        return pack(rows.moment(), mean, rows.trace())
