"""Three small hospitals on disk, and commands run on them."""

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet
from click.testing import CliRunner, Result

from fedpower.cli import main
from problems import Array, spiked_rows

PROGRAM = [sys.executable, "-c", "from fedpower.cli import main; main()"]
COLUMNS = ("age", "bmi", "sbp", "dbp", "hdl")
SIZES = {"north": 60, "south": 50, "east": 40}
EXACT = ("-k", "2", "--epsilon", "inf", "--seed", "1")
PRIVATE = ("-k", "2", "--epsilon", "1", "--row-norm", "10", "--seed", "1")


def all_rows() -> Array:
    return spiked_rows(sum(SIZES.values()), len(COLUMNS), rank=2, seed=3) + 1.0


def parts() -> dict[str, Array]:
    return dict(zip(SIZES, np.split(all_rows(), np.cumsum(list(SIZES.values()))[:-1]), strict=True))


def table_of(rows: Array, columns: tuple[str, ...] = COLUMNS) -> pa.Table:
    order = [COLUMNS.index(column) for column in columns]
    return pa.table({name: rows[:, place] for name, place in zip(columns, order, strict=True)})


def write_hospitals(folder: Path) -> None:
    """Write a CSV, a Parquet file with other column order and an npy, and one file with sites."""
    held = parts()
    pyarrow.csv.write_csv(table_of(held["north"]), folder / "north.csv")
    pyarrow.parquet.write_table(table_of(held["south"], COLUMNS[::-1]), folder / "south.parquet")
    pyarrow.csv.write_csv(table_of(held["east"]), folder / "east.csv")
    np.save(folder / "east.npy", held["east"])
    np.save(folder / "north.npy", held["north"])
    site = [name for name, size in SIZES.items() for _ in range(size)]
    everybody = table_of(all_rows()).append_column("site", pa.array(site))
    pyarrow.csv.write_csv(everybody, folder / "everybody.csv")
    broken = held["north"].copy()
    broken[6, 1] = np.nan
    pyarrow.csv.write_csv(table_of(broken), folder / "holes.csv")


def make_ledgers(folder: str = ".", epsilon: float = 2.0) -> None:
    for name in SIZES:
        succeed("ledger", "create", f"{folder}/{name}.ledger", "--epsilon", epsilon, "--delta", 1e-6)


def run(*words: object, **how: Any) -> Result:
    return CliRunner().invoke(main, [str(word) for word in words], **how)


def succeed(*words: object) -> Result:
    result = run(*words)
    assert result.exit_code == 0, result.stderr
    return result
