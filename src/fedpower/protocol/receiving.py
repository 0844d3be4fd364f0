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
from fedpower.privacy.ledger import is_label
from fedpower.privacy.sensitivity import LARGEST_DRAW, summary_size
from fedpower.protocol.messages import (
    Answer,
    AskFactor,
    AskMean,
    AskMoment,
    AskQuery,
    AskSteps,
    Enrol,
    Enrolment,
    Factor,
    KeyGone,
    LocalSteps,
    MeanRow,
    Member,
    OpenSession,
    PackedMoment,
    QueryAnswer,
    Question,
    SessionKey,
)
from fedpower.protocol.query import query_of, tally_parts
from fedpower.protocol.secure import gives_secret, is_member
from fedpower.protocol.study import Study, budget_of
from fedpower.rows.networks import MOST_LAYERS
from fedpower.sums.kernel import MOST_FACTOR_BYTES, MOST_SQUARE_FEATURES

Array = NDArray[np.float64]

_ANSWER_TO: dict[Any, tuple[type, ...]] = {
    Enrol: (Enrolment,),
    AskMean: (MeanRow,),
    AskSteps: (LocalSteps,),
    AskMoment: (PackedMoment,),
    AskFactor: (Factor,),
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
    square = study.noise == "moment" or (exact and (question is not None or d <= MOST_SQUARE_FEATURES))
    numbers: dict[Any, int] = {
        AskQuery: max((terms.size for terms in study.queries), default=0),
        AskMoment: summary_size(d, with_mean=True) if square else 0,
        AskFactor: MOST_FACTOR_BYTES // 8 + d if exact else 0,
        AskMean: 2 * d,
        AskSteps: 2 * d * study.iteration_rank,
    }
    most = max(numbers.values()) if question is None else numbers.get(type(question), 0)
    return HEADER_BYTES + 8 * most


def cleaned(text: Any) -> str:
    """Return a sentence that another party sent, fit to be shown: printable, and not too long."""
    shown = str(text)[:1000]
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in shown)


class _MalformedError(Exception): ...


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
    expected = _ANSWER_TO[type(question)]
    try:
        _expect(
            isinstance(body, expected),
            f"an answer to {question.kind!r}",
            expected[0].__name__,
            type(body).__name__,
        )
        if isinstance(body, SessionKey):
            assert isinstance(question, OpenSession)
            _check_rows(body.n_rows, study)
            _expect(body.n_rows == n_rows, "a signed key", f"the {n_rows} rows of the enrolment", body.n_rows)
            _check_charged(body.charged, study, least=0)
            _check_key(body, question, study, silo=silo, run=run, keys=keys)
        else:
            _check(body, question, study, n_rows or 1)
    except _MalformedError as problem:
        return str(problem)
    return None


