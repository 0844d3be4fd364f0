"""`fedpower show`, `transform` and `export`: what is done with results, on this machine."""

import sys
import webbrowser
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli.console import bar_of, counted, in_options, note, print_json, print_table, say
from fedpower.cli.options import PATH, READING, Command, option, options, output, reading_of
from fedpower.exceptions import InputError
from fedpower.files import new_file
from fedpower.linalg import Array, orth, principal_angles
from fedpower.privacy.statement import featured_as
from fedpower.report import view
from fedpower.report.export import (
    score_picture,
    score_suffix,
    write_cells,
    write_loadings,
    write_onnx,
    write_plink,
    write_scores,
    write_scores_csv,
)
from fedpower.report.record import REPORT, Record, plain
from fedpower.report.result import EIGENVALUES, Result, read_result
from fedpower.report.text import and_more, column, count, human_bytes, percent
from fedpower.rows.opening import existing, open_source
from fedpower.rows.ruled import every_problem
from fedpower.sums.survey import cells_warnings
from fedpower.values import pl

_ID_COLUMN = option("--id-column NAME", "Column of row ids, e.g. patient_id.")


# --- show ------------------------------------------------------------------------------------------


@click.command(cls=Command, epilog="Example: fedpower show result --against earlier")
@options(
    "RESULT",
    option("--against OTHER", "Compare with another result.", PATH),
    option("--open", "Write the report again and open it in a browser.", name="opens"),
    "verbose as_json",
)
def show(result: Path, *, against: Path | None, opens: bool, verbose: bool, as_json: bool) -> None:
    """Show a RESULT folder of `fedpower fit` or `fedpower study run`.

    --against shows the principal angles between two results. Instead of a folder, either may be a .npz or
    .npy file with an array `components` (k×d) or `basis` (d×k).
    """
    if against is not None:
        _compare(result, against, as_json=as_json)
        return
    found = read_result(result)
    if opens:
        made = found.report(result / REPORT)
        if not webbrowser.open(made.absolute().as_uri()):
            note(f"no browser started; open {made} yourself")
    print_result(found, result, verbose=verbose, as_json=as_json)


_NUMBERS = ("feature_names", "components", "explained_variance", "explained_variance_ratio", "mean")


def print_result(result: Result, folder: Path, *, verbose: bool, as_json: bool) -> None:
    """Print what was found from what, what is promised, and where the result is."""
    if as_json:
        numbers = {name: plain(getattr(result, name)) for name in _NUMBERS}
        every = dict.fromkeys(Record.__struct_fields__) | {"absent": [], "unused": {}} | result.run | numbers
        print_json({"result": str(folder), **{name: every[name] for name in every if name != "sha256"}})
        return
    record, promise, clipping = result.record, result.privacy, result.record.clipping
    headings = ["", "variance", "share", "known to within (90%)"]
    cells = (column(result.denoised_variance.tolist(), 3), map(percent, result.denoised_variance_ratio))
    rows = list(zip(result.score_names, *cells, view.known_to_within(result), strict=True))
    shown = rows if verbose else rows[:_MOST_COMPONENTS]
    columns = 4 if result.component_angles.any() else 3  # an exact fit has no angles
    print_table(None, headings[:columns], [row[:columns] for row in shown], numbers=headings[1:3])
    hidden = len(rows) - len(shown)
    sizes = (
        count(len(record.silos), "silo"),
        count(result.n_samples, record.counted),
        count(result.n_features, featured_as(record.parameters)),
    )
    lost = clipping.energy if clipping is not None else 0.0
    clipped = f" Clipping removed about {lost:.0%} of the variance." if lost >= _SOME else ""
    say(
        *([f"  and {hidden} more: --verbose or {folder / EIGENVALUES}"] if hidden else []),
        f"{', '.join(sizes)}{record.without}.{clipped}",
        *([f"Not used: {view.unused_columns(result)}."] if record.unused else []),
    )
    say(
        f"{promise.brief}{view.ledgers_left(result) if promise.is_private else ''}",
        alarming=not promise.is_private,
    )
    say(f"Report: {folder / REPORT}")
    if (cause := view.cause_of_noise(result)) is not None:
        say(f"No component is determined: {in_options(cause)}.")
    if record.parameters.get("network") is not None:
        say(f"Next: fedpower analyze communities {folder} -k K")
    elif (times := view.less_noise(result)) > view.WORTH:
        say(f"Hint: --aggregation secure would make the noise {times:.1f} times smaller.")
    if verbose:
        _print_details(result)


