"""Drift-corrected local steps: no bias, never worse, and refused where they would cost a release."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from private_silos import DELTA, EPSILON, MOMENT, D, R, ask, private_silo, refused

from fedpower.errors import InputError
from fedpower.linalg import orth, sin_theta
from fedpower.privacy.ledger import Ledger
from fedpower.protocol import every
from fedpower.protocol.messages import AskSteps, LocalSteps, read_only
from fedpower.protocol.silo import take_local_steps
from fedpower.protocol.solvers import PowerSettings
from problems import Array
from runs import exact_study, make_silos, solve

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


def pooled(parts: list[Array]) -> Array:
    return np.mean([part.T @ part / len(part) for part in parts], axis=0)


@settings(max_examples=10)
@given(seed=st.integers(0, 100), spread=st.sampled_from([0.1, 1.0]))
def test_the_pooled_eigenspace_is_the_fixed_point_whatever_the_heterogeneity(
    seed: int, spread: float
) -> None:
    parts, truth = heterogeneous(seed, spread)
    moment = pooled(parts)
    assert sin_theta(truth, np.linalg.eigh(moment)[1][:, -3:]) < 1e-10
    for part in parts:
        own = part.T @ part / len(part)
        for n_steps in (1, 2, 5):
            ask = AskSteps(basis=read_only(truth), n_local_steps=n_steps, pooled=read_only(moment @ truth))
            answer = take_local_steps(lambda basis, own=own: own @ basis, ask)
            assert sin_theta(orth(answer.product), truth) < 1e-9


def test_with_one_local_step_it_is_algorithm_1() -> None:
    parts, _ = heterogeneous(2, 0.5)
    plain, _, bases = solve(parts, iteration_rank=4, max_rounds=7)
    corrected, _, others = solve(parts, iteration_rank=4, max_rounds=7, corrected=True)
    for ours, theirs in zip(others, bases, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-10)
    assert sin_theta(corrected.basis, plain.basis) < 1e-10


@pytest.mark.slow
@pytest.mark.parametrize("local_steps", [4, 8, 16])
def test_it_passes_the_bias_floor_of_local_power(local_steps: int) -> None:
    for seed in range(2):
        parts, truth = heterogeneous(seed, 0.5)
        options = {"iteration_rank": 4, "schedule": every(local_steps), "seed": seed}
        plain, _, _ = solve(parts, max_rounds=60, **options)
        corrected, _, _ = solve(parts, max_rounds=60, corrected=True, **options)
        assert sin_theta(plain.basis, truth) > 1e-3
        assert sin_theta(corrected.basis, truth) < 1e-5


@pytest.mark.slow
def test_sixteen_steps_between_silos_that_differ_much_do_not_diverge() -> None:
    for seed in range(6):
        parts, truth = heterogeneous(seed, 1.0, ratio=0.9)
        moment = pooled(parts)
        own = [part.T @ part / len(part) for part in parts]
        apart = max(np.linalg.norm(each - moment, 2) for each in own) / np.linalg.norm(moment, 2)
        assert apart > 0.5
        found, _, _ = solve(
            parts, iteration_rank=4, schedule=every(16), corrected=True, max_rounds=60, seed=seed
        )
        assert sin_theta(found.basis, truth) < 1e-2


def test_it_stops_at_tol_and_says_so() -> None:
    parts, truth = heterogeneous(1, 0.3)
    found, coordinator, _ = solve(
        parts, iteration_rank=4, schedule=every(6), corrected=True, tol=1e-7, max_rounds=200
    )
    assert found.converged
    assert sin_theta(found.basis, truth) < 1e-6
    assert coordinator.history[-1].notes["change"] <= 1e-7


def test_every_silo_must_be_heard_and_the_rank_known() -> None:
    usual = {"study": exact_study(6, 3), "corrected": True}
    with pytest.raises(InputError, match="must hear every silo"):
        PowerSettings(rank=2, n_participants=2, **usual)
    with pytest.raises(InputError, match="must know the number of components"):
        PowerSettings(rank=0.5, **usual)


@pytest.mark.parametrize("pooled", [np.ones((6, 3)), np.full((6, 2), np.inf)])
def test_a_bad_pooled_product_is_refused_in_one_sentence(pooled: Array) -> None:
    silo = make_silos([np.eye(6)], 2)["silo-0"]
    asked = AskSteps(basis=read_only(np.eye(6)[:, :2]), n_local_steps=2, pooled=pooled)
    assert refused(ask(silo, asked), "a pooled product must be finite")


def test_in_moment_mode_it_is_post_processing() -> None:
    plain = AskSteps(basis=read_only(np.eye(D)[:, :R]), n_local_steps=3)
    with Ledger.in_memory(EPSILON, DELTA, silo="north") as ledger:
        silo = private_silo(MOMENT, ledger)
        for body in (plain, replace(plain, pooled=read_only(np.ones((D, R))))):
            assert isinstance(ask(silo, body), LocalSteps)
            assert ledger.spent().n_releases == 1
