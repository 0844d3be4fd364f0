"""The runner of all benchmarks: registered cases, interleaved timing, results as data, tables in documents.

A case is a function with typed keyword parameters that returns a `Table`. It is registered with `case`,
which names it, describes it and gives the small sizes under which tests run it. What a run measured goes to
``results/NAME.json``; `benchmarks.results_page` writes it into documents.
"""

import functools
import gc
import importlib
import inspect
import json
import math
import multiprocessing
import os
import platform
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import typing
import warnings
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
RESULTS = HERE / "results"
CACHE = HERE.parent / ".bench"
"""Data, environments of peers and quick results; ignored by git."""

MODULES = (
    "speed", "models", "localpower", "accuracy", "rounds", "secure", "preparation", "clipped",
    "persons", "angles", "genotypes", "networks", "derived", "correlations", "completion", "ranking",
    "federation",
)  # fmt: skip
PACKAGES = ("fedpower", "numpy", "scipy", "scikit-learn", "polars", "pandas", "pyarrow", "torch")

Row = Sequence[object]
Record = dict[str, Any]
Measured = Mapping[str, Any]


class MissingError(Exception):
    """Data or a program that a case needs is not on this machine."""


# Cases


@dataclass(frozen=True, kw_only=True)
class Table:
    """What a case returns: a table as text, further tables, notes, and every measurement behind them."""

    columns: Row
    rows: Sequence[Row]
    measured: Any
    notes: Sequence[str] = ()
    more: Sequence[tuple[str, Row, Sequence[Row]]] = ()
    settings: Record = field(default_factory=dict)

    def __str__(self) -> str:
        more = [f"{title}\n\n{markdown(names, rows)}" for title, names, rows in self.more]
        return "\n\n".join([markdown(self.columns, self.rows), *more, *self.notes])


@dataclass(frozen=True, kw_only=True)
class Case:
    """A registered benchmark."""

    name: str
    about: str
    run: Callable[..., Table]
    given: Record
    quick: Record

    def parameters(self, *, quick: bool = False, chosen: Mapping[str, str] | None = None) -> Record:
        hints = typing.get_type_hints(self.run)
        defaults = {name: each.default for name, each in inspect.signature(self.run).parameters.items()}
        values = defaults | self.given | (self.quick if quick else {})
        for name, text in (chosen or {}).items():
            if name in values:
                values[name] = _parsed(text, hints[name])
        return values


CASES: dict[str, Case] = {}


def case(
    name: str, *, about: str = "", quick: Record | None = None, **given: Any
) -> Callable[[Callable[..., Table]], Callable[..., Table]]:
    """Register a function as a case, which its first sentence describes unless ``about`` does.

    ``given`` replaces defaults, so one function may serve several cases.
    """

    def register(run: Callable[..., Table]) -> Callable[..., Table]:
        unknown = {*given, *(quick or {})} - set(inspect.signature(run).parameters)
        if name in CASES or unknown:
            raise ValueError(f"case {name!r} must be new and know its parameters, got {sorted(unknown)}")
        said = about or str(inspect.getdoc(run)).partition("\n")[0].rstrip(".")
        CASES[name] = Case(name=name, about=said, run=run, given=given, quick=quick or {})
        return run

    return register


def load_cases() -> dict[str, Case]:
    for module in MODULES:
        importlib.import_module(f"benchmarks.{module}")
    return CASES


def run_case(
    chosen: Case, folder: Path, *, quick: bool = False, options: Mapping[str, str] | None = None
) -> Table:
    facts, values = machine(), chosen.parameters(quick=quick, chosen=options)
    with warnings.catch_warnings(), _in_one_process(quick):
        warnings.simplefilter("ignore", UserWarning)  # of fits that find nothing, which is what some measure
        table = chosen.run(**values)
    settings = {name: value for name, value in values.items() if value is not None} | table.settings
    write_json(folder / f"{chosen.name}.json", document(chosen.name, facts, settings, table))
    print(f"{table}\n", flush=True)
    return table


