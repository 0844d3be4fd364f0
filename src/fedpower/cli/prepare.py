"""`fedpower prepare`: the code book of files' columns, found privately."""

from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import console, note, print_json, table
from fedpower.cli.fit import prepare_options
from fedpower.cli.options import Command, reading_of
from fedpower.cli.progress import progress_of_fit
from fedpower.cli.silos import find_ledgers, open_silos, tell_doubts
from fedpower.estimator import FedPCA
from fedpower.report.codebook_file import read_code_book, rendered
from fedpower.report.files import new_file
from fedpower.report.record import plain
from fedpower.report.text import number
from fedpower.rules.codebook import CodeBook


@click.command(
    cls=Command, epilog="Example: fedpower prepare north.csv south.csv --epsilon 1 -o codebook.toml"
)
@prepare_options
def prepare(**options: Any) -> None:
    """Find offset, scale and bound of the columns of FILES privately, and write them to a code book.

    --epsilon is that of the fit that this is a part of: preparation takes a fifth of it at most, and the
    code book says how much. Fits that are given the code book (--codebook) do not pay for it again.
    """
    silos = open_silos(
        options["files"], columns=options["columns"], drop=options["drop"], **reading_of(options)
    )
    ledgers = find_ledgers(list(silos), folder=options["ledgers"], named=options["named_ledgers"])
    taken = ["delta", "ranges", "extra_columns", "codebook", "unit", "rows_per_unit"]
    taken += ["aggregation", "colluders"]
    given = {name: options[name] for name in taken if options[name]}
    book = options["codebook"] and read_code_book(options["codebook"])
    tell_doubts(silos, book.table_rules if book else None, options["unit"])
    model = FedPCA(1, epsilon=options["epsilon"], **given)
    with new_file(options["output"], force=options["force"]) as place:
        with progress_of_fit(silos, None) as show:
            book = model.prepare_silos(
                silos,
                ledgers=ledgers,
                data_version=options["data_version"],
                data_set=options["data_set"],
                identities=options["identities"],
                on_round=None if show is None else show.round,
                on_rows=None if show is None else show.rows,
            )
        place.write_text(rendered(book), encoding="utf-8")
    if options["as_json"]:
        print_json({"codebook": str(options["output"]), **_facts(book)})
    else:
        _print(book, options["output"])
    if ledgers is None:
        note("no ledger was given, so what this preparation spent is on no record; see --ledgers")


def _facts(book: CodeBook) -> dict[str, Any]:
    names = ("columns", "offset", "scale", "low", "high", "bound", "found", "epsilon", "delta")
    return {name: plain(getattr(book, name)) for name in names}


def _print(book: CodeBook, output: Path) -> None:
    out = console()
    names = book.columns or tuple(f"x{place}" for place in range(book.offset.size))
    numeric = ("from", "to", "offset", "scale")
    shown = table("Code book", "column", *numeric, "how it was found", numbers=numeric)
    for place, name in enumerate(names):
        numbers = (values_[place] for values_ in (book.low, book.high, book.offset, book.scale))
        shown.add_row(name, *(number(float(each)) for each in numbers), book.found[place])
    out.print(shown)
    out.print(
        f"Rows so centred and scaled are shortened to norm {number(book.bound)}. Finding this cost each "
        f"silo epsilon={book.epsilon:.3g} at delta={book.delta:g}, once.",
        soft_wrap=True,
    )
    click.echo(f"wrote {output}: it is public; give it to fits with --codebook")
