"""Speed, scale and memory: everything side by side with what other libraries take for the same rows."""

import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import fits
from benchmarks.data_sets import Array, genotypes, model_one
from benchmarks.runner import (
    TIMES,
    MissingError,
    Record,
    Table,
    case,
    compare,
    exponents,
    having,
    in_own_process,
    median_range,
    most,
    ratios,
    scratch,
    timed,
    timing_table,
    values,
)

RANK, EPSILON = 4, 0.5
BOUND = {"row_norm": 1.0, "standardize": False}
"""The rows are those of Model I, of norm 1, unless a case says otherwise."""

EXACT = {"epsilon": float("inf"), "standardize": False}
FITS: dict[str, Record] = {
    "private, public bound": {"epsilon": EPSILON, **BOUND},
    "private, only ε": {"epsilon": EPSILON},
    "exact": EXACT,
}
MEMORY = ("peak MB above a bare interpreter", "of which the fit's own")


def fed_pca(silos: Any, rank: int = RANK, **settings: Any) -> Any:
    return fits.fed_pca(rank, random_state=0, **settings).fit_silos(silos)


def sk_pca(rows: Any, solver: str = "covariance_eigh", rank: int = RANK) -> Any:
    from sklearn.decomposition import PCA

    return PCA(rank, svd_solver=solver, random_state=0).fit(rows)


# From memory


@case("fit_memory", quick={"rows": 2_000, "columns": 8, "repeats": 1})
def fit_memory(*, rows: int = 1_000_000, columns: int = 50, repeats: int = 5) -> Table:
    """Fit one array in memory, against X.T @ X and scikit-learn's PCA."""
    array = model_one(rows, columns)
    ways: dict[str, Callable[[], Any]] = {
        "X.T @ X": lambda: array.T @ array,
        "scikit-learn PCA": lambda: sk_pca(array),
        **{name: lambda given=given: fed_pca([array], **given) for name, given in FITS.items()},
    }
    measured = compare(ways, repeats)
    return timing_table(measured, base="scikit-learn PCA", columns=(*TIMES, MEMORY[1]))


LIBRARIES: dict[str, Callable[[Array], Array]] = {
    "X.T @ X and eigh": lambda rows: np.linalg.eigh(rows.T @ rows)[1][:, -RANK:],
    **{
        f"fedpower, {kind}, {m} silos": lambda rows, given=given, m=m: (
            fed_pca(np.array_split(rows, m), **given).components_.T
        )
        for kind, given in (("exact", EXACT), ("private", FITS["private, public bound"]))
        for m in (1, 20)
    },
    **{
        f"PCA, {solver}": lambda rows, solver=solver: sk_pca(rows, solver).components_.T
        for solver in ("covariance_eigh", "randomized", "arpack", "full")
    },
    "IncrementalPCA": lambda rows: _incremental(rows, 10_000),
    "Dask svd_compressed, 4 power steps": lambda rows: _dask(rows, 4),
    "torch.pca_lowrank, q = k + 10, niter = 6": lambda rows: _torch(rows, RANK + 10, 6),
}  # fmt: skip


@case("libraries", quick={"rows": 500, "columns": 16, "repeats": 1})
def libraries(*, rows: int = 1_000_000, columns: int = 100, repeats: int = 3, limit_s: float = 90.0) -> Table:
    """Fit an array by other libraries' PCA, each in a process of its own: time, memory and error."""
    with scratch() as folder:
        path = folder / "rows.npy"
        np.save(path, model_one(rows, columns))
        ways = {
            name: lambda name=name: in_own_process(
                "benchmarks.speed:fit_array", method=name, path=str(path), limit_s=limit_s,
                threads=1 if name.startswith("Dask") else None,
            )
            for name in LIBRARIES
        }  # fmt: skip
        measured = compare(ways, repeats, warm=False)
    return timing_table(
        measured,
        base="fedpower, private, 20 silos",
        columns=("seconds", "ratio", *MEMORY, "sin θ to the exact subspace"),
        notes=["The error of private fits is that of the privacy noise."],
    )


