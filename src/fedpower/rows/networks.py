"""A silo's network: edges on public nodes, one layer or several, as rows of adjacency matrices."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Unpack, cast

import numpy as np

from fedpower.exceptions import CellError, InputError, NoRowsError, require
from fedpower.rows.arrays import canonical
from fedpower.rows.fingerprint import StoredData, stored_under
from fedpower.rows.opening import Reading, open_source
from fedpower.rows.source import Extra, RowSource, pick_columns
from fedpower.rows.tables import Table, TableSource
from fedpower.rules.expressions import compiled, problems_in
from fedpower.rules.rules import Rule
from fedpower.values import SparseBlock, Vector, is_sparse, pl, require_distinct, shown, sparse

NetworkUnit = Literal["edge", "row"]
"""What is protected of a network: an edge of a layer, or a row of its adjacency matrix."""

MOST_LAYERS = 1024
"""Of one silo: sums over them fit into what releases are checked against and summed in."""

_BATCH = 2**16
_ENDS = (("source", "target"), ("from", "to"))
"""What the columns of an edge list may call the two nodes; else they are its first two columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighed:
    """What a public maximum did to the edges of a network: for the silo's operator only."""

    n_edges: int = 0
    n_capped: int = 0
    heaviest: float = 0.0


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkSource:
    """The layers of a network on public nodes, as rows: those of the first layer, then of the next."""

    name: str
    layers: tuple[SparseBlock, ...]
    unit: NetworkUnit
    columns: tuple[str, ...] | None = None
    edge_weight: float = 1.0
    weighed: Weighed = Weighed()
    stored_data: StoredData | None = None
    sparse: bool = field(default=True, init=False)

    @property
    def n_features(self) -> int:
        return int(self.layers[0].shape[0])

    @property
    def n_rows(self) -> int:
        return self.n_features * len(self.layers)

    @property
    def density(self) -> float:
        """Share of pairs that have an edge."""
        return sum(layer.nnz for layer in self.layers) / (self.n_rows * self.n_features)

    def blocks(self, max_rows: int) -> Iterator[SparseBlock]:
        """Yield the rows of all layers; no block has rows of two."""
        for layer in self.layers:
            for start in range(0, self.n_features, max_rows):
                yield layer[start : start + max_rows]

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> NetworkSource:
        if self.columns is None:
            raise InputError(f"the nodes of {self.name} must have names to be selected by; give nodes")
        places = np.array(pick_columns(self.name, self.columns, columns, extra=extra))
        layers = tuple(canonical(layer[places][:, places]) for layer in self.layers)
        return replace(self, columns=columns, layers=layers)


def open_network(
    data: Any,
    *,
    unit: NetworkUnit,
    nodes: Sequence[str] | None = None,
    name: str | None = None,
    edge_weight: float | None = None,
    **reading: Unpack[Reading],
) -> NetworkSource:
    """Return the network of a matrix or an edge list.

    An edge list must be given its ``nodes``, for which nodes have edges is protected. Weights are capped at
    ``edge_weight``; without it they must be 0 or 1 where edges are protected, and repeated edges count once.
    """
    if isinstance(data, NetworkSource):
        if data.unit != unit or data.edge_weight != (1.0 if edge_weight is None else edge_weight):
            raise InputError(f"{data.name} must be opened with the unit and edge_weight of the fit")
        return data
    data, nodes = _unlabelled(data, nodes)
    named = None if nodes is None else _names_of(nodes)
    try:
        source = open_source(data, name=name, **reading)
    except NoRowsError:
        raise InputError(
            f"{name or data} must list at least one edge, got none; write a line from a node to itself"
        ) from None
    called, stored = source.name, stored_under(source)  # before it is read: files must not change
    edges = _edge_list(source.table, named) if isinstance(source, TableSource) else _matrix(source, named)
    columns = named or source.columns
    return _bounded(called, edges, edge_weight, unit=unit, columns=columns, stored_data=stored)


