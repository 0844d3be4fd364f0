"""Exact fits of which the coordinator sees sums alone: of the moment, or of krylov's products."""

import math
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import Sentence
from fedpower.linalg import orth, symmetric_of
from fedpower.protocol.exact_sums import (
    MEAN,
    MEAN_RANGE,
    PRODUCT,
    RANGE,
    SQUARES,
    Question,
    from_steps,
    largest_exponent,
    rounding_of_sum,
)
from fedpower.protocol.exchange import Ask, Exchange, Round
from fedpower.protocol.messages import read_only
from fedpower.protocol.pooled import Pooled
from fedpower.protocol.solvers.krylov import FRACTION_BLOCK, MOST_BYTES, Expansion
from fedpower.protocol.solvers.products import Product
from fedpower.protocol.solvers.scores import summed_scores
from fedpower.protocol.solvers.shared import Solution, enrol
from fedpower.protocol.solvers.sums import Sums, secure_sums
from fedpower.protocol.solvers.upload import decompose
from fedpower.protocol.study import Study

Array = NDArray[np.float64]

_DIGITS = 1e6
"""A column's variance is well known where it is so many times the rounding of the sums."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ExactSumsSettings:
    """What to make of exact sums.

    Attributes
    ----------
    study
        The terms; they list the sums.
    rank
        k, or a fraction of variance.
    solver
        Whether the moment is summed, or products.
    tol
        See :class:`KrylovSettings`.
    standardize, keep_moment
        See :class:`UploadSettings`; products leave no moment to keep.
    run
        The run's identity, which silos sign; given by whoever makes the coordinator.
    """

    study: Study
    rank: int | float
    solver: Literal["moment", "krylov"]
    tol: float = 1e-9
    standardize: bool = False
    keep_moment: bool = False
    run: str = ""


def exact_secure(settings: ExactSumsSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from sums over all silos; nothing is noised.

    A sum tells the order of magnitude of the largest silo's numbers, and so the step of those that
    follow: the mean's, if rows are centred, then the moment's about that mean, or one product after
    another. Every attempt asks the same of the silos.
    """
    enrolled = yield from enrol()
    seed = int(rng.integers(2**63))

    def script(sums: Sums) -> Generator[Ask, Round, Solution]:
        center = None
        if settings.study.center:
            exponent = yield from _range(sums, MEAN_RANGE, None)
            mean = yield from _numbers(sums, MEAN, Question(exponent=exponent))
            center = read_only(mean)
        exponent = yield from _range(sums, RANGE, center)
        if settings.solver == "moment":
            found = yield from _from_squares(sums, settings, center, exponent)
        else:
            found = yield from _iterated(sums, settings, center, exponent, seed)
        return (yield from summed_scores(sums, found))

    return (
        yield from secure_sums(settings.study, run=settings.run, enrolled=enrolled, script=script)
    )


def _range(sums: Sums, label: str, center: Array | None) -> Generator[Ask, Round, int]:
    """Return e: what every silo adds to the next sums lies below 2^e."""
    total = yield from sums.words(label, Question(center=center).to_bytes())
    return largest_exponent(total)


def _numbers(sums: Sums, label: str, question: Question) -> Generator[Ask, Round, Array]:
    """Return a sum of the silos' numbers over the number of all rows."""
    total = yield from sums.words(label, question.to_bytes())
    summed = from_steps(total, question.exponent, len(sums.sizes))
    return np.asarray(summed / sum(sums.sizes.values()))


def _from_squares(
    sums: Sums, settings: ExactSumsSettings, center: Array | None, exponent: int
) -> Generator[Ask, Round, Solution]:
    """Return the solution from the pooled moment about the pooled mean."""
    study = settings.study
    found = yield from _numbers(sums, SQUARES, Question(exponent=exponent, center=center))
    moment = symmetric_of(found[:-1], study.n_features)
    remarks: tuple[str, ...] = ()
    if settings.standardize:
        remarks = _coarse(np.diagonal(moment), exponent, sums)
    pooled = Pooled(moment=moment, center=center, total_variance=float(found[-1]), remarks=remarks)
    solution = decompose(
        pooled,
        sizes=sums.sizes,
        rank=settings.rank,
        iteration_rank=study.iteration_rank,
        standardize=settings.standardize,
        groups=study.groups,
    )
    return replace(solution, pooled=pooled) if settings.keep_moment else solution


def _coarse(variances: Array, exponent: int, sums: Sums) -> tuple[str, ...]:
    """Return a sentence on columns whose variance is small beside the rounding of the sums."""
    rounding = rounding_of_sum(exponent, len(sums.sizes)) / sum(sums.sizes.values())
    lost = int(np.count_nonzero(variances < _DIGITS * rounding))
    if not lost:
        return ()
    return (
        Sentence(
            "{columns} so little beside the others, if at all, that sums of whole steps hold less than "
            "six digits of it; give public scales for the columns, or {aggregation:plain}",
            columns="1 column varies" if lost == 1 else f"{lost} columns vary",
        ),
    )


@dataclass(slots=True, kw_only=True)
class _SummedProducts:
    """Products of the pooled moment, each a secure sum; what :class:`Expansion` asks."""

    sums: Sums
    center: Array | None
    exponent: int
    n_products: int
    step: int = field(default=0, init=False)
    total_variance: float = field(default=math.nan, init=False)

    @property
    def exhausted(self) -> bool:
        """Whether the study lists no further product."""
        return self.step >= self.n_products

    def multiply(self, block: Array) -> Exchange:
        """Return the :class:`Product` of the pooled moment and an orthonormal block."""
        self.step += 1
        question = Question(exponent=self.exponent, center=self.center, block=block)
        found = yield from _numbers(self.sums, f"{PRODUCT} {self.step}", question)
        self.total_variance = float(found[-1])
        assert self.sums.last is not None
        return Product(
            value=found[: block.size].reshape(block.shape).copy(),
            completeness=1.0,
            doubt=0.0,
            can_improve=False,
            closed=self.sums.last,
            heard=tuple(self.sums.sizes),
        )

    def model(self, block: Array) -> Array:
        """Return nothing: of single silos nothing is known."""
        return np.zeros_like(block)


def most_columns(n_features: int, width: int) -> int:
    """Return the bound on V's columns: the coordinator holds V and AV, and nothing of a silo."""
    return min(n_features, max(3 * width, MOST_BYTES // (16 * n_features)))


def _iterated(
    sums: Sums, settings: ExactSumsSettings, center: Array | None, exponent: int, seed: int
) -> Generator[Ask, Round, Solution]:
    """Return the solution by block Krylov and Rayleigh–Ritz over summed products."""
    study, rng = settings.study, np.random.default_rng(seed)
    by_share = isinstance(settings.rank, float)
    width = min(FRACTION_BLOCK, study.n_features) if by_share else study.iteration_rank
    products = _SummedProducts(
        sums=sums,
        center=center,
        exponent=exponent,
        n_products=sum(each.label.startswith(PRODUCT) for each in study.sums),
    )
    expansion = Expansion(
        products,
        rank=settings.rank,
        tol=settings.tol,
        lookahead=False,
        max_basis=None if by_share else most_columns(study.n_features, width),
        rng=rng,
    )
    start = orth(rng.standard_normal((study.n_features, width)))
    outcome = yield from expansion.run(start)
    outcome.pop("told_by")
    return Solution(
        **outcome, total_variance=products.total_variance, center=center, sizes=sums.sizes
    )