def fit_array(*, method: str, path: str) -> Record:
    from fedpower.linalg import sin_theta

    rows = np.load(path)
    LIBRARIES[method](rows[:200])
    record, basis = timed(lambda: LIBRARIES[method](rows))
    exact = np.linalg.eigh(np.cov(rows.T))[1][:, -RANK:]
    return record | {"error": sin_theta(np.asarray(basis), exact)}


def _incremental(rows: Array, batch: int) -> Array:
    from sklearn.decomposition import IncrementalPCA

    return np.asarray(IncrementalPCA(RANK, batch_size=min(batch, len(rows))).fit(rows).components_.T)


def _dask(rows: Array, powers: int) -> Array:
    import dask.array as da

    array = da.from_array(rows, chunks=("auto", -1), name=False)
    seed = da.random.default_rng(0)
    found = da.linalg.svd_compressed(array - array.mean(axis=0), RANK, n_power_iter=powers, seed=seed)[2]
    return np.asarray(found.compute(scheduler="threads")).T


def _torch(rows: Array, columns: int, powers: int) -> Array:
    import torch

    torch.manual_seed(0)
    return np.asarray(torch.pca_lowrank(torch.from_numpy(rows), q=columns, niter=powers)[2][:, :RANK])


# From files


@case("fit_files", quick={"rows": 2_000, "csv_rows": 1_000, "columns": 6, "repeats": 1})
def fit_files(
    *, rows: int = 5_000_000, csv_rows: int = 400_000, columns: int = 50, repeats: int = 3
) -> Table:
    """Fit Parquet and CSV privately, with a bound and without, against Polars and scikit-learn."""
    measured = []
    with scratch() as folder:
        for kind, count in (("Parquet", rows), ("CSV", csv_rows)):
            path = write_table(folder / f"rows.{kind.lower()}", model_one(count, columns))
            write_table(folder / f"few.{kind.lower()}", model_one(500, columns))
            ways = {
                way: lambda way=way, path=path: in_own_process(
                    "benchmarks.speed:fit_file", way=way, path=str(path)
                )
                for way in ("Polars + scikit-learn PCA", *FITS)
            }
            measured += compare(ways, repeats, warm=False, file=f"{kind}, {count:,} × {columns}")
            path.unlink()
    return timing_table(
        measured,
        base="Polars + scikit-learn PCA",
        by="file",
        columns=(*TIMES, *MEMORY),
        notes=["The operating system has the files in memory; each process fits a small file before."],
    )


def fit_file(*, way: str, path: str) -> Record:
    _fit_file(way, str(Path(path).with_stem("few")))
    return timed(lambda: _fit_file(way, path))[0]


def _fit_file(way: str, path: str) -> Any:
    if way in FITS:
        return fed_pca([path], **FITS[way])
    import polars as pl

    read = pl.read_parquet if path.endswith(".parquet") else pl.read_csv
    return sk_pca(read(path).to_numpy())


def write_table(path: Path, rows: Array) -> Path:
    import polars as pl

    frame = pl.DataFrame(rows, schema=[f"x{place}" for place in range(rows.shape[1])])
    if path.suffix == ".parquet":
        frame.write_parquet(path)
    else:
        frame.write_csv(path)
    return path


FLIGHTS = """format = "fedpower-codebook/2"

[rules]
time = { kind = "date", origin = "2013-01-01", unit = "days", range = [0, 365] }
carrier = { levels = [%s] }
origin = { levels = ["EWR", "JFK", "LGA"] }
departure = { kind = "number", range = [-60, 600], missing = "offset" }
arrival = { kind = "number", range = [-90, 600], missing = "offset" }
air = { kind = "number", range = [0, 700], missing = "offset" }
"""
CARRIERS = [f"C{place:02}" for place in range(16)]


@case("flights", quick={"rows": 1_500, "repeats": 1})
def flights(*, rows: int = 337_000, repeats: int = 3) -> Table:
    """Fit a table with dates, categories and gaps, against pandas and scikit-learn."""
    import polars as pl

    measured = []
    with scratch() as folder:
        frame = _flights(rows)
        (folder / "rules.toml").write_text(
            FLIGHTS % ", ".join(f'"{name}"' for name in CARRIERS), encoding="utf-8"
        )
        for kind in ("csv", "parquet"):
            path = folder / f"flights.{kind}"
            frame.write_csv(path) if kind == "csv" else frame.write_parquet(path)
            given = {"epsilon": 1.0, "codebook": folder / "rules.toml"}
            ways: dict[str, Callable[[], Any]] = {
                "pandas + scikit-learn PCA": lambda path=path: sk_pca(_by_pandas(path)),
                "Polars reads it": lambda path=path: (
                    (pl.read_csv(path) if path.suffix == ".csv" else pl.read_parquet(path)).height
                ),
                "fedpower, private": lambda path=path, given=given: fed_pca([path], **given),
            }
            measured += compare(ways, repeats, file=kind)
    return timing_table(measured, base="pandas + scikit-learn PCA", by="file")