_MOST_COMPONENTS, _SOME = 10, 0.01


def _print_details(result: Result) -> None:
    """Print the details of a result."""
    record, solver, thing = result.record, result.solver, result.record.counted
    say("", *view.findings(result))
    held = ((silo.name, count(silo.rows, thing) if silo.rows else f"? {thing}s") for silo in record.silos)
    sizes = ", ".join(f"{name} ({rows})" for name, rows in held)
    names = f" ({', '.join(and_more(result.feature_names))})" if result.feature_names else ""
    say(
        f"Silos: {sizes}; {count(result.n_samples, thing)} of {count(result.n_features, 'column')}"
        f"{names} in all.",
        f"Solver: {solver.solver}, because {solver.reason}.",
        f"Rounds: {record.n_rounds}, with {human_bytes(record.bytes_up)} up and "
        f"{human_bytes(record.bytes_down)} down.",
    )
    if rough := view.rough_columns(result):
        say(f"Spread estimated roughly, as it is below the noise: {', '.join(and_more(rough))}.")
    counts = result.score_counts
    if counts is not None:
        bins = counts.edges.shape[1] - 1
        noise = "exact" if counts.noise_std == 0 else f"with noise of {counts.noise_std:.3g} rows"
        line = f"Scores: rows counted on {bins}×{bins} places of pc1 and pc2, {noise}: see report.html."
        say(line if counts.fractions is None else f"{line} {counts.fractions}")
    say("", str(result.privacy))


_SMALL_DEGREES, _LOW_COSINE = 15.0, 0.9
"""In subspaces so close, components less alike than that (26 degrees) have turned among themselves."""


def _compare(a: Path, b: Path, *, as_json: bool) -> None:
    (one, result), (other, earlier) = _read_axes(a), _read_axes(b)
    other = other[_column_order(f"{a} and {b}", one, other, result, earlier)]
    ranks = one.shape[1], other.shape[1]
    angles = principal_angles(orth(one), orth(other))
    sines, angles = np.sin(angles), np.degrees(angles)
    cosines = np.abs(np.einsum("ij,ij->j", one[:, : min(ranks)], other[:, : min(ranks)])).clip(max=1.0)
    if as_json:
        found = {"angles_degrees": angles, "sines": sines, "component_cosines": cosines}
        sizes = {"a": str(a), "b": str(b), "n_features": len(one), "n_components": list(ranks)}
        print_json({**sizes, **plain(found), "sin_theta": float(sines[-1])})
        return
    headings = ("", "angle of the spans", "sin θ", "|cosine| of the components")
    rows = [
        (f"{place}", f"{round(angle, 4):g}°", f"{sine:.1e}", f"{cosine:.6f}")
        for place, (angle, sine, cosine) in enumerate(zip(angles, sines, cosines, strict=True), 1)
    ]
    print_table(None, headings, rows, numbers=headings)
    largest = f"{round(angles[-1], 4):g}° (sin θ = {sines[-1]:.1e})"
    say(f"The largest principal angle between the spans of all components of {a} and {b} is {largest}.")
    if angles[-1] < _SMALL_DEGREES and cosines.min() < _LOW_COSINE:
        say("Components of nearly equal variance may turn in their plane: trust the angles, not the cosines.")


def _read_axes(path: Path) -> tuple[Array, Result | None]:
    """Return directions, as columns of norm 1, of a result folder or an array file; the result too."""
    if path.suffix.lower() not in (".npz", ".npy") or path.is_dir():
        result = read_result(path)
        return result.components.T, result
    existing(path)
    axes: Array | None = None
    try:
        loaded: Any = np.load(path, allow_pickle=False)
        arrays = {"": loaded} if isinstance(loaded, np.ndarray) else dict(loaded)
        key = next(key for key in ("", "components", "basis") if key in arrays)
        axes = np.asarray(arrays[key], dtype=np.float64)
        axes = axes.T if key == "components" or (not key and len(axes) < axes.shape[1]) else axes
    except (ValueError, OSError, EOFError, IndexError, StopIteration, zipfile.BadZipFile):
        pass
    if axes is None or axes.ndim != 2 or not axes.size or not np.isfinite(axes).all():
        raise InputError(f"{path} must hold a matrix 'components' or 'basis' of finite numbers, got none")
    norms = np.linalg.norm(axes, axis=0)
    if not (norms > 0).all() or np.linalg.matrix_rank(axes / norms) < axes.shape[1]:
        raise InputError(f"{path} must contain independent directions, got shape {axes.shape}")
    return axes / norms, None


