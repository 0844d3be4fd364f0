"""Clipped iterates before the run: the real solver on sums made up from a spectrum."""

from collections.abc import Generator
from dataclasses import dataclass, field
from fractions import Fraction

import numpy as np
from numpy.typing import NDArray

from fedpower.linalg import sin_theta
from fedpower.privacy.budget import MOMENT
from fedpower.privacy.clipped import MEAN
from fedpower.privacy.preparation import SCORES
from fedpower.privacy.sensitivity import summary_size
from fedpower.privacy.shares import sum_noise
from fedpower.protocol.clipped_sums import product_noise, width_of
from fedpower.protocol.exchange import Ask, Round
from fedpower.protocol.private_study import budget_of
from fedpower.protocol.solvers.clipped import ClippedSettings, iterate, part_kept
from fedpower.protocol.solvers.sums import Total
from fedpower.protocol.study import Study, SumTerms
from fedpower.sums.clipped_product import ClippedQuestion, clipped_scale

Array = NDArray[np.float64]


@dataclass(slots=True, kw_only=True)
class _MadeUpSums:
    """Sums over rows that are nobody's, of normal coordinates with the moment diag(λ)."""

    study: Study
    sizes: dict[str, int]
    spectrum: Array
    times: float
    rng: np.random.Generator
    n_done: int = field(default=0, init=False)

    def total(
        self, label: str, public: bytes = b"", *, sensitivity: Fraction | float, per_row: int
    ) -> Generator[Ask, Round, Total]:
        """Return the study's next sum."""
        yield from ()
        budget = budget_of(self.study)
        assert budget is not None
        rows = sum(self.sizes.values())
        noise = sum_noise(
            budget.price_of_sum(self.n_done).multiplier,
            sensitivity=sensitivity,
            per_row=per_row,
            sizes=(rows,),
            colluders=0,
        )
        self.n_done += 1
        if label == MEAN:
            exact = np.zeros(self.spectrum.size)
        else:
            question = ClippedQuestion.from_bytes(
                public,
                n_features=self.spectrum.size,
                width=width_of(self.study, label),
                center=self.study.center,
            )
            basis = question.real_basis
            product = self.spectrum[:, np.newaxis] * basis
            held = float(np.sum(basis * product))
            kept = part_kept(held, question.clip, basis.shape[1])
            exact = np.append(
                kept * product.reshape(-1) * clipped_scale(question.clip),
                float(self.spectrum.sum()) * product_noise(question)[1],
            )
        drawn = self.times * noise.share * self.rng.standard_normal(exact.size)
        integers = np.rint(exact * (rows * 2.0**noise.fineness) + drawn).astype(np.int64)
        return Total(integers=integers, noise=noise)

    def summary(self) -> Generator[Ask, Round, tuple[Array, Array | None, float, float]]:
        """Return the noised moment of a warm start."""
        yield from ()
        budget = budget_of(self.study)
        assert budget is not None
        self.n_done += 1
        std = self.times * budget.std(sum(self.sizes.values()))
        dim = self.spectrum.size
        square = self.rng.standard_normal((dim, dim)) * std
        square += square.T.copy()
        square /= 2.0
        square[np.diag_indices(dim)] += self.spectrum
        mean = np.zeros(dim) if self.study.center else None
        return square, mean, float(self.spectrum.sum()), std


def rehearsed_error(
    settings: ClippedSettings, *, spectrum: Array, noise_std: float, n_rows: int, rng: np.random.Generator
) -> float:
    """Return the sin θ_k that clipped iterates would come to on a moment with these eigenvalues."""
    study = settings.study
    budget = budget_of(study)
    assert budget is not None
    sums = _MadeUpSums(
        study=study, sizes={"all": n_rows}, spectrum=spectrum, times=noise_std / budget.std(n_rows), rng=rng
    )
    begin = rng.standard_normal((spectrum.size, study.iteration_rank))
    run = iterate(sums, begin, rank=settings.rank)
    try:
        while True:
            next(run)
    except StopIteration as stop:
        found: Array = stop.value.vectors
    return sin_theta(found, np.eye(spectrum.size, settings.rank))


def narrowed_sums(study: Study, n_features: int) -> tuple[SumTerms, ...]:
    """Return the sums that a warm study would list of fewer columns, with the same widths and shares."""

    def narrowed(terms: SumTerms) -> SumTerms:
        if terms.label == SCORES:  # of a grid, whatever the columns
            return terms
        if terms.label == MOMENT:
            return terms._replace(size=summary_size(n_features, with_mean=study.center))
        return terms._replace(size=n_features * width_of(study, terms.label) + 1)

    return tuple(narrowed(terms) for terms in study.sums)


def question_bytes(study: Study, label: str) -> bytes:
    """Return bytes as long as the question of a sum."""
    if label in (MOMENT, MEAN):
        return b""
    columns = width_of(study, label) + int(study.center)
    return bytes(24 + 4 * study.n_features * columns)


def plain_bytes(study: Study) -> int:
    """Return about how many bytes go up from one silo that noises its sums by itself."""
    return sum(8 * size + 400 for _, size, _ in study.sums)


def rounds_of(study: Study) -> int:
    """Return how many rounds a clipped fit takes, the roll call included."""
    return len(study.sums) + int(study.aggregation == "secure")
