"""Small results of every kind, for what is made of results."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from benchmarks.fits import fed_pca
from fedpower import load
from fedpower.report import Result
from fedpower.report.record import Record
from problems import spiked_rows

HOSTILE = (
    "<script>alert(1)</script>",
    "\"'><img src=x onerror=alert(1)>",
    "</style></script></table>",
    "شدة الألم",
    "\u05e9\u05dc\u05d5\u05dd a word backwards",
    "w" * 200,
    "age & sex",
    "&lt;i&gt;",
    "a long name of several words " * 7,
    "{{7*7}} ${1} `x`",
)
"""Names that columns and silos have in the worst of cases."""

PRIVATE = {"epsilon": 1.0, "delta": 1e-6, "row_norm": 8.0}
SILOS = ("north", "south", "east", "west", "centre", "isles")


def hospitals(
    n_features: int = 8,
    names: tuple[str, ...] = SILOS,
    columns: tuple[str, ...] | None = None,
    rows: int = 600,
) -> dict[str, pd.DataFrame]:
    numbers = spiked_rows(rows * len(names), n_features, rank=3, seed=5)
    frame = pd.DataFrame(numbers, columns=columns or [f"test{place}" for place in range(n_features)])
    return {name: frame[place :: len(names)] for place, name in enumerate(names)}


def written(
    folder: Path, silos: Mapping[str, Any], rank: int = 4, command: Any = None, **parameters: Any
) -> Path:
    model = fed_pca(rank, **{"epsilon": float("inf"), "standardize": False, "random_state": 0, **parameters})
    return model.fit_silos(silos).result_.with_record(command=command and list(command)).save(folder)


def hostile() -> dict[str, pd.DataFrame]:
    return hospitals(len(HOSTILE), tuple(each for each in HOSTILE if each.isprintable()), HOSTILE)


_PAPER = {"solver": "fedpower", "local_steps": 2, "n_participants": 3, "n_steps": 24}
_WRITTEN: dict[str, Callable[[Path], Path]] = {
    "private": lambda folder: written(folder, hospitals(), **PRIVATE),
    "drowned": lambda folder: written(folder, hospitals(), **{**PRIVATE, "epsilon": 0.02}),
    "secure": lambda folder: written(folder, hospitals(), aggregation="secure", **PRIVATE),
    "step": lambda folder: written(folder, hospitals(), noise="step", n_steps=4, **PRIVATE),
    "exact": lambda folder: written(folder, hospitals(), command=["fedpower", "fit", "a b.csv"]),
    "krylov": lambda folder: written(folder, hospitals(40), 3, solver="krylov", iteration_rank=4, tol=1e-12),
    "sampled": lambda folder: written(folder, hospitals(), 2, iteration_rank=3, **_PAPER),
    "one": lambda folder: written(folder, hospitals(3, ("alone",)), 1),
    "wide": lambda folder: written(folder, hospitals(505, ("a", "b"), rows=40), 2),
    "hostile": lambda folder: written(folder, hostile(), 3, HOSTILE, **PRIVATE),
    "scored": lambda folder: written(folder, hostile(), 3, **{**PRIVATE, "epsilon": 8.0}, scores_epsilon=4.0),
    "federated": lambda folder: federated(sample(folder.parent, "private"), folder),
}
KINDS = tuple(_WRITTEN)


def sample(folder: Path, kind: str) -> Path:
    """Return the folder of a kind of result, which is fitted when it is first asked for."""
    place = folder / kind
    return place if place.exists() else _WRITTEN[kind](place)


def federated(like: Path, folder: Path) -> Path:
    """Return a result as a federation leaves it: its silos keep to themselves where their rows are."""
    run = {**load(like).run, "command": None}
    run["silos"] = [{"name": each["name"], "rows": each["rows"]} for each in run["silos"]]
    run["federation"] = {
        "name": "heart-2026",
        "agreement": "ab" * 32,
        "run": "0123456789abcdef",
        "rounds_resumed": 0,
        "silent": {**dict.fromkeys(SILOS, 0), "never-there": 2},
    }
    return with_run(load(like), run).save(folder)


def with_run(result: Result, run: Mapping[str, Any]) -> Result:
    return replace(result, record=Record.of(run))


def with_spectrum(result: Result, beyond: int) -> Result:
    """Return a result whose release gave so many eigenvalues more."""
    last = result.explained_variance[-1]
    return replace(
        result, spectrum=np.concatenate([result.explained_variance, last * np.linspace(0.9, -0.2, beyond)])
    )