def _column_order(both: str, one: Array, other: Array, result: Result | None, earlier: Result | None) -> Any:
    """Return the second's columns in the order of the first's; refuse what answers another question."""
    order, reason = list(range(len(other))), None
    names, others = (found and found.feature_names for found in (result, earlier))
    if names and others:
        odd = set(names) ^ set(others)
        reason = f"column {min(odd)!r} in one of them only" if odd else None
        order = [] if odd else [others.index(name) for name in names]
    elif len(one) != len(other):
        reason = f"{len(one)} and {len(other)} columns"
    if result is not None and earlier is not None and reason is None:
        scales = [np.ones(len(one)) if each.scale is None else each.scale for each in (result, earlier)]
        kinds = result.record.standardized, earlier.record.standardized
        if kinds[0] != kinds[1]:
            reason = "correlations in one and covariances in the other; see --standardize"
        elif not kinds[0] and not np.allclose(scales[0], scales[1][order], rtol=1e-9, atol=0.0):
            reason = "covariances of columns in other units; see --scale-file"
    if reason is not None:
        raise InputError(f"{both} must be comparable, got {reason}")
    return order


# --- transform -------------------------------------------------------------------------------------


@click.command(cls=Command)
@options(
    "RESULT FILE",
    output(help="A .csv, .parquet or .npy file; CSV on stdout by default."),
    _ID_COLUMN,
    option("--outliers SD", "Add a column that flags rows beyond so many SD on a component, e.g. 6.", float),
    option("--plot FILE", "Plot the first two scores of every row as an .svg file."),
    f"{READING} force as_json quiet verbose",
)
def transform(result: Path, file: Path, **given: Any) -> None:
    """Project the rows of FILE onto the components of a RESULT folder.

    Columns are matched by name, and further columns are ignored. Rows keep their order. Scores stay on
    this machine and cost no privacy budget.
    """
    target, plot, force = given["output"], given["plot"], given["force"]
    if given["as_json"] and target is None:
        raise InputError("--json must go with -o, got no file for the scores")
    fitted = read_result(result)
    if plot is not None and (plot.suffix.lower() != ".svg" or fitted.n_components < 2):
        raise InputError(f"--plot must be an .svg file and needs two components, got {plot.name}")
    suffix = "" if target is None else score_suffix(target, labelled=given["id_column"] is not None)
    with ExitStack() as stack:
        drawing = None if plot is None else stack.enter_context(new_file(plot, force=force))
        place = None if target is None else stack.enter_context(new_file(target, force=force))
        reading = reading_of(given, "rename")
        scores = stack.enter_context(_scores_of(fitted, file, given["id_column"], **reading))
        scores = scores if given["outliers"] is None else _flagged(fitted, scores, given["outliers"])
        scores = scores if drawing is None else list(scores)  # which are written and drawn
        n_rows = (
            write_scores_csv(sys.stdout, scores) if place is None else write_scores(place, scores, suffix)
        )
        if drawing is not None:
            points = pl.concat(scores).select(fitted.score_names[:2]).to_numpy()
            title = f"{n_rows} rows of {file.name} on the first two components"
            drawn = score_picture(fitted.score_names, points, title, fitted.score_counts)
            drawing.write_text(drawn, encoding="utf-8")
    if given["as_json"]:
        names = [*fitted.score_names, *([] if given["outliers"] is None else ["outlier"])]
        print_json({"file": str(target), "rows": n_rows, "scores": names})
    elif target is not None:
        say(f"Wrote {target}: {n_rows} rows, {fitted.n_components} scores", err=True)


