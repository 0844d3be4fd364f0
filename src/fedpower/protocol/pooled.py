"""The pooled moment of a run, with the law of its noise."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.privacy.sensitivity import MEAN_WEIGHT

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pooled:
    """A pooled moment as it may be published: everything else is computed from it.

    Attributes
    ----------
    moment, center, total_variance
        Of treated rows: second moment about the mean, that mean or None, and the released trace.
    noise_std
        σ of its noise: N(0, σ²) on the diagonal, N(0, σ²/2) off it; 0 where there is none.
    mean_weight
        c of the joint release: the mean's noise is σ/√2c in each entry.
    kept
        Whether the silos have ledgers that outlive the run, so that the same release can be had again.
    remarks
        Sentences on numbers that are not to be trusted, and on silos that look like one.
    """

    moment: Array
    center: Array | None
    total_variance: float
    noise_std: float = 0.0
    mean_weight: float = MEAN_WEIGHT
    kept: bool = True
    remarks: tuple[str, ...] = ()
