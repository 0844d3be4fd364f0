"""Rows counted by their scores on two public axes: a row counts in one place of a grid."""

import functools
import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.rows.columns import require_count
from fedpower.rows.source import Matrix, RowSource, Vector
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.units import unit_of
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.kernel import block_rows
from fedpower.sums.reduce import reduce
from fedpower.sums.survey import CountSum

MOST_BINS = 24
"""To a side of the grid."""

SCORE_CELLS = MOST_BINS**2

_LARGEST = 1e150
_HEAD = struct.Struct("<q")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreQuestion:
    """Two axes and a grid over the scores on them; all of it is public."""

    axes: Matrix
    offset: Vector
    reach: Vector
    n_bins: int

    @property
    def edges(self) -> Matrix:
        """Where places meet, a row for each axis."""
        return np.array([np.linspace(-each, each, self.n_bins + 1) for each in self.reach])

    def check(self, n_features: int) -> None:
        """Refuse what is no grid, so that nothing can fail on it once rows are read."""
        shapes = ((self.axes, (n_features, 2)), (self.offset, (2,)), (self.reach, (2,)))
        if (
            type(self.n_bins) is not int
            or not 1 <= self.n_bins <= MOST_BINS
            or any(
                each.dtype != np.float64 or each.shape != shape or not (np.abs(each) <= _LARGEST).all()
                for each, shape in shapes
            )
            or not (self.reach >= 1 / _LARGEST).all()
        ):
            raise ProtocolError(
                f"scores must be asked for with two axes of {n_features} finite numbers, a positive "
                f"reach and 1 to {MOST_BINS} bins, got others; send what the components give"
            )

    def to_bytes(self) -> bytes:
        """Return the number of bins, the axes row by row, offset and reach."""
        numbers = np.concatenate([self.axes.reshape(-1), self.offset, self.reach])
        return _HEAD.pack(self.n_bins) + numbers.astype("<f8").tobytes()

    @classmethod
    def from_bytes(cls, public: bytes, n_features: int) -> "ScoreQuestion":
        """Return the question in bytes that a coordinator sent, checked."""
        if len(public) != _HEAD.size + 8 * (2 * n_features + 4):
            raise ProtocolError(
                f"scores must be asked for with two axes of {n_features} columns, an offset and a reach, "
                "got other bytes; send what the components give"
            )
        (n_bins,) = _HEAD.unpack_from(public)
        numbers = np.frombuffer(public, dtype="<f8", offset=_HEAD.size).astype(np.float64)
        made = cls(
            axes=numbers[:-4].reshape(n_features, 2), offset=numbers[-4:-2], reach=numbers[-2:], n_bins=n_bins
        )
        made.check(n_features)
        return made


def count_scores(
    source: RowSource,
    treatment: RowTreatment,
    question: ScoreQuestion,
    *,
    watch: Watch = UNWATCHED,
    workers: int = 1,
) -> NDArray[np.int64]:
    """Return how many rows lie in each place of the grid, the first axis' places being slowest."""
    unit = unit_of(source)
    most = 0 if unit is None else unit.most
    make = functools.partial(
        CountSum, functools.partial(_counted, treatment, question), question.n_bins**2, most=most
    )
    found = reduce(source, make, block_rows(source.n_features), watch=watch, workers=workers, checked=True)
    require_count(source.name, source.n_rows, found.n_rows)
    return found.total


def _counted(
    treatment: RowTreatment, question: ScoreQuestion, rows: Matrix, weights: NDArray[np.int64] | None
) -> NDArray[np.int64]:
    bins, inner = question.n_bins, question.edges[:, 1:-1]
    first, second = (
        np.searchsorted(edges, scores, side="right")
        for edges, scores in zip(inner, _scores(rows, treatment, question), strict=True)
    )
    # Sums of whole numbers, exact in float64: a block has far fewer rows than 2⁵³/T.
    return np.bincount(first * bins + second, weights=weights, minlength=bins**2).astype(np.int64)


def _scores(rows: Matrix, treatment: RowTreatment, question: ScoreQuestion) -> Matrix:
    """Return the scores of a block, a row for each axis; numbers beyond float64 count as 0."""
    divisors = treatment.divisors(rows.shape[1])
    scores, squares = np.zeros((2, len(rows))), np.zeros(len(rows))
    with np.errstate(all="ignore"):
        for place, column in enumerate(rows.T):
            cells = column if treatment.center is None else column - treatment.center[place]
            if divisors is not None:
                cells = cells / divisors[place]
            for axis in (0, 1):
                scores[axis] += cells * question.axes[place, axis]
            if treatment.normalize:
                squares += cells * cells
        if treatment.normalize:
            scores /= np.where(squares > 0, np.sqrt(squares), 1.0)
        return np.nan_to_num(scores - question.offset[:, np.newaxis])
