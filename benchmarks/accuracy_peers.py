"""fedpower beside its peers: the same rows, bounded alike, the same ε, one way of scoring.

Whoever needs pooled rows gets them. A fit has one core; OpenDP and diffprivlib run in environments and
processes of their own and are ended when their time for a data set is over.
"""

import argparse
import functools
import statistics
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.baselines import (
    analyze_gauss,
    exponential_eigenvectors,
    local_eigenspaces,
    unweighted_average,
    weighted_average,
)
from benchmarks.common import parser, read_json, report
from benchmarks.data_sets import (
    A9A,
    DataSet,
    Loaders,
    Truth,
    a9a_unit,
    available,
    breast_cancer,
    digits,
    mnist,
    model1,
    split,
)
from benchmarks.measuring import having, spread, values
from benchmarks.peer_process import HERE, PATIENCE, peer_python, run_peer
from benchmarks.private_fits import Federation
from benchmarks.processes import on_every_core
from fedpower.engines.inprocess import available_cores
from fedpower.privacy import default_delta

PEERS = {"OpenDP": "opendp", "diffprivlib": "diffprivlib"}


def main() -> None:
    """Measure, or take what was measured before, and tabulate it."""
    options = _options()
    if options.tabulate is None:
        settings, measured = measure(options)
    else:
        found = read_json(options.tabulate)
        settings, measured = found["settings"], found["measured"]
    tabulate(options, settings, measured)


def measure(options: argparse.Namespace) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the settings and what was measured: everything here, then the peers."""
    left_out: list[str] = []
    facts = [plain(each).facts() for each in available(loaders(options.a9a), left_out.append)]
    print("\n".join(left_out))
    names = [each["data"] for each in facts]
    tasks = [Task(name, str(options.a9a), seed) for name in names for seed in range(options.seeds)]
    raw = [row for rows in on_every_core(fit_here, tasks).values() for row in rows]
    ended = []
    for name in names:
        for peer, (rows, how) in fit_peers(name, options).items():
            raw += rows
            ended.append({"data": name, "peer": peer, "ended": how})
            print(f"{peer} on {name}: {len(rows)} fits, {how}", flush=True)
    settings = {
        "epsilons": list(EPSILONS),
        "delta": sorted({default_delta(each["rows"]) for each in facts}),
        "seeds": list(range(options.seeds)),
        "limit_s": options.limit,
        "limit_clock_s": PATIENCE * options.limit,
        "left_out": left_out,
    }
    return settings, {"fits": raw, "peers": ended, "data": facts}


def tabulate(options: argparse.Namespace, settings: dict[str, Any], measured: dict[str, Any]) -> None:
    """Print and keep the tables."""
    raw, facts, seeds = measured["fits"], measured["data"], len(settings["seeds"])
    ended = {(each["data"], each["peer"]): each["ended"] for each in measured["peers"]}
    keys = [(each["data"], method) for each in facts for method in ABOUT]

    def table(measure: str) -> list[list[str]]:
        return [
            [
                *key,
                *ABOUT[key[1]],
                *_cells(raw, key, measure, seeds=seeds, ended=ended.get(key, "")),
                _seconds(raw, key),
            ]
            for key in keys
        ]

    columns = ["data", "method", "who sees rows", "privacy"]
    columns += [*(f"ε = {epsilon:g}" for epsilon in EPSILONS), "core seconds a fit"]
    report(
        options,
        name="accuracy_peers",
        settings=settings,
        columns=columns,
        rows=table("captured"),
        raw=measured,
        notes=[
            "Captured variance as a share of what the exact subspace captures, mean ± standard "
            f"deviation over {seeds} seeds. “did not finish”: not one fit at this ε, smallest ε first, "
            f"within {settings['limit_s']:g} core seconds for the data set, or "
            f"{settings['limit_clock_s']:g} seconds on the clock; “n of {seeds}”: so many did. "
            "The time is processor time of the median fit, reading included.",
            "UDA and WDA have no noise: they send local eigenvectors as they are. OpenDP draws from "
            "the operating system and cannot be seeded; the others follow from the seed. Both "
            "libraries spend part of ε on eigenvalues, as they come. The exponential mechanism is "
            "their method with a sampler that finishes, all of ε spent on eigenvectors.",
        ],
        more=[
            ("The same fits by sin θ_k to the exact subspace", columns, table("error")),
            ("How the data were used", list(facts[0]), [list(each.values()) for each in facts]),
            (
                "How the peers' runs ended",
                ["data", "peer", "ended"],
                [list(each.values()) for each in measured["peers"]],
            ),
        ],
    )


def fit_peers(name: str, options: argparse.Namespace) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """Return each peer's measurements on a data set and how its run ended; one core for each."""
    with ThreadPoolExecutor(min(len(PEERS), available_cores())) as threads:
        found = threads.map(lambda peer: _fit_peer(peer, name, options), PEERS)
        return dict(zip(PEERS, found, strict=True))


def _fit_peer(peer: str, name: str, options: argparse.Namespace) -> tuple[list[dict[str, Any]], str]:
    data, truth = loaded(name, str(options.a9a))
    try:
        python = peer_python(PEERS[peer])
    except (CalledProcessError, OSError) as error:
        return [], f"not installed: {error}"
    run = run_peer(
        python,
        HERE / f"{PEERS[peer]}_pca.py",
        rows=data.rows,
        rank=data.rank,
        epsilons=EPSILONS,
        seeds=options.seeds,
        limit_s=options.limit,
    )
    rows = [
        measurement(
            data=name,
            method=peer,
            epsilon=fit["epsilon"],
            seed=fit["seed"],
            seconds=fit["seconds"],
            score=truth.score(np.array(fit["basis"])),
        )
        for fit in run.fits
    ]
    return rows, run.ended


