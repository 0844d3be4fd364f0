"""Identities: where the federated method must give exactly what pooled data give."""

from itertools import takewhile

import numpy as np
import private_silos
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from private_silos import COVARIANCE, ask, private_silo

from fedpower.linalg import orth, sin_theta
from fedpower.options import PowerMethod
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.silo import take_local_steps
from fedpower.protocol.solvers.power import steps_of_rounds
from problems import Array, ArrayMoment, spiked_rows, split
from runs import pooled, solve

D, R = 12, 3


def central_power_method(moment: Array, start: Array, n_steps: int) -> list[Array]:
    bases = [start]
    for _ in range(n_steps):
        bases.append(orth(moment @ bases[-1]))
    return bases


@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 599), max_size=6), seed=st.integers(0, 1000))
def test_a_round_at_every_step_equals_the_central_power_method_step_by_step(cuts, seed):
    rows = spiked_rows(seed=seed)
    parts = np.split(rows, sorted(cuts))
    solution, _, bases = solve(parts, seed=seed, n_steps=8)
    expected = central_power_method(rows.T @ rows / len(rows), bases[0], 8)
    for got, want in zip([*bases, solution.basis], expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("reference", ["first", "active", "broadcast"])
@pytest.mark.parametrize("alignment", ["procrustes", "sign", "identity"])
def test_with_a_round_at_every_step_alignment_and_reference_change_nothing(rows, alignment, reference):
    parts = split(rows, [100, 200, 300])
    plain, _, _ = solve(parts, n_steps=5)
    other, _, _ = solve(parts, n_steps=5, alignment=alignment, reference=reference)
    np.testing.assert_allclose(other.basis, plain.basis, atol=1e-12)


@pytest.mark.parametrize(
    "schedule",
    [{"local_steps": 2}, {"local_steps": 5}, {"local_steps": 4, "schedule": "decaying"}, {"schedule": (7,)}],
)
@pytest.mark.parametrize("reference", ["first", "active", "broadcast"])
def test_identical_silos_make_any_schedule_equal_the_central_power_method(rows, schedule, reference):
    solution, _, bases = solve([rows] * 4, n_steps=7, reference=reference, **schedule)
    expected = central_power_method(rows.T @ rows / len(rows), bases[0], 7)[-1]
    assert sin_theta(solution.basis, expected) < 1e-12


@settings(max_examples=10)
@given(
    local_steps=st.integers(1, 6),
    n_steps=st.integers(1, 15),
    seed=st.integers(0, 100),
    reference=st.sampled_from(["first", "active", "broadcast"]),
    participants=st.one_of(st.none(), st.integers(1, 3)),
)
def test_every_broadcast_and_the_output_are_orthonormal(local_steps, n_steps, seed, reference, participants):
    parts = split(spiked_rows(seed=seed), [2, 298, 300])  # the first silo has fewer rows than r
    solution, _, bases = solve(
        parts,
        n_steps=n_steps,
        local_steps=local_steps,
        schedule="decaying",
        reference=reference,
        n_participants=participants,
    )
    for basis in [*bases, solution.basis]:
        np.testing.assert_allclose(basis.T @ basis, np.eye(R), atol=1e-12)
    assert solution.n_steps == n_steps


def test_both_output_rules_agree_with_the_formulas_of_the_paper(rows):
    """T inside the schedule: orth of the average product; outside: the average of aligned bases."""
    parts = split(rows, [150, 150, 300])
    moments = [ArrayMoment(part).moment() for part in parts]
    weights = [0.25, 0.25, 0.5]
    inside, _, bases = solve(parts, n_steps=4, local_steps=2)
    outside, _, bases5 = solve(parts, n_steps=5, local_steps=2)
    start = bases[0]

    def procrustes(basis: Array, reference: Array) -> Array:
        left, _, right = np.linalg.svd(basis.T @ reference)
        return left @ right

    def two_steps(basis: Array) -> Array:
        local = [orth(moment @ basis) for moment in moments]
        products = [moment @ z for moment, z in zip(moments, local, strict=True)]
        turned = [y @ procrustes(z, local[0]) for y, z in zip(products, local, strict=True)]
        return orth(sum(w * y for w, y in zip(weights, turned, strict=True)))

    at_four = two_steps(two_steps(start))
    np.testing.assert_allclose(inside.basis, at_four, atol=1e-12)
    np.testing.assert_allclose(bases5[-1], at_four, atol=1e-12)
    local = [orth(moment @ at_four) for moment in moments]
    aligned = [z @ procrustes(z, local[0]) for z in local]
    average = sum(w * z for w, z in zip(weights, aligned, strict=True))
    np.testing.assert_allclose(outside.basis, orth(average), atol=1e-12)


# Drift-corrected local steps: no bias, never worse, and refused where they would cost a release.

WIDTH = 24


def heterogeneous(seed: int, spread: float, ratio: float = 0.8) -> tuple[list[Array], Array]:
    """Return six silos' rows and the leading three eigenvectors of their pooled moment.

    The pooled moment is the same for every ``spread``, which sets how far the silos are from it.
    """
    rng = np.random.default_rng(seed)
    spectrum = np.concatenate([[1.0, 0.9, 0.8], 0.8 * ratio * 0.9 ** np.arange(WIDTH - 3)])
    vectors = orth(rng.standard_normal((WIDTH, WIDTH)))
    half = np.sqrt(spectrum)[:, np.newaxis] * vectors.T
    rows = WIDTH // 2
    stacked = orth(rng.standard_normal((6 * rows, WIDTH))) * np.sqrt(6 * rows)
    plain = np.sqrt((1 - spread) * WIDTH) * np.eye(WIDTH)
    parts = [
        np.vstack([np.sqrt(spread * WIDTH / rows) * part, plain]) @ half * np.sqrt(1 + rows / WIDTH)
        for part in np.split(stacked, 6)
    ]
    return parts, vectors[:, :3]


@settings(max_examples=10)
@given(seed=st.integers(0, 100), spread=st.sampled_from([0.1, 1.0]))
def test_the_pooled_eigenspace_is_the_fixed_point_whatever_the_heterogeneity(seed, spread):
    parts, truth = heterogeneous(seed, spread)
    moment = pooled(parts)
    assert sin_theta(truth, np.linalg.eigh(moment)[1][:, -3:]) < 1e-10
    for part in parts:
        own = part.T @ part / len(part)
        for n_steps in (1, 2, 5):
            ask = AskSteps(basis=read_only(truth), n_local_steps=n_steps, pooled=read_only(moment @ truth))
            answer = take_local_steps(lambda basis, own=own: own @ basis, ask)
            assert sin_theta(orth(answer.product), truth) < 1e-9


def test_with_one_local_step_it_is_algorithm_1():
    parts, _ = heterogeneous(2, 0.5)
    plain, _, bases = solve(parts, iteration_rank=4, max_rounds=7)
    corrected, _, others = solve(parts, iteration_rank=4, max_rounds=7, drift_correction=True)
    for ours, theirs in zip(others, bases, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert sin_theta(corrected.basis, plain.basis) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [4, 8, 16])
def test_it_passes_the_bias_floor_of_local_power(local_steps):
    for seed in range(2):
        parts, truth = heterogeneous(seed, 0.5)
        options = {"iteration_rank": 4, "local_steps": local_steps, "seed": seed}
        plain, _, _ = solve(parts, max_rounds=60, **options)
        corrected, _, _ = solve(parts, max_rounds=60, drift_correction=True, **options)
        assert sin_theta(plain.basis, truth) > 1e-3
        assert sin_theta(corrected.basis, truth) < 1e-5


def test_it_stops_at_tol_and_says_so():
    parts, truth = heterogeneous(1, 0.3)
    found, coordinator, _ = solve(
        parts, iteration_rank=4, local_steps=6, drift_correction=True, tol=1e-7, max_rounds=200
    )
    assert found.converged
    assert sin_theta(found.basis, truth) < 1e-6
    assert coordinator.history[-1].notes["change"] <= 1e-7


def test_in_moment_mode_it_is_post_processing(ledger):
    plain = private_silos.steps(0, 3)
    silo = private_silo(COVARIANCE, ledger)
    for body in (plain, replace(plain, pooled=private_silos.basis(1))):
        assert isinstance(ask(silo, body), LocalSteps)
        assert ledger.spent().n_releases == 1


# Schedules against a brute-force reading of the equations


def rounds(option: PowerMethod, n_steps: int) -> tuple[int, ...]:
    """Return the steps of the rounds among the first ``n_steps``: the paper's I_T without 0."""
    return tuple(takewhile(lambda step: step <= n_steps, steps_of_rounds(option)))


@given(p=st.integers(1, 12), n_steps=st.integers(1, 60))
def test_rounds_are_those_of_the_equations(p, n_steps):
    """[FP eqs. 3.1 and 3.11], and intervals that are halved."""
    possible, places = set(range(1, n_steps + 1)), range(n_steps + 1)
    for schedule, interval in (
        (PowerMethod(local_steps=p, schedule="decaying"), lambda i: p - i),
        (PowerMethod(local_steps=p, schedule="halving"), lambda i: p // 2**i),
    ):
        expected = {sum(max(interval(i), 1) for i in range(last + 1)) for last in places} & possible
        assert rounds(schedule, n_steps) == tuple(sorted(expected))
    assert rounds(PowerMethod(local_steps=p), n_steps) == tuple(
        t for t in range(1, n_steps + 1) if t % p == 0
    )