def _unlabelled(data: Any, nodes: Sequence[str] | None) -> tuple[Any, Sequence[str] | None]:
    """Return an adjacency data frame as numbers, with its nodes; anything else as it is."""
    if not (hasattr(data, "loc") and hasattr(data, "columns")):
        return data, nodes
    labels = [*data.columns]
    if [*data.index] != labels or not all(isinstance(label, str) for label in labels):
        return data, nodes
    nodes = labels if nodes is None else nodes
    odd = sorted(set(nodes) ^ set(labels))
    require(not odd, "nodes", "the labels of the data frame", shown(odd))
    return data.loc[list(nodes), list(nodes)].to_numpy(dtype=np.float64), nodes


def network_of(source: RowSource) -> NetworkSource | None:
    """Return the network whose *edges* a source reads, directly or through another; else None."""
    network = source if isinstance(source, NetworkSource) else getattr(source, "rows", None)
    return network if isinstance(network, NetworkSource) and network.unit == "edge" else None


def require_same_nodes(networks: Iterable[NetworkSource]) -> None:
    """Refuse networks that are not all on the same nodes, by name where these have any."""
    first, *others = networks
    for other in others:
        if (first.columns is None) != (other.columns is None):
            unnamed = first if first.columns is None else other
            raise InputError(f"either every network or none must name its nodes, got none in {unnamed.name}")
        odd = sorted(set(first.columns or ()) ^ set(other.columns or ()))
        if odd or first.n_features != other.n_features:
            sizes = f"{first.n_features} and {other.n_features} nodes"
            got = f"{shown(odd)} in one of them only" if odd else sizes
            raise InputError(f"{first.name} and {other.name} must be networks on the same nodes, got {got}")


def weighed_edges(sources: Mapping[str, RowSource]) -> dict[str, Weighed]:
    """Return what the public maximum did to the edges of each silo, for its operator only."""
    return {name: network.weighed for name, source in sources.items() if (network := network_of(source))}


_Layers = list[tuple[Vector, SparseBlock]]
"""Of each layer the weights as they were given, and their symmetric matrix; loops are dropped later."""


def check_edge_weight(value: object) -> None:
    """Refuse a public maximum whose square, times noise, is not a number."""
    is_weight = isinstance(value, int | float) and not isinstance(value, bool) and 1e-100 <= value <= 1e100
    require(value is None or is_weight, "edge_weight", "a number from 1e-100 to 1e100", value)


def _bounded(
    name: str, edges: _Layers, edge_weight: float | None, *, unit: NetworkUnit, **facts: Any
) -> NetworkSource:
    """Return a network of layers, their weights in units of the public maximum."""
    if len(edges) > MOST_LAYERS:
        raise InputError(f"{name} must have at most {MOST_LAYERS} layers, got {len(edges)}")
    check_edge_weight(edge_weight)
    most = 1.0 if edge_weight is None else float(edge_weight)
    layers, weights = [], [np.zeros(0)]
    for given, matrix in edges:
        if not np.isfinite(given).all() or (given < 0).any():
            raise InputError(f"edges of {name} must have weights of at least 0, got negative weights")
        if unit == "edge" and edge_weight is None and not np.isin(given, (0.0, 1.0)).all():
            raise InputError(
                f"edges of {name} must have the weights 0 or 1, got other weights; give edge_weight"
            )
        matrix.setdiag(0.0)
        layer = canonical(matrix)
        if unit == "row" and not np.isfinite(layer.data).all():
            raise InputError(f"the weights of an edge of {name} must have a finite sum, got infinity")
        if unit == "edge":
            layer.data /= most
            capped = np.minimum(layer.data, 1.0)
            # Without a maximum lines about two nodes count once, which cuts nothing off.
            weights.append(capped if edge_weight is None else layer.data)
            layer.data = capped
        layers.append(layer)
    held = np.concatenate(weights)  # in units of the maximum, each edge at both of its places
    weighed = Weighed(
        n_edges=held.size // 2,
        n_capped=int(np.count_nonzero(held > 1.0)) // 2,
        heaviest=float(held.max(initial=0.0)),
    )
    facts |= {"unit": unit, "edge_weight": most, "weighed": weighed}
    return NetworkSource(name=name, layers=tuple(layers), **facts)


