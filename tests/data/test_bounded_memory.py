"""Files are streamed: the memory of a pass does not follow the size of the file."""

import subprocess
import sys
from pathlib import Path

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from row_forms import write_h5ad

pytestmark = pytest.mark.memory

N_FEATURES = 16
BLOCK = 50_000
N_BLOCKS = 32  # 200 MB
NAMES = tuple(f"x{place}" for place in range(N_FEATURES))

CODE = """
import sys
import pyarrow.parquet, pyarrow.compute, pyarrow.csv, scipy.linalg
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import LocalMoment
from fedpower.rows.opening import open_source

def peak():  # ru_maxrss would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

for path in sys.argv[2:]:  # a few rows first: the libraries' own pages are not the file's
    LocalMoment(open_source(path), RowTreatment(row_norm=5.0)).summary
base = peak()
moments = LocalMoment(open_source(sys.argv[1]), RowTreatment(row_norm=5.0)).summary
print(moments.n_rows, peak() - base)
"""


def write_npy(path: Path) -> None:
    shape = (BLOCK * N_BLOCKS, N_FEATURES)
    rng = np.random.default_rng(0)
    part = rng.standard_normal((BLOCK, N_FEATURES))
    with path.open("wb") as file:
        header = {"descr": "<f8", "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for _ in range(N_BLOCKS):
            file.write(part.tobytes())


def write_parquet(path: Path) -> None:
    rng = np.random.default_rng(0)
    schema = pa.schema([(name, pa.float64()) for name in NAMES])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none") as writer:
        for _ in range(N_BLOCKS):
            rows = rng.standard_normal((N_FEATURES, BLOCK))
            writer.write_table(pa.table(list(rows), schema=schema), row_group_size=BLOCK)


def write_cells(path: Path) -> None:
    rng = np.random.default_rng(0)
    write_h5ad(rng.standard_normal((2, N_FEATURES)), path, NAMES)
    with h5py.File(path, "r+") as file:  # of the cells' own names nothing is read
        del file["X"]
        stored = file.create_dataset("X", (BLOCK * N_BLOCKS, N_FEATURES), "f8")
        stored.attrs["encoding-type"] = "array"
        for start in range(0, BLOCK * N_BLOCKS, BLOCK):
            stored[start : start + BLOCK] = rng.standard_normal((BLOCK, N_FEATURES))


WRITERS = {".npy": write_npy, ".parquet": write_parquet, ".h5ad": write_cells}


@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc")
@pytest.mark.parametrize("ending", WRITERS)
def test_a_pass_over_200_mb_takes_less_than_120_mb(ending: str, tmp_path: Path) -> None:
    path = tmp_path / f"rows{ending}"
    WRITERS[ending](path)
    small = tmp_path / f"small{path.suffix}"
    rows = np.random.default_rng(0).standard_normal((100, N_FEATURES))
    if path.suffix == ".npy":
        np.save(small, rows)
    elif path.suffix == ".h5ad":
        write_h5ad(rows, small, NAMES)
    else:
        pyarrow.parquet.write_table(pa.table(list(rows.T), names=NAMES), small)
    assert path.stat().st_size > 190e6
    done = subprocess.run(
        [sys.executable, "-c", CODE, str(path), str(small)], check=True, capture_output=True, text=True
    )
    n_rows, rise = done.stdout.split()
    print(f"{path.name}: {rise} MiB")
    assert int(n_rows) == BLOCK * N_BLOCKS
    assert float(rise) < 120
    path.unlink()
