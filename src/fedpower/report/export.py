"""Results and scores in files of other tools: CSV, Parquet, NumPy, PLINK, ONNX and AnnData."""

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import IO, Any

import numpy as np

from fedpower.exceptions import InputError, needed
from fedpower.files import as_text, write_csv
from fedpower.linalg import Array
from fedpower.protocol.solvers.shared import POOLED
from fedpower.report.page import rendered
from fedpower.report.result import Result
from fedpower.report.view import ScoreHistogram
from fedpower.rows.opening import open_source
from fedpower.values import pl

Frames = Iterable["pl.DataFrame"]
METADATA = "fedpower"  # the key under which files keep provenance, as JSON
OPSET, IR_VERSION = 18, 9  # of ONNX: old enough for runtimes of 2023


def write_scores_csv(stream: IO[str], frames: Frames) -> int:
    """Write scores as text that reads back to the same numbers; return how many rows."""
    count, texts = 0, pl.col(pl.String).map_elements(as_text, return_dtype=pl.String)
    for frame in frames:
        safe = frame.with_columns(texts).rename(as_text)
        stream.write(safe.write_csv(include_header=not count))
        count += len(frame)
    return count


def score_suffix(path: Path, *, labelled: bool = False) -> str:
    """Return the suffix of a file of scores; refuse one that cannot hold them."""
    known, suffix = (".csv", ".parquet", ".npy")[: 2 if labelled else 3], path.suffix.lower()
    if suffix not in known:
        why = ", which holds no ids" if suffix == ".npy" else ""
        raise InputError(f"{path} must end in one of {', '.join(known)}, got {path.suffix!r}{why}")
    return suffix


def write_scores(path: Path, frames: Frames, suffix: str) -> int:
    """Write scores to a file in the form of a suffix; return how many rows."""
    if suffix == ".csv":
        with path.open("w", encoding="utf-8", newline="") as text:
            return write_scores_csv(text, frames)
    together = pl.concat(frames)
    if suffix == ".parquet":
        together.write_parquet(path)
    else:
        with path.open("wb") as stream:  # np.save would append a suffix
            np.save(stream, np.ascontiguousarray(together.to_numpy()))
    return len(together)


def score_picture(
    names: tuple[str, ...], points: Array, title: str, behind: ScoreHistogram | None = None
) -> str:
    """Return an SVG of the first two scores of every row, on axes of one unit."""
    drawn = points if behind is None else np.vstack([points, behind.edges[:, [0, -1]].T])
    middle = (drawn.max(axis=0) + drawn.min(axis=0)) / 2
    reach = max(float(np.ptp(drawn, axis=0).max()) / 2, 1e-300)

    def placed(points: Any) -> Any:
        return np.round(240 + np.array([192, -192]) * (np.asarray(points) - middle) / reach, 1).tolist()

    cells = []
    if behind is not None:
        whole = behind.together()
        for left, right, bottom, top, count in whole.cells(POOLED):
            if count >= whole.clear:  # bins that hold rows for certain, darker where they hold more
                shade = f"{0.1 + 0.6 * count / whole.counts[POOLED].max():.2f}"
                cells.append((*placed([[left, top], [right, bottom]]), shade))
    ends = {"low": middle - reach, "high": middle + reach}
    return rendered("scores.svg", names=names, title=title, points=placed(points), cells=cells, **ends)


def write_loadings(result: Result, path: Path, kind: str) -> None:
    """Write the table as CSV, or as Parquet with variances and provenance in the file's metadata."""
    center, scale = _center_and_scale(result)
    columns: dict[str, Any] = {"feature": result.names, **({"center": center} if result.normalize else {})}
    columns |= {"mean": result.mean, "scale": scale}
    table = pl.DataFrame(columns | dict(zip(result.score_names, result.components, strict=True)))
    if kind == "csv":
        write_csv(path, table.columns, table.iter_rows())
    else:
        table.write_parquet(path, metadata={METADATA: json.dumps(result.provenance(), allow_nan=False)})


def _center_and_scale(result: Result) -> tuple[Array, Array]:
    none, one = np.zeros(result.n_features), np.ones(result.n_features)
    return none if result.center is None else result.center, one if result.scale is None else result.scale


