"""Moment upload: one round, d(d+1)/2 numbers a silo, and the eigendecomposition at the coordinator.

Cheapest in bytes while d is small, exact, and free of any bias from heterogeneity. In a private study it
is the release that `moment` mode makes anyway.
"""

import math
from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedpower.data.codebook import CodeBook
from fedpower.data.survey import CELL_SIDE, Stage
from fedpower.errors import Sentence
from fedpower.linalg import symmetric_of
from fedpower.privacy.publication import Smoothing, key_of
from fedpower.privacy.sensitivity import MEAN_WEIGHT, pack, unpack
from fedpower.protocol.exchange import Ask, Exchange, Round
from fedpower.protocol.messages import (
    AskMoment,
    AskPreparedMoment,
    AskTally,
    PackedMoment,
    Tally,
    read_only,
)
from fedpower.protocol.pooled import Pooled
from fedpower.protocol.preparation import Answered, find_code_book, pooled_answer
from fedpower.protocol.prepared_sums import moved_by_a_row, tally_parts, to_public
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.solvers.scores import summed_scores
from fedpower.protocol.solvers.shared import Solution, enrol, rank_for
from fedpower.protocol.solvers.signal import Rank, chosen_rank, eigenvalues, find_signal
from fedpower.protocol.solvers.sums import Sums, secure_sums
from fedpower.protocol.study import Study
from fedpower.protocol.weights import Weights, masses

Array = NDArray[np.float64]
_Groups = tuple[tuple[int, ...], ...]
"""Places of columns that are the levels of one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """What to make of the pooled moment.

    Attributes
    ----------
    n_features, rank, iteration_rank
        d; k, a fraction of variance or ``"noise"``; the number of eigenpairs to return, at least k.
    noise
        From the sizes of the silos that answered to the σ of their pooled noise; None without any.
    smoothing
        Likewise to what is added to the sum before anything is computed from it; None adds nothing.
    kept
        Whether the silos have ledgers that outlive this run, so that the same releases can be had again.
    weights
        How silos weigh in the pooled moment.
    preparation
        The study, where rows are prepared privately before the moment; else None.
    mean_weight
        c of the joint release of moment, mean and trace.
    standardize
        Whether columns are divided by their standard deviations, as the moment's diagonal gives them.
    groups
        Places of columns that are then divided by the deviation that they have together.
    keep_moment
        Whether the solution holds the pooled moment too.
    adjacency
        Whether it is the adjacency of networks, whose diagonal is 0.
    """

    n_features: int
    rank: Rank
    iteration_rank: int
    noise: Callable[[Mapping[str, int]], float] | None = None
    smoothing: Callable[[Mapping[str, int]], Smoothing | None] | None = None
    kept: bool = True
    weights: Weights = "rows"
    preparation: Study | None = None
    mean_weight: float = MEAN_WEIGHT
    standardize: bool = False
    groups: _Groups = ()
    keep_moment: bool = False
    adjacency: bool = False


def upload(settings: UploadSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment Σ w_i A_i.

    About the pooled mean μ, Σ w_i A_i = Σ w_i [C_i + (μ_i − μ)(μ_i − μ)ᵀ] with C_i about the silo's own
    mean: no cancellation, however far the means are from the origin. Silos that did not answer by the
    deadline are left out, weights and all.
    """
    del rng  # nothing is random here
    sizes = yield from enrol()
    book = None
    question: AskMoment | AskPreparedMoment = AskMoment()
    if settings.preparation is not None:
        book, sizes = yield from prepare(settings.preparation, sizes)
        question = AskPreparedMoment(
            low=book.low, high=book.high, offset=book.offset, scale=book.scale, bound=book.bound
        )
    opened = yield Ask(body=question, silos=tuple(sizes), step=1)
    answers: dict[str, PackedMoment] = opened.answers
    moment, center, total = pool(answers, masses(sizes, settings.weights), settings.n_features)
    opened.notes["change"] = 0.0
    heard = {name: sizes[name] for name in answers}
    smooth = None if settings.smoothing is None else settings.smoothing(heard)
    if smooth is not None:
        weight = settings.mean_weight
        moment, center, total = smoothed(
            moment, center, total, smooth, key=_key(answers), mean_weight=weight
        )
    remarks = []
    if settings.noise is None:
        remarks = _copies(answers, heard)
        # Columns are divided by their own deviations before anything is lost beside another.
        exempt = settings.standardize or settings.adjacency
        remarks += [] if exempt else _imprecise(moment)
    pooled = Pooled(
        moment=moment,
        center=center,
        total_variance=total,
        noise_std=0.0 if settings.noise is None else settings.noise(heard),
        mean_weight=settings.mean_weight,
        kept=settings.kept,
        remarks=tuple(remarks),
    )
    solution = decompose(
        pooled,
        sizes=heard,
        rank=settings.rank,
        iteration_rank=settings.iteration_rank,
        standardize=settings.standardize,
        groups=settings.groups,
        code_book=book,
    )
    return replace(solution, pooled=pooled) if settings.keep_moment else solution


