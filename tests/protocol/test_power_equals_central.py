"""Identities: where the federated method must give exactly what pooled data give."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedpower.linalg import orth, sin_theta
from fedpower.protocol import decaying, every, explicit
from problems import Array, ArrayMoment, spiked_rows, split
from runs import solve

D, R = 12, 3


def central_power_method(moment: Array, start: Array, n_steps: int) -> list[Array]:
    bases = [start]
    for _ in range(n_steps):
        bases.append(orth(moment @ bases[-1]))
    return bases


@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 599), max_size=6), seed=st.integers(0, 1000))
def test_a_round_at_every_step_equals_the_central_power_method_step_by_step(
    cuts: set[int], seed: int
) -> None:
    rows = spiked_rows(seed=seed)
    parts = np.split(rows, sorted(cuts))
    solution, _, bases = solve(parts, seed=seed, n_steps=8)
    expected = central_power_method(rows.T @ rows / len(rows), bases[0], 8)
    for got, want in zip([*bases, solution.basis], expected, strict=True):
        np.testing.assert_allclose(got, want, atol=1e-12)


@pytest.mark.parametrize("reference", ["first", "active", "broadcast"])
@pytest.mark.parametrize("alignment", ["procrustes", "sign", "identity"])
def test_with_a_round_at_every_step_alignment_and_reference_change_nothing(
    rows: Array, alignment: str, reference: str
) -> None:
    parts = split(rows, [100, 200, 300])
    plain, _, _ = solve(parts, n_steps=5)
    other, _, _ = solve(parts, n_steps=5, alignment=alignment, reference=reference)
    np.testing.assert_allclose(other.basis, plain.basis, atol=1e-12)


@pytest.mark.parametrize("schedule", [every(2), every(5), decaying(4), explicit({7})])
@pytest.mark.parametrize("reference", ["first", "active", "broadcast"])
def test_identical_silos_make_any_schedule_equal_the_central_power_method(
    rows: Array, schedule: object, reference: str
) -> None:
    solution, _, bases = solve([rows] * 4, n_steps=7, schedule=schedule, reference=reference)
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
def test_every_broadcast_and_the_output_are_orthonormal(
    local_steps: int, n_steps: int, seed: int, reference: str, participants: int | None
) -> None:
    parts = split(spiked_rows(seed=seed), [2, 298, 300])  # the first silo has fewer rows than r
    solution, _, bases = solve(
        parts,
        n_steps=n_steps,
        schedule=decaying(local_steps),
        reference=reference,
        n_participants=participants,
    )
    for basis in [*bases, solution.basis]:
        np.testing.assert_allclose(basis.T @ basis, np.eye(R), atol=1e-12)
    assert solution.n_steps == n_steps


def test_both_output_rules_agree_with_the_formulas_of_the_paper(rows: Array) -> None:
    """T inside the schedule: orth of the average product; outside: the average of aligned bases."""
    parts = split(rows, [150, 150, 300])
    moments = [ArrayMoment(part).moment() for part in parts]
    weights = [0.25, 0.25, 0.5]
    inside, _, bases = solve(parts, n_steps=4, schedule=every(2))
    outside, _, bases5 = solve(parts, n_steps=5, schedule=every(2))
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
