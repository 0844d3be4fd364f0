"""Cells by genes: what of an .h5ad file is read, and which files are refused."""

import sys
from pathlib import Path

import anndata
import h5py
import numpy as np
import pandas as pd
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


@pytest.mark.parametrize("kind", ["float32", "int32", "uint8", "bool"])
def test_counts_of_every_type_are_numbers(tmp_path: Path, kind: str):
    counts = (np.arange(15).reshape(3, 5) % 2).astype(kind)
    for number, stored in enumerate((counts, sparse.csr_matrix(counts))):
        path = write_h5ad(stored, tmp_path / f"{number}.h5ad")
        np.testing.assert_array_equal(read_all(open_source(path), 2), counts.astype(float))


def test_names_that_may_be_missing_are_read(path: Path):
    with h5py.File(path, "r+") as file:
        del file["var/_index"]
        group = file["var"].create_group("_index")
        group.attrs["encoding-type"] = "nullable-string-array"
        group["values"] = np.array(NAMES, dtype=h5py.string_dtype())
        group["mask"] = np.zeros(len(NAMES), dtype=bool)
    assert open_source(path).columns == NAMES


def test_a_missing_value_is_named_by_gene_and_cell(tmp_path: Path):
    holes = ROWS.copy()
    holes[6, 1] = np.nan
    for stored in (holes, sparse.csr_matrix(holes)):
        refused(write_h5ad(stored, tmp_path / "h.h5ad"), r"column 'dose' .*missing value.* row 7")


def test_a_damaged_file_is_refused(path: Path):
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    refused(path, "complete .h5ad file")
    path.write_bytes(b"no HDF5")
    refused(path, "complete .h5ad file")


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


def test_another_hdf5_file_is_refused(tmp_path: Path):
    with h5py.File(tmp_path / "other.h5ad", "w") as file:
        file["X"] = ROWS
    refused(tmp_path / "other.h5ad", "anndata 0.8 or newer")


@pytest.mark.filterwarnings("ignore:Variable names are not unique")
def test_genes_of_the_same_name_are_refused(tmp_path: Path):
    write_h5ad(ROWS, tmp_path / "twice.h5ad", ("a", "b", "b", "c", "d"))
    refused(tmp_path / "twice.h5ad", "distinct column names, got 'b'")


def test_objects_without_rows_and_views_of_files_are_refused(path: Path):
    with pytest.raises(InputError, match="must have rows in X"):
        open_source(anndata.AnnData(obs=pd.DataFrame(index=["c1"])))
    with pytest.raises(InputError, match=r"got a view.*to_memory"):
        open_source(anndata.read_h5ad(path, backed="r")[:3])
    np.testing.assert_array_equal(read_all(open_source(annotated(ROWS)[:3])), ROWS[:3])


def test_without_h5py_the_way_to_get_it_is_named(path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    refused(path, r"pip install '\.\[h5ad\]'")
