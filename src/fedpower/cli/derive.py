"""`fedpower derive`: analyses of a released moment, which cost nothing more."""

import csv
import math
from collections.abc import Callable
from functools import update_wrapper
from pathlib import Path
from typing import Any

import click

from fedpower.cli import values
from fedpower.cli.console import console, note, print_json, table
from fedpower.cli.paths import MOMENT, PATH
from fedpower.errors import InputError
from fedpower.report.files import new_file
from fedpower.report.moment import Moment, read_moment
from fedpower.report.page import Account, Table
from fedpower.report.text import number

_MOST_ROWS = 30


@click.group()
@click.argument("moment", type=MOMENT)
@click.pass_context
def derive(ctx: click.Context, moment: Path) -> None:
    """Compute from the released MOMENT, a folder of `fedpower release` or of a fit with --keep-moment.

    Nothing is charged and no row is read: whatever is computed keeps the promise that the moment was
    released under. Example: fedpower derive moment factor -k 3
    """
    ctx.obj = moment


def _analysis(make: Callable[..., Any]) -> Callable[..., Any]:
    """Return a command's body: it makes the estimator, which is fitted, shown and kept."""

    @click.option("-o", "--output", type=PATH, help="Folder for tables, JSON and a page.")
    @click.option("--force", is_flag=True, help="Replace an earlier analysis in that folder.")
    @click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
    @click.pass_obj
    def command(place: Path, /, output: Path | None, force: bool, as_json: bool, **options: Any) -> None:
        moment = read_moment(place)
        rows = options.pop("rows", None)
        told_of = {name: options.pop(name) for name in _OF_ROWS if name in options}
        for name, place_of in told_of.items():
            if (rows is None) != (place_of is None):
                raise InputError(
                    f"--rows and --{name} must go together, got one of them; name the rows and a CSV "
                    f"file for {_OF_ROWS[name][0]}"
                )
        model = make(**options).fit(moment)
        told = model.account()
        for name, place_of in told_of.items():  # first: where it fails, no folder is left behind
            if place_of is not None:
                _OF_ROWS[name][1](model, rows, place_of, force=force)
        if output is not None:
            from fedpower.report.moment import save_analysis  # noqa: PLC0415

            save_analysis(told, moment, output, force=force)
        show_account(told, moment, output, as_json=as_json)

    return update_wrapper(command, make)


_level = click.option("--level", type=float, default=0.95, show_default=True, help="Of intervals.")
_sampling = click.option(
    "--sampling/--no-sampling",
    default=True,
    help="Whether rows are a sample, whose error counts too (default).",
)


@derive.command()
@click.option("-k", "--factors", "n_factors", type=int, required=True, help="Number of factors.")
@click.option("--rotation", type=click.Choice(["varimax", "none"]), default="varimax",
              show_default=True, help="How factors are turned.")  # fmt: skip
@_level
@_sampling
@_analysis
def factor(n_factors: int, rotation: str, level: float, sampling: bool) -> Any:
    """Factor analysis by maximum likelihood: loadings with intervals."""
    from fedpower.analyses import FactorAnalysis  # noqa: PLC0415

    turned: Any = None if rotation == "none" else rotation
    return FactorAnalysis(n_factors, rotation=turned, level=level, sampling=sampling)


@derive.command()
@click.option("--target", required=True, metavar="COLUMN", help="The column to explain.")
@click.option("--predictors", callback=values.names, metavar="A,B,...",
              help="Columns to explain it by; all others by default.")  # fmt: skip
@click.option("--alpha", type=float, help="Ridge penalty of the sum over all rows; 0 by default.")
@click.option("-k", "--components", "n_components", type=int,
              help="Regress on so many principal components instead.")  # fmt: skip
@_level
@_sampling
@_analysis
def regress(
    *,
    target: str,
    predictors: tuple[str, ...] | None,
    alpha: float | None,
    n_components: int | None,
    level: float,
    sampling: bool,
) -> Any:
    """Regression of a column on others: least squares, ridge or principal components."""
    from fedpower.analyses import ComponentRegression, RidgeRegression  # noqa: PLC0415

    if alpha is not None and n_components is not None:
        raise InputError(
            "a regression must be either ridge or on components, got --alpha and -k; leave one out"
        )
    shared: dict[str, Any] = {"predictors": predictors, "level": level, "sampling": sampling}
    if n_components is not None:
        return ComponentRegression(target, n_components=n_components, **shared)
    return RidgeRegression(target, alpha=alpha or 0.0, **shared)


@derive.command()
@click.option("-k", "--components", "n_components", type=int, required=True,
              help="Number of components.")  # fmt: skip
@click.option("--covariates", callback=values.names, required=True, metavar="A,B,...",
              help="The columns to adjust for.")  # fmt: skip
