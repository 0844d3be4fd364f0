"""`fedpower derive`: analyses of a released moment, which cost nothing more."""

import csv
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import click

from fedpower import analyses
from fedpower.cli import values
from fedpower.cli.console import console, note, print_json, table
from fedpower.cli.paths import MOMENT, PATH
from fedpower.errors import InputError
from fedpower.report.files import new_file
from fedpower.report.moment import Moment, read_moment, save_analysis
from fedpower.report.page import Account, Table
from fedpower.report.text import number

_MOST_ROWS = 30


class _Analyses(click.Group):
    """The registry of analyses as commands, each imported when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of all analyses."""
        return list(analyses.ANALYSES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command of an analysis; None where there is none of that name."""
        return _command(cmd_name) if cmd_name in analyses.ANALYSES else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the listing from the registry, without importing an analysis."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, line) for name, (_, _, line) in analyses.ANALYSES.items()])


@click.group(cls=_Analyses)
@click.argument("moment", type=MOMENT)
@click.pass_context
def derive(ctx: click.Context, moment: Path) -> None:
    """Compute from the released MOMENT, a folder of `fedpower release` or of a fit that kept it.

    Nothing is charged and no row is read: everything computed keeps the promise that the moment was
    released under. Example: fedpower derive moment factor -k 3
    """
    ctx.obj = moment


def _command(name: str) -> click.Command:
    """Return the command of an analysis: it is made from the options, fitted, shown and kept."""
    _, class_name, line = analyses.ANALYSES[name]
    made = getattr(analyses, class_name)

    @click.pass_obj
    def command(place: Path, /, output: Path | None, force: bool, as_json: bool, **options: Any) -> None:
        moment = read_moment(place)
        rows = options.pop("rows", None)
        files = {key: options.pop(key) for key in _OF_ROWS if key in options}
        for key, file in files.items():
            if (rows is None) != (file is None):
                raise InputError(
                    f"--rows and --{key} must go together, got one of them; name the rows and a CSV file for "
                    f"{_OF_ROWS[key].contents}"
                )
        model = made.from_options(**options).fit(moment)
        account = model.account()
        for key, file in files.items():  # first: where it fails, no folder is left behind
            if file is not None:
                _OF_ROWS[key].write(model, rows, file, force=force)
        if output is not None:
            save_analysis(account, moment, output, force=force)
        show_account(account, moment, output, as_json=as_json)

    return click.Command(name, callback=command, params=_parameters(name, made.options), help=line)


def _parameters(name: str, options: Any) -> list[click.Parameter]:
    """Return the options of an analysis, those for new rows where it has them, and where output goes."""
    params = [_option(option) for option in options]
    for key, file in _OF_ROWS.items():
        if file.analysis == name:
            params.append(click.Option(["--rows"], type=PATH, metavar="FILE", help=file.rows))
            params.append(click.Option([f"--{key}"], type=PATH, metavar="CSV", help=file.help))
    return [
        *params,
        click.Option(["-o", "--output"], type=PATH, help="Folder for tables, JSON and a page."),
        click.Option(["--force"], is_flag=True, help="Replace an earlier analysis in that folder."),
        click.Option(["--json", "as_json"], is_flag=True, help="Print one JSON object."),
    ]


def _option(option: Any) -> click.Option:
    words: dict[str, Any] = {"help": option.help, "required": option.required, "metavar": option.metavar}
    if option.choices:
        words["type"] = click.Choice(option.choices)
    elif option.type is list:
        words["callback"] = values.names
    elif option.type is not bool:
        words["type"] = PATH if option.type is Path else option.type
    if option.multiple:
        words["multiple"] = True
    elif option.default is not None:
        words |= {"default": option.default, "show_default": option.type is not bool}
    return click.Option([*option.flags.split(), option.parameter], **words)


def _flag(model: Any, rows: Path, flags: Path, *, force: bool) -> None:
    """Write T², SPE and a flag for each row of a file, which is read here and nowhere else."""
    from fedpower.rows.columns import columns_of_fit  # noqa: PLC0415
    from fedpower.rows.opening import open_source  # noqa: PLC0415
    from fedpower.sums.kernel import block_rows  # noqa: PLC0415

    moment = model.moment_
    source = columns_of_fit(open_source(rows), moment.feature_names, moment.n_features)
    seen = beyond = 0
    with new_file(flags, force=force) as place, place.open("w", encoding="utf-8", newline="") as out:
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
    with new_file(filled, force=force) as place, place.open("w", encoding="utf-8", newline="") as out:
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


class _RowFile(NamedTuple):
    """A file about new rows that an analysis writes: its words on the command line, and what writes it."""

    analysis: str
    rows: str
    help: str
    contents: str
    write: Callable[..., None]


_OF_ROWS = {
    "flags": _RowFile("monitor", "New rows to flag, here and now.",
                      "Where their flags go; needs --rows.", "their flags", _flag),
    "filled": _RowFile("complete", "New rows to complete, here and now.",
                       "Where predictions of their empty cells go; needs --rows.",
                       "what is predicted of them", _fill),
}  # fmt: skip
"""By option."""


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
