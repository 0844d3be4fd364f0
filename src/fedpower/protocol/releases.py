"""What a silo computes from its rows and lets out when nothing is private."""

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from fedpower.data.exact_moment import ExactMoments
from fedpower.errors import InputError
from fedpower.linalg import lower_triangle
from fedpower.linalg.words import Words
from fedpower.privacy.integer_release import IntegerNoise
from fedpower.protocol.local_steps import take_local_steps
from fedpower.protocol.messages import (
    AskSteps,
    LocalSteps,
    MeanRow,
    PackedMoment,
    read_only,
)

Array = NDArray[np.float64]


class Moment(Protocol):
    """A silo's rows as the method sees them; :class:`fedpower.data.LocalMoment` is one."""

    @property
    def n_rows(self) -> int:
        """s_i, the number of rows."""

    def mean(self) -> Array:
        """Return the mean row."""

    def product(self, basis: Array, center: Array | None = None) -> Array:
        """Return A_i Z, with rows taken about ``center``."""

    def trace(self, center: Array | None = None) -> float:
        """Return tr A_i, with rows taken about ``center``."""

    def moment(self, center: Array | None = None) -> Array:
        """Return A_i itself, d×d."""

    def sums(self) -> ExactMoments:
        """Return the sums over bounded rows in whole numbers: what a noised moment is made from."""


class ExactReleases:
    """Exact answers: epsilon is infinite, and whoever reads the messages can learn about rows.

    Parameters
    ----------
    moment
        The silo's rows.
    center
        Whether the study centres on the pooled mean.
    """

    def __init__(self, moment: Moment, *, center: bool = False) -> None:
        self._moment = moment
        self._center = center

    @property
    def n_rows(self) -> int:
        """The number of rows."""
        return self._moment.n_rows

    def begin(self, run: str) -> None:
        """Do nothing: exact answers are the same in every run."""

    def check_affordable(self) -> None:
        """Do nothing: there is no charge."""

    def mean(self) -> MeanRow:
        """Return the exact mean row."""
        return MeanRow(mean=read_only(self._moment.mean()))

    def steps(self, ask: AskSteps) -> LocalSteps:
        """Return exact local power steps: LocalPower."""
        return take_local_steps(
            lambda basis: self._moment.product(basis, ask.center),
            ask,
            total_variance=self._moment.trace(ask.center),
        )

    def moment(self) -> PackedMoment:
        """Return the exact moment, about the silo's own mean where the study centres."""
        mean = self._moment.mean() if self._center else None
        return packed(self._moment.moment(mean), mean, self._moment.trace(mean))


def packed(moment: Array, mean: Array | None, trace: float) -> PackedMoment:
    """Return a moment as it is sent."""
    return PackedMoment(
        triangle=read_only(moment[lower_triangle(moment.shape[0])]),
        total_variance=trace,
        mean=None if mean is None else read_only(mean),
    )


def integers_of(
    moment: Moment, noise: IntegerNoise, *, n_rows: int, with_mean: bool
) -> tuple[Words, NDArray[np.int64] | None, int]:
    """Return the lower triangle of Σ z zᵀ, Σ z and Σ ‖z‖² of a silo's rows, not noised yet.

    Parameters
    ----------
    moment
        The silo's rows.
    noise
        What will be added; it must be for rows of this lattice.
    n_rows
        How many rows it is said that there are.
    with_mean
        Whether Σ z is wanted.
    """
    sums = moment.sums()
    if sums.lattice.side != noise.side or sums.n_rows != n_rows:
        raise InputError(
            f"noise must be made for the rows that were summed, got {n_rows} rows of side {noise.side} "
            f"for {sums.n_rows} of side {sums.lattice.side}; start the silo again"
        )
    below = sums.squares.at(lower_triangle(sums.total.size))
    return below, sums.total if with_mean else None, sums.square_total
