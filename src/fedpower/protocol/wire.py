"""Fewer bytes where they carry only noise."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LARGEST = float(np.finfo(np.float32).max)

NOISE_TO_PEAK = 2.0**-10
"""Noise at least this large beside the largest number makes rounding to float32 harmless.

Rounding moves a number by at most 2⁻²⁵ of itself: at most 2⁻¹⁵ of the noise's standard deviation, a
relative 10⁻⁹ of its variance.
"""


def rounded(array: Array, noise_std: float) -> Array:
    """Return ``array`` rounded to float32 where its noise is far above that, else as it is.

    Rounding what is noised already is post-processing: it costs no privacy.
    """
    peak = float(np.abs(array).max(initial=0.0))
    if noise_std <= 0 or noise_std < NOISE_TO_PEAK * peak or peak > LARGEST:
        return array
    return array.astype(np.float32).astype(np.float64)
