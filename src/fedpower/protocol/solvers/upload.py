"""Moment upload: one round, d(d+1)/2 numbers a silo, and the eigendecomposition at the coordinator."""

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, replace

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedpower.linalg import symmetric_of
from fedpower.linalg.symmetric import eigenvalues
from fedpower.privacy.publication import Smoothing, key_of
from fedpower.privacy.sensitivity import MEAN_WEIGHT, pack, unpack
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import AskMoment, PackedMoment, read_only
from fedpower.protocol.pooled import Pooled, moment_clipping
from fedpower.protocol.preparation import Answered, find_code_book
from fedpower.protocol.query import Tally, tally_parts, vectors_to_bytes
from fedpower.protocol.solvers.angles import Angles, exact_angles, moment_angles
from fedpower.protocol.solvers.gains import Gains, Groups, fixed, unit_variances
from fedpower.protocol.solvers.scores import counted_scores
from fedpower.protocol.solvers.shared import Rank, Solution, enrol, rank_for
from fedpower.protocol.solvers.sums import Sums, secure_sums, summed
from fedpower.protocol.study import Study, Weights, budget_of, masses, pooled_std
from fedpower.rules.codebook import CodeBook

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """What to make of the pooled moment."""

    n_features: int
    rank: Rank
    iteration_rank: int
    noise: Callable[[Mapping[str, int]], float] | None = None
    smoothing: Callable[[Mapping[str, int]], Smoothing | None] | None = None
    weights: Weights = "rows"
    preparation: Study | None = None
    code_book: CodeBook | None = None
    mean_weight: float = MEAN_WEIGHT
    standardize: bool = False
    groups: Groups = ()
    keep_moment: bool = False
    shortens: bool = False
    adjacency: bool = False


def upload(settings: UploadSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment Σ w_i A_i."""
    del rng  # nothing is random here
    sizes = yield from enrol()
    book = None
    question = AskMoment()
    if settings.preparation is not None:
        sums = Sums(study=settings.preparation, sizes=sizes)
        book = yield from prepare(sums)
        sizes = sums.sizes
        question = AskMoment(public=_treated_by(book))
    opened = yield Ask(body=question, silos=tuple(sizes), step=1)
    answers: dict[str, PackedMoment] = opened.answers
    moment, center, total = pool(answers, masses(sizes, settings.weights), settings.n_features)
    opened.notes["change"] = 0.0
    heard = {name: sizes[name] for name in answers}
    smooth = None if settings.smoothing is None else settings.smoothing(heard)
    if smooth is not None:
        weight = settings.mean_weight
        moment, center, total = smoothed(moment, center, total, smooth, key=_key(answers), mean_weight=weight)
    remarks = []
    if settings.noise is None:
        remarks = _copies(answers, heard)
        # Columns are divided by their own deviations before anything is lost beside another.
        exempt = settings.standardize or settings.adjacency
        remarks += [] if exempt else _imprecise(moment)
    known = book or settings.code_book
    pooled = Pooled(
        moment=moment,
        center=center,
        total_variance=total,
        noise_std=0.0 if settings.noise is None else settings.noise(heard),
        mean_weight=settings.mean_weight,
        remarks=tuple(remarks),
    ).of_columns(known)
    solution = decompose(
        pooled,
        gains_of(pooled, standardize=settings.standardize, book=known, groups=settings.groups),
        sizes=heard,
        rank=settings.rank,
        iteration_rank=settings.iteration_rank,
        book=known,
        shortens=settings.shortens,
    )
    kept = pooled if settings.keep_moment else None
    return replace(solution, code_book=book, pooled=kept)


def prepare(sums: Sums) -> Generator[Ask, Round, CodeBook]:
    """Return the code book that sums of the silos' tallies give; the moment is next."""
    study = sums.study
    budget = budget_of(study)
    assert budget is not None, "only a private study prepares"
    search = find_code_book(budget, study.columns, study.ranges, study.groups)
    stage, parts = next(search), tally_parts(study)
    while True:
        query = Tally(stage=stage, per_unit=study.counted_per_unit)
        # The first of a masked attempt is counted; a plain one has not begun before the moment.
        found = yield from sums.total(query, step=None if sums.session is not None else 0)
        answered = Answered(
            sums=found.values / parts,
            stds=tuple(std / parts for std in found.stds),
            n_rows=sum(sums.sizes.values()),
        )
        try:
            stage = search.send(answered)
        except StopIteration as stop:
            book: CodeBook = stop.value
            return book


def _treated_by(book: CodeBook) -> bytes:
    """Return how silos treat the rows whose moment is asked for."""
    return vectors_to_bytes((book.low, book.high, book.offset, book.scale), book.bound)


@dataclass(frozen=True, slots=True, kw_only=True)
class PrepareSettings:
    """Preparation alone, for a code book that later fits use."""

    study: Study
    run: str = ""


def preparation(settings: PrepareSettings, rng: np.random.Generator) -> Exchange:
    """Return the code book that the silos' tallies give, and nothing after it."""
    del rng  # nothing is random here
    sizes = yield from enrol()
    return (yield from summed(settings.study, run=settings.run, enrolled=sizes, script=prepare))


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
    """Return a sentence where float64 cannot hold what the columns of an exact moment vary by."""
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
        (
            f"{columns} less than the rounding errors of the largest ({rounding:.1g}): "
            "variances below that are not to be trusted; give scales for the columns, or take "
            "solver='krylov'"
        )
    ]