def write_plink(result: Result, frames: Frames, *, eigenvec: Path, eigenval: Path) -> int:
    """Write both files and return the number of samples."""
    empty = np.flatnonzero(~(result.singular_values > 0))
    if empty.size:
        got = f"0 for {result.score_names[empty[0]]}; fit fewer components, or with a larger epsilon"
        raise InputError(f"a component for PLINK must have a positive variance, got {got}")
    values = result.singular_values**2 / result.n_features
    eigenval.write_text("".join(f"{value!r}\n" for value in values.tolist()), encoding="utf-8")
    names = [f"PC{place}" for place in range(1, result.n_components + 1)]
    count, seen = 0, set[str]()
    with eigenvec.open("w", encoding="utf-8", newline="") as stream:
        for frame in frames:
            label = frame.columns[0] if len(frame.columns) > result.n_components else None
            vectors = frame.select(result.score_names).to_numpy() * result.divisors / result.singular_values
            places = range(count + 1, count + len(frame) + 1)
            labels = places if label is None else _checked(frame[label], places, seen)
            table = pl.DataFrame(vectors, names, orient="row").insert_column(0, pl.Series("#IID", labels))
            stream.write(table.write_csv(separator="\t", quote_style="never", include_header=not count))
            count += len(frame)
    return count


def _checked(cells: Any, places: range, seen: set[str]) -> list[str]:
    """Return ids as PLINK can read them, or refuse one by its row."""
    names = ["" if cell is None else str(cell) for cell in cells]
    for place, name in zip(places, names, strict=True):
        bad = name in ("", "0") or name.split() != [name]
        if bad or name in seen:
            must, got = ("a word other than 0", "another") if bad else ("unique", "a repeated one")
            hint = "give another --id-column, or leave it out to number the samples"
            raise InputError(f"an id for PLINK must be {must}, got {got} at row {place}; {hint}")
        seen.add(name)
    return names


def write_onnx(result: Result, path: Path) -> None:
    """Write a graph from ``rows``, n×d of float64, to ``scores``, n×k; its metadata have provenance."""
    onnx = needed("onnx", "onnx", "a graph must be written with")
    constants, steps = {"axes": result.axes, "mean": result.mean}, "about_the_mean = Sub (rows, mean)"
    if result.normalize:
        center, scale = _center_and_scale(result)
        least = np.array(np.finfo(np.float64).tiny)
        constants |= {"center": center, "scale": scale, "by_row": np.array([1]), "least": least}
        steps = """
            centred = Sub (rows, center)
            scaled = Div (centred, scale)
            norms = ReduceL2 (scaled, by_row)
            divisors = Max (norms, least)
            unit = Div (scaled, divisors)
            about_the_mean = Sub (unit, mean)
        """
    model = onnx.parser.parse_model(
        f"""<ir_version: {IR_VERSION}, opset_import: ["": {OPSET}]>
        fedpower (double[n, {result.n_features}] rows) => (double[n, {result.n_components}] scores)
        {{ {steps} scores = MatMul (about_the_mean, axes) }}"""
    )
    for name, values in constants.items():
        tensor = onnx.numpy_helper.from_array(np.ascontiguousarray(values), name)
        model.graph.initializer.append(tensor)
    metadata = {METADATA: json.dumps(result.provenance(), allow_nan=False)}
    if result.feature_names is not None:
        metadata["feature_names"] = json.dumps(result.feature_names)
    onnx.helper.set_model_props(model, metadata)
    onnx.checker.check_model(model, full_check=True)
    path.write_bytes(model.SerializeToString())


def write_cells(result: Result, rows: Path, place: Path) -> int:
    """Write a copy of an ``.h5ad`` file with the result in it; return the number of cells."""
    if rows.suffix.lower() != ".h5ad":
        raise InputError(f"the cells must be in an .h5ad file, got {rows}; give the file of the scores")
    write_element = needed("anndata", "h5ad", "cells must be written with").io.write_elem
    source = open_source(rows)
    annotations = result.annotations(source)
    shutil.copyfile(rows, place)
    h5py = needed("h5py", "h5ad", "cells must be written with")
    with h5py.File(place, "r+") as file:  # the matrix of cells stays on disk
        for group in {"obsm", "varm", "uns"} - set(file):
            write_element(file, group, {})
        for name, value in annotations.items():
            write_element(file, name, value)
    return len(annotations["obsm/X_pca"])
