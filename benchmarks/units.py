"""The same question at every ε: private against exact components with the same settings.

Rows of three factors in columns whose units go from 1 to 1,000, far from 0. For correlations and for
covariances: the largest angle between the private and the exact subspace, and how far variances are from
the exact ones. Nothing but ε is given.
"""

import argparse
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from benchmarks.common import parser, report
from fedpower import FedPCA

Array = NDArray[np.float64]

RANK = 3
DELTA = 1e-6
MOST_DEGREES, MOST_OFF = 15.0, 0.25
"""What has to hold at ε = 4."""


def rows_of(n_rows: int, n_features: int, seed: int) -> Array:
    """Return rows of three factors, in units from 1 to 1,000."""
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((RANK, n_features))
    factors = rng.standard_normal((n_rows, RANK)) * [3.0, 2.0, 1.2]
    rows = factors @ loadings + rng.standard_normal((n_rows, n_features))
    return np.asarray((rows + 20.0) * np.geomspace(1.0, 1000.0, n_features))


def measured(
    *, standardize: bool, epsilon: float, n_rows: int, n_features: int, seed: int
) -> tuple[float, float]:
    """Return the angle in degrees and the largest relative error of a variance."""
    silos = np.split(rows_of(n_rows, n_features, seed), 2)
    told: dict[str, Any] = {"standardize": standardize}
    exact = FedPCA(RANK, epsilon=float("inf"), **told).fit_silos(silos)
    private = FedPCA(RANK, epsilon=epsilon, delta=DELTA, **told).fit_silos(silos)
    angle = float(np.degrees(subspace_angles(private.components_.T, exact.components_.T)[0]))
    off = np.abs(private.explained_variance_ / exact.explained_variance_ - 1.0)
    return angle, float(off.max())


def main() -> None:
    """Fit every case with several seeds."""
    made = parser(__doc__)
    made.add_argument("--rows", type=int, default=20_000)
    made.add_argument("--columns", type=int, default=8)
    made.add_argument("--seeds", type=int, default=10)
    options: argparse.Namespace = made.parse_args()
    raw, rows = [], []
    for epsilon in (1.0, 4.0):
        for standardize in (True, False):
            found = np.array(
                [
                    measured(
                        standardize=standardize,
                        epsilon=epsilon,
                        n_rows=options.rows,
                        n_features=options.columns,
                        seed=seed,
                    )
                    for seed in range(options.seeds)
                ]
            )
            middle, most = np.median(found, axis=0), found.max(axis=0)
            raw.append({"epsilon": epsilon, "standardize": standardize, "found": found.tolist()})
            rows.append(
                (
                    "correlations" if standardize else "covariances",
                    f"{epsilon:g}",
                    f"{middle[0]:.1f} ({most[0]:.1f})",
                    f"{middle[1]:.0%} ({most[1]:.0%})",
                    "yes" if (most <= [MOST_DEGREES, MOST_OFF]).all() else "no",
                )
            )
    report(
        options,
        name="units",
        settings={
            "rows": options.rows,
            "columns": options.columns,
            "units": "1 to 1,000",
            "components": RANK,
            "seeds": options.seeds,
        },
        columns=(
            "components of",
            "ε",
            "degrees to the exact ones, median (most)",
            "variances off by, median (most)",
            f"≤ {MOST_DEGREES:g}° and {MOST_OFF:.0%}",
        ),
        rows=rows,
        raw=raw,
    )


if __name__ == "__main__":
    main()