def _cells(
    raw: list[dict[str, Any]], key: tuple[str, str], measure: str, *, seeds: int, ended: str
) -> list[str]:
    """Return a cell for every ε: mean ± standard deviation, how many if not all, or what happened."""
    cells, here = [], having(raw, data=key[0], method=key[1])
    for epsilon in EPSILONS:
        found = values(having(here, epsilon=epsilon), measure)
        some = "" if len(found) == seeds else f" ({len(found)} of {seeds})"
        reported = f"{spread(found, '.3f', '.3f')}{some}" if found else ended.partition(":")[0]
        cells.append(reported)
    return cells


def _seconds(raw: list[dict[str, Any]], key: tuple[str, str]) -> str:
    found = values(having(raw, data=key[0], method=key[1]))
    return f"{statistics.median(found):.2g}" if found else ""


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--a9a", type=Path, default=A9A, help="a9a in svmlight format")
    made.add_argument("--seeds", type=int, default=5, help="number of splits and repetitions")
    made.add_argument("--limit", type=float, default=20.0, help="core seconds for a peer and data set")
    made.add_argument(
        "--tabulate", type=Path, metavar="FILE", help="run nothing: make the tables of these results"
    )
    return made.parse_args()


Array = NDArray[np.float64]

EPSILONS = (0.5, 1.0, 4.0)
NOBODY, CURATOR = "nobody but each silo", "a trusted curator"
ABOUT = {  # method: who sees rows, what is promised
    "fedpower": (NOBODY, "(ε, δ)"),
    "paper": (NOBODY, "(ε, δ)"),
    "Analyze-Gauss": (CURATOR, "(ε, δ)"),
    "exponential mechanism": (CURATOR, "pure ε"),
    "OpenDP": (CURATOR, "pure ε"),
    "diffprivlib": (CURATOR, "pure ε"),
    "UDA": (NOBODY, "none"),
    "WDA": (NOBODY, "none"),
}


class Task(NamedTuple):
    """One random split of one data set."""

    data: str
    a9a: str
    seed: int


def loaders(a9a: Path) -> Loaders:
    """Return the data sets of the comparison by name."""
    return {
        "Model I": model1,
        "a9a, unit rows": lambda: a9a_unit(a9a),
        "digits": digits,
        "breast cancer": breast_cancer,
        "MNIST": mnist,
    }


@functools.lru_cache(maxsize=1)
def loaded(name: str, a9a: str) -> tuple[DataSet, Truth]:
    """Return a data set as every method gets it, and the truth about it."""
    data = plain(loaders(Path(a9a))[name]())
    return data, Truth.of(data.rows, data.rank)


def plain(data: DataSet) -> DataSet:
    """Return the data with rows of norm at most 1 and no centring on their mean.

    Where a set is centred elsewhere its mean becomes a leading direction, and counts as one.
    """
    return replace(
        data,
        rows=data.bounded(),
        rank=data.rank + data.centred(),
        parameters={"row_norm": 1.0, "center": False},
        treatment="unit rows, not centred" if data.centred() else data.treatment,
    )


def fit_here(task: Task) -> list[dict[str, Any]]:
    """Return a row of measurements for every method of this module and every ε on one split."""
    data, truth = loaded(task.data, task.a9a)
    rng = np.random.default_rng(task.seed)
    places = split("at random", data.labels, data.n_silos, rng)
    silos = Federation(data, places)
    moment, reading_seconds = _timed(lambda rows: rows.T @ rows / len(rows), data.rows)
    rows = []
    for epsilon in EPSILONS:
        for method in ("fedpower", "paper"):
            fit = silos.fit(method, epsilon=epsilon, seed=task.seed)
            rows.append((method, epsilon, fit.basis, silos.reading_seconds + fit.seconds))
        for method in ("Analyze-Gauss", "exponential mechanism"):
            basis, seconds = _timed(_curator, method, moment, data, epsilon, task.seed)
            rows.append((method, epsilon, basis, reading_seconds + seconds))
    parts = [data.rows[each] for each in places]
    local, seconds = _timed(local_eigenspaces, parts, data.rank)
    for method, average in (("UDA", unweighted_average), ("WDA", weighted_average)):
        basis = average(local, data.rank)
        rows += [(method, epsilon, basis, seconds) for epsilon in EPSILONS]
    return [
        measurement(
            data=task.data,
            method=method,
            epsilon=epsilon,
            seed=task.seed,
            seconds=seconds,
            score=truth.score(basis),
        )
        for method, epsilon, basis, seconds in rows
    ]


def measurement(
    *, data: str, method: str, epsilon: float, seed: int, seconds: float, score: dict[str, float]
) -> dict[str, Any]:
    """Return one line of what was measured."""
    about = {"data": data, "method": method, "epsilon": epsilon, "seed": seed}
    return about | {"seconds": round(seconds, 4)} | score


def _curator(method: str, moment: Array, data: DataSet, epsilon: float, seed: int) -> Array:
    """Return what somebody who holds all rows would publish; the same draws for every ε."""
    rng, n_rows = np.random.default_rng([seed, 1]), len(data.rows)
    if method == "Analyze-Gauss":
        delta = default_delta(n_rows)
        return analyze_gauss(moment, data.rank, n_rows=n_rows, epsilon=epsilon, delta=delta, rng=rng)
    return exponential_eigenvectors(moment, data.rank, n_rows=n_rows, epsilon=epsilon, rng=rng)


def _timed(function: Any, *arguments: Any) -> tuple[Any, float]:
    """Return what the function gives and the seconds of a core it took."""
    began = time.process_time()
    found = function(*arguments)
    return found, time.process_time() - began


if __name__ == "__main__":
    main()
