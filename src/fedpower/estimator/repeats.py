"""How often this process fitted the same rows privately, where no ledger keeps count."""

import functools
import math
import threading
import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import Sentence
from fedpower.privacy.accounting import epsilon_of
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.study import Study
from fedpower.rows.arrays import ArraySource, SparseSource
from fedpower.rows.gaps import with_gaps
from fedpower.rows.networks import NetworkSource
from fedpower.rows.source import Block, RowSource, is_sparse
from fedpower.rows.tables import TableSource
from fedpower.sums.survey import STAGES

_SKETCH = 64
"""Hashes kept of some rows: the smallest, so that sets which share rows share hashes."""

_ALIKE = 8
"""Sets of rows overlap where one in so many hashes is in both sketches: about a seventh of the rows."""

_MOST_CELLS = 4_000_000
_MOST_KEPT = 64


class RepeatedFitWarning(UserWarning):
    """The same rows were fitted privately more than once in this process, and no ledger keeps count."""


@dataclass(slots=True)
class _Spent:
    """What was spent on some rows: their sketch, Σμ², and how many fits it was."""

    sketch: frozenset[int | str]
    squared_mu: float = 0.0
    n_fits: int = 0
    warned: bool = False


class _Fits:
    """The private fits of this process."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._spent: list[_Spent] = []

    def add(self, sketch: frozenset[int | str], mu: float, *, fits: int) -> _Spent | None:
        """Book a fit; return what its rows have cost where that is to be told now, else None."""
        with self._lock:
            known = next((each for each in self._spent if _overlap(each.sketch, sketch)), None)
            if known is None:
                known = _Spent(sketch)
                self._spent = [*self._spent[1 - _MOST_KEPT :], known]
            known.squared_mu += mu**2
            known.n_fits += fits
            if known.n_fits < 2 or known.warned:
                return None
            known.warned = True
            return known


_fits = _Fits()


def warn_of_repeats(study: Study, sources: Iterable[RowSource], *, fits: int = 1) -> None:
    """Book a private fit without a ledger, and warn, once for the same rows, when it is not the first."""
    budget = budget_of(study)
    if budget is None:
        return
    silos = list(sources)
    most = _MOST_CELLS // max(len(silos), 1)  # so that many silos take no longer than one
    sketch = frozenset[int | str]().union(*(_sketch(source, most) for source in silos))
    spent = _fits.add(sketch, budget.total_mu if fits else budget.mu(*STAGES), fits=fits)
    if spent is not None:
        warnings.warn(
            Sentence(
                "these {things} are fitted privately for the second time in this process, and no ledger "
                "keeps count: together that is epsilon={spent:.3g} at delta={at:g}, and every further "
                "fit, as in a search or a cross-validation, adds to it; try parameters out with "
                "{epsilon:inf} on {things} that are public or made up, or give fit_silos ledgers, which "
                "cap what is spent and repeat what was released for nothing",
                spent=epsilon_of(math.sqrt(spent.squared_mu), budget.delta),
                at=budget.delta,
                things="networks" if study.network else "rows",
            ),
            RepeatedFitWarning,
            stacklevel=4,
        )


def _sketch(source: RowSource, most_cells: int) -> frozenset[int | str]:
    """Return the smallest hashes of the first rows, where they are in memory; of a file, which one it is."""
    in_memory = isinstance(source, ArraySource | SparseSource | NetworkSource)
    if not in_memory and not (isinstance(source, TableSource) and source.in_memory):
        try:
            facts = Path(source.name).stat()
        except (OSError, ValueError):
            return frozenset()
        return frozenset([f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"])
    odd = _odd_numbers(source.n_features)
    left = max(1, min(65_536, most_cells // source.n_features))
    smallest = np.zeros(0, dtype=np.uint64)
    for block in _unchecked(with_gaps(source), min(left, 4096)):
        rows = np.asarray(block.toarray() if is_sparse(block) else block, dtype=np.float64)[:left]
        cells = np.ascontiguousarray(rows + 0.0).view(np.uint64)  # −0 as 0
        sums = (cells * odd).sum(axis=1, dtype=np.uint64)
        mixed = (sums ^ (sums >> np.uint64(29))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = mixed[mixed != 0]  # rows of zeros, which anybody's data may have
        smallest = np.concatenate([smallest, mixed ^ (mixed >> np.uint64(32))])
        if smallest.size > _SKETCH:
            smallest = np.unique(smallest)[:_SKETCH]
        left -= len(rows)
        if left <= 0:
            break
    return frozenset(smallest.tolist())


def _unchecked(source: RowSource, max_rows: int) -> Iterator[Block]:
    """Return the blocks of rows; those of an array as they are, which were looked at before."""
    if isinstance(source, ArraySource) and source.keep is None:
        return source.read(max_rows)
    return source.blocks(max_rows)


@functools.lru_cache(maxsize=1)
def _odd_numbers(n_features: int) -> NDArray[np.uint64]:
    """Return what each column's cells are multiplied by."""
    found = np.random.default_rng(0).integers(0, 2**63, n_features, dtype=np.uint64)
    return found * np.uint64(2) + np.uint64(1)


def _overlap(one: frozenset[int | str], other: frozenset[int | str]) -> bool:
    shared = len(one & other)
    return shared > 0 and shared * _ALIKE >= min(len(one), len(other))
