"""Clipped iterates: products with public bases, each row's part bounded before noise is made for it."""

import functools
import math
from collections.abc import Generator
from dataclasses import dataclass, field

import numpy as np

from fedpower.linalg import Array, JointFit, NoisedProduct, joint_subspace, leading_pairs, orth, rayleigh_ritz
from fedpower.privacy.budget import CLIP, COVARIANCE, MEAN, SCORES
from fedpower.protocol.coordinator import Ask, Exchange, Round
from fedpower.protocol.messages import read_only
from fedpower.protocol.query import Product, RowSum, width_of
from fedpower.protocol.solvers.shared import Solution, SolverSettings
from fedpower.protocol.solvers.sums import Sums, counted_scores, summed
from fedpower.protocol.study import NoiseLaw
from fedpower.sums.lattice import LEAST_CLIP, SIDE, ClippedQuestion, clipped_scale

_BLOCKS = 12  # of a Krylov space in which a noised moment's leading eigenvectors are found
_NORMS = 400  # quantiles of a chi distribution that stand for the norms of clipped coordinates


def solve(settings: SolverSettings, rng: np.random.Generator, run: str = "") -> Exchange:
    """Return the :class:`Solution` that clipped products give, over plain or secure sums."""
    study, rank = settings.study, int(settings.rank)
    begin = rng.standard_normal((study.n_features, study.iteration_rank))

    def script(sums: Sums) -> Generator[Ask, Round, Solution]:  # of one start in all attempts
        return (yield from counted_scores(sums, (yield from iterate(sums, begin, rank=rank))))

    return summed(study, script, run=run)


@dataclass(slots=True)
class _Known:
    """What the sums so far show."""

    dim: int
    rank: int
    moment: NoisedProduct | None = None
    held: float | None = None
    center: Array | None = None
    mean_std: float = 0.0
    traces: list[tuple[float, float]] = field(default_factory=list)
    products: list[NoisedProduct] = field(default_factory=list)

    @property
    def trace(self) -> float:
        """Tr A from all estimates, between 0 and 1."""
        weights = np.array([1.0 / std**2 for _, std in self.traces])
        values = np.array([value for value, _ in self.traces])
        return float(np.clip(weights @ values / weights.sum(), 1e-12, 1.0)) if self.traces else 1.0

    @property
    def level(self) -> float:
        """The variance of any other direction: what the k leave, shared equally."""
        if self.held is None or self.dim <= self.rank:
            return self.trace / self.dim
        return max(self.trace - self.held, 0.0) / (self.dim - self.rank)

    def fit(self, width: int, start: Array | None) -> JointFit:
        """Return what all of it shows together, and update what the components hold."""
        level = self.level
        found = joint_subspace(
            self.products,
            rank=width,
            level=level,
            moment=self.moment,
            start=None if self.moment is None else start,
        )
        self.held = float(np.sum(found.captured[: self.rank])) + self.rank * level
        return found


