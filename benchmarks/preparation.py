"""Fits with nothing but ε: against fits that know all, hard columns, units, a clinical table."""

import importlib.util
import math
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.linalg import subspace_angles

from benchmarks.data_sets import Array, packaged
from benchmarks.fits import fed_pca
from benchmarks.runner import MissingError, Record, Table, case, say, scratch
from fedpower import CodeBook, FedPCA

DELTA = 1e-6


def leading(rows: Array, rank: int) -> Array:
    return _components(np.corrcoef(rows.T), rank)


def _components(correlations: Array, rank: int) -> Array:
    return np.asarray(np.linalg.eigh(correlations)[1][:, ::-1][:, :rank])


def _sine(model: FedPCA, wanted: Array) -> float:
    return float(np.sin(subspace_angles(model.components_.T, wanted)[0]))


# Only ε against all known


class Data(NamedTuple):
    name: str
    rows: Array
    epsilon: float
    target: float | None
    ranges: tuple[float, float] | None = None


def _real(small: bool) -> Iterator[Data]:
    from sklearn.datasets import load_breast_cancer

    yield Data("breast cancer", load_breast_cancer().data, 4.0, 0.48)
    if small:
        return
    answers = packaged("bfi").iloc[:, :25].dropna().to_numpy(float)
    for epsilon, alone, known in ((1.0, 0.50, 0.30), (4.0, 0.15, 0.10)):
        yield Data("bfi", answers, epsilon, alone)
        yield Data("bfi, ranges", answers, epsilon, known, (1.0, 6.0))
    for name, alone in (("DoctorContacts", 0.10), ("diamonds", 0.02)):
        yield Data(name, packaged(name).select_dtypes("number").to_numpy(float), 1.0, alone)


@case(
    "preparation_secure",
    about="the same over secure sums of three silos",
    silos=3,
    aggregation="secure",
    quick={"seeds": 1, "small": True},
)
@case("preparation", quick={"seeds": 1, "small": True})
def preparation(*, seeds: int = 20, silos: int = 1, aggregation: str = "plain", small: bool = False) -> Table:
    """Compare fits with nothing but ε with fits that know every mean and deviation."""
    lines, measured = [], []
    for data in _real(small):
        wanted = leading(data.rows, 3)
        parts = np.array_split(data.rows[np.random.default_rng(1).permutation(len(data.rows))], silos)
        given: Record = {"epsilon": data.epsilon, "delta": DELTA, "aggregation": aggregation}
        exact = {"offset": data.rows.mean(0), "scale": data.rows.std(0), "center": False}
        ranges = {} if data.ranges is None else {"ranges": data.ranges}
        fits = [fed_pca(3, **given, **ranges).fit_silos(parts) for _ in range(seeds)]
        width = data.rows.shape[1]
        known = [
            _sine(fed_pca(3, **given, **exact, row_norm=2.0 * width**0.5).fit_silos(parts), wanted)
            for _ in range(seeds)
        ]
        alone = [_sine(model, wanted) for model in fits]
        measured.append(
            {"case": data.name, "epsilon": data.epsilon, "alone": alone, "known": known, "best": 2.0}
        )
        target = "–" if data.target is None else f"{data.target:.2f}"
        medians = f"{statistics.median(alone):.3f}", target, f"{statistics.median(known):.3f}"
        lines.append((data.name, f"{len(data.rows):,} × {width}", data.epsilon, *medians, "2√d"))
        say(f"{data.name}: {lines[-1][3]}")
    columns = ("data", "rows", "ε", "only ε", "target", "all known", "with B")
    return Table(columns=columns, rows=lines, measured=measured, settings={"delta": DELTA, "rank": 3})


# Hard columns


class Hard(NamedTuple):
    """A kind of columns, how they are fitted, and what the median must reach."""

    name: str
    draw: Callable[[np.random.Generator], tuple[Array, Array]]
    measure: Callable[[FedPCA, Array], float]
    epsilon: float
    goal: str
    rank: int
    ranges: dict[str, tuple[float, float]] | None = None


