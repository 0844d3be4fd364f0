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

from fedpower.data.columns import require_finite
from fedpower.data.device import (
    MIN_ROWS,
    Device,
    TensorSource,
    device_blocks,
    has_triton,
    interpreted,
    like,
    multiprocessors,
    on,
    panels,
    resident,
    torch,
)
from fedpower.data.exact_moment import BlockSums, ExactMoments, ExactSum
from fedpower.data.lattice_rows import OFFSET, SHIFT, LatticeRows, RowLattice
from fedpower.data.rows import RowTreatment
from fedpower.data.source import RowSource
from fedpower.data.watch import UNWATCHED, Watch

_KERNEL_COLUMNS = 2048
"""Columns of rows that the Triton kernel takes: they stay on the chip between reading and writing."""

_KERNEL_VALUES = 1024
"""Values of a tile of the kernel."""

_KERNEL_PROGRAMS = 32
"""Programs of the kernel for each multiprocessor."""

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
    rows = _DeviceRows(rule, treatment, source, device)
    lattice = rows.lattice
    into = ExactSum(width, lattice)
    sums = _DeviceSums(width, device)
    # A value that is missing or infinite shows in its row's norm; only integers are looked at before.
    check = isinstance(source, TensorSource) and source.wide
    size = _block_rows(source, device)
    for block in device_blocks(
        source, device, check=check, watch=watch, as_stored=True, max_rows=size
    ):
        if sums.n_rows + int(block.shape[0]) > lattice.word_rows:
            sums.hand_over(into)
        sums.add(*rows.integers(block), lattice.exact_rows)
    sums.hand_over(into)
    rows.hand_over(into)
    return into.result()


