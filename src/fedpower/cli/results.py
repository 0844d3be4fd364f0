"""`fedpower show`, `transform` and `export`: what is done with results, on this machine."""

import math
import sys
import webbrowser
import zipfile
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from fedpower.cli.console import bar_of, counted, note, print_json, print_table, say
from fedpower.cli.options import PATH, READING, Command, option, options, output, reading_of
from fedpower.exceptions import InputError
from fedpower.files import new_file
from fedpower.linalg import Array, orth, principal_angles
from fedpower.protocol.solvers.angles import DETERMINED
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
from fedpower.report.record import REPORT, plain
from fedpower.report.result import Result, read_result, write_report
from fedpower.report.text import and_more, degrees, human_bytes
from fedpower.report.view import findings
from fedpower.rows.opening import existing, open_source
from fedpower.rows.ruled import every_problem
from fedpower.values import pl

_ID_COLUMN = option("--id-column NAME", "Column of ids, such as patient_id, that is no feature.")


# --- show ------------------------------------------------------------------------------------------


@click.command(cls=Command, epilog="Example: fedpower show result --against earlier")
@options(
    "RESULT",
    option("--against OTHER", "Show the angles between it and another.", PATH),
    option("--open", "Make its page again, and open it in a browser.", name="opens"),
    "verbose as_json",
)
def show(result: Path, *, against: Path | None, opens: bool, verbose: bool, as_json: bool) -> None:
    """Show the folder RESULT that `fedpower fit` or `fedpower study run` wrote.

    With --against: the principal angles between its subspace and another's. Each is a folder, or a .npz or
    .npy file with an array `components` (k×d) or `basis` (d×k), such as a known truth. Results must be of
    the same kind: correlations (--standardize) or covariances in the same units.
    """
    if against is not None:
        _compare(result, against, as_json=as_json)
        return
    found = read_result(result)
    if opens:
        made = write_report(result)
        if not webbrowser.open(made.absolute().as_uri()):
            note(f"no browser could be started; open {made} yourself")
    print_result(found, result, verbose=verbose, as_json=as_json)


_NUMBERS = ("feature_names", "components", "explained_variance", "explained_variance_ratio", "mean")


def print_result(result: Result, folder: Path, *, verbose: bool, as_json: bool) -> None:
    """Print what was found from what, what is promised, and where the result is."""
    if as_json:
        numbers = {name: plain(getattr(result, name)) for name in _NUMBERS}
        print_json({"result": str(folder), **result.run, **numbers})
        return
    if result.record.absent:
        say(f"{result.headline}.")
    values, ratios = result.denoised_variance, result.denoised_variance_ratio
    headings = ["component", "variance", "ratio", "together", "angle"]
    rows = []
    for place, together in enumerate(np.cumsum(ratios)):
        shares = [f"{share:.2%}" if math.isfinite(share) else "–" for share in (ratios[place], together)]
        angle = float(result.component_angles[place])
        shown = degrees(angle) if angle <= DETERMINED else f"not determined ({degrees(angle)})"
        rows.append([f"pc{place + 1}", f"{values[place]:.6g}", *shares, shown])
    columns = 5 if result.component_angles.any() else 4  # an exact fit has no angles
    print_table(None, headings[:columns], [row[:columns] for row in rows], numbers=headings[:4])
    say(*findings(result))
    record, solver = result.run, result.solver
    things = f"{result.record.counted}s"
    sizes = ", ".join(f"{silo['name']} ({silo.get('rows', '?')} {things})" for silo in record["silos"])
    names = f" ({', '.join(and_more(result.feature_names))})" if result.feature_names else ""
    say(
        f"Silos: {sizes}; {result.n_samples} {things} of {result.n_features} columns{names} in all.",
        f"Solver: {solver.solver}, because {solver.reason}.",
        f"Rounds: {record['n_rounds']}, with {human_bytes(record['bytes_up'])} up and "
        f"{human_bytes(record['bytes_down'])} down.",
    )
    counts = result.score_counts
    if counts is not None:
        bins = counts.edges.shape[1] - 1
        noise = "exact" if counts.noise_std == 0 else f"with noise of {counts.noise_std:.3g} rows"
        line = f"Scores: rows counted on {bins}×{bins} places of pc1 and pc2, {noise}: see report.html."
        say(line if counts.fractions is None else f"{line} {counts.fractions}")
    promise = result.privacy
    shown = str(promise) if verbose else promise.brief
    say(f"\n{shown}", style=None if promise.is_private else "bold red")
    say(f"\nResult: {folder} (open {folder / REPORT}; project rows with `fedpower transform {folder} FILE`)")
    if record["parameters"].get("network") is not None:
        say(f"Communities: `fedpower analyze communities {folder} -k K` finds them, at no cost.")


_SMALL_DEGREES, _LOW_COSINE = 15.0, 0.9
"""In subspaces so close, components less alike than that (26 degrees) have turned among themselves."""


def _compare(a: Path, b: Path, *, as_json: bool) -> None:
    (one, result), (other, earlier) = _read_axes(a), _read_axes(b)
    other = other[_order(f"{a} and {b}", one, other, result, earlier)]
    ranks = one.shape[1], other.shape[1]
    angles = principal_angles(orth(one), orth(other))
    sines, angles = np.sin(angles), np.degrees(angles)
    cosines = np.abs(np.einsum("ij,ij->j", one[:, : min(ranks)], other[:, : min(ranks)])).clip(max=1.0)
    if as_json:
        found = {"angles_degrees": angles, "sines": sines, "component_cosines": cosines}
        sizes = {"a": str(a), "b": str(b), "n_features": len(one), "n_components": list(ranks)}
        print_json({**sizes, **plain(found), "sin_theta": float(sines[-1])})
        return
    headings = ("", "angle (degrees)", "sin θ", "|cosine| of the components")
    rows = [
        (f"{place}", f"{angle:.4g}", f"{sine:.3e}", f"{cosine:.6f}")
        for place, (angle, sine, cosine) in enumerate(zip(angles, sines, cosines, strict=True), 1)
    ]
    print_table(None, headings, rows, numbers=headings)
    say(
        f"The subspaces of {a} and {b} are {angles[-1]:.4g} degrees "
        f"apart (largest principal angle; sin θ = {sines[-1]:.3e})."
    )
    if angles[-1] < _SMALL_DEGREES and cosines.min() < _LOW_COSINE:
        say("Components of nearly equal variance may turn within their plane: compare the angles.")


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


