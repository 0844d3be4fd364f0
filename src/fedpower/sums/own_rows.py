"""What a silo's own operator is shown about its rows, and nobody else."""

from collections.abc import Collection, Sequence

import numpy as np

from fedpower.rows.source import RowSource
from fedpower.rows.tables import TableSource
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import Survey
from fedpower.values import Vector

ONLY_YOU = "(for your eyes only)"

_FAR = 2.0  # scales between a column's mean and the others'
_NARROW = 20.0  # or how many times less it spreads than they do, elsewhere than around their mean
_FEW = 10  # rows of a silo of which nothing is said: they may be anywhere by chance
_MOST_COLUMNS = 5  # that are named


def other_words(source: RowSource) -> dict[str, tuple[int, int]]:
    """Return by column how many rows have none of its levels, and of how many rows."""
    while hasattr(source, "rows"):
        source = source.rows
    return dict(source.others) if isinstance(source, TableSource) else {}


def levels_warnings(source: RowSource) -> list[str]:
    """Return a sentence for each column of levels in which some rows have another word."""
    return [
        f"{count} of {n_rows} rows of {source.name} have none of the levels of column {column!r} and "
        f"count as 'other' {ONLY_YOU}"
        for column, (count, n_rows) in other_words(source).items()
        if count
    ]


def far_columns(mean: Vector, spread: Vector, n_rows: int) -> list[int]:
    """Return the places of columns that may be in another unit than the released numbers are."""
    if n_rows < _FEW:
        return []
    far = np.abs(mean) > _FAR + 3 * spread / np.sqrt(n_rows)
    narrow = (spread > 0) & (spread * _NARROW < 1) & (np.abs(mean) > 3 * spread)
    return [int(place) for place in np.flatnonzero(far | narrow)]


def pooled_columns(moments: Sequence[LocalMoment]) -> list[tuple[Vector, Vector]] | None:
    """Return each silo's own mean and spread, less those of all silos together and in their spreads."""
    known = [columns for moment in moments if (columns := moment.columns_as_treated()) is not None]
    if len(known) < len(moments) or len(moments) < 2:
        return None
    shares = np.array([moment.n_rows for moment in moments], dtype=np.float64)
    shares /= shares.sum()
    means, spreads = (np.array(values) for values in zip(*known, strict=True))
    middle = shares @ means
    scale = np.sqrt(shares @ (spreads**2 + (means - middle) ** 2))
    scale[scale == 0] = 1.0
    return [((mean - middle) / scale, spread / scale) for mean, spread in zip(means, spreads, strict=True)]


def units_warning(
    moment: LocalMoment | Survey, *, levels: Collection[int] = (), columns: Sequence[str] | None
) -> str | None:
    """Return which columns are far from the offset and scale of the study; None where none is."""
    treated = moment.treated_columns()
    if treated is None:
        return None
    far = far_columns(*treated, moment.n_rows)
    return units_sentence(moment.source.name, far, levels=levels, columns=columns)


def units_sentence(
    name: str, far: Sequence[int], *, levels: Collection[int], columns: Sequence[str] | None
) -> str | None:
    """Return what to say about columns of a silo that are far from the released numbers."""
    named = [repr(columns[j]) if columns else f"x{j}" for j in far if j not in levels]
    if not named:
        return None
    more = f" and {len(named) - _MOST_COLUMNS} more" if len(named) > _MOST_COLUMNS else ""
    listed = ", ".join(named[:_MOST_COLUMNS]) + more
    return (
        f"the values of {name} in {listed} are far from those of all silos together; check that "
        f"{'it is' if len(named) == 1 else 'they are'} in the agreed units {ONLY_YOU}"
    )
