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
from workbooks import write_xlsx

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


def _npy(rows: Any, folder: Path) -> Path:
    np.save(folder / "r.npy", rows)
    return folder / "r.npy"


def _npy_fortran(rows: Any, folder: Path) -> Path:
    return _npy(np.asfortranarray(rows), folder)


def _npz(rows: Any, folder: Path) -> Path:
    np.savez_compressed(folder / "r.npz", X=rows, y=np.arange(3))
    return folder / "r.npz"


def _npz_fortran(rows: Any, folder: Path) -> Path:
    np.savez(folder / "r.npz", np.asfortranarray(rows))
    return folder / "r.npz"


def _npz_csr(rows: Any, folder: Path) -> Path:
    sparse.save_npz(folder / "s.npz", sparse.csr_array(rows))
    return folder / "s.npz"


def _npz_csc(rows: Any, folder: Path) -> Path:
    sparse.save_npz(folder / "s.npz", sparse.csc_matrix(rows))
    return folder / "s.npz"


def _csv(rows: Any, folder: Path) -> Path:
    pyarrow.csv.write_csv(table(rows), folder / "r.csv")
    return folder / "r.csv"


def _csv_gz(rows: Any, folder: Path) -> Path:
    (folder / "r.csv.gz").write_bytes(gzip.compress(_csv(rows, folder).read_bytes()))
    return folder / "r.csv.gz"


def _tsv(rows: Any, folder: Path) -> Path:
    pd.DataFrame(rows, columns=NAMES).to_csv(folder / "r.tsv", sep="\t", index=False)
    return folder / "r.tsv"


def _parquet(rows: Any, folder: Path) -> Path:
    pyarrow.parquet.write_table(table(rows), folder / "r.parquet", row_group_size=20)
    return folder / "r.parquet"


def _parquet_pandas(rows: Any, folder: Path) -> Path:
    frame = pd.DataFrame(rows, columns=NAMES, index=np.arange(len(rows)) * 3 + 1)
    frame.to_parquet(folder / "r.parquet", index=True)
    return folder / "r.parquet"


def _feather(rows: Any, folder: Path) -> Path:
    pyarrow.feather.write_feather(table(rows), folder / "r.feather", chunksize=17)
    return folder / "r.feather"


def _arrow_stream(rows: Any, folder: Path) -> Path:
    data = table(rows)
    with pa.ipc.new_stream(folder / "r.arrow", data.schema) as writer:
        writer.write_table(data, max_chunksize=9)
    return folder / "r.arrow"


def _svmlight(rows: Any, folder: Path) -> Path:
    (folder / "r.svm").write_text(svmlight_text(rows))
    return folder / "r.svm"


def _svmlight_gz(rows: Any, folder: Path) -> Path:
    (folder / "r.libsvm.gz").write_bytes(gzip.compress(svmlight_text(rows).encode()))
    return folder / "r.libsvm.gz"


def write_sqlite(rows: Any, path: Path, names: tuple[str, ...] = NAMES) -> str:
    """Write rows as the table `visits` of a SQLite file and return its URL."""
    columns = ", ".join('"' + name.replace('"', '""') + '"' for name in names)
    marks = ", ".join("?" * len(names))
    with sqlite3.connect(path) as connection:
        connection.execute(f"CREATE TABLE visits ({columns})")
        connection.executemany(f"INSERT INTO visits VALUES ({marks})", rows.tolist())
    connection.close()
    return f"sqlite:///{path}"


def _sqlite(rows: Any, folder: Path) -> SqlQuery:
    return SqlQuery("SELECT * FROM visits", write_sqlite(rows, folder / "r.db"))


def _sqlite_toml(rows: Any, folder: Path) -> Path:
    write_sqlite(rows, folder / "s.db")
    (folder / "r.toml").write_text('[data]\nquery = "SELECT * FROM visits;"\ndatabase = "sqlite:///s.db"\n')
    return folder / "r.toml"


def _german_csv(rows: Any, folder: Path) -> Path:
    frame = pd.DataFrame(rows, columns=NAMES)
    frame.to_csv(folder / "r.csv", sep=";", decimal=",", index=False)
    return folder / "r.csv"


def _utf_16_csv(rows: Any, folder: Path) -> Path:
    pd.DataFrame(rows, columns=NAMES).to_csv(folder / "r.csv", encoding="utf-16", index=False)
    return folder / "r.csv"


