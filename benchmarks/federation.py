"""A federation of processes on this machine: what a round and a whole study take, against one process."""

import json
import math
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil

from benchmarks.data_sets import model_one
from benchmarks.fits import fed_pca
from benchmarks.runner import Record, Table, case, compare, having, scratch, values
from benchmarks.speed import write_table
from fedpower.federation.kits import Kit
from fedpower.federation.local import LocalFederation, local_federation
from fedpower.federation.runner import Runner, open_session
from fedpower.federation.study_file import read_study, to_toml

EXACT = {"epsilon": math.inf}


@case("federation", quick={"silos": (2,), "steps": (2,), "columns": 6, "rank": 4, "rows": 400,
                            "whole_silos": 0, "repeats": 1})  # fmt: skip
def federation(
    *,
    silos: tuple[int, ...] = (4, 16),
    steps: tuple[int, ...] = (1, 21),
    columns: int = 1000,
    rank: int = 10,
    rows: int = 2_000_000,
    whole_silos: int = 20,
    repeats: int = 3,
) -> Table:
    """Run over separate processes with mutual TLS, against one process."""
    measured: list[Record] = []
    with scratch() as folder:
        for count in silos:
            place, shape = folder / f"rounds-{count}", (200 * count, columns)
            study, data = _study(place, shape=shape, silos=count, rank=rank, privacy=EXACT)
            runs = {
                str(n): lambda n=n, study=study, data=data, count=count: _rehearse(
                    study | {"solver": {"solver": "fedpower", "n_steps": n, "tol": 0.0}}, data, count
                )
                for n in steps
            }
            measured += compare(runs, repeats, warm=False, silos=count)
        whole = []
        if whole_silos:
            private = {"epsilon": 0.5, "delta": 1e-4}
            study, data = _study(
                folder / "whole", shape=(rows, 100), silos=whole_silos, rank=5, privacy=private
            )
            files = {path.stem: path for path in sorted(data.glob("*.parquet"))}
            given = {**private, "row_norm": 1.0, "standardize": False, "iteration_rank": 5, "random_state": 0}
            whole = compare(
                {
                    "processes": lambda: _rehearse(study, data, whole_silos),
                    "one process": lambda: {"solver": fed_pca(4, **given).fit_silos(files).solver_.solver},
                },
                repeats,
                warm=False,
            )
    lines = []
    for count in silos:
        here = {n: having(measured, silos=count, way=str(n)) for n in steps}
        seconds = {n: statistics.median(values(found)) for n, found in here.items()}
        added = (seconds[steps[-1]] - seconds[steps[0]]) / max(1, steps[-1] - steps[0])
        sent = ", ".join(f"{here[steps[-1]][0][key] / count / 1e3:.0f}" for key in ("bytes_up", "bytes_down"))
        lines.append([count, sent, f"{seconds[steps[0]]:.1f}", f"{added:.3f}"])
    title = f"A whole private study: {rows:,} rows of 100 columns, {whole_silos} silos, ε = 0.5"
    ways = dict.fromkeys(each["way"] for each in whole)
    medians = [[way, f"{statistics.median(values(having(whole, way=way))):.1f}"] for way in ways]
    return Table(
        columns=["silos", "kB up, down a silo", "start to result, fewest rounds, s", "a further round, s"],
        rows=lines,
        measured={"rounds": measured, "whole": whole},
        notes=["Everything shares the cores of one machine; most of a run is the start of its processes."],
        more=[(title, ["way", "seconds, median"], medians)] if whole else [],
    )


@case("operations", quick={"seconds": 0.5, "rows": 900})
def operations(*, seconds: float = 60.0, rows: int = 100_000) -> Table:
    """Measure an idle federation of three silos, and a study from its approval to its report."""
    with scratch() as folder:
        private = {"epsilon": 1.0, "delta": 1e-6}
        content, data = _study(folder, shape=(rows, 20), silos=3, rank=4, privacy=private)
        (folder / "study.toml").write_text(to_toml({key: each for key, each in content.items() if each}))
        paths = {path.stem: path for path in sorted(data.glob("*.parquet"))}
        said, place = list[Any]().append, folder / "result"
        place.mkdir()
        with local_federation(read_study(folder / "study.toml"), folder / "made", paths) as made:
            with open_session(Kit(made.runner), patience=60.0) as session:
                while len(session.status()["connected"]) < len(paths):
                    time.sleep(0.1)
            began = {name: _used(made, name) for name in made.processes}
            time.sleep(seconds)
            ended = {name: _used(made, name) for name in made.processes}
            runner = Runner(kit=Kit(made.runner), study=made.study, patience=60.0, say=said, on_round=said)
            start = time.perf_counter()  # a standing rule approves at once
            runner.run(place, resume=False)
            took = time.perf_counter() - start
    return Table(
        columns=["what", "measured"],
        rows=[
            *(
                [f"{name}, idle", f"{megabytes:.0f} MB, {(busy - began[name][0]) / seconds:.2%} of a core"]
                for name, (busy, megabytes) in ended.items()
            ),
            ["a study, from its approval to its report", f"{took:.1f} s"],
        ],
        measured={"idle": [began, ended], "seconds": took},
        notes=["Memory is PSS of all processes of a party."],
    )


def _used(made: LocalFederation, name: str) -> tuple[float, float]:
    """Return the processor time and the memory of a party's processes; shared pages count once."""
    first = psutil.Process(made.processes[name].pid)
    family = [first, *first.children(recursive=True)]
    busy = sum(sum(one.cpu_times()[:2]) for one in family)
    return busy, sum(one.memory_full_info().pss for one in family) / 1e6


def _study(
    folder: Path, *, shape: tuple[int, int], silos: int, rank: int, privacy: Record
) -> tuple[Record, Path]:
    names = [f"s{place:02}" for place in range(silos)]
    data = folder / "data"
    data.mkdir(parents=True)
    for name, part in zip(names, np.array_split(model_one(*shape), silos), strict=True):
        write_table(data / f"{name}.parquet", part)
    study = {
        "name": "bench",
        "columns": {"names": [f"x{place}" for place in range(shape[1])]},
        "rows": {"row_norm": 1.0, "center": False, "standardize": False},
        "components": {"n_components": min(4, rank), "iteration_rank": rank},
        "privacy": privacy,
        "solver": {},
        "rounds": {"deadline": 600},
        "silos": {"names": names},
        "coordinator": {"host": "localhost", "port": 8002},
    }
    return study, data


def _rehearse(study: Record, data: Path, silos: int) -> Record:
    folder = data.parent / f"run-{time.monotonic_ns()}"
    folder.mkdir()
    (folder / "study.toml").write_text(
        to_toml({key: each for key, each in study.items() if each}), encoding="utf-8"
    )
    options = {"--local": silos, "--data": data, "-o": folder / "out"}
    words = ["study", "run", folder / "study.toml", *(word for pair in options.items() for word in pair)]
    command = [sys.executable, "-m", "fedpower", *map(str, words)]
    began = time.perf_counter()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode:
        raise RuntimeError(done.stderr)
    record: Any = json.loads((folder / "out" / "run.json").read_text(encoding="utf-8"))
    return {"seconds": seconds, "bytes_up": record["bytes_up"], "bytes_down": record["bytes_down"]}
