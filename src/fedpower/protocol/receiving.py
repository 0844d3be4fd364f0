"""What an answer must be like: checked when it arrives, by the question and the study's public facts.

The decoder has checked names and types of fields; here are lengths and ranges.
"""

import functools
import math
from collections.abc import Collection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError
from fedpower.linalg import is_orthonormal
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.ledger import is_label
from fedpower.privacy.sensitivity import LARGEST_DRAW, summary_size
from fedpower.protocol.messages import (
    Answer,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    KeyGone,
    LocalSteps,
    Member,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Question,
    SessionKey,
)
from fedpower.protocol.query import query_of, tally_parts
from fedpower.protocol.secure import gives_secret, is_member
from fedpower.protocol.study import Study, budget_of
from fedpower.sums.moment import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

Array = NDArray[np.float64]

_ANSWER_TO: dict[Any, tuple[type, ...]] = {
    Enrol: (Enrolment,),
    AskMoment: (MomentPart,),
    AskSteps: (LocalSteps,),
    OpenSession: (SessionKey,),
    AskQuery: (QueryAnswer, KeyGone),
}

_MOST_ROWS = 2**40
"""More rows than any organisation has."""

LARGEST_EXACT = 2.0**500
"""Where nothing is noised rows have any unit, but squares of what is sent must still be finite."""

ROUNDING = 1e-6
"""How far below 0 rounding may take a sum of squares, relative to the numbers that it was made from."""

_LONGEST_RUN = 256
HEADER_BYTES = 64 * 1024
"""More than any message has besides its arrays."""
_MEMBER_BYTES = 1024
"""More than a silo's entry in the session of a secure sum has."""


def most_question_bytes(study: Study) -> int:
    """Return the most bytes that a question of a study can have: a basis, a pooled product, vectors."""
    numbers = study.n_features * (2 * study.iteration_rank + 4)
    return HEADER_BYTES + _MEMBER_BYTES * len(study.identities) + 8 * numbers


def most_answer_bytes(study: Study, question: Question | None = None) -> int:
    """Return the most bytes that an answer to a question can have, or to any question of a study."""
    d, exact = study.n_features, not study.is_private
    square = exact and (question is not None or d <= MOST_SQUARE_FEATURES)
    numbers = {
        "query": max((terms.size for terms in study.queries), default=0),
        "steps": 2 * d * study.iteration_rank,
        "mean": d,
        "variances": 2 * d,
        "moment": summary_size(d, with_mean=True) if square else 0,
        "factor": MOST_FACTOR_BYTES // 8 + d if exact else 0,
    }
    if question is None:
        most = max(numbers.values())
    else:
        what = question.label if isinstance(question, AskMoment) else question.kind.removeprefix("ask-")
        most = numbers.get(what, 0)
    return HEADER_BYTES + 8 * most


def cleaned(text: Any) -> str:
    """Return a sentence that another party sent, fit to be shown: printable, and not too long."""
    shown = str(text)[:1000]
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


class _MalformedError(Exception):
    """An answer that is none."""


def problem_with(
    body: Answer,
    question: Question,
    study: Study,
    *,
    silo: str,
    run: str,
    n_rows: int | None = None,
    keys: Collection[bytes] = (),
) -> str | None:
    """Return why ``body`` is no answer of ``silo`` to ``question``; None where it is one."""
    kinds = _ANSWER_TO[type(question)]
    try:
        _expect(isinstance(body, kinds), f"an answer to {question.kind!r}", kinds[0].__name__)
        match body, question:
            case Enrolment(), _:
                _expect(body.n_features == study.n_features, "a silo", f"{study.n_features} columns")
                known = body.data_version == "" or is_label(body.data_version)
                _expect(known, "a version of data", "a name that can be shown")
                _check_rows(body.n_rows, study)
            case SessionKey(), OpenSession():
                _check_key(body, question, study, silo=silo, run=run, keys=keys)
                _expect(body.n_rows == n_rows, "a signed key", f"the {n_rows} rows of the enrolment")
            case KeyGone(), _:
                _expect(study.aggregation == "secure", "an answer to a query", "numbers")
            case _:
                _check_numbers(body, question, study, n_rows or 1)
    except _MalformedError as problem:
        return str(problem)
    return None