def _flights(count: int) -> Any:
    import polars as pl

    rng = np.random.default_rng(0)
    delay = rng.gumbel(5.0, 20.0, count)
    gone = rng.random(count) < 0.025
    air = rng.gamma(4.0, 38.0, count)
    days = rng.integers(0, 365, count)
    frame = pl.DataFrame(
        {
            "time": np.datetime64("2013-01-01", "D") + days,
            "carrier": rng.choice(CARRIERS, count),
            "origin": rng.choice(["EWR", "JFK", "LGA"], count),
            "departure": np.round(delay),
            "arrival": np.round(delay + rng.normal(-5, 15, count)),
            "air": np.round(air),
            "distance": np.round(air * 7.0),
            **{
                name: rng.integers(0, 24, count).astype(float)
                for name in ("hour", "minute", "scheduled", "seats")
            },
        }
    )
    blank = pl.Series(gone)
    return frame.with_columns(
        pl.when(~blank).then(pl.col(name)).alias(name) for name in ("departure", "arrival", "air")
    )


def _by_pandas(path: Path) -> Array:
    import pandas as pd

    frame = pd.read_csv(path) if path.suffix == ".csv" else pd.read_parquet(path)
    frame["time"] = (pd.to_datetime(frame["time"]) - pd.Timestamp("2013-01-01")).dt.days
    frame = pd.get_dummies(frame, columns=["carrier", "origin"], dtype=float)
    return np.asarray(((frame - frame.mean()) / frame.std()).fillna(0.0).to_numpy())


# Whole processes

SCRIPT = "polars + scikit-learn in a script"


@case("start", quick={"repeats": 1, "rows": 200, "ways": ("fedpower fit, only ε",)})
def start(*, rows: int = 2_000, columns: int = 8, repeats: int = 9, ways: tuple[str, ...] = ()) -> Table:
    """Time whole processes: fedpower fit of three small files, help and imports, and scikit-learn."""
    python, counter = [sys.executable, "-c"], iter(range(10**6))
    with scratch() as folder:
        files = [str(write_table(folder / f"{name}.csv", model_one(rows, columns))) for name in "abc"]
        script = (
            "import polars as pl; from sklearn.decomposition import PCA; "
            f"PCA({RANK}).fit(pl.concat([pl.read_csv(name) for name in {files!r}]).to_numpy())"
        )
        fedpower = [sys.executable, "-m", "fedpower"]
        fit = [*fedpower, "fit", *files, "-k", str(RANK), "--epsilon", "1"]
        commands = {
            SCRIPT: [*python, script],
            "fedpower fit, only ε": fit,
            "fedpower fit, public bound": [*fit, "--row-norm", "1", "--no-standardize"],
            "fedpower --help": [*fedpower, "--help"],
            "import fedpower": [*python, "import fedpower"],
            "from fedpower import FedPCA": [*python, "from fedpower import FedPCA"],
            "import numpy, sklearn's PCA": [*python, "import numpy; from sklearn.decomposition import PCA"],
        }

        def process(command: list[str]) -> Record:
            output = ["-o", str(folder / f"out{next(counter)}")] if "fit" in command else []
            began = time.perf_counter()
            subprocess.run([*command, *output], check=True, capture_output=True)
            return {"seconds": time.perf_counter() - began}

        works = {
            name: lambda made=made: process(made)
            for name, made in commands.items()
            if not ways or name in ways
        }
        measured = compare(works, repeats)
    return timing_table(measured, base=SCRIPT, columns=("seconds", "ratio"))


# Wide rows


