"""Sums of whole numbers by the tensor cores of a GPU in one pass: the launches around
native/squares.cu.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg.words import WORD, Words
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import multiprocessors, on, torch
from fedpower.sums.device_left import Outcome, for_kernels, moves
from fedpower.sums.exact_moment import ExactMoments, ExactSum
from fedpower.sums.lattice_rows import CUT, OFFSET, SHIFT, LatticeRows

_MOST_COLUMNS = 128
"""Columns for whose sums a multiprocessor has registers: five of 16 × 16 for every pair of blocks."""

_OLDEST = (8, 0)
"""The compute capability from which on the tensor cores multiply bytes in tiles of this form."""

_WEIGHTS = 5
"""Of products of bytes, as in squares.cu."""

_BYTE = 8
_BLOCK = 16
_ADDED = 22
"""Numbers are multiplied with 2²² added to them, so that all bytes are positive."""

_RESERVED = 2**10
"""Bytes of shared memory that each program needs beside its own."""

_Places: TypeAlias = NDArray[np.int64]

_MOST_ROWS = 2**30
"""Rows of a block, so that their numbers fit in 32 bits."""


@cache
def _compiles(device: Any) -> bool:
    """Return whether PyTorch compiles CUDA here, for a GPU that is new enough."""
    if torch().version.cuda is None or not hasattr(torch().cuda, "_compile_kernel"):
        return False
    return bool(torch().cuda.get_device_capability(device) >= _OLDEST)


@cache
def _shared_bytes(device: Any) -> int:
    """Return the bytes of shared memory that one program alone may have."""
    return int(torch().cuda.get_device_properties(device).shared_memory_per_block_optin)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """What the kernel is compiled for."""

    width: int
    narrow: bool
    center: bool
    gain: bool
    normalize: bool
    chunk: int
    stride: int
    shared: int

    @property
    def blocks(self) -> int:
        """Blocks of sixteen columns."""
        return -(-self.width // _BLOCK)

    @property
    def warps(self) -> int:
        """Warps of a program."""
        return 12 if self.groups > 1 else 4

    @property
    def rows(self) -> int:
        """Rows of a tile: eight of a warp, or sixteen where they are short."""
        return (8 if self.groups > 1 else 16) * self.warps

    @property
    def _squares(self) -> int:
        """Squares of 16 × 16 sums, on and below the diagonal."""
        return self.blocks * (self.blocks + 1) // 2

    @property
    def full(self) -> int:
        """Squares that a warp has."""
        each, rest = divmod(self._squares, self.warps)
        return each + (2 * rest > self.warps)

    @property
    def half(self) -> bool:
        """Whether a warp has half of another square."""
        return 0 < 2 * (self._squares % self.warps) <= self.warps

    @property
    def at_once(self) -> int:
        """Programs that a multiprocessor has registers for."""
        return 1 if self.groups > 1 else 3

    @property
    def groups(self) -> int:
        """Groups of four blocks."""
        return -(-self.blocks // 4)

    @property
    def buffers(self) -> int:
        """Tiles of words in shared memory: two, if there is room for them."""
        room = (self.shared + _RESERVED) // self.at_once - _RESERVED
        return 2 if self._bytes(2) <= room else 1

    @property
    def memory(self) -> int:
        """Bytes of shared memory."""
        return self._bytes(self.buffers)

    def _bytes(self, buffers: int) -> int:
        columns = 4 * _BLOCK * self.groups
        size = 4 if self.narrow else 8
        moved = self.center or self.gain
        staged = (self.rows * columns + 4 * _BLOCK) * size
        words = buffers * 3 * (self.rows // 4) * (2 * columns + 8) * 4
        factors = self.rows * (8 if moved else size)
        return staged + words + factors + (2 * columns * 8 if moved else 0) + 8 * self.warps

    @property
    def squares(self) -> tuple[int, int, int, int]:
        """The shape of a program's sums: a warp's tiles, weights, numbers of a thread, threads."""
        return 2 * self.full + self.half, _WEIGHTS, 4, 32 * self.warps

    def places(self) -> tuple[_Places, _Places]:
        """Return the row and the column of each number of a weight's sums; past the last row for none."""
        squares = [(m, n) for m in range(self.blocks) for n in range(m + 1)]
        none = (self.blocks, 0)
        squares += [none] * (self.warps * (self.full + 1))
        tiles = [
            [(*squares[warp * self.full + each], side) for each in range(self.full) for side in (0, 1)]
            + [(*squares[self.warps * self.full + warp // 2], warp % 2)] * self.half
            for warp in range(self.warps)
        ]
        down, right, side = (each[:, None, :, None] for each in np.array(tiles).transpose(2, 1, 0))
        lane, number = np.arange(32), np.arange(4)[:, None, None]
        rows = _BLOCK * down + 2 * (lane // 4) + number // 2
        columns = _BLOCK * right + side + 2 * (2 * (lane % 4) + number % 2)
        shape = (-1, 4, 32 * self.warps)
        return rows.reshape(shape), columns.reshape(shape)

    def columns(self) -> _Places:
        """Return the column of each of a warp's totals."""
        number, lane = np.arange(2 * self.groups)[:, None], np.arange(32)
        return 64 * (number // 2) + number % 2 + _BLOCK * (lane // 8) + 2 * (lane % 8)


def _form_of(block: Any, treatment: RowTreatment) -> _Form:
    """Return the form of a block's rows with this treatment."""
    size, width = int(block.element_size()), int(block.shape[1])
    chunk = 16
    begin = (block.data_ptr(), size * int(block.stride(0)), size * width)
    while chunk > size and any(each % chunk for each in begin):
        chunk //= 2
    return _Form(
        width=width,
        narrow=size == 4,
        center=treatment.center is not None,
        gain=treatment.scale is not None,
        normalize=treatment.normalize,
        chunk=chunk,
        stride=int(block.stride(0)),
        shared=_shared_bytes(block.device),
    )


@cache
def _compiled(form: _Form, device: int) -> Callable[..., None]:
    """Return the kernel for a form of rows, on the current device, which has this number."""
    flags = {
        "WIDTH": form.width, "NARROW": int(form.narrow), "CENTER": int(form.center),
        "GAIN": int(form.gain), "NORMALIZE": int(form.normalize), "CHUNK": form.chunk,
        "STRIDE": form.stride, "WARPS": form.warps, "BUFFERS": form.buffers,
        "AT_ONCE": form.at_once, "OFFSET": f"{int(OFFSET)}LL", "SHIFT": SHIFT, "CUT": CUT,
    }  # fmt: skip
    source = files("fedpower.native").joinpath("squares.cu").read_text(encoding="utf-8")
    named = "".join(f"#define {name} {number}\n" for name, number in flags.items())
    # Compiled at the first use of a form, in two seconds or so.
    kernel = torch().cuda._compile_kernel(named + source, "add_rows")
    kernel.set_shared_memory_config(form.memory)
    return kernel  # type: ignore[no-any-return]


@cache
def _gather(form: _Form, device: Any) -> Any:
    """Return where in a program's sums those of each weight, row and column are."""
    rows, columns = form.places()
    own, _, numbers, threads = form.squares
    side = (form.blocks + 1) * _BLOCK
    found = np.zeros((_WEIGHTS, side, side), dtype=np.int64)
    place = np.arange(own * numbers * threads).reshape(own, numbers, threads)
    number = place // threads % numbers
    for weight in range(_WEIGHTS):
        start = (place // (numbers * threads) * _WEIGHTS + weight) * numbers + number
        found[weight, rows, columns] = start * threads + place % threads
    lower = np.tril(found[:, : form.width, : form.width])
    return torch().as_tensor(lower + np.tril(lower, -1).transpose(0, 2, 1), device=device)


class ByteSums:
    """Σ z zᵀ and Σ z over rows on a GPU, in 64-bit integers."""

    def __init__(self, rule: LatticeRows, treatment: RowTreatment, width: int) -> None:
        self._rule = rule
        self._treatment = treatment
        self._width = width
        self._affine: Any = None
        self._numbers = rule.numbers()[2:]
        self._begin()

    def _begin(self) -> None:
        self.n_rows = 0
        self._slots = 0  # rows with those that fill up tiles
        self._form: _Form | None = None
        self._sums: Any = None
        self._totals: Any = None
        self._others: list[NDArray[np.float64]] = []

    @staticmethod
    def takes(block: Any, treatment: RowTreatment, rule: LatticeRows) -> bool:
        """Return whether the kernel is for these rows: few columns, on an NVIDIA GPU that has it."""
        fits = block.shape[1] <= _MOST_COLUMNS and for_kernels(block, treatment, rule)
        if not (fits and block.is_cuda and block.shape[0] and _compiles(block.device)):
            return False
        form = _form_of(block, treatment)
        return form.at_once * (form.memory + _RESERVED) <= form.shared + _RESERVED

    @staticmethod
    def most_rows(_: Any) -> int:
        """Return how many rows of a tensor on a GPU make a block."""
        return _MOST_ROWS

    def add(self, block: Any, _: ExactSum) -> Outcome:
        """Add a block's rows; return what became of them. Those that are left are rows of zeros here."""
        form, device = _form_of(block, self._treatment), block.device
        n_rows = int(block.shape[0])
        programs = form.at_once * multiprocessors(device)
        with on(device):
            place = {"dtype": torch().int64, "device": device}
            if self._affine is None:
                self._affine = moves(self._treatment, self._width, device)
            if self._sums is None:
                self._form = form
                self._sums = torch().zeros((programs, *form.squares), **place)
                shape = (programs, 2 * form.groups, form.warps, 32)
                self._totals = torch().zeros(shape, **place)
            left = torch().empty(n_rows, dtype=torch().int32, device=device)
            counts = torch().zeros(2, dtype=torch().int32, device=device)
            _compiled(form, device.index)(
                grid=(programs, 1, 1),
                block=(32 * form.warps, 1, 1),
                args=[
                    *(block, self._affine, self._sums, self._totals, left, counts),
                    *(n_rows, *self._numbers),
                ],
                shared_mem=form.memory,
            )
        self.n_rows += n_rows
        self._slots += -(-n_rows // form.rows) * form.rows
        return Outcome(counts=counts, left=lambda count: left[:count].long().sort().values)

    def add_integers(self, integers: Any) -> None:
        """Add a few rows that are counted already, as zeros: their integers, in float64."""
        self._others.append(integers.cpu().numpy())

    def hand_over(self, into: ExactSum) -> None:
        """Add what was summed to the processor's sums, and begin anew."""
        if not self.n_rows:
            return
        assert self._form is not None
        form, width = self._form, self._width
        sums, totals = self._sums.sum(dim=0).flatten(), self._totals.sum(dim=(0, 2)).flatten()
        gathered = sums[_gather(form, sums.device)].flatten()
        found = torch().cat([gathered, totals]).cpu().numpy()
        weights = found[: gathered.numel()].reshape(_WEIGHTS, width, width)
        total = np.empty(4 * _BLOCK * form.groups, dtype=np.int64)
        total[form.columns().flatten()] = found[gathered.numel() :]
        total = total[:width]
        # Σ(z + c)(z + c)ᵀ is Σ z zᵀ + c·(Σ z·1ᵀ + 1·Σ zᵀ) + n·c².
        weights[2] -= (total[:, None] + total[None, :]) << (_ADDED - 2 * _BYTE)
        weights[4] -= self._slots << (2 * _ADDED - 4 * _BYTE)
        into.take(
            ExactMoments(
                n_rows=self.n_rows,
                lattice=self._rule.lattice,
                total=total,
                squares=self._squares(weights),
                n_clipped=0,
            )
        )
        if self._others:
            others = np.concatenate(self._others)
            into.add(0, 0, others.sum(axis=0), [(0, 0, (others.T @ others).astype(np.int64))])
        self._begin()

    def _squares(self, weights: NDArray[np.int64]) -> Words:
        """Return Σ z zᵀ from the sums of each weight, in two words where one might not hold it."""
        if self.n_rows <= self._rule.lattice.word_rows:
            shifts = _BYTE * np.arange(_WEIGHTS)[:, None, None]
            return Words(low=(weights << shifts).sum(axis=0))
        low, high = np.zeros_like(weights[0]), np.zeros_like(weights[0])
        for weight, each in enumerate(weights):
            kept = WORD - _BYTE * weight
            high += each >> kept
            low += (each & ((1 << kept) - 1)) << (_BYTE * weight)
        return Words(low=low, high=high).two()
