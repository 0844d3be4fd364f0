"""`fedpower fit`, `fedpower release` and `fedpower prepare`: files in, a folder or a code book out."""

import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedpower.cli import values
from fedpower.cli.budget import share_used
from fedpower.cli.console import MOST_NAMES, console, note, print_json, print_result, table
from fedpower.cli.findings import print_findings
from fedpower.cli.options import (
    EXTRA,
    Command,
    declared,
    given_options,
    option,
    parameter,
    reading_of,
    reading_options,
    verbose_option,
)
from fedpower.cli.paths import PATH, any_file
from fedpower.cli.progress import progress_of_fit, quiet_option
from fedpower.cli.silos import (
    Silos,
    agreed_columns,
    find_ledgers,
    listed_columns,
    note_doubts,
    open_silos,
    read_vector,
    require_charge,
)
from fedpower.errors import InputError
from fedpower.estimator.fit_warnings import NoiseWarning, RepeatedFitWarning
from fedpower.estimator.fitting import Run, fit_silos
from fedpower.estimator.fitting import prepare as prepare_silos
from fedpower.estimator.moments import release_options as as_release
from fedpower.estimator.moments import released_moment
from fedpower.estimator.terms import PRIVATE_STEPS, prepares
from fedpower.options import FLAT, Iterative, Options, Secure, from_flat
from fedpower.privacy import Ledger
from fedpower.privacy.statement import counted_as
from fedpower.report.codebook_file import rendered
from fedpower.report.files import new_file, new_folder, require_room, room_for
from fedpower.report.moment import RELEASED, Moment, write_release
from fedpower.report.record import plain
from fedpower.report.result import KNOWN, Result, write_files
from fedpower.report.text import human_bytes, number
from fedpower.rows.plink import read_variants
from fedpower.rows.source import RowSource
from fedpower.rules.codebook import CodeBook

LEDGERS = (
    option("--ledgers", group="main", type=PATH, metavar="FOLDER",
           help="Folder with a SILO.ledger for every silo."),
    option("--ledger", "named_ledgers", group="privacy", callback=values.named_paths,
           multiple=True, metavar="NAME=PATH", help="A silo's ledger; repeatable."),
    option("--data-version", group="privacy", callback=values.versions, multiple=True,
           metavar="[NAME=]VERSION",
           help="What the ledgers call these rows: public; a new one is a new charge. 1 by default."),
    option("--data-set", group="privacy", metavar="NAME",
           help="The data set that the ledgers are for."),
)  # fmt: skip
IDENTITY = option(
    "--identity", "identities", group="privacy", callback=values.named_paths,
    multiple=True, metavar="NAME=PATH",
    help="A silo's key for secure sums; repeatable. Made for the fit unless given.",
)  # fmt: skip
_FILES = click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=any_file)
_COMMON = (
    option("--drop", group="main", multiple=True, metavar="COLUMN",
           help="Leave a column out; repeatable."),
    *LEDGERS,
    IDENTITY,
    option("--columns", group="rows", callback=values.names, metavar="A,B,...",
           help="Use these columns and no others; where columns have no names (.npy), name them."),
    EXTRA,
    option("--json", "as_json", group="main", is_flag=True,
           help="Print one JSON object instead of tables."),
    reading_options,
    option("--range", "ranges", group="main", callback=values.ranges, multiple=True,
           metavar="COLUMN=LOW:HIGH", help="What a column's cells lie between; repeatable."),
    option("--codebook", group="main", type=PATH, metavar="FILE",
           help="Code book: rules of columns; offsets, scales, ranges and bound where it has them."),
    quiet_option,
)  # fmt: skip
_NUMBERS = (
    option("--center-file", group="main", type=PATH, metavar="FILE",
           help="Public numbers to take off the columns first: name,value lines, or .npy."),
    option("--scale-file", group="main", type=PATH, metavar="FILE",
           help="Public divisors of columns: name,value lines, or .npy."),
    option("--variants", group="main", type=PATH, metavar="FILE",
           help="Public variants of .bed files: ids, or .afreq, whose p gives 2p and the usual scaling."),
    option("--n-features", group="rows", type=int, help="Number of columns of svmlight files."),
    option("--groups", group="rows", metavar="COLUMN",
           help="One file; this column names each row's silo."),
)  # fmt: skip
"""Public numbers about columns, and how rows are found in files."""

