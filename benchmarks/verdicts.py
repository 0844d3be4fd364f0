"""How often a component is called above the noise where there is none: every way of computing.

Two silos of rows without a direction (all zero, or of norm 1 and alike in all directions) go through
`FedPCA.fit_silos` with fresh noise of the operating system, and what `n_above_noise_` says is counted.
Alike in all directions holds of where rows are drawn from; with so few rows the noise is far above what
a sample of them differs by. Each cell has as many draws as fit in its seconds, told beside it.
"""

import argparse
import itertools
import statistics
import time
import warnings
from typing import Any

import numpy as np
from fedpower.protocol.solvers.signal import LEVEL
from numpy.typing import NDArray
from scipy import stats

from benchmarks.common import parser, report
from benchmarks.measuring import Measured, having
from fedpower import FedPCA

Array = NDArray[np.float64]

WAYS = (
    ("moment", "moment", "plain"),
    ("moment", "moment", "secure"),
    ("krylov", "moment", "plain"),
    ("fedpower", "moment", "plain"),
    ("krylov", "step", "plain"),
    ("fedpower", "step", "plain"),
    ("fedpower", "paper", "plain"),
)
"""Solver, noise mode, sum."""

ROWS = 400
K = 2


def main() -> None:
    """Count false verdicts in every cell, then over all."""
    options = _options()
    warnings.simplefilter("ignore")  # of few rounds, where they are meant
    cells = list(itertools.product(options.columns, WAYS, (False, True), ("zero", "alike")))
    began, found = time.monotonic(), []
    for d, way, center, kind in cells:
        if time.monotonic() - began > options.total:
            break
        found.append(cell(d, way, center=center, kind=kind, options=options))
    draws = sum(each["draws"] for each in found)
    called = sum(each["called"] for each in found)
    worst = max(found, key=lambda each: stats.binom.cdf(each["called"] - 1, each["draws"], LEVEL))
    report(
        options,
        name="verdicts",
        settings={
            "rows": ROWS,
            "silos": 2,
            "epsilon": 1,
            "k": K,
            "seconds a cell": options.seconds,
            "draws at most": options.draws,
        },
        columns=("columns", "solver", "noise", "sum", "draws", "called above", "largest / level"),
        rows=[_line(d, way, found) for d in options.columns for way in WAYS if _of(d, way, found)],
        raw=found,
        notes=(
            f"In {called} of {draws} draws a component was called above the noise: "
            f"{called / draws:.2%}, nominal {LEVEL:.0%}. The cell that speaks most against the rule has "
            f"{worst['called']} of {worst['draws']}, which chance alone gives with probability "
            f"{stats.binom.sf(worst['called'] - 1, worst['draws'], LEVEL):.2g}. Draws are of both kinds "
            "of rows, centred and not; the last column is the median of the first variance over "
            "`noise_edge_`, of rows of zeros that are not centred.",
        ),
    )


def cell(
    d: int, way: tuple[str, str, str], *, center: bool, kind: str, options: argparse.Namespace
) -> dict[str, Any]:
    """Return how often a component was called above the noise in one cell, and how often it was tried."""
    solver, noise, aggregation = way
    rng = np.random.default_rng([d, int(center), len(kind)])
    began, called, ratios = time.monotonic(), 0, []
    while len(ratios) < options.draws:
        rows = np.zeros((ROWS, d))
        if kind == "alike":
            rows = rng.standard_normal((ROWS, d))
            rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        model = FedPCA(
            K,
            epsilon=1.0,
            row_norm=1.0,
            center=center,
            standardize=False,
            solver=solver,
            noise=noise,
            aggregation=aggregation,
            random_state=len(ratios),
        ).fit_silos([rows[: ROWS // 2], rows[ROWS // 2 :].copy()])
        called += model.n_above_noise_ > 0
        ratios.append(float(model.explained_variance_[0] / model.noise_edge_))
        if time.monotonic() - began > options.seconds:
            break
    return {
        "columns": d,
        "way": list(way),
        "center": center,
        "rows": kind,
        "draws": len(ratios),
        "called": int(called),
        "ratio": statistics.median(ratios),
        "seconds": round(time.monotonic() - began, 1),
    }


def _of(d: int, way: tuple[str, str, str], found: list[dict[str, Any]]) -> list[Measured]:
    return having(found, columns=d, way=list(way))


def _line(d: int, way: tuple[str, str, str], found: list[dict[str, Any]]) -> tuple[object, ...]:
    cells = _of(d, way, found)
    ratio = [each["ratio"] for each in cells if each["rows"] == "zero" and not each["center"]]
    return (
        d,
        *way,
        sum(each["draws"] for each in cells),
        sum(each["called"] for each in cells),
        f"{ratio[0]:.2f}" if ratio else "–",
    )


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--columns", type=int, nargs="+", default=[10, 300, 2000, 5000])
    made.add_argument("--draws", type=int, default=200, help="draws of a cell at most")
    made.add_argument("--seconds", type=float, default=60.0, help="after which a cell ends")
    made.add_argument("--total", type=float, default=1e9, help="seconds after which no cell begins")
    return made.parse_args()


if __name__ == "__main__":
    main()
