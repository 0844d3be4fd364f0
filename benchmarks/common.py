"""What the benchmarks share: arguments, machine facts, tables, results as JSON."""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
from collections.abc import Sequence
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


def report(
    options: argparse.Namespace,
    *,
    name: str,
    settings: dict[str, Any],
    columns: Row,
    rows: Sequence[Row],
    raw: Any,
    notes: Sequence[str] = (),
    more: Sequence[tuple[str, Row, Sequence[Row]]] = (),
) -> None:
    """Print the table and, where asked, keep everything that was measured.

    Parameters
    ----------
    options
        The parsed arguments.
    name
        The benchmark's.
    settings
        What was run, seeds included.
    columns, rows
        The table, as text.
    raw
        Every single measurement, for whoever wants another summary.
    notes
        Sentences to read beside the table.
    more
        Further tables: a title, the columns and the rows of each.
    """
    table = markdown(columns, rows)
    print(table)
    for title, names, lines in more:
        print(f"\n{title}\n\n{markdown(names, lines)}")
    for note in notes:
        print(f"\n{note}")
    if options.json is not None:
        found = document(
            name=name,
            machine=machine(),
            settings=settings,
            columns=columns,
            rows=rows,
            raw=raw,
            notes=notes,
            more=more,
        )
        keep(found, options.json)


def document(
    *,
    name: str,
    machine: dict[str, Any],
    settings: dict[str, Any],
    columns: Row,
    rows: Sequence[Row],
    raw: Any,
    notes: Sequence[str] = (),
    more: Sequence[tuple[str, Row, Sequence[Row]]] = (),
) -> dict[str, Any]:
    """Return all that is kept of a benchmark; parameters as for `report`."""
    return {
        "benchmark": name,
        "machine": machine,
        "settings": settings,
        "table": {"columns": list(columns), "rows": [list(row) for row in rows]},
        "notes": list(notes),
        "more": [
            {"title": title, "columns": list(names), "rows": [list(line) for line in lines]}
            for title, names, lines in more
        ],
        "measured": raw,
    }


def keep(found: dict[str, Any], path: Path) -> None:
    """Write a benchmark's document as JSON."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


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


def spread(values: Sequence[float]) -> str:
    """Return mean ± standard deviation as text."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.2e} ± {deviation:.1e}"


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
    done = subprocess.run(
        command, cwd=Path(__file__).parent, capture_output=True, text=True, check=False
    )
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