def prepare(
    study: Study, sizes: dict[str, int]
) -> Generator[Ask, Round, tuple[CodeBook, dict[str, int]]]:
    """Return the code book that the silos' tallies give, and the silos that answered all of them.

    Who misses a tally is asked for nothing more: what it told stays in the sums it was in.
    """
    budget = budget_of(study)
    assert budget is not None, "only a private study prepares"

    def answer(stage: Stage) -> Generator[Ask, Round, Answered]:
        nonlocal sizes
        ask = AskTally(
            stage=stage.kind,
            low=_sent(stage.low),
            high=_sent(stage.high),
            offset=_sent(stage.offset),
            scale=_sent(stage.scale),
        )
        opened = yield Ask(body=ask, silos=tuple(sizes), step=0)
        answers: dict[str, Tally] = opened.answers
        sizes = {name: sizes[name] for name in answers}
        return pooled_answer(
            {name: each.counts for name, each in answers.items()},
            sizes,
            budget.stage_scales(stage.kind, CELL_SIDE),
            budget.tally_parts,
        )

    book = yield from _searched(study, answer)
    return book, sizes


def _searched(
    study: Study, answer: Callable[[Stage], Generator[Ask, Round, Answered]]
) -> Generator[Ask, Round, CodeBook]:
    """Return the code book that pooled answers give; ``answer`` asks silos for one stage."""
    budget = budget_of(study)
    assert budget is not None, "only a private study prepares"
    search = find_code_book(budget, study.columns, study.ranges, study.groups)
    stage = next(search)
    while True:
        answered = yield from answer(stage)
        try:
            stage = search.send(answered)
        except StopIteration as stop:
            book: CodeBook = stop.value
            return book


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSettings:
    """Preparation alone, for a code book that later fits use.

    Attributes
    ----------
    study
        The terms: those of the fit that it would be a part of, whose moment is not asked for.
    run
        The run's identity, which silos of secure sums sign.
    """

    study: Study
    run: str = ""


def preparation(settings: PrepareSettings, rng: np.random.Generator) -> Exchange:
    """Return the code book that the silos' tallies give, and nothing after it.

    With secure sums, of which each is charged by itself, the sum of the moments is not called for.
    """
    del rng  # nothing is random here
    sizes = yield from enrol()
    if settings.study.aggregation == "secure":
        return (
            yield from secure_sums(
                settings.study, run=settings.run, enrolled=sizes, script=_prepare_securely
            )
        )
    book, _ = yield from prepare(settings.study, sizes)
    return book


def _sent(values: Array | None) -> Array | None:
    return None if values is None else read_only(values)


def _copies(answers: dict[str, PackedMoment], sizes: dict[str, int]) -> list[str]:
    """Return a sentence for each silo whose exact moment is another's; rows of zeros tell nothing."""
    first: dict[tuple[int, bytes], str] = {}
    said = []
    for name, answer in answers.items():
        if answer.triangle.any():
            known = first.setdefault((sizes[name], answer.triangle.tobytes()), name)
            if known != name:
                said.append(same_rows(known, name))
    return said


def same_rows(one: str, other: str) -> str:
    """Return what to say of two silos that hold the same rows."""
    return (
        f"silos {one!r} and {other!r} hold the same rows, which then count twice; leave one out unless "
        "that is meant"
    )


def _imprecise(moment: Array) -> list[str]:
    """Return a sentence where float64 cannot hold what the columns of an exact moment vary by.

    An eigendecomposition is off by about d·eps of the largest eigenvalue [Weyl]: columns that vary less
    than that beside another are lost in its rounding, and their variances with them. Squares below the
    smallest normal number have lost digits, or all of them.
    """
    variances = np.diagonal(moment)
    largest = float(variances.max(initial=0.0))
    if largest < np.finfo(np.float64).tiny / np.finfo(np.float64).eps:
        return [
            "the rows show no variance that float64 can hold, so the axes are arbitrary; give the "
            "columns in larger units, unless they are constant"
        ]
    rounding = len(variances) * np.finfo(np.float64).eps * largest
    lost = int(np.count_nonzero((variances > 0) & (variances < rounding)))
    if not lost:
        return []
    columns = "1 column varies" if lost == 1 else f"{lost} columns vary"
    return [
        Sentence(
            "{columns} less than the rounding errors of the largest ({rounding:.1g}): variances below "
            "that are not to be trusted; give scales for the columns, or take {solver:krylov}",
            columns=columns,
            rounding=rounding,
        )
    ]