@_level
@_sampling
@_analysis
def adjust(n_components: int, covariates: tuple[str, ...], level: float, sampling: bool) -> Any:
    """Principal components after covariates are partialled out."""
    from fedpower.analyses import AdjustedPCA  # noqa: PLC0415

    return AdjustedPCA(n_components, covariates=covariates, level=level, sampling=sampling)


@derive.command()
@click.option("-k", "--components", "n_components", type=int, required=True,
              help="Number of components.")  # fmt: skip
@click.option("--level", type=float, default=0.99, show_default=True,
              help="Share of usual rows within each limit.")  # fmt: skip
@click.option("--rows", type=PATH, metavar="FILE", help="New rows to flag, here and now.")
@click.option("--flags", type=PATH, metavar="CSV", help="Where their flags go; needs --rows.")
@_analysis
def monitor(n_components: int, level: float) -> Any:
    """Limits of T² and SPE for new rows; with --rows they are flagged, and nothing leaves."""
    from fedpower.analyses import ProcessMonitor  # noqa: PLC0415

    return ProcessMonitor(n_components, level=level)


@derive.command()
@_level
@_sampling
@_analysis
def correlate(level: float, sampling: bool) -> Any:
    """Correlations with intervals, a heat map, and which of them are told from 0."""
    from fedpower.analyses import Correlations  # noqa: PLC0415

    return Correlations(level=level, sampling=sampling)


@derive.command()
@click.option("-k", "--factors", "n_factors", type=int, default=0, show_default=True,
              help="Common factors to take off first.")  # fmt: skip
@click.option("--null", "nulls", multiple=True, metavar="[COLUMN=]NUMBER",
              help="What means should be; 0 by default, repeatable.")  # fmt: skip
@_level
@_analysis
def means(n_factors: int, nulls: tuple[str, ...], level: float) -> Any:
    """Test all column means at once: common factors taken off, false discoveries controlled."""
    from fedpower.analyses import MeanTests  # noqa: PLC0415

    return MeanTests(n_factors, null=_nulls(nulls), level=level)


@derive.command()
@click.option("-k", "--communities", "n_communities", type=int, required=True,
              help="Number of communities.")  # fmt: skip
@click.option("--labels", type=PATH, metavar="CSV", help="Lines of node,label to compare with.")
@_analysis
def communities(n_communities: int, labels: Path | None) -> Any:
    """Communities of the nodes, where what was released is of networks."""
    from fedpower.analyses import Communities  # noqa: PLC0415

    return Communities(n_communities, labels=None if labels is None else read_labels(labels))


def read_labels(path: Path) -> dict[str, str]:
    """Return a label for each node that a CSV file of node,label lines names."""
    from fedpower.rows.opening import existing  # noqa: PLC0415

    found: dict[str, str] = {}
    with existing(path).open(newline="", encoding="utf-8-sig") as stream:
        for place, row in enumerate(csv.reader(stream), start=1):
            if not row:
                continue
            if len(row) != 2 or row[0].strip() in found:
                raise InputError(
                    f"{path} must hold a line of node,label for every node, got another in line {place}; "
                    "correct it"
                )
            if place == 1 and row[0].strip().lower() in ("node", "nodes", "name", "id"):
                continue
            found[row[0].strip()] = row[1].strip()
    return found


@derive.command()
@click.option("-k", "--components", "n_components", type=int, required=True,
              help="Number of components, at most.")  # fmt: skip
@_level
@click.option("--rows", type=PATH, metavar="FILE", help="New rows to complete, here and now.")
@click.option("--filled", type=PATH, metavar="CSV",
              help="Where predictions of their empty cells go; needs --rows.")  # fmt: skip
@_analysis
def complete(n_components: int, level: float) -> Any:
    """Components of ratings that many rows lack; with --rows empty cells are predicted at home."""
    from fedpower.analyses import Completion  # noqa: PLC0415

    return Completion(n_components, level=level)


@derive.command()
@click.option("--method", type=click.Choice(["least-squares", "bradley-terry"]),
              default="least-squares", show_default=True, help="What scores are.")  # fmt: skip
@_level
@_sampling
@_analysis
def ranking(method: str, level: float, sampling: bool) -> Any:
    """Rank items from comparisons: scores and places with intervals, and who is told apart."""
    from fedpower.analyses import Ranking  # noqa: PLC0415

    chosen: Any = method.replace("-", "_")
    return Ranking(chosen, level=level, sampling=sampling)


def _nulls(words: tuple[str, ...]) -> float | dict[str, float]:
    named: dict[str, float] = {}
    for word in words:
        column, _, text = word.rpartition("=")
        try:
            value = float(text)
        except ValueError:
            value = math.nan
        if not math.isfinite(value) or (not column and len(words) > 1):
            raise InputError(
                f"--null must be one number for all columns, or COLUMN=NUMBER for some, got {word!r}; "
                "write e.g. --null age=40"
            )
        if not column:
            return value
        named[column] = value
    return named or 0.0


