"""Accuracy of private fits on real data, and against peers with the same rows, ε and scoring."""

import functools
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from subprocess import CalledProcessError
from typing import Any, NamedTuple

import numpy as np

from benchmarks import baselines
from benchmarks.data_sets import KINDS, Array, DataSet, Places, Truth, available, load, split
from benchmarks.fits import fed_pca
from benchmarks.peer_process import HERE, PATIENCE, peer_python, run_peer
from benchmarks.runner import Record, Table, case, having, on_every_core, say, spread, values
from fedpower.privacy import default_delta

EPSILONS = (0.5, 1.0, 4.0)
METHODS: dict[str, Record] = {
    "fedpower": {},
    "step": {"noise": "step"},
    "paper": {"noise": "paper", "solver": "fedpower", "schedule": "decaying", "local_steps": 2,
              "n_steps": 10},
}  # fmt: skip
"""Parameters in addition to the data's own: every default; every step noised; the paper as in [FP §5]."""


class Task(NamedTuple):
    data: str
    kind: str
    seed: int
    with_peers: bool = False


REAL = ("a9a, min-max", "a9a, unit rows", "digits", "breast cancer", "MNIST")
COMPARED = ("Model I", "a9a, unit rows", "digits", "breast cancer", "MNIST")


def private_fit(data: DataSet, places: Places, method: str, epsilon: float, seed: int) -> Array:
    given = {"standardize": False, "random_state": seed, "n_jobs": 1}
    model = fed_pca(data.rank, epsilon=epsilon, **given, **data.parameters, **METHODS[method])
    parts = [np.ascontiguousarray(data.rows[rows]) for rows in places]
    return np.asarray(model.fit_silos(parts).components_.T)


def _facts(sets: dict[str, DataSet]) -> tuple[str, list[str], list[list[Any]]]:
    facts = [each.facts() for each in sets.values()]
    return "How the data were used", list(facts[0]), [list(each.values()) for each in facts]


def _settings(sets: dict[str, DataSet], seeds: int, left_out: list[str]) -> Record:
    deltas = sorted({default_delta(len(each.rows)) for each in sets.values()})
    return {"epsilons": list(EPSILONS), "delta": deltas, "seeds": list(range(seeds)), "left_out": left_out}


# Real data


@case("accuracy_real", quick={"names": ("breast cancer",), "seeds": 1})
def accuracy_real(*, names: tuple[str, ...] = REAL, seeds: int = 10) -> Table:
    """Fit real data with privacy: the default, every step noised, and the paper's noise."""
    left_out: list[str] = []
    sets = available(names, left_out.append)
    tasks = [Task(name, kind, seed) for name in sets for kind in KINDS for seed in range(seeds)]
    measured = [row for rows in on_every_core(_fit, tasks).values() for row in rows]
    keys = [(name, kind, epsilon) for name in sets for kind in KINDS for epsilon in EPSILONS]

    def table(measure: str) -> list[list[str]]:
        lines = []
        for data, kind, epsilon in keys:
            here = having(measured, data=data, split=kind, epsilon=epsilon)
            cells = [spread(values(having(here, method=each), measure), ".3f", ".3f") for each in METHODS]
            lines.append([data, kind, f"{epsilon:g}", *cells])
        return lines

    columns = ["data", "split", "ε", *METHODS]
    return Table(
        columns=columns,
        rows=table("captured"),
        measured=measured,
        notes=[
            "Captured variance: what the private subspace captures of the pooled variance, as a share of "
            f"what the exact one captures; mean ± standard deviation over {seeds} seeds."
        ],
        more=[
            ("The same fits by sin θ_k to the exact subspace, over all k columns", columns, table("error")),
            _facts(sets),
        ],
        settings=_settings(sets, seeds, left_out),
    )


def _fit(task: Task) -> list[Record]:
    data = plain(_loaded(task.data)) if task.with_peers else _loaded(task.data)
    truth = Truth.of(data.bounded(), data.rank, centred=data.centred())
    places = split(task.kind, data.labels, data.n_silos, np.random.default_rng(task.seed))
    found = []
    for epsilon in EPSILONS:
        ways: dict[str, Callable[[], Array]] = {
            method: functools.partial(private_fit, data, places, method, epsilon, task.seed)
            for method in METHODS
            if method != "step" or not task.with_peers
        }
        if task.with_peers:
            ways |= _others(data, places, epsilon, task.seed)
        for method, work in ways.items():
            began = time.process_time()
            basis = work()
            seconds = round(time.process_time() - began, 4)
            about = {"data": task.data, "split": task.kind, "method": method, "epsilon": epsilon}
            found.append({**about, "seed": task.seed, "seconds": seconds, **truth.score(basis)})
    return found


_loaded = functools.lru_cache(maxsize=1)(load)


# Peers

PEERS = {"OpenDP": "opendp", "diffprivlib": "diffprivlib"}
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


