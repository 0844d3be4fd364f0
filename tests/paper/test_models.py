"""The paper's data models: their moments, and rows that do not depend on how they are read."""

import json
from collections.abc import Callable

import numpy as np
import pytest

from fedpower.exceptions import InputError
from fedpower.linalg import sin_theta
from paper.models import TILE_NODES, Array, Model, spiked_covariance, stochastic_block

MODELS: list[Callable[[], Model]] = [
    lambda: spiked_covariance(n_rows=9000, n_features=120, n_silos=2, seed=3),
    lambda: spiked_covariance(n_features=7, rank=2, sizes=(5, 1, 30), seed=3),
    lambda: stochastic_block(n_nodes=TILE_NODES + 22, n_silos=3, seed=3),
    lambda: stochastic_block(n_nodes=11, n_silos=2, n_communities=3, normalize=False, seed=3),
]


def rows_of(model: Model, silo: int = 0, max_rows: int = 10**6) -> Array:
    return np.vstack(list(model.blocks(silo, max_rows)))


@pytest.mark.parametrize("make", MODELS)
def test_rows_and_truth_depend_on_the_seed_and_silo_alone(make):
    first, second = make(), make()
    assert first.basis.tobytes() == second.basis.tobytes()
    parts = [rows_of(first, silo) for silo in range(first.n_silos)]
    assert [part.shape for part in parts] == [(size, first.n_features) for size in first.sizes]
    assert not np.array_equal(parts[0][:1], parts[1][:1])
    for max_rows in (1, 7, 4096):
        blocks = list(second.blocks(1, max_rows))
        assert all(0 < len(block) <= max_rows for block in blocks)
        assert np.vstack(blocks).tobytes() == parts[1].tobytes()
    np.testing.assert_allclose(first.basis.T @ first.basis, np.eye(first.basis.shape[1]), atol=1e-12)
    with pytest.raises(ValueError, match="read-only"):
        first.basis[0, 0] = 1.0
    facts = json.loads(json.dumps(first.facts))
    assert facts["seed"] == 3
    assert sum(facts["sizes"]) == facts["n_rows"]
    norms = np.linalg.norm(np.vstack(parts), axis=1)
    if first.normalize:
        assert (norms <= 1).all()
        np.testing.assert_allclose(norms[norms > 0], 1, rtol=1e-12)


def test_a_row_of_the_spiked_model_depends_on_seed_silo_and_place_alone():
    few, many, other = (
        spiked_covariance(sizes=sizes, seed=seed)
        for sizes, seed in (((10,), 5), ((12_000, 3), 5), ((10,), 6))
    )
    assert np.array_equal(rows_of(few), rows_of(many)[:10])
    assert sin_theta(few.basis, other.basis) > 0.5


def test_the_spiked_model_has_mean_zero_and_the_stated_covariance():
    # Entries of the sample moment are within 6 standard errors: fails for one seed in 10⁷ (66
    # entries and 11 means, 2e-9 each); the seed is fixed.
    n_rows = 40_000
    model = spiked_covariance(
        n_rows=n_rows, n_features=11, n_silos=1, rank=3, noise=0.5, normalize=False, seed=1
    )
    rows = rows_of(model)
    covariance = model.basis @ model.basis.T + 0.25 * np.eye(11)
    variances = np.diag(covariance)
    errors = np.sqrt((np.outer(variances, variances) + covariance**2) / n_rows)
    assert (np.abs(rows.T @ rows / n_rows - covariance) < 6 * errors).all()
    assert (np.abs(rows.mean(axis=0)) < 6 * np.sqrt(variances / n_rows)).all()


def test_normalising_keeps_the_planted_eigenspace():
    # sin θ ≤ 2‖S − E S‖/gap [Davis–Kahan]. Two equal leading eigenvalues are at most 1/2, so matrix
    # Bernstein gives ‖S − E S‖ ≤ 0.04 but for one seed in 10⁹ (20,000 rows); the gap is above 0.2.
    model = spiked_covariance(n_rows=20_000, n_features=8, n_silos=1, rank=2, noise=0.3, seed=2)
    rows = rows_of(model)
    values, vectors = np.linalg.eigh(rows.T @ rows / len(rows))
    assert values[-2] - values[-3] > 0.2
    assert sin_theta(vectors[:, -2:], model.basis) < 0.4


def test_networks_have_the_stated_edge_probabilities():
    # Each count is binomial and within 6 standard errors: fails for one seed in 10⁷ (8 counts, 2e-9
    # each, and their normal approximation); the seed is fixed.
    model = stochastic_block(n_nodes=300, n_silos=4, normalize=False, seed=6)
    first = np.arange(300) < 150
    pairs = np.triu(np.ones((300, 300), dtype=bool), 1)
    same = first[:, np.newaxis] == first[np.newaxis, :]
    for silo, strength in enumerate((0.8, 0.8, 0.6, 0.6)):
        network = rows_of(model, silo)
        assert np.array_equal(network, network.T)
        assert not np.diag(network).any()
        assert set(np.unique(network)) == {0.0, 1.0}
        for kind, weight in ((pairs & same, 0.25), (pairs & ~same, 0.1)):
            chance, count = strength * weight, int(kind.sum())
            error = np.sqrt(count * chance * (1 - chance))
            assert abs(network[kind].sum() - count * chance) < 6 * error
    basis = stochastic_block(n_nodes=6, n_silos=1, seed=0).basis
    halves = np.array([1, 1, 1, 0, 0, 0]) / np.sqrt(3)
    np.testing.assert_allclose(basis, np.column_stack([halves, halves[::-1]]))


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        (lambda: spiked_covariance(rank=0, seed=0), "rank must be at least 1"),
        (lambda: spiked_covariance(noise=float("nan"), seed=0), "noise must be a finite number"),
        (lambda: spiked_covariance(n_rows=3, n_silos=5, seed=0), "at least one per silo"),
        (lambda: spiked_covariance(sizes=(4, 0), seed=0), "sizes must be at least 1"),
        (lambda: stochastic_block(n_nodes=1, seed=0), "n_nodes must be at least n_communities"),
        (lambda: stochastic_block(within=1.5, seed=0), "an edge's probability must be between"),
    ],
)
def test_impossible_models_are_refused_in_a_sentence(make, sentence):
    with pytest.raises(InputError, match=sentence):
        make()
