"""``Communities``: which nodes of silos' networks belong together, from what was released of them."""

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from markupsafe import Markup
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score

from fedpower.analyses.base import Analysis, Option, table_of
from fedpower.errors import InputError
from fedpower.linalg.noised import goe_quantile
from fedpower.protocol.solvers.angles import (
    CONFIDENCE,
    DETERMINED,
    Angles,
    exact_angles,
    moment_angles,
    network_angles,
)
from fedpower.report.charts import nodes_plane
from fedpower.report.moment import Moment
from fedpower.report.page import Table
from fedpower.report.text import count, listed, number, percent
from fedpower.rows.opening import existing

Array = NDArray[np.float64]
Labels = NDArray[np.intp]

_CHANCE = 0.01


class Communities(Analysis):
    """Spectral clustering of the nodes of networks that silos hold on the same nodes.

    The released matrix gives each node k coordinates, those of its leading eigenvectors, and k-means its
    community. Where edges were protected the matrix is the mean adjacency of the silos: its eigenvectors
    are taken by the size of their eigenvalues, and its diagonal, which holds noise alone, is set to 0.
    Where rows were, it is the moment of the adjacency's rows.

    Parameters
    ----------
    n_communities : int
        k.
    labels : mapping from names of nodes or array-like of shape (n_nodes,), default=None
        A labelling to compare with; nodes that a mapping leaves out are not compared.
    random_state : int, default=0
        Of k-means' starts.

    Attributes
    ----------
    labels_ : ndarray of shape (n_nodes,)
        Communities from 0, the largest first.
    embedding_ : ndarray of shape (n_nodes, k)
        Coordinates, orthonormal columns, each one's largest entry positive.
    eigenvalues_ : ndarray of shape (k,)
        Per silo: of the mean adjacency in units of the largest weight, or of the moment.
    subspace_angle_ : float
        Degrees between the subspace of the k directions and that of the networks without noise: at most
        this, at 90% confidence. 0 without noise, and 90 where eigenvalues k and k + 1 are equal.
    determined_ : bool
        Whether that is at most 45°.
    chance_edge_ : float or None
        The eigenvalue that edges which are equally likely for all pairs, and noise, exceed with
        probability 1%; None where rows were protected.
    n_above_chance_ : int or None
        How many of the k eigenvalues exceed it.
    rates_, rate_errors_ : ndarray of shape (k, k) or None
        The mean weight of a pair within and between communities, per silo, and the privacy noise of it;
        None where rows were protected, which are scaled to norm 1.
    agreement_ : float or None
        The share of compared nodes that are rightly placed, communities being matched as well as can be.
    adjusted_rand_ : float or None
        The adjusted Rand index of the same.
    moment_ : Moment
        What it was computed from.
    """

    kind = "communities"
    needs_covariance = False
    options = (
        Option("n_communities", "-k --communities", "Number of communities.", required=True),
        Option("labels", "--labels", "Lines of node,label to compare with.", type=Path, metavar="CSV"),
    )
    facts = ("embedding", "eigenvalues", "subspace_angle", "determined", "chance_edge", "n_above_chance",
             "rates", "rate_errors", "agreement", "adjusted_rand")  # fmt: skip

    def __init__(self, n_communities: int, *, labels: Any = None, random_state: int | None = 0) -> None:
        self.n_communities = n_communities
        self.labels = labels
        self.random_state = random_state

    @classmethod
    def from_options(cls, **given: Any) -> Analysis:
        """Return the analysis that a command's options ask for."""
        path = given.pop("labels")
        return cls(labels=None if path is None else read_labels(path), **given)

    def _fit(self, moment: Moment) -> None:
        k = self.n_communities
        unit = moment.study.network
        if not unit:
            raise InputError(
                "communities must be found from networks, got a moment of tables; release it with "
                "`fedpower communities`, or FedMoment(network='edge')"
            )
        compared = self.compared(moment.names)
        by_edge = unit == "edge"
        matrix = np.array(moment.pooled.moment)
        if by_edge:
            np.fill_diagonal(matrix, 0.0)
            matrix *= moment.study.edge_weight  # what was released is in units of it
        values, vectors = _eigenpairs(matrix, by_size=by_edge)
        self.eigenvalues_, self.embedding_ = values[:k], _signed(vectors[:, :k])
        clusters = KMeans(int(k), n_init=10, random_state=self.random_state).fit(self.embedding_)
        self.labels_ = _by_number(clusters.labels_, int(k))
        angles = _angles(moment, (values, vectors), int(k))
        self.subspace_angle_ = float(angles.subspaces[-1])
        self.determined_ = bool(self.subspace_angle_ <= DETERMINED)
        self.rates_ = self.rate_errors_ = self.chance_edge_ = self.n_above_chance_ = None
        if by_edge:
            self.chance_edge_ = self._chance(moment, matrix)
            self.n_above_chance_ = int((np.abs(self.eigenvalues_) > self.chance_edge_).sum())
            std = moment.noise_std * moment.study.edge_weight
            self.rates_, self.rate_errors_ = _rates(matrix, self.labels_, int(k), std)
        self.agreement_ = self.adjusted_rand_ = None
        if compared is not None:
            nodes, truth = compared
            self.agreement_ = agreement(truth, self.labels_[nodes])
            self.adjusted_rand_ = float(adjusted_rand_score(truth, self.labels_[nodes]))
        self._n_compared = 0 if compared is None else len(compared[0])

    def compared(self, names: Sequence[str]) -> tuple[Labels, Any] | None:
        """Return which nodes are compared, and their labels; refuse a k or labels that cannot be.

        Parameters
        ----------
        names
            Of all nodes: known before anything is released.
        """
        k = self.n_communities
        if not isinstance(k, int | np.integer) or isinstance(k, bool) or not 1 <= k < len(names):
            raise InputError(
                f"communities must be a whole number from 1 to the {len(names)} nodes less one, "
                f"got {k!r}; choose one"
            )
        return compared_nodes(self.labels, names)

    def _chance(self, moment: Moment, matrix: Array) -> float:
        """Return the eigenvalue that chance exceeds with probability `_CHANCE`."""
        d, most = moment.n_features, moment.study.edge_weight
        rate = float(matrix.sum()) / (d * (d - 1))
        falls = most * max(rate, 0.0) / len(moment.silo_sizes)
        variance = (moment.noise_std * most) ** 2 + 2.0 * falls
        return math.sqrt(variance) * goe_quantile(d, _CHANCE / 2.0)

    def _title(self) -> str:
        k = len(self.eigenvalues_)
        groups = "community" if k == 1 else "communities"
        return f"{k:,} {groups} of {count(len(self.labels_), 'node')}"

    def _sentences(self) -> Iterator[str]:
        k = len(self.eigenvalues_)
        sizes = listed([f"{size:,}" for size in np.bincount(self.labels_, minlength=k)])
        yield f"They have {sizes} nodes."
        if self.moment_.noise_std > 0:
            whose = "the direction" if k == 1 else f"the {k} directions"
            yield (
                f"The communities are determined: noise turns {whose} that part them by at most "
                f"{math.ceil(self.subspace_angle_)}°, at {CONFIDENCE:.0%} confidence."
                if self.determined_
                else f"The communities are not determined: noise may turn {whose} that part them by more "
                f"than {DETERMINED:.0f}°, at {CONFIDENCE:.0%} confidence."
            )
        if self.chance_edge_ is not None:
            yield (
                "Edges that are equally likely for all pairs exceed an eigenvalue of "
                f"{number(self.chance_edge_, 3)} with probability {_CHANCE:.0%}: {self.n_above_chance_} "
                f"of {k} {'is' if self.n_above_chance_ == 1 else 'are'} larger, and the last one is "
                f"{number(float(self.eigenvalues_[-1]), 3)}."
            )
        if self.rates_ is None:
            yield (
                "How much a pair of nodes weighs on average is not known: rows were protected, which were "
                "scaled to norm 1 before they were released; protect edges to have it."
            )
        if self.agreement_ is not None:
            yield (
                f"Of {count(self._n_compared, 'labelled node')} {percent(self.agreement_)} are placed as "
                f"the labels say (adjusted Rand index {number(self.adjusted_rand_ or 0.0, 3)})."
            )

    def _tables(self) -> Iterator[Table]:
        k, order = len(self.eigenvalues_), np.argsort(self.labels_, kind="stable")
        if self.rates_ is not None and self.rate_errors_ is not None:
            pairs = [(one, two) for one in range(k) for two in range(one, k)]
            groups = [f"{a + 1} and {b + 1}" if a != b else f"within {a + 1}" for a, b in pairs]
            at = tuple(np.array(pairs).T)
            columns = {
                "Communities": groups, "Mean weight": self.rates_[at], "Privacy noise": self.rate_errors_[at],
            }  # fmt: skip
            yield table_of("Mean weight of a pair of nodes", "rates.csv", columns)
        nodes: dict[str, Any] = {
            "Node": [self.moment_.names[place] for place in order],
            "Community": [f"{label + 1}" for label in self.labels_[order]],
        }
        nodes |= {f"Coordinate {place + 1}": self.embedding_[order, place] for place in range(k)}
        yield table_of("Nodes by community", "communities.csv", nodes, printed=False)

    def _pictures(self) -> Iterator[tuple[Markup, str]]:
        k = len(self.eigenvalues_)
        if k < 2:
            return
        # The first tells well-connected nodes from others; the next ones part communities.
        first, second = (0, 1) if k == 2 else (1, 2)
        picture = nodes_plane(
            self.embedding_[:, first].tolist(),
            self.embedding_[:, second].tolist(),
            self.labels_.tolist(),
            (f"coordinate {first + 1}", f"coordinate {second + 1}"),
        )
        yield (
            picture,
            "Every node by two of its coordinates; each community has its own marks. All that is drawn was "
            "computed from what was released.",
        )

    def _more_facts(self) -> dict[str, Any]:
        return {
            "nodes": list(self.moment_.names),
            "labels": [int(label) + 1 for label in self.labels_],
            "confidence": CONFIDENCE,
            "n_compared": self._n_compared,
        }