def _check_rows(n_rows: int, study: Study) -> None:
    possible = 1 <= n_rows <= _MOST_ROWS and _has_noise(study, n_rows)
    _expect(possible, "a number of rows", "a whole number that the study can hold")


@functools.lru_cache(maxsize=1024)
def _has_noise(study: Study, n_rows: int) -> bool:
    """Return whether the study has noise for a silo of so many rows, if all others are small."""
    budget = budget_of(study)
    try:
        if budget is not None and budget.n_sharing is not None and budget.share(MOMENT):
            budget.moment_noise((n_rows, *[1] * (study.min_silos - 1)))
        elif budget is not None and budget.n_sharing is None and study.noise != "clipped":
            budget.std(n_rows)
    except InputError:
        return False
    return True


def _check_key(
    body: SessionKey, call: OpenSession, study: Study, *, silo: str, run: str, keys: Collection[bytes]
) -> None:
    _check_rows(body.n_rows, study)
    _expect(0 <= body.charged <= study.attempts, "a number of charged attempts", f"0 to {study.attempts}")
    member = Member(silo=silo, n_rows=body.n_rows, key=body.key, signature=body.signature)
    public = dict(study.identities).get(silo)
    signed = public and is_member(member, public, study=study.digest, run=run, attempt=call.attempt)
    _expect(signed, "a signed key", "its silo's signature")
    fresh = body.key not in keys and gives_secret(body.key)
    _expect(fresh, "a key of a secure sum", "a secret that no other has")


def _check_query(body: QueryAnswer, ask: AskQuery, study: Study, n_rows: int) -> None:
    what, budget, size = f"an answer to {ask.label!r}", budget_of(study), study.queries[ask.index].size
    _expect(body.words.shape == (size,), what, f"{size} numbers")
    secure = study.aggregation == "secure"
    least, most = (1, study.attempts) if secure else (0, 0)
    _expect(least <= body.charged <= most, "a number of charged attempts", f"{least} to {most}")
    if secure:  # under masks any number is possible
        return
    numbers = body.words.view(np.int64)
    if budget is None:
        possible = numbers.min() >= 0 and int(numbers.max()) <= n_rows * tally_parts(study)
    else:
        query = query_of(study, ask.label, ask.public)
        possible = budget.noise(ask.label, query.sensitivity, (n_rows,)).holds(numbers)
    _expect(possible, what, "numbers in the range of the query")


# --- answers in float64 -------------------------------------------------------------------------------


def _check_numbers(body: Answer, ask: Question, study: Study, n_rows: int) -> None:
    """Check the arrays of an answer: those that were asked for, their shapes, and their ranges."""
    made_for = ""
    match body, ask:
        case MomentPart(), AskMoment():
            _check_moment(body, ask.label, study, n_rows)
        case QueryAnswer(), AskQuery():
            _check_query(body, ask, study, n_rows)
            made_for = body.made_for
        case LocalSteps(), AskSteps():
            _check_steps(body, ask, study, n_rows)
            made_for = body.made_for
    named = len(made_for) <= _LONGEST_RUN and made_for.isprintable()
    _expect(named, "the run of a release", "a short printable name")
    known = not made_for or (study.is_private and study.aggregation == "plain")
    _expect(known, "an answer", "no release of an earlier run")


