"""What sources whose columns are found by place (arrays, npy, npz, svmlight) have in common."""

from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from fedpower.data.checks import (
    require_block_size,
    require_distinct,
    require_exact,
    require_finite,
    require_shape,
)
from fedpower.data.columns import pick_columns
from fedpower.data.source import Block, Extra, is_sparse
from fedpower.errors import InputError


@dataclass(frozen=True, kw_only=True, eq=False)
class PositionalSource(ABC):
    """A source read by column position, whose columns can be given names and then selected.

    Parameters
    ----------
    name : what error sentences call it.
    width : number of columns stored.
    n_rows : number of rows, None when only a pass can tell.
    columns : names of the columns kept; None when they have none.
    keep : positions of the columns kept, in order; None for all of them.
    wide : whether values are stored as 64-bit integers, of which float64 does not hold all.
    """

    name: str
    width: int
    n_rows: int | None
    columns: tuple[str, ...] | None = None
    keep: tuple[int, ...] | None = None
    wide: bool = False

    def __post_init__(self) -> None:
        require_shape(self.name, self.n_rows, self.n_features)

    @property
    def n_features(self) -> int:
        """Number of columns kept."""
        return self.width if self.keep is None else len(self.keep)

    @property
    def sparse(self) -> bool:
        """Whether blocks are sparse."""
        return False

    @property
    def density(self) -> float | None:
        """Share of stored entries, where known."""
        return 1.0

    @abstractmethod
    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield all columns of the rows as float64, unchecked, at most `max_rows` at once."""

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the kept columns of the rows, checked to be finite and, as integers, exact."""
        require_block_size(max_rows)
        row = 0
        for stored in self.read(max_rows):
            block = stored
            if self.keep is not None:
                kept = np.array(self.keep)
                block = stored[:, kept] if is_sparse(stored) else np.take(stored, kept, axis=1)
            require_finite(block, name=self.name, columns=self.columns, rows=row)
            if self.wide:
                require_exact(block, name=self.name, columns=self.columns, rows=row)
            size = int(block.shape[0])
            yield block
            row += size
            del stored, block  # or two blocks are held while the next one is read
        require_shape(self.name, row, self.n_features)

    def named(self, columns: tuple[str, ...]) -> "PositionalSource":
        """Return the source with names for its columns, given by position."""
        require_distinct("columns", columns)
        if len(columns) != self.n_features:
            raise InputError(
                f"columns must name each of the {self.n_features} columns of {self.name}, got "
                f"{len(columns)} names; give one name per column"
            )
        return replace(self, columns=columns)

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> "PositionalSource":
        """Return the source with exactly these columns in this order."""
        if self.columns is None:
            raise InputError(
                f"{self.name} must have column names to select by name, got none; "
                "name them with open_source(data, columns=[...])"
            )
        places = pick_columns(self.name, self.columns, columns, extra=extra)
        keep = range(self.width) if self.keep is None else self.keep
        return replace(self, columns=columns, keep=tuple(keep[place] for place in places))