def with_gaps(rng: np.random.Generator) -> tuple[Array, Array]:
    """Return six columns, one like creatinine missing in 17% of the rows, and the same without gaps."""
    loadings = np.array([[0.9, 0.1], [0.8, -0.2], [0.1, 0.9], [0.6, 0.5], [-0.2, 0.8], [0.7, 0.3]])
    rows = rng.standard_normal((30_000, 2)) @ loadings.T + 0.5 * rng.standard_normal((30_000, 6))
    rows[:, 3] = np.exp(0.3 * rows[:, 3])  # about 1, rarely above 3
    gaps = rows.copy()
    gaps[rng.random(30_000) < 0.17, 3] = np.nan
    return gaps, rows


def yes_or_no(rng: np.random.Generator) -> tuple[Array, Array]:
    loadings = rng.uniform(0.4, 0.9, 16)
    hidden = rng.standard_normal((1_248, 1)) * loadings
    hidden += np.sqrt(1 - loadings**2) * rng.standard_normal((1_248, 16))
    rows = (hidden > rng.uniform(-1.2, 1.2, 16)).astype(np.float64)
    return rows, rows


def years(rng: np.random.Generator) -> tuple[Array, Array]:
    rows = rng.standard_normal((1_000, 3)) @ rng.standard_normal((3, 6))
    rows += 0.5 * rng.standard_normal((1_000, 6))
    rows = rows / rows.std(axis=0) * [5, 1, 10, 0.1, 3, 100] + [2000, 0, 50, 1, 0, 300]
    rows[:, 0] = np.rint(rows[:, 0])
    return rows, rows


def counts(rng: np.random.Generator) -> tuple[Array, Array]:
    factor = rng.standard_normal((2_000, 1))
    sizes = np.exp(1.5 + 0.8 * (0.7 * factor + 0.7 * rng.standard_normal((2_000, 6))))
    rows = np.where(rng.random((2_000, 6)) < 0.35, np.rint(sizes), 0.0)
    return rows, rows


def least_cosine(model: FedPCA, rows: Array) -> float:
    return float(np.abs(np.sum(model.components_.T * leading(rows, len(model.components_)), axis=0)).min())


def sine(model: FedPCA, rows: Array) -> float:
    return _sine(model, leading(rows, len(model.components_)))


def kept(model: FedPCA, rows: Array) -> float:
    """Return how much of what an indicator of x > 0 misses the clipped columns keep, from 0 to 1."""
    book: Any = model.codebook_
    found = []
    for cells, whole in zip(np.clip(rows, book.low, book.high).T, rows.T, strict=True):
        indicator = float(np.corrcoef(whole > 0, whole)[0, 1])
        have = float(np.corrcoef(cells, whole)[0, 1]) if cells.std() > 0 else 0.0
        found.append((have - indicator) / (1.0 - indicator))
    return float(np.mean(found))


CASES = (
    Hard("gaps", with_gaps, least_cosine, 4.0, ">= 0.985", 2, {"3": (0.0, 12.0)}),
    Hard("yes or no", yes_or_no, least_cosine, 1.0, ">= 0.95", 1),
    Hard("years", years, sine, 1.0, "<= 0.2", 3),
    Hard("counts", counts, kept, 1.0, ">= 0.3", 2),
)


def measured(hard: Hard, fits: int) -> Record:
    found, lost, unlisted = [], 0, 0
    for seed in range(fits):
        rows, whole = hard.draw(np.random.default_rng(seed))
        model = FedPCA(hard.rank, epsilon=hard.epsilon, delta=DELTA, ranges=hard.ranges).fit(rows)
        found.append(hard.measure(model, whole))
        book: Any = model.codebook_
        constant = np.clip(whole, book.low, book.high).std(axis=0) < 0.05 * whole.std(axis=0)
        names = [f"column 'x{place}':" for place in np.flatnonzero(constant)]
        lost += len(names)
        unlisted += sum(not any(name in warning for warning in model.warnings_) for name in names)
    return {"found": found, "lost": lost, "unlisted": unlisted}


