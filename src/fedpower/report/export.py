"""Results in the formats of other tools: CSV tables, PLINK, ONNX, AnnData, scikit-learn."""

import csv
import importlib.util
import json
import shutil
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, installing
from fedpower.report.files import as_text
from fedpower.report.record import plain
from fedpower.report.result import Result
from fedpower.report.scores import Scores
from fedpower.rows.h5ad import h5py
from fedpower.rows.opening import open_source
from fedpower.rows.source import RowSource, pl

if TYPE_CHECKING:
    from sklearn.decomposition import PCA
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler


def provenance(result: Result) -> dict[str, Any]:
    """Return the facts of a fit that its components do not tell, ready for JSON."""
    return {
        "fedpower": result.run["versions"]["fedpower"],
        "study": result.run["study"]["hash"],
        "private": result.run["privacy"]["private"],
        "n_samples": result.n_samples,
        "normalize": result.normalize,
        "explained_variance": plain(result.explained_variance),
        "explained_variance_ratio": plain(result.explained_variance_ratio),
    }


METADATA = "fedpower"
"""The key of a Parquet file's metadata under which `provenance` stands as JSON."""


def loadings(result: Result) -> dict[str, Any]:
    """Return the columns of the table by name, in order."""
    width = result.n_features
    names = result.feature_names or tuple(f"x{place}" for place in range(width))
    center = np.zeros(width) if result.center is None else result.center
    return {
        "feature": list(names),
        **({"center": center} if result.normalize else {}),
        "mean": result.mean,
        "scale": np.ones(width) if result.scale is None else result.scale,
        **dict(zip(result.score_names, result.components, strict=True)),
    }


def write_csv(result: Result, path: Path) -> None:
    """Write the table as text that reads back to the same numbers."""
    columns = loadings(result)
    with path.open("w", newline="", encoding="utf-8") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        writer.writerow(columns)
        names = map(as_text, columns.pop("feature"))
        numbers = (values.tolist() for values in columns.values())
        writer.writerows(zip(names, *numbers, strict=True))


def write_parquet(result: Result, path: Path) -> None:
    """Write the table as Parquet, with variances and where it is from in the file's metadata."""
    metadata = json.dumps(provenance(result), allow_nan=False)
    pl.DataFrame(loadings(result)).write_parquet(path, metadata={METADATA: metadata})


def write_plink(result: Result, scores: Scores, *, eigenvec: Path, eigenval: Path) -> int:
    """Write both files and return the number of samples."""
    empty = np.flatnonzero(~(result.singular_values > 0))
    if empty.size:
        raise InputError(
            "a component must have a positive variance to be an eigenvector of PLINK's, got 0 for "
            f"{result.score_names[empty[0]]}; fit fewer components, or with a larger epsilon"
        )
    values = result.singular_values**2 / result.n_features
    eigenval.write_text("".join(f"{value!r}\n" for value in values.tolist()), encoding="utf-8")
    count = 0
    seen: set[str] = set()
    with eigenvec.open("w", encoding="utf-8", newline="") as stream:
        names = (f"PC{place}" for place in range(1, result.n_components + 1))
        stream.write("\t".join(("#IID", *names)) + "\n")
        for cells, block in scores.blocks:
            rows = (block / result.singular_values).tolist()
            for name, row in zip(_ids(cells, count, len(rows), seen), rows, strict=True):
                stream.write("\t".join((name, *map(repr, row))) + "\n")
            count += len(rows)
    return count


def _ids(cells: Any, first: int, size: int, seen: set[str]) -> Iterator[str]:
    """Yield the samples' ids, each one word and not seen before; else their numbers."""
    if cells is None:
        yield from (str(first + place + 1) for place in range(size))
        return
    for place, cell in enumerate(cells.to_list()):
        name = "" if cell is None else str(cell)
        if name in ("", "0") or name.split() != [name]:
            raise _refusal("a word other than 0, without blanks", "another", first + place)
        if name in seen:
            raise _refusal("different from all others", "one for the second time", first + place)
        seen.add(name)
        yield name


def _refusal(must: str, got: str, row: int) -> InputError:
    return InputError(
        f"an id for PLINK must be {must}, got {got} at row {row + 1}; give another --id-column, or "
        "leave it out to have samples numbered"
    )


OPSET, IR_VERSION = 18, 9
"""Old enough for runtimes of 2023; nothing newer is needed."""

ROWS, SCORES = "rows", "scores"


def onnx() -> Any:
    """Return the onnx package, imported on first use, or refuse to go on without it."""
    if importlib.util.find_spec("onnx") is None:
        raise InputError(
            "a result must be written as ONNX with the onnx package, got none installed; run "
            + installing("onnx")
        )
    return import_module("onnx")


def write_onnx(result: Result, path: Path) -> None:
    """Write the graph of `graph_of`, checked, with feature names and provenance in its metadata."""
    path.write_bytes(graph_of(result).SerializeToString())


