"""The adjacency matrix of a silo's network where an edge is protected: in whole numbers, or exactly."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg.words import Words
from fedpower.rows.networks import NetworkSource, network_of
from fedpower.rows.source import Matrix, RowSource, Vector, is_sparse
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.exact_moment import ExactMoments
from fedpower.sums.kernel import block_rows
from fedpower.sums.lattice_rows import RowLattice
from fedpower.sums.moment import Moments
from fedpower.sums.reduce import full_blocks


class EdgeMoment:
    """What `RowSums` gives, the sum of a network's layers being the moment."""

    def __init__(self, source: RowSource, watch: Watch = UNWATCHED) -> None:
        found = network_of(source)
        assert found is not None, "rows have kernels of their own"
        self._source, self._watch, self._network = source, watch, found

    def sums(self) -> ExactMoments:
        """Return the adjacency in whole numbers of 1/S²; refuse what the noise is not made for."""
        lattice = RowLattice()
        whole = self._added(lattice.side**2)
        return ExactMoments(
            n_rows=1,
            lattice=lattice,
            total=np.zeros(len(whole), dtype=np.int64),
            squares=Words(low=whole),
            n_clipped=0,
        )

    def moments(self) -> Moments:
        """Return the adjacency itself."""
        width = self._network.n_features
        matrix = np.zeros((width, width))
        for start, part in self._parts():
            matrix[start : start + len(part)] += part
        nothing = np.zeros(width)
        for array in (matrix, nothing):
            array.flags.writeable = False
        return Moments(n_rows=1, mean=nothing, covariance=matrix, n_clipped=0)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return the adjacency times the basis."""
        return self.moments().product(basis, center)

    def trace(self, center: Vector | None = None) -> float:
        """Return 0: no edge goes from a node to itself."""
        return self.moments().trace(center)

    def summary(self) -> Moments:
        """Return that it counts for one."""
        nothing = np.zeros(self._network.n_features)
        return Moments(n_rows=1, mean=nothing, covariance=nothing, n_clipped=0)

    def _added(self, unit: int) -> NDArray[np.int64]:
        width = self._network.n_features
        total = np.zeros((width, width), dtype=np.int64)
        for start, part in self._parts():
            weights = np.rint(part * unit)
            if not ((weights >= 0) & (weights <= unit)).all():
                raise _out_of_bounds(self._network)
            total[start : start + len(part)] += weights.astype(np.int64)
        if not np.array_equal(total, total.T) or np.diagonal(total).any():
            raise _out_of_bounds(self._network)
        total.flags.writeable = False
        return total

    def _parts(self) -> Iterator[tuple[int, Matrix]]:
        """Yield rows of one layer at a time, and the node of the first; a block may span layers."""
        width, row = self._network.n_features, 0
        for block in full_blocks(self._source, block_rows(width), self._watch):
            rows = np.asarray(block.toarray() if is_sparse(block) else block)
            done = 0
            while done < len(rows):
                start = (row + done) % width
                part = rows[done : done + width - start]
                yield start, part
                done += len(part)
            row += len(rows)


def _out_of_bounds(network: NetworkSource) -> InputError:
    return InputError(
        f"the edges of {network.name} must be within the public maximum and between different nodes, the "
        "same in both directions, for the noise is made for that, got others; open it with open_network"
    )
