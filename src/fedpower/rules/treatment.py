"""Rows brought to norm at most 1, with the rounding of floating point inside the bound."""

import hashlib
import struct
from dataclasses import dataclass, replace

import numpy as np

from fedpower.exceptions import InputError, require
from fedpower.values import LARGEST, Block, SparseBlock, Vector, is_number, is_sparse, public_vector

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
        if is_sparse(block):
            peaks = np.zeros(block.shape[0])
            np.maximum.at(peaks, entry_rows(block), np.abs(block.data))
        else:
            peaks = np.max(np.abs(block), axis=1)
        extreme &= peaks > 0
        # Divided, not multiplied by an inverse, which may be infinite.
        block = _rescale(block, np.where(extreme, peaks, 1.0), divide=True)
        norms = row_norms(block)
    if normalize:
        chosen, n_clipped = norms > 0, 0
    else:
        chosen = norms > 1 - slack
        n_clipped = int(np.count_nonzero(extreme | (norms > 1 + slack)))
    if not chosen.any():
        return block, n_clipped
    return _rescale(block, np.where(chosen, (1 - slack) / np.where(chosen, norms, 1.0), 1.0)), n_clipped


def row_norms(block: Block) -> Vector:
    """Return each row's Euclidean norm; infinite where the squares overflow."""
    with np.errstate(over="ignore", under="ignore"):
        if is_sparse(block):
            squares = np.bincount(entry_rows(block), block.data * block.data, block.shape[0])
        else:
            squares = np.einsum("ij,ij->i", block, block)
        return np.asarray(np.sqrt(squares), dtype=np.float64)


def _rescale(block: Block, factors: Vector, *, divide: bool = False) -> Block:
    scaled = np.divide if divide else np.multiply
    if is_sparse(block):
        return with_data(block, scaled(block.data, factors[entry_rows(block)]))
    return np.asarray(scaled(block, factors[:, None]))


def entry_rows(block: SparseBlock) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
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
        for name in ("center", "scale", "low", "high"):
            values = getattr(self, name)
            if values is not None:
                checked = public_vector(name, values, positive=name == "scale")
                object.__setattr__(self, name, checked)
        if self.row_norm is not None:
            bound, units = self.row_norm, "give the columns in other units"
            good = is_number(bound) and bound > 0
            require(good, "row_norm", "a positive finite number", bound, "give a public bound")
            object.__setattr__(self, "row_norm", float(bound))
            within = 1 / LARGEST <= bound <= LARGEST
            require(within, "row_norm", f"between {1 / LARGEST:g} and {LARGEST:g}", float(bound), units)
        if self.normalize and self.row_norm is not None:
            raise InputError("row_norm and normalize must not be given together, got both")
        sizes = {each.size for each in (self.center, self.scale, self.low, self.high) if each is not None}
        if len(sizes) > 1:
            got = " and ".join(map(str, sizes))
            raise InputError(f"center and scale must have one value per column, got {got}")
        if self.low is None and self.high is None:
            return
        if self.low is None or self.high is None or self.center is None or not (self.low < self.high).all():
            raise InputError("ranges must have lower ends below upper ends, and a center, got others")

    @property
    def bounded(self) -> bool:
        return self.normalize or self.row_norm is not None

    def check_width(self, n_features: int) -> None:
        """Refuse rows of another length than the center's or the scale's."""
        for label, values in (("center", self.center), ("scale", self.scale)):
            if values is not None and values.size != n_features:
                must = f"one value per column, of {n_features}"
                raise InputError(f"{label} must have {must}, got {values.size}")

    def densifies(self) -> bool:
        """Whether `apply` turns a sparse block into a dense one."""
        return self.center is not None

    def apply(self, block: Block) -> tuple[Block, int]:
        """Return the treated rows and how many were clipped; without a center sparse stays so."""
        width = int(block.shape[1])
        self.check_width(width)
        rows: Block = block.toarray() if is_sparse(block) and self.densifies() else block
        divisors = self.divisors(width)
        with np.errstate(over="ignore"):
            if self.low is not None:
                rows = np.clip(np.asarray(rows), self.low, self.high)
            if self.center is not None:
                rows = np.asarray(rows) - self.center
            if divisors is not None:
                if is_sparse(rows):
                    rows = with_data(rows, rows.data / divisors[rows.indices])
                else:
                    rows = np.asarray(rows) / divisors
        values = rows.data if is_sparse(rows) else np.asarray(rows)
        if rows is not block and not np.isfinite(values).all():
            if not self.bounded:
                raise InputError(
                    "rows must stay finite when centered and scaled, got infinite values; change units"
                )
            # Beyond float64's range a value becomes its largest number: the bound clips it.
            finite = np.nan_to_num(values)
            rows = with_data(rows, finite) if is_sparse(rows) else finite
        return _bound_rows(rows, normalize=self.normalize) if self.bounded else (rows, 0)

    def split(self) -> "tuple[RowTreatment, Vector | None]":
        """Return the treatment without its center, and the center in treated units."""
        if self.center is None or self.low is not None:
            return self, None
        offset = self.center if self.scale is None else self.center / self.scale
        return replace(self, center=None), offset

    def digest(self) -> str:
        state = hashlib.sha256(b"fedpower.RowTreatment/2")
        for values in (self.center, self.scale, self.low, self.high):
            state.update(struct.pack("<q", -1 if values is None else values.size))
            state.update(b"" if values is None else values.astype("<f8").tobytes())
        state.update(struct.pack("<?d?", self.row_norm is not None, self.row_norm or 0.0, self.normalize))
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
