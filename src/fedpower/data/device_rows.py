"""Rows treated on a device: `RowTreatment` and `bound_rows`, step for step, on tensors."""

from typing import Any

from fedpower.data.bound import TINY, margin
from fedpower.data.device import torch
from fedpower.data.rows import RowTreatment
from fedpower.errors import InputError

FEW_ROWS, MANY_ROWS = 2**10, 2**13
"""Rows of a panel, whose products are summed within one matrix product, for small and large results."""

SMALL = 2**18
"""Numbers in a small result: one alone would not keep a device busy."""


def treat(treatment: RowTreatment, rows: Any) -> tuple[Any, int]:
    """Return the treated rows as a tensor of the same precision, and how many were clipped."""
    treated = rows
    if treatment.center is not None:
        treated = treated - like(treatment.center, rows)
    divisors = treatment.divisors(int(rows.shape[1]))
    if divisors is not None:
        treated = treated / like(divisors, rows)
    # A finite sum has finite terms, and takes one pass instead of three.
    suspect = treated is not rows and not bool(torch().isfinite(treated.sum()))
    if suspect and treatment.bounded:
        # As in `RowTreatment.apply`: a refusal would tell that there is such a row.
        treated = torch().nan_to_num(treated)
    elif suspect and not bool(torch().isfinite(treated).all()):
        raise InputError(
            "rows must stay finite when centred and scaled, got values beyond the range of their "
            "precision; give the columns in other units"
        )
    if not treatment.bounded:
        return treated, 0
    return _bounded(treated, normalize=treatment.normalize)


def like(values: Any, rows: Any) -> Any:
    """Return an array as a tensor of the rows' precision and place."""
    return torch().as_tensor(values.copy(), dtype=rows.dtype, device=rows.device)


def _bounded(rows: Any, *, normalize: bool) -> tuple[Any, int]:
    """Return the rows clipped to norm at most 1 and how many were longer, or all rows of norm 1.

    In float32, where nothing is private, rows are not kept a margin below 1: it would be as large as
    the other errors.
    """
    library = torch()
    single = rows.dtype == library.float32
    slack = (int(rows.shape[1]) + 8) * 2.0**-23 if single else margin(int(rows.shape[1]))
    target = 1.0 if single else 1 - slack
    norms = library.linalg.vector_norm(rows, dim=1)
    extreme = ~library.isfinite(norms)
    if normalize:
        extreme = extreme | (norms < (1e-15 if single else TINY))
    if bool(extreme.any()):
        peaks = rows.abs().amax(dim=1)
        extreme = extreme & (peaks > 0)
        rows = rows / library.where(extreme, peaks, 1.0)[:, None]
        norms = library.linalg.vector_norm(rows, dim=1)
    chosen = norms > (0 if normalize else target)
    longer = 0 if normalize else int((extreme | (norms > 1 + slack)).sum())
    factors = library.where(chosen, target / library.where(chosen, norms, 1.0), 1.0)
    return rows * factors[:, None], longer


def sum_rows(rows: Any) -> Any:
    """Return Σ y over the rows as float64: panels in the rows' own precision, added up in float64."""
    return sum(stack.sum(dim=1).double().sum(dim=0) for stack in panels(rows, FEW_ROWS))


def sum_products(left: Any, right: Any) -> Any:
    """Return leftᵀ·right as float64: products of panels of at most 2¹³ rows, added up in float64.

    In float64 no term passes through more additions than `privacy.budget.longest_sum` allows: a panel
    of at most 2¹³ rows in any order, then one for each panel of a block and for each block. In
    float32 the error of a panel is at most γ_{8192}|left|ᵀ|right| with u = 2⁻²⁴ [H02 §3.1], and
    what is added up afterwards adds none that counts.
    """
    size = panel_rows(left.shape[1] * right.shape[1])
    return sum(
        torch().bmm(one.transpose(1, 2), two).sum(dim=0, dtype=torch().float64)
        for one, two in zip(panels(left, size), panels(right, size), strict=True)
    )


def panel_rows(numbers: int) -> int:
    """Return how many rows make a panel where a product has so many numbers."""
    return FEW_ROWS if numbers <= SMALL else MANY_ROWS


def panels(rows: Any, size: int) -> list[Any]:
    """Return the rows as a stack of full panels and a stack of the one that is left."""
    count, width = rows.shape
    full = count - count % size
    stacks = [rows[:full].view(-1, size, width), rows[full:].view(1, count - full, width)]
    return [stack for stack in stacks if stack.shape[0] and stack.shape[1]]
