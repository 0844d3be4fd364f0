"""Integers that float64 does not hold are refused, wherever they are stored and only where they count."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
from numpy.typing import NDArray
from row_forms import forms, read_all
from scipy import sparse

from fedpower.errors import InputError
from fedpower.rows.opening import open_source
from fedpower.rows.treatment import RowTreatment
from fedpower.sums.device import open_device
from fedpower.sums.local import local_moment

NAMES = ("a", "id")


def npy(rows: NDArray[Any], folder: Path) -> Path:
    np.save(folder / "rows.npy", rows)
    return folder / "rows.npy"


def npz(rows: NDArray[Any], folder: Path) -> Path:
    np.savez(folder / "rows.npz", X=rows)
    return folder / "rows.npz"


def sparse_npz(rows: NDArray[Any], folder: Path) -> Path:
    sparse.save_npz(folder / "sparse.npz", sparse.csr_array(rows))
    return folder / "sparse.npz"


def tensor(rows: NDArray[Any]) -> Any:
    import torch

    return torch.from_numpy(rows.astype(np.int64))


def table(rows: NDArray[Any]) -> pa.Table:
    return pa.table(dict(zip(NAMES, rows.T, strict=True)))


def parquet(rows: NDArray[Any], folder: Path) -> Path:
    pyarrow.parquet.write_table(table(rows), folder / "rows.parquet")
    return folder / "rows.parquet"


FORMS: dict[str, Callable[[NDArray[Any], Path], Any]] = {
    "array": lambda rows, _: rows,
    "masked": lambda rows, _: np.ma.masked_array(rows),
    "npy": npy,
    "npz": npz,
    "sparse": lambda rows, _: sparse.csc_array(rows),
    "sparse npz": sparse_npz,
    "tensor": lambda rows, _: tensor(rows),
    "frame": lambda rows, _: pd.DataFrame(rows, columns=list(NAMES)),
    "table": lambda rows, _: table(rows),
    "parquet": parquet,
}


def rows_with(value: int, kind: type[np.integer[Any]]) -> NDArray[Any]:
    rows = np.arange(20, dtype=kind).reshape(10, 2)
    rows[6, 1] = value
    return rows


@pytest.mark.parametrize("form", forms(FORMS))
@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_a_large_integer_is_refused_with_its_column_and_row(
    form: str, kind: type[np.integer[Any]], tmp_path: Path
) -> None:
    found = FORMS[form](rows_with(2**53 + 1, kind), tmp_path)
    with pytest.raises(InputError, match=r"must hold integers that are exact in float64.* at row 7;"):
        read_all(open_source(found), 4)


@pytest.mark.parametrize("form", forms(FORMS))
def test_the_largest_exact_integer_is_read_as_it_is(form: str, tmp_path: Path) -> None:
    found = FORMS[form](rows_with(2**53 - 1, np.int64), tmp_path)
    assert read_all(open_source(found), 4)[6, 1] == 2**53 - 1


@pytest.mark.parametrize("form", forms(FORMS))
def test_an_identifier_that_is_dropped_may_be_large(form: str, tmp_path: Path) -> None:
    found = FORMS[form](rows_with(2**60, np.int64), tmp_path)
    named = open_source(found).columns is None
    source = open_source(found, drop=["id"], columns=list(NAMES) if named else None)
    assert read_all(source, 4).shape == (10, 1)


@pytest.mark.parametrize("data", forms(["array", "tensor"]))
@pytest.mark.parametrize("device", [None, pytest.param("cpu", marks=pytest.mark.devices)])
def test_kernels_refuse_it_too(data: str, device: str | None, tmp_path: Path) -> None:
    source = open_source(FORMS[data](rows_with(-(2**53) - 2, np.int64), tmp_path))
    place = None if device is None else open_device(device, single=False)
    moment = local_moment(source, RowTreatment(), rank=2, steps=2, device=place)
    with pytest.raises(InputError, match="exact in float64"):
        moment.prepare()


def test_large_floats_and_narrow_integers_are_not_looked_at() -> None:
    assert read_all(open_source(np.array([[2.0**60, 1.0]])), 4)[0, 0] == 2.0**60
    narrow = open_source(np.ones((2, 2), np.int32))
    assert read_all(narrow, 4).sum() == 4
