"""`fedpower fit`, `release`, `prepare` and `communities`: silos in, a folder or a code book out."""

import math
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import note, print_json, print_table, progress_of_fit, say
from fedpower.cli.options import (
    CHARGED,
    PATH,
    READING,
    TEXT,
    Command,
    given_options,
    option,
    options,
    output,
    reading_of,
)
from fedpower.cli.privacy import share_used
from fedpower.cli.results import json_of, print_result
from fedpower.cli.silos import (
    Silos,
    find_ledgers,
    named_files,
    note_doubts,
    open_silos,
    read_nodes,
    read_vector,
    require_charge,
)
from fedpower.errors import InputError
from fedpower.estimator.fit_warnings import ClippingWarning, NoiseWarning, RepeatedFitWarning, weights_summary
from fedpower.estimator.fitting import Run, fit_silos, open_data, release_options, released_moment
from fedpower.estimator.fitting import prepare as prepare_silos
from fedpower.estimator.terms import PRIVATE_STEPS
from fedpower.options import FLAT, Iterative, Options, Secure, from_flat
from fedpower.privacy import Ledger
from fedpower.report.codebook_file import rendered
from fedpower.report.files import new_file, new_folder, require_room, room_for
from fedpower.report.moment import MOMENT_AND_COMMUNITIES, RELEASED, Moment, write_release
from fedpower.report.record import REPORT, plain
from fedpower.report.result import KNOWN, Result
from fedpower.report.text import number
from fedpower.rows.networks import open_network, require_same_nodes, weighed_edges
from fedpower.rows.opening import is_text, open_source
from fedpower.rows.plink import read_variants
from fedpower.rows.source import RowSource
from fedpower.rules.codebook import CodeBook

_ROWS = f"drop columns extra_columns {READING} ranges codebook"
_PUBLIC = "center_file scale_file variants n_features groups"
_PRINTED = "as_json quiet force"
_FIRST = "n_components epsilon row_norm unit"
_OF_A_FIT = " ".join(
    name for name, spec in FLAT.items() if spec.option is not None and name not in _FIRST.split()
)
_OF_A_RELEASE = (
    "delta center normalize rows_per_unit weights colluders aggregation min_silos deadline device n_jobs"
)
_UNITS = click.Choice(["edge", "row"])


@click.command(cls=Command, epilog="Example: fedpower fit north.csv south.parquet -k 4 --epsilon 1")
@options(f"files {_FIRST}", output("result"), _PRINTED, "verbose", _PUBLIC, _ROWS, CHARGED, _OF_A_FIT)
@click.pass_context
def fit(ctx: click.Context, /, **given: Any) -> None:
    """Compute the principal components of FILES, each a silo whose rows are not pooled.

    A silo is named after its file, up to the first dot, or by NAME=PATH. A folder, or a pattern in quotes,
    is one silo in parts; a .toml file describes a query on a database (docs/data.md).
    --epsilon is each silo's privacy budget for this fit: 1 is usual, inf is exact and NOT private.
    Offset, scale and bound of the columns are found privately out of it, unless --row-norm, --normalize
    or --codebook gives them.
    """
    _check_promise(given)
    with new_folder(given["output"], known=KNOWN, force=given["force"]) as place:
        silos, wanted = _silos_and_options(given)
        with _running(ctx, given, silos, wanted) as fitted:
            result = fitted(wanted)
            result.write_into(place)
    if given["as_json"]:
        print_json(json_of(result, given["output"]))
        if not result.privacy.is_private:
            note(str(result.privacy))
    else:
        print_result(result, given["output"], verbose=given["verbose"])
    _note_uncharged(given, "fit")


@click.command(cls=Command, epilog="Example: fedpower release north.csv south.csv --epsilon 1 -o moment")
@options(
    "files epsilon row_norm unit",
    output("moment", "Folder for the covariance."),
    *(_PRINTED, _PUBLIC, _ROWS, CHARGED, _OF_A_RELEASE),
)
@click.pass_context
def release(ctx: click.Context, /, **given: Any) -> None:
    """Release the pooled covariance of FILES, each a silo: paid for once, analysed at no further cost.

    It costs what a fit costs, charged to the same ledgers under the same name. `fedpower analyze` then
    computes whatever is wanted from the folder, which may be published under its statement. Files are named
    as for `fedpower fit`.
    """
    _check_promise(given)
    with new_folder(given["output"], known=RELEASED, force=given["force"]) as place:
        silos, wanted = _silos_and_options(given)
        with _running(ctx, given, silos, wanted) as fitted:
            moment = released_moment(fitted(release_options(wanted)))
            write_release(place, moment)
    if given["as_json"]:
        statement = {"silos": moment.silo_sizes, "privacy": moment.record.as_dict()["privacy"]}
        print_json({"moment": str(given["output"]), **plain(moment.account().facts), **statement})
    else:
        _print_moment(moment, given["output"])
    _note_uncharged(given, "release")


