"""Rows brought to norm at most 1, with the rounding of floating point inside the bound."""

import hashlib
import math
import struct
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from fedpower.errors import InputError
from fedpower.rows.columns import LARGEST, public_vector
from fedpower.rows.source import Block, RowSource, SparseBlock, Vector, is_sparse
from fedpower.sums.kernel import block_rows

TINY = 1e-140
"""Below this a norm's square loses digits to underflow."""


def margin(n_features: int) -> float:
    """Return how far below 1 a bounded row's norm is kept."""
    return (n_features + 8) * 2.0**-52


def _bound_rows(block: Block, *, normalize: bool) -> tuple[Block, int]:
    """Return the rows clipped to norm at most 1 and how many were longer, or all rows of norm 1."""
    slack = margin(int(block.shape[1]))
    norms = row_norms(block)
    extreme = ~np.isfinite(norms)
    if normalize:
        extreme |= norms < TINY
    if extreme.any():
        peaks = _row_peaks(block)
        extreme &= peaks > 0
        block = _divide_rows(block, np.where(extreme, peaks, 1.0))
        norms = row_norms(block)
    if normalize:
        chosen, n_clipped = norms > 0, 0
    else:
        chosen = norms > 1 - slack
        n_clipped = int(np.count_nonzero(extreme | (norms > 1 + slack)))
    if not chosen.any():
        return block, n_clipped
    return _scale_rows(block, np.where(chosen, (1 - slack) / np.where(chosen, norms, 1.0), 1.0)), n_clipped


def row_norms(block: Block) -> Vector:
    """Return each row's Euclidean norm; infinite where the squares overflow."""
    with np.errstate(over="ignore", under="ignore"):
        if is_sparse(block):
            squares = np.bincount(
                entry_rows(block), weights=block.data * block.data, minlength=block.shape[0]
            )
        else:
            squares = np.einsum("ij,ij->i", block, block)
        return np.asarray(np.sqrt(squares), dtype=np.float64)


def _row_peaks(block: Block) -> Vector:
    """Return each row's largest absolute value."""
    if is_sparse(block):
        peaks = np.zeros(block.shape[0])
        np.maximum.at(peaks, entry_rows(block), np.abs(block.data))
        return peaks
    return np.asarray(np.max(np.abs(block), axis=1), dtype=np.float64)


def _scale_rows(block: Block, factors: Vector) -> Block:
    """Return the block with each row multiplied by its factor."""
    if is_sparse(block):
        return with_data(block, block.data * factors[entry_rows(block)])
    return block * factors[:, None]


def _divide_rows(block: Block, divisors: Vector) -> Block:
    """Return the block with each row divided by its divisor."""
    if is_sparse(block):
        return with_data(block, block.data / divisors[entry_rows(block)])
    return block / divisors[:, None]


def _divide_columns(block: Block, divisors: Vector) -> Block:
    """Return the block with each column divided by its divisor."""
    if is_sparse(block):
        return with_data(block, block.data / divisors[block.indices])
    return block / divisors


