"""The queries that a private number answers: what is asked of rows, how far one row moves it, its value.

Every query has a lemma in docs/officer/proof.md.
"""

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

import msgspec
import numpy as np
from numpy.typing import NDArray

from fedpower.exceptions import InputError, ProtocolError
from fedpower.linalg import Array, lower_of
from fedpower.privacy.budget import COVARIANCE, MEAN, PRODUCT, SCORES
from fedpower.privacy.sensitivity import (
    Sensitivity,
    of_clipped_product,
    of_counts,
    of_means,
    of_moment,
    of_row_sum,
)
from fedpower.protocol.messages import decode_as, encode
from fedpower.protocol.study import Study
from fedpower.rows.units import PARTS, TALLY_PARTS
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.lattice import SIDE, ClippedQuestion
from fedpower.sums.survey import SCORE_CELLS, STAGES, Rows, ScoreQuestion, Stage, Survey, count_scores

Integers = NDArray[np.int64]
Exponents = Sequence[int]
"""By which powers of two the groups of an answer are multiplied."""


class Query(Protocol):
    """A question whose answer may leave a silo once noise is added to it."""

    @property
    def label(self) -> str: ...
    @property
    def public(self) -> bytes: ...
    @property
    def sensitivity(self) -> Sensitivity: ...
    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers: ...


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Covariance:
    """Σ z zᵀ, Σ z where the study centres, and Σ ‖z‖², over lattice rows or the edges of a network."""

    n_features: int
    mean_weight: float
    per_unit: int = 0
    layers: int = 1
    treatment: RowTreatment | None = None
    public: bytes = b""
    label: str = COVARIANCE

    @classmethod
    def parse(cls, study: Study, label: str, public: bytes) -> "Covariance":
        treatment = None
        if study.preparation:
            (low, high, offset, scale), bound = _prepared(study, label, public)
            treatment = RowTreatment(center=offset, scale=scale, row_norm=bound, low=low, high=high)
        else:
            _no_bytes(public)
        return cls(
            n_features=study.n_features,
            mean_weight=study.mean_weight if study.center else 0.0,
            per_unit=study.counted_per_unit,
            layers=study.layers,
            treatment=treatment,
            public=public,
        )

    @property
    def sensitivity(self) -> Sensitivity:
        """Lemma 1."""
        how = {"per_unit": self.per_unit, "layers": self.layers}
        return of_moment(self.n_features, mean_weight=self.mean_weight, **how)

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        sums = rows.treated(self.treatment).sums()
        parts = PARTS if self.per_unit else 1
        if (sums.parts, sums.n_rows) != (parts, rows.n_rows):
            raise InputError(f"noise must be made for the {sums.n_rows} rows summed, got {rows.n_rows}")
        # Squares, and the trace, are shifted down where so many rows would not fit in a word.
        powers = list(exponents)
        on_diagonal, off = _triangle(self.n_features)
        below = sums.squares.map(lower_of)
        squares = [below.shifted(powers[0])[on_diagonal]]
        if self.n_features > 1:
            squares.append(below.shifted(powers[1])[off])
        mean = [np.left_shift(sums.total, powers[-2])] if self.mean_weight else []
        shift = -powers[-1]
        trace = sums.square_total << -shift if shift < 0 else (sums.square_total + (1 << shift >> 1)) >> shift
        return np.concatenate([*squares, *mean, np.array([trace], dtype=np.int64)])

    def read(self, values: Array, n_rows: int) -> tuple[Array, Array | None, float]:
        """Return the lower triangle of the moment of so many rows, their mean and its trace."""
        d, unit = self.n_features, n_rows * float(SIDE) ** 2
        half = d * (d + 1) // 2
        on_diagonal, off = _triangle(d)
        below = np.empty(half)
        below[on_diagonal], below[off] = values[:d], values[d:half]
        mean = None
        if self.mean_weight:
            mean = values[half:-1] / (n_rows * float(SIDE) * (PARTS if self.per_unit else 1))
        return below / unit, mean, float(values[-1]) / unit


