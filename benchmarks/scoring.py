"""What an estimated subspace is worth beside the exact one: every method is scored by this alone."""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from benchmarks.a9a_baselines import leading
from fedpower.linalg import sin_theta

Array = NDArray[np.float64]


@dataclass(frozen=True)
class Truth:
    """The pooled second moment (about the mean, where centred) and its leading eigenspace."""

    moment: Array
    rank: int

    @classmethod
    def of(cls, rows: Array, rank: int, *, centred: bool = False) -> "Truth":
        """Return the truth about rows that are bounded already."""
        moment = rows.T @ rows / len(rows)
        if centred:
            mean = rows.mean(axis=0)
            moment = moment - np.outer(mean, mean)
        return cls(moment, rank)

    @cached_property
    def _exact(self) -> tuple[Array, Array]:
        return leading(self.moment, self.rank)

    @property
    def basis(self) -> Array:
        """The leading k eigenvectors."""
        return self._exact[1]

    def score(self, basis: Array) -> dict[str, float]:
        """Return sin θ_k over all k columns and the captured variance as a share of the exact one's."""
        if basis.shape != self.basis.shape:
            raise ValueError(f"a basis must be {self.basis.shape}, got {basis.shape}")
        captured = float(np.einsum("ij,ij->", basis, self.moment @ basis))
        return {
            "error": sin_theta(basis, self.basis),
            "captured": captured / float(self._exact[0].sum()),
        }
