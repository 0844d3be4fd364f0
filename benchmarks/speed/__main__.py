"""Speed and scale: the moment kernel, its passes, other libraries, whole fits, growth, cold start.

Everything is compared within this run, as ratios; the results and the machine go to JSON files from
which benchmarks/README.md is written. Data lie in .bench/ while they are needed (4 GB at most).
"""

import argparse
import functools
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.common import (
    BUSY,
    CACHE,
    LOAD,
    Tables,
    about_machine,
    document,
    is_busy,
    read_json,
    write_json,
)
from benchmarks.processes import Runner, one_core
from benchmarks.speed import cold, end_to_end, growth, kernel, passes, peers, targets, wide
from benchmarks.speed.sizes import FULL, QUICK

PARTS: dict[str, ModuleType] = {
    "kernel": kernel,
    "passes": passes,
    "peers": peers,
    "end_to_end": end_to_end,
    "growth": growth,
    "wide": wide,
    "cold": cold,
}
RESULTS = Path(__file__).parents[1] / "results"


def main(arguments: list[str] | None = None) -> None:
    """Measure the parts, show their tables and keep them."""
    options = _options(arguments)
    sizes = QUICK if options.quick else FULL
    if options.repeats is not None:
        sizes = replace(
            sizes,
            repeats=options.repeats,
            kernel_repeats=options.repeats,
            wide_repeats=options.repeats,
            starts=options.repeats,
        )
    folder: Path = options.results or (CACHE / "quick" if options.quick else RESULTS)
    facts = about_machine()
    print(f"{facts['cpu']}, {facts['cores']} cores, load {facts[LOAD]}")
    if is_busy(facts):
        print(BUSY)
    run = Runner(apart=not options.quick, say=functools.partial(print, flush=True))
    for place, name in enumerate(options.parts, start=1):
        part = PARTS[name]
        print(f"\n{part.TITLE} ({place} of {len(options.parts)})\n")
        with one_core() if options.quick else nullcontext():
            measured = part.measure(sizes, run)
        tables = part.tables(sizes, measured)
        print(f"\n{tables}")
        _keep(folder, name, facts, tables, measured)
    found = {name: read_json(_path(folder, name)) for name in PARTS if _path(folder, name).exists()}
    tables = targets.tables(sizes, {name: each["measured"] for name, each in found.items()})
    print(f"\n{targets.TITLE}\n\n{tables}\n")
    runs = {name: each["machine"] for name, each in found.items()}
    _keep(folder, "targets", facts, tables, runs, *_one_run(runs))
    print(f"{targets.settled(tables.rows)}; results are in {folder}")


def _one_run(runs: dict[str, dict[str, Any]]) -> list[str]:
    """Return a note where the parts were measured in more than one run."""
    started = sorted({facts["started"] for facts in runs.values()})
    return [f"The parts are of {len(started)} runs: {', '.join(started)}."] * (len(started) > 1)


def _keep(folder: Path, name: str, facts: dict[str, Any], tables: Tables, measured: Any, *notes: str) -> None:
    """Write a part's tables and everything that was measured."""
    notes = (*notes, *([BUSY] if is_busy(facts) else []))
    whole = document(f"speed_{name}", facts, tables, measured, notes)
    write_json(_path(folder, name), whole)


def _path(folder: Path, name: str) -> Path:
    return folder / f"speed_{name}.json"


def _options(arguments: list[str] | None) -> argparse.Namespace:
    made = argparse.ArgumentParser(prog="python -m benchmarks.speed", description=__doc__)
    made.add_argument(
        "--quick", action="store_true", help="tiny sizes in one process on one core: does it run at all?"
    )
    made.add_argument(
        "--parts",
        nargs="+",
        choices=list(PARTS),
        default=list(PARTS),
        help="measure only these; the targets are taken from the results that are there",
    )
    made.add_argument("--repeats", type=int, metavar="N", help="time everything so often")
    made.add_argument(
        "--results",
        type=Path,
        metavar="FOLDER",
        help="where JSON files go; benchmarks/results by default, .bench/quick with --quick",
    )
    return made.parse_args(arguments)


if __name__ == "__main__":
    main()
