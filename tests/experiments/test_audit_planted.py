"""Errors that are planted in the product are caught by the game, which clears it without them."""

from dataclasses import replace

import numpy as np
import pytest
from test_audit_bounds import EMPTY_OR_SMALL, game_with

from fedpower.experiments.audit import Game, audit_mode, audit_scores, study_of
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.noise import SeededNoiseForExperiments
from fedpower.protocol import query as queries
from fedpower.rows import units
from fedpower.rows.units import PARTS, TALLY_PARTS
from fedpower.sums import lattice
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import STAGES

pytestmark = pytest.mark.audits

AT = {"epsilon": 4.0, "delta": 1e-5}


def audited(mode, seed, n_runs, **terms):
    source = SeededNoiseForExperiments(seed)
    return audit_mode(mode, n_runs=n_runs, source=source, **{**AT, "confidence": 0.999, **terms})


def least_epsilon(game, n_runs):
    """A lower bound on ε at confidence 0.999: a sound silo is accused once in a thousand seeds."""
    return epsilon_of(audit_scores(*game.play(n_runs), confidence=0.999), 1e-5)


def _in_full(monkeypatch):
    """Every row of a person counts in full, as it did before persons counted."""
    one = units.Weights
    monkeypatch.setattr(one, "shares", lambda own: np.full(own.counts.shape, 1.0 * PARTS))
    monkeypatch.setattr(one, "exact", lambda own: np.ones(own.counts.shape))
    monkeypatch.setattr(one, "tallies", lambda own: np.full(own.counts.shape, TALLY_PARTS))


def _by_spelling(monkeypatch):
    """7, 7.0 and 7.00 are three persons, as they were before there was one key."""
    monkeypatch.setattr(units, "_in_one_spelling", lambda texts: texts)


def _for_a_row(monkeypatch):
    """Counts have noise for one row."""
    right = queries.of_counts
    monkeypatch.setattr(queries, "of_counts", lambda size, **how: right(size))


@pytest.mark.parametrize(
    ("mode", "plant"),
    [
        *((mode, plant) for mode in ("covariance", "step", "prepared") for plant in (_in_full, _by_spelling)),
        ("scores", _in_full),
        ("scores", _for_a_row),
    ],
)
def test_a_person_who_counts_for_more_than_one_is_caught(mode, plant, monkeypatch):
    plant(monkeypatch)
    how = {"n_rows": 20} if mode == "scores" else {"n_steps": 2, "confidence": 1 - 1e-6}
    n_runs = 300 if mode == "scores" else 400
    assert audited(mode, 6 if mode == "scores" else 1, n_runs, unit="person", **how).violation


def test_noise_for_one_place_that_changes_in_place_of_two_shows_in_endless_runs(monkeypatch):
    right = queries.of_counts

    def halved(size, **how):
        found = right(size, **how)
        return replace(found, squared=found.squared / 2)

    monkeypatch.setattr(queries, "of_counts", halved)
    small = audited("scores", 4, 20, epsilon=1.0, n_rows=20)
    assert small.reachable_epsilon > 1.1 * small.claimed_epsilon


SIZES = {terms.label: terms.size for terms in study_of("prepared", n_steps=1, n_features=12, **AT).queries}


@pytest.mark.parametrize("kind", ["octaves", "bins", "zoom", "means"])
def test_a_sensitivity_that_forgets_the_number_of_columns_is_caught(kind, monkeypatch):
    """What endless runs would show is over the promise for each, and 600 runs show it of the means."""
    name = "of_means" if kind == "means" else "of_counts"
    right = getattr(queries, name)

    def wrong(size, **how):
        found = right(size, **how)
        asked = kind == "means" or (how.get("counted", 1) > 1 and size == SIZES[kind])
        return replace(found, squared=found.squared / 12) if asked else found

    monkeypatch.setattr(queries, name, wrong)
    report = audited("prepared", 4, 600 if kind == "means" else 20, n_rows=20, n_features=12)
    assert report.reachable_epsilon > 1.2 * report.claimed_epsilon
    assert kind != "means" or report.violation


def test_too_little_noise_on_the_number_of_missing_cells_is_caught(monkeypatch):
    assert least_epsilon(game_with(EMPTY_OR_SMALL, seed=5), 300) <= 4.0
    right = queries.of_means

    def wrong(n_features, **how):
        found = right(n_features, **how)
        *others, cells = found.groups
        return replace(found, groups=(*others, cells._replace(weight=cells.weight * 32**2)))

    monkeypatch.setattr(queries, "of_means", wrong)
    game = game_with(EMPTY_OR_SMALL, seed=6)
    assert game.mus[STAGES.index("means")] > 2.0 * game.study.budget.price("means").mu
    assert least_epsilon(game, 300) > 4.0


def _without_clipping(monkeypatch):
    def forgotten(coordinates, clip):
        unit = float(lattice.SIDE) * lattice.BASIS_SIDE * clip
        return np.trunc(coordinates * (lattice.CLIP_SIDE / unit))

    monkeypatch.setattr(lattice, "_clipped", forgotten)


def _turned_towards_a_row(monkeypatch):
    """The basis depends on rows that were not released: the plane is turned towards the last row first."""
    sound = LocalMoment.clipped

    def turned(rows, question=None, *, kappa=0):
        if question is None:
            return sound(rows)
        *_, last = rows.source.blocks(10**6)
        basis = np.linalg.qr(question.real_basis + 0.3 * np.outer(last[-1], [1.0, 0.0]))[0]
        return sound(rows, lattice.ClippedQuestion.of(basis, question.clip), kappa=kappa)

    monkeypatch.setattr(LocalMoment, "clipped", turned)


@pytest.mark.parametrize("plant", [_without_clipping, _turned_towards_a_row])
def test_clipped_products_that_show_a_row_are_caught(plant, monkeypatch):
    """Rows that are long in the basis are hidden by clipping and shown without."""
    pair = (np.eye(3)[0], np.eye(3)[1]) if plant is _without_clipping else None
    for seed, is_sound in ((3, True), (4, False)):
        if not is_sound:
            plant(monkeypatch)
        game = Game(study_of("clipped", n_steps=5, **AT), 50, SeededNoiseForExperiments(seed), pair=pair)
        assert (least_epsilon(game, 400) <= 4.0) is is_sound
