"""``FedCommunities``: communities of networks that silos hold on the same nodes and do not pool."""

from collections.abc import Sequence
from operator import attrgetter
from os import PathLike
from pathlib import Path
from typing import Any, Literal, Self

from sklearn.base import ClusterMixin

from fedpower.analysis.communities import Communities
from fedpower.estimator.fedpca import FedCovariance, FedPCA, keep_arguments
from fedpower.estimator.fit_warnings import NoiseWarning, warn
from fedpower.estimator.fitting import named_sources
from fedpower.estimator.terms import options_of
from fedpower.exceptions import require
from fedpower.options import Aggregation, Edge, Node
from fedpower.report.covariance import save_analysis
from fedpower.rules.codebook import CodeBook


class FedCommunities(ClusterMixin, FedCovariance):
    """Communities of the nodes of networks, with differential privacy.

    All silos hold networks on the same nodes. Each sends its noised adjacency matrix once (``unit="edge"``),
    or the noised second moment of its rows (``unit="row"``, as in the paper).

    Parameters
    ----------
    n_communities : int
        Number of communities.
    unit : {"edge", "row"}, Edge or Node, default="edge"
        What is protected: one edge of one network with its weight, or one row of an adjacency matrix, scaled
        to norm 1. Neither protects a node with all its edges. Weights other than 0 and 1 need
        ``Edge(max_weight=...)``, a public maximum.
    epsilon, delta, aggregation
        As in `FedPCA`. By default δ comes from the number of pairs of nodes.
    nodes : sequence of str, default=None
        Names of all nodes; they are public. Edge lists need them. Adjacency data frames have them as labels.
    n_jobs : int, default=None
        As in `FedPCA`.
    random_state : int, default=0
        Seed of k-means. The noise is never seeded.

    Attributes
    ----------
    labels_, embedding_, eigenvalues_, subspace_angle_, determined_, chance_edge_, n_above_chance_
    rates_, rate_errors_, agreement_, adjusted_rand_
        As in `fedpower.analysis.Communities`.
    release_ : Covariance
        The released matrix. `fedpower.analysis.Communities` finds other numbers of communities in it, at no
        further cost.
    privacy_ : PrivacyStatement
        What the release guarantees, and to whom. Print it.
    n_features_in_, feature_names_in_
        Number of nodes, and their names if they have any.

    Examples
    --------
    >>> import numpy as np
    >>> from fedpower import FedCommunities
    >>> network = np.kron(np.eye(2), np.ones((5, 5))) - np.eye(10)
    >>> FedCommunities(2, epsilon=float("inf")).fit_silos([network]).labels_.tolist()
    [0, 0, 0, 0, 0, 1, 1, 1, 1, 1]
    """

    def __init__(
        self,
        n_communities: int,
        *,
        unit: Literal["edge", "row"] | Edge | Node = "edge",
        epsilon: float = 1.0,
        delta: float | None = None,
        aggregation: Literal["plain", "secure"] | Aggregation = "plain",
        nodes: Sequence[str] | None = None,
        n_jobs: int | None = None,
        random_state: int | None = 0,
    ) -> None:
        keep_arguments(self, locals())

    def fit_silos(self, silos: Any, y: Any = None, **run: Any) -> Self:
        """Find the communities of one network per silo.

        Parameters
        ----------
        silos : list or mapping from names
            Each a symmetric adjacency matrix or data frame, an edge list (a table), or a path.
        y : mapping from nodes or array-like of shape (n_nodes,), default=None
            Public labels to compare with.
        **run
            As in `FedPCA.fit_silos`.
        """
        opened = named_sources(silos, options_of(self._model()), nodes=self.nodes)
        analysis = Communities(self.n_communities, labels=y, random_state=self.random_state)
        for network in opened.values():  # refused before anything is released
            analysis.compared(network.columns or [f"x{place}" for place in range(network.n_features)])
        super().fit_silos(opened, **run)
        self.analysis_ = analysis.fit(self.release_)
        if self.release_.noise_std > 0 and not self.analysis_.determined_:
            warn(
                "the communities are not determined: noise may turn their directions by more than 45°; "
                "add networks, use a larger epsilon, or aggregation='secure'",
                NoiseWarning,
            )
        return self

    def _model(self) -> FedPCA:
        unit: Any = {"edge": Edge(), "row": Node()}.get(str(self.unit), self.unit)
        require(isinstance(unit, Edge | Node), "unit", "'edge', 'row', Edge() or Node()", self.unit)
        shared = {name: getattr(self, name) for name in ("epsilon", "delta", "aggregation", "n_jobs")}
        book = CodeBook(normalize=True) if isinstance(unit, Node) else None
        return FedCovariance(unit=unit, codebook=book, **shared)._model()

    def save(self, folder: str | PathLike[str], *, force: bool = False) -> Path:
        """Save release and communities as a folder and return its path."""
        account = self.analysis_.account()
        return save_analysis(account, self.release_, Path(folder), force=force, released=True)


_OF_ANALYSES = (
    "labels_", "embedding_", "eigenvalues_", "subspace_angle_", "determined_", "chance_edge_",
    "n_above_chance_", "rates_", "rate_errors_", "agreement_", "adjusted_rand_",
)  # fmt: skip

for _name in _OF_ANALYSES:
    setattr(FedCommunities, _name, property(attrgetter(f"analysis_.{_name}")))