@click.command(
    cls=Command, epilog="Example: fedpower prepare north.csv south.csv --epsilon 1 -o codebook.toml"
)
@options(
    "files epsilon",
    output("codebook.toml", "The code book."),
    *(_PRINTED, _ROWS, CHARGED, "unit rows_per_unit delta aggregation colluders"),
)
@click.pass_context
def prepare(ctx: click.Context, /, **given: Any) -> None:
    """Find offset, scale and bound of the columns of FILES privately, and write them to a code book.

    --epsilon is that of the fit that this is a part of: preparation takes a fifth of it at most, and the
    code book records how much. Fits that are given the code book (--codebook) do not pay for it again.
    """
    silos, wanted = open_silos(given), from_flat({**given_options(given), "n_components": 1})
    note_doubts(silos, wanted)
    with new_file(given["output"], force=given["force"]) as place:
        with _running(ctx, given, silos, wanted) as fitted:
            book = prepare_silos(wanted, silos, fitted.run, extra_columns=_extra(given))
        place.write_text(rendered(book), encoding="utf-8")
    if given["as_json"]:
        names = ("columns", "offset", "scale", "low", "high", "bound", "found", "epsilon", "delta")
        facts = {name: plain(getattr(book, name)) for name in names}
        print_json({"codebook": str(given["output"]), **facts})
    else:
        _print_book(book, given["output"])
    _note_uncharged(given, "preparation")


@click.command(
    cls=Command, epilog="Example: fedpower communities north.csv south.csv -k 3 --epsilon 1 --nodes nodes.txt"
)
@options(
    "files",
    option(
        "-k --communities K", "Number of communities.", click.IntRange(1), name="n_communities", required=True
    ),
    "epsilon",
    option("--unit", "Protect an edge, or a row of the adjacency.", _UNITS, name="network", default="edge"),
    option("--nodes FILE", "Names of all nodes, one per line: public, and needed by edge lists."),
    option("--edge-weight W", "Public maximum of weights; without it they must be 0 or 1.", float),
    option("--labels CSV", "Lines of node,label to compare with.", PATH),
    output("communities"),
    f"{_PRINTED} {CHARGED} delta aggregation colluders {TEXT} min_silos deadline",
    option(
        "--seed", "Starts of k-means; never noise.", click.IntRange(0, 2**32 - 1), group="running", default=0
    ),
    "n_jobs",
)
@click.pass_context
def communities(ctx: click.Context, /, **given: Any) -> None:
    """Find the communities of nodes from the networks in FILES, each a silo that is not pooled.

    A network is an edge list (columns source and target, and perhaps weight and layer), an adjacency
    matrix (.npz, .npy) or a GraphML file. --unit edge protects each edge of a layer, --unit row each row
    of its adjacency; neither protects a node with all its edges. What was released is kept in the folder:
    `fedpower analyze communities FOLDER -k K` finds other numbers of them at no cost.
    """
    from fedpower.analyses.communities import Communities, read_labels  # noqa: PLC0415 - takes scikit-learn
    from fedpower.cli.analyze import _show as show_account  # noqa: PLC0415

    require_charge(given)
    labels = None if given["labels"] is None else read_labels(given["labels"])
    nodes = None if given["nodes"] is None else read_nodes(given["nodes"])
    analysis = Communities(given["n_communities"], labels=labels, random_state=given["seed"])
    with new_folder(given["output"], known=MOMENT_AND_COMMUNITIES, force=given["force"]) as place:
        unit = {"unit": given["network"], "nodes": nodes, "edge_weight": given["edge_weight"]}
        networks = {
            name: open_network(path, **unit, **(reading_of(given) if is_text(path) else {}))
            for name, path in named_files(given["files"]).items()
        }
        require_same_nodes(networks.values())
        width = next(iter(networks.values())).n_features
        for network in networks.values():  # what cannot be is refused before anything is released
            analysis.compared(network.columns or [f"x{place}" for place in range(width)])
        require_room(given["output"], room_for(width, moment=True))
        rows = {"normalize": True} if given["network"] == "row" else {}
        wanted = from_flat({**given_options(given), **rows})
        _note_weights(networks)
        with _running(ctx, given, dict[str, Path | RowSource](networks), wanted) as fitted:
            moment = released_moment(fitted(release_options(wanted)))
            account = analysis.fit(moment).account()
            write_release(place, moment, account)
    show_account(account, moment, given["output"], as_json=given["as_json"])
    _note_uncharged(given, "release")


