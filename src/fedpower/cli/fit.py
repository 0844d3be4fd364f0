"""`fedpower fit`: files in, a result folder out."""

import math
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedpower.cli import values
from fedpower.cli.budget import share_used
from fedpower.cli.console import MOST_NAMES, console, note, print_json, print_result
from fedpower.cli.findings import print_findings
from fedpower.cli.options import (
    Command,
    declared,
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
    open_silos,
    read_vector,
    require_charge,
    tell_doubts,
)
from fedpower.cli.words import in_options
from fedpower.errors import InputError
from fedpower.estimator import FedMoment, FedPCA
from fedpower.estimator.fit_warnings import NoiseWarning
from fedpower.estimator.repeats import RepeatedFitWarning
from fedpower.estimator.terms import PRIVATE_STEPS
from fedpower.estimator.treatment import prepares
from fedpower.parameters import SPECS, Parameters
from fedpower.privacy import Ledger
from fedpower.privacy.statement import counted_as
from fedpower.report.codebook_file import read_code_book
from fedpower.report.files import new_folder, require_room, room_for
from fedpower.report.record import plain
from fedpower.report.result import KNOWN, Result, write_files
from fedpower.report.text import human_bytes
from fedpower.rows.plink import VariantList, read_variants
from fedpower.rows.source import RowSource
from fedpower.rules.rules import TableRules

_PASSED_ON = tuple(name for name, spec in SPECS.items() if spec.option and name != "n_components")
"""Options that are parameters of a fit; one that is not given keeps its default."""

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
"""Where each silo's releases are charged."""

_BOTH = (
    click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=any_file),
    option("--drop", group="main", multiple=True, metavar="COLUMN",
           help="Leave a column out; repeatable."),
    LEDGERS[0],
    option("--columns", group="rows", callback=values.names, metavar="A,B,...",
           help="Use these columns and no others; where columns have no names (.npy), name them."),
    *LEDGERS[1:],
    option("--json", "as_json", group="main", is_flag=True,
           help="Print one JSON object instead of tables."),
    reading_options,
    option("--range", "ranges", group="main", callback=values.ranges, multiple=True,
           metavar="COLUMN=LOW:HIGH", help="What a column's cells lie between; repeatable."),
    option("--codebook", group="main", type=PATH, metavar="FILE",
           help="Code book: rules of columns; offsets, scales, ranges and bound where it has them."),
    quiet_option,
)  # fmt: skip

IDENTITY = option(
    "--identity", "identities", group="privacy", callback=values.named_paths,
    multiple=True, metavar="NAME=PATH",
    help="A silo's key for secure sums; repeatable. Made for the fit unless given.",
)  # fmt: skip
"""Declares whose keys are taken."""

_GIVEN = (
    parameter("epsilon"),
    parameter("row_norm"),
    parameter("unit"),
    option("--center-file", group="main", type=PATH, metavar="FILE",
           help="Public numbers to take off the columns first: name,value lines, or .npy."),
    option("--scale-file", group="main", type=PATH, metavar="FILE",
           help="Public divisors of columns: name,value lines, or .npy."),
    option("--variants", group="main", type=PATH, metavar="FILE",
           help="Public variants of .bed files: ids, or .afreq, whose p gives 2p and the usual scaling."),
)  # fmt: skip
"""What a fit and a release are told of privacy and of the columns."""

_WHERE = (
    option("--n-features", group="rows", type=int, help="Number of columns of svmlight files."),
    option("--groups", group="rows", metavar="COLUMN",
           help="One file; this column names each row's silo."),
    IDENTITY,
)  # fmt: skip
"""How both read their files, and whose keys they take."""

_DECLARED = ("epsilon", "row_norm", "unit")
"""Parameters among `_GIVEN`, which help lists first."""

