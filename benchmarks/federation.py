"""A federation of processes: a round beside an echo over its links, a whole study, that in one process.

Everything runs on this machine: the coordinator and every silo are processes of their own, with mutual
TLS on the loopback. Times of many processes on few cores say more about the machine than about a network
of them; ratios are taken side by side.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.common import parser, report
from benchmarks.federation_echo import echo_seconds
from fedpower import FedPCA
from fedpower.experiments.models import spiked_covariance
from fedpower.experiments.writing import write_model
from fedpower.federation.local import LocalFederation, local_federation
from fedpower.federation.runner import Runner
from fedpower.federation.study_file import StudyFile, read_study, to_toml
from fedpower.linalg import sin_theta

DEADLINE_S = 600


def main() -> None:
    """Measure and tell."""
    options = _options()
    with tempfile.TemporaryDirectory(prefix="fedpower-bench-") as scratch:
        folder = Path(scratch)
        rounds = [round_times(folder / f"rounds-{m}", m, options) for m in options.silos]
        whole = [] if options.skip_whole else whole_study(folder / "whole", options)
    report(
        options,
        name="federation",
        settings={
            "rounds": options.rounds,
            "d": options.d,
            "r": options.r,
            "silos": options.silos,
            "whole_rows": options.rows,
        },
        columns=[
            "silos",
            "kB up, down a silo",
            "a round: median s",
            "an echo: median s",
            "ratio",
            "largest s",
        ],
        rows=[
            [
                each["silos"],
                f"{each['up'] / 1e3:.0f}, {each['down'] / 1e3:.0f}",
                f"{each['round']:.3f}",
                f"{each['echo']:.3f}",
                f"{each['round'] / each['echo']:.2f}",
                f"{each['largest']:.2f}",
            ]
            for each in rounds
        ],
        more=[
            (
                f"A whole private study of Model I's size: {options.rows:,} rows of 100 columns, "
                f"{options.whole_silos} silos, ε = 0.5",
                [
                    "solver", "rounds", "processes: s in rounds", "s from run to result",
                    "one process: s", "sin θ between",
                ],
                [
                    [
                        each["solver"],
                        each["n_rounds"],
                        f"{each['in_rounds']:.1f}",
                        f"{each['total']:.1f}",
                        f"{each['in_process']:.1f}",
                        f"{each['apart']:.1e}",
                    ]
                    for each in whole
                ],
            )
        ],
        raw={"rounds": rounds, "whole": whole},
        notes=[
            "A round carries a basis of d×r numbers to every silo and a product of the same size back "
            f"(d = {options.d}, r = {options.r}, {options.rounds} rounds, exact). The echo sends as many "
            "bytes over the same links to processes that answer with as many, and does nothing else.",
            "From run to result: connecting, the rounds, fetching the result; the parties' own processes "
            "were there, their rows read. All share this machine's cores.",
            "Sin θ between: of the two results, over processes and in one, each with noise of its own.",
        ],
    )  # fmt: skip


def round_times(folder: Path, n_silos: int, options: argparse.Namespace) -> dict[str, Any]:
    """Return a round's duration, and that of an echo of the same size over the same links."""
    columns = [f"x{place}" for place in range(options.d)]
    names = [f"s{place:02}" for place in range(n_silos)]
    study = _study(
        folder,
        columns,
        names,
        components={"n_components": options.r // 2, "iteration_rank": options.r},
        privacy={"epsilon": float("inf")},
        solver={"solver": "fedpower", "n_steps": options.rounds, "tol": 0.0},
    )
    data = {}
    for place, name in enumerate(names):
        data[name] = folder / f"{name}.parquet"
        _write_rows(data[name], columns, seed=place)
    with local_federation(study, folder / "fedpower", data) as made:
        state = _run(made.runner, folder / "result")
    record = json.loads((folder / "result" / "run.json").read_text())
    seconds = [spent for number, spent in state["seconds"].items() if int(number) > 0]
    shape = {
        "down": record["bytes_down"] // record["n_rounds"] // n_silos,
        "up": record["bytes_up"] // record["n_rounds"] // n_silos,
    }
    echo = echo_seconds(LocalFederation(study, folder / "echo", data), rounds=options.rounds, **shape)
    return {
        "silos": n_silos,
        "up": shape["up"],
        "down": shape["down"],
        "round": statistics.median(seconds),
        "largest": max(seconds),
        "echo": statistics.median(echo[1:]),
        "seconds": seconds,
        "echo_seconds": echo,
    }


def whole_study(folder: Path, options: argparse.Namespace) -> list[dict[str, Any]]:
    """Return what a whole private study of Model I takes over processes, and in one."""
    folder.mkdir(parents=True)
    model = spiked_covariance(n_rows=options.rows, n_silos=options.whole_silos, seed=0)
    files = list(write_model(model, folder / "rows", kind="parquet", force=False))
    data = {path.stem: path for path in files if path.suffix == ".parquet"}
    columns = read_columns(next(iter(data.values())))
    found = []
    for solver in ("moment", "krylov"):
        study = _study(
            folder / solver,
            columns,
            list(data),
            components={"n_components": 4, "iteration_rank": 5},
            privacy={"epsilon": 0.5, "delta": 1e-4},
            solver={"solver": solver},
        )
        with local_federation(study, folder / f"fed-{solver}", data) as made:
            runner = _runner(made.runner)
            _wait_for_silos(made.runner, len(data))
            started = time.monotonic()
            (folder / f"result-{solver}").mkdir()
            state = runner.run(folder / f"result-{solver}", resume=False)
            total = time.monotonic() - started
        with np.load(folder / f"result-{solver}" / "components.npz") as arrays:
            components = arrays["components"]
        started = time.monotonic()
        fitted = FedPCA(
            4,
            iteration_rank=5,
            standardize=False,
            epsilon=0.5,
            delta=1e-4,
            row_norm=1.0,
            solver=solver,
            random_state=0,
        ).fit_silos(data)
        in_process = time.monotonic() - started
        found.append(
            {
                "solver": solver,
                "n_rounds": len(state["rounds"]) - 1,
                "in_rounds": sum(state["seconds"].values()),
                "total": total,
                "in_process": in_process,
                "apart": sin_theta(components.T, fitted.components_.T),
                "seconds": state["seconds"],
            }
        )
    return found


def read_columns(path: Path) -> list[str]:
    """Return the names of a file's columns."""
    from fedpower.rows.opening import open_source

    return list(open_source(path).columns or ())


def _study(
    folder: Path,
    columns: list[str],
    names: list[str],
    *,
    components: dict[str, Any],
    privacy: dict[str, Any],
    solver: dict[str, Any],
) -> StudyFile:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "study.toml"
    content = {
        "name": "bench",
        "columns": {"names": columns},
        "rows": {"row_norm": 1.0, "center": len(columns) == 100},
        "components": components,
        "privacy": privacy,
        "solver": solver,
        "rounds": {"deadline": DEADLINE_S},
        "silos": {"names": names},
        "coordinator": {"host": "localhost", "port": 1},
    }
    path.write_text(to_toml(content))
    return read_study(path)


def _write_rows(path: Path, columns: list[str], *, seed: int) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = np.random.default_rng(seed).normal(size=(200, len(columns))) / np.sqrt(len(columns))
    pq.write_table(pa.table(dict(zip(columns, rows.T, strict=True))), path)


def _runner(kit: Path) -> Runner:
    return Runner(kit=kit, patience=300.0, say=lambda s: print(s, flush=True), on_round=lambda r: None)


def _run(kit: Path, result: Path) -> dict[str, Any]:
    result.mkdir()
    return _runner(kit).run(result, resume=False)


def _wait_for_silos(kit: Path, count: int) -> None:
    from fedpower.federation.runner import open_session

    with open_session(kit, patience=300.0) as session:
        while len(session.status()["connected"]) < count:
            time.sleep(0.5)


def _options() -> argparse.Namespace:
    made = parser(__doc__)
    made.add_argument("--rounds", type=int, default=20)
    made.add_argument("--d", type=int, default=1000)
    made.add_argument("--r", type=int, default=10)
    made.add_argument("--silos", type=int, nargs="+", default=[4, 16])
    made.add_argument("--rows", type=int, default=2_000_000)
    made.add_argument("--whole-silos", type=int, default=20)
    made.add_argument("--skip-whole", action="store_true")
    return made.parse_args()


if __name__ == "__main__":
    main()