def _flag(model: Any, rows: Path, flags: Path, *, force: bool) -> None:
    """Write T², SPE and a flag for each row of a file, which is read here and nowhere else."""
    from fedpower.rows.columns import columns_of_fit  # noqa: PLC0415
    from fedpower.rows.opening import open_source  # noqa: PLC0415
    from fedpower.sums.kernel import block_rows  # noqa: PLC0415

    moment = model.moment_
    source = columns_of_fit(open_source(rows), moment.feature_names, moment.n_features)
    seen = beyond = 0
    with (
        new_file(flags, force=force, option="--flags") as place,
        place.open("w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["t2", "spe", "flag"])
        for block in source.blocks(block_rows(moment.n_features)):
            dense = block.toarray() if hasattr(block, "toarray") else block
            found = model.statistics(dense)
            marks = (found > [model.t2_limit_, model.spe_limit_]).any(axis=1)
            writer.writerows([*map(float, row), int(mark)] for row, mark in zip(found, marks, strict=True))
            seen, beyond = seen + len(marks), beyond + int(marks.sum())
    note(f"{beyond} of {seen} rows are beyond a limit; {flags} has them all (for your eyes)")


def _fill(model: Any, rows: Path, filled: Path, *, force: bool) -> None:
    """Write a prediction and its interval for each empty cell of a file, which is read here alone."""
    import numpy as np  # noqa: PLC0415

    from fedpower.rows.opening import open_source  # noqa: PLC0415
    from fedpower.rows.units import features_of  # noqa: PLC0415
    from fedpower.rules.ruled import match_tables  # noqa: PLC0415
    from fedpower.sums.kernel import block_rows  # noqa: PLC0415

    rules, items = model.moment_.record.table_rules, model.items_
    assert rules is not None, "a completion is of ratings, which have rules"
    _, found = match_tables({"rows": open_source(rows)}, rules)
    source: Any = features_of(found["rows"])
    block_size, form = block_rows(source.n_features), rules.long
    blocks = ((None, block) for block in source.blocks(block_size))
    if form is not None:
        blocks = source.labelled(form.person, block_size)
    seen = empty = 0
    with (
        new_file(filled, force=force, option="--filled") as place,
        place.open("w", encoding="utf-8", newline="") as out,
    ):
        writer = csv.writer(out, lineterminator="\n")
        writer.writerow(["row" if form is None else form.person, "item", "prediction", "low", "high"])
        for labels, block in blocks:
            cells = model.decoded(block)
            told = model.intervals(cells)
            for row, column in zip(*np.nonzero(np.isnan(cells)), strict=True):
                name = seen + row + 1 if labels is None else labels[int(row)]
                ends = (float(each[row, column]) for each in told)
                writer.writerow([name, items[column], *ends])
                empty += 1
            seen += len(cells)
    who = "rows" if form is None else "persons"
    note(f"{empty} empty cells of {seen} {who} are predicted in {filled} (for your eyes)")


_OF_ROWS: dict[str, tuple[str, Callable[..., None]]] = {
    "flags": ("their flags", _flag),
    "filled": ("what is predicted of them", _fill),
}
"""By option: what is told of new rows, and how."""


def show_account(
    told: Account, moment: Moment, output: Path | None, *, as_json: bool, said: str | None = None
) -> None:
    """Print what an analysis found, and what is promised: ``said``, where the moment was released now."""
    if as_json:
        kept = {} if output is None else {"folder": str(output)}
        print_json(
            {"analysis": told.kind, **kept, **told.facts, "privacy": moment.record.as_dict()["privacy"]}
        )
        return
    out = console()
    out.print(f"{told.title}{moment.record.without}.", soft_wrap=True)
    for each in told.tables:
        if each.printed:
            _print_table(each)
    for sentence in told.sentences:
        out.print(sentence, soft_wrap=True)
    promise = moment.privacy
    if promise.is_private and said is not None:
        out.print(f"\n{said}", soft_wrap=True)
    elif promise.is_private:
        out.print(
            "Computed from what was released: nothing was charged, and the promise is the moment's.",
            soft_wrap=True,
        )
    else:
        out.print(str(promise), soft_wrap=True, style="bold red")
    if output is not None:
        out.print(f"\nAnalysis: {output} (open {output / 'report.html'})", soft_wrap=True)


def _print_table(each: Table) -> None:
    numeric = tuple(
        heading
        for place, heading in enumerate(each.headings)
        if place and any(isinstance(row[place], float | int) for row in each.rows)
    )
    shown = table(each.title, *each.headings, numbers=numeric)
    for row in each.rows[:_MOST_ROWS]:
        shown.add_row(*(cell if isinstance(cell, str) else number(cell, 3) for cell in row))
    console().print(shown)
    if len(each.rows) > _MOST_ROWS:
        note(f"the first {_MOST_ROWS} of {len(each.rows)} rows are shown; -o writes all of them")
