"""The sums of `exact_moment` from rows on a device: the same whole numbers, to the last bit.

Everything that decides a row's integers is one correctly rounded float64 operation a value, or follows
from its squared norm, which is only looked at through cells that its rounding does not reach across
(`LatticeRows`). A device's arithmetic is the processor's as far as that goes. Rows for which it is not
settled, one in some millions and extreme ones, are treated on the processor.

On an NVIDIA GPU with Triton two kernels do it on the tensor cores (`device_limbs`). Elsewhere PyTorch
does: products of panels of at most 2¹³ rows are exact in float64 whatever the order of summation, and
panels are added up as 64-bit integers.
"""

from typing import Any

import numpy as np

from fedpower.data.columns import require_finite
from fedpower.data.device import (
    MIN_ROWS,
    Device,
    TensorSource,
    device_blocks,
    like,
    panels,
    resident,
    torch,
)
from fedpower.data.device_limbs import LimbSums, takes
from fedpower.data.exact_moment import BlockSums, ExactMoments, ExactSum
from fedpower.data.lattice_rows import OFFSET, SHIFT, LatticeRows, RowLattice
from fedpower.data.rows import RowTreatment
from fedpower.data.source import RowSource
from fedpower.data.watch import UNWATCHED, Watch

_FEW_LEFT = 2**12
"""Rows that, once the processor put them on the lattice, are multiplied on the device."""

STRIPE = 128
"""Columns of a stripe of a wide product: what lies above the diagonal's stripes is not computed."""


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
    rule = LatticeRows(treatment, width, lattice=lattice)
    into = ExactSum(width, rule.lattice)
    limbs = LimbSums(rule, treatment, width)
    plain = _DeviceSums(rule, treatment, width, device)
    left = _LeftRows(rule, treatment, source, device)
    last: LimbSums | _DeviceSums = plain
    # A value that is missing or infinite shows in its row's norm; only integers are looked at before.
    check = isinstance(source, TensorSource) and source.wide
    size = _block_rows(source, device, limbs.most_rows)
    for block in device_blocks(
        source, device, check=check, watch=watch, as_stored=True, max_rows=size
    ):
        sums: LimbSums | _DeviceSums = limbs if takes(block, treatment, rule) else plain
        if plain.n_rows + int(block.shape[0]) > rule.lattice.word_rows:
            plain.hand_over(into)
        left.see(block, sums.add(block))
        last = sums
    left.hand_over(into, last)
    limbs.hand_over(into)
    plain.hand_over(into)
    return into.result()