def entry_rows(block: SparseBlock) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the row of each stored entry of a sparse block."""
    return np.repeat(np.arange(block.shape[0], dtype=np.int64), np.diff(block.indptr))


def with_data(block: SparseBlock, data: Vector) -> SparseBlock:
    """Return a sparse block of the same pattern with other values."""
    return type(block)((data, block.indices, block.indptr), shape=block.shape)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTreatment:
    """A public rule for each row x: ``y = bound((clip(x, low, high) − center) / scale)``."""

    center: Vector | None = None
    scale: Vector | None = None
    row_norm: float | None = None
    normalize: bool = False
    low: Vector | None = None
    high: Vector | None = None

    def __post_init__(self) -> None:
        self._check_ranges()
        if self.center is not None:
            object.__setattr__(self, "center", public_vector("center", self.center))
        if self.scale is not None:
            scale = public_vector("scale", self.scale, positive=True)
            object.__setattr__(self, "scale", scale)
        if self.row_norm is not None:
            object.__setattr__(self, "row_norm", _row_norm(self.row_norm))
        if self.normalize and self.row_norm is not None:
            raise InputError(
                "{row_norm} and {normalize} must not be given together, got {row_norm:{bound}} and "
                "{normalize:True}; choose one",
                bound=self.row_norm,
            )
        if self.center is not None and self.scale is not None and self.center.size != self.scale.size:
            raise InputError(
                f"center and scale must have one value per column, got {self.center.size} and "
                f"{self.scale.size}; give both for the same columns"
            )

    def _check_ranges(self) -> None:
        """Refuse ranges without a centre, or that hold no number."""
        if self.low is None and self.high is None:
            return
        sides = [None if side is None else np.array(side, dtype=np.float64) for side in (self.low, self.high)]
        for name, side in zip(("low", "high"), sides, strict=True):
            if side is not None:
                side.setflags(write=False)
                object.__setattr__(self, name, side)
        low, high = sides
        if low is None or high is None or self.center is None or low.shape != high.shape:
            raise InputError(
                "ranges must have both ends for every column and go with a centre, got some without; "
                "give low, high and center"
            )
        if not (low.shape == np.shape(self.center) and bool((low < high).all())):
            raise InputError(
                "a range must have a lower end below its upper end, one for each column, got others; "
                "give e.g. 0 and 120"
            )

    @property
    def bounded(self) -> bool:
        """Whether every treated row has norm at most 1."""
        return self.normalize or self.row_norm is not None

    def check_width(self, n_features: int) -> None:
        """Refuse rows of another length than the centre's or the scale's."""
        for label, values in (("center", self.center), ("scale", self.scale)):
            if values is not None and values.size != n_features:
                raise InputError(
                    f"{label} must have one value per column, got {values.size} for {n_features} "
                    "columns; "
                    "give it for the agreed columns"
                )

    def densifies(self) -> bool:
        """Whether `apply` turns a sparse block into a dense one."""
        return self.center is not None

    def apply(self, block: Block) -> tuple[Block, int]:
        """Return the treated rows and how many were clipped; without a centre sparse stays so."""
        self.check_width(int(block.shape[1]))
        rows: Block = block.toarray() if is_sparse(block) and self.densifies() else block
        with np.errstate(over="ignore"):
            if self.low is not None:
                rows = np.clip(np.asarray(rows), self.low, self.high)
            if self.center is not None:
                rows = np.asarray(rows) - self.center
            divisors = self.divisors(int(block.shape[1]))
            if divisors is not None:
                rows = _divide_columns(rows, divisors)
        if rows is not block and not np.isfinite(_values(rows)).all():
            if not self.bounded:
                raise InputError(
                    "rows must stay finite when centred and scaled, got values beyond float64's range; "
                    "give the columns in other units"
                )
            rows = _within_range(rows)
        n_clipped = 0
        if self.bounded:
            rows, n_clipped = _bound_rows(rows, normalize=self.normalize)
        return rows, n_clipped

    def split(self) -> "tuple[RowTreatment, Vector | None]":
        """Return the treatment without its centre, and the centre in treated units."""
        if self.center is None or self.low is not None:
            return self, None
        offset = self.center if self.scale is None else self.center / self.scale
        return replace(self, center=None), offset

    def digest(self) -> str:
        """Return the SHA-256 of a canonical encoding, the same on every machine."""
        state = hashlib.sha256(b"fedpower.RowTreatment/1")
        for values in (self.center, self.scale):
            state.update(struct.pack("<q", -1 if values is None else values.size))
            state.update(b"" if values is None else values.astype("<f8").tobytes())
        state.update(struct.pack("<?d", self.row_norm is not None, self.row_norm or 0.0))
        state.update(struct.pack("<?", self.normalize))
        if self.low is not None and self.high is not None:  # treatments without ranges keep theirs
            for values in (self.low, self.high):
                state.update(values.astype("<f8").tobytes())
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTreatment) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def divisors(self, n_features: int) -> Vector | None:
        """Return what each column is divided by: its scale times B."""
        if self.row_norm is None:
            return self.scale
        return np.full(n_features, self.row_norm) if self.scale is None else self.scale * self.row_norm


def _values(rows: Block) -> Vector:
    """Return the stored values of a block."""
    return rows.data if is_sparse(rows) else np.asarray(rows)


def _within_range(rows: Block) -> Block:
    """Return rows in which a value beyond float64's range is its largest number: the bound clips them."""
    values = np.nan_to_num(_values(rows))
    return with_data(rows, values) if is_sparse(rows) else values


def _row_norm(value: object) -> float:
    """Return a bound on the norm of a row as float; its square is a float64 too."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    number = float(value) if real else np.nan  # type: ignore[arg-type]
    if not (np.isfinite(number) and number > 0):
        raise InputError.about(
            "row_norm", must="be a positive finite number", got=repr(value), advice="give a public bound"
        )
    if not 1 / LARGEST <= number <= LARGEST:
        raise InputError.about(
            "row_norm",
            must=f"lie between {1 / LARGEST:g} and {LARGEST:g}",
            got=f"{number:g}",
            advice="give a public bound near the rows' length, or the columns in other units",
        )
    return number


def largest_row_norm(source: RowSource, treatment: RowTreatment) -> float:
    """Return the largest norm of a treated row; a bound made from it is not a public one."""
    largest = 0.0
    for block in source.blocks(block_rows(source.n_features)):
        # Blocks of persons' rows have a column more (`units`).
        features = block[:, : source.n_features] if not is_sparse(block) else block
        rows, _ = treatment.apply(features)
        largest = max(largest, float(row_norms(rows).max()))
    return largest if math.isfinite(largest) else 1e150
