"""What the ways to add up rows on a device share: what they take, and the rows that none settles."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from fedpower.rows.columns import require_finite
from fedpower.rows.source import RowSource
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import MIN_ROWS, Device, resident, torch
from fedpower.sums.exact_moment import BlockSums, ExactSum
from fedpower.sums.lattice_rows import BITS, LatticeRows

_FEW_LEFT = 2**12
"""Rows that, once the processor put them on the lattice, are multiplied on the device."""

_LEFT = 2


def rows_in_memory(tensor: Any) -> int:
    """Return how many rows' integers take one part in 32 of a GPU's memory, at 8 bytes each."""
    memory = torch().cuda.get_device_properties(tensor.device).total_memory
    return max(MIN_ROWS, int(memory) // (32 * 8 * int(tensor.shape[1])))


def for_kernels(block: Any, treatment: RowTreatment, rule: LatticeRows) -> bool:
    """Return whether kernels for the tensor cores take such rows and what is done to them, if they fit."""
    known = block.dtype in {torch().float32, torch().float64} and block.stride(1) == 1
    return known and rule.lattice.bits <= BITS and treatment.low is None


def moves(treatment: RowTreatment, width: int, device: Any) -> Any:
    """Return centre and gain of each column, 2×d, on the device: 0 and 1 where there are none."""
    found = np.zeros((2, width))
    found[0] = 0.0 if treatment.center is None else treatment.center
    found[1] = 1.0 if treatment.scale is None else 1.0 / treatment.scale
    return torch().as_tensor(found, device=device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What became of a block's rows."""

    counts: Any
    left: Callable[[int], Any]

    @classmethod
    def of(cls, states: Any) -> "Outcome":
        """Return it from each row's state: 0 settled, 1 settled and clipped, 2 left to the processor."""
        counts = torch().stack([(states == _LEFT).sum(), (states == 1).sum()])
        return cls(counts=counts, left=lambda _: torch().nonzero(states == _LEFT).flatten())


class _TakesIntegers(Protocol):
    """What adds up rows on a device."""

    def add_integers(self, integers: Any) -> None:
        """Add rows that are on the lattice and are counted already."""


class LeftRows:
    """Rows that a device did not settle, which the processor decides, and how many it clipped."""

    def __init__(self, rule: LatticeRows, treatment: RowTreatment, source: RowSource, device: Device) -> None:
        self._rule = rule
        self._treatment = treatment
        self._source = source
        self._device = device
        # The memory of other rows is wanted for the next block.
        tensor = resident(source, device)
        self._aside: Any = None if tensor is None else _stream_aside(tensor)
        self._seen: list[tuple[Any, Outcome, Any]] = []
        self._n_read = 0
        self._n_clipped = 0
        self._rows: list[Any] = []
        self._integers: list[Any] = []

    def see(self, block: Any, found: Outcome) -> None:
        """Take note of a block's rows and what became of them."""
        if self._aside is None:
            self._look(block, found)
            return
        done = torch().cuda.Event()
        done.record(torch().cuda.current_stream(block.device))
        self._seen.append((block, found, done))

    def _look_aside(self) -> None:
        """Look at the oldest block that was not looked at, while the device is busy with another."""
        block, found, done = self._seen.pop(0)
        self._aside.wait_event(done)
        with torch().cuda.stream(self._aside):
            self._look(block, found)

    def _look(self, block: Any, found: Outcome) -> None:
        """Fetch what the device found of the rows, which waits for it, and those that are left."""
        n_left, n_clipped = found.counts.tolist()
        self._n_clipped += n_clipped
        if n_left:
            left = found.left(n_left)
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

    def hand_over(self, into: ExactSum, sums: "_TakesIntegers") -> None:
        """Add the rows that were left and the counts: a few rows to the device's sums."""
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
