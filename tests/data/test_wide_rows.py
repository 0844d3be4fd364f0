"""Wide rows: a private fit that noises every step never holds a d×d array, nor a copy of the rows."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import sparse

pytestmark = [
    pytest.mark.memory,
    pytest.mark.skipif(sys.platform != "linux", reason="reads the peak from /proc"),
]

ROOT = Path(__file__).parents[2]
N_FEATURES = 20_000  # a d×d array would take 3 GB

CODE = """
import sys
from benchmarks.fits import fed_pca

def peak():  # ru_maxrss would start at the parent's peak
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) / 1024

def fit(path):
    return fed_pca(epsilon=1.0, standardize=False, random_state=0, **TERMS).fit_silos([path])

fit(sys.argv[1])  # a small fit first: what the libraries take is not the rows'
base = peak()
model = fit(sys.argv[2])
assert model.study_.noise == "step", model.study_.noise
assert all("read at every step" in reason for reason in model.kernels_.values()), model.kernels_
print(model.n_samples_, peak() - base, base, model.n_steps_)
"""


def rise_of(small: Path, large: Path, **terms: Any) -> tuple[int, float, float, int]:
    """Return rows, MiB of a fit, MiB before it, and its steps."""
    code = CODE.replace("TERMS", repr(terms))
    done = subprocess.run(
        [sys.executable, "-c", code, str(small), str(large)],
        check=True, capture_output=True, text=True, cwd=ROOT,
    )  # fmt: skip
    rows, rise, base, steps = done.stdout.split()
    return int(rows), float(rise), float(base), int(steps)


def write_dense(path: Path, n_rows: int) -> None:
    part = np.random.default_rng(0).standard_normal((100, N_FEATURES)).astype(np.float32)
    np.save(path, np.tile(part, (n_rows // 100, 1)))


def write_sparse(path: Path, n_rows: int) -> None:
    rows = sparse.random_array((n_rows, N_FEATURES), density=1e-3, format="csr", rng=0)
    sparse.save_npz(path, rows, compressed=False)


@pytest.mark.parametrize(
    ("write", "n_rows", "most"),
    [(write_dense, 2_000, 150), (write_sparse, 100_000, 60)],
    ids=["dense", "sparse"],
)
def test_memory_does_not_follow_the_rows(write: Any, n_rows: int, most: float, tmp_path: Path) -> None:
    ending = ".npy" if write is write_dense else ".npz"
    small, large = tmp_path / f"small{ending}", tmp_path / f"large{ending}"
    write(small, n_rows // 10 if write is write_sparse else 100)
    write(large, n_rows)
    found, rise, base, _ = rise_of(small, large, n_components=2, row_norm=200.0, n_steps=3)
    print(f"{ending}: {base} MiB, then {rise} MiB more")
    assert found == n_rows
    assert rise < most
    assert base + rise < 700


def test_ten_noised_steps_take_the_room_of_few_bases_beside_a_block_of_rows(tmp_path: Path) -> None:
    """T/2 of the history in float32, basis, product, its integers and noise, and what the C library keeps."""
    n_rows, width, columns = 20, 14, 100_000
    rng = np.random.default_rng(0)
    small, large = tmp_path / "small.npy", tmp_path / "large.npy"
    np.save(small, rng.standard_normal((n_rows, 300)))
    np.save(large, (rng.standard_normal((n_rows, columns)) / 300).astype(np.float32))
    terms = {"n_components": 4, "row_norm": 1.0, "n_steps": 10, "noise": "step"}
    _, rise, _, steps = rise_of(small, large, **terms)
    basis, block = 8 * columns * width, 8 * n_rows * columns
    held = (rise * 2**20 - block) / basis
    print(f"{held:.1f} bases beside a block")
    assert steps == 10
    assert held < 13
