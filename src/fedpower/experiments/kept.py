"""Silos whose moments are made once and used by many runs."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from copy import copy

import numpy as np
from numpy.typing import NDArray

from fedpower.data import (
    KernelChoice,
    Moments,
    RowSource,
    RowTreatment,
    accumulate_moment,
    open_source,
)
from fedpower.data.exact_moment import ExactMoments, exact_moment
from fedpower.engines.inprocess import available_cores, blas_threads
from fedpower.experiments.simulated import Model

Array = NDArray[np.float64]

TREATMENT = RowTreatment(row_norm=1.0)
"""Rows of the paper's models have norm 1 already; the bound is what a private study must state."""


class KeptMoment:
    """A silo's moment, made once and used by every run; it stands in for the rows.

    Parameters
    ----------
    moments
        Of the silo's rows.
    exact
        Makes the sums over them in whole numbers, which runs with a noised moment need.
    copies
        How many times the silo holds each of its rows. The moment is the same, and s is so many times
        larger: a silo with more rows of the same kind, for the price of none.
    """

    def __init__(
        self, moments: Moments, exact: Callable[[], ExactMoments], *, copies: int = 1
    ) -> None:
        self._moments = moments
        self._exact = exact
        self._sums: ExactMoments | None = None
        self._whole = moments.about(None)
        self._trace = moments.trace()
        self.n_rows = moments.n_rows * copies
        self.source = open_source(self._whole, name="moment")  # identifies it to a ledger
        self.treatment = TREATMENT
        self.choice = KernelChoice(kind="moment", reason="the moment is made once for all runs")
        self.device = None

    def with_copies(self, copies: int) -> "KeptMoment":
        """Return the same silo, holding each of its rows ``copies`` times."""
        other = copy(self)
        other.n_rows = self._moments.n_rows * copies
        other._exact = self._once
        other._sums = None
        return other

    def mean(self) -> Array:
        """Return the mean row."""
        return self._moments.mean

    def moment(self, center: Array | None = None) -> Array:
        """Return A_i."""
        return self._whole if center is None else self._moments.about(center)

    def product(self, basis: Array, center: Array | None = None) -> Array:
        """Return A_i Z."""
        if center is None:
            return np.asarray(self._whole @ basis)
        return self._moments.product(basis, center)

    def trace(self, center: Array | None = None) -> float:
        """Return tr A_i."""
        return self._trace if center is None else self._moments.trace(center)

    def sums(self) -> ExactMoments:
        """Return the sums over the rows in whole numbers, made on first use."""
        if self._sums is None:
            once = self._once()
            self._sums = once.times(self.n_rows // once.n_rows)
        return self._sums

    def _once(self) -> ExactMoments:
        """Return the sums over the rows held once."""
        found = self._exact()
        self._exact = lambda: found
        return found


def keep(model: Model, *, n_jobs: int | None = None) -> dict[str, KeptMoment]:
    """Return each silo's moment, from one pass over its rows; a few blocks are held at a time.

    Parameters
    ----------
    model
        The silos' rows, drawn as they are read.
    n_jobs
        How many silos are read at once; the number of cores unless given. Moments do not depend on it.
    """
    workers = n_jobs or available_cores()
    with blas_threads(1), ThreadPoolExecutor(max_workers=workers) as pool:
        made = pool.map(
            lambda silo: kept(model.source(silo), TREATMENT),
            range(model.n_silos),
        )
        return {f"silo-{place:02}": moment for place, moment in enumerate(made, start=1)}


def kept(source: RowSource, treatment: RowTreatment) -> KeptMoment:
    """Return the moment of a source's rows."""
    return KeptMoment(accumulate_moment(source, treatment), lambda: exact_moment(source, treatment))


def pooled_moment(silos: dict[str, KeptMoment]) -> Array:
    """Return A = Σ w_i A_i, w_i = s_i/n."""
    n_rows = sum(silo.n_rows for silo in silos.values())
    first = next(iter(silos.values()))
    total = np.zeros_like(first.moment())
    for silo in silos.values():
        total += silo.n_rows / n_rows * silo.moment()
    return total
