"""Moment upload: one round, d(d+1)/2 numbers a silo, and the eigendecomposition at the coordinator.

Cheapest in bytes while d is small, exact, and free of any bias from heterogeneity. In a private study it
is the release that `moment` mode makes anyway.
"""

from dataclasses import dataclass

import numpy as np
import scipy.linalg
from numpy.typing import NDArray

from fedpower.errors import ProtocolError
from fedpower.protocol.exchange import Ask, Exchange
from fedpower.protocol.messages import AskMoment, PackedMoment, read_only
from fedpower.protocol.solvers.opening import enrol
from fedpower.protocol.solvers.solution import Solution, rank_for

Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class UploadSettings:
    """What to make of the pooled moment.

    Attributes
    ----------
    n_features, rank, iteration_rank
        d; k or a fraction of variance; the number of eigenpairs to return, at least k.
    """

    n_features: int
    rank: int | float
    iteration_rank: int


def upload(settings: UploadSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` from the pooled moment Σ w_i A_i.

    About the pooled mean μ, Σ w_i A_i = Σ w_i [C_i + (μ_i − μ)(μ_i − μ)ᵀ] with C_i about the silo's own
    mean: no cancellation, however far the means are from the origin. Silos that did not answer by the
    deadline are left out, weights and all.
    """
    del rng  # nothing is random here
    sizes = yield from enrol(settings.n_features)
    opened = yield Ask(body=AskMoment(), silos=tuple(sizes), step=1)
    answers: dict[str, PackedMoment] = opened.answers
    moment, center, total = pool(answers, sizes, settings.n_features)
    opened.notes["change"] = 0.0
    return decompose(
        moment,
        center=center,
        total_variance=total,
        sizes=sizes,
        rank=settings.rank,
        iteration_rank=settings.iteration_rank,
    )


def decompose(
    moment: Array,
    *,
    center: Array | None,
    total_variance: float,
    sizes: dict[str, int],
    rank: int | float,
    iteration_rank: int,
) -> Solution:
    """Return the :class:`Solution` that the eigendecomposition of a pooled moment gives."""
    dim = moment.shape[0]
    count = dim if isinstance(rank, float) else iteration_rank
    values, vectors = scipy.linalg.eigh(moment, subset_by_index=[dim - count, dim - 1])
    values, vectors = values[::-1], np.ascontiguousarray(vectors[:, ::-1])
    return Solution(
        basis=vectors,
        values=values,
        vectors=vectors,
        rank=rank_for(rank, values, total_variance) if isinstance(rank, float) else rank,
        total_variance=total_variance,
        center=center,
        sizes=sizes,
        n_steps=1,
        change=0.0,
        converged=True,
    )


def pool(
    answers: dict[str, PackedMoment], sizes: dict[str, int], n_features: int
) -> tuple[Array, Array | None, float]:
    """Return (pooled moment, pooled mean or None, its trace) of the silos that answered."""
    rows, columns = np.tril_indices(n_features)
    weights = np.array([sizes[name] for name in answers], dtype=np.float64)
    weights /= weights.sum()
    for name, answer in answers.items():
        if answer.triangle.shape != rows.shape:
            raise ProtocolError(
                f"a moment must have {rows.size} numbers for {n_features} columns, but silo {name!r} "
                f"sent {answer.triangle.size}; check its columns"
            )
    triangle = np.zeros(rows.size)
    for weight, answer in zip(weights, answers.values(), strict=True):
        triangle += weight * answer.triangle
    total = float(weights @ [answer.total_variance for answer in answers.values()])
    moment = np.empty((n_features, n_features))
    moment[rows, columns] = moment[columns, rows] = triangle
    means = [answer.mean for answer in answers.values() if answer.mean is not None]
    if len(means) < len(answers):
        return moment, None, total
    stacked = np.array(means)
    center = weights @ stacked
    apart = stacked - center
    moment += (apart.T * weights) @ apart
    return moment, read_only(center), total + float(weights @ np.einsum("ij,ij->i", apart, apart))
