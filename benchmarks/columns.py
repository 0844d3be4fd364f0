"""Columns that are hard to prepare: gaps, yes or no, years, counts that are mostly 0.

Fits with nothing but epsilon (and one public range), against the exact correlation PCA of the same rows
without gaps. Every draw has rows of its own.
"""

import argparse
import statistics
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from benchmarks.common import parser, report
from fedpower import FedPCA

Array = NDArray[np.float64]
DELTA = 1e-6


class Case(NamedTuple):
    """A kind of rows, how they are fitted, and what the median must reach."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Array, Array]]
    measure: Callable[[FedPCA, Array], float]
    epsilon: float
    goal: str
    rank: int
    ranges: dict[str, tuple[float, float]] | None = None


def with_gaps(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return six columns, one like creatinine that 17% of the rows lack, and the same without gaps."""
    factors = rng.standard_normal((30_000, 2))
    loadings = np.array([[0.9, 0.1], [0.8, -0.2], [0.1, 0.9], [0.6, 0.5], [-0.2, 0.8], [0.7, 0.3]])
    rows = factors @ loadings.T + 0.5 * rng.standard_normal((30_000, 6))
    rows[:, 3] = np.exp(0.3 * rows[:, 3])  # about 1, rarely above 3
    gaps = rows.copy()
    gaps[rng.random(30_000) < 0.17, 3] = np.nan
    return gaps, rows


def yes_or_no(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return 16 columns of 0 and 1 that one factor makes."""
    loadings = rng.uniform(0.4, 0.9, 16)
    hidden = rng.standard_normal((1_248, 1)) * loadings
    hidden += np.sqrt(1 - loadings**2) * rng.standard_normal((1_248, 16))
    rows = (hidden > rng.uniform(-1.2, 1.2, 16)).astype(np.float64)
    return rows, rows


def years(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return six columns of three factors, one of which holds years about 2000."""
    rows = rng.standard_normal((1_000, 3)) @ rng.standard_normal((3, 6))
    rows += 0.5 * rng.standard_normal((1_000, 6))
    rows = rows / rows.std(axis=0) * [5, 1, 10, 0.1, 3, 100] + [2000, 0, 50, 1, 0, 300]
    rows[:, 0] = np.rint(rows[:, 0])
    return rows, rows


def counts(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return six columns of counts, two thirds of which are 0."""
    factor = rng.standard_normal((2_000, 1))
    sizes = np.exp(1.5 + 0.8 * (0.7 * factor + 0.7 * rng.standard_normal((2_000, 6))))
    rows = np.where(rng.random((2_000, 6)) < 0.35, np.rint(sizes), 0.0)
    return rows, rows


def least_cosine(model: FedPCA, rows: Array) -> float:
    """Return the least |cos| of a component to the exact one."""
    exact = leading(rows, len(model.components_))
    return float(np.abs(np.sum(model.components_.T * exact, axis=0)).min())


def sine(model: FedPCA, rows: Array) -> float:
    """Return the largest sine between the subspaces."""
    exact = leading(rows, len(model.components_))
    return float(np.sin(subspace_angles(model.components_.T, exact)[0]))


def kept(model: FedPCA, rows: Array) -> float:
    """Return how much of what their indicator lacks the clipped columns have: by correlations, 0 to 1."""
    book = model.codebook_
    assert book is not None, "a fit with nothing but epsilon finds one"
    clipped = np.clip(rows, book.low, book.high)
    found = []
    for cells, whole in zip(clipped.T, rows.T, strict=True):
        alone = float(np.corrcoef(whole > 0, whole)[0, 1])
        have = float(np.corrcoef(cells, whole)[0, 1]) if cells.std() > 0 else 0.0
        found.append((have - alone) / (1.0 - alone))
    return float(np.mean(found))


def leading(rows: Array, rank: int) -> Array:
    """Return the leading components of the correlations."""
    return np.asarray(np.linalg.eigh(np.corrcoef(rows.T))[1][:, ::-1][:, :rank])


CASES = (
    Case("gaps", with_gaps, least_cosine, 4.0, ">= 0.985", 2, {"3": (0.0, 12.0)}),
    Case("yes or no", yes_or_no, least_cosine, 1.0, ">= 0.95", 1),
    Case("years", years, sine, 1.0, "<= 0.2", 3),
    Case("counts", counts, kept, 1.0, ">= 0.3", 2),
)


def measured(case: Case, fits: int) -> dict[str, Any]:
    """Return what was found in so many draws, and how many columns were lost, and not listed."""
    found, lost, unlisted = [], 0, 0
    for seed in range(fits):
        rows, whole = case.draw(np.random.default_rng(seed))
        model = FedPCA(case.rank, epsilon=case.epsilon, delta=DELTA, ranges=case.ranges)
        model.fit(rows)
        found.append(case.measure(model, whole))
        book = model.codebook_
        assert book is not None, "a fit with nothing but epsilon finds one"
        constant = np.clip(whole, book.low, book.high).std(axis=0) < 0.05 * whole.std(axis=0)
        listed = [f"column 'x{place}':" for place in np.flatnonzero(constant)]
        lost += len(listed)
        unlisted += sum(not any(name in said for said in model.warnings_) for name in listed)
    return {"found": found, "lost": lost, "unlisted": unlisted}


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--fits", type=int, default=40, help="of each kind")
    options: argparse.Namespace = made.parse_args()
    warnings.simplefilter("ignore")
    rows, raw = [], []
    for case in CASES:
        result = measured(case, options.fits)
        raw.append({"case": case.name, **result})
        found = sorted(result["found"])
        rows.append(
            (
                case.name,
                case.measure.__name__.replace("_", " "),
                case.epsilon,
                f"{statistics.median(found):.3f}",
                f"{found[0]:.3f} to {found[-1]:.3f}",
                case.goal,
                result["lost"],
                result["unlisted"],
            )
        )
    report(
        options,
        name="columns",
        settings={"fits": options.fits, "delta": DELTA},
        columns=("columns", "measure", "ε", "median", "range", "goal", "lost", "not listed"),
        rows=rows,
        raw=raw,
    )


if __name__ == "__main__":
    main()
