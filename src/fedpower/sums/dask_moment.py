"""Sums over the rows of a Dask collection: each partition by itself where it is, merged two by two."""

import copy
from collections.abc import Callable
from typing import Any

from fedpower.errors import InputError
from fedpower.rows.dask_source import DaskSource, PartitionOpener, dask
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.kernel import block_rows
from fedpower.sums.passes import Enrolment, Seen, seen_in
from fedpower.sums.product import RowSums
from fedpower.sums.reduce import S, Sum, reduce


class DaskSums(RowSums):
    """Sums over a Dask collection's treated rows, one pass for each."""

    source: DaskSource

    def __init__(
        self, source: DaskSource, treatment: RowTreatment, enrolment: Enrolment | None = None
    ) -> None:
        super().__init__(source, treatment)
        self._enrolment = enrolment or Enrolment(source, contents=False)

    def total(self, make: Callable[[], S], max_rows: int) -> S:
        """Return the merged sums of all partitions that have rows, once they are those enrolled."""
        delayed = dask().delayed
        how = delayed((make, max_rows, self._enrolment.key), pure=False)
        parts = [
            delayed(_summed, pure=False)(partition, self.source.opener(place), how)
            for place, partition in enumerate(self.source.partitions)
        ]
        while len(parts) > 1:
            pairs = [parts[place : place + 2] for place in range(0, len(parts), 2)]
            parts = [delayed(_merged, pure=False)(*pair) if len(pair) == 2 else pair[0] for pair in pairs]
        found: tuple[Seen, S] | None = parts[0].compute()
        if found is None:
            raise InputError(f"{self.source.name} must have at least one row, got none; leave this silo out")
        self._enrolment.hold(found[0])
        return found[1]


def _summed(partition: Any, opener: PartitionOpener, how: tuple[Any, ...]) -> tuple[Seen, Sum] | None:
    """Return what a partition holds and its sum; None where it has no rows."""
    make, max_rows, key = how
    source = opener(partition)
    if source is None:
        return None
    seen = Seen(n_rows=0 if key is not None else len(partition))
    for block in source.blocks(block_rows(source.n_features)) if key is not None else ():
        seen += seen_in(block, key)
    return seen, reduce(source, make, max_rows)


def _merged(one: tuple[Seen, Sum] | None, two: tuple[Seen, Sum] | None) -> tuple[Seen, Sum] | None:
    """Return both parts merged; a partition without rows has none."""
    if one is None or two is None:
        return two if one is None else one
    total = copy.deepcopy(one[1])  # Dask may use its own again
    total.merge(two[1])
    return one[0] + two[0], total