def gains_of(
    pooled: Pooled, *, standardize: bool, book: CodeBook | None, groups: Groups = ()
) -> Gains | None:
    """Return what columns are multiplied by; None where they are left in units of the treated rows."""
    if standardize:
        return unit_variances(pooled.noise_std, groups)
    return None if book is None else fixed(book.units)


def decompose(
    pooled: Pooled,
    gains: Gains | None,
    *,
    sizes: dict[str, int],
    rank: Rank,
    iteration_rank: int,
    book: CodeBook | None = None,
    shortens: bool = False,
) -> Solution:
    """Return the :class:`Solution` that the eigendecomposition of a pooled moment gives."""
    moment, total_variance = pooled.moment, pooled.total_variance
    dim = moment.shape[0]
    taken = None
    if gains is not None:
        taken = gains(np.diagonal(moment))
        moment = moment * np.outer(taken, taken)
        total_variance = float(np.trace(moment))
    count = iteration_rank if isinstance(rank, int) else dim
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=[dim - count, dim - 1])
    values, vectors = values[::-1], np.ascontiguousarray(vectors[:, ::-1])
    spectrum = values if count == dim else eigenvalues(moment)
    clipping = None
    if pooled.noise_std > 0 and shortens:
        clipping = moment_clipping(pooled, None if book is None else book.clipped)
    outside = None if book is None else book.outside
    cut = None if clipping is None else clipping.moves(dim, outside)

    def angles_of(first: int) -> Angles:
        if pooled.noise_std > 0:
            pairs = (spectrum, vectors)
            return moment_angles(pooled, first, pairs=pairs, gains=gains, cut=cut)
        return exact_angles(spectrum, first, n_features=dim)

    if isinstance(rank, float):
        kept = np.maximum(angles_of(1).variances, 0.0)
        rank = rank_for(rank, kept, max(total_variance, float(kept.sum())))
    # All columns together span everything, whatever the noise: that is nothing to be found out.
    most = rank if isinstance(rank, int) else max(dim - (pooled.noise_std > 0), 1)
    angles = angles_of(most)
    found = rank if isinstance(rank, int) else max(angles.n_determined, 1)
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=found,
        total_variance=total_variance,
        center=pooled.center,
        sizes=sizes,
        n_steps=1,
        change=0.0,
        converged=True,
        spectrum=spectrum,
        angles=angles.first(found),
        clipping=clipping,
        remarks=pooled.remarks,
        gains=taken,
        treated_variance=pooled.total_variance,
    )


def smoothed(
    moment: Array,
    center: Array | None,
    total: float,
    smooth: Smoothing,
    *,
    key: bytes,
    mean_weight: float = MEAN_WEIGHT,
) -> tuple[Array, Array | None, float]:
    """Return a pooled moment, mean and trace with a little noise more: all that may be published."""
    if center is not None:
        moment, total = moment + np.outer(center, center), total + float(center @ center)
    vector = smooth(pack(moment, center, total, mean_weight), key)
    moment, center, total = unpack(vector, len(moment), with_mean=center is not None, mean_weight=mean_weight)
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
    """Return (pooled moment, pooled mean or None, its trace) of the silos that answered."""
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
    """What to make of the sum."""

    study: Study
    rank: Rank
    standardize: bool = False
    keep_moment: bool = False
    code_book: CodeBook | None = None
    shortens: bool = False
    run: str = ""


def secure(settings: SecureSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment, of which the coordinator sees nothing else."""
    del rng  # nothing is random here
    enrolled = yield from enrol()

    def script(sums: Sums) -> Generator[Ask, Round, Solution]:
        book = (yield from prepare(sums)) if settings.study.preparation else None
        found = yield from sums.moment(b"" if book is None else _treated_by(book))
        return (yield from counted_scores(sums, _solution(found, sums.sizes, settings, book)))

    return (yield from secure_sums(settings.study, run=settings.run, enrolled=enrolled, script=script))


def _solution(
    found: tuple[Array, Array | None, float],
    sizes: dict[str, int],
    settings: SecureSettings,
    book: CodeBook | None = None,
) -> Solution:
    """Return the solution from the noised moment of all rows."""
    study = settings.study
    budget = budget_of(study)
    assert budget is not None
    moment, mean, trace = found
    known = book or settings.code_book
    pooled = Pooled(
        moment=moment,
        center=None if mean is None else read_only(mean),
        total_variance=trace,
        noise_std=pooled_std(budget, sizes),
        mean_weight=study.mean_weight,
    ).of_columns(known)
    solution = decompose(
        pooled,
        gains_of(pooled, standardize=settings.standardize, book=known, groups=study.groups),
        sizes=sizes,
        rank=settings.rank,
        iteration_rank=study.iteration_rank,
        book=known,
        shortens=settings.shortens,
    )
    kept = pooled if settings.keep_moment else None
    return replace(solution, code_book=book, pooled=kept)