def _check(body: Answer, question: Question, study: Study, n_rows: int) -> None:
    d = study.n_features
    match body, question:
        case Enrolment(), _:
            _expect(body.n_features == d, "a silo", f"{d} columns", body.n_features)
            known = body.data_version == "" or is_label(body.data_version)
            _expect(known, "a version of data", "a name that can be shown", "another")
            _check_rows(body.n_rows, study)
        case KeyGone(), _:
            _expect(study.aggregation == "secure", "an answer to a query", "numbers", "none")
        case QueryAnswer(), AskQuery():
            _check_query(body, question, study, n_rows)
        case MeanRow(), AskMean():
            _check_array("a mean", body.mean, (d,), _peak(study, n_rows))
            if question.variances:
                _check_array("variances", body.variances, (d,), _covariance_peak(study, n_rows))
                _expect(float(np.min(body.variances)) >= 0, "variances", "no negative number", "one")  # type: ignore[arg-type]
            else:
                _check_absent("variances", body.variances)
        case PackedMoment(), _:
            _check_array("a covariance", body.triangle, (d * (d + 1) // 2,), _covariance_peak(study, n_rows))
            _check_mean(body.mean, study, n_rows)
            diagonal = body.triangle[np.cumsum(np.arange(1, d + 1)) - 1]
            least = -math.inf if study.is_private else -ROUNDING * float(np.abs(diagonal).sum())
            _check_number("a total variance", body.total_variance, least, _covariance_peak(study, n_rows) * d)
            _check_run(body.made_for, study)
        case Factor(), _:
            _check_factor(body, study, n_rows)
        case LocalSteps(), AskSteps():
            _check_steps(body, question, study, n_rows)


@functools.lru_cache(maxsize=1024)
def _peak(study: Study, n_rows: int, center_norm: float = 0.0) -> float:
    """Return the largest number of a noised mean: 1 and the largest draw, √2 times a covariance's."""
    budget = budget_of(study)
    if budget is None:
        return LARGEST_EXACT
    multiplier = max(budget.price(terms.label).multiplier for terms in budget.queries)
    return 1.0 + LARGEST_DRAW * 2.0 * max(budget.std(n_rows, center_norm), multiplier / n_rows)


def _covariance_peak(study: Study, n_rows: int) -> float:
    if not study.is_private:
        return LARGEST_EXACT
    return 2.0 * _peak(study, n_rows) ** 2 + (MOST_LAYERS if study.network == "edge" else 0)


def _product_peak(study: Study, n_rows: int, ask: AskSteps) -> float:
    if not study.is_private:
        return LARGEST_EXACT
    norm, pooled = (0.0 if a is None else float(np.linalg.norm(a)) for a in (ask.center, ask.pooled))
    product = 8.0 * study.n_features * (_peak(study, n_rows, norm) * (1.0 + norm)) ** 2
    return product + ask.shift + pooled


def _check_rows(n_rows: int, study: Study) -> None:
    possible = 1 <= n_rows <= _MOST_ROWS and _has_noise(study, n_rows)
    _expect(possible, "a number of rows", "a whole number that the study can hold", f"{n_rows:.6g}")


@functools.lru_cache(maxsize=1024)
def _has_noise(study: Study, n_rows: int) -> bool:
    budget = budget_of(study)
    try:
        if budget is not None and budget.n_sharing is not None and budget.has_moment:
            budget.moment_noise((n_rows, *[1] * (study.min_silos - 1)))
        elif budget is not None and budget.n_sharing is None and study.noise != "clipped":
            budget.std(n_rows)
    except InputError:
        return False
    return True


def _check_charged(count: int, study: Study, *, least: int) -> None:
    must = f"{least} to {study.attempts}"
    _expect(least <= count <= study.attempts, "a number of charged attempts", must, count)


def _check_key(
    body: SessionKey, call: OpenSession, study: Study, *, silo: str, run: str, keys: Collection[bytes]
) -> None:
    member = Member(silo=silo, n_rows=body.n_rows, key=body.key, signature=body.signature)
    public = dict(study.identities).get(silo)
    attempt = call.attempt
    signed = public is not None and is_member(member, public, study=study.digest, run=run, attempt=attempt)
    _expect(signed, "a signed key", "its silo's signature", "another")
    fresh = body.key not in keys and gives_secret(body.key)
    _expect(fresh, "a key of a secure sum", "a secret that no other has", "one without")


def _check_query(body: QueryAnswer, ask: AskQuery, study: Study, n_rows: int) -> None:
    what, budget = f"an answer to {ask.label!r}", budget_of(study)
    size = study.queries[ask.index].size
    _expect(body.words.shape == (size,), what, f"{size} numbers", body.words.shape)
    if study.aggregation == "secure":  # under masks any number is possible
        _check_charged(body.charged, study, least=1)
        return
    numbers = body.words.view(np.int64)
    if budget is None:
        possible = numbers.min() >= 0 and int(numbers.max()) <= n_rows * tally_parts(study)
    else:
        query = query_of(study, ask.label, ask.public)
        possible = budget.noise(ask.label, query.sensitivity, (n_rows,)).holds(numbers)
    _expect(bool(possible), what, "numbers in the range of the query", "a larger one")


def _check_mean(mean: Array | None, study: Study, n_rows: int) -> None:
    if study.center:
        _check_array("a mean", mean, (study.n_features,), _peak(study, n_rows))
    else:
        _check_absent("a mean", mean)


def _check_factor(body: Factor, study: Study, n_rows: int) -> None:
    d, count = study.n_features, len(body.factor) if body.factor.ndim == 2 else 0
    _expect(not study.is_private, "an answer in a private study", "noise", "a factor of the covariance")
    _check_array("a factor", body.factor, (count, d), math.sqrt(LARGEST_EXACT))
    _expect(count <= min(n_rows, d), "a factor", f"{min(n_rows, d)} rows at most", count)
    _check_mean(body.mean, study, n_rows)
    squares = float(np.vdot(body.factor, body.factor))
    slack = ROUNDING * (squares + (0.0 if body.mean is None else float(body.mean @ body.mean)))
    _check_number("a total variance", body.total_variance, squares - slack, squares + slack)


def _check_steps(body: LocalSteps, ask: AskSteps, study: Study, n_rows: int) -> None:
    shape, largest, budget = ask.basis.shape, _product_peak(study, n_rows, ask), budget_of(study)
    _check_array("a product", body.product, shape, largest)
    if ask.align is None and ask.n_local_steps > 1:
        _check_array("a basis", body.basis, shape, 1.0 + ROUNDING)
        _expect(is_orthonormal(body.basis), "a basis", "orthonormal columns", "others")  # type: ignore[arg-type]
    else:
        _check_absent("a basis", body.basis)
    if budget is None or budget.with_trace:
        # A sum of squares: of the coordinates about the centre, for which the product stands.
        about = 1.0 if ask.center is None else 1.0 + float(ask.center @ ask.center)
        least = -ROUNDING * (about + _largest(body.product)) if budget is None else -math.inf
        _check_number("a total variance", body.total_variance, least, largest * shape[0])
    else:
        _check_absent("a total variance", body.total_variance)
    if ask.align is not None:
        _check_number("a misalignment", body.misalignment, 0.0, 2.0 + ROUNDING)
    else:
        _check_absent("a misalignment", body.misalignment)
    _check_run(body.made_for, study)


def _check_run(made_for: str, study: Study) -> None:
    named = len(made_for) <= _LONGEST_RUN and made_for.isprintable()
    _expect(named, "the run of a release", "a short printable name", "another")
    _expect(not made_for or study.noise == "moment", "an answer", "no release of an earlier run", "one")


def _check_array(what: str, value: Array | None, shape: tuple[int, ...], largest: float) -> None:
    if value is None or value.shape != shape:
        raise _malformed(what, f"the shape {shape}", "none" if value is None else value.shape)
    peak = _largest(value)
    _expect(math.isfinite(peak), what, "finite numbers", "others")
    _expect(peak <= largest, what, f"numbers of at most {largest:.3g}", "a larger one")


def _largest(value: Array) -> float:
    return max(float(value.max(initial=0.0)), -float(value.min(initial=0.0)))


def _check_number(what: str, value: float | None, least: float, largest: float) -> None:
    possible = value is not None and max(least, -LARGEST_EXACT) <= value <= min(largest, LARGEST_EXACT)
    _expect(possible, what, "a number in its range", "none" if value is None else f"{value:g}")


def _check_absent(what: str, value: object) -> None:
    _expect(value is None, "an answer", f"not {what}, which was not asked for", "one")


def _expect(holds: bool, what: str, must: str, got: object) -> None:
    if not holds:
        raise _malformed(what, must, got)


def _malformed(what: str, must: str, got: object) -> _MalformedError:
    return _MalformedError(f"{what} must have {must}, got {got}")
