"""The libraries that are timed look for the same subspace, and the readers give the same rows."""

from pathlib import Path

import numpy as np
import pytest

from benchmarks.speed.methods import METHODS, READERS
from benchmarks.speed.rows import drawn, leading, model, timed
from benchmarks.speed.sizes import RANK
from fedpower.experiments.writing import write_model
from fedpower.linalg import sin_theta

pytestmark = pytest.mark.benchmarks

ITERATED = 1e-6
SKETCHED = 0.5
"""How far a method that stops early or sketches may be from the exact subspace of these rows."""

EXACT = ("fedpower, exact", "PCA, auto", "PCA, covariance_eigh", "PCA, arpack", "PCA, full")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.devices] if "torch" in name else []) for name in METHODS]
)
def test_every_method_finds_the_leading_subspace(name: str) -> None:
    rows = drawn(4_000, 20)
    basis = METHODS[name](rows)()
    assert np.allclose(basis.T @ basis, np.eye(RANK), atol=1e-8)
    if "private" not in name:  # so few rows drown in the noise of a private fit
        limit = ITERATED if name.startswith(EXACT) else SKETCHED
        assert sin_theta(basis, leading([rows])) <= limit


def test_the_exact_subspace_does_not_depend_on_the_blocks() -> None:
    rows = drawn(1_000, 8) + 3.0
    centred = np.cov(rows.T)
    truth = np.linalg.eigh(centred)[1][:, -RANK:]
    assert sin_theta(leading([rows[:100], rows[100:]]), truth) <= 1e-8


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("kind", ["parquet", "csv"])
def test_readers_give_the_rows_of_all_files_in_order(reader: str, kind: str, tmp_path: Path) -> None:
    silos = model(60, 5, 3)
    paths = write_model(silos, tmp_path / "silos", kind=kind)  # type: ignore[arg-type]
    written = np.vstack([block for silo in range(3) for block in silos.blocks(silo, 100)])
    assert np.array_equal(READERS[reader]([str(path) for path in paths]), written)


@pytest.mark.memory
def test_a_fit_is_timed_and_its_own_memory_told_without_what_came_before() -> None:
    big = np.ones(60_000_000 // 8)
    del big
    found, kept = timed(lambda: np.ones(20_000_000 // 8))
    assert found["seconds"] > 0
    assert 19 <= found["rise_mb"] <= 50
    assert len(kept) == 20_000_000 // 8