_fit_options = declared(
    (
        _BOTH[0],
        parameter("n_components"),
        *_GIVEN,
        option("-o", "--output", group="main", type=PATH, default=Path("result"),
               show_default=True, help="Folder for the result."),
        option("--force", group="main", is_flag=True,
               help="Replace an earlier result in that folder."),
        verbose_option,
        *_WHERE,
        *_BOTH[1:],
        *(parameter(name) for name in _PASSED_ON if name not in _DECLARED),
    )
)  # fmt: skip
"""Declares all of them on a command."""

prepare_options = declared(
    (
        _BOTH[0],
        parameter("epsilon"),
        option("-o", "--output", group="main", type=PATH, default=Path("codebook.toml"),
               show_default=True, help="The code book."),
        option("--force", group="main", is_flag=True, help="Replace that file."),
        *_BOTH[1:],
        parameter("unit"),
        parameter("rows_per_unit"),
        parameter("delta"),
        parameter("extra_columns"),
        parameter("aggregation"),
        parameter("colluders"),
        IDENTITY,
    )
)  # fmt: skip
"""Declares those of `fedpower prepare`."""


_NOT_RELEASED = ("n_components", "noise", "solver", "standardize", "keep_moment", "energy",
                 "scores_epsilon", "iteration_rank", "one_shot_start", "tol", "max_rounds",
                 "participation", "random_state")  # fmt: skip
"""Parameters that decide what is made of a moment, or how to do without one."""

release_options = declared(
    (
        _BOTH[0],
        *_GIVEN,
        option("-o", "--output", group="main", type=PATH, default=Path("moment"), show_default=True,
               help="Folder for the moment."),
        option("--force", group="main", is_flag=True, help="Replace an earlier moment there."),
        *_WHERE,
        *_BOTH[1:],
        *(
            parameter(name)
            for name in _PASSED_ON
            if name not in (*_DECLARED, *_NOT_RELEASED) and not SPECS[name].paper_only
        ),
    )
)  # fmt: skip
"""Declares those of `fedpower release`."""


@click.command(cls=Command, epilog="Example: fedpower fit north.csv south.parquet -k 4 --epsilon 1")
@_fit_options
@click.pass_context
def fit(ctx: click.Context, /, **options: Any) -> None:
    """Compute the principal components of FILES, each a silo whose rows are not pooled.

    A silo is called by its file's name up to the first dot; write NAME=PATH to call it otherwise. A
    folder, or a pattern in quotes, is one silo in parts; a .toml file names a query on a database
    (docs/data.md).
    --epsilon is each silo's privacy budget for this fit: 1 is usual, inf is exact and NOT private.
    Offset, scale and bound of the columns are found privately out of it, unless --row-norm, --normalize
    or --codebook says them.
    """
    started = datetime.now(UTC)
    check_promise(options)
    with new_folder(options["output"], known=KNOWN, force=options["force"]) as place:
        silos, parameters = silos_and_parameters(options, moment=bool(options["keep_moment"]))
        ledgers = find_ledgers(list(silos), folder=options["ledgers"], named=options["named_ledgers"])
        model = FedPCA(options["n_components"], **parameters)
        origins: dict[str, dict[str, Any]] = {name: origin_of(silos[name], options) for name in silos}
        with _saying_how_to_go_on(model, ledgers):
            said = (NoiseWarning, RepeatedFitWarning)
            fit_shown(model, silos, ledgers, options, said=said, steps=_steps(model))
            for name, ledger in (ledgers or {}).items():
                origins[name]["budget"] = _budget(ledger)
            result = model.result_.with_origin(command=ctx.find_root().obj, silos=origins, started=started)
            write_files(place, result)
    if options["as_json"]:
        print_json({"result": str(options["output"]), **result.run, **_numbers(result)})
    else:
        _print(result, options["output"], verbose=options["verbose"])
    if result.privacy.is_private and ledgers is None:
        note("no ledger was given, so what this fit spent is on no record; see --ledgers")
    elif not result.privacy.is_private and options["as_json"]:
        note(str(result.privacy))