@case("columns", quick={"fits": 1})
def columns(*, fits: int = 40) -> Table:
    """Fit columns that are hard to prepare: gaps, yes or no, years, counts."""
    lines, records = [], []
    for hard in CASES:
        result = measured(hard, fits)
        records.append({"case": hard.name, **result})
        found, name = sorted(result["found"]), hard.measure.__name__.replace("_", " ")
        ends = f"{found[0]:.3f} to {found[-1]:.3f}"
        middle = f"{statistics.median(found):.3f}"
        lines.append(
            (hard.name, name, hard.epsilon, middle, ends, hard.goal, result["lost"], result["unlisted"])
        )
    titles = ("columns", "measure", "ε", "median", "range", "goal", "lost", "not listed")
    return Table(columns=titles, rows=lines, measured=records, settings={"delta": DELTA})


# Units

MOST_DEGREES, MOST_OFF = 15.0, 0.25
"""What has to hold at ε = 4."""


def units_rows(n_rows: int, n_features: int, seed: int) -> Array:
    rng = np.random.default_rng(seed)
    loadings = rng.standard_normal((3, n_features))
    rows = rng.standard_normal((n_rows, 3)) * [3.0, 2.0, 1.2] @ loadings + rng.standard_normal(
        (n_rows, n_features)
    )
    return np.asarray((rows + 20.0) * np.geomspace(1.0, 1000.0, n_features))


def units_error(
    *, standardize: bool, epsilon: float, n_rows: int, n_features: int, seed: int
) -> tuple[float, float]:
    """Return the angle between private and exact in degrees, and the largest relative error of a variance."""
    silos = np.split(units_rows(n_rows, n_features, seed), 2)
    exact = FedPCA(3, epsilon=math.inf, standardize=standardize).fit_silos(silos)
    private = FedPCA(3, epsilon=epsilon, delta=DELTA, standardize=standardize).fit_silos(silos)
    angle = float(np.degrees(subspace_angles(private.components_.T, exact.components_.T)[0]))
    return angle, float(np.abs(private.explained_variance_ / exact.explained_variance_ - 1.0).max())


@case("units", quick={"rows": 1_000, "seeds": 1})
def units(*, rows: int = 20_000, width: int = 8, seeds: int = 10) -> Table:
    """Compare private with exact fits of columns in units from 1 to 1,000, with the same settings."""
    records, lines = [], []
    for epsilon in (1.0, 4.0):
        for standardize in (True, False):
            given = {"standardize": standardize, "epsilon": epsilon, "n_rows": rows, "n_features": width}
            found = np.array([units_error(seed=seed, **given) for seed in range(seeds)])
            middle, largest = np.median(found, axis=0), found.max(axis=0)
            records.append({"epsilon": epsilon, "standardize": standardize, "found": found.tolist()})
            kind = "correlations" if standardize else "covariances"
            degrees = f"{middle[0]:.1f} ({largest[0]:.1f})"
            shares = f"{middle[1]:.0%} ({largest[1]:.0%})"
            met = "yes" if (largest <= [MOST_DEGREES, MOST_OFF]).all() else "no"
            lines.append((kind, f"{epsilon:g}", degrees, shares, met))
    titles = (
        "components of", "ε", "degrees to the exact ones, median (most)", "variances off by, median (most)",
        f"≤ {MOST_DEGREES:g}° and {MOST_OFF:.0%}",
    )  # fmt: skip
    return Table(
        columns=titles, rows=lines, measured=records, settings={"units": "1 to 1,000", "components": 3}
    )


# A clinical table

SHARES = (0.6, 0.25, 0.15)
FLAGS = [
    "hemo", "homo", "drugs", "oprior", "z30", "race", "gender", "str2", "symptom", "treat", "offtrt", "r",
    "cens",
]  # fmt: skip
RANGES = {
    "age": "12, 90", "wtkg": "30, 160", "karnof": "0, 100", "preanti": "0, 3000", "cd40": "0, 1500",
    "cd420": "0, 1500", "cd80": "0, 6000", "cd820": "0, 6000", "days": "0, 1300",
}  # fmt: skip
RULES = [
    '"" = "drop"', 'pidnum = "drop"', 'zprior = "drop"',  # everybody had zidovudine before
    *(f'{name} = {{ kind = "number", range = [{ends}] }}' for name, ends in RANGES.items()),
    # in the middle of what a patient needed to be taken in, 200 to 500
    'cd496 = { kind = "number", range = [0, 1500], missing = 350 }',
    "strat = { levels = [1, 2, 3] }", "arms = { levels = [0, 1, 2, 3] }",
]  # fmt: skip
FORMS = {"flags as levels": "{ levels = [0, 1] }", "flags as yes/no": '{ kind = "yes/no" }'}


