"""What sources of sparse rows in files have in common: row pointers in memory, the rest in slices."""

from abc import abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower.data.arrays import canonical
from fedpower.data.positional import PositionalSource
from fedpower.data.source import Block
from fedpower.errors import InputError

Slices = Callable[[int, int], tuple[NDArray[Any], NDArray[Any]]]
"""Returns the column indices and the values stored from one place to another, asked for in order."""


@dataclass(frozen=True, kw_only=True, eq=False)
class CsrFileSource(PositionalSource):
    """The rows of a CSR matrix in a file; only its row pointers are held in memory."""

    path: Path
    indptr: NDArray[np.int64]

    @property
    def sparse(self) -> bool:
        """Always true."""
        return True

    @property
    def density(self) -> float | None:
        """Share of stored entries; unknown once columns were left out."""
        size = (self.indptr.size - 1) * self.width
        return None if self.keep is not None else float(self.indptr[-1]) / size

    @abstractmethod
    def slices(self) -> AbstractContextManager[Slices]:
        """Open the file and give what reads indices and values."""

    @abstractmethod
    def corrupt(self) -> InputError:
        """Return the error for indices that name no column."""

    def read(self, max_rows: int) -> Iterator[Block]:
        """Yield slices of rows as canonical CSR."""
        with self.slices() as stored:
            for start in range(0, self.indptr.size - 1, max_rows):
                pointers = self.indptr[start : start + max_rows + 1]
                places, values = stored(int(pointers[0]), int(pointers[-1]))
                if places.size and not 0 <= int(places.min()) <= int(places.max()) < self.width:
                    raise self.corrupt()
                shape = (pointers.size - 1, self.width)
                numbers = values.astype(np.float64)
                yield canonical(
                    sparse.csr_array((numbers, places, pointers - pointers[0]), shape=shape)
                )
