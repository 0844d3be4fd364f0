"""Counts of rows by their scores: a silo's part of their secure sum, and what the run ends with."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.privacy.preparation import SCORES
from fedpower.protocol.prepared_sums import moved_by_a_row
from fedpower.protocol.releases import Moment, counted
from fedpower.protocol.secure_releases import Summand, Summands
from fedpower.protocol.study import Study
from fedpower.sums.score_counts import SCORE_CELLS, ScoreQuestion
from fedpower.sums.survey import Survey

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreCounts:
    """How many rows lie in each place of a grid over their scores on the first two components."""

    reach: Array
    counts: Mapping[str, Array]
    noise_std: float


def cells(rows: Moment | Survey, study: Study, public: bytes) -> NDArray[np.int64]:
    """Return a silo's counts for a secure sum, zeros beyond the places of the grid."""
    found = counted(rows, ScoreQuestion.from_bytes(public, study.n_features))
    whole = np.zeros(SCORE_CELLS, dtype=np.int64)
    whole[: found.size] = found
    return whole


class ScoreSums:
    """A silo's part of secure sums of which the last one counts scores."""

    def __init__(self, rows: Moment | Survey, study: Study, others: Summands | None) -> None:
        self._rows = rows
        self._study = study
        self._others = others

    def summand(self, label: str, public: bytes) -> Summand:
        """Return the whole numbers of the sum ``label``."""
        if label == SCORES:
            moved, per_row = moved_by_a_row(self._study, SCORES)
            integers = cells(self._rows, self._study, public)
            return Summand(integers=integers, sensitivity=moved, per_row=per_row)
        if self._others is None:
            raise InputError(
                f"the sum {label!r} must be one that this silo computes, got another; start it with the "
                "version that the study was made with"
            )
        return self._others.summand(label, public)

    def moment(self, public: bytes) -> Moment:
        """Return the rows whose moment is summed."""
        if self._others is not None:
            return self._others.moment(public)
        if public:
            raise ProtocolError("the moment must be asked for with nothing beside it, got more; ask so")
        assert not isinstance(self._rows, Survey), "rows that are prepared have their own sums"
        return self._rows
