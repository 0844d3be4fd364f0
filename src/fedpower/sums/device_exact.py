"""The sums of `exact_moment` from rows on a device: the same whole numbers, to the last bit."""

from typing import Any, TypeAlias

import numpy as np

from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.rows.watch import UNWATCHED, Watch
from fedpower.sums.device import Device, TensorSource, device_blocks, like, panels, resident, torch
from fedpower.sums.device_bytes import ByteSums
from fedpower.sums.device_left import LeftRows, Outcome, rows_in_memory
from fedpower.sums.device_limbs import LimbSums
from fedpower.sums.exact_moment import ExactMoments, ExactSum
from fedpower.sums.lattice_rows import CUT, OFFSET, SHIFT, LatticeRows, RowLattice

STRIPE = 128
"""Columns of a stripe of a wide product: what lies above the diagonal's stripes is not computed."""


def device_sums(
    source: RowSource,
    treatment: RowTreatment,
    device: Device,
    watch: Watch = UNWATCHED,
    lattice: RowLattice | None = None,
) -> ExactMoments:
    """Return the sums over a source's bounded rows from one pass, computed on a device."""
    width = source.n_features
    rule = LatticeRows(treatment, width, lattice=lattice)
    into = ExactSum(width, rule.lattice)
    left = LeftRows(rule, treatment, source, device)
    # A value that is missing or infinite shows in its row's norm; only integers are looked at before.
    check = isinstance(source, TensorSource) and source.wide
    tensor = resident(source, device)
    here = tensor is not None and tensor.is_cuda
    size = _way(tensor, treatment, rule).most_rows(tensor) if here else None
    sums: _Sums | None = None
    for block in device_blocks(source, device, check=check, watch=watch, as_stored=True, max_rows=size):
        if sums is None:
            sums = _way(block, treatment, rule)(rule, treatment, width)
        left.see(block, sums.add(block, into))
    if sums is not None:
        left.hand_over(into, sums)
        sums.hand_over(into)
    return into.result()


_Sums: TypeAlias = "ByteSums | LimbSums | _PlainSums"


def _way(block: Any, treatment: RowTreatment, rule: LatticeRows) -> type[_Sums]:
    """Return what adds up such rows fastest."""
    for way in (ByteSums, LimbSums):
        if way.takes(block, treatment, rule):
            return way
    return _PlainSums


class _PlainSums:
    """Σ z zᵀ and Σ z over rows on any device, in 64-bit integers; blocks share its memory."""

    def __init__(self, rule: LatticeRows, treatment: RowTreatment, width: int) -> None:
        self._rule = rule
        self._treatment = treatment
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale
        self._held: Any = None
        size = width if width < 2 * STRIPE else STRIPE
        self._stripes = [(start, min(start + size, width)) for start in range(0, width, size)]
        self._width = width
        self._begin()

    def _begin(self) -> None:
        self.n_rows = 0
        self._total: Any = 0
        self._sums: list[Any] = []

    @staticmethod
    def most_rows(tensor: Any) -> int:
        """Return how many rows of a tensor on a GPU are put on the lattice at once."""
        return rows_in_memory(tensor)

    def add(self, block: Any, into: ExactSum) -> Outcome:
        """Add a block's rows, in panels whose products float64 holds; return what became of them."""
        n_rows, width = block.shape
        if self.n_rows + int(n_rows) > self._rule.lattice.word_rows:
            self.hand_over(into)
        if self._held is None or self._held.shape[0] < n_rows:
            place = {"dtype": torch().float64, "device": block.device}
            self._held = torch().empty((n_rows, width), **place)
        integers = self._held[:n_rows]
        states = self._put(block, integers)
        self.n_rows += int(n_rows)
        self.add_integers(integers)
        return Outcome.of(states)

    def add_integers(self, integers: Any) -> None:
        """Add rows that are on the lattice, in float64, and are counted already."""
        if not self._sums:
            form = {"dtype": torch().int64, "device": integers.device}
            self._sums = [torch().zeros((stop - start, stop), **form) for start, stop in self._stripes]
        self._total = self._total + integers.sum(dim=0).long()
        for stack in panels(integers, self._rule.lattice.exact_rows):
            for found, (start, stop) in zip(self._sums, self._stripes, strict=True):
                left = stack[:, :, start:stop].transpose(1, 2)
                found.add_(torch().bmm(left, stack[:, :, :stop]).long().sum(dim=0))

    def _put(self, block: Any, out: Any) -> Any:
        """Put the integers into ``out``; return the rows' states."""
        moved = block.double()
        if self._treatment.low is not None:
            moved = moved.clamp(like(self._treatment.low, moved), like(self._treatment.high, moved))
        if self._treatment.center is not None:
            moved = moved - like(self._treatment.center, moved)
        if self._gain is not None:
            moved = moved * like(self._gain, moved)
        factors, settled, clipped = _factors((moved * moved).sum(dim=1), self._rule)
        torch().mul(moved, factors[:, None], out=out)
        out.round_()
        settled = settled & ((out * out).sum(dim=1) <= self._rule.lattice.side**2)
        out[~settled] = 0.0
        return torch().where(settled, clipped.to(torch().int8), 2)

    def hand_over(self, into: ExactSum) -> None:
        """Add what was summed to the processor's sums, and begin anew."""
        if not self.n_rows:
            return
        squares = np.zeros((self._width, self._width), dtype=np.int64)
        for found, (start, stop) in zip(self._sums, self._stripes, strict=True):
            squares[start:stop, :stop] = found.cpu().numpy()
            squares[:stop, start:stop] = squares[start:stop, :stop].T
        into.add(self.n_rows, 0, self._total.cpu().numpy(), [(0, 0, squares)])
        self._begin()


def _factors(squares: Any, rule: LatticeRows) -> tuple[Any, Any, Any]:
    """Return what moved rows are multiplied by, for which that is settled, and which are clipped."""
    below, above, limit, longer, target, factor, smallest, largest, _ = rule.numbers()
    whole, real = torch().int64, torch().float64
    low = ((squares * below).view(whole) + int(OFFSET)) >> SHIFT
    high = ((squares * above).view(whole) + int(OFFSET)) >> SHIFT
    rounded = (((low + 1) << SHIFT) - int(OFFSET)).view(real)
    usual = (squares >= smallest) & (squares <= largest)
    if rule.normalizes:
        long, clipped = usual, torch().zeros_like(usual)
        settled = usual & (low == high)
    else:
        long = rounded > limit
        clipped = long & (rounded > longer)
        settled = usual & ((low == high) | ((squares < limit / 2) & ~long))
        if rule.short_is_zero:
            settled = settled | (squares < smallest)
    brought = ((target / rounded.sqrt()).view(whole) >> CUT << CUT).view(real)
    factors = torch().where(long & usual, brought, factor)
    return factors, settled, clipped