def fit_shown(
    model: FedPCA | FedMoment,
    silos: Silos,
    ledgers: dict[str, Path] | None,
    options: dict[str, Any],
    *,
    said: Sequence[type[Warning]],
    steps: int | None = None,
) -> None:
    """Fit to silos with a bar that shows how far; warnings that what is printed says go unsaid."""
    with progress_of_fit(silos, steps) as show, warnings.catch_warnings():
        for each in said:
            warnings.simplefilter("ignore", each)
        model.fit_silos(
            silos,
            ledgers=ledgers,
            data_version=options["data_version"],
            data_set=options["data_set"],
            identities=options["identities"],
            on_round=None if show is None else show.round,
            on_rows=None if show is None else show.rows,
            on_clipped=partial(_tell_clipped, options["row_norm"]),
        )


@contextmanager
def _saying_how_to_go_on(model: FedPCA, ledgers: dict[str, Path] | None) -> Iterator[None]:
    """Turn Ctrl-C into a sentence about what was charged, and what the same command would charge."""
    try:
        yield
    except KeyboardInterrupt:
        if ledgers is None:
            charged = "run the same command again to start anew"
        elif model.aggregation == "secure":
            charged = (
                "what the ledgers were charged stays charged, and a secure sum is asked for and charged "
                "afresh: see `fedpower budget`"
            )
        else:
            charged = "run the same command again: nothing that was charged is charged again"
        raise click.Abort(f"interrupted, so no result was written; {charged}") from None


def _steps(model: FedPCA) -> int | None:
    """Return how many steps there will be, where that is known beforehand."""
    noised = math.isfinite(model.epsilon) and model.noise in ("step", "paper")
    return PRIVATE_STEPS if noised and model.n_steps is None else model.n_steps


def check_promise(options: dict[str, Any]) -> None:
    """Refuse options that contradict each other about privacy, before anything is read."""
    private = math.isfinite(options["epsilon"])
    bounded = options["row_norm"] is not None or options["normalize"] or _has_numbers(options)
    if private and not bounded and not _prepares(options):
        raise InputError(
            f"a fit with epsilon={options['epsilon']:g} that is given centres, scales or settings of its "
            "own must know a public bound on the norm of a row, got none; give --row-norm B, --normalize "
            "or --codebook, or leave all of them out to have them found privately"
        )
    require_charge(options)


def _rules(options: dict[str, Any]) -> TableRules | None:
    """Return the rules of the code book; None without any."""
    path = options["codebook"]
    return None if path is None or not Path(path).is_file() else read_code_book(path).table_rules


def _has_numbers(options: dict[str, Any]) -> bool:
    """Return whether a code book is given that is no draft."""
    path = options["codebook"]
    return path is not None and not (Path(path).is_file() and read_code_book(path).is_draft)


def _variants(options: dict[str, Any]) -> VariantList | None:
    """Return the public list of variants; None without one."""
    if options["variants"] is None:
        return None
    names = ("columns", "groups", "center_file", "scale_file", "codebook")
    given = [name for name in names if options[name]]
    if given:
        raise InputError(
            f"--variants must go without --{given[0].replace('_', '-')}, for it says which columns there "
            "are and what is done to them, got both; leave one of them out"
        )
    return read_variants(options["variants"])


def _prepares(options: dict[str, Any]) -> bool:
    """Return whether the fit finds offset, scale and bound privately."""
    if options["variants"] is not None and read_variants(options["variants"]).offset is not None:
        return False
    if options["center_file"] is not None or options["scale_file"] is not None:
        return False
    given = {name: options[name] for name in _PASSED_ON if options.get(name) is not None}
    return prepares(Parameters(**given))


