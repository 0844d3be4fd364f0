"""Files are streamed: the memory of a pass, and of a private fit of wide rows, does not follow their size."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
from row_forms import write_h5ad
from scipy import sparse

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc"),
]

ROOT = Path(__file__).parents[2]

CODE = """
import sys
import pyarrow.parquet, pyarrow.compute, pyarrow.csv, scipy.linalg
from benchmarks.fits import fed_pca
from fedpower.rows.opening import open_source
from fedpower.rules.treatment import RowTreatment
from fedpower.sums.local import LocalMoment

def peak():  # ru_maxrss would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def sums(path):
    return LocalMoment(open_source(path), RowTreatment(row_norm=5.0)).summary.n_rows

def fit(path):
    model = fed_pca(epsilon=1.0, standardize=False, random_state=0, **TERMS).fit_silos([path])
    assert model.study_.noise == "step", model.study_.noise
    assert all("read at every step" in reason for reason in model.kernels_.values()), model.kernels_
    return model.n_samples_seen_

run = fit if TERMS else sums
run(sys.argv[1])  # a few rows first: the libraries' own pages are not the file's
base = peak()
print(run(sys.argv[2]), peak() - base, base)
"""


def rise_of(small: Path, large: Path, **terms: Any) -> tuple[int, float, float]:
    """Return rows, MiB of a fit or of a pass where there are no terms, and MiB before it."""
    command = [sys.executable, "-c", CODE.replace("TERMS", repr(terms)), str(small), str(large)]
    done = subprocess.run(command, check=True, capture_output=True, text=True, cwd=ROOT)
    rows, rise, base = done.stdout.split()
    large.unlink()
    print(f"{large.name}: {base} MiB, then {rise} MiB more")
    return int(rows), float(rise), float(base)


N_FEATURES = 16
BLOCK = 50_000
N_BLOCKS = 32
NAMES = tuple(f"x{place}" for place in range(N_FEATURES))
PART = np.random.default_rng(0).standard_normal((BLOCK, N_FEATURES))


def write_parquet(path: Path, n_blocks: int) -> None:
    schema = pa.schema([(name, pa.float64()) for name in NAMES])
    with pyarrow.parquet.ParquetWriter(path, schema, compression="none", use_dictionary=False) as writer:
        for _ in range(n_blocks):
            writer.write_table(pa.table(list(PART.T), schema=schema), row_group_size=BLOCK)


def write_cells(path: Path, n_blocks: int) -> None:
    write_h5ad(PART[:2], path, NAMES)
    with h5py.File(path, "r+") as file:  # of the cells' own names nothing is read
        del file["X"]
        stored = file.create_dataset("X", (BLOCK * n_blocks, N_FEATURES), "f8")
        stored.attrs["encoding-type"] = "array"
        for start in range(0, BLOCK * n_blocks, BLOCK):
            stored[start : start + BLOCK] = PART


WRITERS = {
    ".npy": lambda path, n_blocks: np.save(path, np.tile(PART, (n_blocks, 1))),
    ".parquet": write_parquet,
    ".h5ad": write_cells,
}


@pytest.mark.parametrize("ending", WRITERS)
def test_a_pass_over_200_mb_takes_less_than_120_mb(ending: str, tmp_path: Path) -> None:
    small, large = tmp_path / f"small{ending}", tmp_path / f"large{ending}"
    for path, n_blocks in ((small, 1), (large, N_BLOCKS)):
        WRITERS[ending](path, n_blocks)
    assert large.stat().st_size > 190e6
    n_rows, rise, _ = rise_of(small, large)
    assert n_rows == BLOCK * N_BLOCKS
    assert rise < 120


WIDTH = 20_000  # a d×d array would take 3 GB


def write_dense(path: Path, n_rows: int) -> None:
    part = np.random.default_rng(0).standard_normal((100, WIDTH)).astype(np.float32)
    np.save(path, np.tile(part, (n_rows // 100, 1)))


def write_sparse(path: Path, n_rows: int) -> None:
    rows = sparse.random_array((n_rows, WIDTH), density=1e-3, format="csr", rng=0)
    sparse.save_npz(path, rows, compressed=False)


@pytest.mark.parametrize(
    ("ending", "write", "n_rows", "most"),
    [("dense.npy", write_dense, 2_000, 150), ("sparse.npz", write_sparse, 100_000, 60)],
)
def test_memory_of_a_fit_does_not_follow_wide_rows(
    ending: str, write: Any, n_rows: int, most: float, tmp_path: Path
) -> None:
    small, large = tmp_path / f"small-{ending}", tmp_path / f"large-{ending}"
    write(small, n_rows // 10)
    write(large, n_rows)
    found, rise, base = rise_of(small, large, n_components=2, row_norm=200.0, n_steps=3)
    assert found == n_rows
    assert rise < most
    assert base + rise < 700


def test_ten_noised_steps_take_the_room_of_few_bases_beside_a_block_of_rows(tmp_path):
    """Answers in float32 (T/2 bases), nine in float64 of a step, and what the C library keeps."""
    n_rows, width, columns = 20, 14, 100_000
    rng = np.random.default_rng(0)
    small, large = tmp_path / "small.npy", tmp_path / "large.npy"
    np.save(small, rng.standard_normal((n_rows, 300)))
    np.save(large, (rng.standard_normal((n_rows, columns)) / 300).astype(np.float32))
    _, rise, _ = rise_of(small, large, n_components=4, row_norm=1.0, n_steps=10, noise="step")
    held = (rise * 2**20 - 8 * n_rows * columns) / (8 * columns * width)
    print(f"{held:.1f} bases beside a block")
    assert held < 24