def read_labels(path: Path) -> dict[str, str]:
    """Return a label for each node that a CSV file of node,label lines names."""
    labels: dict[str, str] = {}
    with existing(path).open(newline="", encoding="utf-8-sig") as stream:
        for place, row in enumerate(csv.reader(stream), start=1):
            if not row:
                continue
            if len(row) != 2 or row[0].strip() in labels:
                raise InputError(
                    f"{path} must hold a line of node,label for every node, got another in line {place}; "
                    "correct it"
                )
            if place == 1 and row[0].strip().lower() in ("node", "nodes", "name", "id"):
                continue
            labels[row[0].strip()] = row[1].strip()
    return labels


def _eigenpairs(matrix: Array, *, by_size: bool) -> tuple[Array, Array]:
    """Return all eigenvalues, the largest first, and eigenvectors: by absolute value if ``by_size``."""
    values, vectors = scipy.linalg.eigh(matrix)
    order = np.argsort(-np.abs(values) if by_size else -values, kind="stable")
    return values[order], vectors[:, order]


def _signed(vectors: Array) -> Array:
    """Return vectors whose largest entries are positive."""
    largest = vectors[np.abs(vectors).argmax(axis=0), np.arange(vectors.shape[1])]
    return np.ascontiguousarray(vectors * np.where(largest < 0, -1.0, 1.0))


