"""Results beside the cells they were fitted to, where scanpy puts and looks for them.

``obsm["X_pca"]`` holds the scores, ``varm["PCs"]`` the components (zero for genes that were no part of
the fit), ``uns["pca"]`` the variances; ``uns["fedpower"]`` says where they are from.
"""

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedpower.data import RowSource, open_source
from fedpower.data.h5ad import h5py
from fedpower.errors import InputError
from fedpower.report.export.provenance import provenance
from fedpower.report.findings import Findings

SCORES, COMPONENTS = "X_pca", "PCs"
ENCODINGS = {
    "array": "0.2.0",
    "string": "0.2.0",
    "numeric-scalar": "0.2.0",
    "null": "0.1.0",
    "dict": "0.1.0",
}
"""Of anndata's on-disk format: the version of each encoding that is written here."""


def annotate(result: Findings, adata: Any) -> Any:
    """Return the AnnData, with the scores of its cells, the components and the variances in it.

    Parameters
    ----------
    result
        The fit.
    adata
        Cells by genes; genes are matched by name and others than the fit's are left out. It is changed
        in place.
    """
    source = open_source(adata)
    adata.obsm[SCORES] = result.transform(source)
    adata.varm[COMPONENTS] = _components(result, source)
    for key, value in _unstructured(result).items():
        adata.uns[key] = value
    return adata


def write_cells(result: Findings, rows: Path, place: Path) -> int:
    """Write a copy of an ``.h5ad`` file with the result in it; return the number of cells.

    The scores are written as they are computed. What the file had under the same names is replaced.
    """
    if rows.suffix.lower() != ".h5ad":
        raise InputError(
            f"the cells must be in an .h5ad file, got {rows}; give the file that the scores belong to"
        )
    source = open_source(rows)
    chosen = result.select(source)
    shutil.copyfile(rows, place)
    with h5py().File(place, "r+") as file:
        scores = _fresh(_group(file, "obsm"), SCORES).create_dataset(
            SCORES, (source.n_rows, result.n_components), "f8"
        )
        _mark(scores, "array")
        count = 0
        for block in result.score_blocks(chosen):
            scores[count : count + len(block)] = block
            count += len(block)
        _put(_group(file, "varm"), COMPONENTS, _components(result, source))
        for key, value in _unstructured(result).items():
            _put(_group(file, "uns"), key, value)
    return count


def _components(result: Findings, source: RowSource) -> NDArray[np.float64]:
    """Return the loadings by gene of the file: genes×k."""
    loadings = np.zeros((source.n_features, result.n_components))
    if result.feature_names is None or source.columns is None:
        loadings[:] = result.components.T
    else:
        places = {name: place for place, name in enumerate(source.columns)}
        loadings[[places[name] for name in result.feature_names]] = result.components.T
    return loadings


def _unstructured(result: Findings) -> dict[str, Any]:
    """Return what goes to ``uns``, by key."""
    return {
        "pca": {
            "params": {
                "zero_center": result.run["parameters"]["center"] is not False,
                "mask_var": None,
            },
            "variance": np.array(result.explained_variance),
            "variance_ratio": np.array(result.explained_variance_ratio),
        },
        "fedpower": json.dumps(provenance(result), allow_nan=False),
    }


def _group(file: Any, name: str) -> Any:
    """Return one of the groups that a file of annotated data has, made where it is missing."""
    if name not in file:
        _mark(file.create_group(name), "dict")
    return file[name]


def _fresh(group: Any, key: str) -> Any:
    """Return the group without what it has under a key."""
    if key in group:
        del group[key]
    return group


def _put(group: Any, key: str, value: Any) -> None:
    """Write a value under a key, in place of what is there."""
    _fresh(group, key)
    if isinstance(value, dict):
        made = group.create_group(key)
        _mark(made, "dict")
        for name, inner in value.items():
            _put(made, name, inner)
    elif value is None:
        _mark(group.create_dataset(key, data=h5py().Empty("f4")), "null")
    elif isinstance(value, str):
        _mark(group.create_dataset(key, data=value, dtype=h5py().string_dtype()), "string")
    else:
        kind = "array" if isinstance(value, np.ndarray) else "numeric-scalar"
        _mark(group.create_dataset(key, data=value), kind)


def _mark(element: Any, kind: str) -> None:
    element.attrs["encoding-type"] = kind
    element.attrs["encoding-version"] = ENCODINGS[kind]