_FIRST = ("epsilon", "row_norm", "unit")
_OF_A_RELEASE = ("delta", "center", "normalize", "rows_per_unit", "weights", "colluders", "aggregation",
                 "min_silos", "deadline", "device", "n_jobs")  # fmt: skip
_OF_A_PREPARATION = ("unit", "rows_per_unit", "delta", "aggregation", "colluders")


def _output(default: str, what: str, replaced: str) -> tuple[Any, ...]:
    return (
        option(
            "-o", "--output", group="main", type=PATH, default=Path(default), show_default=True, help=what
        ),
        option("--force", group="main", is_flag=True, help=f"Replace {replaced}."),
    )


@click.command(cls=Command, epilog="Example: fedpower fit north.csv south.parquet -k 4 --epsilon 1")
@declared(
    (
        _FILES,
        parameter("n_components"),
        *map(parameter, _FIRST),
        *_output("result", "Folder for the result.", "an earlier result in that folder"),
        verbose_option,
        *_NUMBERS,
        *_COMMON,
        *(
            parameter(name)
            for name, each in FLAT.items()
            if each.option is not None and name not in (*_FIRST, "n_components")
        ),
    )
)
@click.pass_context
def fit(ctx: click.Context, /, **given: Any) -> None:
    """Compute the principal components of FILES, each a silo whose rows are not pooled.

    A silo is called by its file's name up to the first dot; write NAME=PATH to call it otherwise. A
    folder, or a pattern in quotes, is one silo in parts; a .toml file names a query on a database
    (docs/data.md).
    --epsilon is each silo's privacy budget for this fit: 1 is usual, inf is exact and NOT private.
    Offset, scale and bound of the columns are found privately out of it, unless --row-norm, --normalize
    or --codebook gives them.
    """
    started = datetime.now(UTC)
    _check_promise(given)
    with new_folder(given["output"], known=KNOWN, force=given["force"]) as place:
        silos, options = silos_and_options(given)
        ledgers = find_ledgers(list(silos), folder=given["ledgers"], named=given["named_ledgers"])
        origins: dict[str, dict[str, Any]] = {name: _origin(silos[name], given) for name in silos}
        with _explaining_interrupts(options, ledgers):
            with running(silos, ledgers, given, steps=_steps(options)) as run, warnings.catch_warnings():
                for category in (NoiseWarning, RepeatedFitWarning):  # the output says it
                    warnings.simplefilter("ignore", category)
                fitted = fit_silos(options, silos, run, extra_columns=given["extra_columns"])
            for name, ledger in (ledgers or {}).items():
                origins[name]["budget"] = _budget(ledger)
            result = fitted.result.with_origin(command=ctx.find_root().obj, silos=origins, started=started)
            write_files(place, result)
    if given["as_json"]:
        print_json({"result": str(given["output"]), **result.run, **_numbers(result)})
    else:
        _print_result(result, given["output"], verbose=given["verbose"])
    if result.privacy.is_private:
        note_uncharged("fit", ledgers)
    elif given["as_json"]:
        note(str(result.privacy))