def document(name: str, facts: Record, settings: Record, table: Table) -> Record:
    busy = ["Other work was running on this machine during the measurement."] if is_busy(facts) else []
    return {
        "benchmark": name,
        "machine": facts,
        "settings": settings,
        "table": {"columns": list(table.columns), "rows": [list(row) for row in table.rows]},
        "notes": [*table.notes, *busy],
        "more": [
            {"title": title, "columns": list(names), "rows": [list(row) for row in rows]}
            for title, names, rows in table.more
        ],
        "measured": table.measured,
    }


def _parsed(text: str, kind: Any) -> Any:
    if typing.get_origin(kind) is tuple:
        return tuple(_parsed(part, typing.get_args(kind)[0]) for part in text.split(",") if part)
    options = [each for each in typing.get_args(kind) if each is not type(None)] or [kind]
    return text.lower() in ("1", "yes", "true") if options[0] is bool else options[0](text)


# Files


def as_json(record: Any, *, finite: bool = False) -> str:
    return json.dumps(record, indent=1, ensure_ascii=False, allow_nan=not finite, default=str) + "\n"


def write_json(path: Path, record: Any) -> None:
    """Write a record as JSON; the file appears whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}")
    partial.write_text(as_json(record), encoding="utf-8")
    partial.replace(path)


def read_json(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


@contextmanager
def scratch() -> Iterator[Path]:
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        yield Path(folder)


# The machine


def machine() -> Record:
    return {
        "cpu": _processor(),
        "cores": len(_cores()),
        "memory": f"{_kilobytes('/proc/meminfo', 'MemTotal') / 1e6:.0f} GB",
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        **{name: version_of(name) for name in PACKAGES},
        "commit": _commit(),
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "load at the start": f"{os.getloadavg()[0]:.2f}",
    }


def is_busy(facts: Measured) -> bool:
    return float(facts["load at the start"]) > 0.5


def version_of(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed"


def _commit() -> str:
    command = ["git", "describe", "--always", "--dirty=, changed since"]
    done = subprocess.run(command, cwd=HERE, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _processor() -> str:
    if shutil.which("lscpu"):
        done = subprocess.run(["lscpu"], capture_output=True, text=True, check=False)
        for line in done.stdout.splitlines():
            if line.lower().startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown"


def _cores() -> list[int]:
    return sorted(os.sched_getaffinity(0))


def _kilobytes(path: str, key: str) -> int:
    lines = Path(path).read_text(encoding="utf-8").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(key))


def peak_mb() -> float:
    return _kilobytes("/proc/self/status", "VmHWM") * 1024 / 1e6


# Measuring

_INLINE = False
"""Whether everything runs in this process, which is enough for quick sizes."""


def say(line: str) -> None:
    print(f"{datetime.now(UTC):%H:%M:%S}  {line}", file=sys.stderr, flush=True)


def in_turn(ways: Sequence[Any], repeats: int) -> Iterator[tuple[int, Any]]:
    """Yield every way once per repeat, in a new order each time, so that other load affects all alike."""
    order = random.Random(0)  # noqa: S311
    for repeat in range(repeats):
        yield from ((repeat, way) for way in order.sample(list(ways), len(ways)))


def timed(work: Callable[[], Any]) -> tuple[Record, Any]:
    """Return seconds, processor seconds and peak memory of a piece of work, and its result.

    ``rise_mb`` is the peak above what the process held before (libraries, and rows in memory).
    """
    if not _INLINE:
        gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # resets the peak
    before, started, worked = peak_mb(), time.perf_counter(), time.process_time()
    result = work()
    seconds, cpu = time.perf_counter() - started, time.process_time() - worked
    peak = peak_mb()
    return {"seconds": seconds, "cpu_seconds": cpu, "peak_mb": peak, "rise_mb": peak - before}, result


def compare(
    ways: Mapping[str, Callable[[], Any]], repeats: int, *, warm: bool = True, **about: Any
) -> list[Record]:
    """Time all ways side by side; a way that returns a mapping adds to its record or replaces its times.

    With ``warm`` a first repeat is not counted.
    """
    records, warm = [], warm and not _INLINE
    for repeat, way in in_turn(list(ways), repeats + warm):
        record, result = timed(ways[way])
        record |= result if isinstance(result, Mapping) else {}
        if repeat >= warm:
            ended = record.get("ended") or f"{_short(record['seconds'])} s"
            say(f"{', '.join(map(str, [*about.values(), way]))}: {ended}")
            records.append({**about, "way": way, "repeat": repeat - warm, **record})
    return records


@contextmanager
def _in_one_process(inline: bool) -> Iterator[None]:
    global _INLINE  # noqa: PLW0603
    before, _INLINE = _INLINE, inline
    try:
        yield
    finally:
        _INLINE = before


def in_own_process(
    task: str, *, limit_s: float | None = 600.0, threads: int | None = None, **arguments: Any
) -> Record:
    """Return what ``module:function`` measures in a process of its own, or how it ``ended``."""
    if _INLINE:
        return _run_task(task, arguments)
    count = str(threads or len(_cores()))
    variables = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), count)
    try:
        done = subprocess.run(
            [sys.executable, "-W", "ignore", "-m", "benchmarks.runner", task, json.dumps(arguments)],
            timeout=limit_s, capture_output=True, text=True, check=False, env=os.environ | variables,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ended": f"did not finish in {limit_s:g} s"}
    if done.returncode:
        lines = done.stderr.strip().splitlines()
        return {"ended": f"failed: {lines[-1] if lines else f'status {done.returncode}'}"}
    found: Record = json.loads(done.stdout.splitlines()[-1])
    return found


def _run_task(task: str, arguments: Record) -> Record:
    module, function = task.split(":")
    found: Record = getattr(importlib.import_module(module), function)(**arguments)
    return found


@functools.cache
def bare_mb() -> float:
    program = 'print(next(l.split()[1] for l in open("/proc/self/status") if l.startswith("VmHWM")))'
    done = subprocess.run([sys.executable, "-c", program], check=True, stdout=subprocess.PIPE)
    return int(done.stdout) * 1024 / 1e6


def on_every_core(work: Callable[[Any], Any], tasks: Sequence[Hashable]) -> dict[Any, Any]:
    """Return the result of every task, computed by one process per core with one BLAS thread each."""
    if _INLINE:
        return {task: work(task) for task in tasks}
    context = multiprocessing.get_context("spawn")
    cores = context.Queue()
    for core in _cores():
        cores.put(core)
    found: dict[Any, Any] = {}
    with ProcessPoolExecutor(len(_cores()), mp_context=context, initializer=_bind, initargs=(cores,)) as pool:
        waiting = {pool.submit(work, task): task for task in tasks}
        for count, done in enumerate(as_completed(waiting), start=1):
            found[waiting[done]] = done.result()
            say(f"{count} of {len(tasks)}: {waiting[done]}")
    return {task: found[task] for task in tasks}


def _bind(cores: Any) -> None:
    warnings.simplefilter("ignore", UserWarning)
    os.sched_setaffinity(0, {cores.get()})


# Summaries


def having(measured: Sequence[Measured], **wanted: Any) -> list[Measured]:
    return [each for each in measured if all(each.get(key) == wanted[key] for key in wanted)]


def distinct(measured: Sequence[Measured], key: str) -> list[Any]:
    return list(dict.fromkeys(each[key] for each in measured))


def values(measured: Sequence[Measured], key: str = "seconds") -> list[float]:
    return [each[key] for each in measured if key in each]


def ratios(measured: Sequence[Measured], base: Sequence[Measured], key: str = "seconds") -> list[float]:
    below = {each["repeat"]: each[key] for each in base if key in each}
    return [each[key] / below[each["repeat"]] for each in measured if key in each and each["repeat"] in below]


def spread(found: Sequence[float], form: str = ".2e", small: str = ".1e") -> str:
    middle = format(statistics.mean(found), form)
    return f"{middle} ± {format(statistics.stdev(found), small)}" if len(found) > 1 else middle


def standard_error(found: Sequence[float]) -> float:
    return statistics.stdev(found) / math.sqrt(len(found)) if len(found) > 1 else 0.0


def median_range(found: Sequence[float]) -> str:
    if not found:
        return ""
    return f"{_short(statistics.median(found))} ({_short(min(found))} to {_short(max(found))})"


def most(measured: Sequence[Measured], key: str, form: str) -> str:
    found = values(measured, key)
    return format(max(found), form) if found else ""


def exponents(measured: Sequence[Measured], sizes: Sequence[int]) -> list[float]:
    found = []
    for repeat in sorted({each["repeat"] for each in measured}):
        here = having(measured, repeat=repeat)
        seconds = {each["size"]: each["seconds"] for each in here if "seconds" in each}
        if set(sizes) <= set(seconds):
            logs = [math.log(seconds[size]) for size in sizes]
            found.append(statistics.linear_regression([math.log(size) for size in sizes], logs).slope)
    return found


def _short(value: float) -> str:
    digits = 0 if value >= 100 else max(0, 2 - math.floor(math.log10(value))) if value > 0 else 2
    return f"{value:,.{digits}f}"


TIMES = ("seconds", "ratio", "processor s", "processor ratio")
TIMINGS: dict[str, Callable[[Any, Any], str]] = {
    "seconds": lambda here, base: next(
        (each["ended"] for each in here if "ended" in each), median_range(values(here))
    ),
    "ratio": lambda here, base: median_range(ratios(here, base)),
    "processor s": lambda here, base: median_range(values(here, "cpu_seconds")),
    "processor ratio": lambda here, base: median_range(ratios(here, base, "cpu_seconds")),
    "peak MB above a bare interpreter": lambda here, base: most(
        [{"mb": each["peak_mb"] - bare_mb()} for each in here if "peak_mb" in each], "mb", ",.0f"
    ),
    "of which the fit's own": lambda here, base: most(here, "rise_mb", ",.0f"),
    "sin θ to the exact subspace": lambda here, base: most(here, "error", ".1e"),
}
"""The columns of tables of side-by-side times; each gets the records of a way and of its base."""


def timing_table(
    measured: Sequence[Measured],
    *,
    base: str,
    columns: Sequence[str] = TIMES,
    by: str | None = None,
    notes: Sequence[str] = (),
) -> Table:
    """Return the table of side-by-side times; ratios are to ``base`` with the same value of ``by``."""
    rows = []
    for group in distinct(measured, by) if by else [None]:
        here = having(measured, **{by: group}) if by else list(measured)
        ours = having(here, way=base)
        for way in sorted(distinct(here, "way"), key=lambda way: way != base):
            cells = [TIMINGS[column](having(here, way=way), ours) for column in columns]
            rows.append([*([group] if by else []), way, *cells])
    named = {"ratio": f"× {base}", "processor ratio": f"× {base}, processor time"}
    repeats = 1 + max((each["repeat"] for each in measured), default=0)
    return Table(
        columns=[*([by] if by else []), "way", *(named.get(name, name) for name in columns)],
        rows=rows,
        measured=list(measured),
        notes=[f"Median (range) of {repeats} repeats, all ways in turn; ratios are within a repeat.", *notes],
    )


def kept(name: str) -> Record:
    found: Record = read_json(RESULTS / f"{name}.json")
    return found


def markdown(columns: Row, rows: Sequence[Row]) -> str:
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells]
    rule = "|" + "|".join("-" * (width + 2) for width in widths) + "|"
    return "\n".join([lines[0], rule, *lines[1:]])


if __name__ == "__main__":  # a task in a process of its own
    print(json.dumps(_run_task(sys.argv[1], json.loads(sys.argv[2]))))
