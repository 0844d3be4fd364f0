"""Model II's communities: the share of nodes rightly placed, by what is protected and who adds noise.

``python -m paper.communities -o docs/reproduction`` writes ``communities.csv`` and the picture. Every
release is the product's (`FedCovariance`), with noise of the operating system: numbers repeat within
their spread, not bit by bit.
"""

import argparse
import csv
import math
import textwrap
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from fedpower import Edge, FedCovariance, Node
from fedpower.analysis import Communities
from fedpower.protocol.study import Aggregation
from fedpower.rows.networks import NetworkUnit
from paper.models import stochastic_block
from paper.pictures import INK, drawing, saved
from paper.settings import BLUE, GREEN, ORANGE, PAPER, PURPLE, QUICK, Size

EPSILONS = (0.5, 1.0, 2.0)
DELTA = 1e-6
NAMES: dict[tuple[NetworkUnit, Aggregation], str] = {
    ("row", "plain"): "a row protected, noise at each silo",
    ("edge", "plain"): "an edge protected, noise at each silo",
    ("row", "secure"): "a row protected, secure sum",
    ("edge", "secure"): "an edge protected, secure sum",
}
LOOKS = {
    ("row", "plain"): {"color": ORANGE, "marker": "s", "linestyle": "--"},
    ("edge", "plain"): {"color": BLUE, "marker": "o", "linestyle": "-"},
    ("row", "secure"): {"color": PURPLE, "marker": "D", "linestyle": ":"},
    ("edge", "secure"): {"color": GREEN, "marker": "^", "linestyle": "-."},
}


@dataclass(frozen=True, slots=True)
class Placed:
    """The share of nodes that one release places rightly; an exact one has an infinite epsilon."""

    unit: str
    aggregation: str
    epsilon: float
    repetition: int
    share: float
    subspace_angle: float


def layers_of(size: Size, seed: int) -> tuple[list[Any], NDArray[np.int64]]:
    """Return each silo's network of Model II and the nodes' communities."""
    model = stochastic_block(n_nodes=size.n_features, n_silos=size.n_silos, seed=seed)
    layers = [sparse.csr_array(np.vstack(list(model.chunks(silo)))) for silo in range(size.n_silos)]
    return layers, np.asarray(model.basis.argmax(axis=1))


def placed(size: Size, repetition: int, epsilon: float) -> Iterator[Placed]:
    """Yield the share of every release at one epsilon, of a repetition with networks of its own."""
    layers, truth = layers_of(size, seed=repetition)
    for unit, how in NAMES:
        if math.isinf(epsilon) and how == "secure":  # refused: masks need noise
            continue
        protected = Edge() if unit == "edge" else Node()
        model = FedCovariance(unit=protected, epsilon=epsilon, delta=DELTA, aggregation=how)
        found = Communities(size.rank, labels=truth).fit(model.fit_silos(layers))
        yield Placed(unit, how, epsilon, repetition, found.agreement_, found.subspace_angle_)


def shares(found: list[Placed], unit: str, how: str, epsilon: float) -> NDArray[np.float64]:
    """Return the shares of one line at one epsilon."""
    wanted = (unit, how, epsilon)
    kept = [each.share for each in found if (each.unit, each.aggregation, each.epsilon) == wanted]
    return np.array(kept)


def caption_of(found: list[Placed], size: Size) -> str:
    """Return what the picture shows, with its numbers at ε = 1."""
    shown = "; ".join(f"{name} {shares(found, *key, 1.0).mean():.2f}" for key, name in NAMES.items())
    exact = {unit: shares(found, unit, "plain", math.inf).mean() for unit in ("row", "edge")}
    repetitions = 1 + max(each.repetition for each in found)
    return (
        f"Communities of Model II (d = {size.n_features} nodes, m = {size.n_silos} networks, "
        f"k = {size.rank}): the share of nodes rightly placed against ε, δ = 10⁻⁶. At ε = 1: {shown}. "
        f"Exactly it is {exact['row']:.2f} from rows and {exact['edge']:.2f} from the adjacency; half is "
        f"chance. Lines: means of {repetitions} repetitions; bands: least to largest."
    )


def draw(found: list[Placed], size: Size) -> bytes:
    """Return the picture."""
    epsilons = sorted({each.epsilon for each in found if math.isfinite(each.epsilon)})
    with drawing() as Figure:
        caption = textwrap.wrap(caption_of(found, size), 105)
        figure = Figure(figsize=(6.4, 4.8), dpi=150)
        below = (len(caption) + 0.6) * 0.16 / 4.8
        figure.set_layout_engine("constrained", rect=(0, below, 1, 1 - below))
        axes = figure.add_subplot()
        for key, name in NAMES.items():
            each = np.array([shares(found, *key, epsilon) for epsilon in epsilons])
            look = LOOKS[key]
            axes.fill_between(
                epsilons, each.min(1), each.max(1), color=look["color"], alpha=0.15, linewidth=0
            )
            axes.plot(epsilons, each.mean(1), label=name, markersize=5, **look)
        axes.axhline(1.0, color=INK, linewidth=0.8, linestyle=":", label="exact")
        axes.set_xscale("log", base=2)
        axes.set_xticks(epsilons, [f"{epsilon:g}" for epsilon in epsilons])
        axes.set_xlabel("ε of each silo")
        axes.set_ylabel("share of nodes rightly placed")
        figure.legend(loc="outside upper center", ncols=2, fontsize=8)
        figure.text(0.012, 0.06 / 4.8, "\n".join(caption), fontsize=7)
        return saved(figure, "svg")


def main(words: list[str] | None = None) -> None:
    """Run everything and write the table and the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("-o", "--output", type=Path, default=Path("reproduction"))
    parser.add_argument("--repetitions", type=int, default=3)
    parser.add_argument("--quick", action="store_true", help="small networks: not the paper's size")
    given = parser.parse_args(words)
    size = (QUICK if given.quick else PAPER)["II"]
    epsilons = (1.0, 4.0) if given.quick else EPSILONS
    found: list[Placed] = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for epsilon in (math.inf, *sorted(epsilons, key=lambda each: abs(each - 1.0))):
            for repetition in range(given.repetitions):
                for each in placed(size, repetition, epsilon):
                    found.append(each)
                    print(each, flush=True)
            if math.isfinite(epsilon):
                _write(given.output, found, size)
    print(caption_of(found, size))


def _write(folder: Path, found: list[Placed], size: Size) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "communities.csv").open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(Placed.__slots__)
        writer.writerows([getattr(each, name) for name in Placed.__slots__] for each in found)
    (folder / "communities.svg").write_bytes(draw(found, size))


if __name__ == "__main__":
    main()
