"""The statement: what was asked against the coordinator, what the sum hides from the public."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from private_silos import COVARIANCE, DELTA, EPSILON, PAPER, STEP, R, T, bounded_rows, private_silo

from budgets import moment_bound
from fedpower.exceptions import InputError
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.coordinator import Round
from fedpower.protocol.outcome import SUMMED, USED_BEFORE, state_privacy
from fedpower.protocol.study import epsilon_within
from runs import drive, make_coordinator, power_settings

SIZES = {"north": 300, "south": 300, "east": 300, "west": 300}


def rounds(*step_numbers):
    return [
        Round(
            number=number,
            kind="steps",
            step=step,
            asked=tuple(SIZES),
            local_steps=step - before,
            answers=dict.fromkeys(SIZES),
        )
        for number, (before, step) in enumerate(pairwise((0, *step_numbers)))
    ]


def state(study, *, sizes=None, asked=None, **how):
    stated = state_privacy(study, sizes or SIZES, rounds(1, 2, 3) if asked is None else asked, **how)
    return stated, *stated.protections


def test_the_paper_s_statement_says_what_its_noise_really_gives():
    stated, coordinator, public = state(PAPER)
    assert stated.asked_epsilon == EPSILON
    assert coordinator.epsilon < EPSILON / 4
    assert coordinator.mu == pytest.approx(PAPER.budget.price("product").mu * math.sqrt(T))
    assert public.epsilon == coordinator.epsilon
    _, of_any_size, _ = state(PAPER, sizes={"small": 10, "large": 10**6})
    assert of_any_size.mu == PAPER.budget.study_mu


@pytest.mark.parametrize("center", [False, True])
def test_the_public_sees_one_over_root_m_of_it_where_sums_hide_silos(center):
    study = replace(COVARIANCE, center=center)
    stated, coordinator, public = state(study, hides_silos=True)
    assert public.mu == pytest.approx(coordinator.mu / 2, rel=1e-12)
    assert public.epsilon == epsilon_within(public.mu, DELTA, 5 * study.budget.distance)
    assert public.epsilon < coordinator.epsilon / 2
    assert SUMMED in stated.assumptions
    for how in ({}, {"hides_silos": True, "used_before": True}):
        stated, coordinator, public = state(study, **how)
        assert (public.epsilon, public.mu) == (coordinator.epsilon, coordinator.mu)
        assert SUMMED not in stated.assumptions
        assert (USED_BEFORE in stated.notes) == ("used_before" in how)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("sizes", [[300], [300, 300], [50, 200, 1000], [7, 9000]])
def test_the_public_s_mu_covers_the_worst_row_of_any_silo(center, sizes):
    study = replace(COVARIANCE, center=center)
    budget, n = study.budget, sum(sizes)
    std = math.hypot(*(s / n * budget.std(s) for s in sizes))
    worst = max(s / n * moment_bound(s, center=center) / std for s in sizes)
    named = {f"silo-{number}": size for number, size in enumerate(sizes)}
    _, coordinator, public = state(study, sizes=named, hides_silos=True)
    assert worst <= public.mu <= coordinator.mu
    assert public.mu == pytest.approx(worst, rel=1e-6)


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("study", [STEP, COVARIANCE], ids=["step", "covariance"])
def test_a_whole_run_spends_what_is_stated_at_every_silo_and_what_was_asked_for(study, center):
    study = replace(study, center=center)
    ledgers = {name: Ledger.in_memory(EPSILON, DELTA, silo=name) for name in ("north", "south")}
    silos = {}
    for seed, (name, ledger) in enumerate(ledgers.items()):
        silos[name] = private_silo(study, ledger, rows=bounded_rows(200, seed=seed), name=name)
    settings = power_settings(study, R, local_steps=2, n_steps=T)
    coordinator = make_coordinator(silos, settings)
    drive(coordinator, silos)
    _, against, _ = state(study, sizes=dict.fromkeys(silos, 200), asked=coordinator.history)
    assert against.delta == DELTA
    for ledger in ledgers.values():
        spent = ledger.spent().epsilon
        assert spent == pytest.approx(EPSILON, rel=1e-6)
        assert max(spent, against.epsilon) <= EPSILON * (1 + 1e-9)
        assert spent == pytest.approx(against.epsilon, rel=1e-6)
        ledger.close()


def test_steps_without_a_number_of_steps_are_refused():
    with pytest.raises(InputError, match="n_steps must be given"):
        replace(STEP, n_steps=None)
