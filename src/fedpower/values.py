"""Matrices, blocks of rows, public numbers and names of columns: what rows and rules are made of."""

import difflib
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib import import_module
from numbers import Real
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, is_showable

if TYPE_CHECKING:
    from functools import cached_property as cached_property  # noqa: PLC0414 (an export)

    import polars  # noqa: ICN001 - under the usual name it would not be exported
    import scipy.sparse
    from typing_extensions import TypeIs

    pl = polars
    sparse = scipy.sparse
else:

    class _Lazy:
        """A module that is imported when something of it is first needed."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            found = vars(self)[name] = getattr(import_module(self._name), name)
            return found

    pl, sparse = _Lazy("polars"), _Lazy("scipy.sparse")

    class cached_property:  # noqa: N801
        """That of functools as of Python 3.12: in 3.11 a lock lets only one silo at a time compute it."""

        def __init__(self, make: Any) -> None:
            self._make, self.__doc__ = make, make.__doc__

        def __set_name__(self, owner: type, name: str) -> None:
            self._name = name

        def __get__(self, instance: Any, owner: type | None = None) -> Any:
            if instance is None:
                return self
            value = vars(instance)[self._name] = self._make(instance)
            return value


Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
SparseBlock: TypeAlias = "sparse.csr_array[np.float64, tuple[int, int]]"
Block: TypeAlias = "Matrix | SparseBlock"


def is_sparse(block: Block) -> "TypeIs[SparseBlock]":
    return "scipy.sparse" in sys.modules and sparse.issparse(block)


# --- names of columns -------------------------------------------------------------------------------------


def shown(names: Sequence[str], most: int = 5) -> str:
    """Return the names quoted and joined, the first few when there are many."""
    quoted = ", ".join(f"'{name}'" for name in names[:most])
    return quoted if len(names) <= most else f"{quoted} and {len(names) - most} more"


def no_column(name: str, missing: Sequence[str], have: Sequence[str], more: str = "") -> InputError:
    """Return the error for columns that are not there, with the name that is nearest to the first."""
    near = difflib.get_close_matches(missing[0], have, 1)
    hint = f"did you mean '{near[0]}'?" if near else f"it has {shown(have)}"
    return InputError(f"{name} has no column {shown(missing)}{more}; {hint}")


def label_of(columns: tuple[str, ...] | None, index: int) -> str:
    """Return what sentences call a column: by its name, else by its place."""
    return f"column {index + 1}" if columns is None else f"column '{columns[index]}'"


def require_distinct(name: str, columns: Sequence[str]) -> None:
    """Refuse column names that cannot be shown or occur twice."""
    odd = next((column for column in columns if not is_showable(str(column))), None)
    if odd is not None:
        raise InputError(f"{name} must have column names without control characters, got {odd!a}")
    twice = sorted(column for column, count in Counter(columns).items() if count > 1)
    if twice:
        raise InputError(f"{name} must have distinct column names, got {shown(twice)} more than once")


# --- public numbers ---------------------------------------------------------------------------------------

LARGEST_EXACT = 2.0**53
"""float64 holds every integer up to here."""

LARGEST = 1e150
"""Bounds and divisors are between this and its inverse, so that squares of both stay in float64."""


def is_number(value: object) -> bool:
    """Return whether a value is a finite number, which True and False are not."""
    return isinstance(value, Real) and not isinstance(value, bool) and bool(np.isfinite(float(value)))


def public_vector(
    label: str, values: Any, *, columns: tuple[str, ...] | None = None, positive: bool = False
) -> Vector:
    """Return public numbers in the order of the columns, as a read-only float64 vector without −0."""
    index = list(values) if isinstance(values, Mapping) else getattr(values, "index", None)
    if isinstance(values, Mapping):
        values = list(values.values())
    elif callable(index) or (index is not None and list(index) == list(range(len(index)))):
        index = None  # a list has a method of that name; a Series without labels has places
    if index is not None:
        labels = [str(name) for name in index]
        if columns is None:
            raise InputError(f"{label} must come without labels where columns have no names, got labels")
        odd = [name for name in (*columns, *labels) if (name in columns) != (name in labels)]
        if odd or len(labels) != len(columns):
            got = f"{odd[0]!r} on one side only" if odd else "a name twice"
            raise InputError(f"{label} must have a value for every column and no others by name, got {got}")
        values = np.asarray(values)[[labels.index(name) for name in columns]]
    try:
        vector = np.array(values, dtype=np.float64) + 0.0
    except (TypeError, ValueError):
        vector = np.array(np.nan)
    if vector.ndim != 1 or vector.size == 0:
        must = "be a vector of finite numbers, one per column"
        raise InputError(f"{label} must {must}, got shape {vector.shape}")
    checks = [(np.isfinite(vector), "be finite")]
    if positive:
        within = (vector <= LARGEST) & (vector >= 1 / LARGEST)
        checks += [(vector > 0, "be positive"), (within, f"be between {1 / LARGEST:g} and {LARGEST:g}")]
    for holds, must in checks:
        if not holds.all():
            place = int(np.argmin(holds))
            called = label_of(columns if columns and len(columns) == vector.size else None, place)
            raise InputError(f"{label} must {must} in every column, got {vector[place]:g} for {called}")
    vector.flags.writeable = False
    return vector