def _order(both: str, one: Array, other: Array, result: Result | None, earlier: Result | None) -> Any:
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
    "MODEL FILE",
    output(help="A .csv, .parquet or .npy file; else CSV on stdout."),
    _ID_COLUMN,
    option("--outliers SD", "Add a column: 1 for rows so many SD out on a component; 6 is usual.", float),
    option("--plot FILE", "Draw the first two scores of every row: an .svg file."),
    f"{READING} force as_json quiet",
)
def transform(model: Path, file: Path, **given: Any) -> None:
    """Project the rows of FILE onto the components in the folder MODEL that `fedpower fit` wrote.

    Columns are matched by name, further ones are left out; rows keep their order. A local
    computation: nothing leaves this machine and no budget is spent.
    """
    target, plot, force = given["output"], given["plot"], given["force"]
    if given["as_json"] and target is None:
        raise InputError("--json must go with -o, got no file for the scores")
    result = read_result(model)
    if plot is not None and (plot.suffix.lower() != ".svg" or result.n_components < 2):
        raise InputError(f"--plot must be an .svg file and needs two components, got {plot.name}")
    suffix = "" if target is None else score_suffix(target, labelled=given["id_column"] is not None)
    with ExitStack() as stack:
        drawing = None if plot is None else stack.enter_context(new_file(plot, force=force))
        place = None if target is None else stack.enter_context(new_file(target, force=force))
        reading = reading_of(given, "rename")
        scores = stack.enter_context(_scores_of(result, file, given["id_column"], **reading))
        scores = scores if given["outliers"] is None else _flagged(result, scores, given["outliers"])
        scores = scores if drawing is None else list(scores)  # which are written and drawn
        count = write_scores_csv(sys.stdout, scores) if place is None else write_scores(place, scores, suffix)
        if drawing is not None:
            points = pl.concat(scores).select(result.score_names[:2]).to_numpy()
            title = f"{count} rows of {file.name} on the first two components"
            drawn = score_picture(result.score_names, points, title, result.score_counts)
            drawing.write_text(drawn, encoding="utf-8")
    if given["as_json"]:
        names = [*result.score_names, *([] if given["outliers"] is None else ["outlier"])]
        print_json({"file": str(target), "rows": count, "scores": names})
    elif target is not None:
        click.echo(f"{target}: {count} rows of {result.n_components} scores", err=True)


@contextmanager
def _scores_of(
    result: Result, file: Path, id_column: str | None, **reading: Any
) -> Iterator[Iterable["pl.DataFrame"]]:
    """Give the scores of a file's rows, computed as they are written, with a progress bar."""
    source = open_source(file, **reading)
    if id_column is None and result.feature_names is not None and source.columns is None:
        note(f"{file} has no column names, so its columns are taken in the order of the model's")
    has_names = id_column is None or result.feature_names is not None
    tables = [result.select(source)] if has_names else []
    with bar_of("rows", source.n_rows) as advance, every_problem(tables):
        yield counted(result.scored(source, id_column), advance)


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
    "MODEL",
    option("--to", "The format.", click.Choice(_FORMATS), name="kind", required=True),
    option(
        "-o --output", "File to write; of plink the name before .eigenvec and .eigenval.", PATH, required=True
    ),
    option("--rows FILE", "Rows to score: a file of samples for plink, an .h5ad for anndata."),
    _ID_COLUMN,
    "force as_json",
)
def export(model: Path, *, kind: str, output: Path, rows: Path | None, **given: Any) -> None:
    """Write the result in the folder MODEL as other tools read it; nothing leaves this machine.

    csv and parquet: a line for each feature with its mean, scale and loading on every component. plink:
    .eigenvec and .eigenval as of plink2 --pca. anndata: a copy of the .h5ad with scores, components and
    variances where scanpy looks for them. onnx: the projection as a graph. For scikit-learn there is
    `fedpower.load(MODEL).to_sklearn()`.
    """
    result = read_result(model)
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
            scores = stack.enter_context(_scores_of(result, rows, given["id_column"]))
            count = write_plink(result, scores, eigenvec=places[0], eigenval=places[1])
            contents = [f"{count} samples", "their eigenvalues"]
            if given["id_column"] is None and rows.suffix.lower() not in (".bed", ".pgen"):
                note("samples are numbered from 1 as no --id-column was given")
        elif rows is not None:
            count = write_cells(result, rows, places[0])
            contents = [f"{count} cells with {result.n_components} scores each, components and variances"]
        elif kind == "onnx":
            write_onnx(result, places[0])
            contents = [f"a graph from rows of {result.n_features} columns to {result.n_components} scores"]
        else:
            write_loadings(result, places[0], kind)
            contents = [f"{result.n_features} features by {result.n_components} components"]
    written = {str(path): content for path, content in zip(targets, contents, strict=True)}
    if given["as_json"]:
        print_json({"to": kind, "files": written})
    else:
        click.echo("; ".join(f"{path}: {content}" for path, content in written.items()), err=True)
