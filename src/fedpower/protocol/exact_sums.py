"""Exact numbers in secure sums: whole multiples of a public step, and a silo's side of such a study.

Nothing is noised here, so nothing is differentially private: what masks hide is which silo a number is
from. The step is a power of two that follows from a first sum, which tells the largest silo's order of
magnitude and nothing else; docs/secure-aggregation.md says what exact sums can give away.
"""

import math
import secrets
import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, ProtocolError
from fedpower.linalg import is_orthonormal, lower_of
from fedpower.privacy.preparation import SCORES
from fedpower.privacy.statement import EXACT_SCORES
from fedpower.protocol.exchange import Round
from fedpower.protocol.messages import (
    AskSum,
    CallRoll,
    KeyGone,
    MaskedSum,
    Present,
)
from fedpower.protocol.releases import Moment
from fedpower.protocol.roll import Exchanging, Identity, Roll, exchanged
from fedpower.protocol.score_sums import cells
from fedpower.protocol.secure_releases import (
    MaskChain,
    RollReleases,
    Words,
    question_of,
)
from fedpower.protocol.study import Study, SumTerms, scores_sum

Array = NDArray[np.float64]

MEAN_RANGE = "range of the mean"
MEAN = "mean"
RANGE = "range"
SQUARES = "squares"
PRODUCT = "product"
"""What is summed, in this order: the first two where rows are centred, and squares or products last."""

MOST_PRODUCTS = 200
"""Of one attempt: what a study that iterates agrees on unless it asks for fewer."""

LEAST_EXPONENT = -1073
"""2^e above the smallest positive float64; float64 ends below 2^1024."""

_N_EXPONENTS = 1024 - LEAST_EXPONENT + 1

_RING_BITS = 62
"""A sum stays below 2^62 of the ring's 2^63, so that rounding does not matter."""


