"""Clipped products in whole numbers: Σ y·c(Zᵀy)ᵀ over bounded rows, for a public basis Z."""

import functools
import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.rows.source import require_count
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import SIDE, LatticeRows
from fedpower.sums.local import LocalMoment
from fedpower.sums.reduce import room
from fedpower.values import Matrix, Vector, is_sparse

BASIS_SIDE = 2**30  # numbers of a basis are multiples of 1/2³⁰: times a row they are exact in float64
CLIP_SIDE = 2**16  # α is this whole number: coordinates are cut to multiples of α/2¹⁶
SLANT = 2.0**-20  # how far from orthonormal a basis may be: ‖ZᵀZ − I‖_F
LEAST_CLIP = 2.0**-8  # a smaller α than any that is of use; `SLANT` is small in comparison

_BLOCK_BYTES = 32 * 2**20
_EXACT_ROWS = 2**16  # whose products with 2¹⁶ stay below 2⁵³ in float64, added up in any order

_HEAD = struct.Struct("<dqq")


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ClippedQuestion:
    """A public basis, where coordinates are clipped, and what rows are taken about."""

    clip: float
    basis: NDArray[np.int32]
    center: NDArray[np.int32] | None

    @classmethod
    def of(cls, basis: Matrix, clip: float, center: Vector | None = None) -> "ClippedQuestion":
        """Return the question for a basis with orthonormal columns, rounded to its lattice."""
        return cls(
            clip=float(clip),
            basis=np.rint(basis * BASIS_SIDE).astype(np.int32),
            center=None if center is None else np.rint(center * SIDE).astype(np.int32),
        )

    @property
    def real_basis(self) -> Matrix:
        return self.basis / float(BASIS_SIDE)

    def to_bytes(self) -> bytes:
        """Return what silos are sent."""
        head = _HEAD.pack(self.clip, self.basis.shape[1], int(self.center is not None))
        center = b"" if self.center is None else self.center.astype("<i4").tobytes()
        return head + self.basis.astype("<i4").tobytes() + center

    @classmethod
    def from_bytes(cls, public: bytes, *, n_features: int, width: int, center: bool) -> "ClippedQuestion":
        """Return the question in bytes that a coordinator sent; refuse what the noise is not made for."""
        expected = _HEAD.size + 4 * n_features * (width + int(center))
        if len(public) != expected:
            raise ProtocolError(_NO_QUESTION)
        clip, columns, centred = _HEAD.unpack_from(public)
        if columns != width or centred != int(center) or not LEAST_CLIP <= clip <= 1.0:
            raise ProtocolError(_NO_QUESTION)
        numbers = np.frombuffer(public, dtype="<i4", offset=_HEAD.size).astype(np.int32)
        basis = numbers[: n_features * width].reshape(n_features, width)
        about = numbers[n_features * width :] if center else None
        made = cls(clip=clip, basis=basis, center=about)
        if not made.is_orthonormal:
            raise ProtocolError(
                "a basis must have orthonormal columns to 1e-6, got one that has not; orthonormalise it first"
            )
        if about is not None and np.abs(about.astype(np.int64)).max(initial=0) > SIDE:
            raise ProtocolError("a centre must have norm 1 at most, got a longer one; send the mean")
        return made

    @property
    def is_orthonormal(self) -> bool:
        """Whether ‖ZᵀZ − I‖_F is so small that the sensitivity below holds."""
        real = self.real_basis
        return bool(np.linalg.norm(real.T @ real - np.eye(real.shape[1])) <= SLANT)


_NO_QUESTION = (
    "a clipped product must be asked for with the width that was agreed on, a clip between 2**-8 and 1 "
    "and a centre where the study centres, got another question; send what the sums before give"
)


def clipped_scale(clip: float) -> float:
    """Return what a clipped product of rows of norm 1 is multiplied by in whole numbers."""
    return float(SIDE * CLIP_SIDE) / float(clip)


