"""The pooled moment of a run, with the law of its noise."""

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from fedpower.privacy.sensitivity import MEAN_WEIGHT
from fedpower.rules.codebook import CodeBook

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A pooled moment as it may be published: everything else is computed from it."""

    moment: Array
    center: Array | None
    total_variance: float
    noise_std: float = 0.0
    mean_weight: float = MEAN_WEIGHT
    remarks: tuple[str, ...] = ()
    present: Array | None = None

    def of_columns(self, book: CodeBook | None) -> "Pooled":
        """Return the moment corrected for missing cells, with what a code book warns of."""
        if book is None:
            return self
        remarks = (*self.remarks, *book.warnings)
        if book.present is None or (book.present == 1.0).all():
            return replace(self, remarks=remarks)
        moment = available_case(self.moment, book.present, self.center)
        return replace(
            self,
            moment=moment,
            center=None if self.center is None else self.center / book.present,
            total_variance=self.total_variance + float(np.trace(moment) - np.trace(self.moment)),
            remarks=remarks,
            present=book.present,
        )


def available_case(moment: Array, present: Array, center: Array | None = None) -> Array:
    """Return the moment that rows without gaps would have, from that of rows with 0 for a missing cell."""
    corrected = moment / np.outer(present, present)
    mean = np.zeros(len(present)) if center is None else center
    np.fill_diagonal(corrected, (np.diagonal(moment) + mean**2) / present - (mean / present) ** 2)
    return corrected
