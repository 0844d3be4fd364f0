"""What the benchmarks and the reproduction of the paper share: arguments, the machine, tables, JSON."""

import argparse
import json
import os
import platform
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

Row = Sequence[object]

CACHE = Path(__file__).parents[1] / ".bench"
"""Where data and environments are kept; git does not look there."""


def parser(description: str | None) -> argparse.ArgumentParser:
    """Return a parser with the option that every benchmark has."""
    made = argparse.ArgumentParser(description=description)
    made.add_argument("--json", type=Path, metavar="FILE", help="write the results here as well")
    return made


def machine() -> dict[str, Any]:
    """Return what a reader must know about this machine and its software."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return {
        "cpu": _processor(),
        "cores": cores,
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in ("fedpower", "numpy", "scipy", "pyarrow")},
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Tables:
    """What is shown of one benchmark.

    Attributes
    ----------
    settings
        What was run, seeds included.
    columns, rows
        The table, as text.
    notes
        Sentences to read beside the table.
    more
        Further tables: a title, the columns and the rows of each.
    """

    settings: dict[str, Any]
    columns: Row
    rows: Sequence[Row]
    notes: Sequence[str] = ()
    more: Sequence[tuple[str, Row, Sequence[Row]]] = ()

    def __str__(self) -> str:
        more = [f"{title}\n\n{markdown(names, rows)}" for title, names, rows in self.more]
        return "\n\n".join([markdown(self.columns, self.rows), *more, *self.notes])


def report(options: argparse.Namespace, *, name: str, raw: Any, **shown: Any) -> None:
    """Print the tables and, where asked, keep everything that was measured.

    Parameters
    ----------
    options
        The parsed arguments.
    name
        The benchmark's.
    raw
        Every single measurement, for whoever wants another summary.
    shown
        As for `Tables`.
    """
    tables = Tables(**shown)
    print(tables)
    if options.json is not None:
        write_json(options.json, document(name, machine(), tables, raw))


def document(
    name: str, machine: dict[str, Any], tables: Tables, raw: Any, notes: Sequence[str] = ()
) -> dict[str, Any]:
    """Return all that is kept of a benchmark; further ``notes`` stand after the tables' own."""
    return {
        "benchmark": name,
        "machine": machine,
        "settings": tables.settings,
        "table": {"columns": list(tables.columns), "rows": [list(row) for row in tables.rows]},
        "notes": [*tables.notes, *notes],
        "more": [
            {"title": title, "columns": list(names), "rows": [list(row) for row in rows]}
            for title, names, rows in tables.more
        ],
        "measured": raw,
    }


def as_json(record: Any, *, finite: bool = False) -> str:
    """Return the text of a JSON file; where ``finite``, numbers that are not are refused."""
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=not finite) + "\n"


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON; the file is there whole or not at all."""
    from fedpower.report.files import write_whole  # a process that is measured needs none of it

    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, as_json(record))


def read_json(path: Path) -> Any:
    """Return the record in a file."""
    return json.loads(path.read_text(encoding="utf-8"))


def markdown(columns: Row, rows: Sequence[Row]) -> str:
    """Return a table that reads well as text and as Markdown."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(len(row[place]) for row in cells) for place in range(len(columns))]
    lines = [
        "| " + " | ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)) + " |"
        for row in cells
    ]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


def peak_mb() -> float:
    """Return the most memory this process has had resident, in MB of 10⁶ bytes."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) * 1024 / 1e6


def version_of(name: str) -> str:
    """Return a package's version; some benchmarks run from the source folder, or without all packages."""
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    """Return the commit that was run, and whether the tree had changes on top of it."""
    command = ["git", "describe", "--always", "--dirty=, changed since"]
    done = subprocess.run(command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    """Return the processor's name; that of ARM cores only lscpu knows."""
    names = []
    for command in (["cat", "/proc/cpuinfo"], ["lscpu"]):
        if shutil.which(command[0]):
            done = subprocess.run(command, capture_output=True, text=True, check=False)
            names += [
                line.partition(":")[2].strip()
                for line in done.stdout.splitlines()
                if line.lower().startswith("model name")
            ]
    return names[0] if names else platform.processor() or "unknown"


LIBRARIES = ("scikit-learn", "dask", "torch", "pandas", "polars")
LOAD = "load at the start"

IDLE = 0.5
"""Load up to which a machine counts as quiet."""

BUSY = "The machine was busy with other work: these figures are to be taken again on a quiet one."


def about_machine() -> dict[str, Any]:
    """Return the facts that belong to all results of a run, taken before it."""
    return machine() | {
        **{name: version_of(name) for name in LIBRARIES},
        "BLAS": "; ".join(_blas()),
        "memory": f"{_memory_gb():.0f} GB",
        "started": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
        LOAD: f"{os.getloadavg()[0]:.2f}",
    }


def is_busy(facts: dict[str, Any]) -> bool:
    """Return whether something else ran on this machine when the measurements began."""
    return float(facts[LOAD]) > IDLE


def _blas() -> list[str]:
    """Return the BLAS libraries that NumPy and SciPy bring."""
    import scipy.linalg
    import threadpoolctl

    del scipy
    return [
        f"{each['internal_api']} {each['version']} for {each['architecture']}, {each['num_threads']} threads"
        for each in threadpoolctl.threadpool_info()
        if each["user_api"] == "blas"
    ]


def _memory_gb() -> float:
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("MemTotal")) * 1024 / 1e9
