"""fedpower beside its peers: the same rows, bounded alike, the same ε, one way of scoring.

Whoever needs pooled rows gets them. A fit has one core; OpenDP and diffprivlib run in environments and
processes of their own and are ended when their time for a data set is over.
"""

import argparse
import json
import statistics
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from subprocess import CalledProcessError
from typing import Any

import numpy as np

from benchmarks.common import parser, report
from benchmarks.data_sets import A9A, available
from benchmarks.peer_methods import (
    ABOUT,
    EPSILONS,
    Task,
    fit_here,
    loaded,
    loaders,
    measurement,
    plain,
)
from benchmarks.peer_process import HERE, PATIENCE, peer_python, run_peer
from benchmarks.pool import on_every_core
from fedpower.engines.inprocess import available_cores
from fedpower.privacy import default_delta

PEERS = {"OpenDP": "opendp", "diffprivlib": "diffprivlib"}


def main() -> None:
    """Measure, or take what was measured before, and tabulate it."""
    options = _options()
    if options.tabulate is None:
        settings, measured = measure(options)
    else:
        found = json.loads(options.tabulate.read_text(encoding="utf-8"))
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


def tabulate(
    options: argparse.Namespace, settings: dict[str, Any], measured: dict[str, Any]
) -> None:
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


def fit_peers(
    name: str, options: argparse.Namespace
) -> dict[str, tuple[list[dict[str, Any]], str]]:
    """Return each peer's measurements on a data set and how its run ended; one core for each."""
    with ThreadPoolExecutor(min(len(PEERS), available_cores())) as threads:
        found = threads.map(lambda peer: _fit_peer(peer, name, options), PEERS)
        return dict(zip(PEERS, found, strict=True))


def _fit_peer(
    peer: str, name: str, options: argparse.Namespace
) -> tuple[list[dict[str, Any]], str]:
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
    cells = []
    for epsilon in EPSILONS:
        values = [
            row[measure]
            for row in raw
            if (row["data"], row["method"], row["epsilon"]) == (*key, epsilon)
        ]
        if not values:
            cells.append(ended.partition(":")[0])
            continue
        spread = f" ± {statistics.stdev(values):.3f}" if len(values) > 1 else ""
        some = "" if len(values) == seeds else f" ({len(values)} of {seeds})"
        cells.append(f"{statistics.mean(values):.3f}{spread}{some}")
    return cells


def _seconds(raw: list[dict[str, Any]], key: tuple[str, str]) -> str:
    values = [row["seconds"] for row in raw if (row["data"], row["method"]) == key]
    return f"{statistics.median(values):.2g}" if values else ""


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--a9a", type=Path, default=A9A, help="a9a in svmlight format")
    made.add_argument("--seeds", type=int, default=5, help="number of splits and repetitions")
    made.add_argument(
        "--limit", type=float, default=20.0, help="core seconds for a peer and data set"
    )
    made.add_argument(
        "--tabulate",
        type=Path,
        metavar="FILE",
        help="run nothing: make the tables of these results",
    )
    return made.parse_args()


if __name__ == "__main__":
    main()
