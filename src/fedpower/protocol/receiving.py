"""What an answer must be like: checked when it arrives, by the question and the study's public facts.

The decoder has checked names and types of fields; here are lengths and ranges.
"""

import functools
import math
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from fedpower.exceptions import InputError
from fedpower.linalg import Array, is_orthonormal
from fedpower.privacy.budget import COVARIANCE
from fedpower.privacy.ledger import is_label
from fedpower.privacy.sensitivity import LARGEST_DRAW, summary_size
from fedpower.protocol.messages import (
    LONGEST_LABEL,
    Answer,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    KeyGone,
    LocalSteps,
    Member,
    Message,
    MomentPart,
    OpenSession,
    QueryAnswer,
    Question,
    SessionKey,
)
from fedpower.protocol.query import query_of, tally_parts
from fedpower.protocol.secure import gives_secret, is_member
from fedpower.protocol.study import Study
from fedpower.sums.moment import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

_MOST_ROWS = 2**40
"""More rows than any organisation has."""

LARGEST = 2.0**500
"""Of a number in an answer: rows may have any unit, but squares of what is sent must still be finite."""

ROUNDING = 1e-6
"""How far below 0 rounding may take a sum of squares, relative to the numbers that it was made from."""

HEADER_BYTES = 64 * 1024
"""More than any message has in addition to its arrays."""
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
        "covariance": summary_size(d, with_mean=True) if square else 0,
        "factor": MOST_FACTOR_BYTES // 8 + d if exact else 0,
    }
    if question is not None:
        what = question.label if isinstance(question, AskMoment) else question.kind.removeprefix("ask-")
        return HEADER_BYTES + 8 * numbers.get(what, 0)
    return HEADER_BYTES + 8 * max(numbers.values())


def cleaned(text: Any) -> str:
    """Return a sentence that another party sent, fit to be shown: printable, and not too long."""
    shown = str(text)[:1000]
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


_Demand = tuple[object, str, str]
"""What must hold, of what, and what it must have."""


def problem_with(
    body: Answer, asked: Message, study: Study, *, n_rows: int | None = None, keys: Iterable[bytes] = ()
) -> str | None:
    """Return why ``body`` is no answer to what a silo was asked; None where it is one."""
    for holds, what, must in _demands(body, asked, study, n_rows, keys):
        if not holds:
            return f"{what} must have {must}"
    return None


def _demands(
    body: Answer, asked: Message, study: Study, n_rows: int | None, keys: Iterable[bytes]
) -> Iterator[_Demand]:
    made_for = getattr(body, "made_for", "")
    named = len(made_for) <= LONGEST_LABEL and made_for.isprintable()
    yield named, "the run of a release", "a short printable name"
    known = not made_for or (study.is_private and not study.is_secure)
    yield known, "an answer", "no release of an earlier run"
    question = asked.body
    match body, question:
        case Enrolment(), Enrol():
            yield body.n_features == study.n_features, "a silo", f"{study.n_features} columns"
            known = body.data_version == "" or is_label(body.data_version)
            yield known, "a version of data", "a printable name"
            possible = 1 <= body.n_rows <= _MOST_ROWS and _has_noise(study, body.n_rows)
            yield possible, "a number of rows", "a whole number that the study can hold"
        case SessionKey(), OpenSession():
            yield body.n_rows == n_rows, "a signed key", f"the {n_rows} rows of the enrolment"
            charged = 0 <= body.charged <= study.attempts
            yield charged, "a number of charged attempts", f"0 to {study.attempts}"
            member = Member(silo=asked.silo, n_rows=body.n_rows, key=body.key, signature=body.signature)
            public = dict(study.identities).get(asked.silo)
            signed = public and is_member(member, public, study.digest, asked.run, question.attempt)
            yield signed, "a signed key", "its silo's signature"
            fresh = body.key not in keys and gives_secret(body.key)
            yield fresh, "a key of a secure sum", "a unique secret"
        case KeyGone(), AskQuery():
            yield study.is_secure, "an answer to a query", "numbers"
        case QueryAnswer(), AskQuery():
            yield from _of_query(body, question, study, n_rows or 1)
        case MomentPart(), AskMoment():
            yield from _of_moment(body, question.label, study, n_rows or 1)
        case LocalSteps(), AskSteps():
            yield from _of_steps(body, question, study, n_rows or 1)
        case _:
            yield False, f"an answer to {question.kind!r}", f"its kind, not {body.kind!r}"


@functools.lru_cache(maxsize=1024)
def _has_noise(study: Study, n_rows: int) -> bool:
    """Return whether the study has noise for a silo of so many rows, if all others are small."""
    try:
        if study.is_secure and study.budget.share(COVARIANCE):
            study.budget.moment_noise((n_rows, *[1] * (study.min_silos - 1)))
        elif study.is_private and not study.is_secure and study.noise != "clipped":
            study.budget.std(n_rows)
    except InputError:
        return False
    return True


