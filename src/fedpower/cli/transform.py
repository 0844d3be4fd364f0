"""`fedpower transform`: scores of new rows on fitted components, streamed."""

import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
import numpy as np
from numpy.typing import NDArray

from fedpower.cli.console import note, print_json
from fedpower.cli.options import reading_of, reading_options
from fedpower.cli.paths import PATH, RESULT
from fedpower.cli.progress import bar_of, counted, quiet_option
from fedpower.errors import InputError
from fedpower.report import Result, read_result
from fedpower.report.export import Scores, keeping_points, score_picture, score_writer, write_scores_csv
from fedpower.report.files import new_file
from fedpower.rows.opening import Reading, open_source
from fedpower.rows.plink import PlinkSource
from fedpower.rows.source import pl
from fedpower.rules.ruled import every_problem


@click.command()
@click.argument("model", type=RESULT)
@click.argument("file", type=PATH)
@click.option("-o", "--output", type=PATH, help="A .csv, .parquet or .npy file; else CSV on stdout.")
@click.option(
    "--id-column",
    metavar="NAME",
    help="A column of FILE that is no feature, such as patient_id: the first of the scores' columns.",
)
@click.option(
    "--outliers",
    type=float,
    metavar="SD",
    help="Add a column: 1 for rows more than SD standard deviations out on a component; 6 is usual.",
)
@click.option(
    "--plot",
    type=PATH,
    metavar="FILE",
    help="Draw the first two scores of every row: an .svg file. Counts of scores lie behind them.",
)
@reading_options
@click.option("--force", is_flag=True, help="Replace these files.")
@click.option("--json", "as_json", is_flag=True, help="With -o: print one JSON object.")
@quiet_option
def transform(
    model: Path,
    file: Path,
    *,
    output: Path | None,
    id_column: str | None,
    outliers: float | None,
    plot: Path | None,
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
    write = None if output is None else score_writer(output, labelled=id_column is not None)
    points: list[tuple[float, float]] = []
    with ExitStack() as stack:
        drawing = None if plot is None else stack.enter_context(_drawing(result, plot, force=force))
        place = None if output is None else stack.enter_context(new_file(output, force=force))
        scores = stack.enter_context(scores_of(result, file, id_column, reading_of(options)))
        scores = scores if outliers is None else flagged(result, scores, outliers)
        scores = scores if drawing is None else keeping_points(scores, points)
        if place is None or write is None:
            write_scores_csv(sys.stdout, scores)
        else:
            count = write(place, scores)
        if drawing is not None:
            title = f"{len(points)} rows of {file.name} on the first two components"
            drawn = score_picture(scores.names, points, title, result.score_counts)
            drawing.write_text(drawn, encoding="utf-8")
    if output is None:
        return
    if as_json:
        print_json({"file": str(output), "rows": count, "scores": list(scores.names)})
    else:
        click.echo(f"{output}: {count} rows of {result.n_components} scores", err=True)


def _drawing(result: Result, plot: Path, *, force: bool) -> AbstractContextManager[Path]:
    """Return the place of a picture of scores; refuse one that cannot be drawn."""
    if plot.suffix.lower() != ".svg" or result.n_components < 2:
        raise InputError(
            f"--plot must be an .svg file of a result with 2 components at least, got {plot.name} of "
            f"{result.n_components}; rename it, or fit more"
        )
    return new_file(plot, force=force)


@contextmanager
def scores_of(
    result: Result, file: Path, id_column: str | None, ways: Reading | None = None
) -> Iterator[Scores]:
    """Give the scores of a file's rows, to be computed as they are written; a bar shows how far."""
    source = open_source(file, **(ways or {}))
    if isinstance(source, PlinkSource):
        if id_column is not None:
            raise InputError(
                f"--id-column must be left out with {file}, whose samples have ids of their own, got "
                f"{id_column!r}; leave it out"
            )
        id_column, blocks = "IID", _of_samples(result, source)
    elif id_column is not None:
        blocks = result.labelled_scores(source, id_column)
    else:
        if result.feature_names is not None and source.columns is None:
            note(f"{file} has no column names, so its columns are taken in the order of the model's")
        blocks = ((None, block) for block in result.score_blocks(result.select(source)))
    has_names = id_column is None or result.feature_names is not None
    tables = [result.select(source)] if has_names else []
    with bar_of("rows", source.n_rows) as advance, every_problem(tables):
        seen = counted(blocks, advance, size=lambda labelled: len(labelled[1]))
        yield Scores(names=result.score_names, blocks=seen, label=id_column)


def _of_samples(result: Result, source: PlinkSource) -> Iterator[tuple[Any, NDArray[np.float64]]]:
    """Yield the ids of samples beside their scores, block by block."""
    done = 0
    for block in result.score_blocks(result.select(source)):
        yield pl.Series(values=source.samples[done : done + len(block)]), block
        done += len(block)


def flagged(result: Result, scores: Scores, most: float) -> Scores:
    """Return scores with a column more: 1 for rows that lie further out on a component than ``most``."""
    if not most > 0:
        raise InputError(f"--outliers must be a positive number, got {most:g}; 6 is usual")
    spread = np.sqrt(np.maximum(result.explained_variance, np.finfo(np.float64).tiny))

    def blocks() -> Iterator[tuple[Any, NDArray[np.float64]]]:
        for cells, block in scores.blocks:
            out = (np.abs(block) > most * spread).any(axis=1)
            yield cells, np.column_stack([block, out.astype(np.float64)])

    return replace(scores, names=(*scores.names, "outlier"), blocks=blocks())
