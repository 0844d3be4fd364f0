"""Results and scores in files of other tools: CSV, Parquet, NumPy, PLINK, ONNX and AnnData."""

import csv
import importlib.util
import json
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from html import escape
from importlib import import_module
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from fedpower.errors import InputError, installing
from fedpower.report.files import as_text, write_csv
from fedpower.report.result import Result
from fedpower.report.view import ScoreHistogram
from fedpower.rows.array_files import h5py
from fedpower.rows.opening import open_source
from fedpower.rows.source import pl

Array = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Scores:
    """Scores on their way to a file."""

    names: tuple[str, ...]
    blocks: Iterable[tuple[Any, Array]]
    label: str | None = None

    @property
    def header(self) -> list[str]:
        """The names of all columns; that of the ids comes first."""
        return [*self.names] if self.label is None else [self.label, *self.names]


def write_scores_csv(stream: IO[str], scores: Scores) -> int:
    """Write scores as text that reads back to the same numbers; return how many rows."""
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(map(as_text, scores.header))
    count = 0
    for cells, block in scores.blocks:
        rows = block.tolist()
        if cells is not None:
            labels = map(as_text, cells.to_list())
            rows = [[label, *row] for label, row in zip(labels, rows, strict=True)]
        writer.writerows(rows)
        count += len(block)
    return count


_SIDE, _EDGE = 480.0, 48.0
"""Of a picture of scores and of its margin, in units of SVG."""


def keeping_points(scores: Scores, kept: list[tuple[float, float]]) -> Scores:
    """Return scores that leave their first two numbers in ``kept`` as they go by."""

    def blocks() -> Iterable[tuple[Any, Array]]:
        for cells, block in scores.blocks:
            kept.extend((float(row[0]), float(row[1])) for row in block)
            yield cells, block

    return replace(scores, blocks=blocks())


def score_picture(
    names: tuple[str, ...],
    points: list[tuple[float, float]],
    title: str,
    behind: ScoreHistogram | None = None,
) -> str:
    """Return an SVG of the first two scores of every row, on axes of one unit."""
    numbers = np.array(points)
    whole = numbers if behind is None else np.vstack([numbers, behind.edges[:, [0, -1]].T])
    middle = (whole.max(axis=0) + whole.min(axis=0)) / 2
    reach = max(float((whole.max(axis=0) - whole.min(axis=0)).max()) / 2, 1e-300)
    room = _SIDE / 2 - _EDGE

    def placed(points: Array) -> Array:
        return np.asarray(_SIDE / 2 + room * (points - middle) / reach * [1.0, -1.0])

    places, grid = placed(numbers), "" if behind is None else _grid(behind.together(), placed)
    dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="2.5"/>' for x, y in places)
    low, high, last = _EDGE - 8, _SIDE - _EDGE + 8, _SIDE - 14
    ends = middle[:, np.newaxis] + reach * np.array([-1.0, 1.0])
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_SIDE:g} {_SIDE:g}" role="img" '
        f'aria-label="{escape(title)}" font-family="sans-serif" font-size="12">'
        f"<title>{escape(title)}</title>"
        f'<rect width="{_SIDE:g}" height="{_SIDE:g}" fill="#fff"/>'
        f'<path d="M{low:g} {low:g}V{high:g}H{high:g}" fill="none" stroke="#888"/>'
        f'{grid}<g fill="#1f5fa8" fill-opacity="0.55">{dots}</g>'
        f'<text x="{low:g}" y="{last:g}">{ends[0, 0]:.3g}</text>'
        f'<text x="{high:g}" y="{last:g}" text-anchor="end">{ends[0, 1]:.3g}</text>'
        f'<text x="{_SIDE / 2:g}" y="{last:g}" text-anchor="middle">{escape(names[0])}</text>'
        f'<text x="{low - 6:g}" y="{high:g}" text-anchor="end">{ends[1, 0]:.2g}</text>'
        f'<text x="{low - 6:g}" y="{low + 8:g}" text-anchor="end">{ends[1, 1]:.2g}</text>'
        f'<text x="14" y="{_SIDE / 2:g}" text-anchor="middle" '
        f'transform="rotate(-90 14 {_SIDE / 2:g})">{escape(names[1])}</text></svg>\n'
    )


