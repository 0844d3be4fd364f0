"""The libraries that are compared: each loads itself, then fits when the clock runs.

A method takes rows and returns a function without arguments, which fits and returns the leading
eigenspace as d×k.
"""

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.speed.rows import Array
from benchmarks.speed.sizes import EPSILON, RANK, ROW_NORM, SEED

Fit = Callable[[], Array]
Method = Callable[[Array], Fit]

FULL_SVD_COPIES = 4
"""Arrays as large as the rows that PCA's ``full`` holds: rows, centred copy, LAPACK's and U."""


def scikit_learn(rows: Array, *, solver: str) -> Fit:
    """Return scikit-learn's PCA."""
    from sklearn.decomposition import PCA

    return lambda: PCA(RANK, svd_solver=solver, random_state=SEED).fit(rows).components_.T


def incremental(rows: Array, *, batch: int | None) -> Fit:
    """Return scikit-learn's IncrementalPCA; without a batch size it takes 5d rows."""
    from sklearn.decomposition import IncrementalPCA

    return lambda: IncrementalPCA(RANK, batch_size=batch).fit(rows).components_.T


def dask_compressed(rows: Array, *, powers: int) -> Fit:
    """Return Dask's compressed SVD of the centred rows, on its threads."""
    import dask.array as da

    def fit() -> Array:
        array = da.from_array(rows, chunks=("auto", -1), name=False)
        centred = array - array.mean(axis=0)
        seed = da.random.default_rng(SEED)
        _, _, found = da.linalg.svd_compressed(centred, RANK, n_power_iter=powers, seed=seed)
        return np.asarray(found.compute(scheduler="threads")).T

    return fit


def torch_lowrank(rows: Array, *, columns: int, powers: int) -> Fit:
    """Return PyTorch's ``pca_lowrank`` with so many columns of its sketch and power steps."""
    import torch

    def fit() -> Array:
        torch.manual_seed(SEED)
        _, _, found = torch.pca_lowrank(torch.from_numpy(rows), q=columns, niter=powers)
        return np.asarray(found[:, :RANK])

    return fit


def plain_product(rows: Array) -> Fit:
    """Return the bare product and its eigenvectors, without mean, bound, checks or noise."""
    return lambda: np.linalg.eigh(rows.T @ rows)[1][:, -RANK:]


def fedpower(rows: Array, *, silos: int, private: bool) -> Fit:
    """Return fedpower's own fit over so many parts of the rows."""
    parts = np.array_split(rows, silos)
    return lambda: fed_pca(private=private).fit_silos(parts).components_.T


def fed_pca(*, private: bool, **settings: Any) -> Any:
    """Return the estimator whose fit is timed, private or exact."""
    from fedpower import FedPCA

    kind = {"epsilon": EPSILON, "row_norm": ROW_NORM} if private else {"epsilon": float("inf")}
    return FedPCA(RANK, standardize=False, random_state=SEED, **kind, **settings)


EXACT, SPLIT, ONE_PRIVATE, PRIVATE = (
    "fedpower, exact, 1 silo",
    "fedpower, exact, 20 silos",
    "fedpower, private, 1 silo",
    "fedpower, private, 20 silos",
)
PLAIN = "X.T @ X and eigh"
METHODS: dict[str, Method] = {
    PLAIN: plain_product,
    EXACT: partial(fedpower, silos=1, private=False),
    SPLIT: partial(fedpower, silos=20, private=False),
    ONE_PRIVATE: partial(fedpower, silos=1, private=True),
    PRIVATE: partial(fedpower, silos=20, private=True),
    "PCA, auto": partial(scikit_learn, solver="auto"),
    "PCA, covariance_eigh": partial(scikit_learn, solver="covariance_eigh"),
    "PCA, randomized": partial(scikit_learn, solver="randomized"),
    "PCA, arpack": partial(scikit_learn, solver="arpack"),
    "PCA, full": partial(scikit_learn, solver="full"),
    "IncrementalPCA": partial(incremental, batch=None),
    "IncrementalPCA, batches of 10,000": partial(incremental, batch=10_000),
    "Dask svd_compressed": partial(dask_compressed, powers=0),
    "Dask svd_compressed, 4 power steps": partial(dask_compressed, powers=4),
    "torch.pca_lowrank, q = k": partial(torch_lowrank, columns=RANK, powers=2),
    "torch.pca_lowrank, q = k + 10, niter = 6": partial(torch_lowrank, columns=RANK + 10, powers=6),
}

ONE_BLAS_THREAD = ("Dask",)
"""Whose own threads are the cores', so that BLAS gets one, as its documentation advises."""


def pandas_rows(paths: list[str]) -> Array:
    """Return the rows of Parquet or CSV files by pandas."""
    import pandas as pd

    read = pd.read_parquet if Path(paths[0]).suffix == ".parquet" else pd.read_csv
    return np.asarray(pd.concat([read(path) for path in paths]).to_numpy())


def polars_rows(paths: list[str]) -> Array:
    """Return the rows of Parquet or CSV files by polars, all files in parallel."""
    import polars as pl

    scan = pl.scan_parquet if Path(paths[0]).suffix == ".parquet" else pl.scan_csv
    return np.asarray(scan(paths).collect().to_numpy())


READERS: dict[str, Callable[[list[str]], Array]] = {"pandas": pandas_rows, "polars": polars_rows}
