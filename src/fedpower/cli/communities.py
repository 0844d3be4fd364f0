"""`fedpower communities`: networks in, which nodes belong together out."""

import warnings
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import note
from fedpower.cli.derive import show_account
from fedpower.cli.fit import IDENTITY, LEDGERS
from fedpower.cli.options import (
    Command,
    declared,
    given_options,
    option,
    parameter,
    text_options,
    text_reading,
)
from fedpower.cli.paths import PATH, any_file
from fedpower.cli.progress import progress_of_fit, quiet_option
from fedpower.cli.silos import find_ledgers, named_files, read_nodes, require_charge
from fedpower.estimator.fit_warnings import ClippingWarning, NoiseWarning, weights_summary
from fedpower.options import from_flat
from fedpower.report.files import new_folder, require_room, room_for
from fedpower.rows.networks import Weighed, open_network, weighed_edges
from fedpower.rows.opening import is_text

_declared = declared(
    (
        click.argument("files", nargs=-1, required=True, metavar="FILE...", shell_complete=any_file),
        option("-k", "--communities", "n_communities", group="main", type=click.IntRange(1),
               required=True, metavar="K", help="Number of communities."),
        parameter("epsilon"),
        option("--unit", group="main", type=click.Choice(["edge", "row"]), default="edge",
               show_default=True, help="What is protected: an edge, or a row of the adjacency."),
        option("--nodes", group="main", type=PATH, metavar="FILE",
               help="The names of all nodes, one a line: public, and needed by edge lists."),
        option("--edge-weight", group="main", type=float, metavar="W",
               help="Public maximum at which weights are capped; without it they must be 0 or 1."),
        option("--labels", group="main", type=PATH, metavar="CSV",
               help="Lines of node,label to compare with."),
        option("-o", "--output", group="main", type=PATH, default=Path("communities"),
               show_default=True, help="Folder for what was released and found."),
        option("--force", group="main", is_flag=True, help="Replace an earlier one there."),
        option("--json", "as_json", group="main", is_flag=True,
               help="Print one JSON object instead of tables."),
        *LEDGERS,
        parameter("delta"),
        parameter("aggregation"),
        parameter("colluders"),
        IDENTITY,
        text_options,
        parameter("min_silos"),
        parameter("deadline"),
        option("--seed", "random_state", group="running", type=click.IntRange(0, 2**32 - 1),
               default=0, show_default=True, help="Starts of k-means; never noise."),
        parameter("n_jobs"),
        quiet_option,
    )
)  # fmt: skip


@click.command(
    cls=Command, epilog="Example: fedpower communities north.csv south.csv -k 3 --epsilon 1 --nodes nodes.txt"
)
@_declared
@click.pass_context
def communities(ctx: click.Context, /, **options: Any) -> None:
    """Find the communities of nodes from the networks in FILES, each a silo that is not pooled.

    A network is an edge list (columns source and target, and perhaps weight and layer), an adjacency
    matrix (.npz, .npy) or a GraphML file. --unit edge protects each edge of a layer, --unit row each row
    of its adjacency; neither protects a node with all its edges. What was released is kept in the folder:
    `fedpower derive FOLDER communities -k K` finds other numbers of them at no cost.
    """
    from fedpower.analyses.communities import read_labels  # noqa: PLC0415
    from fedpower.estimator.communities import FedCommunities  # noqa: PLC0415
    from fedpower.report.moment import MOMENT_AND_COMMUNITIES, write_release  # noqa: PLC0415

    started = datetime.now(UTC)
    require_charge(options)
    labels = None if options["labels"] is None else read_labels(options["labels"])
    nodes = None if options["nodes"] is None else read_nodes(options["nodes"])
    output, force = options["output"], options["force"]
    with new_folder(output, known=MOMENT_AND_COMMUNITIES, force=force) as place:
        files = named_files(options["files"])
        silos = {
            name: open_network(
                path,
                unit=options["unit"],
                nodes=nodes,
                edge_weight=options["edge_weight"],
                **(text_reading(options) if is_text(path) else {}),
            )
            for name, path in files.items()
        }
        width = max(silo.n_features for silo in silos.values())
        require_room(output, room_for(width, moment=True))
        ledgers = find_ledgers(list(silos), folder=options["ledgers"], named=options["named_ledgers"])
        flat = {name: value for name, value in given_options(options).items() if name != "unit"}
        fit = from_flat({**flat, "network": options["unit"], "edge_weight": options["edge_weight"]})
        model = FedCommunities(
            options["n_communities"],
            unit=fit.unit,
            epsilon=fit.epsilon,
            delta=fit.delta,
            aggregation=fit.aggregation,
            nodes=nodes,
            n_jobs=fit.n_jobs,
            random_state=options["random_state"],
        )
        _tell_weights(weighed_edges(silos))
        with progress_of_fit(silos, None) as show, warnings.catch_warnings():
            for told_here in (NoiseWarning, ClippingWarning):
                warnings.simplefilter("ignore", told_here)
            model.fit_silos(
                silos,
                labels,
                ledgers=ledgers,
                data_version=options["data_version"],
                data_set=options["data_set"],
                identities=options["identities"],
                on_round=None if show is None else show.round,
                on_rows=None if show is None else show.rows,
            )
        origins = {name: {"source": str(path)} for name, path in files.items()}
        moment = model.moment_.with_record(
            model.moment_.record.with_origin(command=ctx.find_root().obj, silos=origins, started=started)
        )
        told = model.analysis_.account()
        write_release(place, moment, told)
    show_account(told, moment, output, as_json=options["as_json"], said=moment.privacy.brief)
    if moment.privacy.is_private and ledgers is None:
        note("no ledger was given, so what this release spent is on no record; see --ledgers")


def _tell_weights(weighed: Mapping[str, Weighed]) -> None:
    """Tell the operator what the public maximum did to the edges; it goes into no result."""
    told = weights_summary(weighed.values())
    if told is not None:
        note(f"{told} (for your eyes, kept nowhere)")
        return
    capped = {name: each for name, each in weighed.items() if each.n_capped}
    if capped:
        listed = ", ".join(
            f"{each.n_capped} in {name} ({each.n_capped / each.n_edges:.1%})" for name, each in capped.items()
        )
        note(f"edges heavier than --edge-weight were capped: {listed} (for your eyes, kept nowhere)")