@click.command(cls=Command, epilog="Example: fedpower release north.csv south.csv --epsilon 1 -o moment")
@declared(
    (
        _FILES,
        *map(parameter, _FIRST),
        *_output("moment", "Folder for the covariance.", "an earlier one there"),
        *_NUMBERS,
        *_COMMON,
        *map(parameter, _OF_A_RELEASE),
    )
)
@click.pass_context
def release(ctx: click.Context, /, **given: Any) -> None:
    """Release the pooled covariance of FILES, each a silo: paid for once, analysed at no further cost.

    It costs what a fit costs, charged to the same ledgers under the same name. `fedpower derive` then
    computes whatever is wanted from the folder, which may be published under its statement. Files are named
    as for `fedpower fit`.
    """
    started = datetime.now(UTC)
    _check_promise(given)
    with new_folder(given["output"], known=RELEASED, force=given["force"]) as place:
        silos, options = silos_and_options(given)
        ledgers = find_ledgers(list(silos), folder=given["ledgers"], named=given["named_ledgers"])
        with running(silos, ledgers, given) as run, warnings.catch_warnings():
            warnings.simplefilter("ignore", NoiseWarning)
            fitted = fit_silos(as_release(options), silos, run, extra_columns=given["extra_columns"])
        moment = released_moment(fitted.result)
        origins = {name: _origin(silos[name], given) for name in silos}
        moment = moment.with_origin(command=ctx.find_root().obj, silos=origins, started=started)
        write_release(place, moment)
    if given["as_json"]:
        statement = {"silos": moment.silo_sizes, "privacy": moment.record.as_dict()["privacy"]}
        print_json({"moment": str(given["output"]), **plain(moment.account().facts), **statement})
    else:
        _print_moment(moment, given["output"])
    if moment.privacy.is_private:
        note_uncharged("release", ledgers)


@click.command(
    cls=Command, epilog="Example: fedpower prepare north.csv south.csv --epsilon 1 -o codebook.toml"
)
@declared(
    (
        _FILES,
        parameter("epsilon"),
        *_output("codebook.toml", "The code book.", "that file"),
        *_COMMON,
        *map(parameter, _OF_A_PREPARATION),
    )
)
def prepare(**given: Any) -> None:
    """Find offset, scale and bound of the columns of FILES privately, and write them to a code book.

    --epsilon is that of the fit that this is a part of: preparation takes a fifth of it at most, and the
    code book records how much. Fits that are given the code book (--codebook) do not pay for it again.
    """
    silos = open_silos(given["files"], columns=given["columns"], drop=given["drop"], **reading_of(given))
    ledgers = find_ledgers(list(silos), folder=given["ledgers"], named=given["named_ledgers"])
    options = from_flat({**given_options(given), "n_components": 1})
    note_doubts(silos, options)
    with new_file(given["output"], force=given["force"]) as place:
        with running(silos, ledgers, given) as run:
            book = prepare_silos(options, silos, run, extra_columns=given["extra_columns"])
        place.write_text(rendered(book), encoding="utf-8")
    if given["as_json"]:
        names = ("columns", "offset", "scale", "low", "high", "bound", "found", "epsilon", "delta")
        facts = {name: plain(getattr(book, name)) for name in names}
        print_json({"codebook": str(given["output"]), **facts})
    else:
        _print_book(book, given["output"])
    note_uncharged("preparation", ledgers)


# --- from words to options -------------------------------------------------------------------------


def silos_and_options(given: dict[str, Any]) -> tuple[Silos, Options]:
    """Return the silos of a fit or a release and its options; report doubtful columns."""
    listed = None if given["variants"] is None else read_variants(given["variants"])
    columns = given["columns"] if listed is None else listed_columns(given["files"], listed)
    silos = open_silos(
        given["files"],
        groups=given["groups"],
        columns=columns,
        drop=given["drop"],
        n_features=given["n_features"],
        **reading_of(given),
    )
    flat = given_options(given)
    files = {"offset": given["center_file"], "scale": given["scale_file"]}
    if any(files.values()):
        columns = agreed_columns(silos, given["extra_columns"], from_flat(flat))
        flat |= {name: read_vector(path, columns) for name, path in files.items() if path is not None}
    if listed is not None and listed.offset is not None:
        flat |= {"offset": listed.offset, "scale": listed.scale}
    options = from_flat(flat)
    width = note_doubts(silos, options)
    require_room(given["output"], room_for(width, moment=True))
    return silos, options


