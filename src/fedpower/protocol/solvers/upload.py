"""Upload: the pooled moment in one sum, and its eigendecomposition at the coordinator."""

from collections.abc import Generator
from dataclasses import replace
from functools import partial

import numpy as np

from fedpower.linalg import Array, blas, spectrum_and_leading
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.pooled import FLOOR_STDS, Pooled, clipping_of, fixed, unit_variances
from fedpower.protocol.query import vectors_to_bytes
from fedpower.protocol.solvers.angles import Directions, exact_angles, moment_angles
from fedpower.protocol.solvers.preparation import find_code_book
from fedpower.protocol.solvers.shared import Solution, SolverSettings, rank_for
from fedpower.protocol.solvers.sums import Sums, counted_scores, summed
from fedpower.rules.codebook import CodeBook

_SMALL = 200  # columns


def solve(settings: SolverSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the :class:`Solution`; nothing is random here."""
    return summed(settings.study, partial(script, settings), run=run)


def script(settings: SolverSettings, sums: Sums) -> Generator[Ask, Round, Solution]:
    study, book, public = settings.study, settings.code_book, b""
    if study.preparation:
        book = yield from find_code_book(sums)
        public = vectors_to_bytes((book.low, book.high, book.offset, book.scale), book.bound)
    pooled = yield from sums.moment(public)
    # Columns are divided by their own deviations before anything is lost beside another.
    if not (study.is_private or settings.standardize or study.network == "edge"):
        pooled = replace(pooled, remarks=(*pooled.remarks, *_imprecise(pooled.covariance)))
    pooled = pooled.of_columns(book)
    # Threads of BLAS would only wait for each other.
    with blas().limit(limits=1 if len(pooled.covariance) <= _SMALL else None):
        solution = decompose(settings, pooled, sums.sizes, book)
    solution = replace(
        solution,
        code_book=book if study.preparation else None,
        pooled=pooled if settings.keep_covariance else None,
        hides_silos=sums.hides_silos,
    )
    return (yield from counted_scores(sums, solution))


def decompose(
    settings: SolverSettings, pooled: Pooled, sizes: dict[str, int], book: CodeBook | None
) -> Solution:
    """Return the :class:`Solution` that the eigendecomposition of a pooled covariance gives."""
    rank, covariance, total_variance = settings.rank, pooled.covariance, pooled.total_variance
    dim = covariance.shape[0]
    # Without either, columns are left in units of the treated rows.
    gains = drawn = None if book is None else fixed(book.units)
    if settings.standardize:
        gains = unit_variances(pooled.noise_std, settings.study.groups)
        # What a column's small variance may really be is part of how sure the components are.
        drawn = unit_variances(pooled.noise_std, settings.study.groups, clear=FLOOR_STDS)
    taken = None
    if gains is not None:
        taken = gains(np.diagonal(covariance))
        covariance = covariance * np.outer(taken, taken)
        total_variance = float(np.trace(covariance))
    count = settings.study.iteration_rank if isinstance(rank, int) else dim
    spectrum, vectors = spectrum_and_leading(covariance, count)
    values, vectors = spectrum[:count], np.ascontiguousarray(vectors)
    clipping = cut = None
    if pooled.noise_std > 0 and settings.shortens:
        counted = None if book is None else book.clipped
        own = spectrum if taken is None or counted else np.linalg.eigvalsh(pooled.covariance)[::-1]
        clipping = clipping_of(
            np.asarray(own, dtype=np.float64),
            counted=counted,
            n_features=dim,
            trace=pooled.total_variance,
            center=pooled.center,
            std=pooled.noise_std,
        )
    if clipping is not None:
        cut = clipping.moves(dim, None if book is None else book.outside)

    def directions(first: int) -> Directions:
        if pooled.noise_std > 0:
            return moment_angles(pooled, first, pairs=(spectrum, vectors), gains=gains, drawn=drawn, cut=cut)
        return exact_angles(spectrum, first, n_features=dim)

    if isinstance(rank, float):
        kept = np.maximum(directions(1).variances, 0.0)
        rank = rank_for(rank, kept, max(total_variance, float(kept.sum())))
    # All columns together span everything, whatever the noise: that is nothing to be found out.
    found = directions(rank if isinstance(rank, int) else max(dim - (pooled.noise_std > 0), 1))
    n_components = rank if isinstance(rank, int) else found.angles.n_kept
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=n_components,
        total_variance=total_variance,
        center=pooled.center,
        sizes=sizes,
        spectrum=spectrum,
        directions=found.first(n_components),
        clipping=clipping,
        remarks=pooled.remarks,
        gains=taken,
    )


def _imprecise(covariance: Array) -> list[str]:
    """Return a remark where float64 cannot hold the variances of an exact covariance."""
    variances = np.diagonal(covariance)
    largest = float(variances.max(initial=0.0))
    if largest < np.finfo(np.float64).tiny / np.finfo(np.float64).eps:
        return [
            "the rows have no variance that float64 can represent, so the axes are arbitrary; use larger "
            "units, unless all columns are constant"
        ]
    rounding = len(variances) * np.finfo(np.float64).eps * largest
    lost = int(np.count_nonzero((variances > 0) & (variances < rounding)))
    if not lost:
        return []
    columns = "1 column varies" if lost == 1 else f"{lost} columns vary"
    return [
        f"{columns} less than the rounding error of the largest ({rounding:.1g}), so results for them are "
        "meaningless; give scales, or use solver='krylov'"
    ]
