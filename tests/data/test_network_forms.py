"""Networks are read alike from every form, and are in bounds before anything is made of them."""

from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from scipy import sparse

from fedpower.exceptions import InputError
from fedpower.rows.networks import NetworkSource, open_network
from fedpower.sums.local import EdgeMoment
from layers import names_of, planted, write_layer

NODES = ("a", "b", "c", "d")


def listed(**columns: Any) -> Any:
    return pa.table(columns)


def dense(network: NetworkSource) -> Any:
    return [layer.toarray().tolist() for layer in network.layers]


@pytest.mark.parametrize("ending", ["csv", "tsv", "parquet", "npz", "npy"])
def test_every_form_is_the_same_network(tmp_path, ending):
    adjacency, _ = planted(20)
    path = write_layer(tmp_path / f"north.{ending}", adjacency)
    found = open_network(path, unit="edge", nodes=names_of(20))
    assert found.columns == names_of(20)
    assert np.array_equal(found.layers[0].toarray(), adjacency)


def test_lines_about_two_nodes_are_one_edge_in_either_direction_and_loops_are_none():
    table = listed(source=["a", "b", "a", "c"], target=["b", "a", "b", "c"])
    found = open_network(table, unit="edge", nodes=NODES)
    assert dense(found) == [[[0, 1, 0, 0], [1, 0, 0, 0], [0, 0, 0, 0], [0, 0, 0, 0]]]


def test_weights_add_up_and_are_capped_at_the_public_maximum():
    table = listed(source=["a", "b", "c"], target=["b", "a", "d"], weight=[3.0, 4.0, 1.0])
    found = open_network(table, unit="edge", nodes=NODES, edge_weight=5)
    assert found.layers[0].toarray()[0, 1] == 1.0
    assert found.layers[0].toarray()[2, 3] == 0.2


def test_each_layer_is_capped_by_itself_and_all_are_added_up():
    table = listed(source=["a", "b", "a"], target=["b", "a", "b"], layer=["work", "work", "lunch"])
    sums = EdgeMoment(open_network(table, unit="edge", nodes=NODES)).sums()
    assert sums.squares.low[0, 1] == sums.squares.low[1, 0] == 2 * 2**40
    assert sums.n_rows == 1


def test_nodes_are_matched_by_name():
    table = listed(source=["a"], target=["c"])
    found = open_network(table, unit="edge", nodes=NODES).select(("c", "b", "a", "d"))
    assert dense(found)[0][0] == [0, 0, 1, 0]


REFUSED = {
    "weights beyond 0 and 1 without a public maximum": (
        listed(source=["a"], target=["b"], weight=[2.0]), {}, "must have the weights 0 or 1"),
    "negative weights": (
        listed(source=["a"], target=["b"], weight=[-1.0]), {}, "weights of at least 0"),
    "weights that are missing": (
        listed(source=["a"], target=["b"], weight=pa.array([None], pa.float64())), {},
        "weights of at least 0"),
    "an edge list without its nodes": (listed(source=["a"], target=["b"]), {"nodes": None}, "public"),
    "a node that is not public": (listed(source=["a"], target=["secret"]), {}, "in row 1"),
    "a node that is missing": (listed(source=["a"], target=pa.array([None], pa.string())), {}, "row 1"),
    "columns that are no edge list's": (listed(source=["a"], target=["b"], age=[3.0]), {}, "edge list"),
    "a matrix that is not symmetric": (np.array([[0.0, 1.0], [0.0, 0.0]]), {"nodes": None}, "symmetric"),
    "a matrix that is not square": (np.ones((2, 3)), {"nodes": None}, "square"),
    "names for other nodes": (np.zeros((2, 2)), {}, "each of the 2 nodes"),
    "a maximum that is none": (sparse.csr_array((4, 4)), {"edge_weight": 0.0}, "1e-100 to 1e100"),
    "a maximum beyond all numbers": (
        sparse.csr_array((4, 4)), {"edge_weight": 1e300}, "1e-100 to 1e100"),
    "nodes twice": (np.zeros((2, 2)), {"nodes": ("a", "a")}, "distinct column names, got 'a' more than once"),
    "an edge list without a line": (listed(source=[], target=[]), {}, "at least one edge"),
    "an edge in the place of names": (listed(a=["c"], b=["d"]), {}, "first line .* must name its"),
    "weights in words": (
        listed(source=["a"], target=["b"], weight=["secret"]), {}, "weights of the edges .* be numbers"),
    "a pair without a number": (np.full((4, 4), np.nan), {}, "write 0 where there is no edge"),
    "weights that add up to more than any number": (
        listed(source=["a", "a"], target=["b", "b"], weight=[1e308, 1e308]), {"unit": "row"}, "finite sum"),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_is_refused_in_a_sentence(case):
    data, changed, said = REFUSED[case]
    with pytest.raises(InputError, match=said) as caught:
        open_network(data, **{"unit": "edge", "nodes": NODES, **changed})
    assert "secret" not in str(caught.value)
