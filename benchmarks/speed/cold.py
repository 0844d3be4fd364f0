"""Cold start: processes that import fedpower or show its help, against one that imports the libraries."""

import subprocess
import sys
import sysconfig
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.speed.measuring import Measured, Tables, in_turn, of_way, ratios, reported, values
from benchmarks.speed.running import Runner
from benchmarks.speed.sizes import Sizes

TITLE = "Cold start"
LIBRARIES = "import numpy, scipy.linalg; from sklearn.decomposition import PCA"
PACKAGE, ESTIMATOR, HELP = "import fedpower", "from fedpower import FedPCA", "fedpower --help"


def commands() -> dict[str, list[str]]:
    """Return the command of every process, by what it does."""
    script = Path(sysconfig.get_path("scripts")) / "fedpower"
    python = [sys.executable, "-c"]
    return {
        "pass": [*python, "pass"],
        **{statement: [*python, statement] for statement in (LIBRARIES, PACKAGE, ESTIMATOR)},
        HELP: [str(script), "--help"],
    }


def measure(sizes: Sizes, run: Runner) -> list[dict[str, Any]]:
    """Return the seconds of every process, after one start of each that is not counted."""
    found: list[dict[str, Any]] = []
    for repeat, name in in_turn(list(commands()), 1 + sizes.starts):
        started = time.perf_counter()
        subprocess.run(commands()[name], check=True, stdout=subprocess.DEVNULL)
        taken = time.perf_counter() - started
        if repeat:
            found.append({"way": name, "repeat": repeat, "seconds": taken})
            run.say(f"{name}, start {repeat} of {sizes.starts}: {taken:.3g} s")
    return found


def tables(sizes: Sizes, measured: Sequence[Measured]) -> Tables:
    """Return what was measured, with the ratio to the libraries' imports."""
    base = of_way(measured, way=LIBRARIES)
    return Tables(
        settings={"starts": sizes.starts},
        columns=["process", "seconds", "× the libraries"],
        rows=[
            [
                f"`{name}`",
                reported(values(of_way(measured, way=name))),
                reported(ratios(of_way(measured, way=name), base)),
            ]
            for name in commands()
        ],
        notes=[
            f"Median (range) of {sizes.starts} starts of each, in turn, from the start of the process "
            "to its end, files in memory. The libraries: NumPy, SciPy's linear algebra and "
            "scikit-learn's PCA."
        ],
    )