def _check_promise(given: dict[str, Any]) -> None:
    """Refuse options that contradict each other about privacy, before anything is read."""
    if given["variants"] is not None:
        names = ("columns", "groups", "center_file", "scale_file", "codebook")
        odd = [name for name in names if given[name]]
        if odd:
            raise InputError(
                f"--variants must go without --{odd[0].replace('_', '-')}: it says which columns there are "
                "and what is done to them; leave one of them out"
            )
    options = from_flat(given_options(given))
    files = [given["center_file"], given["scale_file"]]
    if given["variants"] is not None:
        files.append(read_variants(given["variants"]).offset)
    finds = prepares(options) and all(each is None for each in files)
    bounded = options.book is not None or options.public.row_norm is not None or options.public.normalize
    if options.is_private and not bounded and not finds:
        raise InputError(
            f"a fit with epsilon={options.epsilon:g} that is given centres, scales or settings of its own "
            "must "
            "have a public bound on the norm of a row, got none; give --row-norm B, --normalize or "
            "--codebook, "
            "or leave all of them out to have them found privately"
        )
    require_charge(given)


@contextmanager
def running(
    silos: Mapping[str, Any],
    ledgers: dict[str, Path] | None,
    given: Mapping[str, Any],
    steps: int | None = None,
) -> Iterator[Run]:
    """Give how a fit runs, with a bar that shows how far it is."""
    with progress_of_fit(silos, steps) as show:
        yield Run(
            ledgers=ledgers,
            data_version=given["data_version"],
            data_set=given["data_set"],
            identities=given["identities"],
            on_round=None if show is None else show.round,
            on_rows=None if show is None else show.rows,
            on_clipped=partial(_note_clipped, given["row_norm"]) if "row_norm" in given else None,
        )


@contextmanager
def _explaining_interrupts(options: Options, ledgers: dict[str, Path] | None) -> Iterator[None]:
    """Turn Ctrl-C into a sentence about what was charged, and what the same command would charge."""
    try:
        yield
    except KeyboardInterrupt:
        if ledgers is None:
            charged = "run the same command again to start over"
        elif isinstance(options.aggregation, Secure):
            charged = (
                "what was charged stays charged, and a secure sum is charged again: see `fedpower budget`"
            )
        else:
            charged = "run the same command again: nothing that was charged is charged again"
        raise click.Abort(f"interrupted, so no result was written; {charged}") from None


def _steps(options: Options) -> int | None:
    """Return how many steps there will be, where that is known beforehand."""
    given = options.solver.n_steps if isinstance(options.solver, Iterative) else None
    noised = options.is_private and options.noise.kind in ("step", "paper")
    return PRIVATE_STEPS if noised and given is None else given


def _origin(silo: Path | RowSource, given: dict[str, Any]) -> dict[str, Any]:
    """Return where a silo's rows are, for the record."""
    if given["groups"]:
        return {"source": given["files"][0]}
    return {"source": str(silo) if isinstance(silo, Path) else silo.name}


def _budget(path: Path) -> dict[str, Any]:
    """Return what a ledger says after the fit, for the record: here one operator holds all of them."""
    with Ledger.open(path) as ledger:
        account = ledger.statement()
    return {
        "spent": account["spent"]["epsilon"],
        "left": account["left"],
        "cap": account["cap"]["epsilon"],
        "delta": account["cap"]["delta"],
        "used": share_used(account),
    }


# --- output ----------------------------------------------------------------------------------------


def note_uncharged(what: str, ledgers: Any) -> None:
    """Print a remark where nothing records what was spent."""
    if ledgers is None:
        note(f"no ledger was given, so what this {what} spent is on no record; see --ledgers")


def _note_clipped(row_norm: float | None, counts: dict[str, tuple[int, int]]) -> None:
    """Tell the operator what the bound did to the rows; no result keeps it."""
    total = sum(rows for _, rows in counts.values())
    if row_norm is None:  # a code book's bound is where clipping and noise balance
        share = sum(count for count, _ in counts.values()) / total
        note(f"{share:.0%} of all rows were shortened to the code book's bound (for your eyes, kept nowhere)")
        return
    if all(count == rows for count, rows in counts.values()):
        note(
            f"all {total} rows are longer than --row-norm {row_norm:g} and were clipped, so only their "
            "directions count (for your eyes, kept nowhere); give public centres and scales with "
            "--center-file "
            "and --scale-file, or a larger bound"
        )
        return
    clipped = {name: count for name, (count, _) in counts.items() if count}
    if clipped:
        listed = ", ".join(
            f"{count} in {name} ({count / counts[name][1]:.1%})" for name, count in clipped.items()
        )
        note(f"rows longer than --row-norm were clipped: {listed} (for your eyes, kept nowhere)")