@case("wide", quick={"rows": 60, "columns": 200, "repeats": 1})
def wide(
    *, rows: int = 1_500, columns: int = 14_000, rank: int = 10, silos: int = 3, repeats: int = 3
) -> Table:
    """Fit few wide rows exactly, against scipy's and scikit-learn's arpack on the pooled rows."""
    import polars as pl
    from scipy.sparse.linalg import svds

    pooled = genotypes(rows, columns, seed=0).astype(float)
    parts = np.array_split(pooled, silos)
    with scratch() as folder:
        paths = [str(write_table(folder / f"{place}.parquet", part)) for place, part in enumerate(parts)]
        given = {"rank": rank, **EXACT}
        measured = compare(
            {
                "scikit-learn PCA, arpack": lambda: sk_pca(pooled, "arpack", rank),
                "scipy svds of centred rows": lambda: svds(pooled - pooled.mean(axis=0), rank, rng=0),
                "fedpower, exact": lambda: fed_pca(parts, **given),
            },
            repeats,
            data="memory",
        )
        measured += compare(
            {
                "scikit-learn PCA, arpack": lambda: sk_pca(pl.read_parquet(paths).to_numpy(), "arpack", rank),
                "fedpower, exact": lambda: fed_pca(paths, **given),
            },
            repeats,
            data="Parquet",
        )
    return timing_table(measured, base="scikit-learn PCA, arpack", by="data")


# Silos


@case("silos", quick={"rows": 2_000, "columns": 8, "silos": 20, "secure_silos": 3, "repeats": 1})
def silos(
    *, rows: int = 1_000_000, columns: int = 100, silos: int = 1000, secure_silos: int = 300, repeats: int = 3
) -> Table:
    """Fit the same rows in one silo and in many, and with secure sums against plain ones."""
    pooled, few = model_one(rows, columns), model_one(200 * secure_silos, columns)
    shapes = {f"{rows:,} rows": (pooled, silos), f"{len(few):,} rows": (few, secure_silos)}
    measured: list[Record] = []
    for name, (held, count) in shapes.items():
        parts, given = np.array_split(held, count), FITS["private, public bound"]
        ways: dict[str, Callable[[], Any]] = {
            "one silo": lambda held=held, given=given: fed_pca([held], **given),
            f"{count:,} silos": lambda parts=parts, given=given: fed_pca(parts, **given),
            f"{count:,} silos, exact": lambda parts=parts: fed_pca(parts, **EXACT),
        }
        if held is few:
            ways["secure sums"] = lambda parts=parts, given=given: fed_pca(
                parts, aggregation="secure", **given
            )
        measured += compare(ways, repeats, data=name)
    return timing_table(measured, base="one silo", by="data")


# Growth

POINT = ("what grows", "to", "seconds", "fit's own MB", "rounds", "MB up", "MB down")


@case("growth", quick={"rows": (500, 1_000), "columns": (8, 16), "silos": (1, 2), "ranks": (4, 8),
                        "most_rows": 400, "repeats": 1})  # fmt: skip