def _of_query(body: QueryAnswer, ask: AskQuery, study: Study, n_rows: int) -> Iterator[_Demand]:
    what, size = f"an answer to {ask.label!r}", study.queries[ask.index].size
    yield body.words.shape == (size,), what, f"{size} numbers"
    least, most = (1, study.attempts) if study.is_secure else (0, 0)
    yield least <= body.charged <= most, "a number of charged attempts", f"{least} to {most}"
    numbers = body.words.view(np.int64)
    if not study.is_private:
        possible = numbers.min() >= 0 and int(numbers.max()) <= n_rows * tally_parts(study)
    else:  # under masks any number is possible
        budget, query = study.budget, query_of(study, ask.label, ask.public)
        possible = study.is_secure or budget.noise(ask.label, query.sensitivity, (n_rows,)).holds(numbers)
    yield possible, what, "numbers in the range of the query"


# --- answers in float64 -------------------------------------------------------------------------------


def _of_moment(body: MomentPart, label: str, study: Study, n_rows: int) -> Iterator[_Demand]:
    d, values = study.n_features, body.values
    count = len(values) if values.ndim == 2 else 0
    what, shape, largest = {
        "mean": ("a mean", (0,), 0.0),
        "variances": ("variances", (d,), LARGEST),
        "covariance": ("a covariance", (d * (d + 1) // 2,), LARGEST),
        "factor": ("a factor", (count, d), math.sqrt(LARGEST)),
    }[label]
    with_mean = study.center or label not in ("covariance", "factor")
    yield _array("a mean", body.mean, (d,) if with_mean else None, _peak(study, n_rows))
    yield count <= min(n_rows, d), what, f"at most {min(n_rows, d)} rows"
    yield _array(what, values, shape, largest)
    yield label != "variances" or values.min() >= 0, what, "no negative number"
    least, most = 0.0, LARGEST if label == "covariance" else 0.0
    if label == "factor":  # its squares are the total
        squares = float(np.vdot(values, values))
        slack = ROUNDING * (squares + (0.0 if body.mean is None else float(body.mean @ body.mean)))
        least, most = squares - slack, squares + slack
    elif label == "covariance":
        least = -ROUNDING * float(np.abs(values[np.cumsum(np.arange(1, d + 1)) - 1]).sum())
    yield least <= body.total_variance <= min(most, LARGEST), "a total variance", "a number in its range"


def _of_steps(body: LocalSteps, ask: AskSteps, study: Study, n_rows: int) -> Iterator[_Demand]:
    shape, total, spread, largest = ask.basis.shape, body.total_variance, body.misalignment, LARGEST
    center, pooled = (0.0 if a is None else float(np.linalg.norm(a)) for a in (ask.center, ask.pooled))
    if study.is_private:  # loose, and for certain
        peak = (1.0 + center) * _peak(study, n_rows, center)
        largest = 8.0 * study.n_features * peak**2 + ask.shift + pooled
    yield _array("a product", body.product, shape, largest)
    with_basis = ask.align is None and ask.n_local_steps > 1
    yield _array("a basis", body.basis, shape if with_basis else None, 1.0 + ROUNDING)
    yield body.basis is None or is_orthonormal(body.basis), "a basis", "orthonormal columns"
    with_total = not study.is_private or study.budget.with_trace
    yield (total is not None) == with_total, "a total variance", "a number in its range"
    least = most = min(largest * shape[0], LARGEST)
    if not study.is_private:
        # A sum of squares: of the coordinates about the centre, for which the product stands.
        least = ROUNDING * (1.0 + center**2 + _largest(body.product))
    yield total is None or -least <= total <= most, "a total variance", "a number in its range"
    known = (spread is None) == (ask.align is None) and 0.0 <= (spread or 0.0) <= 2.0 + ROUNDING
    yield known, "a misalignment", "its range"


@functools.lru_cache(maxsize=1024)
def _peak(study: Study, n_rows: int, center_norm: float = 0.0) -> float:
    """Return the largest number of a mean: 1 and the largest draw of noise, √2 times a covariance's."""
    if not study.is_private:
        return LARGEST
    budget = study.budget
    multiplier = max(budget.price(terms.label).multiplier for terms in study.queries)
    return 1.0 + 2.0 * LARGEST_DRAW * max(budget.std(n_rows, center_norm), multiplier / n_rows)


def _largest(value: Array) -> float:
    """Return the largest absolute value without an array of them; NaN if there is one, 0 for no number."""
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))


def _array(what: str, value: Array | None, shape: tuple[int, ...] | None, largest: float) -> _Demand:
    """Return what an array must be: of a shape and range, or none at all where no shape is expected."""
    if value is None or shape is None:
        return value is None and shape is None, what, f"the shape {shape}"
    fits = value.shape == shape and value.dtype == np.float64 and _largest(value) <= largest
    return fits, what, f"the shape {shape} and finite float64 numbers of at most {largest:.3g}"
