"""`fedpower fit`: silos in, a result folder or a code book out."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click
import numpy as np
from msgspec import structs

from fedpower.cli.console import FitProgress, bars, note, print_json, print_table, say
from fedpower.cli.options import READING, Command, given_options, option, options, output
from fedpower.cli.results import print_result
from fedpower.cli.silos import find_ledgers, named_files, note_doubts, open_networks, open_silos, read_vector
from fedpower.engines.inprocess import Run
from fedpower.estimator.fit_warnings import RepeatedFitWarning
from fedpower.estimator.fitting import Data, fit_data, open_data, prepare_data
from fedpower.exceptions import InputError, NoiseWarning
from fedpower.files import new_file, new_folder, require_room
from fedpower.options import FLAT, Options, Secure, from_flat
from fedpower.privacy import Ledger
from fedpower.report.record import CODE_BOOK, BudgetRecord, plain
from fedpower.report.result import KNOWN
from fedpower.report.text import number
from fedpower.rows.opening import open_source
from fedpower.rows.plink import VariantList, read_variants
from fedpower.rows.source import RowSource
from fedpower.rules.codebook import CodeBook, rendered

_OF_A_FIT = " ".join(
    name
    for name, spec in FLAT.items()
    if spec.option is not None and name not in ("n_components", "epsilon", "unit", "aggregation")
)


@click.command(cls=Command, epilog="Example: fedpower fit north.csv south.csv east.csv --epsilon 1 -o result")
@options(
    "files n_components epsilon",
    output(help="Folder for the result; `result` by default."),
    "force ledgers unit codebook ranges columns drop aggregation as_json quiet",
    option("--prepare-only", "Only find offsets, scales and bound, and write a code book.", group="rows"),
    f"center_file scale_file variants n_features groups extra_columns {READING}",
    "nodes data_version data_set identities verbose",
    _OF_A_FIT,
)  # fmt: skip
@click.pass_context
def fit(ctx: click.Context, /, **given: Any) -> None:
    """Compute the principal components of several silos, with differential privacy.

    Each FILE holds the rows of one silo. Its name up to the first dot names the silo; NAME=PATH gives
    another name. A folder, or a quoted pattern, is one silo in parts. A .toml file describes a database
    query.

    The fit also estimates a scale and bound for every column, within the same epsilon. With --row-norm,
    --normalize or --codebook it uses yours. `fedpower analyze` computes more from the result at no cost.
    """
    started = datetime.now(UTC)
    if given["prepare_only"]:
        _prepare(given)
        return
    flat, variants = _checked(given)
    target = given["output"] or Path("result")
    with new_folder(target, known=KNOWN, force=given["force"]) as place:
        data, wanted = _opened(given, flat, variants)
        require_room(target, data.n_features)
        with _running(given, data, wanted) as run:
            result = fit_data(wanted, data, run)
            silos = [
                structs.replace(silo, **_origin(given, data.sources[silo.name], silo.name, run))
                for silo in result.record.silos
            ]
            result = result.with_record(command=ctx.find_root().obj, silos=silos, started=started.isoformat())
            result.write_into(place)
            if given["drop"] and (book := result.code_book) is not None:
                (place / CODE_BOOK).write_text(_book_text(book, given["drop"]), encoding="utf-8")
    print_result(result, target, verbose=given["verbose"], as_json=given["as_json"])
    if given["as_json"] and not result.privacy.is_private:
        note(result.privacy.brief)


def _prepare(given: dict[str, Any]) -> None:
    """Find offset, scale and bound of the columns privately, and write them to a code book."""
    path = given["output"] or Path("codebook.toml")
    wanted = from_flat({**given_options(given), "n_components": 1})
    data = open_data(open_silos(given), wanted, given["extra_columns"])
    note_doubts(data.sources)
    with new_file(path, force=given["force"]) as place, _running(given, data, wanted) as run:
        book = prepare_data(wanted, data, run)
        place.write_text(_book_text(book, given["drop"]), encoding="utf-8")
    if given["as_json"]:
        names = ("columns", "offset", "scale", "low", "high", "bound", "found", "epsilon", "delta")
        print_json({"codebook": str(path), **{name: plain(getattr(book, name)) for name in names}})
    else:
        _print_book(book, path)
    if not given["ledgers"]:
        note("no ledger recorded what this preparation spent; see --ledger")


def _book_text(book: CodeBook, dropped: tuple[str, ...]) -> str:
    """Return the text of a code book that also drops the columns that the command drops."""
    rules = {} if book.rules is None else book.rules.as_content()
    return rendered(replace(book, rules={**rules, **dict.fromkeys(dropped, "drop")}) if dropped else book)


# --- from words to a result ------------------------------------------------------------------------


def _opened(
    given: dict[str, Any], flat: dict[str, Any], variants: VariantList | None
) -> tuple[Data, Options]:
    """Return the rows of a fit and its options; report what may be odd about the rows."""
    if given["network"] is not None:
        wanted = from_flat({"noise": "covariance", "solver": "upload", **flat})
        return open_data(open_networks(given), wanted), wanted
    listed = None
    if variants is not None:  # of the first file, where the list names no alleles
        listed = variants.columns(open_source(next(iter(named_files(given["files"]).values()))))
    silos = open_silos(given, columns=listed)
    files = {"offset": given["center_file"], "scale": given["scale_file"]}
    if any(files.values()):
        columns = open_data(silos, from_flat(flat), given["extra_columns"]).columns
        flat |= {name: read_vector(path, columns) for name, path in files.items() if path is not None}
    if variants is not None and variants.offset is not None:
        flat |= {"offset": variants.offset, "scale": variants.scale}
    wanted = from_flat(flat)
    data = open_data(silos, wanted, given["extra_columns"])
    note_doubts(data.sources)
    unused = {**data.unused, **dict.fromkeys(given["drop"], "--drop")}
    return replace(data, unused=unused), wanted


def _checked(given: dict[str, Any]) -> tuple[dict[str, Any], VariantList | None]:
    """Return the options of a fit and its variants; refuse contradictions before any rows are read."""
    flat, variants = given_options(given), None
    wanted = from_flat(flat)
    public = [given["center_file"], given["scale_file"]]
    if given["variants"] is not None:
        variants = read_variants(given["variants"])
        public.append(variants.offset)
        for name in ("columns", "groups", "center_file", "scale_file", "codebook"):
            if given[name]:
                raise InputError(f"--variants must go without --{name.replace('_', '-')}, got both")
    finds = wanted.prepares and all(values is None for values in public)
    bounded = wanted.book is not None or wanted.public.row_norm is not None or wanted.public.normalize
    if wanted.is_private and not (bounded or finds or wanted.network):
        raise InputError(
            "--row-norm, --normalize or --codebook must be given with centres, scales or settings of "
            "a solver, got none; leave all of these out to find a bound privately"
        )
    if given["ledgers"] and not wanted.is_private:
        raise InputError("--ledger must go with a finite epsilon, got --epsilon inf, which charges nothing")
    return flat, variants


@contextmanager
def _running(given: Mapping[str, Any], data: Data, wanted: Options) -> Iterator[Run]:
    """Give how silos are fitted: with their ledgers, a progress bar, and a sentence for Ctrl-C."""
    ledgers = find_ledgers(list(data.sources), given)
    clipped = None if wanted.network else partial(_note_clipped, given["row_norm"])
    try:
        with bars() as shown, warnings.catch_warnings():
            n_steps = getattr(wanted.solver, "n_steps", None)
            show = None if shown is None else FitProgress(shown, data.sources, n_steps)
            for category in (NoiseWarning, RepeatedFitWarning):  # the output contains them
                warnings.simplefilter("ignore", category)
            yield Run(
                ledgers=ledgers,
                data_version=given["data_version"],
                data_set=given["data_set"],
                identities=given["identities"],
                on_round=None if show is None else show.round,
                on_rows=None if show is None else show.rows,
                on_clipped=clipped,
            )
    except KeyboardInterrupt:
        if ledgers is None:
            charged = "run the same command again to start over"
        elif isinstance(wanted.aggregation, Secure):
            charged = "what was charged stays charged, and a secure sum is charged again"
        else:
            charged = "run the same command again: nothing that was charged is charged again"
        raise click.Abort(f"interrupted, so no result was written; {charged}") from None


def _origin(given: Mapping[str, Any], silo: RowSource, name: str, run: Run) -> dict[str, Any]:
    """Return where a silo's rows are and what its ledger says: one operator holds all of them here."""
    source = given["files"][0] if given["groups"] else silo.name
    if not isinstance(run.ledgers, Mapping):
        return {"source": source}
    with Ledger.open(run.ledgers[name]) as ledger:
        account = ledger.spent()
    budget = BudgetRecord(
        spent=account.epsilon if math.isfinite(account.epsilon) else None,
        left=account.left,
        cap=account.cap,
        delta=account.delta,
        used=account.share_used,
    )
    return {"source": source, "budget": budget}