def _block_rows(source: RowSource, device: Device, most: int) -> int | None:
    """Return how many rows that lie on a GPU are put on the lattice at once; None for the usual number.

    Their integers take one part in 32 of the GPU's memory: with fewer, the processor's part counts.
    """
    tensor = resident(source, device)
    if tensor is None or not tensor.is_cuda:
        return None
    memory = torch().cuda.get_device_properties(tensor.device).total_memory
    return min(most, max(MIN_ROWS, int(memory) // (32 * 8 * source.n_features)))


class _DeviceSums:
    """Σ z zᵀ and Σ z over rows on any device, in 64-bit integers; blocks share its memory.

    Parameters
    ----------
    rule : the processor's, which decides.
    treatment : what is done to each row.
    width : d.
    device : where.
    """

    def __init__(
        self, rule: LatticeRows, treatment: RowTreatment, width: int, device: Device
    ) -> None:
        self._rule = rule
        self._treatment = treatment
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale
        self._held: Any = None
        self._whole = {"dtype": torch().int64, "device": device.name}
        size = width if width < 2 * STRIPE else STRIPE
        self._stripes = [(start, min(start + size, width)) for start in range(0, width, size)]
        self._width = width
        self._begin()

    def _begin(self) -> None:
        self.n_rows = 0
        self._total: Any = 0
        self._sums: list[Any] = []

    def add(self, block: Any) -> Any:
        """Add a block's rows, in panels whose products float64 holds; return each row's state.

        0 is for a settled row, 1 for one that was clipped too, 2 for one that is left to the processor
        and is a row of zeros here.
        """
        n_rows, width = block.shape
        if self._held is None or self._held.shape[0] < n_rows:
            place = {"dtype": torch().float64, "device": block.device}
            self._held = torch().empty((n_rows, width), **place)
        integers = self._held[:n_rows]
        states = self._put(block, integers)
        self.n_rows += int(n_rows)
        self.add_integers(integers)
        return states

    def add_integers(self, integers: Any) -> None:
        """Add rows that are on the lattice, in float64, and are counted already."""
        if not self._sums:
            self._sums = [
                torch().zeros((stop - start, stop), **self._whole) for start, stop in self._stripes
            ]
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


class _LeftRows:
    """Rows that a device did not settle, which the processor decides, and how many it clipped.

    Parameters
    ----------
    rule : the processor's.
    treatment : what is done to each row.
    source : whose rows they are, for what is said of a missing value.
    device : where they are put on the lattice.
    """

    def __init__(
        self, rule: LatticeRows, treatment: RowTreatment, source: RowSource, device: Device
    ) -> None:
        self._rule = rule
        self._treatment = treatment
        self._source = source
        self._device = device
        # The memory of other rows is wanted for the next block.
        tensor = resident(source, device)
        self._aside: Any = None if tensor is None else _stream_aside(tensor)
        self._seen: list[tuple[Any, Any, Any]] = []
        self._n_read = 0
        self._n_clipped = 0
        self._rows: list[Any] = []
        self._integers: list[Any] = []

    def see(self, block: Any, states: Any) -> None:
        """Take note of a block's rows and their states."""
        if self._aside is None:
            self._look(block, states)
            return
        done = torch().cuda.Event()
        done.record(torch().cuda.current_stream(block.device))
        self._seen.append((block, states, done))

    def _look_aside(self) -> None:
        """Look at the oldest block that was not looked at, while the device is busy with another."""
        block, states, done = self._seen.pop(0)
        self._aside.wait_event(done)
        with torch().cuda.stream(self._aside):
            self._look(block, states)

    def _look(self, block: Any, states: Any) -> None:
        """Fetch what the device found of the rows, which waits for it, and those that are left."""
        counts = torch().stack([(states == 1).sum(), (states == 2).sum()]).tolist()
        self._n_clipped += counts[0]
        if counts[1]:
            left = torch().nonzero(states == 2).flatten()
            cells = block[left].double().cpu().numpy()
            self._require_finite(cells, left)
            self._rows.append(cells)
        self._n_read += int(block.shape[0])

    def _require_finite(self, cells: Any, left: Any) -> None:
        """Refuse missing and infinite values, by their places."""
        if np.isfinite(cells).all():
            return
        source = self._source
        for number, cell in zip((left + self._n_read).tolist(), cells, strict=True):
            require_finite(cell[None], name=source.name, columns=source.columns, rows=number)

    def hand_over(self, into: ExactSum, sums: "LimbSums | _DeviceSums") -> None:
        """Add the rows that were left and the counts: a few rows to the device's sums.

        Parameters
        ----------
        into : the processor's sums.
        sums : the device's.
        """
        while self._seen:
            if len(self._seen) == 1:
                self._decide(into)  # while the device is busy with the last block
            self._look_aside()
        self._decide(into)
        into.add(0, self._n_clipped, np.zeros(self._source.n_features), [])
        # They were counted with their blocks, in which they are zeros.
        if self._integers:
            integers = np.concatenate(self._integers)
            sums.add_integers(torch().as_tensor(integers, device=self._device.name))

    def _decide(self, into: ExactSum) -> None:
        """Put the rows that were fetched on the lattice; many of them are added up here."""
        if not self._rows:
            return
        cells = np.concatenate(self._rows)
        self._rows.clear()
        if len(cells) <= _FEW_LEFT:
            integers, n_clipped = self._rule.of_dense(cells)
            self._integers.append(integers.copy())
            self._n_clipped += n_clipped
            return
        width = self._source.n_features
        into.add(-len(cells), 0, np.zeros(width), [])
        rest = BlockSums(self._treatment, width, lambda: None, into)
        rest.add(cells)
        rest.hand_over()


def _stream_aside(tensor: Any) -> Any | None:
    """Return a stream in which small things are done before large ones go on, where there is any."""
    return torch().cuda.Stream(tensor.device, priority=-1) if tensor.is_cuda else None


def _factors(squares: Any, rule: LatticeRows) -> tuple[Any, Any, Any]:
    """Return what moved rows are multiplied by, for which that is settled, and which are clipped.

    As `LatticeRows` does it, for sums of squares in any order of summation; where it is settled, their
    integers are moved rows times these factors, rounded, if they are no longer than S.
    """
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
    factors = torch().where(long & usual, target / rounded.sqrt(), factor)
    return factors, settled, clipped
