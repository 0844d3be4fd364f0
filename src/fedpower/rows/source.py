"""What every source of rows offers: its columns, its size where known, and its rows in blocks."""

from collections.abc import Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

if TYPE_CHECKING:
    import polars  # noqa: ICN001 - under the usual name it would not be exported
    from typing_extensions import TypeIs

    pl = polars
else:

    class _Lazy:
        """A module that is imported when something of it is first needed."""

        def __init__(self, name: str) -> None:
            self._name = name

        def __getattr__(self, name: str) -> Any:
            return getattr(import_module(self._name), name)

    pl = _Lazy("polars")

Matrix: TypeAlias = NDArray[np.float64]
Vector: TypeAlias = NDArray[np.float64]
SparseBlock: TypeAlias = "sparse.csr_array[np.float64, tuple[int, int]]"
Block: TypeAlias = "Matrix | SparseBlock"
Extra: TypeAlias = Literal["refuse", "drop"]


def is_sparse(block: Block) -> "TypeIs[SparseBlock]":
    """Return whether a block is a SciPy sparse array."""
    return sparse.issparse(block)


@runtime_checkable
class RowSource(Protocol):
    """One silo's rows, read in blocks as often as needed and never held whole.

    A source is immutable and every call of `blocks` reads from the first row again. Rows are
    secret: the errors a source raises name files, columns and row numbers, never a cell's value.
    """

    @property
    def name(self) -> str:
        """What messages call it: a path, or ``silo 'north'``."""

    @property
    def columns(self) -> tuple[str, ...] | None:
        """Names of the columns in order; None where they are known by their place, as in arrays."""

    @property
    def n_features(self) -> int: ...

    @property
    def n_rows(self) -> int | None:
        """Number of rows; None where only a pass finds it."""

    @property
    def sparse(self) -> bool: ...

    @property
    def density(self) -> float | None:
        """Share of stored entries: 1 for dense sources, None where unknown."""

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows in order, finite, in nonempty float64 blocks of at most `max_rows` rows.

        A dense block is contiguous, by rows or by columns, and may be a read-only view; a sparse one is a
        canonical ``csr_array``. At least one row is yielded, or `InputError` is raised.
        """
        ...

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> "RowSource":
        """Return the source with exactly these columns; others are refused or dropped."""
        ...


class OverRows:
    """A source that reads another one and has its description."""

    def __init__(self, rows: RowSource) -> None:
        self.rows = rows

    @property
    def name(self) -> str:
        return self.rows.name

    @property
    def columns(self) -> tuple[str, ...] | None:
        return self.rows.columns

    @property
    def n_features(self) -> int:
        return self.rows.n_features

    @property
    def n_rows(self) -> int | None:
        return self.rows.n_rows

    @property
    def sparse(self) -> bool:
        return self.rows.sparse

    @property
    def density(self) -> float | None:
        return self.rows.density
