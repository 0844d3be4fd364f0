"""Block Krylov: the pooled eigenspace from few exchanges, whoever is late."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from msgspec import structs

from fedpower.linalg import is_orthonormal, sin_theta
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.silo import ExactReleases
from problems import ArrayMoment, spiked_rows, split
from runs import (
    D,
    drive_late,
    exact_study,
    krylov_settings,
    leading,
    make_silos,
    n_rounds,
    pooled,
    rotated,
    run,
)

EITHER = pytest.mark.parametrize("local", [True, False])


@hypothesis_settings(max_examples=15)
@given(seed=st.integers(0, 1000), n_silos=st.integers(1, 6), local=st.booleans())
def test_the_result_is_the_pooled_eigenspace_however_different_the_silos(seed, n_silos, local):
    parts = rotated(seed, n_silos)
    solution, _ = run(parts, seed=seed, tol=1e-9, lookahead=local)
    values, vectors = np.linalg.eigh(pooled(parts))
    assert solution.converged
    assert sin_theta(solution.vectors[:, :3], vectors[:, -3:]) < 1e-8
    np.testing.assert_allclose(solution.values[:3], values[::-1][:3], rtol=1e-9)
    assert solution.total_variance == pytest.approx(values.sum())
    assert is_orthonormal(solution.basis, 1e-12)


@EITHER
@pytest.mark.parametrize("tol", [1e-2, 1e-5, 1e-8])
def test_stopping_by_tol_means_an_error_of_at_most_tol(local, tol):
    for seed in range(2):
        parts = rotated(seed)
        solution, _ = run(parts, seed=seed, tol=tol, lookahead=local)
        assert solution.converged
        assert solution.change <= tol
        assert sin_theta(solution.basis, leading(pooled(parts), 3)) <= tol


def test_a_run_without_local_steps_sees_the_sum_of_the_moments_alone():
    rows = np.vstack(rotated(1))
    together, _ = run([rows], lookahead=False, max_rounds=4)
    apart, coordinator = run(split(rows, [50, 350]), lookahead=False, max_rounds=4)
    np.testing.assert_allclose(apart.basis, together.basis, atol=1e-10)
    steps = [each.step for each in coordinator.history if each.kind == "steps"]
    assert steps == [1, 2, 3, 4]


@EITHER
def test_memory_is_bounded_by_restarts_that_cost_no_accuracy(local, monkeypatch):
    monkeypatch.setattr("fedpower.protocol.solvers.krylov._MOST_BYTES", 0)
    parts = rotated(2, d=60)
    solution, coordinator = run(parts, tol=1e-9, max_rounds=100, lookahead=local)
    assert n_rounds(coordinator) > 3  # beyond what twelve columns hold
    assert solution.converged
    assert sin_theta(solution.basis, leading(pooled(parts), 3)) < 1e-9


@EITHER
@pytest.mark.parametrize(
    ("rows", "rank", "width"),
    [
        (spiked_rows(n_rows=20, n_features=4), 4, 4),  # k = d
        (spiked_rows(n_rows=20, n_features=5), 4, 5),  # k close to d, one block is everything
        (spiked_rows(n_rows=20, n_features=5), 2, 3),  # two blocks are more than d
        (spiked_rows(n_rows=2, n_features=12), 4, 5),  # fewer rows than components
        (np.arange(6.0)[:, np.newaxis], 1, 1),
        (np.zeros((6, 8)), 2, 3),
        (np.ones((6, 8)), 2, 3),
        (np.repeat(np.eye(8), 2, axis=0), 3, 4),  # no gap anywhere
    ],
)
def test_breakdown_and_small_dimensions_end_well(rows, rank, width, local):
    for parts in ([rows], [rows[:1], rows[1:]]):
        solution, _ = run(parts, rank=rank, width=width, max_rounds=30, lookahead=local)
        values = np.linalg.eigvalsh(pooled(parts))[::-1]
        assert solution.converged
        assert solution.vectors.shape == (rows.shape[1], width)
        assert is_orthonormal(solution.vectors, 1e-10)
        np.testing.assert_allclose(solution.values[:rank], values[:rank], atol=1e-9)


@EITHER
@pytest.mark.parametrize("participation", ["first", "sampled"])
def test_with_two_fifths_of_the_silos_a_round_others_are_asked_again_and_nothing_is_lost(
    participation, local
):
    for seed in range(2):
        parts = rotated(seed)
        chosen = {"n_participants": 2, "participation": participation, "late": True}
        solution, coordinator = run(parts, seed=seed, max_rounds=200, **chosen, lookahead=local)
        assert solution.converged
        assert sin_theta(solution.basis, leading(pooled(parts), 3)) < 1e-9
        assert all(len(each.answers) <= 2 for each in coordinator.history[1:])


@EITHER
def test_a_run_stops_where_rounding_of_messages_hides_the_rest(local):
    class Rounding(ExactReleases):
        def steps(self, ask: AskSteps, *, run: str) -> LocalSteps:
            answer = super().steps(ask, run=run)
            coarse = answer.product.astype(np.float32).astype(np.float64)
            return structs.replace(answer, product=read_only(coarse))

    for seed in range(2):
        parts = rotated(seed)
        silos = make_silos(parts, 4)
        for silo, part in zip(silos.values(), parts, strict=True):
            silo.releases = Rounding(ArrayMoment(part), silo.study)
        settings = krylov_settings(exact_study(D, 4), 3, tol=1e-12, max_rounds=40, lookahead=local)
        solution, coordinator = drive_late(settings, silos, seed=seed)
        assert solution.converged
        assert n_rounds(coordinator) < 20
        assert sin_theta(solution.basis, leading(pooled(parts), 3)) < 1e-5


@EITHER
@pytest.mark.parametrize("dead_from", [1, 2, 4])
def test_a_silo_that_is_silent_thrice_is_left_out_and_the_others_are_exact(dead_from, local):
    parts = rotated(5)
    solution, coordinator = run(
        parts, dead_from={"silo-2": dead_from}, min_silos=3, max_rounds=30, lookahead=local
    )
    assert solution.converged
    assert list(solution.sizes) == ["silo-0", "silo-1", "silo-3", "silo-4"]
    kept = [part for place, part in enumerate(parts) if place != 2]
    assert sin_theta(solution.basis, leading(pooled(kept), 3)) < 1e-9
    in_vain = [each for each in coordinator.history if len(each.asked) > len(each.answers)]
    assert len(in_vain) == 3


def test_a_run_whose_rounds_end_while_a_silo_is_missing_returns_the_best_so_far():
    parts = rotated(5)
    whole, _ = run(parts, max_rounds=4, tol=0.0)
    solution, coordinator = run(parts, dead_from={"silo-2": 5}, min_silos=3, max_rounds=5, tol=0.0)
    assert n_rounds(coordinator) == 5
    assert not solution.converged
    assert list(solution.sizes) == list(whole.sizes)
    np.testing.assert_allclose(solution.basis, whole.basis)


def test_noised_products_are_asked_for_exactly_as_often_as_was_paid_for():
    for extra in ({}, {"n_participants": 2, "participation": "first", "late": True}):
        _, coordinator = run(rotated(0), n_steps=6, **extra)
        asked = [each for each in coordinator.history if each.kind == "steps"]
        assert [each.step for each in asked] == sorted(each.step for each in asked)
        assert asked[-1].step == 6
        answers = [name for each in asked for name in each.answers]
        assert all(answers.count(name) == 6 for name in set(answers))


@pytest.mark.parametrize("scale", [1e-60, 1e60, 1e75])
def test_the_scale_of_the_data_changes_nothing(scale):
    parts = [part * scale for part in rotated(0)]
    solution, coordinator = run(parts, seed=0, tol=1e-8)
    assert solution.converged
    assert sin_theta(solution.basis, leading(pooled(rotated(0)), 3)) < 1e-7
    assert n_rounds(coordinator) == n_rounds(run(rotated(0), seed=0, tol=1e-8)[1])
