"""Communities of networks: without noise those that pooled networks have, with it what was promised."""

import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from benchmarks.fits import fed_pca
from budgets import ledgers_in
from fedpower import Edge, FedCovariance, FedPCA, Node, Secure
from fedpower.analysis import Communities
from fedpower.analysis.communities import agreement
from fedpower.estimator.fit_warnings import ClippingWarning
from fedpower.exceptions import BudgetError, InputError, NoiseWarning
from fedpower.privacy.ledger import Ledger
from fedpower.report.covariance import Covariance
from fedpower.rows.networks import open_network
from layers import names_of, planted

pytestmark = pytest.mark.filterwarnings(
    "ignore::fedpower.exceptions.NoiseWarning",
    "ignore::fedpower.estimator.fit_warnings.ClippingWarning",
    "ignore::fedpower.estimator.fit_warnings.RepeatedFitWarning",
)
D, K = 60, 3
LAYERS = [planted(D, K, seed=seed)[0] for seed in range(4)]
LABELS = planted(D, K)[1]
UNITS = pytest.mark.parametrize("unit", [Edge(), Node()], ids=["edge", "row"])


def released(silos: list[Any], unit: Edge | Node, **given: Any) -> Covariance:
    return FedCovariance(unit=unit, **given).fit_silos(silos).release_


def central(unit: Edge | Node) -> tuple[np.ndarray, np.ndarray]:
    """The same from pooled networks, by NumPy alone: eigenvalues and eigenvectors."""
    if isinstance(unit, Edge):
        pooled = sum(LAYERS) / len(LAYERS)
    else:
        rows = np.vstack(LAYERS)
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        pooled = rows.T @ rows / len(rows)
    values, vectors = np.linalg.eigh(pooled)
    order = np.argsort(-np.abs(values))[:K]
    return values[order], vectors[:, order]


def test_what_cannot_be_found_is_refused():
    release = released([planted(seed=seed)[0] for seed in range(2)], Edge())
    for k, labels, sentence in (
        (99999, None, "n_communities must be less than"),
        (0, None, "whole number of at least 1"),
        (2, [0, 1], "must have one label per node"),
    ):
        with pytest.raises(InputError, match=sentence):
            Communities(k, labels=labels).fit(release)


@UNITS
def test_without_noise_it_is_what_pooled_networks_give(unit):
    model = Communities(K, labels=LABELS).fit(released(LAYERS, unit, epsilon=math.inf))
    values, vectors = central(unit)
    assert np.allclose(model.eigenvalues_, values, rtol=0, atol=1e-8)
    signs = np.sign((model.embedding_ * vectors).sum(axis=0))
    assert np.allclose(model.embedding_, vectors * signs, rtol=0, atol=1e-8)
    pooled = KMeans(K, n_init=10, random_state=0).fit(model.embedding_).labels_
    assert adjusted_rand_score(pooled, model.labels_) == 1.0
    assert model.agreement_ == agreement(LABELS, model.labels_) == 1.0
    assert model.determined_
    assert model.subspace_angle_ == 0.0


@pytest.fixture(scope="module")
def by_edge() -> Covariance:
    return released(LAYERS, Edge(nodes=names_of(D)), delta=1e-6)


def test_the_noise_of_an_edge_release_is_what_its_budget_says(by_edge):
    apart = (by_edge.pooled.covariance - sum(LAYERS) / 4)[np.tril_indices(D, -1)]
    # 1770 normal numbers: their mean square is off by 17% with a chance of 10⁻⁶ at most.
    assert abs(np.mean(apart**2) / (by_edge.noise_std**2 / 2) - 1) < 0.17
    alone = released(LAYERS[:1], Edge(), delta=1e-6)
    assert math.isclose(alone.noise_std, 2 * by_edge.noise_std, rel_tol=1e-3)


def test_the_statement_says_what_is_protected_and_what_is_not(by_edge):
    said = str(by_edge.privacy)
    assert "one edge of one layer of one silo" in said
    assert "a node with many edges is not protected as a whole" in said
    assert "the number of silos, but not of their edges or layers" in said
    assert "row" not in said
    by_row = released(LAYERS, Node())
    assert "one row of one silo" in str(by_row.privacy)
    assert "Every edge is in the rows of both its nodes" in str(by_row.privacy)
    found = Communities(K).fit(by_row)
    assert found.rates_ is None
    told = "The mean weight of a pair of nodes is unknown, because rows were scaled"
    assert any(each.startswith(told) for each in found.account().sentences)
    assert by_row.silo_sizes["silo-1"] == D


@pytest.mark.parametrize("aggregation", ["plain", "secure"])
def test_a_ledger_books_edges_once_and_refuses_what_it_cannot_pay(tmp_path, aggregation):
    ledgers = ledgers_in(tmp_path, [f"silo-{place}" for place in range(1, 5)], 1.2, 1e-5)
    model = FedCovariance(unit=Edge(), aggregation=aggregation)
    first = model.fit_silos(LAYERS, ledgers=ledgers).covariance_
    with Ledger.open(ledgers["silo-1"]) as ledger:
        assert ledger.statement()["unit"] == "one edge of this silo's network, present or absent"
    if aggregation == "plain":
        assert np.array_equal(model.fit_silos(LAYERS, ledgers=ledgers).covariance_, first)
    with pytest.raises(BudgetError):
        model.set_params(epsilon=1.1).fit_silos(LAYERS, ledgers=ledgers)


@pytest.mark.slow
@UNITS
def test_nothing_is_determined_of_networks_without_edges(unit):
    empty = [np.zeros((30, 30)), np.zeros((30, 30))]
    wrong = 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(60):
            wrong += Communities(2).fit(released(empty, unit)).determined_
    assert wrong <= 2  # of 60 with a chance of 0.002 each: more than 2 once in 4,000


