"""Block Krylov with Rayleigh–Ritz at the coordinator: few rounds, no bias from heterogeneity.

Each round asks for A·W for a new orthonormal block W; Rayleigh–Ritz over all blocks so far gives the
best that any combination of them can give. Two things make the next block better than the residual.

*Lookahead*: silos take a second local step from the same block, which costs no round (see
:class:`Products`). *Preconditioning* [Davidson 1975]: what each silo said gives a Nyström model of its
moment (see :class:`Evidence`), the models' weighted sum is a model of the pooled moment that is exact on
all blocks, and its leading eigenvectors say where to look next. The models are the better the more the
silos differ: heterogeneity, which biases local steps, is information here.

Deviation: none of this is in the paper; results are those of pooled data to ``tol``.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import orth
from fedpower.linalg.rayleigh_ritz import leading_pairs
from fedpower.protocol.exchange import Exchange
from fedpower.protocol.solvers.averaged import averaged
from fedpower.protocol.solvers.evidence import Evidence
from fedpower.protocol.solvers.expansion import MODEL_PRODUCTS, Expansion
from fedpower.protocol.solvers.opening import enrol, pooled_mean
from fedpower.protocol.solvers.participation import Participation, Turnout
from fedpower.protocol.solvers.power import Floor, Noise, Shift
from fedpower.protocol.solvers.products import Products
from fedpower.protocol.solvers.signal import judge
from fedpower.protocol.solvers.solution import Solution
from fedpower.protocol.weights import Weights, masses

Array = NDArray[np.float64]

FRACTION_BLOCK = 16
"""Columns of a block where the number of components is to be found."""

RANDOM_COLUMNS = 2
"""Columns of a warm start that stay random."""

MOST_BYTES = 2**30
"""What the coordinator keeps of all silos' answers, where the choice is left to it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KrylovSettings:
    """How to iterate.

    Attributes
    ----------
    n_features, rank, iteration_rank
        d; k, or a fraction of variance that the components must explain; r ≥ k, the width of a block.
    tol, max_rounds
        Stop once the error estimate ‖R_k‖₂/(θ_k − θ_{k+1}) is at most ``tol`` or the residual is
        rounding; or after so many exchanges, whatever they were for.
    n_steps
        T where each product is noised and paid for (``step``, ``paper``): T blocks are asked and no
        fewer, and products are averaged instead of extrapolated from. None where products are free.
    warm, warm_steps
        Open with local steps at the silos from a random basis, and start from what they found.
    lookahead
        Two local steps a round and the silos' models: about half the rounds for 3/2 of their bytes.
        Without it and without ``warm`` the result depends on the silos' moments through their sum alone.
    max_basis
        Columns of V at most; beyond, it is restarted with the leading Ritz vectors. The coordinator
        holds 2 × d × max_basis numbers, and twice that for each silo. None takes ten blocks, or as many,
        three at least, as fit in a gigabyte. Plays no part where ``rank`` is a fraction.
    n_participants, participation, max_reasks
        K, how K silos are found, and how often the others are asked for the same block: None asks until
        each was asked once, and twice more where a deadline passed. With fewer, what is missing is
        filled in (see :class:`Products`), the error estimate says by how much that may be off, and once
        that outweighs the residual the products are asked for anew.
    center
        Whether to centre on the pooled mean.
    shift
        Gives the c that makes a noised moment positive: for local steps and models only, Rayleigh–Ritz
        takes the algebraically largest.
    noise
        Gives the law of the pooled noise, by which components are judged; None without noise.
    weights
        How silos weigh in what is pooled.
    """

    n_features: int
    rank: int | float
    iteration_rank: int
    tol: float = 1e-9
    max_rounds: int | None = None
    n_steps: int | None = None
    warm: bool = True
    warm_steps: int = 24
    lookahead: bool = True
    max_basis: int | None = None
    n_participants: int | None = None
    participation: Participation = "sampled"
    max_reasks: int | None = None
    center: bool = False
    shift: Shift | None = None
    floor: Floor | None = None
    noise: Noise | None = None
    weights: Weights = "rows"


