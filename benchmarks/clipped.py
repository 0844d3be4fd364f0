"""Clipped products beside the noised moment on wide rows, over secure sums.

``python -m benchmarks.clipped [--seeds N] [--row PLACE ...]`` fits both on Model I's law at several
widths, and on simulated genotypes, and writes ``results/clipped.json`` after every fit: what is there
is not fitted again. ``--table`` prints the table of the README from it. ``--cost cold warm`` measures
time, processor time and memory of the widest fit, each in a process of its own.
"""

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.common import parser, peak_mb, report
from benchmarks.processes import measured_apart
from fedpower import FedPCA
from fedpower.experiments.models import spiked_covariance

STORED = Path(__file__).parent / "results" / "clipped.json"
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

WANTED = (
    ("0.020", None),
    ("0.330", "0.068"),
    ("0.063", None),
    ("0.481", "0.15"),
    ("0.237", "0.037"),
    ("0.071", "0.003"),
    ("0.134", "0.016"),
    (None, None),
)
"""What simulations at a curator's noise had before: sin θ, and variance lost where it was told."""

Array = NDArray[np.float32]


def rows_of(law: str, n_features: int, n_rows: int, rank: int, seed: int) -> list[Array]:
    """Return the rows of every silo, of norm 1."""
    if law == "Model I":
        model = spiked_covariance(n_rows=n_rows, n_features=n_features, n_silos=N_SILOS, rank=rank, seed=seed)
        return [
            np.vstack([part.astype(np.float32) for part in model.blocks(silo, 2**14)])
            for silo in range(N_SILOS)
        ]
    return _genotypes(n_features, n_rows, rank, seed)


_APART = 0.02
"""F_ST of the simulated populations (Balding–Nichols), k + 1 of them: the moment then has about the error
that it had in the simulations before (.241)."""


def _genotypes(n_features: int, n_rows: int, rank: int, seed: int) -> list[Array]:
    rng = np.random.default_rng(seed)
    ancestral = rng.uniform(0.05, 0.5, n_features)
    odds = (1 - _APART) / _APART
    shape = (rank + 1, n_features)
    frequencies = np.clip(rng.beta(ancestral * odds, (1 - ancestral) * odds, shape), 0.001, 0.999)
    mean = frequencies.mean(axis=0)
    silos = []
    for silo in range(N_SILOS):
        count = (n_rows + silo) // N_SILOS
        rows = np.empty((count, n_features), dtype=np.float32)
        for start in range(0, count, 2048):
            stop = min(start + 2048, count)
            chance = frequencies[rng.integers(0, rank + 1, stop - start)].astype(np.float32)
            first = rng.random(chance.shape, dtype=np.float32) < chance
            second = rng.random(chance.shape, dtype=np.float32) < chance
            counts = first.astype(np.float32) + second
            rows[start:stop] = (counts - 2 * mean) / np.sqrt(2 * mean * (1 - mean))
        rows /= np.linalg.norm(rows, axis=1, keepdims=True)
        silos.append(rows)
    return silos


def errors(silos: list[Array], components: NDArray[Any]) -> tuple[float, float]:
    """Return sin θ_k to the pooled components, and the share of their variance that is lost."""
    n_rows = sum(len(rows) for rows in silos)
    moment = np.zeros((silos[0].shape[1],) * 2)
    for rows in silos:
        moment += (rows.T @ rows).astype(np.float64)
    moment /= n_rows
    rank = len(components)
    import scipy.linalg

    d = len(moment)
    _, best = scipy.linalg.eigh(moment, subset_by_index=[d - rank, d - 1])
    cosines = np.linalg.svd(components @ best, compute_uv=False)
    kept = np.trace(components @ moment @ components.T) / np.trace(best.T @ moment @ best)
    return float(np.sqrt(max(0.0, 1 - cosines[-1] ** 2))), float(1 - kept)


def measure(place: int, seed: int, noise: str) -> dict[str, Any]:
    """Return what one fit came to."""
    law, n_features, n_rows, rank = ROWS[place]
    silos = rows_of(law, n_features, n_rows, rank, seed)
    started = time.perf_counter()
    model = FedPCA(
        rank,
        epsilon=1.0,
        delta=1e-6,
        standardize=False,
        noise=noise,
        aggregation="secure",
        normalize=True,
        center=False,
        random_state=seed,
    ).fit_silos(silos)
    seconds = time.perf_counter() - started
    sine, lost = errors(silos, model.components_)
    return {
        "place": place,
        "seed": seed,
        "noise": noise,
        "sine": sine,
        "lost": lost,
        "above": sum(model.result_.determined),
        "seconds": seconds,
    }