# --- output ----------------------------------------------------------------------------------------


def _note_clipped(row_norm: float | None, counts: dict[str, tuple[int, int]]) -> None:
    """Report to the operator that the bound does not fit the rows; no result keeps it."""
    share = sum(count for count, _ in counts.values()) / sum(rows for _, rows in counts.values())
    if row_norm is not None and share > _MANY:
        note(
            f"{share:.0%} of the rows exceed --row-norm {row_norm:g} and are clipped; give a larger bound, "
            "or leave it out to have one found"
        )


_MANY = 0.1  # of the rows: a bound that clips more of them hardly fits


def _print_book(book: CodeBook, path: Path) -> None:
    names = book.columns or tuple(f"x{place}" for place in range(book.low.size))
    numeric = ("from", "to", "offset", "scale")
    numbers = np.column_stack([book.low, book.high, book.offset, book.scale]).tolist()
    rows = [
        (name, *map(number, cells), how) for name, cells, how in zip(names, numbers, book.found, strict=True)
    ]
    print_table(None, ("column", *numeric, "how it was found"), rows, numbers=numeric)
    say(
        f"Rows are bounded at norm {number(book.bound)} after that. Each silo spent ε = {book.epsilon:.3g}.",
        f"Code book: {path}. It is public; later fits use it with --codebook and do not spend this again.",
    )