def _names_of(nodes: Sequence[str]) -> tuple[str, ...]:
    names = tuple(str(node) for node in nodes)
    if not names or "" in names:
        raise InputError(f"nodes must have names, got {'one without' if names else 'an empty list'}")
    require_distinct("nodes", names)
    return names


def _matrix(source: RowSource, nodes: tuple[str, ...] | None) -> _Layers:
    try:
        blocks = [block if is_sparse(block) else sparse.csr_array(block) for block in source.blocks(_BATCH)]
    except CellError:
        raise InputError(
            f"{source.name} must hold a finite number for every pair of nodes; write 0 where there is no edge"
        ) from None
    matrix = cast("SparseBlock", sparse.vstack(blocks, format="csr"))
    side = int(matrix.shape[0])
    if matrix.shape[1] != side or abs(matrix - matrix.T).max() > 0:
        got = "another shape" if matrix.shape[1] != side else "one that is not symmetric"
        raise InputError(f"{source.name} must be a square, symmetric adjacency matrix, got {got}")
    if nodes is not None and len(nodes) != side:
        raise InputError(f"nodes must name each of the {side} nodes of {source.name}, got {len(nodes)} names")
    return [(matrix.data, matrix)]


def _edge_list(table: Table, nodes: tuple[str, ...] | None) -> _Layers:
    have = tuple(table.columns)
    ends = next((pair for pair in _ENDS if set(pair) <= set(have)), have[:2])
    rest = [column for column in have if column not in ends]
    if len(ends) < 2 or not set(rest) <= {"weight", "layer"}:
        raise InputError(
            f"{table.name} must be an edge list of source, target, weight and layer, got {shown(have)}"
        )
    if nodes is None:
        raise InputError(f"{table.name} must have a public list of all nodes, got none; give nodes")
    places = {node: place for place, node in enumerate(nodes)}
    if not places.keys().isdisjoint(have):
        raise InputError(f"the first line of {table.name} must name its columns, got an edge")
    numbers = [name for name in rest if name == "weight"]
    labels = [*ends, *(name for name in rest if name == "layer")]
    types = {"one": pl.Int64, "other": pl.Int64, "weight": pl.Float64, "layer": pl.String}
    lines = [pl.DataFrame(schema=types)]
    for part, row, batch in table.batches([*labels, *numbers], _BATCH, numbers=numbers):
        texts = [batch[name].cast(pl.String).str.strip_chars() for name in labels]
        placed = [text.replace_strict(places, default=None, return_dtype=pl.Int64) for text in texts[:2]]
        odd = placed[0].is_null() | placed[1].is_null()
        if odd.any():  # the error must not contain the name
            raise InputError(
                f"every edge of {table.name} must be between two public nodes, got another name in "
                f"row {row + int(odd.arg_max() or 0) + 1}; correct it, or add the node to nodes"
            )
        weight: pl.Expr = pl.lit(1.0)
        if numbers:
            made = compiled(Rule(column="weight"), part.cells, batch.schema, gaps=True, plain=True)
            if problems_in(batch, [made]):
                raise InputError(f"weights of the edges of {part.name} must be numbers, got something else")
            weight = made.values[0]
        layer = texts[2] if texts[2:] else pl.lit("")
        lines.append(
            batch.select(
                placed[0].alias("one"), placed[1].alias("other"), weight.alias("weight"), layer.alias("layer")
            )
        )
    all_lines, layers = pl.concat(lines), []
    for own in all_lines.partition_by("layer", maintain_order=True) or [all_lines]:
        one, other, weights = (own[column].to_numpy() for column in ("one", "other", "weight"))
        # Two places for each edge, so that lines in either direction are about the same one.
        at = np.concatenate([one, other]), np.concatenate([other, one])
        both = np.concatenate([weights, weights]), at
        layers.append((weights, canonical(sparse.coo_array(both, shape=(len(nodes), len(nodes))))))
    return layers
