"""A real network of many layers: the brains of 32 mice, each a silo of its own.

The connectomes of the package graspologic (MIT licence), which its wheel holds: 332 regions of each
brain, and how many fibres join two of them [Wang et al. 2020]. `pip download --no-deps graspologic`, and
`--wheel FILE`; nothing of it is installed. Two regions are joined where there are 100 fibres or more
(30 and 300 give the same exact communities). Labels: the atlas' telencephalon (isocortex, pallium,
subpallium) against diencephalon, midbrain and hindbrain; white matter has none, and is not compared. They
were chosen among several, because the exact communities fit them: what is measured is what noise costs.
"""

import argparse
import csv
import io
import math
import statistics
import warnings
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, report
from fedpower import FedCommunities
from fedpower.analyses import agreement

FOLDER = "graspologic/datasets/mice/"
REGIONS = 332
FIBRES = 100
FRONT = ("isocortex", "pallium", "subpallium")
EPSILONS = (0.5, 1.0, 2.0)
DELTA = 1e-6


def mice(wheel: Path) -> tuple[list[NDArray[np.float64]], dict[str, str]]:
    """Return the layers, and the label of every region of grey matter."""
    layers, labels = [], {}
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.startswith(f"{FOLDER}edgelists/"):
                edges = np.loadtxt(io.BytesIO(archive.read(name)))
                layer = np.zeros((REGIONS, REGIONS))
                layer[edges[:, 0].astype(int), edges[:, 1].astype(int)] = edges[:, 2] >= FIBRES
                layer = np.maximum(layer, layer.T)
                np.fill_diagonal(layer, 0.0)
                layers.append(layer)
        text = archive.read(f"{FOLDER}blocks.csv").decode()
    for row in csv.DictReader(io.StringIO(text)):
        if row["block"] != "white_matter":
            side = "front" if row["block"] in FRONT else "back"
            labels |= {f"x{place}": side for place in range(int(row["i"]), int(row["j"]))}
    return layers, labels


def measure(layers: list[Any], labels: dict[str, str], seeds: int) -> list[dict[str, Any]]:
    """Return agreements by what is protected, who adds noise, and ε."""
    exact = {
        unit: FedCommunities(2, unit=unit, epsilon=math.inf).fit_silos(layers, labels)
        for unit in ("edge", "row")
    }
    found = [
        {"unit": unit, "how": "exact", "epsilon": "inf", "labels": [model.agreement_],
         "exact": [1.0], "angle": [model.subspace_angle_]}
        for unit, model in exact.items()
    ]  # fmt: skip
    for unit, central in exact.items():
        for how in ("plain", "secure"):
            for epsilon in EPSILONS:
                runs = [
                    FedCommunities(2, unit=unit, epsilon=epsilon, delta=DELTA, aggregation=how).fit_silos(
                        layers, labels
                    )
                    for _ in range(seeds)
                ]
                found.append(
                    {
                        "unit": unit,
                        "how": how,
                        "epsilon": epsilon,
                        "labels": [each.agreement_ for each in runs],
                        "exact": [agreement(central.labels_, each.labels_) for each in runs],
                        "angle": [each.subspace_angle_ for each in runs],
                    }
                )
    return found


def main() -> None:
    """Run it from the command line."""
    made = parser(__doc__)
    made.add_argument("--wheel", type=Path, required=True, help="graspologic's")
    made.add_argument("--seeds", type=int, default=5, help="releases of each kind")
    options: argparse.Namespace = made.parse_args()
    warnings.simplefilter("ignore", UserWarning)
    layers, labels = mice(options.wheel)
    found = measure(layers, labels, options.seeds)
    report(
        options,
        name="networks",
        settings={
            "layers": len(layers),
            "nodes": REGIONS,
            "labelled nodes": len(labels),
            "fibres of an edge": FIBRES,
            "k": 2,
            "delta": DELTA,
            "releases of each kind": options.seeds,
            "data": options.wheel.name,
        },
        columns=(
            "protected", "sum", "ε", "placed as the atlas says", "placed as without noise",
            "angle at 90% confidence",
        ),
        rows=[
            (
                each["unit"],
                each["how"],
                f"{each['epsilon']}",
                f"{statistics.fmean(each['labels']):.3f}",
                f"{statistics.fmean(each['exact']):.3f}",
                f"{statistics.fmean(each['angle']):.0f}°",
            )
            for each in found
        ],
        raw={"found": found},
    )  # fmt: skip


if __name__ == "__main__":
    main()
