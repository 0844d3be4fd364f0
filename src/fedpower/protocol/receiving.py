"""What an answer to a question of a study must look like: looked over when it arrives, in one place."""

import functools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import is_orthonormal
from fedpower.privacy.ledger import is_label
from fedpower.privacy.sensitivity import LARGEST_DRAW, summary_size
from fedpower.protocol.messages import (
    AskFactor,
    AskMean,
    AskMoment,
    AskQuery,
    AskSteps,
    CallRoll,
    Enrol,
    Enrolment,
    Factor,
    KeyGone,
    LocalSteps,
    MeanRow,
    PackedMoment,
    Present,
    QueryAnswer,
    Question,
)
from fedpower.protocol.query import query_of, tally_parts
from fedpower.protocol.secure import KEY_BYTES, SIGNATURE_BYTES, Place, gives_secret
from fedpower.protocol.study import Study, budget_of
from fedpower.rows.networks import MOST_LAYERS
from fedpower.sums.kernel import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

Array = NDArray[np.float64]

_ANSWER_TO: dict[type, tuple[type, ...]] = {
    Enrol: (Enrolment,),
    AskMean: (MeanRow,),
    AskSteps: (LocalSteps,),
    AskMoment: (PackedMoment,),
    AskFactor: (Factor,),
    CallRoll: (Present,),
    AskQuery: (QueryAnswer, KeyGone),
}

_MOST_ROWS = 2**40
"""More rows than any organisation has; whoever says so is not believed."""

LARGEST_EXACT = 2.0**500
"""Where nothing is noised rows have any unit, but squares of what is sent must still be finite."""

_LONGEST_RUN = 256
"""The most characters of the name of a run."""

ROUNDING = 1e-6
"""How far below 0 rounding may take a sum of squares, beside the numbers that it was made from."""


HEADER_BYTES = 64 * 1024
"""More than any message has besides its arrays."""

_ROLL_BYTES = 1024
"""More than a silo's place on a roll has."""


def most_question_bytes(study: Study) -> int:
    """Return the most bytes that a question of a study can have: a basis, a pooled product, vectors."""
    numbers = study.n_features * (2 * study.iteration_rank + 4)
    return HEADER_BYTES + _ROLL_BYTES * len(study.identities) + 8 * numbers


def most_answer_bytes(study: Study, question: Question | None = None) -> int:
    """Return the most bytes that an answer to a question can have, or to any question of a study."""
    if question is None:
        kinds = [kind for kind in _ANSWER_TO if _is_asked(kind, study)]
        return HEADER_BYTES + 8 * max(_most_numbers(kind, study) for kind in kinds)
    return HEADER_BYTES + 8 * _most_numbers(type(question), study)


def _is_asked(kind: type, study: Study) -> bool:
    """Return whether a kind of question can be part of a study."""
    if kind is AskMoment:
        return study.noise != "none" or study.n_features <= MOST_SQUARE_FEATURES
    return kind is not AskFactor or study.noise == "none"


def _most_numbers(kind: type, study: Study) -> int:
    """Return how many numbers of 8 bytes answer a kind of question at most."""
    d, r = study.n_features, study.iteration_rank
    if kind is AskQuery:
        return max((terms.size for terms in study.queries), default=0)
    if kind is AskMoment:
        return summary_size(d, with_mean=True) if study.noise in ("none", "moment") else 0
    if kind is AskFactor:
        return MOST_FACTOR_BYTES // 8 + d
    return {AskMean: 2 * d, AskSteps: 2 * d * r}.get(kind, 0)


