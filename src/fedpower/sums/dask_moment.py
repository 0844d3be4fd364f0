"""Moments and products of rows in a Dask collection, by a tree of partial sums where the rows are."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.rows.dask_source import DaskSource, PartitionOpener, dask
from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import Watch
from fedpower.sums.exact_moment import ExactMoments, exact_moment
from fedpower.sums.kernel import block_rows
from fedpower.sums.moment import Moments, accumulate_moment, require_center
from fedpower.sums.passes import Enrolment, Seen, seen_in
from fedpower.sums.product import RowProduct, RowSummary, require_basis

Part = TypeVar("Part")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Scatter:
    """Partial sums of some rows y: number, mean (origin + drift), Σ (y − mean)(y − mean)ᵀ, clipped."""

    n_rows: int
    origin: Vector
    drift: Vector
    scatter: Matrix
    n_clipped: int


def _merge_scatters(one: _Scatter, two: _Scatter) -> _Scatter:
    """Return the partial sums of two sets of rows together [CGL83 eq. 2.1]."""
    total = one.n_rows + two.n_rows
    step = (two.origin - one.origin) + (two.drift - one.drift)
    weight = one.n_rows * two.n_rows / total
    whole = one.scatter.shape[0] == step.size
    between = np.outer(weight * step, step) if whole else weight * step[np.newaxis] ** 2
    return _Scatter(
        n_rows=total,
        origin=one.origin,
        drift=one.drift + step * (two.n_rows / total),
        scatter=one.scatter + two.scatter + between,
        n_clipped=one.n_clipped + two.n_clipped,
    )


class DaskProduct:
    """Products with the moment of a Dask collection's treated rows, one pass for each."""

    def __init__(
        self, source: DaskSource, treatment: RowTreatment, enrolment: Enrolment | None = None
    ) -> None:
        treatment.check_width(source.n_features)
        self._source = source
        self._enrolment = enrolment or Enrolment(source, contents=False)
        self._treatment = treatment
        self._summary: RowSummary | None = None

    def moments(self) -> Moments:
        """Return the moments of the treated rows from one pass."""
        found = self._reduce(_partition_moment, _merge_scatters)
        covariance = found.scatter / found.n_rows
        for array in (found.origin, found.drift, covariance):
            array.flags.writeable = False
        return Moments(
            n_rows=found.n_rows,
            origin=found.origin,
            drift=found.drift,
            covariance=covariance,
            n_clipped=found.n_clipped,
        )

    def sums(self) -> ExactMoments:
        """Return the sums over the bounded rows in whole numbers, from one pass."""
        return self._reduce(_partition_sums, ExactMoments.merge)

    def integers(self, summed: Callable[..., NDArray[np.int64]], *shared: Any) -> NDArray[np.int64]:
        """Return sums over the rows in whole numbers, from one pass (`LocalMoment.integers`)."""
        return self._reduce(_partition_integers, _add_integers, summed, *shared)

    def product(self, basis: Matrix, center: Vector | None = None) -> Matrix:
        """Return (1/s) Σ (y − center)(y − center)ᵀ basis over the treated rows y."""
        width = self._source.n_features
        basis = require_basis(basis, width)
        shift = None if center is None else require_center(center, width)
        total, result = self._reduce(_partition_product, _add_products, basis, shift)
        return np.asarray(result / total)

    def trace(self, center: Vector | None = None) -> float:
        """Return the trace of the moment about `center`."""
        return self.summary().trace(center)

    def summary(self) -> RowSummary:
        """Return number, mean and variance of the rows, from one pass made on first use."""
        if self._summary is None:
            found = self._reduce(_partition_summary, _merge_scatters)
            self._summary = RowSummary(
                n_rows=found.n_rows,
                origin=found.origin,
                drift=found.drift,
                variances=found.scatter[0] / found.n_rows,
                n_clipped=found.n_clipped,
            )
        return self._summary

    def _reduce(
        self, summed: Callable[..., Part], merged: Callable[[Part, Part], Part], *shared: Any
    ) -> Part:
        """Return the merged sums of all partitions that have rows, once they are those enrolled."""
        delayed = dask().delayed
        constants = delayed((self._treatment, *shared), pure=False)
        key = delayed(self._enrolment.key, pure=False)
        parts = [
            delayed(_summed, pure=False)(partition, self._source.opener(place), summed, constants, key)
            for place, partition in enumerate(self._source.partitions)
        ]
        while len(parts) > 1:
            pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
            parts = [
                delayed(_merged, pure=False)(merged, *pair) if len(pair) == 2 else pair[0] for pair in pairs
            ]
        found: tuple[Seen, Part] | None = parts[0].compute()
        if found is None:
            raise InputError(f"{self._source.name} must have at least one row, got none; leave this silo out")
        seen, total = found
        self._enrolment.hold(seen)
        return total