# --- from words to a result ------------------------------------------------------------------------


def _extra(given: Mapping[str, Any]) -> Any:
    return given.get("extra_columns") or "refuse"


def _silos_and_options(given: dict[str, Any]) -> tuple[Silos, Options]:
    """Return the silos of a fit or a release and its options; report doubtful columns."""
    variants = None if given["variants"] is None else read_variants(given["variants"])
    listed = None
    if variants is not None:  # of the first file, where the list names no alleles
        listed = variants.columns(open_source(next(iter(named_files(given["files"]).values()))))
    silos = open_silos(given, columns=listed)
    flat = given_options(given)
    files = {"offset": given["center_file"], "scale": given["scale_file"]}
    if any(files.values()):
        columns = open_data(silos, from_flat(flat), _extra(given)).columns
        flat |= {name: read_vector(path, columns) for name, path in files.items() if path is not None}
    if variants is not None and variants.offset is not None:
        flat |= {"offset": variants.offset, "scale": variants.scale}
    wanted = from_flat(flat)
    width = note_doubts(silos, wanted)
    require_room(given["output"], room_for(width, moment=True))
    return silos, wanted


def _check_promise(given: dict[str, Any]) -> None:
    """Refuse options that contradict each other about privacy, before anything is read."""
    wanted = from_flat(given_options(given))
    public = [given["center_file"], given["scale_file"]]
    if given["variants"] is not None:
        public.append(read_variants(given["variants"]).offset)
        for name in ("columns", "groups", "center_file", "scale_file", "codebook"):
            if given[name]:
                raise InputError(f"--variants must go without --{name.replace('_', '-')}, got both")
    finds = wanted.prepares and all(values is None for values in public)
    bounded = wanted.book is not None or wanted.public.row_norm is not None or wanted.public.normalize
    if wanted.is_private and not bounded and not finds:
        raise InputError(
            "--row-norm, --normalize or --codebook must be given with centres, scales or settings of "
            "a solver, got none; leave all of these out to find a bound privately"
        )
    require_charge(given)


class _Fit:
    """A fit that is ready: its `Run`, and what makes a result with its origin."""

    def __init__(self, ctx: click.Context, given: Mapping[str, Any], silos: Silos, run: Run) -> None:
        self._ctx, self._given, self._silos, self.run = ctx, given, silos, run
        self._started = datetime.now(UTC)

    def __call__(self, wanted: Options) -> Result:
        with warnings.catch_warnings():
            for category in (NoiseWarning, RepeatedFitWarning, ClippingWarning):  # the output contains them
                warnings.simplefilter("ignore", category)
            result = fit_silos(wanted, self._silos, self.run, extra_columns=_extra(self._given)).result
        origins = {name: self._origin(name) for name in self._silos}
        return result.with_origin(command=self._ctx.find_root().obj, silos=origins, started=self._started)

    def _origin(self, name: str) -> dict[str, Any]:
        """Return where a silo's rows are and what its ledger says: one operator holds all of them here."""
        silo, ledgers = self._silos[name], self.run.ledgers
        source = silo if isinstance(silo, Path) else silo.name
        origin: dict[str, Any] = {
            "source": str(self._given["files"][0] if self._given.get("groups") else source)
        }
        # The folder of a covariance may be published, and what its silos have left is theirs alone.
        if isinstance(ledgers, Mapping) and self._ctx.info_name == "fit":
            with Ledger.open(ledgers[name]) as ledger:
                account = ledger.statement()
            origin["budget"] = {
                "spent": account["spent"]["epsilon"],
                "left": account["left"],
                "cap": account["cap"]["epsilon"],
                "delta": account["cap"]["delta"],
                "used": share_used(account),
            }
        return origin


