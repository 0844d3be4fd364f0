"""Cells by genes: what of an .h5ad file is read, and which files are refused."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pytest
from row_forms import NAMES, annotated, read_all, sample_rows, write_h5ad
from scipy import sparse

from fedpower import FedPCA
from fedpower.errors import InputError
from fedpower.rows.opening import open_source

ROWS = sample_rows()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_h5ad(sparse.csr_matrix(ROWS), tmp_path / "cells.h5ad")


def refused(path: Path, match: str) -> None:
    with pytest.raises(InputError, match=match) as refusal:
        read_all(open_source(path))
    assert "\n" not in str(refusal.value)


def test_files_are_silos_and_genes_are_matched_by_name(tmp_path: Path):
    shuffled = annotated(ROWS[30:])[:, ::-1].copy()
    shuffled.write_h5ad(tmp_path / "south.h5ad")
    silos = {
        "north": write_h5ad(sparse.csr_matrix(ROWS[:30]), tmp_path / "north.h5ad"),
        "south": tmp_path / "south.h5ad",
    }
    model = FedPCA(2, epsilon=float("inf")).fit_silos(silos)
    pooled = FedPCA(2, epsilon=float("inf")).fit(ROWS)
    assert tuple(model.feature_names_in_) == NAMES
    np.testing.assert_allclose(model.components_, pooled.components_, atol=1e-8)


def test_names_that_may_be_missing_are_read(path: Path):
    with h5py.File(path, "r+") as file:
        del file["var/_index"]
        group = file["var"].create_group("_index")
        group.attrs["encoding-type"] = "nullable-string-array"
        group["values"] = np.array(NAMES, dtype=h5py.string_dtype())
        group["mask"] = np.zeros(len(NAMES), dtype=bool)
    assert open_source(path).columns == NAMES


@pytest.mark.parametrize("part", ["X/indptr", "X/indices", "X", "var"])
def test_a_file_without_a_part_is_refused(path: Path, part: str):
    with h5py.File(path, "r+") as file:
        del file[part]
    refused(path, "complete .h5ad file")


@pytest.mark.parametrize("damage", [("indptr", 3, 10**6), ("indices", 0, 99), ("indptr", 0, 1)])
def test_pointers_that_lead_astray_are_refused(path: Path, damage: tuple[str, int, int]):
    part, place, value = damage
    with h5py.File(path, "r+") as file:
        file["X"][part][place] = value
    refused(path, "complete .h5ad file")


def test_without_h5py_the_way_to_get_it_is_named(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(path, r"pip install '\.\[h5ad\]'")
