"""`fedpower analyze`: analyses of the covariance that a fit released, which cost nothing more."""

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NamedTuple

import click
import numpy as np

from fedpower import analysis as analyses
from fedpower.cli import LazyGroup
from fedpower.cli.console import print_json, print_table, say
from fedpower.cli.options import PATH, declared, option, options, output
from fedpower.exceptions import InputError
from fedpower.files import new_file
from fedpower.report.covariance import Covariance, save_analysis
from fedpower.report.page import Account
from fedpower.report.result import covariance_of
from fedpower.report.text import number
from fedpower.rows.opening import open_source
from fedpower.rows.ruled import match_tables
from fedpower.rows.source import block_rows
from fedpower.rows.units import features_of
from fedpower.values import pl


def _command(name: str) -> click.Command:
    """Return the command of an analysis: it is made from the options, fitted, shown and kept."""
    _, class_name, line = analyses.ANALYSES[name]
    made, file = getattr(analyses, class_name), _OF_ROWS.get(name)

    def command(result: Path, output: Path | None, force: bool, as_json: bool, **given: Any) -> None:
        release = covariance_of(result)
        rows, written = given.pop("rows", None), given.pop("written", None)
        if file is not None and (rows is None) != (written is None):
            raise InputError(f"--rows and --{file.option} must go together, got one of them")
        model = made(**{name: value for name, value in given.items() if value is not None}).fit(release)
        account = model.account()
        if file is not None and rows is not None and written is not None:
            # first: where it fails, no folder is left behind
            with new_file(written, force=force) as target:
                table, sentence = file.of(model, rows)
                table.write_csv(target)
            say(f"{sentence}: {written}", err=True)
        if output is not None:
            save_analysis(account, release, output, force=force)
        _show(account, release, output, as_json=as_json)

    settings = {item.name: item.metadata["setting"] for item in fields(made)}
    of_rows = []
    if file is not None:
        of_rows.append(option("--rows FILE", file.rows))
        of_rows.append(option(f"--{file.option} CSV", file.help, PATH, name="written"))
    wanted = options(
        "RESULT",
        *(declared(parameter, spec) for parameter, spec in settings.items() if spec.option is not None),
        *of_rows,
        output(help="Folder for tables, JSON and a report."),
        "force as_json quiet",
    )
    return click.command(name, help=line)(wanted(command))


@click.group(cls=LazyGroup, listing={"Commands": analyses.ANALYSES}, load=_command)
def analyze() -> None:
    """Compute more from a RESULT of `fedpower fit`, at no further cost in privacy.

    A fit keeps its private covariance. An analysis reads that covariance and no rows, and charges no
    ledger.

    Example: fedpower analyze factor result -k 3
    """


# --- files about new rows --------------------------------------------------------------------------


def _flag(model: Any, rows: Path) -> tuple["pl.DataFrame", str]:
    """Return T², SPE and a flag for each row of a file, which is read here and nowhere else."""
    release, limits = model.release_, {"t2": model.t2_limit_, "spe": model.spe_limit_}
    source = release.matched(open_source(rows))
    blocks = source.blocks(block_rows(release.n_features))
    parts = [model.statistics(block.toarray() if hasattr(block, "toarray") else block) for block in blocks]
    beyond = pl.any_horizontal(pl.col(name) > limit for name, limit in limits.items())
    table = pl.DataFrame(np.vstack(parts), [*limits]).with_columns(beyond.cast(pl.Int8).alias("flag"))
    return table, f"{table['flag'].sum()} of {len(table)} rows exceed a limit"


def _fill(model: Any, rows: Path) -> tuple["pl.DataFrame", str]:
    """Return a prediction and its interval for each empty cell of a file, which is read nowhere else."""
    rules, items = model.release_.record.table_rules, model.items_
    assert rules is not None, "a completion is of ratings, which have rules"
    _, matched = match_tables({"rows": open_source(rows)}, rules)
    source: Any = features_of(matched["rows"])
    block_size, person = block_rows(source.n_features), rules.long and rules.long[0].column
    if person is None:
        blocks = ((None, block) for block in source.blocks(block_size))
    else:
        blocks = source.labelled(person, block_size)
    seen, filled = 0, []
    for labels, block in blocks:
        cells = model.decoded(block)
        intervals = model.intervals(cells)
        for row, column in zip(*np.nonzero(np.isnan(cells)), strict=True):
            name = seen + row + 1 if labels is None else labels[int(row)]
            filled.append((name, items[column], *(float(values[row, column]) for values in intervals)))
        seen += len(cells)
    thing, things = ("row", "rows") if person is None else (person, "persons")
    table = pl.DataFrame(filled, [thing, "item", "prediction", "low", "high"], orient="row")
    return table, f"Predicted {len(table)} empty cells of {seen} {things}"


class _RowFile(NamedTuple):
    """A file about new rows that an analysis writes: its options, and what is in it."""

    option: str
    rows: str
    help: str
    of: Callable[[Any, Path], tuple["pl.DataFrame", str]]


_OF_ROWS = {  # by analysis
    "monitor": _RowFile("flags", "New rows to check.", "Write a flag for each of these rows.", _flag),
    "complete": _RowFile("filled", "New rows to complete.", "Write predictions of their empty cells.", _fill),
}


# --- output ----------------------------------------------------------------------------------------


def _show(account: Account, release: Covariance, output: Path | None, *, as_json: bool) -> None:
    """Print an analysis, and what is promised."""
    if as_json:
        kept = {} if output is None else {"folder": str(output)}
        privacy = release.record.as_dict()["privacy"]
        print_json({"analysis": account.kind, **kept, **account.facts, "privacy": privacy})
        return
    say(f"{account.title}{release.record.without}.")
    for shown in account.tables:
        if shown.n_printed:
            headings = tuple(shown.columns)
            numeric = [
                heading
                for heading in headings[1:]
                if any(isinstance(cell, float | int) for cell in shown.columns[heading])
            ]
            rows = [
                [cell if isinstance(cell, str) else number(cell, 3) for cell in row]
                for row in shown.rows[: shown.n_printed]
            ]
            print_table(shown.title, headings, rows, numbers=numeric)
            if (left := len(shown.rows) - shown.n_printed) > 0:
                say(f"  and {left} more rows, which -o writes to {shown.file}")
    say(*account.sentences)
    is_private = release.privacy.is_private
    say(f"{release.privacy.brief}{' No further cost.' if is_private else ''}", alarming=not is_private)
    if output is not None:
        say(f"Report: {output / 'report.html'}")