def table(found: list[dict[str, Any]]) -> str:
    """Return the table of the README."""
    lines = [
        "| law | d | n | moment | clipped | simulated before, best | seeds |",
        "|---|---|---|---|---|---|---|",
    ]
    for place, (law, n_features, n_rows, rank) in enumerate(ROWS):
        cells = []
        counts = set()
        for noise in ("moment", "clipped"):
            runs = [each for each in found if (each["place"], each["noise"]) == (place, noise)]
            counts.add(len(runs))
            sine = np.mean([run["sine"] for run in runs]) if runs else np.nan
            lost = np.mean([run["lost"] for run in runs]) if runs else np.nan
            cells.append(f"{sine:.3f} / {lost:.4f}" if runs else "–")
        wanted = " / ".join(each for each in WANTED[place] if each)
        seeds = " and ".join(str(count) for count in sorted(counts))
        lines.append(
            f"| {law}, k = {rank} | {n_features} | {n_rows:,} | {cells[0]} | {cells[1]} | "
            f"{wanted or '–'} | {seeds} |"
        )
    return "\n".join(lines)


STARTS: dict[str, float | None] = {"cold": None, "warm": 0.1}
"""Which energy is guessed: without a guess a moment of so many columns would show nothing."""

MOST_MINUTES, MOST_GB = 10.0, 4.0


def cost(*, start: str, n_features: int, n_rows: int) -> dict[str, Any]:
    """Return what one fit takes; its rows are made in the same process and count in its memory."""
    silos = rows_of("Model I", n_features, n_rows, 4, 0)
    rows_mb = peak_mb()
    clock, processor = time.perf_counter(), time.process_time()
    model = FedPCA(
        4,
        epsilon=1.0,
        delta=1e-6,
        standardize=False,
        noise="clipped",
        aggregation="secure",
        energy=STARTS[start],
        normalize=True,
        center=False,
        random_state=0,
    ).fit_silos(silos)
    return {
        "start": start,
        "sums": len(model.result_.run["study"]["terms"]["sums"]),
        "seconds": time.perf_counter() - clock,
        "processor_seconds": time.process_time() - processor,
        "rows_mb": rows_mb,
        "peak_mb": peak_mb(),
    }


def _costs(options: argparse.Namespace) -> None:
    """Measure and tell what the widest fit takes."""
    found = [
        measured_apart(
            "benchmarks.clipped:cost", start=start, n_features=options.columns, n_rows=options.rows
        )
        for start in options.cost
    ]
    report(
        options,
        name="clipped_cost",
        settings={"law": "Model I", "d": options.columns, "n": options.rows, "silos": N_SILOS, "k": 4},
        columns=["start", "sums", "s", "processor s", "processor s / 2", "peak GB", "rows alone, GB"],
        rows=[
            [
                each["start"],
                each["sums"],
                f"{each['seconds']:.0f}",
                f"{each['processor_seconds']:.0f}",
                f"{each['processor_seconds'] / 2:.0f}",
                f"{each['peak_mb'] / 1e3:.2f}",
                f"{each['rows_mb'] / 1e3:.2f}",
            ]
            for each in found
        ],
        raw=found,
        notes=[
            f"At most {MOST_MINUTES:g} minutes and {MOST_GB:g} GB are wanted, on two cores. All silos "
            "and the coordinator are one process, over secure sums. Others worked on this machine: "
            "half of the processor time is what two cores take that do nothing else, and the seconds are "
            "what it took beside them."
        ],
    )


def main() -> None:
    """Fit what is not there yet, or print the table, or measure what a fit takes."""
    made = parser(__doc__)
    made.add_argument("--seeds", type=int, default=20)
    made.add_argument("--row", type=int, nargs="*", default=list(range(len(ROWS))))
    made.add_argument("--noise", nargs="*", default=["clipped", "moment"])
    made.add_argument("--table", action="store_true")
    made.add_argument("--cost", nargs="+", choices=list(STARTS))
    made.add_argument("--columns", type=int, default=3000, help="of the fit whose cost is measured")
    made.add_argument("--rows", type=int, default=100_000)
    asked = made.parse_args()
    if asked.cost:
        _costs(asked)
        return
    found = json.loads(STORED.read_text()) if STORED.exists() else []
    if asked.table:
        print(table(found))
        return
    known = {(each["place"], each["seed"], each["noise"]) for each in found}
    for seed in range(asked.seeds):
        for place in asked.row:
            for noise in asked.noise:
                if (place, seed, noise) in known:
                    continue
                made = measure(place, seed, noise)
                found = json.loads(STORED.read_text()) if STORED.exists() else []
                found.append(made)
                STORED.write_text(json.dumps(found, indent=1) + "\n")
                print(found[-1], flush=True)


if __name__ == "__main__":
    main()
