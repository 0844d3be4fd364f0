"""How often noise alone spoils what a fit finds out about its columns.

Fits that are told nothing but epsilon, again and again on the same rows: how many found a range that is
more than a hundred times as wide as a column's cells lie apart, and how many a scale of more than five
times its standard deviation.
"""

import argparse
import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from fedpower import FedPCA

DELTA = 1e-6
WIDE, COARSE = 100.0, 5.0


class Case(NamedTuple):
    """Rows in silos, and how they are fitted."""

    name: str
    rows: NDArray[np.float64]
    silos: int
    epsilon: float
    aggregation: str


def cases(n_rows: int) -> list[Case]:
    """Return columns about 0, and columns that lie far from it beside how they differ."""
    rng = np.random.default_rng(0)
    factor = rng.standard_normal((n_rows, 1))
    about = (factor + 0.5 * rng.standard_normal((n_rows, 5))) * [1.0, 30.0, 0.02, 5.0, 1e4]
    far = about / [1.0, 30.0, 0.02, 5.0, 1e4] * [6.0, 0.4, 0.5, 3.0, 0.05] + [2000, 37, 7, -50, 1]
    return [
        Case("about 0", about, 3, 8.0, "secure"),
        Case("far from 0", far, 3, 8.0, "secure"),
        Case("about 0", about, 1, 2.0, "plain"),
        Case("far from 0", far, 1, 2.0, "plain"),
    ]


def measure(case: Case, fits: int) -> dict[str, Any]:
    """Return, of every fit, the largest range and the largest scale in units of what the rows have."""
    parts = np.array_split(case.rows, case.silos)
    spans, spreads = np.ptp(case.rows, axis=0), case.rows.std(axis=0)
    ranges, scales = [], []
    for _ in range(fits):
        model = FedPCA(2, epsilon=case.epsilon, delta=DELTA, aggregation=case.aggregation)
        book = model.fit_silos(parts).codebook_
        assert book is not None, "a fit that is told nothing finds one"
        ranges.append(float(((book.high - book.low) / spans).max()))
        scales.append(float((book.scale / spreads).max()))
    return {"ranges": ranges, "scales": scales}


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=7000, help="in all silos")
    made.add_argument("--fits", type=int, default=550, help="of each kind")
    options: argparse.Namespace = made.parse_args()
    warnings.simplefilter("ignore")
    rows, raw = [], []
    for case in cases(options.rows):
        found = measure(case, options.fits)
        raw.append({"case": case.name, "aggregation": case.aggregation, **found})
        rows.append(
            (
                case.name,
                f"{case.silos}, {case.aggregation}",
                case.epsilon,
                options.fits,
                sum(each > WIDE for each in found["ranges"]),
                sum(each > COARSE for each in found["scales"]),
                f"{max(found['ranges']):.3g}",
            )
        )
    report(
        options,
        name="preparation_ranges",
        settings={"rows": options.rows, "fits": options.fits, "delta": DELTA},
        columns=("columns", "silos", "ε", "fits", "ranges > 100×", "scales > 5×", "widest range"),
        rows=rows,
        raw=raw,
    )


if __name__ == "__main__":
    main()