def _grid(scores: ScoreHistogram, placed: Callable[[Array], Array]) -> str:
    """Return the places that hold rows for certain, darker where they hold more."""
    ((name, counts),) = scores.counts.items()
    cells = []
    for left, right, low, high, count in scores.cells(name):
        if count >= scores.clear:
            (x, y), (far, foot) = placed(np.array([[left, high], [right, low]]))
            cells.append(
                f'<rect x="{x:.1f}" y="{y:.1f}" width="{far - x:.1f}" height="{foot - y:.1f}" '
                f'fill-opacity="{0.1 + 0.6 * count / counts.max():.2f}"/>'
            )
    return f'<g fill="#8a6d3b">{"".join(cells)}</g>'


def score_writer(path: Path, *, labelled: bool = False) -> Callable[[Path, Scores], int]:
    """Return what writes scores to a file of this ending and returns how many rows."""
    known = [ending for ending in WRITERS if not (labelled and ending == ".npy")]
    if path.suffix.lower() not in known:
        why = ", for an array of numbers holds no ids" if path.suffix.lower() in WRITERS else ""
        raise InputError(f"{path} must end in one of {', '.join(known)}, got {path.suffix!r}{why}; rename it")
    return WRITERS[path.suffix.lower()]


def _csv(path: Path, scores: Scores) -> int:
    with path.open("w", encoding="utf-8", newline="") as stream:
        return write_scores_csv(stream, scores)


def _parquet(path: Path, scores: Scores) -> int:
    """Write the scores as float64, and ids in the type that they have in their table."""
    parts = []
    for cells, block in scores.blocks:
        columns = [*([] if cells is None else [cells]), *block.T]
        parts.append(pl.DataFrame(dict(zip(scores.header, columns, strict=True))))
    together = pl.concat(parts)
    together.write_parquet(path)
    return len(together)


def _npy(path: Path, scores: Scores) -> int:
    """Write the rows, then the header again with their number: NumPy leaves room for it to grow."""
    count, width = 0, len(scores.names)
    with path.open("wb") as stream:
        _npy_header(stream, 0, width)
        for _, block in scores.blocks:
            stream.write(np.ascontiguousarray(block, dtype="<f8").tobytes())
            count += len(block)
        stream.seek(0)
        _npy_header(stream, count, width)
    return count


def _npy_header(stream: IO[bytes], n_rows: int, width: int) -> None:
    header = {"descr": "<f8", "fortran_order": False, "shape": (n_rows, width)}
    np.lib.format.write_array_header_1_0(stream, header)


WRITERS: dict[str, Callable[[Path, Scores], int]] = {".csv": _csv, ".parquet": _parquet, ".npy": _npy}


# The key of a Parquet file's metadata that holds where the result is from, as JSON
METADATA = "fedpower"


def loadings(result: Result) -> dict[str, Any]:
    """Return the columns of the table by name, in order."""
    width = result.n_features
    center = np.zeros(width) if result.center is None else result.center
    return {
        "feature": list(result.names),
        **({"center": center} if result.normalize else {}),
        "mean": result.mean,
        "scale": np.ones(width) if result.scale is None else result.scale,
        **dict(zip(result.score_names, result.components, strict=True)),
    }


def write_loadings_csv(result: Result, path: Path) -> None:
    """Write the table as text that reads back to the same numbers."""
    columns = loadings(result)
    write_csv(path, list(columns), zip(*(list(values) for values in columns.values()), strict=True))


def write_loadings_parquet(result: Result, path: Path) -> None:
    """Write the table as Parquet, with variances and where it is from in the file's metadata."""
    metadata = json.dumps(result.provenance(), allow_nan=False)
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
    last = "rows"

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
    then("MatMul", last, constant("axes", axes), output="scores")

    double = onnx().TensorProto.DOUBLE
    graph = helper.make_graph(
        nodes,
        "fedpower",
        [helper.make_tensor_value_info("rows", double, ["n", result.n_features])],
        [helper.make_tensor_value_info("scores", double, ["n", result.n_components])],
        constants,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION)
    metadata = {"fedpower": json.dumps(result.provenance(), allow_nan=False)}
    if result.feature_names is not None:
        metadata["feature_names"] = json.dumps(result.feature_names)
    helper.set_model_props(model, metadata)
    onnx().checker.check_model(model, full_check=True)
    return model


SCORES, COMPONENTS = "X_pca", "PCs"
# Of anndata's on-disk format: the version of each encoding that is written here
_ENCODINGS = {
    "array": "0.2.0",
    "string": "0.2.0",
    "numeric-scalar": "0.2.0",
    "null": "0.1.0",
    "dict": "0.1.0",
}


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
        _put(_group(file, "varm"), COMPONENTS, result.loadings_of(source))
        for key, value in result.unstructured().items():
            _put(_group(file, "uns"), key, value)
    return count


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