def iterate(sums: Sums, begin: Array, *, rank: int) -> Generator[Ask, Round, Solution]:
    """Return what clipped iterates give; ``begin``, d×r, has the start of a cold one."""
    study = sums.study
    known = _Known(dim=study.n_features, rank=rank)
    labels = [terms.label for terms in study.queries]
    steps = [label for label in labels if label not in (COVARIANCE, MEAN, SCORES)]
    width = width_of(study, steps[0])
    basis = orth(begin[:, :width])
    energy = width / study.n_features
    if COVARIANCE in labels:
        found = yield from sums.moment()
        known.center, std = found.center, found.noise_std
        known.traces.append((found.total_variance, std))
        known.moment = NoisedProduct(product=found.covariance, basis=basis, precision=2.0 / std**2)
        known.mean_std = std / (math.sqrt(2.0) * study.mean_weight) if study.center else 0.0
        basis, held = _from_moment(found.covariance, std, basis, known.trace)
        level = known.trace / known.dim
        energy = float(np.clip(held.sum() + width * level, width / known.dim * known.trace, 1.0))
        known.held = float(held[:rank].sum()) + rank * level
    if MEAN in labels:
        total = yield from sums.total(RowSum(n_features=study.n_features))
        rows = total.n_rows * float(SIDE)
        known.center, known.mean_std = total.values / rows, total.stds[0] / rows
    if known.center is not None:
        known.center = known.center / max(1.0, float(np.linalg.norm(known.center)))
    for place, label in enumerate(steps):
        clip = min(max(CLIP * math.sqrt(energy), LEAST_CLIP), 1.0)
        question = ClippedQuestion.of(basis, clip, known.center)
        product, std, kept = yield from _ask(sums, label, question, known)
        known.products.append(
            NoisedProduct(product=product / kept, basis=question.real_basis, precision=(kept / std) ** 2)
        )
        last = place + 1 == len(steps)
        width = rank if last else width_of(study, steps[place + 1])
        fit = known.fit(width, basis)
        if not last:
            basis = fit.basis[:, :width]
            level = known.level
            energy = float(np.clip(fit.captured[:width].sum() + width * level, width * level, 1.0))
    values, turn = np.linalg.eigh(fit.core[:rank, :rank])
    vectors = fit.basis[:, :rank] @ turn[:, ::-1]
    return Solution(
        basis=vectors,
        values=values[::-1].copy(),
        vectors=vectors,
        rank=rank,
        total_variance=known.trace,
        center=None if known.center is None else read_only(known.center),
        sizes=sums.sizes,
        hides_silos=sums.hides_silos,
        n_steps=len(steps),
        last_values=rayleigh_ritz(question.real_basis, product)[0] / kept,
        law=NoiseLaw(once=False, std=std / kept, mean_std=known.mean_std),
    )


def _ask(
    sums: Sums, label: str, question: ClippedQuestion, known: _Known
) -> Generator[Ask, Round, tuple[Array, float, float]]:
    """Return Y = mean of y·c(Zᵀy)ᵀ plus noise, the noise, and which part of AZ clipping leaves in it."""
    query = Product(label=label, question=question)
    found = yield from sums.total(query)
    shape = question.basis.shape
    unit = found.n_rows * clipped_scale(question.clip)
    product = found.values[:-1].reshape(shape) / unit
    kappa, std = query.kappa * float(found.n_rows), found.stds[0]
    known.traces.append((float(found.values[-1]) / kappa, std / kappa))
    seen = float(np.sum(question.real_basis * product))
    return product, std / unit, _kept(seen, question.clip, shape[1])


def _kept(seen: float, clip: float, width: int) -> float:
    """Return E‖p‖‖c(p)‖/E‖p‖² for normal coordinates p whose E‖p‖‖c(p)‖ is as ``seen``."""
    import scipy.optimize  # noqa: PLC0415

    least = 1e-4 * clip**2
    if seen <= least * part_kept(least, clip, width):
        return 1.0
    if seen >= part_kept(1.0, clip, width):
        return part_kept(1.0, clip, width)
    energy = scipy.optimize.brentq(lambda held: held * part_kept(held, clip, width) - seen, least, 1.0)
    return part_kept(energy, clip, width)


def part_kept(energy: float, clip: float, width: int) -> float:
    """Return E‖p‖‖c(p)‖/E‖p‖² for r normal coordinates with E‖p‖² = ``energy``."""
    lengths = math.sqrt(energy) * _norms(width)
    return float(np.mean(lengths * np.minimum(lengths, clip))) / energy


@functools.lru_cache(maxsize=64)
def _norms(width: int) -> Array:
    places = (np.arange(_NORMS) + 0.5) / _NORMS
    import scipy.special  # noqa: PLC0415

    return np.sqrt(2 * scipy.special.gammaincinv(width / 2, places)) / math.sqrt(width)


def _from_moment(covariance: Array, std: float, start: Array, trace: float) -> tuple[Array, Array]:
    """Return the leading eigenvectors of a noised covariance, and what each holds beyond the average."""
    values, vectors = leading_pairs(lambda block: covariance @ block, start, _BLOCKS)
    spread = len(covariance) * std**2 / 2.0
    above = np.maximum(values - trace / len(covariance), 0.0)
    root = np.sqrt(np.maximum(above**2 - 4.0 * spread, 0.0))
    theta = np.where(root > 0, (above + root) / 2.0, 0.0)
    held = np.where(theta > 0, theta - spread / np.maximum(theta, 1e-300), 0.0)
    return orth(vectors), np.maximum(held, 0.0)
