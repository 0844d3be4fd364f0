"""The statement: what was asked against the coordinator, what the sum hides from the public."""

import math
from dataclasses import replace
from itertools import pairwise

import pytest
from private_silos import COVARIANCE, DELTA, EPSILON, PAPER, STEP, R, T, bounded_rows, private_silo

from budgets import moment_bound
from fedpower.exceptions import InputError
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.ledger import Ledger
from fedpower.protocol.coordinator import Round
from fedpower.protocol.outcome import SMOOTHED, state_privacy
from runs import drive, make_coordinator, power_settings

SIZES = {"north": 300, "south": 300, "east": 300, "west": 300}


def rounds(*step_numbers, answers=4, kind="steps"):
    return [
        Round(
            number=number,
            kind=kind,
            step=step,
            asked=tuple(SIZES),
            local_steps=step - before if kind == "steps" else 1,
            answers=dict.fromkeys(list(SIZES)[:answers]),
        )
        for number, (before, step) in enumerate(pairwise((0, *step_numbers)))
    ]


def upload(names=SIZES):
    (each,) = rounds(1, kind="covariance")
    each.answers = dict.fromkeys(names)
    return [each]


def state(study, *, sizes=None, asked=None):
    stated = state_privacy(study, sizes or SIZES, rounds(1, 2, 3) if asked is None else asked)
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
def test_the_public_sees_one_over_root_m_of_it_where_moments_are_summed(center):
    stated, coordinator, public = state(replace(COVARIANCE, center=center), asked=upload())
    assert public.mu == pytest.approx(coordinator.mu / 2, rel=1e-6)
    slack = replace(COVARIANCE, center=center).budget.slack_delta
    assert public.epsilon == epsilon_of(public.mu, DELTA - 5 * slack)
    assert public.epsilon < coordinator.epsilon / 2
    assert SMOOTHED in stated.assumptions


@pytest.mark.parametrize("center", [False, True])
@pytest.mark.parametrize("sizes", [[300], [300, 300], [50, 200, 1000], [7, 9000]])
def test_the_public_s_mu_covers_the_worst_row_of_any_silo(center, sizes):
    study = replace(COVARIANCE, center=center)
    budget, n = study.budget, sum(sizes)
    std = math.hypot(*(s / n * budget.std(s) for s in sizes))
    worst = max(s / n * moment_bound(s, center=center) / std for s in sizes)
    named = {f"silo-{number}": size for number, size in enumerate(sizes)}
    _, coordinator, public = state(study, sizes=named, asked=upload(named))
    assert worst * (1 - 1e-9) <= public.mu <= coordinator.mu
    assert public.mu == pytest.approx(min(worst, coordinator.mu), rel=1e-6)


@pytest.mark.parametrize(
    "asked",
    [
        rounds(2, 4),
        rounds(1, 2, 5),
        rounds(1, 2),
        rounds(1, kind="covariance", answers=3),
        rounds(1, 2, kind="covariance"),
        [*rounds(0, answers=2, kind="mean"), *rounds(1)],
    ],
    ids=[*("local steps", "local steps at the end", "products", "a dropout", "two sums"), "a mean of some"],
)
def test_where_single_silos_show_through_the_public_gets_the_coordinator_s_epsilon(asked):
    _, coordinator, public = state(COVARIANCE, asked=asked)
    assert public.epsilon == coordinator.epsilon
    _, coordinator, public = state(STEP)
    assert public.epsilon == coordinator.epsilon


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
