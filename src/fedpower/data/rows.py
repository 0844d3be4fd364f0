"""What is done to each row before it counts: centre, scale, bound."""

import hashlib
import struct
from dataclasses import dataclass, replace
from numbers import Real

import numpy as np

from fedpower.data.bound import bound_rows, divide_columns, with_data
from fedpower.data.public_vectors import LARGEST, public_vector
from fedpower.data.source import Block, Vector, is_sparse
from fedpower.errors import InputError


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowTreatment:
    """A public rule for each row x: ``y = bound((x − center) / scale)``.

    Every parameter is public and agreed on; none may be read from the data silently.

    Parameters
    ----------
    center : subtracted from each row first; None for nothing.
    scale : positive divisor of each column; None for ones.
    row_norm : the bound B: rows are divided by B, then clipped to norm at most 1.
    normalize : scale each nonzero row to norm 1 instead; a zero row stays zero. Excludes
        `row_norm`.
    """

    center: Vector | None = None
    scale: Vector | None = None
    row_norm: float | None = None
    normalize: bool = False

    def __post_init__(self) -> None:
        if self.center is not None:
            object.__setattr__(self, "center", public_vector("center", self.center))
        if self.scale is not None:
            scale = public_vector("scale", self.scale, positive=True)
            object.__setattr__(self, "scale", scale)
        if self.row_norm is not None:
            object.__setattr__(self, "row_norm", _row_norm(self.row_norm))
        if self.normalize and self.row_norm is not None:
            raise InputError(
                "row_norm and normalize must not be given together, got "
                f"row_norm={self.row_norm} and "
                "normalize=True; choose one"
            )
        if (
            self.center is not None
            and self.scale is not None
            and self.center.size != self.scale.size
        ):
            raise InputError(
                f"center and scale must have one value per column, got {self.center.size} and "
                f"{self.scale.size}; give both for the same columns"
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
            if self.center is not None:
                rows = np.asarray(rows) - self.center
            divisors = self.divisors(int(block.shape[1]))
            if divisors is not None:
                rows = divide_columns(rows, divisors)
        if rows is not block and not np.isfinite(_values(rows)).all():
            if not self.bounded:
                raise InputError(
                    "rows must stay finite when centred and scaled, got values beyond float64's range; "
                    "give the columns in other units"
                )
            rows = _within_range(rows)
        n_clipped = 0
        if self.bounded:
            rows, n_clipped = bound_rows(rows, normalize=self.normalize)
        return rows, n_clipped

    def split(self) -> "tuple[RowTreatment, Vector | None]":
        """Return the treatment without its centre, and the centre in treated units.

        For a treatment without a bound the treated row is what the first gives less the second;
        kernels use it to keep sparse blocks sparse.
        """
        if self.center is None:
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
        return state.hexdigest()

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RowTreatment) and self.digest() == other.digest()

    def __hash__(self) -> int:
        return hash(self.digest())

    def divisors(self, n_features: int) -> Vector | None:
        """Return what each column is divided by: its scale times B."""
        if self.row_norm is None:
            return self.scale
        return (
            np.full(n_features, self.row_norm) if self.scale is None else self.scale * self.row_norm
        )


def _values(rows: Block) -> Vector:
    """Return the stored values of a block."""
    return rows.data if is_sparse(rows) else np.asarray(rows)


def _within_range(rows: Block) -> Block:
    """Return rows in which a value beyond float64's range is its largest number: the bound clips them.

    A refusal would tell others that there is such a row; as a rule for each row this is like any other.
    """
    values = np.nan_to_num(_values(rows))
    return with_data(rows, values) if is_sparse(rows) else values


def _row_norm(value: object) -> float:
    """Return a bound on the norm of a row as float; its square is a float64 too."""
    real = isinstance(value, Real) and not isinstance(value, bool)
    number = float(value) if real else np.nan  # type: ignore[arg-type]
    if not (np.isfinite(number) and number > 0):
        raise InputError(
            f"row_norm must be a positive finite number, got {value!r}; give a public bound"
        )
    if not 1 / LARGEST <= number <= LARGEST:
        raise InputError(
            f"row_norm must lie between {1 / LARGEST:g} and {LARGEST:g}, got {number:g}; give a public "
            "bound near the rows' length, or the columns in other units"
        )
    return number