def _check_moment(body: MomentPart, label: str, study: Study, n_rows: int) -> None:
    d, values, mean = study.n_features, body.values, body.mean
    whole, count = label in ("moment", "factor"), 0
    with_mean = study.center if whole else True
    _check_array("a mean", mean, (d,) if with_mean else None, _peak(study, n_rows))
    if label == "factor" and values.ndim == 2:
        count = len(values)
        _expect(count <= min(n_rows, d), "a factor", f"{min(n_rows, d)} rows at most")
    what, shape, largest = {
        "mean": ("a mean", (0,), 0.0),
        "variances": ("variances", (d,), LARGEST_EXACT),
        "moment": ("a covariance", (d * (d + 1) // 2,), LARGEST_EXACT),
        "factor": ("a factor", (count, d), math.sqrt(LARGEST_EXACT)),
    }[label]
    _check_array(what, values, shape, largest)
    least, most = 0.0, 0.0
    if label == "variances":
        _expect(float(np.min(values)) >= 0, what, "no negative number")
    elif label == "moment":
        least = -ROUNDING * float(np.abs(values[np.cumsum(np.arange(1, d + 1)) - 1]).sum())
        most = LARGEST_EXACT
    elif label == "factor":
        squares = float(np.vdot(values, values))
        slack = ROUNDING * (squares + (0.0 if mean is None else float(mean @ mean)))
        least, most = squares - slack, squares + slack
    _check_total(body.total_variance, least, most)


def _check_steps(body: LocalSteps, ask: AskSteps, study: Study, n_rows: int) -> None:
    shape, budget = ask.basis.shape, budget_of(study)
    center, pooled = (0.0 if a is None else float(np.linalg.norm(a)) for a in (ask.center, ask.pooled))
    largest = LARGEST_EXACT
    if budget is not None:
        largest = 8.0 * study.n_features * (_peak(study, n_rows, center) * (1.0 + center)) ** 2
        largest += ask.shift + pooled
    _check_array("a product", body.product, shape, largest)
    beside = ask.align is None and ask.n_local_steps > 1
    _check_array("a basis", body.basis, shape if beside else None, 1.0 + ROUNDING)
    _expect(body.basis is None or is_orthonormal(body.basis), "a basis", "orthonormal columns")
    if budget is None or budget.with_trace:
        # A sum of squares: of the coordinates about the centre, for which the product stands.
        least = -ROUNDING * (1.0 + center**2 + _largest(body.product)) if budget is None else -math.inf
        _check_total(body.total_variance, least, largest * shape[0])
    else:
        _expect(body.total_variance is None, "an answer", "no total variance")
    known = body.misalignment is None if ask.align is None else body.misalignment is not None
    _expect(known and 0.0 <= (body.misalignment or 0.0) <= 2.0 + ROUNDING, "a misalignment", "its range")


@functools.lru_cache(maxsize=1024)
def _peak(study: Study, n_rows: int, center_norm: float = 0.0) -> float:
    """Return the largest number of a mean: 1 and the largest draw of noise, √2 times a covariance's."""
    budget = budget_of(study)
    if budget is None:
        return LARGEST_EXACT
    multiplier = max(budget.price(terms.label).multiplier for terms in budget.queries)
    return 1.0 + LARGEST_DRAW * 2.0 * max(budget.std(n_rows, center_norm), multiplier / n_rows)


def _check_array(what: str, value: Array | None, shape: tuple[int, ...] | None, largest: float) -> None:
    """Refuse an array of another shape or range, and any array where no shape is expected."""
    if value is None or value.shape != shape:
        _expect(value is None and shape is None, what, f"the shape {shape}")
        return
    _expect(value.dtype == np.float64, what, "float64 numbers")
    _expect(_largest(value) <= largest, what, f"finite numbers of at most {largest:.3g}")


def _largest(value: Array) -> float:
    """Return the largest absolute value without an array of them; NaN if there is one, 0 for no number."""
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))


def _check_total(value: float | None, least: float, largest: float) -> None:
    possible = value is not None and max(least, -LARGEST_EXACT) <= value <= min(largest, LARGEST_EXACT)
    _expect(possible, "a total variance", "a number in its range")


def _expect(holds: object, what: str, must: str) -> None:
    if not holds:
        raise _MalformedError(f"{what} must have {must}")
