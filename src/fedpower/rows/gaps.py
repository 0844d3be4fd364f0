"""Rows with missing cells: NaN while columns are looked at, at the offset once it is known."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from fedpower.rows.arrays import PositionalSource
from fedpower.rows.source import Block, Extra, OverRows, RowSource, Vector, is_sparse
from fedpower.rows.tables import TableSource
from fedpower.rows.units import UnitRows


def with_gaps(source: RowSource) -> RowSource:
    """Return a source that yields NaN for a missing number and refuses none; others as they are."""
    if isinstance(source, UnitRows):
        return source.over(with_gaps(source.rows))
    if isinstance(source, TableSource):
        return replace(source, gaps=True)
    if isinstance(source, PositionalSource) and not source.sparse:
        return replace(source, gaps=True)
    return source


class FilledRows(OverRows):
    """A source in which a number stands for the missing cells of each column."""

    def __init__(self, rows: RowSource, values: Vector) -> None:
        super().__init__(rows)
        self._values = values

    def blocks(self, max_rows: int) -> Iterator[Block]:
        """Yield the rows, filled in."""
        for block in self.rows.blocks(max_rows):
            if is_sparse(block) or not np.isnan(np.sum(block)):
                yield block
                continue
            filled = np.array(block)  # persons' blocks have one column more, which has no gaps
            features = filled[:, : self.n_features]
            np.copyto(features, self._values, where=np.isnan(features))
            yield filled

    def select(self, columns: tuple[str, ...], *, extra: Extra = "refuse") -> RowSource:
        """Return the source with exactly these columns, and their numbers."""
        names = self.columns or ()
        kept = [names.index(name) for name in columns]
        return FilledRows(self.rows.select(columns, extra=extra), self._values[kept])
