"""`fedpower transform`: scores of new rows on fitted components, streamed."""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import note, print_json
from fedpower.cli.options import reading_of, reading_options
from fedpower.cli.paths import PATH, RESULT
from fedpower.cli.progress import bar_of, counted, quiet_option
from fedpower.data import open_source
from fedpower.data.opening import Reading
from fedpower.data.problems import every_problem
from fedpower.errors import InputError
from fedpower.report import Result, read_result
from fedpower.report.atomic import new_file
from fedpower.report.scores import Scores, write_csv, writer_for


@click.command()
@click.argument("model", type=RESULT)
@click.argument("file", type=PATH)
@click.option(
    "-o", "--output", type=PATH, help="A .csv, .parquet or .npy file; else CSV on stdout."
)
@click.option(
    "--id-column",
    metavar="NAME",
    help="A column of FILE that is no feature, such as patient_id: the first of the scores' columns.",
)
@reading_options
@click.option("--force", is_flag=True, help="Replace that file.")
@click.option("--json", "as_json", is_flag=True, help="With -o: print one JSON object.")
@quiet_option
def transform(
    model: Path,
    file: Path,
    *,
    output: Path | None,
    id_column: str | None,
    force: bool,
    as_json: bool,
    **options: Any,
) -> None:
    """Project the rows of FILE onto the components in the folder MODEL that `fedpower fit` wrote.

    Columns are matched by name, further ones are left out; rows keep their order. A local
    computation: nothing leaves this machine and no budget is spent.
    """
    if as_json and output is None:
        raise InputError(
            "--json must go with -o, got none: the scores themselves are printed then; name a file"
        )
    result = read_result(model)
    write = None if output is None else writer_for(output, labelled=id_column is not None)
    with scores_of(result, file, id_column, reading_of(options)) as scores:
        if output is None or write is None:
            write_csv(sys.stdout, scores)
            return
        with new_file(output, force=force) as place:
            count = write(place, scores)
    if as_json:
        print_json({"file": str(output), "rows": count, "scores": list(result.score_names)})
    else:
        click.echo(f"{output}: {count} rows of {result.n_components} scores", err=True)


@contextmanager
def scores_of(
    result: Result, file: Path, id_column: str | None, ways: Reading | None = None
) -> Iterator[Scores]:
    """Give the scores of a file's rows, to be computed as they are written; a bar shows how far."""
    source = open_source(file, **(ways or {}))
    if id_column is not None:
        blocks = result.labelled_scores(source, id_column)
    else:
        if result.feature_names is not None and source.columns is None:
            note(
                f"{file} has no column names, so its columns are taken in the order of the model's"
            )
        blocks = ((None, block) for block in result.score_blocks(result.select(source)))
    has_names = id_column is None or result.feature_names is not None
    tables = [result.select(source)] if has_names else []
    with bar_of("rows", source.n_rows) as advance, every_problem(tables):
        seen = counted(blocks, advance, size=lambda labelled: len(labelled[1]))
        yield Scores(names=result.score_names, blocks=seen, label=id_column)