def problem_with(
    body: Any,
    question: Question,
    study: Study,
    *,
    silo: str,
    run: str,
    n_rows: int | None = None,
    keys: Collection[bytes] = (),
) -> str | None:
    """Return why ``body`` is no answer of ``silo`` to ``question``; None where it is one."""
    expected = _ANSWER_TO[type(question)]
    if not isinstance(body, expected):
        return _must(f"an answer to {question.kind!r}", expected[0].__name__, type(body).__name__)
    if isinstance(body, Enrolment):
        return _enrolment(body, study)
    if isinstance(body, KeyGone):
        gone = study.aggregation == "secure"
        return None if gone else _must(f"an answer to {question.kind!r}", "numbers", "none")
    if isinstance(body, Present):
        assert isinstance(question, CallRoll)
        return (
            _rows(body.n_rows, study, enrolled=n_rows)
            or _charged(body.charged, study, least=0)
            or _place(body, question, study, silo=silo, run=run, keys=keys)
        )
    if isinstance(body, QueryAnswer):
        assert isinstance(question, AskQuery)
        return _query_answer(body, question, study, n_rows or 1)
    peak = _peak(study, n_rows or 1)
    if isinstance(body, MeanRow):
        return _mean(body, question, study, peak)
    if isinstance(body, PackedMoment):
        return _packed(body, study, peak)
    if isinstance(body, Factor):
        return _factor(body, study, peak, n_rows or 1)
    assert isinstance(question, AskSteps)
    assert isinstance(body, LocalSteps)
    return _steps(body, question, study, peak)


@functools.lru_cache(maxsize=1024)
def _peak(study: Study, n_rows: int) -> "_Peak":
    return _Peak(study, n_rows)


class _Peak:
    """The largest numbers that a silo of so many rows can send; loose, and for certain."""

    def __init__(self, study: Study, n_rows: int) -> None:
        self._budget = budget_of(study)
        self._n_rows = n_rows
        self._d = study.n_features
        self._layers = MOST_LAYERS if study.network == "edge" else 0

    @functools.cached_property
    def mean(self) -> float:
        """Of a number of a mean row."""
        if self._budget is None:
            return LARGEST_EXACT
        return self._noised(0.0)

    @functools.cached_property
    def moment(self) -> float:
        """Of a number of a moment about whichever mean."""
        if self._budget is None:
            return LARGEST_EXACT
        return 2.0 * self._noised(0.0) ** 2 + self._layers

    def product(self, ask: AskSteps) -> float:
        """Of a number of a product, or of a sum of so many squares."""
        if self._budget is None:
            return LARGEST_EXACT
        norm = 0.0 if ask.center is None else float(np.linalg.norm(ask.center))
        pooled = 0.0 if ask.pooled is None else float(np.linalg.norm(ask.pooled))
        noised = self._noised(norm)
        return 8.0 * self._d * noised**2 * (1.0 + norm) ** 2 + ask.shift + pooled

    def _noised(self, norm: float) -> float:
        """Return 1 and the largest draw of the noise of a mean, which has √2 times a moment's."""
        assert self._budget is not None
        multiplier = max(self._budget.price(terms.label).multiplier for terms in self._budget.queries)
        widest = max(self._budget.std(self._n_rows, norm), multiplier / self._n_rows)
        return 1.0 + LARGEST_DRAW * 2.0 * widest


def _enrolment(body: Enrolment, study: Study) -> str | None:
    if not _is_count(body.n_features) or body.n_features != study.n_features:
        return _must("a silo", f"{study.n_features} columns", _told(body.n_features))
    if not isinstance(body.data_version, str) or not (body.data_version == "" or is_label(body.data_version)):
        return _must("a version of data", "a name that can be shown", "another")
    return _rows(body.n_rows, study)


def _charged(count: Any, study: Study, *, least: int) -> str | None:
    """Return what is wrong with the number of attempts that a silo was charged for."""
    if not _is_count(count) or not least <= count <= study.attempts:
        return _must("a number of charged attempts", f"{least} to {study.attempts}", _told(count))
    return None


def _rows(n_rows: Any, study: Study, enrolled: int | None = None) -> str | None:
    if not _is_count(n_rows) or not 1 <= n_rows <= _MOST_ROWS or not _has_noise(study, n_rows):
        return _must("a number of rows", "a whole number that the study can hold", _told(n_rows))
    if enrolled is not None and n_rows != enrolled:
        return _must("a place on the roll", f"the {enrolled} rows of the enrolment", _told(n_rows))
    return None


@functools.lru_cache(maxsize=1024)
def _has_noise(study: Study, n_rows: int) -> bool:
    """Return whether the study has noise for a silo of so many rows, if all others are small."""
    budget = budget_of(study)
    try:
        if budget is not None and budget.n_sharing is not None and budget.has_moment:
            budget.moment_noise((n_rows, *[1] * (study.min_silos - 1)))
        elif budget is not None and budget.n_sharing is None and study.noise != "clipped":
            budget.std(n_rows)
    except InputError:
        return False
    return True