@contextmanager
def _running(ctx: click.Context, given: Mapping[str, Any], silos: Silos, wanted: Options) -> Iterator[_Fit]:
    """Give what fits silos: with their ledgers, a progress bar, and a sentence for Ctrl-C."""
    ledgers = find_ledgers(list(silos), given)
    try:
        with progress_of_fit(silos, _steps(wanted)) as show:
            run = Run(
                ledgers=ledgers,
                data_version=given["data_version"],
                data_set=given["data_set"],
                identities=given["identities"],
                on_round=None if show is None else show.round,
                on_rows=None if show is None else show.rows,
                on_clipped=partial(_note_clipped, given["row_norm"]) if "row_norm" in given else None,
            )
            yield _Fit(ctx, given, silos, run)
    except KeyboardInterrupt:
        if ledgers is None:
            charged = "run the same command again to start over"
        elif isinstance(wanted.aggregation, Secure):
            charged = "what was charged stays charged, and a secure sum is charged again"
        else:
            charged = "run the same command again: nothing that was charged is charged again"
        raise click.Abort(f"interrupted, so no result was written; {charged}") from None


def _steps(wanted: Options) -> int | None:
    """Return how many steps there will be, where that is known beforehand."""
    given = wanted.solver.n_steps if isinstance(wanted.solver, Iterative) else None
    noised = wanted.is_private and wanted.noise.kind in ("step", "paper")
    return PRIVATE_STEPS if noised and given is None else given


# --- output ----------------------------------------------------------------------------------------

_EYES = "(for your eyes, kept nowhere)"


def _note_uncharged(given: Mapping[str, Any], what: str) -> None:
    if math.isfinite(given["epsilon"]) and given["ledgers"] is None and not given["named_ledgers"]:
        note(f"no ledger was given, so what this {what} spent is on no record; see --ledgers")


def _note_clipped(row_norm: float | None, counts: dict[str, tuple[int, int]]) -> None:
    """Report to the operator what the bound did to the rows; no result keeps it."""
    total = sum(rows for _, rows in counts.values())
    if row_norm is None:  # a code book's bound is where clipping and noise balance
        share = sum(count for count, _ in counts.values()) / total
        note(f"{share:.0%} of all rows were shortened to the code book's bound {_EYES}")
    elif all(count == rows for count, rows in counts.values()):
        note(
            f"all {total} rows are longer than --row-norm {row_norm:g} and were clipped, so only their "
            f"directions count {_EYES}; give a larger bound, or --center-file and --scale-file"
        )
    elif any(count for count, _ in counts.values()):
        shares = [f"{n} in {name} ({n / rows:.1%})" for name, (n, rows) in counts.items() if n]
        note(f"rows longer than --row-norm were clipped: {', '.join(shares)} {_EYES}")


def _note_weights(networks: Mapping[str, RowSource]) -> None:
    """Report to the operator what the public maximum did to the edges; no result keeps it."""
    weighed = weighed_edges(networks)
    summary = weights_summary(weighed.values())
    capped = [
        f"{edges.n_capped} in {name} ({edges.n_capped / edges.n_edges:.1%})"
        for name, edges in weighed.items()
        if edges.n_capped
    ]
    if summary is None and capped:
        summary = f"edges heavier than edge_weight were capped: {', '.join(capped)}"
    if summary is not None:
        note(f"{summary.replace('edge_weight', '--edge-weight')} {_EYES}")


def _print_promise(promise: Any, *, verbose: bool = True) -> None:
    say(str(promise) if verbose else promise.brief, style=None if promise.is_private else "bold red")


def _print_moment(moment: Moment, folder: Path) -> None:
    things = f"{moment.record.counted}s"
    sizes = ", ".join(f"{name} ({size} {things})" for name, size in moment.silo_sizes.items())
    say(f"The pooled moment of {moment.n_features} columns: {sizes}; {moment.n_samples} {things} in all.")
    if moment.noise_std > 0:
        say(
            f"Its noise has a standard deviation of {number(moment.noise_std, 3)} on the diagonal, in "
            "units of the bound on rows, and √2 times less off it."
        )
    say("")
    _print_promise(moment.privacy)
    say(f"\nMoment: {folder} (open {folder / REPORT}; analyse it with `fedpower analyze {folder} ANALYSIS`)")


def _print_book(book: CodeBook, path: Path) -> None:
    names = book.columns or tuple(f"x{place}" for place in range(book.low.size))
    numeric = ("from", "to", "offset", "scale")
    columns = zip(book.low, book.high, book.offset, book.scale, strict=True)
    rows = [
        (name, *(number(float(value)) for value in values), how)
        for name, values, how in zip(names, columns, book.found, strict=True)
    ]
    print_table("Code book", ("column", *numeric, "how it was found"), rows, numbers=numeric)
    say(
        f"Rows so centred and scaled are shortened to norm {number(book.bound)}. Finding this cost each "
        f"silo epsilon={book.epsilon:.3g} at delta={book.delta:g}, once."
    )
    click.echo(f"wrote {path}: it is public; give it to fits with --codebook")