def _block_rows(source: RowSource, device: Device) -> int | None:
    """Return how many rows that lie on a GPU are put on the lattice at once; None for the usual number.

    Their integers take one part in 32 of the GPU's memory: with fewer, the processor's part counts.
    """
    tensor = resident(source, device)
    if tensor is None or not tensor.is_cuda:
        return None
    memory = torch().cuda.get_device_properties(tensor.device).total_memory
    return max(MIN_ROWS, int(memory) // (32 * 8 * source.n_features))


class _DeviceSums:
    """Σ z zᵀ and Σ z over rows of whole numbers on a device, in 64-bit integers."""

    def __init__(self, width: int, device: Device) -> None:
        self._whole = {"dtype": torch().int64, "device": device.name}
        size = width if width < 2 * STRIPE else STRIPE
        self._stripes = [(start, min(start + size, width)) for start in range(0, width, size)]
        self._width = width
        self._begin()

    def _begin(self) -> None:
        self.n_rows = 0
        self._total = torch().zeros(self._width, **self._whole)
        self._sums = [
            torch().zeros((stop - start, stop), **self._whole) for start, stop in self._stripes
        ]

    def add(self, integers: Any, total: Any, exact_rows: int) -> None:
        """Add rows, in panels whose products float64 holds."""
        self.n_rows += int(integers.shape[0])
        self._total += total
        for stack in panels(integers, exact_rows):
            for found, (start, stop) in zip(self._sums, self._stripes, strict=True):
                left = stack[:, :, start:stop].transpose(1, 2)
                found.add_(torch().bmm(left, stack[:, :, :stop]).long().sum(dim=0))

    def hand_over(self, into: ExactSum) -> None:
        """Add what was summed to the processor's sums, and begin anew."""
        squares = np.zeros((self._width, self._width), dtype=np.int64)
        for found, (start, stop) in zip(self._sums, self._stripes, strict=True):
            squares[start:stop, :stop] = found.cpu().numpy()
            squares[:stop, start:stop] = squares[start:stop, :stop].T
        into.add(self.n_rows, 0, self._total.cpu().numpy(), [(0, 0, squares)])
        self._begin()


class _DeviceRows:
    """Rows of a block on the lattice, as tensors; blocks share its memory.

    Parameters
    ----------
    rule : the processor's, which decides.
    treatment : what is done to each row.
    source : whose rows they are, for what is said of a missing value.
    device : where they are put on the lattice.
    """

    def __init__(
        self, rule: LatticeRows, treatment: RowTreatment, source: RowSource, device: Device
    ) -> None:
        self.lattice = rule.lattice
        self._rule = rule
        self._treatment = treatment
        self._source = source
        self._gain = None if treatment.scale is None else 1.0 / treatment.scale
        self._n_read = 0
        self._held: Any = None
        self._numbers: tuple[Any, Any] | None = None
        self._resident = resident(source, device)
        self._seen: list[tuple[int, Any, Any]] = []
        self._n_clipped = 0
        self._numbers_left: list[int] = []
        self._left: list[Any] = []

    def integers(self, block: Any) -> tuple[Any, Any]:
        """Return a block's integers in float64 and their sums, good until the next call.

        Rows that are not settled are zeros there; `hand_over` adds them.
        """
        n_rows, width = block.shape
        if self._held is None or self._held.shape[0] < n_rows:
            place = {"dtype": torch().float64, "device": block.device}
            self._held = torch().empty((n_rows, width), **place)
        out = self._held[:n_rows]
        put = self._kernel if self._has_kernel(block) else self._plainly
        states, total = put(block, out)
        self._seen.append((self._n_read, block, states))
        self._n_read += int(n_rows)
        if self._resident is None:  # the block's memory is wanted for the next one
            self._look()
        return out, total.long()

    def _look(self) -> None:
        """Fetch what the device found of the rows; it waits for it, so once at the end where it can."""
        for first, block, states in self._seen:
            self._n_clipped += int((states == 1).sum())
            left = torch().nonzero(states == 2).flatten()
            if left.numel():
                self._numbers_left.extend((left + first).tolist())
                self._left.append(block[left].double().cpu().numpy())
        self._seen.clear()

    def hand_over(self, into: ExactSum) -> None:
        """Add the rows that were not settled, which the processor decides, and the counts."""
        self._look()
        source = self._source
        n_left = len(self._numbers_left)
        # They were counted with their blocks, in which they are zeros.
        into.add(-n_left, self._n_clipped, np.zeros(source.n_features), [])
        if n_left:
            cells = np.concatenate(self._left)
            if not np.isfinite(cells).all():
                for number, cell in zip(self._numbers_left, cells, strict=True):
                    require_finite(
                        cell[None], name=source.name, columns=source.columns, rows=number
                    )
            rest = BlockSums(self._treatment, source.n_features, lambda: None, into)
            rest.add(cells)
            rest.hand_over()

    def _plainly(self, block: Any, out: Any) -> tuple[Any, Any]:
        """Put the integers into ``out``; return the rows' states, as the kernel has them, and sums."""
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
        settled = settled & ((out * out).sum(dim=1) <= self.lattice.side**2)
        out[~settled] = 0.0
        return torch().where(settled, clipped.to(torch().int8), 2), out.sum(dim=0)

    def _has_kernel(self, block: Any) -> bool:
        known = block.dtype in {torch().float32, torch().float64} and block.stride(1) == 1
        here = block.is_cuda or interpreted()
        plain = self._treatment.low is None  # the kernel clips rows, and no cells
        return known and here and plain and block.shape[1] <= _KERNEL_COLUMNS and has_triton()

    def _kernel(self, block: Any, out: Any) -> tuple[Any, Any]:
        """Do the same in one read of the rows."""
        from fedpower.data.lattice_kernel import put_on_lattice  # noqa: PLC0415 - needs Triton

        n_rows, width = (int(size) for size in block.shape)
        place = {"dtype": torch().float64, "device": block.device}
        center = self._treatment.center
        if self._numbers is None:
            moves = np.zeros((2, width))
            moves[0] = 0.0 if center is None else center
            moves[1] = 1.0 if self._gain is None else self._gain
            rule = torch().as_tensor(self._rule.numbers(), **place)
            self._numbers = (torch().as_tensor(moves, **place), rule)
        states = torch().empty(n_rows, dtype=torch().int8, device=block.device)
        columns = 1 << (width - 1).bit_length()
        rows = max(1, _KERNEL_VALUES // columns)
        programs = min(-(-n_rows // rows), _KERNEL_PROGRAMS * multiprocessors(block.device))
        totals = torch().empty((programs, width), **place)
        with on(block.device):
            put_on_lattice[(programs,)](
                block, *self._numbers, out, states, totals, n_rows,
                D=width, STRIDE=int(block.stride(0)), COLUMNS=columns, ROWS=rows,
                CENTER=center is not None, GAIN=self._gain is not None,
                NORMALIZE=self._treatment.normalize, SHORT_IS_ZERO=self._rule.short_is_zero,
                OFFSET=int(OFFSET), SHIFT=SHIFT, num_warps=4, enable_fp_fusion=False,
            )  # fmt: skip
        return states, totals.sum(dim=0)


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
