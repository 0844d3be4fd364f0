"""A real network of many layers: the brains of 32 mice, each a silo.

The connectomes of the package graspologic (MIT licence), which its wheel holds: 332 regions of each brain,
and how many fibres join two of them [Wang et al. 2020]. Two regions are joined by 100 fibres or more.
Labels: the atlas' telencephalon against diencephalon, midbrain and hindbrain; white matter has none.
"""

import csv
import io
import itertools
import math
import statistics
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.base import clone

from benchmarks.runner import MissingError, Record, Table, case
from fedpower import Edge, FedCovariance, Node
from fedpower.analysis import Communities
from fedpower.analysis.communities import agreement

FOLDER = "graspologic/datasets/mice/"
REGIONS, FIBRES, DELTA = 332, 100, 1e-6
FRONT = ("isocortex", "pallium", "subpallium")


def mice(wheel: Path) -> tuple[list[Any], dict[str, str]]:
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


def _blocks(nodes: int, layers: int) -> tuple[list[Any], dict[str, str]]:
    rng = np.random.default_rng(0)
    side = np.arange(nodes) % 2
    chance = np.where(side[:, None] == side, 0.7, 0.1)
    drawn = [np.triu(rng.random((nodes, nodes)) < chance, 1) for _ in range(layers)]
    return [(each | each.T).astype(float) for each in drawn], {f"x{n}": str(side[n]) for n in range(nodes)}


@case("networks", quick={"simulated": 30, "epsilons": (2.0,), "seeds": 1})
def networks(
    *,
    wheel: Path | None = None,
    simulated: int = 0,
    epsilons: tuple[float, ...] = (0.5, 1.0, 2.0),
    seeds: int = 5,
) -> Table:
    """Place regions of real brains as the atlas does (wheel=FILE of graspologic), by ε.

    Edges and rows are protected, sums plain and secure; ``simulated`` nodes replace the brains in tests.
    """
    if wheel is None and not simulated:
        raise MissingError("wheel=FILE must name graspologic's (pip download --no-deps graspologic)")
    layers, labels = _blocks(simulated, 4) if simulated else mice(Path(str(wheel)))
    records: list[Record] = []
    analysis = Communities(2, labels=labels)
    for protected in (Edge(), Node()):
        exact = clone(analysis).fit(FedCovariance(unit=protected, epsilon=math.inf).fit_silos(layers))
        ways: list[tuple[str, Any]] = [("exact", "inf")]
        for how, epsilon in (*ways, *itertools.product(("plain", "secure"), epsilons)):
            runs = [exact]
            if how != "exact":
                model = FedCovariance(unit=protected, epsilon=epsilon, delta=DELTA, aggregation=how)
                runs = [clone(analysis).fit(model.fit_silos(layers)) for _ in range(seeds)]
            record = {"unit": protected.name, "how": how, "epsilon": epsilon}
            record["labels"] = [each.agreement_ for each in runs]
            record["exact"] = [agreement(exact.labels_, each.labels_) for each in runs]
            records.append(record | {"angle": [each.subspace_angle_ for each in runs]})
    return Table(
        columns=(
            "protected", "sum", "ε", "placed as the atlas says", "placed as without noise",
            "angle at 90% confidence",
        ),
        rows=[
            (
                *(str(each[key]) for key in ("unit", "how", "epsilon")),
                *(f"{statistics.fmean(each[key]):.3f}" for key in ("labels", "exact")),
                f"{statistics.fmean(each['angle']):.0f}°",
            )
            for each in records
        ],
        measured={"found": records},
        settings={"layers": len(layers), "labelled nodes": len(labels), "fibres": FIBRES, "delta": DELTA},
    )  # fmt: skip