def silos_and_parameters(options: dict[str, Any], *, moment: bool) -> tuple[Silos, dict[str, Any]]:
    """Return the silos of a fit or a release and its parameters; tell of columns to doubt."""
    listed = _variants(options)
    silos = open_silos(
        options["files"],
        groups=options["groups"],
        columns=options["columns"] if listed is None else listed_columns(options["files"], listed),
        drop=options["drop"],
        n_features=options["n_features"],
        **reading_of(options),
    )
    parameters = _given_parameters(options, silos)
    if listed is not None and listed.offset is not None:
        parameters |= {"offset": listed.offset, "scale": listed.scale}
    width = tell_doubts(silos, _rules(options), options["unit"])
    require_room(options["output"], room_for(width, moment=moment))
    return silos, parameters


def _given_parameters(options: dict[str, Any], silos: Silos) -> dict[str, Any]:
    """Return FedPCA's parameters; those not given are left out."""
    parameters = {name: options[name] for name in _PASSED_ON if options.get(name) is not None}
    parameters |= {name: options[name] for name in ("codebook", "ranges") if options[name] is not None}
    files = {"offset": options["center_file"], "scale": options["scale_file"]}
    if any(files.values()):
        columns = agreed_columns(
            silos, options["extra_columns"] or "refuse", _rules(options), options["unit"]
        )
        for name, path in files.items():
            if path is not None:
                parameters[name] = read_vector(path, columns)
    return parameters


def origin_of(silo: Path | RowSource, options: dict[str, Any]) -> dict[str, Any]:
    """Return where a silo's rows are, for the record."""
    if options["groups"]:
        return {"source": options["files"][0]}
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


def _tell_clipped(row_norm: float | None, counts: dict[str, tuple[int, int]]) -> None:
    """Tell the operator what the bound did to the rows."""
    if row_norm is None:  # a code book's bound is where clipping and noise balance
        told = sum(count for count, _ in counts.values()) / sum(rows for _, rows in counts.values())
        note(f"{told:.0%} of all rows were shortened to the code book's bound (for your eyes, kept nowhere)")
        return
    if all(count == rows for count, rows in counts.values()):
        note(
            f"all {sum(rows for _, rows in counts.values())} rows are longer than --row-norm "
            f"{row_norm:g} and were clipped, so that their directions alone count (for your eyes, kept "
            "nowhere); give public centres and scales with --center-file and --scale-file, or a larger "
            "bound"
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


def _print(result: Result, output: Path, *, verbose: bool) -> None:
    print_findings(result)
    out = console()
    record, solver, promise = result.run, result.solver, result.privacy
    things = f"{counted_as(record['parameters'])}s"
    sizes = ", ".join(f"{silo['name']} ({silo.get('rows', '?')} {things})" for silo in record["silos"])
    lines = (
        f"Silos: {sizes}; {result.n_samples} {things} of {_columns(result)} in all.",
        f"Solver: {solver.solver}, because {in_options(solver.reason)}.",
        f"Rounds: {record['n_rounds']}, with {human_bytes(record['bytes_up'])} up and "
        f"{human_bytes(record['bytes_down'])} down.",
        *_scores(result),
        "",
    )
    for line in lines:
        out.print(line, soft_wrap=True)
    said = str(promise) if verbose else promise.brief
    out.print(said, soft_wrap=True, style=None if promise.is_private else "bold red")
    print_result(output)


def _scores(result: Result) -> list[str]:
    """Return where rows were counted by their scores; nothing where they were not."""
    found = result.score_counts
    if found is None:
        return []
    bins = found.edges.shape[1] - 1
    noise = "exact" if found.noise_std == 0 else f"with noise of {found.noise_std:.3g} rows"
    told = f"Scores: rows counted on {bins}×{bins} places of pc1 and pc2, {noise}: see report.html."
    return [told if found.fractions is None else f"{told} {found.fractions}"]


def _columns(result: Result) -> str:
    """Return what the columns are, so that an identifier among them is seen."""
    names = result.feature_names or ()
    more = f" and {len(names) - MOST_NAMES} more" if len(names) > MOST_NAMES else ""
    listed = f" ({', '.join(names[:MOST_NAMES])}{more})" if names else ""
    return f"{result.n_features} columns{listed}"