def _angles(moment: Moment, pairs: tuple[Array, Array], k: int) -> Angles:
    """Return the angles of k directions."""
    if moment.noise_std == 0:
        return exact_angles(np.abs(pairs[0]), k, n_features=moment.n_features)
    if moment.study.network == "row":
        return moment_angles(moment.pooled, k, pairs=pairs)
    std = moment.noise_std * moment.study.edge_weight / math.sqrt(2.0)
    return network_angles(pairs[0], k, std=std)


def agreement(truth: Any, found: Any) -> float:
    """Return the share of nodes that two labellings agree on, once their labels are matched best."""
    _, one = np.unique(np.asarray(truth), return_inverse=True)
    _, two = np.unique(np.asarray(found), return_inverse=True)
    table = np.zeros((one.max() + 1, two.max() + 1))
    np.add.at(table, (one, two), 1.0)
    rows, columns = scipy.optimize.linear_sum_assignment(-table)
    return float(table[rows, columns].sum() / len(one))


def compared_nodes(labels: Any, names: Sequence[str]) -> tuple[Labels, Any] | None:
    """Return the places of nodes that a labelling has and their labels; None without one."""
    if labels is None:
        return None
    if isinstance(labels, Mapping):
        places = {name: place for place, name in enumerate(names)}
        odd = [str(name) for name in labels if str(name) not in places]
        if odd or not labels:
            raise InputError(
                f"labels must be of nodes of the networks, got {repr(odd[0]) if odd else 'none'}"
            )
        chosen = np.array([places[str(name)] for name in labels], dtype=np.intp)
        return chosen, np.array([str(label) for label in labels.values()])
    given = np.asarray(labels)
    if given.shape != (len(names),):
        raise InputError(
            f"labels must have one label a node, got shape {given.shape} for {len(names)} "
            "nodes; give one each"
        )
    return np.arange(len(names), dtype=np.intp), given


def _by_number(labels: Any, k: int) -> Labels:
    """Return labels from 0 on, the largest community first; of equal ones that with the first node."""
    sizes = np.bincount(labels, minlength=k)
    first = [int(np.argmax(labels == community)) for community in range(k)]
    order = sorted(range(k), key=lambda community: (-sizes[community], first[community]))
    places = np.empty(k, dtype=np.intp)
    places[order] = np.arange(k)
    return np.asarray(places[labels])


def _rates(matrix: Array, labels: Labels, k: int, std: float) -> tuple[Array, Array]:
    """Return the mean entry within and between communities, and the noise of each mean."""
    members = np.eye(k)[labels]
    sizes = members.sum(axis=0)
    pairs = np.outer(sizes, sizes)
    np.fill_diagonal(pairs, sizes * (sizes - 1))
    total = members.T @ matrix @ members
    with np.errstate(invalid="ignore", divide="ignore"):
        rates = np.where(pairs > 0, total / pairs, 0.0)
        # Within a community every edge is counted at both of its places.
        different = np.where(np.eye(k, dtype=bool), pairs / 2, pairs)
        errors = np.where(pairs > 0, std / math.sqrt(2.0) / np.sqrt(different), 0.0)
    return rates, errors