def _described_csv(rows: Any, folder: Path) -> Path:
    """Own names, units of which two make one, an encoding that nothing tells: and a file that says so."""
    own = dict(zip(NAMES, ("alter", "dosis", "t", "xy", "Größe"), strict=True))
    frame = pd.DataFrame(rows, columns=NAMES).rename(columns=own)
    frame["dosis"] = frame["dosis"] / 2
    frame.to_csv(folder / "own.csv", index=False, encoding="cp1252")
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


def _csv_parts(rows: Any, folder: Path) -> Path:
    return in_parts(rows, folder, pyarrow.csv.write_csv, ".csv")


def _parquet_parts(rows: Any, folder: Path) -> Path:
    return in_parts(rows, folder, pyarrow.parquet.write_table, ".parquet") / "**" / "*.parquet"


def _dataset(rows: Any, folder: Path) -> Any:
    return pyarrow.dataset.dataset(in_parts(rows, folder, pyarrow.parquet.write_table, ".parquet"))


def _xlsx(rows: Any, folder: Path) -> Path:
    write_xlsx(folder / "r.xlsx", Notes=[["not", "this"]], Visits=[NAMES, *rows.tolist()])
    return folder / "r.xlsx#Visits"


def write_duckdb(rows: Any, path: Path) -> str:
    """Write rows as the table `visits` of a DuckDB file and return its URL."""
    visits = table(rows)
    with duckdb.connect(str(path)) as connection:
        connection.register("given", visits)
        connection.execute("CREATE TABLE visits AS SELECT * FROM given")
    return f"duckdb:///{path}"


def _duckdb(rows: Any, folder: Path) -> SqlQuery:
    return SqlQuery("SELECT * FROM visits", write_duckdb(rows, folder / "r.duckdb"))


def _pandas_mixed(rows: Any, folder: Path) -> Any:
    frame = pd.DataFrame(rows, columns=NAMES)
    frame["ß"] = frame["ß"].astype("Int64")
    frame["age"] = frame["age"].astype(object)
    return frame


def _masked(rows: Any, folder: Path) -> Any:
    return np.ma.masked_array(rows, mask=np.zeros(rows.shape, dtype=bool))


class Exporter:
    """Stands for polars: exports itself through the Arrow C stream and is nothing else."""

    def __init__(self, data: pa.Table) -> None:
        self._data = data

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return self._data.__arrow_c_stream__(requested_schema)


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
    "masked array": _masked,
    "csr": lambda rows, folder: sparse.csr_array(rows),
    "coo": lambda rows, folder: sparse.coo_matrix(rows),
    "pandas": lambda rows, folder: pd.DataFrame(rows, columns=NAMES),
    "pandas of many dtypes": _pandas_mixed,
    "arrow table": lambda rows, folder: table(rows),
    "arrow batch": lambda rows, folder: table(rows).to_batches()[0],
    "arrow exporter": lambda rows, folder: Exporter(table(rows)),
    "npy": _npy,
    "fortran npy": _npy_fortran,
    "npz": _npz,
    "fortran npz": _npz_fortran,
    "csr npz": _npz_csr,
    "csc npz": _npz_csc,
    "csv": _csv,
    "csv.gz": _csv_gz,
    "tsv": _tsv,
    "csv with semicolons and decimal commas": _german_csv,
    "csv in UTF-16": _utf_16_csv,
    "csv under other names and units": _described_csv,
    "folder of csv": _csv_parts,
    "pattern of parquet": _parquet_parts,
    "arrow dataset": _dataset,
    "polars lazy frame": lambda rows, folder: pl.from_arrow(table(rows)).lazy(),
    "xlsx": _xlsx,
    "parquet": _parquet,
    "parquet with index": _parquet_pandas,
    "feather": _feather,
    "arrow stream": _arrow_stream,
    "svmlight": _svmlight,
    "svmlight.gz": _svmlight_gz,
    "sqlite": _sqlite,
    "sqlite toml": _sqlite_toml,
    "duckdb": _duckdb,
    "dask array": lambda rows, folder: dask.array.from_array(rows, chunks=(20, 2)),
    "dask frame": lambda rows, folder: dask.dataframe.from_pandas(
        pd.DataFrame(rows, columns=NAMES), npartitions=2
    ),
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
    """Return all rows of a source as one dense array."""
    return np.vstack([b.toarray() if sparse.issparse(b) else np.asarray(b) for b in source.blocks(max_rows)])