@case("accuracy_peers", quick={"names": ("breast cancer",), "seeds": 1, "peers": ()})
def accuracy_peers(
    *,
    names: tuple[str, ...] = COMPARED,
    seeds: int = 5,
    limit_s: float = 20.0,
    peers: tuple[str, ...] = tuple(PEERS),
) -> Table:
    """Compare fedpower with OpenDP, diffprivlib, trusted curators and one-shot averages."""
    left_out: list[str] = []
    sets = available(names, left_out.append)
    sets = {name: plain(each) for name, each in sets.items()}
    tasks = [Task(name, "at random", seed, with_peers=True) for name in sets for seed in range(seeds)]
    fits = [row for rows in on_every_core(_fit, tasks).values() for row in rows]
    ended = {}
    for name, data in sets.items():
        with ThreadPoolExecutor(max(1, len(peers))) as threads:
            runs = threads.map(lambda peer, data=data: _fit_peer(peer, data, seeds, limit_s), peers)
            for peer, (rows, how) in zip(peers, runs, strict=True):
                fits += rows
                ended[name, peer] = how
                say(f"{peer} on {name}: {len(rows)} fits, {how}")

    def table(measure: str) -> list[list[str]]:
        lines = []
        for data in sets:
            for method, about in ABOUT.items():
                here = having(fits, data=data, method=method)
                found = (values(having(here, epsilon=epsilon), measure) for epsilon in EPSILONS)
                cells = [_cell(each, seeds, ended.get((data, method), "")) for each in found]
                seconds = f"{statistics.median(values(here)):.2g}" if here else ""
                lines.append([data, method, *about, *cells, seconds])
        return lines

    amounts = [f"ε = {epsilon:g}" for epsilon in EPSILONS]
    columns = ["data", "method", "who sees rows", "privacy", *amounts, "core seconds a fit"]
    endings = [{"data": data, "peer": peer, "ended": how} for (data, peer), how in ended.items()]
    ends = [list(each.values()) for each in endings]
    return Table(
        columns=columns,
        rows=table("captured"),
        measured={"fits": fits, "peers": endings, "data": [each.facts() for each in sets.values()]},
        notes=[
            "Captured variance as a share of what the exact subspace captures, mean ± standard deviation "
            f"over {seeds} seeds. “did not finish”: not one fit at this ε, smallest ε first, within "
            f"{limit_s:g} core seconds for the data set, or {PATIENCE * limit_s:g} seconds on the clock; “n "
            f"of {seeds}”: so many did. The time is processor time of the median fit, reading included.",
            "UDA and WDA have no noise. Both libraries spend part of ε on eigenvalues, as they come. The "
            "exponential mechanism is their method with a sampler that finishes, all of ε spent on "
            "eigenvectors.",
        ],
        more=[
            ("The same fits by sin θ_k to the exact subspace", columns, table("error")),
            _facts(sets),
            ("How the peers' runs ended", ["data", "peer", "ended"], ends),
        ],
        settings=_settings(sets, seeds, left_out) | {"limit_clock_s": PATIENCE * limit_s},
    )


def plain(data: DataSet) -> DataSet:
    """Return the data with rows of norm at most 1 and no centring on their mean.

    Where a set is centred elsewhere, its mean becomes a leading direction and counts as one.
    """
    return replace(
        data,
        rows=data.bounded(),
        rank=data.rank + data.centred(),
        parameters={"row_norm": 1.0, "center": False},
        treatment="unit rows, not centred" if data.centred() else data.treatment,
    )


def _others(data: DataSet, places: Places, epsilon: float, seed: int) -> dict[str, Callable[[], Array]]:
    n_rows, rank = len(data.rows), data.rank
    given: Record = {"n_rows": n_rows, "epsilon": epsilon, "rng": np.random.default_rng([seed, 1])}

    def moment() -> Array:
        return np.asarray(data.rows.T @ data.rows / n_rows)

    def local() -> Any:
        return baselines.local_eigenspaces([data.rows[each] for each in places], rank)

    return {
        "Analyze-Gauss": lambda: baselines.analyze_gauss(
            moment(), rank, delta=default_delta(n_rows), **given
        ),
        "exponential mechanism": lambda: baselines.exponential_eigenvectors(moment(), rank, **given),
        "UDA": lambda: baselines.unweighted_average(local(), rank),
        "WDA": lambda: baselines.weighted_average(local(), rank),
    }


def _fit_peer(peer: str, data: DataSet, seeds: int, limit_s: float) -> tuple[list[Record], str]:
    try:
        python = peer_python(PEERS[peer])
    except (CalledProcessError, OSError) as error:
        return [], f"not installed: {error}"
    script, truth = (HERE / "pca.py", PEERS[peer]), Truth.of(data.rows, data.rank)
    run = run_peer(
        python, script, rows=data.rows, rank=data.rank, epsilons=EPSILONS, seeds=seeds, limit_s=limit_s
    )  # fmt: skip
    rows = [
        {"data": data.name, "method": peer, **{key: fit[key] for key in ("epsilon", "seed", "seconds")}}
        | truth.score(np.array(fit["basis"]))
        for fit in run.fits
    ]
    return rows, run.ended


def _cell(found: list[float], seeds: int, ended: str) -> str:
    some = "" if len(found) == seeds else f" ({len(found)} of {seeds})"
    return f"{spread(found, '.3f', '.3f')}{some}" if found else ended.partition(":")[0]