@case("tables", quick={"seeds": 1})
def tables(*, seeds: int = 20, csv: Path | None = None) -> Table:
    """Fit a clinical table as it is (ACTG175 of lifelines): flags, missing cells, uneven hospitals."""
    import polars as pl

    package = importlib.util.find_spec("lifelines")
    if csv is None and (package is None or package.origin is None):
        raise MissingError("lifelines must be installed, or csv must name its ACTG175.csv")
    path = csv or Path(str(package and package.origin)).parent / "datasets" / "ACTG175.csv"
    whole = pl.read_csv(path, infer_schema_length=None)
    lines, records = [], []
    with scratch() as folder:
        cuts = np.cumsum([round(share * whole.height) for share in SHARES[:-1]])
        files = {}
        parts = np.split(np.random.default_rng(0).permutation(whole.height), cuts)
        for name, part in zip(("north", "south", "east"), parts, strict=True):
            files[name] = folder / f"{name}.csv"
            whole[part].write_csv(files[name])
        for form, flag in FORMS.items():
            rules = folder / "rules.toml"
            body = [*RULES, *(f"{name} = {flag}" for name in FLAGS)]
            rules.write_text(
                "\n".join(['format = "fedpower-codebook/2"', "[rules]", *body]) + "\n", encoding="utf-8"
            )
            for aggregation, epsilon in (("plain", 4.0), ("secure", 4.0), ("secure", 1.0)):
                found = _captured(files, rules, seeds, aggregation=aggregation, epsilon=epsilon)
                records.append({"flags": form, "aggregation": aggregation, "epsilon": epsilon, **found})
                captured = found["captured"]
                medians = f"{statistics.median(captured):.3f}", f"{statistics.median(found['determined']):g}"
                asked = "0.95" if epsilon == 4 else "–"
                fit = f"{form}, {found['columns']} columns", aggregation, epsilon
                least = f"{min(captured):.3f}"
                lines.append((*fit, medians[0], least, asked, medians[1], f"{found['true']} of {seeds}"))
    titles = (
        "ACTG175", "sum", "ε", "captured, median", "least", "target", "determined, median",
        "fits whose determined components are within 45°",
    )  # fmt: skip
    shares = ", ".join(f"{share:.0%}" for share in SHARES)
    settings = {"rows": whole.height, "hospitals": shares, "delta": DELTA, "rank": 3}
    return Table(columns=titles, rows=lines, measured=records, settings=settings)


def _captured(files: dict[str, Path], rules: Path, seeds: int, **given: Any) -> Record:
    book = CodeBook.load(rules)
    width = FedPCA(1, epsilon=math.inf, standardize=True, codebook=book).fit_silos(files).n_features_in_
    exact = FedPCA(width, epsilon=math.inf, standardize=True, codebook=book).fit_silos(files)
    moment = (exact.components_.T * exact.explained_variance_) @ exact.components_
    best = float(exact.explained_variance_[:3].sum())
    captured, determined, true = [], [], 0
    for _ in range(seeds):
        model = fed_pca(3, delta=DELTA, codebook=book, **given).fit_silos(files)
        held = np.einsum("ij,jl,il->i", model.components_, moment, model.components_)
        clear = model.component_angles_ <= 45.0
        cosines = np.abs(np.sum(model.components_ * exact.components_[:3], axis=1))
        captured.append(float(held.sum()) / best)
        determined.append(int(clear.sum()))
        true += bool((cosines[clear] >= np.sqrt(0.5)).all())
    return {"captured": captured, "determined": determined, "true": true, "columns": width}
