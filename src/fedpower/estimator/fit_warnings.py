"""Warnings of a fit: noise, bounds, copies, small silos, what was read from rows."""

import math
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from heapq import nsmallest
from itertools import repeat
from pathlib import Path

import numpy as np

from fedpower.exceptions import warn
from fedpower.privacy.accounting import epsilon_of
from fedpower.privacy.statement import counted_as
from fedpower.protocol.solvers.sums import same_rows
from fedpower.protocol.study import Study, costly_sentence
from fedpower.rows.networks import NetworkSource, Weighed
from fedpower.rows.source import RowSource
from fedpower.rows.units import with_gaps
from fedpower.sums.survey import STAGES, Rows, cells_warnings, pooled_columns, units_warning
from fedpower.values import is_sparse


class PrivacyLeakWarning(RuntimeWarning):
    """A number was read from the rows without noise, instead of being given as a public fact."""


class ClippingWarning(UserWarning):
    """A bound fits the rows or edges badly. Only the silo's operator sees this; it is not stored."""


class RowsWarning(UserWarning):
    """A silo's rows look odd. Only the silo's operator sees this; it is not stored."""


def warn_about_rows(study: Study, rows: Mapping[str, Rows]) -> None:
    """Warn of words that are no level, of cells outside ranges, and of columns that may be in other units."""
    held = list(rows.values())
    said = list(dict.fromkeys(each for silo in held for each in cells_warnings(silo.source)))
    pooled = pooled_columns(held)
    for silo, treated in zip(held if len(held) > 1 else (), pooled or repeat(None), strict=False):
        said += units_warning(silo, study.groups, study.columns, treated)
    for sentence in said:
        warn(sentence, RowsWarning)


_LIGHT = 0.1  # of the public maximum: where no edge weighs as much, noise is ten times what it need be


def weights_summary(networks: Iterable[Weighed]) -> str | None:
    """Return what the operator of networks should know of a public maximum that hardly fits; else None."""
    weighed = list(networks)
    edges, capped = (sum(getattr(each, name) for each in weighed) for name in ("n_edges", "n_capped"))
    if 2 * capped > edges:
        return (
            f"{capped} of {edges} edges weigh more than edge_weight and are capped; use a larger edge_weight"
        )
    heaviest = max((each.heaviest for each in weighed), default=0.0)
    if 0 < heaviest < _LIGHT:
        most = f"{heaviest:.2g} of edge_weight"
        return f"no edge weighs more than {most}, which sets the noise; use a smaller edge_weight"
    return None


def warn_about_study(study: Study, rows: Mapping[str, Rows]) -> None:
    """Warn of what is better settled before a release: a large δ, costly silos, silos with the same rows."""
    if not study.is_private:
        return
    sizes = {name: each.n_rows for name, each in rows.items()}
    thing = counted_as({"unit": study.unit, "rows_per_unit": study.rows_per_unit})
    least, things = min(sizes.values()), f"{thing}s"
    if study.network == "edge":
        least, things = study.n_features * (study.n_features - 1) // 2, "pairs of nodes"
    if study.delta * least > 1:
        warn(
            f"delta should be below 1/{least}, as a silo has {least} {things}, got {study.delta:g}; so large "
            "a delta may reveal one of them: leave it out, or use 1e-6"
        )
    if (costly := costly_sentence(study, sizes, thing)) is not None:
        warn(costly)
    first: dict[tuple[int, float, bytes], str] = {}
    # Nothing was summed of rows that are yet to be prepared.
    for name, each in () if study.preparation else rows.items():
        summary = each.treated().summary
        if (trace := summary.trace()) > 0:
            known = first.setdefault((each.n_rows, trace, summary.mean.tobytes()), name)
            if known != name:
                warn(same_rows(known, name))


# --- repeated fits --------------------------------------------------------------------------------

_SKETCH = 64  # hashes kept of some rows: the smallest, so that sets which share rows share hashes
_ALIKE = 8  # sets overlap where one in so many hashes is in both sketches: about a seventh of the rows
_MOST_CELLS = 4_000_000


class RepeatedFitWarning(UserWarning):
    """The same rows were fitted privately more than once in this process, and no ledger records it."""


@dataclass(slots=True)
class _Spent:
    """What was spent on some rows: their sketch, Σμ², and how many fits it was."""

    sketch: frozenset[int | str]
    squared_mu: float = 0.0
    n_fits: int = 0

    def overlaps(self, other: frozenset[int | str]) -> bool:
        shared = len(self.sketch & other)
        return shared > 0 and shared * _ALIKE >= min(len(self.sketch), len(other))


_lock = threading.Lock()
_spent: deque[_Spent] = deque(maxlen=64)


def warn_about_repeats(study: Study, sources: Iterable[RowSource], *, fits: int = 1) -> None:
    """Record a private fit without a ledger, and warn, once for the same rows, when it is not the first."""
    if not study.is_private:
        return
    silos = list(sources)
    most = _MOST_CELLS // max(len(silos), 1)  # so that many silos take no longer than one
    sketch = frozenset[int | str]().union(*(_sketch(source, most) for source in silos))
    mu = study.budget.total_mu if fits else study.budget.mu(*STAGES)
    with _lock:
        known = next((spent for spent in _spent if spent.overlaps(sketch)), None)
        if known is None:
            _spent.append(known := _Spent(sketch))
        known.squared_mu += mu**2
        known.n_fits += fits
        if known.n_fits != 2 or not fits:
            return
    rows = "networks" if study.network else "rows"
    warn(
        f"these {rows} are fitted privately for the second time in this process, and no ledger records it: "
        f"both fits together have ε = {epsilon_of(math.sqrt(known.squared_mu), study.delta):.3g} at "
        f"δ = {study.delta:g}, and every further fit adds to it; give fit_silos ledgers to cap the total, "
        f"or try parameters with epsilon=inf on public {rows}",
        RepeatedFitWarning,
    )


def _sketch(source: RowSource, most_cells: int) -> frozenset[int | str]:
    """Return the smallest hashes of the first rows, where they are in memory; of a file, which one it is."""
    if not (isinstance(source, NetworkSource) or getattr(source, "array", None) is not None):
        try:
            facts = Path(source.name).stat()
        except (OSError, ValueError):
            return frozenset()
        return frozenset([f"{facts.st_dev} {facts.st_ino} {facts.st_size} {facts.st_mtime_ns}"])
    some = max(1, min(8_192, most_cells // source.n_features))
    block = next(iter(with_gaps(source).blocks(some)), np.zeros((0, 1)))
    rows = np.asarray(block.toarray() if is_sparse(block) else block, dtype=np.float64)
    rows = rows[rows.any(axis=1)] + 0.0  # anybody's data may have rows of zeros; −0 is 0
    return frozenset(nsmallest(_SKETCH, {hash(row.tobytes()) for row in rows}))