@pytest.mark.slow
@pytest.mark.parametrize(("unit", "epsilon"), [(Edge(), 6.0), (Node(), 12.0)])
def test_the_angle_of_communities_holds_in_nine_of_ten_releases(unit, epsilon):
    wanted = Communities(K).fit(released(LAYERS, unit, epsilon=math.inf)).embedding_
    held = claimed = 0
    for _ in range(40):
        found = Communities(K).fit(released(LAYERS, unit, epsilon=epsilon, delta=1e-6))
        cosine = np.linalg.svd(wanted.T @ found.embedding_, compute_uv=False)[-1]
        held += np.degrees(np.arccos(min(cosine, 1.0))) <= found.subspace_angle_
        claimed += found.determined_
    assert claimed >= 20
    assert held >= 30  # of 40 with a chance of 0.9 each: fewer than 30 once in 400


def test_weights_beyond_the_public_maximum_are_capped_and_that_is_told_their_owner_alone(tmp_path):
    heavy = [4 * layer for layer in LAYERS]
    with pytest.raises(InputError, match="edge_weight"):
        released(heavy, Edge())
    with pytest.warns(ClippingWarning, match="^no edge weighs more than 1e-09 of edge_weight"):
        released(LAYERS, Edge(1e9), epsilon=math.inf)
    with pytest.warns(ClippingWarning, match="^[0-9]+ of [0-9]+ edges weigh more than edge_weight") as told:
        exact = released(heavy, Edge(2.0), epsilon=math.inf)
    sentence, place = str(told[0].message), exact.save(tmp_path / "out")
    assert not any(sentence in path.read_text(errors="replace") for path in place.iterdir())
    with warnings.catch_warnings():
        warnings.simplefilter("error", ClippingWarning)
        released(LAYERS, Edge(1.5), epsilon=math.inf)
    assert np.array_equal(exact.pooled.covariance, sum(LAYERS) / 4)
    assert "the largest weight of an edge, 2" in str(released(heavy, Edge(2.0)).privacy)


def test_what_is_about_rows_is_refused_of_edges():
    with pytest.raises(InputError, match="fit_silos"):
        FedPCA(2, unit=Edge()).fit(LAYERS[0])
    release = FedCovariance(epsilon=math.inf).fit_silos(LAYERS)
    with pytest.raises(InputError, match="must come from networks"):
        Communities(2).fit(release)
    for settings, said in (
        ({"noise": "step"}, "noise must be 'covariance'"),
        ({"row_norm": 3.0}, "codebook must be left out where edges are protected"),
        ({"solver": "krylov"}, "solver='krylov' must be left out"),
        ({"edge_weight": 1e300}, "edge_weight must be a number from 1e-100 to 1e100"),
        ({"network": "node"}, "network must be one of 'edge', 'row', got 'node'"),
        ({"unit": "person"}, "unit must be left out for networks"),
    ):
        with pytest.raises(InputError, match=said):
            fed_pca(2, **{"network": "edge", **settings}).fit_silos(LAYERS)


def named(*nodes: tuple[str, str] | None) -> list[Any]:
    return [open_network(np.zeros((2, 2)), unit="edge", nodes=names) for names in nodes]


@pytest.mark.parametrize(
    ("silos", "said"),
    [
        ([np.zeros((4, 4)), np.zeros((5, 5))], "got 4 and 5 nodes"),
        (named(("a", "b"), ("a", "c")), "got 'b', 'c' in one of them only"),
        (named(("a", "b"), None), "either every network or none must name its nodes"),
    ],
)
def test_networks_on_other_nodes_are_refused_as_networks(silos, said):
    with pytest.raises(InputError, match=said) as caught:
        released(silos, Edge())
    assert "column" not in str(caught.value)


@pytest.mark.parametrize("more", [{}, {"aggregation": Secure()}])
def test_noised_layers_of_one_silo_are_added_up_as_exact_ones_are(more):
    nodes = names_of(20)
    edges = pd.DataFrame([(one, other) for one in nodes[:9] for other in nodes[9:]])
    layers = pd.concat([edges.assign(layer=name) for name in "abcdefgh"])
    layers.columns = ["source", "target", "layer"]
    silos = [layers, layers.iloc[99:], layers.iloc[:99]]
    exact, noised = (
        released(silos, Edge(nodes=nodes), epsilon=epsilon, **given).covariance[:9, 9:]
        for epsilon, given in ((math.inf, {}), (60.0, more))
    )
    assert exact.max() > 5
    assert np.abs(noised - exact).max() < 1


def test_noise_alone_and_a_delta_that_gives_a_pair_of_nodes_away_are_warned_of():
    release = released([np.zeros((30, 30)), np.zeros((30, 30))], Edge(), epsilon=0.05)
    secure = released(list(np.zeros((3, 30, 30))), Edge(), epsilon=0.05, aggregation=Secure())
    for given, advice in ((release, " or aggregation='secure'"), (secure, "")):
        with pytest.warns(NoiseWarning, match=f"are not determined.*or use a larger epsilon{advice}$"):
            Communities(2).fit(given)
    with pytest.warns(UserWarning, match="below 1/1770, as a silo has 1770 pairs of nodes, got 0.5"):
        released(LAYERS, Edge(), delta=0.5)


def test_edge_lists_are_fitted_on_the_public_nodes_that_a_unit_names():
    nodes = names_of(6)
    layer = pd.DataFrame({"source": nodes[:3], "target": nodes[3:]}).astype("category")
    for unit in (Edge(nodes=nodes), Node(nodes)):
        assert released([layer], unit).names == tuple(nodes)
    with pytest.raises(InputError, match="must have a public list of all nodes, got none; give nodes"):
        released([layer], Edge())