def graph_of(result: Result) -> Any:
    """Return the model: ``rows`` n×d of float64 to ``scores`` n×k."""
    helper = onnx().helper
    nodes: list[Any] = []
    constants: list[Any] = []
    last = ROWS

    def then(kind: str, *inputs: str, output: str) -> None:
        nonlocal last
        nodes.append(helper.make_node(kind, list(inputs), [output]))
        last = output

    def constant(name: str, values: NDArray[np.generic]) -> str:
        constants.append(onnx().numpy_helper.from_array(np.ascontiguousarray(values), name))
        return name

    axes = result.components.T
    if result.normalize:
        if result.center is not None:
            then("Sub", last, constant("center", result.center), output="centred")
        if result.scale is not None:
            then("Div", last, constant("scale", result.scale), output="scaled")
        raw = last
        then("ReduceL2", raw, constant("along", np.array([1])), output="norms")
        tiny = constant("tiny", np.array(np.finfo(np.float64).tiny))
        then("Max", "norms", tiny, output="divisors")
        then("Div", raw, "divisors", output="unit")
    elif result.scale is not None:
        axes = axes / result.scale[:, np.newaxis]
    then("Sub", last, constant("mean", result.mean), output="about_the_mean")
    then("MatMul", last, constant("axes", axes), output=SCORES)

    double = onnx().TensorProto.DOUBLE
    graph = helper.make_graph(
        nodes,
        "fedpower",
        [helper.make_tensor_value_info(ROWS, double, ["n", result.n_features])],
        [helper.make_tensor_value_info(SCORES, double, ["n", result.n_components])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    metadata = {"fedpower": json.dumps(provenance(result), allow_nan=False)}
    if result.feature_names is not None:
        metadata["feature_names"] = json.dumps(result.feature_names)
    helper.set_model_props(model, metadata)
    onnx().checker.check_model(model, full_check=True)
    return model


SCORES, COMPONENTS = "X_pca", "PCs"
_ENCODINGS = {
    "array": "0.2.0",
    "string": "0.2.0",
    "numeric-scalar": "0.2.0",
    "null": "0.1.0",
    "dict": "0.1.0",
}
"""Of anndata's on-disk format: the version of each encoding that is written here."""


def annotate(result: Result, adata: Any) -> Any:
    """Return the AnnData, with the scores of its cells, the components and the variances in it."""
    source = open_source(adata)
    adata.obsm[SCORES] = result.transform(source)
    adata.varm[COMPONENTS] = _components(result, source)
    for key, value in _unstructured(result).items():
        adata.uns[key] = value
    return adata


def write_cells(result: Result, rows: Path, place: Path) -> int:
    """Write a copy of an ``.h5ad`` file with the result in it; return the number of cells."""
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


def _components(result: Result, source: RowSource) -> NDArray[np.float64]:
    """Return the loadings by gene of the file: genes×k."""
    loadings = np.zeros((source.n_features, result.n_components))
    if result.feature_names is None or source.columns is None:
        loadings[:] = result.components.T
    else:
        places = {name: place for place, name in enumerate(source.columns)}
        loadings[[places[name] for name in result.feature_names]] = result.components.T
    return loadings


def _unstructured(result: Result) -> dict[str, Any]:
    """Return what goes to ``uns``, by key."""
    return {
        "pca": {
            "params": {"zero_center": result.run["parameters"]["center"] is not False, "mask_var": None},
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
    element.attrs["encoding-version"] = _ENCODINGS[kind]


Array = NDArray[np.float64]


def as_sklearn(result: Result) -> "PCA | Pipeline":
    """Return a fitted ``PCA``, or a ``Pipeline`` that ends in one where rows are scaled or normalised."""
    from sklearn.decomposition import PCA  # noqa: PLC0415
    from sklearn.pipeline import Pipeline  # noqa: PLC0415
    from sklearn.preprocessing import Normalizer  # noqa: PLC0415

    scale, n_samples = result.scale, result.n_samples
    # what a normalised row is less is in the PCA's mean; the centre before that is a step of its own
    before = result.center if result.normalize else None
    steps: list[tuple[str, Any]] = []
    if scale is not None or before is not None:
        steps.append(("scale", _scaler(before, scale, n_samples)))
    if result.normalize:
        steps.append(("normalize", Normalizer(copy=True)))
    pca = PCA(n_components=result.n_components)
    pca.components_ = result.components.copy()
    pca.mean_ = result.mean.copy() if result.normalize or scale is None else result.mean / scale
    pca.explained_variance_ = result.explained_variance.copy()
    pca.explained_variance_ratio_ = result.explained_variance_ratio.copy()
    pca.singular_values_ = result.singular_values.copy()
    pca.noise_variance_ = _noise_variance(result)
    pca.n_components_ = result.n_components
    pca.n_samples_ = n_samples
    steps.append(("pca", pca))
    for _, step in steps:
        step.n_features_in_ = result.n_features
    if result.feature_names is not None:  # later steps get arrays, which have none
        steps[0][1].feature_names_in_ = np.asarray(result.feature_names, dtype=object)
    return pca if len(steps) == 1 else Pipeline(steps)


def _scaler(center: Array | None, scale: Array | None, n_samples: int) -> "StandardScaler":
    """Return what subtracts and divides by public numbers; it holds no statistic of the rows."""
    from sklearn.preprocessing import StandardScaler  # noqa: PLC0415

    scaler = StandardScaler(with_mean=center is not None, with_std=scale is not None)
    scaler.mean_ = None if center is None else center.copy()
    scaler.scale_ = None if scale is None else scale.copy()
    scaler.var_ = None
    scaler.n_samples_seen_ = n_samples
    return scaler


def _noise_variance(result: Result) -> float:
    """Return the mean variance of what the components leave out [TB99]; NaN where it was not released."""
    n_left = min(result.n_samples, result.n_features) - result.n_components
    if n_left <= 0:
        return 0.0
    explained = float(result.explained_variance_ratio.sum())
    if not explained > 0:
        return float("nan")
    return max(0.0, float(result.explained_variance.sum()) * (1 / explained - 1)) / n_left