def _summed(
    partition: Any, opener: PartitionOpener, summed: Callable[..., Part], constants: tuple[Any, ...], key: Any
) -> tuple[Seen, Part] | None:
    """Return what a partition holds and its sums; None where it has no rows."""
    source = opener(partition)
    if source is None:
        return None
    n_rows = len(partition)
    seen = Seen(n_rows=0)
    for block in source.blocks(block_rows(source.n_features)) if key is not None else ():
        seen += seen_in(block, key)
    return seen if key is not None else Seen(n_rows=n_rows), summed(source, n_rows, constants)


def _merged(
    merge: Callable[[Part, Part], Part], one: tuple[Seen, Part] | None, two: tuple[Seen, Part] | None
) -> tuple[Seen, Part] | None:
    """Return both parts merged; a partition without rows has none."""
    if one is None or two is None:
        return two if one is None else one
    return one[0] + two[0], merge(one[1], two[1])


def _partition_moment(source: RowSource, n_rows: int, constants: tuple[RowTreatment]) -> _Scatter:
    """Return the partial sums of one partition."""
    found = accumulate_moment(source, constants[0])
    return _Scatter(
        n_rows=found.n_rows,
        origin=found.origin,
        drift=found.drift,
        scatter=found.covariance * found.n_rows,
        n_clipped=found.n_clipped,
    )


def _partition_sums(source: RowSource, n_rows: int, constants: tuple[RowTreatment]) -> ExactMoments:
    """Return the sums over one partition in whole numbers."""
    return exact_moment(source, constants[0])


def _partition_integers(source: RowSource, n_rows: int, constants: tuple[Any, ...]) -> NDArray[np.int64]:
    """Return whole numbers of one partition."""
    treatment, summed, *shared = constants
    found: NDArray[np.int64] = summed(source, treatment, Watch(), *shared)
    return found


def _add_integers(one: NDArray[np.int64], two: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return two partitions' whole numbers together."""
    return one + two


def _partition_summary(source: RowSource, n_rows: int, constants: tuple[RowTreatment]) -> _Scatter:
    """Return the partial sums of one partition without a d×d array."""
    found = RowProduct(source, constants[0]).summary()
    return _Scatter(
        n_rows=found.n_rows,
        origin=found.origin,
        drift=found.drift,
        scatter=found.variances[np.newaxis] * found.n_rows,
        n_clipped=found.n_clipped,
    )


def _partition_product(
    source: RowSource, n_rows: int, constants: tuple[RowTreatment, Matrix, Vector | None]
) -> tuple[int, Matrix]:
    """Return the number of rows of one partition and its sum of products."""
    treatment, basis, center = constants
    return n_rows, RowProduct(source, treatment).product(basis, center) * n_rows


def _add_products(one: tuple[int, Matrix], two: tuple[int, Matrix]) -> tuple[int, Matrix]:
    """Return two partitions' counts and sums together."""
    return one[0] + two[0], one[1] + two[1]