def _place(
    body: Present, call: CallRoll, study: Study, *, silo: str, run: str, keys: Collection[bytes]
) -> str | None:
    whole = _bytes("a key", body.key, KEY_BYTES) or _bytes("a signature", body.signature, SIGNATURE_BYTES)
    if whole is not None:
        return whole
    place = Place(silo=silo, n_rows=body.n_rows, key=body.key, signature=body.signature)
    public = dict(study.identities).get(silo)
    if public is None or not place.is_signed(public, study=study.digest, run=run, attempt=call.attempt):
        return _must("a place on the roll", "its silo's signature", "another")
    if body.key in keys or not gives_secret(body.key):
        return _must("a key on the roll", "a secret that no other has", "one without")
    return None


def _packed(body: PackedMoment, study: Study, peak: _Peak) -> str | None:
    d = study.n_features
    found = _numbers("a moment", body.triangle, (d * (d + 1) // 2,), peak.moment)
    if found is not None:
        return found
    if study.center:
        found = _numbers("a mean", body.mean, (d,), peak.mean)
    elif body.mean is not None:
        found = _must("a moment", "no mean beside it in a study that does not centre", "one")
    least = -math.inf
    if not study.is_private:
        diagonal = body.triangle[np.cumsum(np.arange(1, d + 1)) - 1]
        least = -ROUNDING * float(np.abs(diagonal).sum())
    return (
        found
        or _scalar("a total variance", body.total_variance, least, peak.moment * d)
        or _made_for(body.made_for, study)
    )


def _factor(body: Factor, study: Study, peak: _Peak, n_rows: int) -> str | None:
    d = study.n_features
    if study.noise != "none":
        return _must("an answer in a private study", "noised", "a factor of the moment")
    count = len(body.factor) if np.ndim(body.factor) == 2 else 0
    found = _numbers("a factor", body.factor, (count, d), math.sqrt(peak.moment))
    if found is None and count > min(n_rows, d):
        return _must("a factor", f"{min(n_rows, d)} rows at most", f"{count}")
    if found is None and study.center:
        found = _numbers("a mean", body.mean, (d,), peak.mean)
    elif found is None and body.mean is not None:
        found = _must("a factor", "no mean beside it in a study that does not centre", "one")
    if found is not None:
        return found
    squares = float(np.vdot(body.factor, body.factor))
    slack = ROUNDING * (squares + (0.0 if body.mean is None else float(body.mean @ body.mean)))
    return _scalar("a total variance", body.total_variance, squares - slack, squares + slack)


def _query_answer(body: QueryAnswer, ask: AskQuery, study: Study, n_rows: int) -> str | None:
    """Return what is wrong with whole numbers: their count or their size."""
    what = f"an answer to {ask.label!r}"
    found = _array(what, body.words, (study.queries[ask.index].size,), np.uint64)
    if found is not None:
        return found
    if study.aggregation == "secure":  # under masks any words can be
        return _charged(body.charged, study, least=1)
    query, budget, numbers = (
        query_of(study, ask.label, ask.public),
        budget_of(study),
        body.words.view(np.int64),
    )
    if budget is None:
        holds = numbers.min() >= 0 and int(numbers.max()) <= n_rows * tally_parts(study)
    else:
        holds = budget.noise(ask.label, query.sensitivity, (n_rows,)).holds(numbers)
    return None if holds else _must(what, "numbers that can be", "a larger one")


def _mean(body: MeanRow, ask: Question, study: Study, peak: _Peak) -> str | None:
    assert isinstance(ask, AskMean)
    shape = (study.n_features,)
    found = _numbers("a mean", body.mean, shape, peak.mean)
    if not ask.variances:
        beside = None if body.variances is None else _must("a mean", "no variances beside it", "some")
        return found or beside
    found = found or _numbers("variances", body.variances, shape, peak.moment)
    if found is None and float(np.min(body.variances)) < 0:  # type: ignore[arg-type]
        return _must("variances", "no negative number", "one")
    return found


def _steps(body: LocalSteps, ask: AskSteps, study: Study, peak: _Peak) -> str | None:
    shape, largest = ask.basis.shape, peak.product(ask)
    found = _numbers("a product", body.product, shape, largest)
    if found is not None:
        return found
    if ask.align is None and ask.n_local_steps > 1:
        found = _numbers("a basis", body.basis, shape, 1.0 + ROUNDING)
        if found is None and not is_orthonormal(body.basis):  # type: ignore[arg-type]
            found = _must("a basis", "orthonormal columns", "others")
    elif body.basis is not None:
        found = _must("an answer to these steps", "no basis", "one")
    budget = budget_of(study)
    if budget is None or budget.with_trace:
        # A sum of squares: of the coordinates about the centre, for which the product stands.
        about = 1.0 if ask.center is None else 1.0 + float(ask.center @ ask.center)
        beside = about + _largest(body.product)
        least = -ROUNDING * beside if budget is None else -math.inf
        found = found or _scalar("a total variance", body.total_variance, least, largest * shape[0])
    elif body.total_variance is not None:
        found = found or _must("an answer to these steps", "no total variance", "one")
    if ask.align is not None:
        found = found or _scalar("a misalignment", body.misalignment, 0.0, 2.0 + ROUNDING)
    elif body.misalignment is not None:
        found = found or _must("an answer to these steps", "no misalignment", "one")
    return found or _made_for(body.made_for, study)


def _made_for(made_for: Any, study: Study) -> str | None:
    if not isinstance(made_for, str) or len(made_for) > _LONGEST_RUN or not made_for.isprintable():
        return _must("the run of a release", "a name", "something else")
    if made_for and study.noise != "moment":
        return _must("an answer", "no release of an earlier run behind it", "one")
    return None


def _numbers(what: str, value: Any, shape: tuple[int, ...], largest: float) -> str | None:
    """Return what is wrong with an array of finite float64 of one shape, none above ``largest``."""
    found = _array(what, value, shape, np.float64)
    if found is not None:
        return found
    peak = _largest(value)
    if not math.isfinite(peak):  # a NaN is the largest and the smallest of numbers, here
        return _must(what, "finite numbers", "others")
    if peak > largest:
        return _must(what, f"numbers of at most {largest:.3g}", "a larger one")
    return None


def _largest(value: Any) -> float:
    """Return the largest absolute value, without an array of them; 0 where there is none."""
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))


