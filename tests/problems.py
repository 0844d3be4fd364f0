"""Small problems with a known pooled moment, and sums of their rows."""

import functools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedpower.linalg import moment_factor
from fedpower.privacy.ledger import DataVersion
from fedpower.protocol.silo import Silo, assemble
from fedpower.protocol.study import Study
from fedpower.rows.opening import open_source
from fedpower.rows.units import PARTS, unit_of
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import ExactMoments, LatticeSum
from fedpower.sums.local import LocalMoment
from fedpower.sums.moment import Moments, ScatterSum
from fedpower.sums.reduce import reduce

Array = NDArray[np.float64]


@contextmanager
def without_loops_in_c() -> Iterator[None]:
    """Use NumPy in the whole process meanwhile."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEDPOWER_NATIVE", "0")
        yield


@dataclass
class ArrayMoment:
    """A silo's rows held in memory: the plainest implementation of what a silo needs."""

    rows: Array

    @property
    def n_rows(self) -> int:
        return len(self.rows)

    def mean(self) -> Array:
        return self.rows.mean(axis=0)

    def moment(self, center: Array | None = None) -> Array:
        about = self.rows if center is None else self.rows - center
        return about.T @ about / len(about)

    def product(self, basis: Array, center: Array | None = None) -> Array:
        if len(self.rows) < len(basis):  # wide: no d×d array
            about = self.rows if center is None else self.rows - center
            return about.T @ (about @ basis) / len(about)
        return self.moment(center) @ basis

    @property
    def summary(self) -> Moments:
        mean, variances = self.rows.mean(axis=0), self.rows.var(axis=0)
        return Moments(n_rows=len(self.rows), mean=mean, covariance=variances)

    def factor(self, center: Array | None = None) -> Array:
        return moment_factor(self.rows if center is None else self.rows - center)

    def treated(self, treatment: RowTreatment | None = None) -> "ArrayMoment":
        return self

    def sums(self) -> ExactMoments:
        return LocalMoment(open_source(self.rows), RowTreatment(row_norm=1.0), on_lattice=True).sums()


def silo_of(
    name: str, rows: Any, study: Study, *, version: str = "1", fingerprint: str = "these rows", **how: Any
) -> Silo:
    """Return a silo over rows, or an array of them, of a declared version."""
    held = ArrayMoment(rows) if isinstance(rows, np.ndarray) else rows
    data = DataVersion(silo=name, version=version, columns="all columns", fingerprint=fingerprint)
    return assemble(name, held, study, data=data, **how)


def spiked_rows(n_rows: int = 600, n_features: int = 12, rank: int = 3, seed: int = 0) -> Array:
    """Return rows with ``rank`` strong directions of decreasing strength."""
    rng = np.random.default_rng(seed)
    directions = np.linalg.qr(rng.standard_normal((n_features, rank)))[0]
    strengths = np.linspace(3.0, 1.5, rank)
    scores = rng.standard_normal((n_rows, rank)) * strengths
    return scores @ directions.T + 0.4 * rng.standard_normal((n_rows, n_features))


def split(rows: Array, sizes: list[int]) -> list[Array]:
    assert sum(sizes) == len(rows)
    return np.split(rows, np.cumsum(sizes)[:-1])


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
