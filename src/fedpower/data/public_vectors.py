"""Public numbers, one a column: a centre or divisors, by place or by the names of the columns."""

from typing import Any

import numpy as np

from fedpower.data.checks import column_label, shown
from fedpower.data.source import Vector
from fedpower.errors import InputError

LARGEST = 1e150
"""Bounds and divisors lie between this and its inverse, so that squares of both stay in float64."""


def public_vector(
    label: str, values: Any, *, columns: tuple[str, ...] | None = None, positive: bool = False
) -> Vector:
    """Return public numbers in the order of the columns, as a read-only float64 vector without −0.

    Values that carry labels (a pandas Series) are matched to the columns by name; where the labels are
    other names than the columns', or the columns have none, they are refused. A default index
    0, 1, ... is none, and such values are taken by place.

    Parameters
    ----------
    label : what sentences call them: ``center`` or ``scale``.
    values : a vector, or a labelled one.
    columns : the names of the columns in order; None where they have none.
    positive : whether they divide, and must be positive.
    """
    labels = _labels(values)
    if labels is not None:
        values = _in_order(label, values, labels, columns)
    try:
        vector = np.array(values, dtype=np.float64) + 0.0
    except (TypeError, ValueError):
        vector = np.array(np.nan)
    if vector.ndim != 1 or vector.size == 0:
        raise InputError(
            f"{label} must be a vector of finite numbers, got shape {vector.shape}; "
            "give one number per column"
        )
    _require(np.isfinite(vector), f"{label} must be finite in every column", vector, columns)
    if positive:
        _require(vector > 0, f"{label} must be positive in every column", vector, columns)
        within = (vector <= LARGEST) & (vector >= 1 / LARGEST)
        limits = f"{label} must lie between {1 / LARGEST:g} and {LARGEST:g} in every column"
        _require(within, limits, vector, columns)
    vector.flags.writeable = False
    return vector


def _labels(values: Any) -> list[str] | None:
    """Return the labels of a labelled vector; None where it has none but its places."""
    index = getattr(values, "index", None)
    if index is None or callable(index):  # lists have a method of that name
        return None
    labels = list(index)
    return None if labels == list(range(len(labels))) else [str(each) for each in labels]


def _in_order(label: str, values: Any, labels: list[str], columns: tuple[str, ...] | None) -> Any:
    """Return the values in the order of the columns, found by their labels."""
    if columns is None:
        raise InputError(
            f"{label} must come without labels where columns have no names, got {shown(labels)}; give "
            "the values alone (.to_numpy()) in the order of the columns"
        )
    odd = [name for name in columns if name not in labels] or [
        each for each in labels if each not in columns
    ]
    if odd or len(labels) != len(columns):
        what = f"{odd[0]!r} on one side only" if odd else "a name twice"
        raise InputError(
            f"{label} must have a value for every column and no others by name, got {what}; label it as "
            "the columns are named, or give the values alone (.to_numpy())"
        )
    places = {each: place for place, each in enumerate(labels)}
    return np.asarray(values)[[places[name] for name in columns]]


def _require(
    holds: np.ndarray[Any, np.dtype[np.bool_]],
    must: str,
    vector: Vector,
    columns: tuple[str, ...] | None,
) -> None:
    """Refuse the first value that does not hold, by the name of its column where that is known."""
    if holds.all():
        return
    place = int(np.flatnonzero(~holds)[0])
    named = columns if columns is not None and len(columns) == vector.size else None
    raise InputError(
        f"{must}, got {vector[place]:g} for {column_label(named, place)}; give public numbers"
    )
