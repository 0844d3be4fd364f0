"""The contract of a source, held against every form that rows can take."""

import sys
from pathlib import Path

import h5py
import numpy as np
import pandas as pd
import pytest
from row_forms import FORMS, N_FEATURES, N_ROWS, NAMES, annotated, forms, read_all, sample_rows, write_h5ad
from scipy import sparse
from test_bad_data import refused

from fedpower import FedPCA
from fedpower.exceptions import InputError
from fedpower.rows.opening import Reading, open_source
from fedpower.rows.source import RowSource
from fedpower.rows.tables import TableSource

ROWS = sample_rows()


@pytest.fixture(scope="module", params=forms(FORMS))
def source(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> RowSource:
    return open_source(FORMS[request.param](ROWS, tmp_path_factory.mktemp("rows")))


def test_a_source_keeps_the_protocol(source):
    assert isinstance(source, RowSource)
    assert source.n_features == N_FEATURES
    assert source.n_rows in (None, N_ROWS)
    assert source.columns in (None, NAMES)
    assert source.density == 1.0 if not source.sparse else 0 < (source.density or 0.5) < 1
    for max_rows in (1, 20, 1000):
        for block in source.blocks(max_rows):
            assert 0 < block.shape[0] <= max_rows
            assert block.shape[1] == N_FEATURES
            assert block.dtype == np.float64
            assert sparse.issparse(block) == source.sparse
            if isinstance(block, np.ndarray):
                assert block.flags.c_contiguous or block.flags.f_contiguous
            else:
                assert isinstance(block, sparse.csr_array)
                assert block.has_canonical_format
        np.testing.assert_allclose(read_all(source, max_rows), ROWS, rtol=1e-12, atol=1e-12)


def test_selecting_reorders_and_drops(source):
    chosen = open_source(source, columns=NAMES).select(("ß", "age"), extra="drop")
    assert chosen.columns == ("ß", "age")
    np.testing.assert_array_equal(read_all(chosen, 9), read_all(source)[:, [4, 0]])
    again = chosen.select(("age", "ß"))
    np.testing.assert_array_equal(read_all(again, 9), read_all(source)[:, [0, 4]])
    with pytest.raises(InputError, match=r'got also \'ß\'; remove them, or .*extra_columns="drop"'):
        chosen.select(("age",))
    with pytest.raises(InputError, match="no column 'dose'"):
        chosen.select(("age", "dose"))


def test_every_table_is_renamed_and_converted_and_nothing_else_is(source, request, tmp_path):
    form = request.node.callspec.params["source"]
    harmony: Reading = {
        "rename": {"age": "years", "dose": "age"},  # one takes the name that another had
        "factors": {"age": -2.5, "ß": 3.0},
        "offsets": {"ß": 0.25},
    }
    data = FORMS[form](ROWS, tmp_path)
    if not isinstance(source, TableSource):
        with pytest.raises(InputError, match="must be used with tables"):
            open_source(data, **harmony)
        return
    converted = open_source(data, **harmony)
    assert converted.columns == ("years", "age", *NAMES[2:])
    expected = ROWS * [1, -2.5, 1, 1, 3.0] + [0, 0, 0, 0, 0.25]
    np.testing.assert_allclose(read_all(converted, 7), expected, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    "values",
    [
        np.array([[1, 0], [2**53 - 2, 3]]),
        np.array([[True, False], [False, True]]),
        np.array([[1.5, 2], [3, 4]], dtype=np.float32),
        np.array([[1, 2], [3, 250]], dtype=np.uint8),
        np.array([[1.5, 2], [3, 4]], dtype=np.float16),
        np.array([[1.5, 2], [3, 4]], dtype=np.longdouble),
    ],
    ids=lambda values: values.dtype.name,
)
def test_every_real_dtype_is_read_as_float64(values, tmp_path):
    expected = values.astype(np.float64)
    np.testing.assert_array_equal(read_all(open_source(values)), expected)
    np.save(tmp_path / "v.npy", values)
    np.testing.assert_array_equal(read_all(open_source(tmp_path / "v.npy")), expected)
    if values.dtype != np.longdouble:
        np.testing.assert_array_equal(read_all(open_source(pd.DataFrame(values))), expected)


def test_svmlight_indices_count_from_one_unless_said_otherwise(tmp_path):
    path = tmp_path / "z.svm"
    path.write_text("1 0:5 2:7\n-1 1:3\n0\n")
    expected = [[5, 0, 7], [0, 3, 0], [0, 0, 0]]
    np.testing.assert_array_equal(read_all(open_source(path, zero_based=True)), expected)
    with pytest.raises(InputError, match=r"from index 1, got something else; .*zero_based=True"):
        open_source(path)
    path.write_text("1 1:5 3:7\n")
    np.testing.assert_array_equal(read_all(open_source(path, n_features=4)), [[5, 0, 7, 0]])
    with pytest.raises(InputError, match="from index 1 to 2, got something else"):
        open_source(path, n_features=2)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_h5ad(sparse.csr_matrix(ROWS), tmp_path / "cells.h5ad")


def test_files_are_silos_and_genes_are_matched_by_name(tmp_path):
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


def test_names_that_may_be_missing_are_read(path):
    with h5py.File(path, "r+") as file:
        del file["var/_index"]
        group = file["var"].create_group("_index")
        group.attrs["encoding-type"] = "nullable-string-array"
        group["values"] = np.array(NAMES, dtype=h5py.string_dtype())
        group["mask"] = np.zeros(len(NAMES), dtype=bool)
    assert open_source(path).columns == NAMES


@pytest.mark.parametrize("part", ["X/indptr", "X/indices", "X", "var"])
def test_a_file_without_a_part_is_refused(path, part):
    with h5py.File(path, "r+") as file:
        del file[part]
    assert "complete .h5ad file" in refused(path)


@pytest.mark.parametrize("damage", [("indptr", 3, 10**6), ("indices", 0, 99), ("indptr", 0, 1)])
def test_pointers_that_lead_astray_are_refused(path, damage):
    part, place, value = damage
    with h5py.File(path, "r+") as file:
        file["X"][part][place] = value
    assert "complete .h5ad file" in refused(path)


def test_without_h5py_the_way_to_get_it_is_named(path, monkeypatch):
    monkeypatch.setitem(sys.modules, "h5py", None)
    assert "pip install '.[h5ad]'" in refused(path)