class ClippedSum:
    """Σ y qᵀ and Σ ⌊κ‖y‖²⌋ of bounded rows times S in whole numbers; Σ z without a question."""

    def __init__(
        self, treatment: RowTreatment, n_features: int, question: ClippedQuestion | None, kappa: int
    ):
        self._rows = LatticeRows(treatment, n_features)
        self._question, self._kappa = question, kappa
        self.total = np.zeros((n_features,) if question is None else question.basis.shape, dtype=np.int64)
        self.n_rows = self.squares = 0

    def add(self, block: Any, weights: Vector | None = None) -> None:
        assert weights is None, "persons have no clipped products"
        block = block.toarray() if is_sparse(block) else block
        rows, _ = self._rows.of_dense(block, room("integers", block.shape))
        self.n_rows += len(rows)
        if self._question is None:
            self.total += rows.sum(axis=0).astype(np.int64)
            return
        about, norms = _about(rows, self._question.center)
        clipped = _clipped(about @ self._question.basis.astype(np.float64), self._question.clip)
        self.total += (about.T @ clipped).astype(np.int64)
        self.squares += int(np.floor(norms * (self._kappa / float(SIDE) ** 2)).astype(np.int64).sum())

    def merge(self, other: "ClippedSum") -> None:
        self.total += other.total
        self.n_rows += other.n_rows
        self.squares += other.squares


def clipped_sums(moment: LocalMoment, question: ClippedQuestion, *, kappa: int) -> NDArray[np.int64]:
    """Return Σ y qᵀ (d·r numbers, row by row) and ⌊κ‖y‖²⌋ summed, over all rows, in whole numbers."""
    found = _over_all(moment, question, kappa)
    return np.append(found.total.reshape(-1), found.squares)


def mean_sums(moment: LocalMoment) -> NDArray[np.int64]:
    """Return Σ z of the bounded rows, in whole numbers."""
    return _over_all(moment).total


def _over_all(moment: LocalMoment, question: ClippedQuestion | None = None, kappa: int = 0) -> ClippedSum:
    """Return the sum over all rows; refuse another number of them than the silo has."""
    width = moment.source.n_features
    make = functools.partial(ClippedSum, moment.treatment, width, question, kappa)
    found = moment.total(make, max(1, min(_EXACT_ROWS, _BLOCK_BYTES // (8 * width))))
    require_count(moment.source.name, moment.n_rows, found.n_rows)
    return found


def _about(rows: Matrix, center: NDArray[np.int32] | None) -> tuple[Matrix, Vector]:
    """Return whole rows about a whole centre, of norm S at most, and their squared norms; all exact."""
    if center is None:
        return rows, np.asarray(np.einsum("ij,ij->i", rows, rows))
    shifted = rows - center
    squares = np.asarray(np.einsum("ij,ij->i", shifted, shifted))
    long = np.flatnonzero(squares > float(SIDE) ** 2)
    if long.size:
        factors = (1.0 - 2.0**-40) * SIDE / np.sqrt(squares[long])
        shifted[long] = np.trunc(shifted[long] * factors[:, np.newaxis])
        squares[long] = np.einsum("ij,ij->i", shifted[long], shifted[long])
    return shifted, squares


def _clipped(coordinates: Matrix, clip: float) -> Matrix:
    """Return c(p)·2¹⁶/α cut to whole numbers, from p·S·2³⁰ in whole numbers."""
    unit = float(SIDE) * BASIS_SIDE * clip  # what norm α is in the units of the coordinates
    # Column by column, so that a row's norm is made by the same operations wherever the row stands.
    squares = np.zeros(len(coordinates))
    for column in coordinates.T:
        squares += (column / unit) ** 2
    norms = np.maximum(np.sqrt(squares), 1.0)
    factors = (1.0 - 2.0**-40) * CLIP_SIDE / (unit * norms)
    return np.trunc(coordinates * factors[:, np.newaxis])