def decompose(
    pooled: Pooled,
    *,
    sizes: dict[str, int],
    rank: Rank,
    iteration_rank: int,
    standardize: bool = False,
    groups: _Groups = (),
    code_book: CodeBook | None = None,
) -> Solution:
    """Return the :class:`Solution` that the eigendecomposition of a pooled moment gives.

    A rank that is no number is found among the components that stand above the moment's noise (see
    :func:`chosen_rank`).
    """
    moment, center, noise_std = pooled.moment, pooled.center, pooled.noise_std
    total_variance = pooled.total_variance
    dim = moment.shape[0]
    deviations = None
    if standardize:
        deviations = _spread_of(moment, noise_std, groups)
        moment = moment / np.outer(deviations, deviations)
        total_variance = float(np.trace(moment))
        noise_std *= spread_noise(deviations)
    middle = center if center is None or deviations is None else center / deviations
    count = iteration_rank if isinstance(rank, int) else dim
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=[dim - count, dim - 1])
    values, vectors = values[::-1], np.ascontiguousarray(vectors[:, ::-1])
    spectrum = values if count == dim else eigenvalues(moment)
    signal = None
    if noise_std > 0:
        signal = find_signal(
            moment,
            (spectrum, vectors),
            center=middle,
            total_variance=total_variance,
            std=noise_std,
            mean_weight=pooled.mean_weight,
        )
    if not isinstance(rank, int):
        if signal is not None:
            rank = chosen_rank(rank, signal, kept=pooled.kept)
        else:
            assert isinstance(rank, float), "without noise there is nothing to stand above"
            rank = rank_for(rank, values, total_variance)
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=rank,
        total_variance=total_variance,
        center=center,
        sizes=sizes,
        n_steps=1,
        change=0.0,
        converged=True,
        spectrum=spectrum,
        signal=signal,
        remarks=pooled.remarks,
        deviations=deviations,
        code_book=code_book,
    )


_FLOOR_STDS = 2.0
"""A column's variance is taken to be at least so many standard deviations of its noise."""

_CLEAR_STDS = 10.0
"""One below so many is taken to be at least a quarter of what most columns have: it may be anything."""


def _spread_of(moment: Array, noise_std: float, groups: _Groups = ()) -> Array:
    """Return the standard deviation of each column from the moment's diagonal, floored at the noise.

    A column without variance, where nothing is noised, is divided by 1, as scikit-learn does. Columns of
    a group are divided by the deviation that they have together: a category has variance 1 in all, as a
    number has, and a level that few rows have is not blown up to as much as the others.
    """
    variances = np.diagonal(moment).copy()
    for group in map(list, groups):
        variances[group] = np.sum(variances[group])
    if noise_std > 0:
        usual = float(np.median(variances)) / 4.0
        least = max(_FLOOR_STDS * noise_std, min(_CLEAR_STDS * noise_std, usual))
        return np.asarray(np.sqrt(np.maximum(variances, least)))
    return np.asarray(np.sqrt(np.where(variances > 0, variances, 1.0)))


def spread_noise(deviations: Array) -> float:
    """Return by what the noise's edge grows where columns are divided by their deviations.

    Entries of variance τ²g_jg_l/2, g = 1/v, have a spectrum that ends at x, where
    x² = τ²/2 · min_r Σ_j g_j/(r(1 − g_jr)) over 0 < r < 1/max g: the edge of the solution m_j of
    −1/m_j = z + τ²g_j/2 · Σ_l g_lm_l [AEK17]. With equal g it is gτ√(2d), r = 1/2g.
    """
    import scipy.optimize  # noqa: PLC0415 - a third of a second, which silos' processes need not wait

    gains = 1.0 / deviations**2
    gains, unit = gains / gains.max(), float(gains.max())

    def squared(r: float) -> float:
        return float(np.sum(gains / (1.0 - gains * r)) / r)

    least = scipy.optimize.minimize_scalar(squared, bounds=(1e-9, 1.0 - 1e-9), method="bounded")
    return unit * math.sqrt(float(least.fun) / (4.0 * gains.size))


def smoothed(
    moment: Array,
    center: Array | None,
    total: float,
    smooth: Smoothing,
    *,
    key: bytes,
    mean_weight: float = MEAN_WEIGHT,
) -> tuple[Array, Array | None, float]:
    """Return a pooled moment, mean and trace with a little noise more: all that may be published.

    The sum of the silos' releases is that about the origin; it is centred again afterwards.
    """
    if center is not None:
        moment, total = moment + np.outer(center, center), total + float(center @ center)
    vector = smooth(pack(moment, center, total, mean_weight), key)
    moment, center, total = unpack(
        vector, len(moment), with_mean=center is not None, mean_weight=mean_weight
    )
    if center is None:
        return moment, None, total
    return moment - np.outer(center, center), read_only(center), total - float(center @ center)


