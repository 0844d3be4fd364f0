"""`fedpower export`: a result in the formats of other tools."""

from contextlib import ExitStack
from pathlib import Path

import click

from fedpower.cli.console import note, print_json
from fedpower.cli.paths import PATH, RESULT
from fedpower.cli.transform import scores_of
from fedpower.errors import InputError
from fedpower.report import Result
from fedpower.report.export import (
    write_cells,
    write_loadings_csv,
    write_loadings_parquet,
    write_onnx,
    write_plink,
)
from fedpower.report.files import new_file
from fedpower.report.result import read_result

FORMATS = ("csv", "parquet", "plink", "anndata", "onnx")
_WITH_ROWS = ("plink", "anndata")


@click.command(epilog="Example: fedpower export result --to plink --rows north.csv -o north")
@click.argument("model", type=RESULT)
@click.option("--to", "kind", type=click.Choice(FORMATS), required=True, help="The format.")
@click.option(
    "-o",
    "--output",
    type=PATH,
    required=True,
    help="The file to write; of plink the name before .eigenvec and .eigenval.",
)
@click.option(
    "--rows",
    type=PATH,
    help="The rows whose scores go along: a file of samples for plink, an .h5ad for anndata.",
)
@click.option("--id-column", metavar="NAME", help="The samples' ids for plink; numbered without it.")
@click.option("--force", is_flag=True, help="Replace an earlier file.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def export(
    *,
    model: Path,
    kind: str,
    output: Path,
    rows: Path | None,
    id_column: str | None,
    force: bool,
    as_json: bool,
) -> None:
    """Write the result in the folder MODEL as other tools read it; nothing leaves this machine.

    csv and parquet: a line a feature with its mean, scale and loading on every component. plink:
    .eigenvec and .eigenval as of plink2 --pca. anndata: a copy of the .h5ad with scores, components and
    variances where scanpy looks for them. onnx: the projection as a graph. For scikit-learn there is
    `fedpower.read_result(MODEL).to_sklearn()`.
    """
    result = read_result(model)
    if (rows is None) == (kind in _WITH_ROWS):
        raise InputError(
            f"--rows must go with --to {' and --to '.join(_WITH_ROWS)}, got --to {kind} "
            + ("without; name the file of the rows" if rows is None else "with it; leave it out")
        )
    if id_column is not None and kind != "plink":
        raise InputError(f"--id-column must go with --to plink, got --to {kind}; leave it out")
    if kind == "plink":
        assert rows is not None
        written = _plink(result, rows, id_column, output, force=force)
    else:
        with new_file(output, force=force) as place:
            written = {output: _write(result, kind, place, rows)}
    if as_json:
        print_json({"to": kind, "files": {str(path): what for path, what in written.items()}})
    else:
        click.echo("; ".join(f"{path}: {what}" for path, what in written.items()), err=True)


def _write(result: Result, kind: str, place: Path, rows: Path | None) -> str:
    """Write one file and return what is in it."""
    if kind == "anndata":
        assert rows is not None
        count = write_cells(result, rows, place)
        return f"{count} cells with {result.n_components} scores each, components and variances"
    if kind == "onnx":
        write_onnx(result, place)
        return f"a graph from rows of {result.n_features} columns to {result.n_components} scores"
    (write_loadings_csv if kind == "csv" else write_loadings_parquet)(result, place)
    return f"{result.n_features} features by {result.n_components} components"


def _plink(
    result: Result, rows: Path, id_column: str | None, output: Path, *, force: bool
) -> dict[Path, str]:
    """Write both files and return what is in each."""
    targets = [output.with_name(f"{output.name}{ending}") for ending in (".eigenvec", ".eigenval")]
    with ExitStack() as stack:
        eigenvec, eigenval = (stack.enter_context(new_file(target, force=force)) for target in targets)
        scores = stack.enter_context(scores_of(result, rows, id_column))
        count = write_plink(result, scores, eigenvec=eigenvec, eigenval=eigenval)
    if scores.label is None:
        note("samples are numbered from 1 as no --id-column was given")
    return {targets[0]: f"{count} samples", targets[1]: "their eigenvalues"}