def growth(
    *,
    rows: tuple[int, ...] = (10_000, 100_000, 300_000, 1_000_000, 3_000_000, 10_000_000),
    columns: tuple[int, ...] = (32, 128, 512, 1024, 2048, 4096),
    silos: tuple[int, ...] = (1, 2, 10, 100, 1_000),
    ranks: tuple[int, ...] = (8, 32, 128),
    most_rows: int = 1_000_000,
    repeats: int = 3,
) -> Table:
    """Measure how time, memory, rounds and bytes of a fit grow with rows, columns, silos and rank."""
    shapes = {
        "rows n": {n: {"shape": (n, 32)} for n in rows},
        "columns d": {d: {"shape": (most_rows // 50, d)} for d in columns},
        "silos m": {m: {"shape": (most_rows, 100), "silos": m} for m in silos},
        "silos m, exact": {m: {"shape": (most_rows, 100), "silos": m, "exact": True} for m in silos},
        "rank r": {r: {"shape": (most_rows // 20, min(512, most_rows)), "rank": r} for r in ranks},
    }
    measured: list[Record] = []
    for curve, sizes in shapes.items():
        ways = {
            str(size): lambda given=given, size=size: (
                in_own_process("benchmarks.speed:fit_grown", **given) | {"size": size}
            )
            for size, given in sizes.items()
        }
        measured += compare(ways, repeats, warm=False, curve=curve)
    summary, points = [], []
    for curve, sizes in shapes.items():
        here, all_sizes = having(measured, curve=curve), list(sizes)
        upper = all_sizes[-((len(all_sizes) + 1) // 2) :]
        ends = [most(having(here, size=size), "rise_mb", ",.0f") for size in (all_sizes[0], all_sizes[-1])]
        grown = f"{all_sizes[0]:,} to {all_sizes[-1]:,}"
        slopes = [
            median_range(exponents(here, which)) if len(which) > 1 else "" for which in (all_sizes, upper)
        ]
        last = ratios(having(here, size=all_sizes[-1]), having(here, size=all_sizes[0]))
        summary.append([curve, grown, *slopes, median_range(last), " and ".join(ends)])
        for size in all_sizes:
            fits = having(here, size=size)
            sent = (most(fits, key, ",.3g") for key in ("rounds", "mb_up", "mb_down"))
            points.append(
                [curve, f"{size:,}", median_range(values(fits)), most(fits, "rise_mb", ",.0f"), *sent]
            )
    return Table(
        columns=[
            "what grows", "from … to", "exponent of the time", "larger half", "largest / smallest",
            "fit's own MB, smallest and largest",
        ],
        rows=summary,
        measured=measured,
        notes=[
            "Exponent: the slope of log time on log size within a repeat; 1 is linear.",
            "![Time and memory against rows, columns, silos and rank](../docs/speed.svg)",
        ],
        more=[("Every point:", POINT, points)],
    )  # fmt: skip


def fit_grown(
    *, shape: tuple[int, int], silos: int = 1, rank: int | None = None, exact: bool = False
) -> Record:
    parts = np.array_split(model_one(*shape), silos)
    given = FITS["exact" if exact else "private, public bound"]
    given = given if rank is None else {**given, "iteration_rank": rank, "noise": "step"}
    fed_pca([model_one(200, max(16, rank or 0))], **given)
    record, fitted = timed(lambda: fed_pca(parts, **given))
    sent = {key: sum(each[f"bytes_{key}"] for each in fitted.history_) / 1e6 for key in ("up", "down")}
    return record | {"rounds": len(fitted.history_), "mb_up": sent["up"], "mb_down": sent["down"]}


# Devices


@case("gpu", quick={"gigabytes": 0.00005, "device": "cpu", "columns": (32,), "repeats": 1})
def gpu(
    *, gigabytes: float = 8.0, columns: tuple[int, ...] = (100, 512), device: str = "cuda", repeats: int = 7
) -> Table:
    """Fit float32 rows on a GPU: 16 components, privately, against PyTorch's Gram matrix and eigh."""
    import torch

    if device == "cuda" and not torch.cuda.is_available():
        raise MissingError("there is no CUDA device")
    measured = []
    for width in columns:
        torch.manual_seed(0)
        rows = torch.randn(int(gigabytes * 1e9 / 4 / width), width, device=device)
        rows *= torch.linspace(2.0, 0.5, width, device=device)
        bound = {"row_norm": 1.5 * width**0.5, "standardize": False, "device": device}
        ways: dict[str, Callable[[], Any]] = {
            "torch: Gram matrix and eigh": lambda rows=rows: torch.linalg.eigh(rows.T @ rows)[1].cpu(),
            "torch: Gram matrix": lambda rows=rows: (rows.T @ rows).cpu(),
            "torch.pca_lowrank(q=16)": lambda rows=rows: torch.pca_lowrank(rows, q=16)[2].cpu(),
            "fedpower, private": lambda rows=rows, bound=bound: fed_pca([rows], 16, epsilon=1.0, **bound),
            "fedpower, private, only ε": lambda rows=rows: fed_pca([rows], 16, epsilon=1.0, device=device),
            "fedpower, exact": lambda rows=rows: fed_pca([rows], 16, device=device, **EXACT),
        }
        measured += compare(ways, repeats, columns=width)
        del rows, ways
    name = torch.cuda.get_device_name() if device == "cuda" else device
    table = timing_table(
        measured, base="torch: Gram matrix and eigh", by="columns", columns=("seconds", "ratio")
    )
    return Table(**{**vars(table), "settings": {"device": name}})