def _key(answers: Mapping[str, PackedMoment]) -> bytes:
    """Return a key that only those who know everybody's noised moment can tell."""
    return key_of(
        {
            name: [
                part
                for part in (answer.triangle, answer.mean, np.array([answer.total_variance]))
                if part is not None
            ]
            for name, answer in answers.items()
        }
    )


def pool(
    answers: dict[str, PackedMoment], sizes: dict[str, int], n_features: int
) -> tuple[Array, Array | None, float]:
    """Return (pooled moment, pooled mean or None, its trace) of the silos that answered.

    ``sizes`` are what they weigh in proportion to.
    """
    weights = np.array([sizes[name] for name in answers], dtype=np.float64)
    weights /= weights.sum()
    triangle = np.zeros(n_features * (n_features + 1) // 2)
    for weight, answer in zip(weights, answers.values(), strict=True):
        triangle += weight * answer.triangle
    total = float(weights @ [answer.total_variance for answer in answers.values()])
    moment = symmetric_of(triangle, n_features)
    means = [answer.mean for answer in answers.values() if answer.mean is not None]
    if len(means) < len(answers):
        return moment, None, total
    stacked = np.array(means)
    center = weights @ stacked
    apart = stacked - center
    moment += (apart.T * weights) @ apart
    return moment, read_only(center), total + float(weights @ np.einsum("ij,ij->i", apart, apart))


@dataclass(frozen=True, slots=True, kw_only=True)
class SecureSettings:
    """What to make of the sum.

    Attributes
    ----------
    study
        The terms; they hold the silos' identities and how many attempts there may be.
    rank
        k, a fraction of variance, or ``"noise"``.
    standardize, keep_moment
        See :class:`UploadSettings`.
    run
        The run's identity, which silos sign; given by whoever makes the coordinator.
    """

    study: Study
    rank: Rank
    standardize: bool = False
    keep_moment: bool = False
    run: str = ""


def secure(settings: SecureSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment, of which the coordinator sees nothing else.

    Two rounds, if everybody who answers the roll call uploads; see :func:`secure_sums` for when not. One
    more for each stage of preparation, where rows are prepared privately.
    """
    del rng  # nothing is random here
    enrolled = yield from enrol()

    def script(sums: Sums) -> Generator[Ask, Round, Solution]:
        if not settings.study.preparation:
            vector = yield from sums.moment()
            found = _solution(vector, sums.sizes, settings)
            return (yield from summed_scores(sums, found))
        book = yield from _prepare_securely(sums)
        vector = yield from sums.moment(
            to_public((book.low, book.high, book.offset, book.scale), book.bound)
        )
        found = _solution(vector, sums.sizes, settings, book)
        return (yield from summed_scores(sums, found))

    return (
        yield from secure_sums(settings.study, run=settings.run, enrolled=enrolled, script=script)
    )


def _prepare_securely(sums: Sums) -> Generator[Ask, Round, CodeBook]:
    """Return the code book that secure sums of the silos' tallies give; the moment's sum is next."""
    study = sums.study

    def answer(stage: Stage) -> Generator[Ask, Round, Answered]:
        moved, per_row = moved_by_a_row(study, stage.kind)
        public = to_public((stage.low, stage.high, stage.offset, stage.scale))
        total = yield from sums.total(stage.kind, public, sensitivity=moved, per_row=per_row)
        parts = tally_parts(study)
        values, std = total.values / parts, total.std / parts
        stds: tuple[float, ...] = (std,)
        if stage.kind == "means":  # the first half is Q times as large, for one scale of noise
            values[: study.n_features] /= CELL_SIDE
            stds = (std / CELL_SIDE, std)
        return Answered(sums=values, stds=stds, n_rows=sum(sums.sizes.values()))

    return (yield from _searched(study, answer))


def _solution(
    vector: Array, sizes: dict[str, int], settings: SecureSettings, book: CodeBook | None = None
) -> Solution:
    """Return the solution from the packed, noised summary of all rows."""
    study = settings.study
    budget = budget_of(study)
    assert budget is not None
    moment, mean, trace = unpack(
        vector, study.n_features, with_mean=study.center, mean_weight=study.mean_weight
    )
    if mean is not None:
        moment -= np.outer(mean, mean)
        trace -= float(mean @ mean)
    pooled = Pooled(
        moment=moment,
        center=None if mean is None else read_only(mean),
        total_variance=trace,
        noise_std=pooled_std(budget, sizes),
        mean_weight=study.mean_weight,
        kept=False,
    )
    solution = decompose(
        pooled,
        sizes=sizes,
        rank=settings.rank,
        iteration_rank=study.iteration_rank,
        standardize=settings.standardize,
        groups=study.groups,
        code_book=book,
    )
    return replace(solution, pooled=pooled) if settings.keep_moment else solution