@contextmanager
def _scores_of(
    result: Result, file: Path, id_column: str | None, **reading: Any
) -> Iterator[Iterable["pl.DataFrame"]]:
    """Give the scores of a file's rows, computed as they are written, with a progress bar."""
    source = open_source(file, **reading)
    if id_column is None and result.feature_names is not None and source.columns is None:
        note(f"{file} has no column names: they are taken in the order of the fit")
    has_names = id_column is None or result.feature_names is not None
    tables = [result.select(source)] if has_names else []
    with bar_of("rows", source.n_rows) as advance, every_problem(tables, gaps=result.takes_gaps):
        yield counted(result.scored(source, id_column), advance)
    for sentence in cells_warnings(source):
        note(sentence, "Warning")


def _flagged(result: Result, scores: Iterable["pl.DataFrame"], most: float) -> Iterator["pl.DataFrame"]:
    """Yield scores with one more column: 1 for rows further out on a component than ``most``."""
    if not most > 0:
        raise InputError(f"--outliers must be a positive number, got {most:g}")
    spread = np.sqrt(np.maximum(result.explained_variance, np.finfo(np.float64).tiny))
    far = pl.any_horizontal(
        pl.col(name).abs() > most * width for name, width in zip(result.score_names, spread, strict=True)
    )
    for frame in scores:
        yield frame.with_columns(far.cast(pl.Float64).alias("outlier"))


# --- export ----------------------------------------------------------------------------------------

_FORMATS = ("csv", "parquet", "plink", "anndata", "onnx")
_WITH_ROWS = ("plink", "anndata")


@click.command(cls=Command, epilog="Example: fedpower export result --to plink --rows north.csv -o north")
@options(
    "RESULT",
    option("--to", "The format.", click.Choice(_FORMATS), name="kind", required=True),
    option("-o --output", "File to write; for plink without .eigenvec and .eigenval.", PATH, required=True),
    option("--rows FILE", "Rows to project: samples for plink, an .h5ad file for anndata."),
    _ID_COLUMN,
    "force as_json",
)
def export(result: Path, *, kind: str, output: Path, rows: Path | None, **given: Any) -> None:
    """Write a RESULT folder in the format of another tool.

    csv and parquet have a line per column, with its mean, scale and loadings. plink gives .eigenvec and
    .eigenval files like plink2 --pca. anndata copies an .h5ad file and adds scores, components and
    variances where scanpy expects them. onnx gives the projection as a graph. For scikit-learn use
    `fedpower.load(RESULT).to_sklearn()` in Python.
    """
    fitted = read_result(result)
    if (rows is None) == (kind in _WITH_ROWS):
        raise InputError(
            f"--rows must go with --to {' and --to '.join(_WITH_ROWS)} and no other, got --to {kind} "
            + ("without" if rows is None else "with it")
        )
    if given["id_column"] is not None and kind != "plink":
        raise InputError(f"--id-column must go with --to plink, got --to {kind}")
    endings = [".eigenvec", ".eigenval"] if kind == "plink" else [""]
    targets = [output.with_name(f"{output.name}{ending}") for ending in endings]
    with ExitStack() as stack:
        places = [stack.enter_context(new_file(target, force=given["force"])) for target in targets]
        if kind == "plink" and rows is not None:
            scores = stack.enter_context(_scores_of(fitted, rows, given["id_column"]))
            n_rows = write_plink(fitted, scores, eigenvec=places[0], eigenval=places[1])
            contents = [f"{n_rows} samples", "eigenvalues"]
            if given["id_column"] is None and rows.suffix.lower() not in (".bed", ".pgen"):
                note("samples are numbered from 1; --id-column gives their ids")
        elif rows is not None:
            n_rows = write_cells(fitted, rows, places[0])
            contents = [f"{n_rows} cells with {fitted.n_components} scores each, components and variances"]
        elif kind == "onnx":
            write_onnx(fitted, places[0])
            contents = [f"a graph from rows of {fitted.n_features} columns to {fitted.n_components} scores"]
        else:
            write_loadings(fitted, places[0], kind)
            contents = [f"{fitted.n_features} features by {fitted.n_components} components"]
    written = {str(path): content for path, content in zip(targets, contents, strict=True)}
    if given["as_json"]:
        print_json({"to": kind, "files": written})
    else:
        say(*(f"Wrote {path}: {content}" for path, content in written.items()), err=True)
