"""Clipped products against the noised covariance on wide rows, and whether ``auto`` is right to clip."""

import itertools
import math
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from benchmarks.data_sets import Truth, model_one
from benchmarks.fits import fed_pca
from benchmarks.runner import Record, Table, case, having, say
from fedpower.estimator.plan import planned
from fedpower.estimator.terms import options_of

N_SILOS = 50
ROWS: tuple[tuple[str, int, int, int], ...] = (
    ("Model I", 100, 100_000, 4),
    ("Model I", 300, 20_000, 4),
    ("Model I", 300, 100_000, 4),
    ("Model I", 1000, 50_000, 4),
    ("Model I", 1000, 100_000, 4),
    ("Model I", 1000, 300_000, 4),
    ("genotypes", 3000, 100_000, 3),
    ("Model I", 3000, 100_000, 4),
)
"""Law, d, n and k."""

GIVEN: Record = {"epsilon": 1.0, "delta": 1e-6, "standardize": False, "normalize": True, "center": False}


def rows_of(law: str, width: int, count: int, rank: int, seed: int) -> Any:
    if law == "Model I":
        return model_one(count, width, rank=rank, seed=seed).astype(np.float32)
    rng = np.random.default_rng(seed)
    ancestral = rng.uniform(0.05, 0.5, width)
    apart_by = 0.02  # F_ST of k + 1 populations [Balding & Nichols 1995]
    odds = (1 - apart_by) / apart_by
    frequencies = np.clip(rng.beta(ancestral * odds, (1 - ancestral) * odds, (rank + 1, width)), 0.001, 0.999)
    mean = frequencies.mean(axis=0)
    rows = np.empty((count, width), dtype=np.float32)
    for start in range(0, count, 2048):
        chance = frequencies[rng.integers(0, rank + 1, min(2048, count - start))]
        rows[start : start + 2048] = (rng.binomial(2, chance) - 2 * mean) / np.sqrt(2 * mean * (1 - mean))
    return rows / np.linalg.norm(rows, axis=1, keepdims=True)


@case("clipped", quick={"seeds": 1, "places": (0,), "shrink": 50})
def clipped(*, seeds: int = 20, places: tuple[int, ...] = tuple(range(len(ROWS))), shrink: int = 1) -> Table:
    """Compare clipped products with the noised covariance on wide rows, 50 silos over secure sums."""
    records: list[Record] = []
    for seed, place in itertools.product(range(seeds), places):
        law, width, count, rank = ROWS[place]
        rows = rows_of(law, width, count // shrink, rank, seed)
        truth = Truth.of(rows.astype(np.float64), rank)
        for noise in ("clipped", "covariance"):
            model = fed_pca(rank, noise=noise, aggregation="secure", random_state=seed, **GIVEN)
            score = truth.score(model.fit_silos(np.array_split(rows, N_SILOS)).components_.T)
            about = {"place": place, "seed": seed, "noise": noise}
            records.append({**about, "sine": score["error"], "lost": 1 - score["captured"]})
            say(str(records[-1]))
    lines = []
    for place, (law, width, count, rank) in enumerate(ROWS):
        runs = [having(records, place=place, noise=noise) for noise in ("covariance", "clipped")]
        cells = [
            f"{np.mean([run['sine'] for run in each]):.3f} / {np.mean([run['lost'] for run in each]):.4f}"
            if each
            else "–"
            for each in runs
        ]
        number = " and ".join(str(n) for n in sorted({len(each) for each in runs}))
        lines.append([f"{law}, k = {rank}", width, f"{count:,}", *cells, number])
    columns = ["law", "d", "n", "covariance", "clipped", "seeds"]
    settings = {"silos": N_SILOS, "epsilon": 1, "delta": 1e-6}
    return Table(columns=columns, rows=lines, measured=records, settings=settings)


# Where auto takes clipped products

CLEARLY, MOST_LOST = 0.8, 1.02
"""Auto should clip where that has below the first share of the covariance's error, never above the second."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    n_features: int
    rank: int
    energy: float
    epsilon: float
    n_rows: int
    spectrum: str

    @property
    def values(self) -> Any:
        lead, others = np.ones(self.rank), np.ones(self.n_features - self.rank)
        if self.spectrum == "falling":
            lead = np.linspace(2.0, 1.0, self.rank)
            others = np.arange(self.rank + 1, self.n_features + 1) ** -0.5
        return np.concatenate([self.energy * lead / lead.sum(), (1 - self.energy) * others / others.sum()])

    def planned(self, noise: str, spectrum: Any = None, rehearsals: int | None = None) -> Any:
        given = {**GIVEN, "epsilon": self.epsilon, "noise": noise, "energy": self.energy}
        model = fed_pca(self.rank, **given)
        terms: Record = {"n_features": self.n_features, "spectrum": spectrum, "n_rehearsals": rehearsals}
        return planned(options_of(model), sizes={"all": self.n_rows}, **terms)

    @property
    def taken(self) -> bool:
        return bool(self.planned("auto").noise == "clipped")


def grid(every: int = 1) -> list[Point]:
    """Return the places at which the leading eigenvalues stand out; n follows from the gap over the noise."""
    points, turns = [], itertools.cycle((1.0, 4.0))
    for d, k, energy, clarity, spectrum in itertools.product(
        (100, 300), (2, 8), (0.02, 0.05, 0.13, 0.4), (1.2, 2.0, 4.0, 16.0), ("level", "falling")
    ):
        facts: Record = {"n_features": d, "rank": k, "energy": energy, "epsilon": next(turns)}
        point = Point(n_rows=10**6, spectrum=spectrum, **facts)
        if point.values[k - 1] >= 1.5 * point.values[k]:
            points.append((point, clarity * math.sqrt(d) / (energy / k - (1 - energy) / (d - k))))
    noises = [point.planned("covariance").candidates[0].noise_level for point, _ in points[::every]]
    return [
        replace(point, n_rows=math.ceil(10**6 * size * noise))
        for (point, size), noise in zip(points[::every], noises, strict=True)
    ]


@case("clipped_auto", quick={"every": 80, "rehearsals": 1})
def clipped_auto(*, every: int = 1, rehearsals: int | None = None) -> Table:
    """Find where auto takes clipped products, and the errors predicted there."""
    records = []
    for point in grid(every):
        ways = point.planned("clipped", point.values, rehearsals).candidates
        errors = {way.noise: way.error for way in reversed(ways) if way.noise in ("covariance", "clipped")}
        records.append({**asdict(point), **errors, "taken": point.taken})
    lines = []
    for energy, spectrum in dict.fromkeys((each["energy"], each["spectrum"]) for each in records):
        here = having(records, energy=energy, spectrum=spectrum)
        found = {
            taken: [each["clipped"] / each["covariance"] for each in having(here, taken=taken)]
            for taken in (True, False)
        }
        shown = [f"{min(each):.2f} to {max(each):.2f}" if each else "–" for each in found.values()]
        lines.append([f"{energy:.0%}", spectrum, len(here), len(found[True]), *shown])
    return Table(
        columns=["energy", "spectrum", "places", "taken", "clipped / covariance there", "and elsewhere"],
        rows=lines,
        measured=records,
        notes=[
            "Errors are sin θ_k as planned; ratios of them, least to most. A level spectrum has equal "
            "leading eigenvalues and equal others; in a falling one the leading fall to half and the "
            "others like 1/√j."
        ],
    )
