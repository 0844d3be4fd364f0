"""The largest row norm: the one fact that may only be read from rows where nothing is private."""

import math

from fedpower.data.bound import row_norms
from fedpower.data.kernel import block_rows
from fedpower.data.rows import RowTreatment
from fedpower.data.source import RowSource


def largest_row_norm(source: RowSource, treatment: RowTreatment) -> float:
    """Return the largest norm of a treated row; a bound made from it is not a public one."""
    largest = 0.0
    for block in source.blocks(block_rows(source.n_features)):
        rows, _ = treatment.apply(block)
        largest = max(largest, float(row_norms(rows).max()))
    return largest if math.isfinite(largest) else 1e150
