"""The sums of `exact_moment` from rows on a device: the same whole numbers, to the last bit.

Everything that decides a row's integers is one correctly rounded float64 operation a value, or follows
from its squared norm, which is only looked at through cells that its rounding does not reach across
(`LatticeRows`). A device's arithmetic is the processor's as far as that goes. Rows for which it is not
settled, one in some millions and extreme ones, are treated on the processor.

Products of panels of at most 2¹³ rows are exact in float64 whatever the order of summation, and panels
are added up as 64-bit integers.
"""

from typing import Any

import numpy as np

from fedpower.data.device import Device, device_blocks, like, panel_rows, panels, torch
from fedpower.data.exact_moment import ExactMoments, ExactSum
from fedpower.data.lattice_rows import LatticeRows, RowLattice
from fedpower.data.rows import RowTreatment
from fedpower.data.source import RowSource
from fedpower.data.watch import UNWATCHED, Watch


def device_sums(
    source: RowSource,
    treatment: RowTreatment,
    device: Device,
    watch: Watch = UNWATCHED,
    lattice: RowLattice | None = None,
) -> ExactMoments:
    """Return the sums over a source's bounded rows from one pass, computed on a device.

    Parameters
    ----------
    source, treatment : the rows, dense, and what is done to them, which must bound them.
    device : where.
    watch : is told of every block, and may stop the pass.
    lattice : the whole numbers.
    """
    width = source.n_features
    rows = _DeviceRows(LatticeRows(treatment, width, lattice=lattice), treatment)
    lattice = rows.lattice
    into = ExactSum(width, lattice)
    whole = {"dtype": torch().int64, "device": device.name}
    squares, total = torch().zeros((width, width), **whole), torch().zeros(width, **whole)
    held = [0, 0]

    def hand_over() -> None:
        into.add(held[0], held[1], total.cpu().numpy(), [(0, 0, squares.cpu().numpy())])
        squares.zero_()
        total.zero_()
        held[:] = [0, 0]

    for block in device_blocks(source, device, check=True, watch=watch):
        if held[0] + int(block.shape[0]) > lattice.word_rows:
            hand_over()
        integers, n_clipped = rows.integers(block.double())
        total += integers.sum(dim=0).long()
        for stack in panels(integers, min(panel_rows(width * width), lattice.exact_rows)):
            squares += torch().bmm(stack.transpose(1, 2), stack).long().sum(dim=0)
        held[0] += int(block.shape[0])
        held[1] += n_clipped
    hand_over()
    return into.result()


class _DeviceRows:
    """Rows of a block on the lattice, as tensors.

    Parameters
    ----------
    rule : the processor's, which decides.
    treatment : what is done to each row.
    """

    def __init__(self, rule: LatticeRows, treatment: RowTreatment) -> None:
        self.lattice = rule.lattice
        self._rule = rule
        self._center = treatment.center
        self._low, self._high = treatment.low, treatment.high
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale

    def integers(self, block: Any) -> tuple[Any, int]:
        """Return the integers of a block's rows in float64, and how many rows were clipped."""
        moved = block
        if self._low is not None:
            moved = moved.clamp(like(self._low, block), like(self._high, block))
        if self._center is not None:
            moved = moved - like(self._center, block)
        if self._gain is not None:
            moved = moved * like(self._gain, block)
        factors, settled, clipped = self._rule.factors(_squares(moved))
        integers = (moved * like(factors, block)[:, None]).round_()
        settled &= _squares(integers) <= self.lattice.side**2
        n_clipped = int(np.count_nonzero(clipped & settled))
        left = np.flatnonzero(~settled)
        if left.size:
            places = torch().as_tensor(left, device=block.device)
            found, more = self._rule.of_dense(block[places].cpu().numpy())
            integers[places] = like(found, block)
            n_clipped += more
        return integers, n_clipped


def _squares(rows: Any) -> Any:
    """Return each row's sum of squares, here."""
    return (rows * rows).sum(dim=1).cpu().numpy()