def _array(what: str, value: Any, shape: tuple[int, ...], dtype: type) -> str | None:
    if not isinstance(value, np.ndarray) or value.dtype != dtype:
        return _must(what, f"an array of {np.dtype(dtype).name}", _kind(value))
    if value.shape != shape:
        return _must(what, f"the shape {shape}", f"{value.shape}")
    return None


def _scalar(what: str, value: Any, least: float, largest: float) -> str | None:
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return _must(what, "a number", _kind(value))
    if not -LARGEST_EXACT <= value <= LARGEST_EXACT or not least <= value <= largest:
        return _must(what, "a number that can be", _told(value))
    return None


def _bytes(what: str, value: Any, length: int) -> str | None:
    if not isinstance(value, bytes) or len(value) != length:
        return _must(what, f"{length} bytes", "something else")
    return None


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _told(value: Any) -> str:
    """Return a number as a sentence tells it; a silo's own words are not repeated."""
    if isinstance(value, bool) or not isinstance(value, int | float | np.floating):
        return _kind(value)
    if isinstance(value, int) and abs(value) >= 10**15:
        return "one beyond 10**15" if value > 0 else "one below -10**15"
    return f"{value:g}" if not isinstance(value, int) else str(value)


def _kind(value: Any) -> str:
    if isinstance(value, np.ndarray):
        return f"one of {value.dtype.name}"
    return "none" if value is None else f"a {type(value).__name__}"


def _must(what: str, expected: str, got: str) -> str:
    return f"{what} must have {expected}, got {got}"


def cleaned(text: Any) -> str:
    """Return a sentence that another party sent, fit to be shown: printable, and not too long."""
    shown = str(text)[:1000]
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)
