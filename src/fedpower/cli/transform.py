"""`fedpower transform`: scores of new rows on fitted components, streamed."""

import sys
from pathlib import Path

import click

from fedpower.cli.console import note
from fedpower.cli.progress import bar_of, counted, quiet_option
from fedpower.data import open_source
from fedpower.report import read_result
from fedpower.report.atomic import new_file
from fedpower.report.scores import write_csv, writer_for

PATH = click.Path(path_type=Path)


@click.command()
@click.argument("model", type=PATH)
@click.argument("file", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="A .csv, .parquet or .npy file; else CSV on stdout."
)
@click.option("--force", is_flag=True, help="Replace that file.")
@quiet_option
def transform(model: Path, file: Path, output: Path | None, force: bool) -> None:
    """Project the rows of FILE onto the components in the folder MODEL that `fedpower fit` wrote.

    Columns are matched by name, further ones are left out; rows keep their order. A local
    computation: nothing leaves this machine and no budget is spent.
    """
    result = read_result(model)
    write = None if output is None else writer_for(output)
    source = open_source(file)
    if result.feature_names is not None and source.columns is None:
        note(f"{file} has no column names, so its columns are taken in the order of the model's")
    with bar_of("rows", source.n_rows) as advance:
        blocks = counted(result.score_blocks(result.select(source)), advance)
        if output is None or write is None:
            write_csv(sys.stdout, blocks, result.score_names)
            return
        with new_file(output, force=force) as place:
            count = write(place, blocks, result.score_names)
    click.echo(f"{output}: {count} rows of {result.n_components} scores", err=True)
