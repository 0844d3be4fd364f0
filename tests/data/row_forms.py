"""The same rows in every form that a source can take."""

import gzip
import sqlite3
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import anndata
import dask.array
import dask.dataframe
import duckdb
import numpy as np
import openpyxl
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv
import pyarrow.dataset
import pyarrow.feather
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from scipy import sparse

from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource
from fedpower.rows.sql import SqlQuery

N_ROWS, N_FEATURES = 53, 5
NAMES = ("age", "dose", "t 1", "x.y", "ß")


def sample_rows() -> NDArray[np.float64]:
    rng = np.random.default_rng(7)
    rows = rng.standard_normal((N_ROWS, N_FEATURES)) * [1, 10, 0.1, 1e3, 1] + [0, 50, 0, 1e4, 0]
    rows[rng.random(rows.shape) < 0.4] = 0.0
    rows[11] = 0.0
    rows[:, 4] = np.round(rows[:, 4]) + 0.0
    return rows


def table(rows: NDArray[np.float64]) -> pa.Table:
    return pa.table({name: rows[:, place] for place, name in enumerate(NAMES)})


def svmlight_text(rows: NDArray[np.float64]) -> str:
    lines = ["# a comment line"]
    for number, row in enumerate(rows):
        pairs = " ".join(f"{j + 1}:{value!r}" for j, value in enumerate(row.tolist()) if value)
        lines.append(f"{number % 2} qid:3 {pairs} # note")
    return "\n".join(lines) + "\n"


def saved(name: str, write: Callable[[Path, Any], Any]) -> Callable[[Any, Path], Path]:
    def made(rows: Any, folder: Path) -> Path:
        write(folder / name, rows)
        return folder / name

    return made


def frame(rows: Any) -> pd.DataFrame:
    return pd.DataFrame(rows, columns=NAMES)


def zipped(path: Path, text: str) -> None:
    path.write_bytes(gzip.compress(text.encode()))


def _arrow_stream(path: Path, rows: Any) -> None:
    data = table(rows)
    with pa.ipc.new_stream(path, data.schema) as writer:
        writer.write_table(data, max_chunksize=9)


def write_sqlite(rows: Any, path: Path, names: tuple[str, ...] = NAMES) -> str:
    """Write rows as the table `visits` of a SQLite file and return its URL."""
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    marks = ", ".join("?" * len(names))
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE visits ({columns})")
        connection.executemany(f"INSERT INTO visits VALUES ({marks})", rows.tolist())
    connection.close()
    return f"sqlite:///{path}"


def write_zeros(path: Path, shape: tuple[int, int]) -> Path:
    """Write an array of zeros that takes no disk."""
    np.lib.format.open_memmap(path, mode="w+", dtype=np.float64, shape=shape)
    return path


def _sqlite_toml(rows: Any, folder: Path) -> Path:
    write_sqlite(rows, folder / "s.db")
    (folder / "r.toml").write_text('[data]\nquery = "SELECT * FROM visits;"\ndatabase = "sqlite:///s.db"\n')
    return folder / "r.toml"


def _described_csv(rows: Any, folder: Path) -> Path:
    """Own names, units of which two make one, an undetected encoding, and a file that describes them."""
    own = dict(zip(NAMES, ("alter", "dosis", "t", "xy", "Größe"), strict=True))
    described = frame(rows).rename(columns=own)
    described["dosis"] = described["dosis"] / 2
    described.to_csv(folder / "own.csv", index=False, encoding="cp1252")
    names = ", ".join(f'"{word}" = "{name}"' for name, word in own.items())
    (folder / "r.toml").write_text(
        '[data]\npath = "own.csv"\nencoding = "cp1252"\n'
        f"[columns]\nrename = {{{names}}}\nfactors = {{dose = 2}}\n",
        encoding="utf-8",
    )
    return folder / "r.toml"


def in_parts(rows: Any, folder: Path, write: Callable[[pa.Table, Path], None], end: str) -> Path:
    """Write rows as three parts, with what writers leave beside them, and return their folder."""
    parts = folder / "parts"
    (parts / "later").mkdir(parents=True)
    (parts / "_SUCCESS").touch()
    for place, name in ((0, "a"), (20, "b"), (40, "later/c")):
        write(table(rows[place : place + 20]), parts / f"{name}{end}")
    return parts


def _parquet_parts(rows: Any, folder: Path) -> Path:
    return in_parts(rows, folder, pyarrow.parquet.write_table, ".parquet")


def write_xlsx(path: Path, **sheets: Iterable[Iterable[Any]]) -> Path:
    book = openpyxl.Workbook(write_only=True)
    for name, rows in sheets.items():
        sheet = book.create_sheet(name)
        for row in rows:
            sheet.append(list(row))
    book.save(path)
    return path


def _xlsx(rows: Any, folder: Path) -> Path:
    write_xlsx(folder / "r.xlsx", Notes=[["not", "this"]], Visits=[NAMES, *rows.tolist()])
    return folder / "r.xlsx#Visits"


def write_duckdb(given: pa.Table, path: Path, columns: str = "*") -> str:
    """Write columns of a table as the table `visits` of a DuckDB file and return its URL."""
    with duckdb.connect(str(path)) as connection:
        connection.register("given", given)
        connection.execute(f"CREATE TABLE visits AS SELECT {columns} FROM given")
    return f"duckdb:///{path}"


def annotated(x: Any, names: tuple[str, ...] = NAMES) -> anndata.AnnData:
    """Return cells by genes; the names are Python strings, which every anndata can write."""
    cells = pd.DataFrame(index=pd.Index([f"c{n}" for n in range(x.shape[0])], dtype=object))
    return anndata.AnnData(x, obs=cells, var=pd.DataFrame(index=pd.Index(names, dtype=object)))


