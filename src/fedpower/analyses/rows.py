"""New rows that are brought to an analysis at home."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError


def brought(X: Any, names: NDArray[np.object_], *, what: str, advice: str) -> NDArray[np.float64]:
    """Return new rows as numbers; a table's columns are found by name.

    Parameters
    ----------
    X
        Rows with these columns, in their order, or a data frame that has them.
    names
        The columns.
    what, advice
        What a refusal calls the columns, and what to do about them.
    """
    rows = X[list(names)] if hasattr(X, "loc") else X
    given = np.asarray(rows, dtype=np.float64)
    if given.ndim != 2 or given.shape[1] != len(names):
        raise InputError(f"X must have the {len(names)} {what}, got shape {given.shape}; {advice}")
    return given
