"""Where ``auto`` takes clipped products, and what the moment and they come to there.

``python -m benchmarks.clipped_auto`` rehearses both over a grid of columns, components, energy, clarity
and spectrum: the real solver on made-up sums, and the eigenvectors of a made-up noised moment. Rehearsals
came to what fits came to (``benchmarks.clipped``), and take a hundredth of their time. ``auto`` is told
the energy that is true, and no more.
"""

import argparse
import itertools
import math
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import scipy.linalg
from fedpower.protocol.clipped_rehearsal import rehearsed_error
from numpy.typing import NDArray

from benchmarks.common import parser, report
from fedpower import FedPCA
from fedpower.estimator.terms import build_study, noise_of
from fedpower.linalg import sin_theta
from fedpower.parameters import Parameters
from fedpower.privacy.division import clarity
from fedpower.protocol.private_study import budget_of, pooled_std
from fedpower.protocol.solvers import ClippedSettings
from fedpower.rows.treatment import RowTreatment

Array = NDArray[np.float64]

COLUMNS = (100, 300)
RANKS = (2, 8)
ENERGIES = (0.02, 0.05, 0.13, 0.4)
CLARITIES = (1.2, 2.0, 4.0, 16.0)
EPSILONS = (1.0, 4.0)
"""By turns: ε and n matter through clarity, so that all pairs would tell little more."""

LEVEL, FALLING = "level", "falling"
CLEARLY = 0.8
"""Where their error is below this share of the moment's, clipped products should be taken."""

MOST_LOST = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One place of the grid."""

    n_features: int
    rank: int
    energy: float
    epsilon: float
    n_rows: int
    spectrum: str

    @property
    def values(self) -> Array:
        """The eigenvalues: alike, or the leading ones falling to half and the others like 1/√j."""
        leading, others = np.ones(self.rank), np.ones(self.n_features - self.rank)
        if self.spectrum == FALLING:
            leading = np.linspace(2.0, 1.0, self.rank)
            others = np.arange(self.rank + 1, self.n_features + 1) ** -0.5
        return np.concatenate(
            [self.energy * leading / leading.sum(), (1 - self.energy) * others / others.sum()]
        )

    def model(self, noise: str) -> Parameters:
        """Return the parameters of a fit."""
        return Parameters.of(
            FedPCA(
                self.rank,
                epsilon=self.epsilon,
                delta=1e-6,
                standardize=False,
                noise=noise,
                energy=self.energy,
                normalize=True,
                center=False,
            )
        )

    @property
    def taken(self) -> bool:
        """Whether auto takes clipped products."""
        return noise_of(self.model("auto"), self.n_features, self.n_rows) == "clipped"


def grid() -> list[Point]:
    """Return the places at which the leading eigenvalues stand out."""
    points = []
    turns = itertools.cycle(EPSILONS)
    for d, k, energy, seen, spectrum in itertools.product(
        COLUMNS, RANKS, ENERGIES, CLARITIES, (LEVEL, FALLING)
    ):
        point = Point(
            n_features=d, rank=k, energy=energy, epsilon=next(turns), n_rows=10**6, spectrum=spectrum
        )
        if point.values[k - 1] < 1.5 * point.values[k]:
            continue
        facts = {"n_features": d, "rank": k, "energy": energy, "n_rows": 10**6}
        at_once = clarity(multiplier=_multiplier(point), **facts)  # type: ignore[arg-type]
        n_rows = math.ceil(10**6 * seen / at_once)
        points.append(Point(**{**asdict(point), "n_rows": n_rows}))
    return points


def _multiplier(point: Point) -> float:
    budget = budget_of(_terms(point, "moment")[0])
    assert budget is not None
    return budget.std(1) / math.sqrt(2.0)


def _terms(point: Point, noise: str) -> tuple[Any, Any]:
    study, settings, _ = build_study(
        point.model(noise),
        n_rows=point.n_rows,
        n_features=point.n_features,
        treatment=RowTreatment(),
        roster={"all": point.n_rows},
    )
    return study, settings


def measured(point: Point, seeds: int) -> dict[str, Any]:
    """Return the errors of both at a place, means over the seeds."""
    study, settings = _terms(point, "clipped")
    assert isinstance(settings, ClippedSettings)
    budget, values = budget_of(study), point.values
    assert budget is not None
    std = pooled_std(budget, {"all": point.n_rows})
    clipped = [
        rehearsed_error(
            settings, spectrum=values, noise_std=std, n_rows=point.n_rows, rng=np.random.default_rng(seed)
        )
        for seed in range(seeds)
    ]
    moments = [_moment_error(point, np.random.default_rng(seed)) for seed in range(seeds)]
    return asdict(point) | {"moment": float(np.mean(moments)), "clipped": float(np.mean(clipped))}


def _moment_error(point: Point, rng: np.random.Generator) -> float:
    """Return sin θ_k of the leading eigenvectors of a noised moment."""
    budget = budget_of(_terms(point, "moment")[0])
    assert budget is not None
    d, k = point.n_features, point.rank
    square = rng.standard_normal((d, d)) * pooled_std(budget, {"all": point.n_rows})
    square = (square + square.T) / 2.0 + np.diag(point.values)
    found = scipy.linalg.eigh(square, subset_by_index=[d - k, d - 1])[1]
    return sin_theta(found, np.eye(d, k))


def main() -> None:
    """Rehearse all of it."""
    options = _options()
    points = grid()[:: options.every]
    found = [measured(point, options.seeds) for point in points]
    for point, each in zip(points, found, strict=True):
        each["taken"] = point.taken
    report(
        options,
        name="clipped_auto",
        settings={
            "d": list(COLUMNS),
            "k": list(RANKS),
            "clarity": list(CLARITIES),
            "epsilon": list(EPSILONS),
            "seeds": options.seeds,
        },
        columns=["energy", "spectrum", "places", "taken", "clipped / moment there", "and elsewhere"],
        rows=[_row(found, energy, spectrum) for energy in ENERGIES for spectrum in (LEVEL, FALLING)],
        raw=found,
        notes=[
            "Errors are sin θ_k, means over the seeds; ratios of them, least to most. Clarity is the gap "
            "over half the edge of the moment's noise, and n follows from it. A level spectrum has equal "
            "leading eigenvalues and equal others; in a falling one the leading fall to half and the "
            "others like 1/√j."
        ],
    )


def _row(found: list[dict[str, Any]], energy: float, spectrum: str) -> list[object]:
    here = [each for each in found if (each["energy"], each["spectrum"]) == (energy, spectrum)]
    ratios = {
        taken: [each["clipped"] / each["moment"] for each in here if each["taken"] == taken]
        for taken in (True, False)
    }
    shown = {taken: f"{min(each):.2f} to {max(each):.2f}" if each else "–" for taken, each in ratios.items()}
    return [f"{energy:.0%}", spectrum, len(here), len(ratios[True]), shown[True], shown[False]]


def _options() -> argparse.Namespace:
    options = parser(__doc__)
    options.add_argument("--seeds", type=int, default=5)
    options.add_argument("--every", type=int, default=1, help="take only each so-many-th place")
    return options.parse_args()


if __name__ == "__main__":
    main()