def exact_sums(
    *,
    n_features: int,
    iteration_rank: int,
    center: bool,
    n_products: int | None,
    scores: bool = False,
) -> tuple[SumTerms, ...]:
    """Return the secure sums of an exact study; none has a share of a budget.

    Parameters
    ----------
    n_features, iteration_rank, center
        d, r, and whether rows are centred on the pooled mean.
    n_products
        How many products there may be; None where the moment itself is summed.
    scores
        Whether rows are counted by their scores in the end.
    """
    d, last = n_features, (scores_sum(0.0),) if scores else ()
    sums = [SumTerms(MEAN_RANGE, _N_EXPONENTS, 0.0), SumTerms(MEAN, d, 0.0)] if center else []
    sums.append(SumTerms(RANGE, _N_EXPONENTS, 0.0))
    if n_products is None:
        return (*sums, SumTerms(SQUARES, d * (d + 1) // 2 + 1, 0.0), *last)
    size = d * iteration_rank + 1
    products = (SumTerms(f"{PRODUCT} {n + 1}", size, 0.0) for n in range(n_products))
    return (*sums, *products, *last)


def exponent_words(value: float) -> Words:
    """Return words whose sum over silos tells the largest one's power of two, and nothing else.

    The value lies below 2^e for the least e that is told by it. There is a word for each e: drawn from
    all 2⁶⁴ by the operating system up to the silo's own, and 0 beyond. Where any silo has drawn, the sum
    is uniform, whoever else has; where none has, it is 0. So the sum tells the largest e, but for a
    probability of 2⁻⁶⁴ that it tells a smaller one.
    """
    if not math.isfinite(value):
        raise InputError(
            "rows must have squares that float64 can hold to be summed, got larger ones; give the "
            "columns in larger units, or public scales"
        )
    words = np.zeros(_N_EXPONENTS, dtype="<u8")
    if value > 0:
        # A little more, for rounding: what is summed later must not be above it.
        _, exponent = math.frexp(min(value * (1 + 2.0**-30), 2.0**1023))
        drawn = max(exponent - LEAST_EXPONENT, 0) + 1
        words[:drawn] = np.frombuffer(secrets.token_bytes(8 * drawn), dtype="<u8")
    return words


def largest_exponent(total: NDArray[np.int64]) -> int:
    """Return the e that a sum of :func:`exponent_words` tells: all silos' values lie below 2^e."""
    told = np.flatnonzero(total)
    return LEAST_EXPONENT + (int(told[-1]) if told.size else 0)


def step_bits(exponent: int, n_silos: int) -> int:
    """Return b: numbers below 2^e of m silos are summed as whole multiples of 2^(−b).

    b = 62 − e − ⌈log₂ m⌉, so that the sum of all stays below 2⁶² steps.
    """
    return _RING_BITS - exponent - (n_silos - 1).bit_length()


def rounding_of_sum(exponent: int, n_silos: int) -> float:
    """Return how far a number of a sum can be off: half a step for each silo."""
    return math.ldexp(n_silos / 2, -step_bits(exponent, n_silos))


def whole_steps(values: Array, exponent: int, n_silos: int) -> NDArray[np.int64]:
    """Return numbers as the nearest whole numbers of steps, modulo 2⁶⁴.

    Whatever range a coordinator sends, sums modulo 2⁶⁴ are all that it gets.
    """
    steps = np.rint(np.ldexp(np.asarray(values, dtype=np.float64), step_bits(exponent, n_silos)))
    steps = np.fmod(steps, 2.0**64)
    steps = np.where(steps >= 2.0**63, steps - 2.0**64, steps)
    return np.where(steps < -(2.0**63), steps + 2.0**64, steps).astype(np.int64)


def from_steps(total: NDArray[np.int64], exponent: int, n_silos: int) -> Array:
    """Return the numbers that a sum of whole steps stands for."""
    return np.ldexp(total.astype(np.float64), -step_bits(exponent, n_silos))


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """What silos compute a sum with.

    Attributes
    ----------
    exponent
        e of the range; `LEAST_EXPONENT` where it is yet to be found.
    center
        The pooled mean, where rows are taken about it.
    block
        W with orthonormal columns, where A_iW is asked for.
    """

    exponent: int = LEAST_EXPONENT
    center: Array | None = None
    block: Array | None = None

    def to_bytes(self) -> bytes:
        """Return the exponent, the number of numbers of the centre and of the block, and these."""
        center = np.empty(0) if self.center is None else self.center
        block = np.empty(0) if self.block is None else self.block
        return (
            _HEAD.pack(self.exponent, center.size, block.size)
            + np.asarray(center, dtype="<f8").tobytes()
            + np.asarray(block, dtype="<f8").tobytes()
        )

    @classmethod
    def from_bytes(cls, public: bytes, study: Study, label: str) -> "Question":
        """Return the question of the sum ``label`` in ``public``; refuse what is none."""
        d, kind = study.n_features, PRODUCT if label.startswith(PRODUCT) else label
        centred = study.center and kind in (RANGE, SQUARES, PRODUCT)
        if len(public) < _HEAD.size:
            raise ProtocolError(_NO_QUESTION)
        exponent, n_center, n_block = _HEAD.unpack_from(public)
        columns = n_block // d
        if (
            len(public) != _HEAD.size + 8 * (n_center + n_block)
            or not LEAST_EXPONENT <= exponent <= 1024
            or n_center != (d if centred else 0)
            or n_block != columns * d
            or not (1 <= columns <= study.iteration_rank if kind == PRODUCT else columns == 0)
        ):
            raise ProtocolError(_NO_QUESTION)
        numbers = np.frombuffer(public, dtype="<f8", offset=_HEAD.size).astype(np.float64)
        center = numbers[:n_center] if centred else None
        block = numbers[n_center:].reshape(d, columns) if columns else None
        if not np.isfinite(numbers).all() or (block is not None and not is_orthonormal(block)):
            raise ProtocolError(
                "a centre must be finite and a block have orthonormal columns to 1e-6, got others; send "
                "such"
            )
        return cls(exponent=exponent, center=center, block=block)


_HEAD = struct.Struct("<qQQ")

_NO_QUESTION = (
    "a question of an exact secure sum must be a range, and a centre and a block where the sum has them, "
    "got other bytes; send what the sums before give"
)


def own_words(moment: Moment, study: Study, label: str, public: bytes, n_silos: int) -> Words:
    """Return a silo's whole numbers for one sum, before masks.

    Parameters
    ----------
    moment
        Its rows.
    study, label, public
        What is asked for.
    n_silos
        On the roll.
    """
    if label == SCORES:
        return cells(moment, study, public).view(np.uint64)
    asked = Question.from_bytes(public, study, label)
    rows = moment.n_rows
    if label == MEAN_RANGE:
        return exponent_words(rows * float(np.abs(moment.mean()).max()))
    if label == MEAN:
        return whole_steps(rows * moment.mean(), asked.exponent, n_silos).view(np.uint64)
    trace = rows * moment.trace(asked.center)
    if label == RANGE:
        if study.network == "edge":  # whose trace is 0, and bounds nothing
            trace = float(np.abs(moment.moment()).max())
        return exponent_words(trace)
    if label == SQUARES:
        numbers = rows * lower_of(moment.moment(asked.center))
    else:
        assert asked.block is not None
        # Of fewer columns than agreed on the rest are zeros: sizes of messages tell nothing.
        numbers = np.zeros(study.n_features * study.iteration_rank)
        product = rows * moment.product(asked.block, asked.center)
        numbers[: product.size] = product.ravel()
    return whole_steps(np.append(numbers, trace), asked.exponent, n_silos).view(np.uint64)


def notes_of(study: Study, sizes: Mapping[str, int], rounds: Sequence[Round]) -> tuple[str, ...]:
    """Return what the statement of an exact fit over secure sums must say: who saw what.

    Parameters
    ----------
    study
        The terms.
    sizes
        Rows of the silos that were summed.
    rounds
        The record.
    """
    m, n = len(sizes), sum(sizes.values())
    labels = [label for label, _, _ in study.sums]
    steps = {each.step for each in rounds if each.kind == MaskedSum.kind}
    products = sum(labels[step - 1].startswith(PRODUCT) for step in steps)
    seen = ["the mean row"] if study.center else []
    told = ""
    if products:
        seen.append(
            f"{products} products of the pooled second moment with blocks of {study.iteration_rank} "
            "columns that it chose, and that moment's trace"
        )
        asked = products * study.iteration_rank
        spanned = min(n - 1 if study.center else n, study.n_features)
        told = (
            ", which together tell that moment whole"
            if asked >= spanned
            else f", which tell what that moment does to {asked} of the {spanned} directions that the "
            "rows can span"
        )
    else:
        seen.append("the whole second moment of all rows")
    blocks = " and the blocks" if products else ""
    told_silos = (
        f"the pooled mean{blocks}" if study.center else "the blocks" if products else "the range"
    )
    together = (
        "one that puts what it added beside the coordinator's sums knows what the other added"
        if m == 2
        else f"{m - 1} that put what they added beside the coordinator's sums know what the last one "
        "added"
    )
    notes = [
        f"the coordinator read sums over {m} silos and nothing of a single one: {', '.join(seen)}"
        f"{told}. It also read a power of two above the largest silo's sums",
        "these sums are exact, and NOT differentially private. Whoever knows all rows but one can "
        "compute that one from them, up to its sign"
        + (
            ". From an exact mean of many columns it can be tested whether somebody whose row is known "
            "is among the rows"
            if study.center
            else ""
        ),
        f"every silo read {told_silos}, and the result. {together[0].upper()}{together[1:]}",
        "each silo takes part with the same silos only for as long as it runs. Two runs over different "
        "silos would tell by their difference what one of them added",
        "numbers were summed as whole multiples of a public step. Each is off by at most "
        f"{2 * rounding_of_sum(0, m):.1g} of the largest silo's sum of squares",
    ]
    if study.scores:
        notes.append(EXACT_SCORES)
    if m == 2:
        notes.insert(
            3,
            "with 2 silos little is hidden between them. Each can take its own part off what it reads, "
            "and what is left is the other's share",
        )
    return tuple(notes)


class ExactSecureReleases(RollReleases):
    """A silo's side of secure sums of which nothing is noised, and nothing charged.

    A question is answered once, as where sums are noised. Without noise two sums over different silos
    tell what one of them added by their difference. So once the first sum over a roll was had, which
    tells a power of two and no more, this silo takes part with the silos of that roll and with no others,
    for as long as it runs.

    Parameters
    ----------
    name, moment, study, identity, exchange
        See :class:`RollReleases`.
    """

    def __init__(
        self,
        name: str,
        moment: Moment,
        study: Study,
        *,
        identity: Identity,
        exchange: Exchanging = exchanged,
    ) -> None:
        super().__init__(name, moment, study, identity=identity, exchange=exchange)
        self._taken = ("", 0)  # the run, and in how many attempts this silo has uploaded
        self._last: tuple[bytes, Words] | None = None
        self._company: tuple[str, ...] | None = None

    @property
    def attempts_charged(self) -> int:
        """In how many attempts of the present run this silo has uploaded."""
        return self._taken[1]

    def check_affordable(self) -> None:
        """Do nothing: there is no charge."""

    def present(self, ask: CallRoll, *, run: str) -> Present:
        """Return this silo's place for an attempt, under a key made now; asked again, the same."""
        if isinstance(run, str) and self._taken[0] != run:
            self._taken = (run, 0)
        if self.attempts_charged >= self._study.attempts:
            raise ProtocolError(
                f"a run must keep to the {self._study.attempts} attempts at its secure sums that the "
                "study agreed on, got one more; begin a new run"
            )
        return super().present(ask, run=run)

    def masked_sum(self, ask: AskSum, *, run: str) -> MaskedSum | KeyGone:
        """Return this silo's part of one of the sums over a roll, masked.

        In the study's order, each once; the last one again gets the same bytes.
        """
        terms = self._terms(ask)
        roll, own = self._checked(ask.roll, run)
        question = question_of(ask)
        with self._lock:
            self._check_company(roll, ask.index)
            if ask.label == SCORES:
                self._leave_out_products(roll, ask.index)
            attempt = self._bound_attempt(roll, own, ask.index, question)
            if attempt is None:
                return KeyGone()
            if attempt.done > ask.index:
                if self._last is None or self._last[0] != roll.digest + question:
                    return KeyGone()  # an earlier one, which is not kept
                return MaskedSum(words=self._last[1], charged=self.attempts_charged)
            assert isinstance(attempt.chain, MaskChain)
            words = own_words(self._moment, self._study, ask.label, ask.public, len(roll.places))
            assert words.shape == (terms.size,), "numbers are what the study lists"
            masked = attempt.chain.masked(words, question=question)
            if ask.index == 0:
                self._taken = (run, self._taken[1] + 1)
            else:
                self._company = tuple(roll.sizes)
            attempt.done += 1
            attempt.chain.advance()
            self._last = (roll.digest + question, masked)
            return MaskedSum(words=masked, charged=self.attempts_charged)

    def _leave_out_products(self, roll: Roll, index: int) -> None:
        """Go on to the last sum where products were had: a study lists as many as there may be."""
        attempt = self._attempt
        if attempt is None or not attempt.done or attempt.roll != roll.digest:
            return
        done = self._study.sums[attempt.done - 1].label
        if attempt.done < index and done.startswith(PRODUCT):
            attempt.asked += [b""] * (index - len(attempt.asked))
            attempt.done = index

    def _check_company(self, roll: Roll, index: int) -> None:
        """Refuse a sum over other silos than those with which exact numbers were summed before."""
        if index and self._company not in (None, tuple(roll.sizes)):
            raise ProtocolError(
                "exact sums must all be over the same silos, for the difference of two tells what one "
                "silo added, got a roll of others than before; bring all of those back, or start the "
                "silos anew"
            )