@functools.lru_cache(maxsize=4)
def _triangle(n_features: int) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
    places = np.arange(1, n_features + 1)
    diagonal = np.asarray(places * (places + 1) // 2 - 1)
    return diagonal, np.delete(np.arange(n_features * (n_features + 1) // 2), diagonal)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tally:
    """One of the sums that private preparation finds offset, scale and bound from."""

    stage: Stage
    per_unit: int = 0

    @classmethod
    def parse(cls, study: Study, label: str, public: bytes) -> "Tally":
        (low, high, offset, scale), _ = _prepared(study, label, public)
        if label == "zoom":
            assert offset is not None, "its vectors were counted"
            asked = np.flatnonzero(offset)
            if not (asked.size and np.isin(asked, study.open_columns).all() and (offset[asked] == 1.0).all()):
                raise ProtocolError("a zoom must be into columns without a range, one at least")
        stage = Stage(
            kind=next(kind for kind in STAGES if kind == label),
            n_features=study.n_features,
            open_columns=study.open_columns,
            low=low,
            high=high,
            offset=offset,
            scale=scale,
        )
        return cls(stage=stage, per_unit=study.counted_per_unit)

    @property
    def label(self) -> str:
        return self.stage.kind

    @property
    def public(self) -> bytes:
        return vectors_to_bytes((self.stage.low, self.stage.high, self.stage.offset, self.stage.scale))

    @property
    def sensitivity(self) -> Sensitivity:
        """Lemmas 2 and 3."""
        stage, how = self.stage, {"per_unit": self.per_unit}
        if stage.kind == "means":
            return of_means(stage.n_features, **how)
        counted = 1 if stage.kind == "norms" else stage.n_asked
        return of_counts(stage.size, counted=counted, **how)

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        assert isinstance(rows, Survey), "rows that are tallied are not treated yet"
        return _finer(rows.tally(self.stage), exponents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ScoreCounts:
    """How many rows lie in each place of a grid over their scores; zeros beyond its places."""

    question: ScoreQuestion
    per_unit: int = 0
    label: str = SCORES

    @classmethod
    def parse(cls, study: Study, label: str, public: bytes) -> "ScoreCounts":
        question = ScoreQuestion.from_bytes(public, study.n_features)
        return cls(question=question, per_unit=study.counted_per_unit)

    @property
    def public(self) -> bytes:
        return self.question.to_bytes()

    @property
    def sensitivity(self) -> Sensitivity:
        """Lemma 2."""
        return of_counts(SCORE_CELLS, per_unit=self.per_unit)

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        counts = count_scores(rows.filled, rows.treatment, self.question, watch=rows.watch)
        return _finer(np.pad(counts, (0, SCORE_CELLS - counts.size)), exponents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Σ y·c(Zᵀy)ᵀ and κ Σ ‖y‖² for a public basis Z, where c shortens a vector to norm α."""

    label: str
    question: ClippedQuestion

    @classmethod
    def parse(cls, study: Study, label: str, public: bytes) -> "Product":
        _require_clipped(study)
        d, width = study.n_features, width_of(study, label)
        question = ClippedQuestion.from_bytes(public, n_features=d, width=width, center=study.center)
        return cls(label=label, question=question)

    @property
    def public(self) -> bytes:
        return self.question.to_bytes()

    @property
    def sensitivity(self) -> Sensitivity:
        """Lemma 4."""
        return self._moved[0]

    @property
    def kappa(self) -> int:
        return self._moved[1]

    @property
    def _moved(self) -> tuple[Sensitivity, int]:
        n_features, width = self.question.basis.shape
        return of_clipped_product(self.question.clip, width, n_features)

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        found = rows.treated().clipped(self.question, kappa=self.kappa)
        return _finer(np.append(found.total.reshape(-1), found.squares), exponents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RowSum:
    """Σ z, of a clipped fit that centres and starts cold."""

    n_features: int
    label: str = MEAN
    public: bytes = b""

    @classmethod
    def parse(cls, study: Study, label: str, public: bytes) -> "RowSum":
        _require_clipped(study)
        _no_bytes(public)
        return cls(n_features=study.n_features)

    @property
    def sensitivity(self) -> Sensitivity:
        return of_row_sum(self.n_features)

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        return _finer(rows.treated().clipped().total, exponents)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Step:
    """A_i Z and tr A_i in float64 [FP Alg. 2, line 6], or the mean row without a Z: noised at every step."""

    study: Study
    n_rows: int
    basis: Array | None = None
    center: Array | None = None
    public: bytes = b""

    @property
    def label(self) -> str:
        return MEAN if self.basis is None else PRODUCT

    @property
    def sensitivity(self) -> Sensitivity:
        """Lemma 5; about a centre of norm c it is (1 + c)² as much."""
        budget = self.study.budget
        if self.basis is None:
            return budget.step_sensitivity(self.n_rows, width=0)
        return budget.step_sensitivity(self.n_rows, norm_of(self.center), self.basis.shape[1])

    def evaluate(self, rows: Rows, exponents: Exponents) -> Integers:
        treated = rows.treated()
        if self.basis is None:
            values = treated.summary.mean
        else:
            trace = [treated.summary.trace(self.center)] if self.study.budget.with_trace else []
            values = np.append(treated.product(self.basis, self.center), trace)
        return quantised(values, exponents[0])


def quantised(values: Array, power: int) -> Integers:
    """Return real numbers times 2^power as the nearest whole ones; lemma 5 pays for the rounding."""
    if not np.isfinite(values).all():
        raise InputError("a release must be finite, got a NaN or an infinity")
    steps = np.clip(np.ldexp(values, power), -(2.0**61), 2.0**61)
    return np.asarray(np.rint(steps, out=steps), dtype=np.int64)


def _no_bytes(public: bytes) -> None:
    if public:
        raise ProtocolError("a question for the covariance or the mean must have no other content")


def _require_clipped(study: Study) -> None:
    if study.noise != "clipped":
        raise ProtocolError("questions for products and means of this study must be steps, not queries")


def norm_of(center: Array | None) -> float:
    """Return the norm of what rows are taken about."""
    return 0.0 if center is None else float(np.linalg.norm(center))


def _finer(integers: Integers, exponents: Exponents) -> Integers:
    whole = np.asarray(integers, dtype=np.int64).reshape(len(exponents), -1)
    powers = np.array(exponents, dtype=np.int64)[:, np.newaxis]
    up, down = np.maximum(powers, 0), np.maximum(-powers, 0)
    half = np.left_shift(np.int64(1), down) // 2
    return np.asarray(((whole << up) + half) >> down, dtype=np.int64).reshape(-1)


# --- questions that a coordinator sends, checked before a row is read ---------------------------------


QUERIES: dict[str, Callable[[Study, str, bytes], Query]] = {
    COVARIANCE: Covariance.parse,
    **dict.fromkeys(STAGES, Tally.parse),
    SCORES: ScoreCounts.parse,
    PRODUCT: Product.parse,
    MEAN: RowSum.parse,
}
"""From a study, a label and public bytes, which are checked, to the query; by the label's first word."""


def query_of(study: Study, label: str, public: bytes = b"") -> Query:
    """Return the query of a study that is asked for; refuse anything else."""
    terms = next((terms for terms in study.queries if terms.label == label), None)
    parse = QUERIES.get(label.partition(" ")[0])
    if terms is None or parse is None:
        raise ProtocolError("a query must be on the study's list")
    query = parse(study, label, public)
    if query.sensitivity.size != terms.size:
        raise ProtocolError(f"query {label!r} must have {query.sensitivity.size} numbers, got {terms.size}")
    return query


def moment_of(study: Study, public: bytes = b"") -> Covariance:
    """Return the moment that a study asks for."""
    return Covariance.parse(study, COVARIANCE, public)


def tally_parts(study: Study) -> int:
    """Return what a row of its own counts for where rows are counted."""
    return TALLY_PARTS if study.unit else 1


def width_of(study: Study, label: str) -> int:
    """Return how many columns the basis of a clipped product has, by the study's terms."""
    size = next(terms.size for terms in study.queries if terms.label == label)
    return (size - 1) // study.n_features


_Vectors = tuple[Array | None, Array | None, Array | None, Array | None]
"""Low and high ends of ranges, offsets and scales of all columns, as far as a question has them."""


class _Prepared(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    vectors: _Vectors
    bound: float | None


N_VECTORS = {"octaves": 0, "bins": 2, "zoom": 3, "means": 2, "norms": 4, COVARIANCE: 4}
"""How many of them the question of a stage has, and that of the moment; the third of ``zoom`` is 1 for
the columns that are asked about, and 0 for others."""

_LARGEST_CELL = 1e150
"""Of ranges, offsets, scales and bounds that a coordinator may send."""


def _prepared(study: Study, label: str, public: bytes) -> tuple[_Vectors, float | None]:
    """Return the vectors and the bound of a question of preparation; refuse what bounds no row."""
    question = decode_as(public, _Prepared)
    vectors, bound = question.vectors, question.bound
    d, expected = study.n_features, N_VECTORS[label]
    if [vector is not None for vector in vectors] != [place < expected for place in range(4)] or any(
        vector.shape != (d,) or not (np.abs(vector) <= _LARGEST_CELL).all()
        for vector in vectors
        if vector is not None
    ):
        raise ProtocolError(f"a question of preparation must have {expected} vectors of {d} finite numbers")
    low, high, _, scale = vectors
    if low is not None and high is not None and not (high - low >= 1 / _LARGEST_CELL).all():
        raise ProtocolError("a range must have a lower end below its upper end")
    if scale is not None and not (scale >= 1 / _LARGEST_CELL).all():
        raise ProtocolError("a scale must be positive")
    if (bound is not None) != (label == COVARIANCE):
        raise ProtocolError("a question must have a bound if, and only if, it is for the prepared covariance")
    if bound is not None and not 1 / _LARGEST_CELL <= bound <= _LARGEST_CELL:
        raise ProtocolError("a bound must be positive and finite")
    return vectors, bound


def vectors_to_bytes(vectors: _Vectors, bound: float | None = None) -> bytes:
    """Return a question of preparation as silos are sent it."""
    return encode(_Prepared(vectors, bound))