def write_h5ad(x: Any, path: Path, names: tuple[str, ...] = NAMES) -> Path:
    annotated(x, names).write_h5ad(path)
    return path


def _tensor(rows: NDArray[np.float64]) -> Any:
    import torch

    return torch.tensor(rows)


FORMS: dict[str, Callable[[Any, Path], Any]] = {
    "array": lambda rows, folder: rows,
    "fortran array": lambda rows, folder: np.asfortranarray(rows),
    "big-endian array": lambda rows, folder: rows.astype(">f8"),
    "masked array": lambda rows, folder: np.ma.masked_array(rows, mask=np.zeros(rows.shape, dtype=bool)),
    "csr": lambda rows, folder: sparse.csr_array(rows),
    "coo": lambda rows, folder: sparse.coo_matrix(rows),
    "pandas": lambda rows, folder: frame(rows),
    "pandas of many dtypes": lambda rows, folder: frame(rows).astype({"ß": "Int64", "age": object}),
    "arrow table": lambda rows, folder: table(rows),
    "arrow batch": lambda rows, folder: table(rows).to_batches()[0],
    "polars frame": lambda rows, folder: pl.from_arrow(table(rows)),
    "npy": saved("r.npy", np.save),
    "fortran npy": saved("r.npy", lambda path, rows: np.save(path, np.asfortranarray(rows))),
    "npz": saved("r.npz", lambda path, rows: np.savez_compressed(path, X=rows, y=np.arange(3))),
    "fortran npz": saved("r.npz", lambda path, rows: np.savez(path, np.asfortranarray(rows))),
    "csr npz": saved("s.npz", lambda path, rows: sparse.save_npz(path, sparse.csr_array(rows))),
    "csc npz": saved("s.npz", lambda path, rows: sparse.save_npz(path, sparse.csc_matrix(rows))),
    "csv": saved("r.csv", lambda path, rows: pyarrow.csv.write_csv(table(rows), path)),
    "csv.gz": saved("r.csv.gz", lambda path, rows: zipped(path, frame(rows).to_csv(index=False))),
    "tsv": saved("r.tsv", lambda path, rows: frame(rows).to_csv(path, sep="\t", index=False)),
    "csv with semicolons and decimal commas": saved(
        "r.csv", lambda path, rows: frame(rows).to_csv(path, sep=";", decimal=",", index=False)
    ),
    "csv in UTF-16": saved(
        "r.csv", lambda path, rows: frame(rows).to_csv(path, encoding="utf-16", index=False)
    ),
    "csv under other names and units": _described_csv,
    "folder of csv": lambda rows, folder: in_parts(rows, folder, pyarrow.csv.write_csv, ".csv"),
    "pattern of parquet": lambda rows, folder: _parquet_parts(rows, folder) / "**" / "*.parquet",
    "arrow dataset": lambda rows, folder: pyarrow.dataset.dataset(_parquet_parts(rows, folder)),
    "polars lazy frame": lambda rows, folder: pl.from_arrow(table(rows)).lazy(),
    "xlsx": _xlsx,
    "parquet": saved(
        "r.parquet", lambda path, rows: pyarrow.parquet.write_table(table(rows), path, row_group_size=20)
    ),
    "parquet with index": saved(
        "r.parquet", lambda path, rows: frame(rows).set_index(np.arange(len(rows)) * 3 + 1).to_parquet(path)
    ),
    "feather": saved(
        "r.feather", lambda path, rows: pyarrow.feather.write_feather(table(rows), path, chunksize=17)
    ),
    "arrow stream": saved("r.arrow", _arrow_stream),
    "svmlight": saved("r.svm", lambda path, rows: path.write_text(svmlight_text(rows))),
    "svmlight.gz": saved("r.libsvm.gz", lambda path, rows: zipped(path, svmlight_text(rows))),
    "sqlite": lambda rows, folder: SqlQuery("SELECT * FROM visits", write_sqlite(rows, folder / "r.db")),
    "sqlite toml": _sqlite_toml,
    "duckdb": lambda rows, folder: SqlQuery(
        "SELECT * FROM visits", write_duckdb(table(rows), folder / "r.duckdb")
    ),
    "dask array": lambda rows, folder: dask.array.from_array(rows, chunks=(20, 2)),
    "dask frame": lambda rows, folder: dask.dataframe.from_pandas(frame(rows), npartitions=2),
    "h5ad": lambda rows, folder: write_h5ad(rows, folder / "r.h5ad"),
    "csr h5ad": lambda rows, folder: write_h5ad(sparse.csr_matrix(rows), folder / "r.h5ad"),
    "csc h5ad": lambda rows, folder: write_h5ad(sparse.csc_matrix(rows), folder / "r.h5ad"),
    "anndata": lambda rows, folder: annotated(rows),
    "csr anndata": lambda rows, folder: annotated(sparse.csr_matrix(rows)),
    "backed anndata": lambda rows, folder: anndata.read_h5ad(write_h5ad(rows, folder / "r.h5ad"), backed="r"),
    "tensor": lambda rows, folder: _tensor(rows),
    "transposed tensor": lambda rows, folder: _tensor(rows.T.copy()).T,
    "source": lambda rows, folder: open_source(rows),
}
TENSORS = ("tensor", "transposed tensor")


def forms(names: Iterable[str]) -> list[Any]:
    """Return the names as parameters of a test; those that take PyTorch are of its tier."""
    devices = pytest.mark.devices
    return [pytest.param(name, marks=[devices] if name in TENSORS else []) for name in names]


def read_all(source: RowSource, max_rows: int = 10_000) -> NDArray[np.float64]:
    return np.vstack([b.toarray() if sparse.issparse(b) else np.asarray(b) for b in source.blocks(max_rows)])
