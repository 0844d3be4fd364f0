"""Private fits on real data: the library's default, every step noised, and the paper's noise.

Every data set is split at random and by label, at three ε. Each seed draws its own split, start and
noise; the methods share the split, and the two kinds of split share the noise.
"""

import argparse
import functools
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.common import parser, report
from benchmarks.data_sets import A9A, KINDS, DataSet, Truth, available, real, split
from benchmarks.measuring import having, spread, values
from benchmarks.private_fits import METHODS, Federation
from benchmarks.processes import on_every_core
from fedpower.privacy import default_delta

EPSILONS = (0.5, 1.0, 4.0)


class Task(NamedTuple):
    """One split of one data set."""

    data: str
    a9a: str
    kind: str
    seed: int


def main() -> None:
    """Run every method on every split of every data set."""
    options = _options()
    left_out: list[str] = []
    sets = {each.name: each for each in available(real(options.a9a), left_out.append)}
    print("\n".join(left_out))
    tasks = [
        Task(name, str(options.a9a), kind, seed)
        for name in sets
        for kind in KINDS
        for seed in range(options.seeds)
    ]
    found = on_every_core(fit_split, tasks)
    raw = [row for rows in found.values() for row in rows]
    keys = [(name, kind, epsilon) for name in sets for kind in KINDS for epsilon in EPSILONS]
    report(
        options,
        name="accuracy_real",
        settings={
            "epsilons": list(EPSILONS),
            "delta": sorted({default_delta(len(each.rows)) for each in sets.values()}),
            "seeds": list(range(options.seeds)),
            "left_out": left_out,
        },
        columns=["data", "split", "ε", *METHODS],
        rows=[[*key[:2], f"{key[2]:g}", *_cells(raw, key, "captured")] for key in keys],
        raw=raw,
        notes=[
            "Captured variance: what the private subspace captures of the pooled variance, as a "
            "share of what the exact one captures; mean ± standard deviation over "
            f"{options.seeds} seeds."
        ],
        more=[
            (
                "The same fits by sin θ_k to the exact subspace, over all k columns",
                ["data", "split", "ε", *METHODS],
                [[*key[:2], f"{key[2]:g}", *_cells(raw, key, "error")] for key in keys],
            ),
            (
                "How the data were used",
                ["data", "rows", "columns", "k", "silos", "treatment"],
                [list(each.facts().values()) for each in sets.values()],
            ),
        ],
    )


def fit_split(task: Task) -> list[dict[str, Any]]:
    """Return a row of measurements for every method and ε on one split."""
    data, truth = _loaded(task.data, task.a9a)
    rng = np.random.default_rng(task.seed)
    silos = Federation(data, split(task.kind, data.labels, data.n_silos, rng))
    rows = []
    for epsilon in EPSILONS:
        for method in METHODS:
            fit = silos.fit(method, epsilon=epsilon, seed=task.seed)
            rows.append(
                {
                    "data": task.data,
                    "split": task.kind,
                    "seed": task.seed,
                    "epsilon": epsilon,
                    "method": method,
                    **truth.score(fit.basis),
                    "rounds": fit.rounds,
                    "bytes_up": fit.bytes_up,
                }
            )
    return rows


@functools.lru_cache(maxsize=1)
def _loaded(name: str, a9a: str) -> tuple[DataSet, Truth]:
    data = real(Path(a9a))[name]()
    return data, Truth.of(data.bounded(), data.rank, centred=data.centred())


def _cells(raw: list[dict[str, Any]], key: tuple[str, str, float], measure: str) -> list[str]:
    """Return mean ± standard deviation of every method in one line of a table."""
    data, kind, epsilon = key
    here = having(raw, data=data, split=kind, epsilon=epsilon)
    return [spread(values(having(here, method=each), measure), ".3f", ".3f") for each in METHODS]


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--a9a", type=Path, default=A9A, help="a9a in svmlight format")
    made.add_argument("--seeds", type=int, default=10, help="number of splits of each kind")
    return made.parse_args()


if __name__ == "__main__":
    main()
