"""What preparation asks of a silo: looked over before a row is, and as bytes where sums are secure."""

from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.integer_release import root_above
from fedpower.privacy.preparation import TALLY_PARTS, part_weights, squared_sensitivity
from fedpower.protocol.secure_releases import Summand
from fedpower.protocol.study import Study
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.local import LocalMoment
from fedpower.sums.survey import CELL_SIDE, STAGES, Stage, Survey

Array = NDArray[np.float64]
_Vectors = tuple[Array | None, Array | None, Array | None, Array | None]
"""Low and high ends of ranges, offsets and scales of all columns, as far as a question has them."""

N_VECTORS = {"octaves": 0, "bins": 2, "zoom": 3, "means": 2, "norms": 4, MOMENT: 4}
"""How many of them the question of a stage has, and that of the moment; the third of ``zoom`` is 1 for
the columns that are asked about, and 0 for others."""

_LARGEST_CELL = 1e150
"""Of ranges, offsets, scales and bounds that a coordinator may send."""


def checked_stage(study: Study, kind: str, vectors: _Vectors) -> Stage:
    """Return the stage that a coordinator asks for; refuse what is none of this study."""
    known = next((stage for stage in STAGES if stage == kind), None)
    if known is None:
        raise ProtocolError(f"a tally must be one of {', '.join(STAGES)}, got another; ask one of them")
    if known in ("octaves", "bins", "zoom") and study.n_open == 0:
        raise ProtocolError("every column of this study has a range; ask for means")
    _check_vectors(study, vectors, N_VECTORS[known])
    low, high, offset, scale = vectors
    places = [place for place, given in enumerate(study.ranges) if given is None]
    if known == "zoom":
        assert offset is not None, "it was looked for"
        asked = np.flatnonzero(offset)
        if not (asked.size and np.isin(asked, places).all() and (offset[asked] == 1.0).all()):
            raise ProtocolError(
                "a zoom must be into columns without a range, one at least, got another; ask for such"
            )
    return Stage(
        kind=known,
        n_features=study.n_features,
        open_columns=np.array(places, dtype=np.intp),
        low=low,
        high=high,
        offset=offset,
        scale=scale,
    )


def checked_treatment(study: Study, vectors: _Vectors, bound: float) -> RowTreatment:
    """Return the treatment of rows whose moment a coordinator asks for; refuse what bounds none."""
    _check_vectors(study, vectors, N_VECTORS[MOMENT])
    if not 1 / _LARGEST_CELL <= bound <= _LARGEST_CELL:
        raise ProtocolError("a bound must be positive and finite, got another; send such")
    low, high, offset, scale = vectors
    return RowTreatment(center=offset, scale=scale, row_norm=bound, low=low, high=high)


def _check_vectors(study: Study, vectors: _Vectors, expected: int) -> None:
    if [each is not None for each in vectors] != [place < expected for place in range(4)] or any(
        each.dtype != np.float64
        or each.shape != (study.n_features,)
        or not (np.abs(each) <= _LARGEST_CELL).all()
        for each in vectors
        if each is not None
    ):
        raise ProtocolError(
            f"a question of preparation must have {expected} vectors of {study.n_features} finite "
            "numbers, got others; send what the answers before give"
        )
    low, high, _, scale = vectors
    if low is not None and high is not None and not (high - low >= 1 / _LARGEST_CELL).all():
        raise ProtocolError("a range must have its smaller end first, and some width, got another; send such")
    if scale is not None and not (scale >= 1 / _LARGEST_CELL).all():
        raise ProtocolError("a scale must be positive, got another; send such")


def to_public(vectors: _Vectors, bound: float | None = None) -> bytes:
    """Return a question of preparation as the bytes that silos of a secure sum are sent."""
    parts = (*vectors, None if bound is None else np.array([bound]))
    raw = [b"" if each is None else np.asarray(each, dtype="<f8").tobytes() for each in parts]
    return b"".join(len(each).to_bytes(8, "little") + each for each in raw)


def from_public(public: bytes) -> tuple[_Vectors, float | None]:
    """Return the vectors and the bound from the bytes of :func:`to_public`; refuse other bytes."""
    found: list[Array | None] = []
    at = 0
    for _ in range(5):
        length = int.from_bytes(public[at : at + 8], "little")
        begin, at = at + 8, at + 8 + length
        if at > len(public) or length % 8:
            raise ProtocolError(_NO_QUESTION)
        numbers = np.frombuffer(public[begin:at], dtype="<f8").astype(np.float64)
        found.append(numbers if length else None)
    low, high, offset, scale, bound = found
    if at != len(public) or (bound is not None and bound.size != 1):
        raise ProtocolError(_NO_QUESTION)
    return (low, high, offset, scale), None if bound is None else float(bound[0])


_NO_QUESTION = (
    "a question of preparation must be four vectors and a bound, each after its length, got other bytes; "
    "send what the answers before give"
)


def moved_by_a_row(study: Study, kind: str, n_asked: int | None = None) -> tuple[Fraction, int]:
    """Return how far a row, or a person, moves the sum of a stage, and the most a row adds to a number."""
    n_open = study.n_open if n_asked is None else n_asked
    squared = squared_sensitivity(kind, study.n_features, n_open, CELL_SIDE, study.counted_per_unit)
    most = CELL_SIDE**2 if kind == "means" else 1
    return root_above(Fraction(squared)), most * tally_parts(study)


def weights_of_parts(kind: str, size: int) -> NDArray[np.int64]:
    """Return what each whole number of a stage is multiplied by for one scale of noise."""
    parts = np.array(part_weights(kind, CELL_SIDE), dtype=np.int64)
    return np.repeat(parts, size // parts.size)


def tally_parts(study: Study) -> int:
    """Return what a row of its own counts for in a stage of preparation."""
    return TALLY_PARTS if study.unit else 1


class PreparedSums:
    """A silo's part of the secure sums of preparation, and of the moment of rows so prepared."""

    def __init__(self, survey: Survey, study: Study) -> None:
        self._survey = survey
        self._study = study

    def summand(self, label: str, public: bytes) -> Summand:
        """Return the whole numbers that answer a stage."""
        vectors, bound = from_public(public)
        if bound is not None:
            raise ProtocolError("a tally must be asked for without a bound, got one; leave it out")
        stage = checked_stage(self._study, label, vectors)
        integers = self._survey.tally(stage) * weights_of_parts(stage.kind, stage.size)
        sensitivity, per_row = moved_by_a_row(self._study, label, stage.n_asked)
        return Summand(integers=integers, sensitivity=sensitivity, per_row=per_row)

    def moment(self, public: bytes) -> LocalMoment:
        """Return the rows, treated by what preparation found."""
        vectors, bound = from_public(public)
        if bound is None:
            raise ProtocolError(
                "the moment of prepared rows must be asked for with their bound, got none; send it"
            )
        return self._survey.treated(checked_treatment(self._study, vectors, bound))