def _numbers(result: Result) -> dict[str, Any]:
    names = ("feature_names", "components", "explained_variance", "explained_variance_ratio", "mean")
    return {name: plain(getattr(result, name)) for name in names}


def _print_result(result: Result, output: Path, *, verbose: bool) -> None:
    print_findings(result)
    record, solver, promise = result.run, result.solver, result.privacy
    things = f"{counted_as(record['parameters'])}s"
    sizes = ", ".join(f"{silo['name']} ({silo.get('rows', '?')} {things})" for silo in record["silos"])
    names = result.feature_names or ()
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = f" ({', '.join(names[:MOST_NAMES])}{more})" if names else ""  # so that an identifier is seen
    lines = [
        f"Silos: {sizes}; {result.n_samples} {things} of {result.n_features} columns{listed} in all.",
        f"Solver: {solver.solver}, because {solver.reason}.",
        f"Rounds: {record['n_rounds']}, with {human_bytes(record['bytes_up'])} up and "
        f"{human_bytes(record['bytes_down'])} down.",
    ]
    counts = result.score_counts
    if counts is not None:
        bins = counts.edges.shape[1] - 1
        noise = "exact" if counts.noise_std == 0 else f"with noise of {counts.noise_std:.3g} rows"
        line = f"Scores: rows counted on {bins}×{bins} places of pc1 and pc2, {noise}: see report.html."
        lines.append(line if counts.fractions is None else f"{line} {counts.fractions}")
    for line in (*lines, ""):
        console().print(line, soft_wrap=True)
    _print_promise(promise, verbose=verbose)
    print_result(output)


def _print_promise(promise: Any, *, verbose: bool = True) -> None:
    text = str(promise) if verbose else promise.brief
    console().print(text, soft_wrap=True, style=None if promise.is_private else "bold red")


def _print_moment(moment: Moment, output: Path) -> None:
    out = console()
    things = f"{moment.record.counted}s"
    sizes = ", ".join(f"{name} ({size} {things})" for name, size in moment.silo_sizes.items())
    out.print(
        f"The pooled moment of {moment.n_features} columns: {sizes}; {moment.n_samples} {things} in all.",
        soft_wrap=True,
    )
    if moment.noise_std > 0:
        out.print(
            f"Its noise has a standard deviation of {number(moment.noise_std, 3)} on the diagonal, in "
            "units of the bound on rows, and √2 times less off it.",
            soft_wrap=True,
        )
    out.print("")
    _print_promise(moment.privacy)
    out.print(
        f"\nMoment: {output} (open {output / 'report.html'}; analyse it with `fedpower derive {output} "
        "ANALYSIS`)",
        soft_wrap=True,
    )


def _print_book(book: CodeBook, output: Path) -> None:
    names = book.columns or tuple(f"x{place}" for place in range(book.low.size))
    numeric = ("from", "to", "offset", "scale")
    shown = table("Code book", "column", *numeric, "how it was found", numbers=numeric)
    for place, name in enumerate(names):
        numbers = (column[place] for column in (book.low, book.high, book.offset, book.scale))
        shown.add_row(name, *(number(float(each)) for each in numbers), book.found[place])
    console().print(shown)
    console().print(
        f"Rows so centred and scaled are shortened to norm {number(book.bound)}. Finding this cost each "
        f"silo epsilon={book.epsilon:.3g} at delta={book.delta:g}, once.",
        soft_wrap=True,
    )
    click.echo(f"wrote {output}: it is public; give it to fits with --codebook")
