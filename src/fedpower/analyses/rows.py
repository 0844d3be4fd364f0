"""New rows that are brought to an analysis at home."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError


def brought(X: Any, names: NDArray[np.object_], *, what: str, advice: str) -> NDArray[np.float64]:
    """Return new rows as numbers; a table's columns are found by name."""
    wanted = f"X must have the {len(names)} {what}"
    if hasattr(X, "loc"):
        absent = [name for name in names if name not in X.columns]
        if absent:
            raise InputError(f"{wanted}, got a table without '{absent[0]}'; {advice}")
        X = X[list(names)]
    try:
        given = np.asarray(X, dtype=np.float64)
    except (TypeError, ValueError):
        raise InputError(f"{wanted} as numbers, got something else; {advice}") from None
    if given.ndim != 2 or given.shape[1] != len(names):
        raise InputError(f"{wanted}, got shape {given.shape}; {advice}")
    return given
