"""The audit of clipped products: sound silos pass, planted errors are caught."""

import numpy as np
import pytest

from fedpower.experiments.audit import Game, audit_mode, audit_scores, study_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.sums import lattice
from fedpower.sums.local import LocalMoment

TERMS = {"epsilon": 4.0, "delta": 1e-5}
RUNS = 400
STUDY = study_of("clipped", n_steps=5, **TERMS)


def least_epsilon(*, long: bool, seed: int) -> float:
    """A lower bound on ε at confidence 0.999: a sound silo is accused once in a thousand seeds."""
    pair = (np.eye(3)[0], np.eye(3)[1]) if long else None
    game = Game(STUDY, 50, SeededNoiseForExperiments(seed), pair=pair)
    return audit_scores(*game.play(RUNS), delta=1e-5, confidence=0.999).epsilon_lower


def test_the_worst_rows_take_nearly_all_of_the_budget():
    report = audit_mode("clipped", n_runs=20, n_steps=5, **TERMS)
    assert 0.97 * 4.0 < report.reachable_epsilon <= 4.0


@pytest.mark.audits
def test_clipped_products_keep_their_promise_and_half_of_their_noise_does_not():
    """Fails on sound code once in a thousand machines' noise, and misses half the noise as rarely."""
    assert not audit_mode("clipped", n_runs=RUNS, n_steps=5, confidence=0.999, **TERMS).violation
    assert audit_mode("clipped", n_runs=RUNS, n_steps=5, noise_factor=0.5, **TERMS).violation


@pytest.mark.audits
def test_rows_that_are_long_in_the_basis_are_hidden_by_clipping_and_shown_without(monkeypatch):
    assert least_epsilon(long=True, seed=1) <= 4.0

    def forgotten(coordinates, clip):
        unit = float(lattice.SIDE) * lattice.BASIS_SIDE * clip
        return np.trunc(coordinates * (lattice.CLIP_SIDE / unit))

    monkeypatch.setattr(lattice, "_clipped", forgotten)
    assert least_epsilon(long=True, seed=2) > 4.0


@pytest.mark.audits
def test_a_basis_that_depends_on_rows_that_were_not_released_is_caught(monkeypatch):
    assert least_epsilon(long=False, seed=3) <= 4.0
    sound = LocalMoment.clipped

    def turned(moment, question=None, *, kappa=0):
        """The plane is turned towards the last row first."""
        if question is None:
            return sound(moment)
        *_, last = moment.source.blocks(10**6)
        basis = question.real_basis + 0.3 * np.outer(last[-1], [1.0, 0.0])
        basis = np.linalg.qr(basis)[0]
        asked = lattice.ClippedQuestion.of(basis, question.clip)
        return sound(moment, asked, kappa=kappa)

    monkeypatch.setattr(LocalMoment, "clipped", turned)
    assert least_epsilon(long=False, seed=4) > 4.0
