"""Sums over bounded rows in whole numbers, for tests that compare them."""

import functools
from typing import Any

import numpy as np

from fedpower.rows.units import PARTS, unit_of
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import ExactMoments, LatticeSum
from fedpower.sums.local import LocalMoment
from fedpower.sums.moment import Moments, ScatterSum
from fedpower.sums.reduce import reduce


class Sums(ExactMoments):
    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, ExactMoments)
            and (self.n_rows, self.n_clipped, self.parts) == (other.n_rows, other.n_clipped, other.parts)
            and np.array_equal(self.total, other.total)
            and np.array_equal(self.squares.to_ints(), other.squares.to_ints())
        )

    __hash__ = None  # type: ignore[assignment]


def exact_moment(source: Any, rule: RowTreatment, *, max_rows: int | None = None, workers: int = 1) -> Sums:
    if max_rows is None:
        return Sums(**vars(LocalMoment(source, rule, on_lattice=True, workers=workers).sums()))
    unit, width = unit_of(source), source.n_features
    make = functools.partial(LatticeSum, rule, width)
    total = reduce(source, make, max_rows, workers=workers)
    return Sums(**vars(total.result() if unit is None else total.result(n_rows=unit.n_units, parts=PARTS)))


def float_moment(source: Any, rule: RowTreatment, *, max_rows: int, workers: int = 1) -> Moments:
    silo = LocalMoment(source, rule)
    make = functools.partial(ScatterSum, silo._split, source.n_features)
    return reduce(source, make, max_rows, workers=workers).result(silo._offset)