def krylov(settings: KrylovSettings, rng: np.random.Generator) -> Exchange:
    """Return the :class:`Solution` by block Krylov and Rayleigh–Ritz over the pooled products."""
    sizes = yield from enrol()
    center = None
    if settings.center:
        center, told = yield from pooled_mean(masses(sizes, settings.weights))
        sizes = {name: sizes[name] for name in told}
    turnout = Turnout(
        sizes=masses(sizes, settings.weights),
        rng=rng,
        n_participants=settings.n_participants,
        participation=settings.participation,
    )
    free = settings.n_steps is None
    shift = settings.shift(sizes, 2) if settings.shift is not None else 0.0
    most = _max_basis(settings, len(sizes))
    products = Products(
        turnout,
        center=center,
        evidence={name: Evidence(settings.n_features, shift=shift, most=2 * most) for name in sizes}
        if free
        else None,
        lookahead=free and settings.lookahead,
        max_reasks=settings.max_reasks,
        max_rounds=settings.max_rounds,
    )
    start = orth(rng.standard_normal((settings.n_features, _block_width(settings))))
    if settings.n_steps is not None:
        assert not isinstance(settings.rank, float), "a private study has a given rank"
        outcome = yield from averaged(products, start, settings.rank, settings.n_steps)
    else:
        if settings.warm and settings.max_rounds != 1:
            start = yield from _warm_start(products, start, settings, shift)
        expansion = Expansion(
            products,
            rank=settings.rank,
            tol=settings.tol
            if settings.floor is None
            else max(settings.tol, settings.floor(sizes)),
            lookahead=settings.lookahead,
            max_basis=None if isinstance(settings.rank, float) else most,
            rng=rng,
        )
        outcome = yield from expansion.run(start)
    basis, product, heard = outcome.pop("told_by")
    total = products.total_variance
    signal = None
    if settings.noise is not None and heard and (center is None or len(heard) == len(sizes)):
        norm = 0.0 if center is None else float(np.linalg.norm(center))
        law = settings.noise({name: sizes[name] for name in heard}, norm)
        signal = judge(basis, product, law=law, center=center, total_variance=total)
    return Solution(**outcome, total_variance=total, center=center, sizes=sizes, signal=signal)


def _warm_start(
    products: Products, start: Array, settings: KrylovSettings, shift: float
) -> Exchange:
    """Return the leading directions of Σ w_i N_i, each N_i from the silo's own leading directions.

    Deviation: [FP]'s one-shot averages the rotated bases themselves; weighing them by what the silos
    say of their variance is better the more the silos differ (benchmarks/rounds.py).

    Columns beyond k stay random, two at most, and where there are none all are moved a little: local
    steps damp a direction that all silos share below rounding where each has stronger ones of its own,
    and what no block holds Krylov never finds.
    """
    bases: dict[str, Array] = yield from products.warm(start, settings.warm_steps, shift)
    first = next(iter(bases.values()))
    leading: Array = leading_pairs(products.model, first, 2 * MODEL_PRODUCTS)[1]
    width = leading.shape[1]
    trusted = width // 2 if isinstance(settings.rank, float) else settings.rank
    kept = min(RANDOM_COLUMNS, max(width - trusted, 0))
    if not kept:
        return orth(leading + 1e-3 * start[:, :width])
    return orth(np.hstack([leading[:, : width - kept], start[:, :kept]]))


def _block_width(settings: KrylovSettings) -> int:
    if isinstance(settings.rank, float):
        return min(settings.n_features, FRACTION_BLOCK)
    return min(settings.n_features, settings.iteration_rank)


def _max_basis(settings: KrylovSettings, n_silos: int) -> int:
    """Return the bound on V's columns, three blocks at least."""
    width = _block_width(settings)
    asked = settings.max_basis
    if asked is None:
        asked = min(10 * width, MOST_BYTES // (32 * settings.n_features * n_silos))
    return min(settings.n_features, max(asked, 3 * width))
