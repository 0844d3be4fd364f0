"""``Communities``: which nodes of silos' networks belong together, from a released network."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, MISSING
from pathlib import Path
from typing import Any

import numpy as np
import scipy.linalg
import scipy.optimize
from numpy.typing import NDArray
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_rand_score
from sklearn.metrics.cluster import contingency_matrix

from fedpower.analysis.base import Analysis, Contents
from fedpower.exceptions import InputError, NoiseWarning, require, warn
from fedpower.linalg import Array, fix_signs, goe_quantile
from fedpower.options import setting
from fedpower.protocol.solvers.angles import (
    CONFIDENCE,
    DETERMINED,
    exact_angles,
    moment_angles,
    network_angles,
)
from fedpower.report.covariance import Covariance
from fedpower.report.page import Picture, Table, drawn
from fedpower.report.text import count, listed, number, percent
from fedpower.rows.opening import read_pairs

Labels = NDArray[np.intp]

_CHANCE = 0.01


class Communities(Analysis):
    """Spectral clustering of the nodes of networks.

    All silos hold networks on the same nodes. Each node gets k coordinates from the leading eigenvectors of
    the released matrix, and k-means groups the nodes. If edges are protected, the matrix is the mean
    adjacency of the silos with its diagonal set to 0. If rows are protected, it is the second moment of the
    rows of the adjacency.

    Attributes
    ----------
    labels_ : ndarray of shape (n_nodes,)
        Community of each node, from 0. The largest community comes first.
    embedding_ : ndarray of shape (n_nodes, k)
        Coordinates of the nodes. Columns are orthonormal, and the largest entry of each is positive.
    eigenvalues_ : ndarray of shape (k,)
        Eigenvalues per silo.
    subspace_angle_ : float
        How far the k directions may be from those without noise, in degrees, with 90% confidence.
    determined_ : bool
        Whether that angle is at most 45°.
    chance_edge_, n_above_chance_ : float, int or None
        The eigenvalue that a network without communities exceeds with probability 1%, and how many of the k
        eigenvalues exceed it. None if rows are protected.
    rates_, rate_errors_ : ndarray of shape (k, k) or None
        Mean weight of a pair within and between communities, and its standard error from privacy noise. None
        if rows are protected.
    agreement_, adjusted_rand_ : float or None
        Share of nodes in the right community, and adjusted Rand index, if ``labels`` are given.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import Edge, FedCovariance
    >>> from fedpower.analysis import Communities
    >>> network = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    >>> model = FedCovariance(epsilon=float("inf"), unit=Edge()).fit_silos([network])
    >>> found = Communities(2, labels=[0] * 5 + [1] * 5).fit(model)
    >>> found.labels_.tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    >>> found.agreement_
    1.0
    """

    kind = "communities"
    needs_covariance = False

    n_communities: int = setting(MISSING, "Number of communities, k.", "count", option="-k --communities")
    _: KW_ONLY
    labels: Any = setting(
        None,
        "Known labels by node, for comparison; a mapping may omit nodes (CSV: lines of node,label).",
        kind=Path,
        metavar="CSV",
        parse=read_pairs,
    )
    random_state: int | None = setting(0, "Seed of k-means.", option=None)

    def _fit(self, release: Covariance) -> None:
        k, unit, most = self.n_communities, release.study.network, release.study.edge_weight
        if not unit:
            raise InputError(
                "communities must come from networks, got tables; see `fedpower fit --network edge`"
            )
        require(k < len(release.names), "n_communities", "less than the number of nodes", k)
        compared = self._compared(release.names)
        by_edge, std = unit == "edge", release.noise_std * most
        matrix = np.array(release.pooled.covariance)
        if by_edge:
            np.fill_diagonal(matrix, 0.0)
            matrix *= most  # what was released is in units of it
        values, vectors = scipy.linalg.eigh(matrix)
        order = np.argsort(-np.abs(values) if by_edge else -values, kind="stable")
        values, vectors = values[order], fix_signs(vectors[:, order])
        self.eigenvalues_, self.embedding_ = values[:k], np.ascontiguousarray(vectors[:, :k])
        clusters = KMeans(int(k), n_init=10, random_state=self.random_state).fit(self.embedding_)
        self.labels_ = _by_size(clusters.labels_)
        if release.noise_std == 0:
            found = exact_angles(np.abs(values), k, n_features=release.n_features)
        elif by_edge:
            found = network_angles(values, k, std=std / math.sqrt(2.0))
        else:
            found = moment_angles(release.pooled, k, pairs=(values, vectors))
        self.subspace_angle_, self.confidence_ = float(found.angles.subspaces[-1]), CONFIDENCE
        self.determined_ = bool(self.subspace_angle_ <= DETERMINED)
        self.rates_ = self.rate_errors_ = self.chance_edge_ = self.n_above_chance_ = None
        if by_edge:
            d = release.n_features
            rate = max(float(matrix.sum()) / (d * (d - 1)), 0.0)
            variance = std**2 + 2.0 * most * rate / len(release.silo_sizes)
            self.chance_edge_ = math.sqrt(variance) * goe_quantile(d, _CHANCE / 2.0)
            self.n_above_chance_ = int((np.abs(self.eigenvalues_) > self.chance_edge_).sum())
            self.rates_, self.rate_errors_ = _rates(matrix, self.labels_, k, std)
        self.agreement_, self.adjusted_rand_, self.n_compared_ = None, None, 0
        if compared is not None:
            nodes, truth = compared
            self.agreement_ = agreement(truth, self.labels_[nodes])
            self.adjusted_rand_ = float(adjusted_rand_score(truth, self.labels_[nodes]))
            self.n_compared_ = len(nodes)
        if not self.determined_ and release.noise_std > 0:
            secure = "" if release.study.is_secure else " or aggregation='secure'"
            warn(
                "the communities are not determined: noise may turn their directions by more than 45°; "
                f"add networks, or use a larger epsilon{secure}",
                NoiseWarning,
            )

    def _compared(self, names: Sequence[str]) -> tuple[Labels, Any] | None:
        """Return which of all nodes are compared, and their labels; refuse labels that cannot be."""
        if self.labels is None:
            return None
        if isinstance(self.labels, Mapping):
            places = {name: place for place, name in enumerate(names)}
            odd = [str(name) for name in self.labels if str(name) not in places]
            if odd or not self.labels:
                got = f"{odd[0]!r}, which is not a node" if odd else "none"
                raise InputError(f"labels must be of nodes of the networks, got {got}")
            chosen = np.array([places[str(name)] for name in self.labels], dtype=np.intp)
            return chosen, np.array([str(label) for label in self.labels.values()])
        given = np.asarray(self.labels)
        if given.shape != (len(names),):
            raise InputError(f"labels must have one label per node ({len(names)}), got shape {given.shape}")
        return np.arange(len(names), dtype=np.intp), given

    def _page(self) -> Contents:
        k = len(self.eigenvalues_)
        groups = "community" if k == 1 else "communities"
        yield f"{k:,} {groups} of {count(len(self.labels_), 'node')}"
        sizes = listed([f"{size:,}" for size in np.bincount(self.labels_, minlength=k)])
        yield f"They have {sizes} nodes."
        if self.release_.noise_std > 0:
            which = "the direction" if k == 1 else f"the {k} directions"
            verdict, angle = (
                ("determined: noise turns", f"at most {math.ceil(self.subspace_angle_)}°")
                if self.determined_
                else ("not determined: noise may turn", f"more than {DETERMINED:.0f}°")
            )
            yield (
                f"The communities are {verdict} {which} that separate them by {angle}, at "
                f"{CONFIDENCE:.0%} confidence."
            )
        if self.chance_edge_ is not None:
            above = self.n_above_chance_
            yield (
                f"Random edges exceed an eigenvalue of {number(self.chance_edge_, 3)} with probability "
                f"{_CHANCE:.0%}: {above} of {k} {'is' if above == 1 else 'are'} larger; the smallest is "
                f"{number(float(self.eigenvalues_[-1]), 3)}."
            )
        else:
            yield (
                "The mean weight of a pair of nodes is unknown, because rows were scaled to norm 1; "
                "protect edges to get it."
            )
        if self.agreement_ is not None:
            yield (
                f"Of {count(self.n_compared_, 'labelled node')} {percent(self.agreement_)} are in the "
                f"community of their label (adjusted Rand index {number(self.adjusted_rand_ or 0.0, 3)})."
            )
        if self.rates_ is not None and self.rate_errors_ is not None:
            at = np.triu_indices(k)
            columns = {
                "Communities": [
                    f"within {one}" if one == two else f"{one} and {two}" for one, two in np.transpose(at) + 1
                ],
                "Mean weight": self.rates_[at],
                "Privacy noise": self.rate_errors_[at],
            }
            yield Table("Mean weight of a pair of nodes", "rates.csv", columns)
        order = np.argsort(self.labels_, kind="stable")
        nodes: dict[str, Any] = {
            "Node": [self.columns_[place] for place in order],
            "Community": [f"{label + 1}" for label in self.labels_[order]],
            **{f"Coordinate {place + 1}": self.embedding_[order, place] for place in range(k)},
        }
        yield Table("Nodes by community", "communities.csv", nodes, n_printed=0)
        if k > 1:
            # The first separates well-connected nodes from others; the next ones separate communities.
            pair = [0, 1] if k == 2 else [1, 2]
            across, upwards = self.embedding_[:, pair].T.tolist()
            names = (f"coordinate {pair[0] + 1}", f"coordinate {pair[1] + 1}")
            yield Picture(
                drawn("nodes_plane", across, upwards, self.labels_.tolist(), names),
                "Every node by two of its coordinates; each community has its own marks. All of it follows "
                "from the release.",
            )


def agreement(truth: Any, found: Any) -> float:
    """Return the share of nodes on which two labellings agree, matched so that it is largest."""
    table = contingency_matrix(truth, found)
    return float(table[scipy.optimize.linear_sum_assignment(table, maximize=True)].sum() / table.sum())


def _by_size(labels: Any) -> Labels:
    """Return labels from 0 on, the largest community first; of equal ones that with the first node."""
    _, first, places, sizes = np.unique(labels, return_index=True, return_inverse=True, return_counts=True)
    return np.asarray(np.argsort(np.lexsort((first, -sizes)))[places])


def _rates(matrix: Array, labels: Labels, k: int, std: float) -> tuple[Array, Array]:
    """Return the mean entry within and between communities, and the noise of each mean."""
    members = np.eye(k)[labels]
    sizes = members.sum(axis=0)
    pairs = np.outer(sizes, sizes)
    np.fill_diagonal(pairs, sizes * (sizes - 1))
    total = members.T @ matrix @ members
    # Within a community every edge is counted at both of its places.
    different = np.maximum(np.where(np.eye(k, dtype=bool), pairs / 2, pairs), 0.5)
    none = pairs == 0
    rates = np.where(none, 0.0, total / np.maximum(pairs, 1.0))
    return rates, np.where(none, 0.0, std / np.sqrt(2.0 * different))
