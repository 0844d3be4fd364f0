"""``fedpower simulate``: the paper's data models, written as one file a silo."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from fedpower.cli.progress import bar_of, quiet_option
from fedpower.experiments.models import (
    FORMATS,
    Format,
    Model,
    require_room,
    spiked_covariance,
    stochastic_block,
    write_model,
)

Command = TypeVar("Command", bound=Callable[..., Any])


@click.group()
def simulate() -> None:
    """Write silos of simulated rows, and the truth they hide."""


def _shared(command: Command) -> Command:
    """Add the options that every model has."""
    options = [
        click.option(
            "-o",
            "--output",
            type=click.Path(path_type=Path, file_okay=False),
            required=True,
            help="Folder to write: silo-01, silo-02, …, truth.npz and model.json.",
        ),
        click.option("--silos", type=click.IntRange(1), help="Number of silos."),
        click.option(
            "--format",
            "kind",
            type=click.Choice(FORMATS),
            default="npy",
            show_default=True,
            help="File format of the silos.",
        ),
        click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Gives every row."),
        click.option("--paper-size", is_flag=True, help="The paper's size, where no option says otherwise."),
        click.option("--no-normalize", is_flag=True, help="Leave rows as drawn; the paper scales them to 1."),
        click.option("--force", is_flag=True, help="Replace an earlier simulation in the folder."),
        click.option("--json", "as_json", is_flag=True, help="Print what was written as JSON."),
        quiet_option,
    ]
    for option in reversed(options):
        command = option(command)
    return command


@simulate.command()
@_shared
@click.option("--rows", type=click.IntRange(1), help="Rows of all silos together.")
@click.option("--features", type=click.IntRange(1), default=100, show_default=True, help="Columns.")
@click.option("--rank", type=click.IntRange(1), default=4, show_default=True, help="Planted directions.")
@click.option("--noise", type=float, default=0.6, show_default=True, help="σ of the noise around them.")
def spiked(
    *,
    rows: int | None,
    features: int,
    silos: int | None,
    rank: int,
    noise: float,
    seed: int,
    paper_size: bool,
    no_normalize: bool,
    **writing: Any,
) -> None:
    """Rows with RANK planted directions under noise: the paper's Model I.

    20,000 rows in 4 silos unless told otherwise; 2,000,000 in 20 with --paper-size.
    """
    model = spiked_covariance(
        n_rows=rows or (2_000_000 if paper_size else 20_000),
        n_features=features,
        n_silos=silos or (20 if paper_size else 4),
        rank=rank,
        noise=noise,
        normalize=not no_normalize,
        seed=seed,
    )
    _write(model, **writing)


@simulate.command()
@_shared
@click.option("--nodes", type=click.IntRange(1), help="Nodes of each network.")
@click.option("--communities", type=click.IntRange(1), default=2, show_default=True, help="Communities.")
def sbm(
    *,
    nodes: int | None,
    communities: int,
    silos: int | None,
    seed: int,
    paper_size: bool,
    no_normalize: bool,
    **writing: Any,
) -> None:
    """Networks on the same nodes, one a silo, with communities in common: the paper's Model II.

    200 nodes in 4 silos unless told otherwise; 1000 in 20 with --paper-size.
    """
    model = stochastic_block(
        n_nodes=nodes or (1000 if paper_size else 200),
        n_silos=silos or (20 if paper_size else 4),
        n_communities=communities,
        normalize=not no_normalize,
        seed=seed,
    )
    _write(model, **writing)


def _write(model: Model, *, output: Path, kind: Format, force: bool, as_json: bool) -> None:
    require_room(output, force=force)
    with bar_of("rows", model.n_rows) as advance:
        files = write_model(model, output, kind=kind, force=force, on_rows=advance)
    size = sum(path.stat().st_size for path in files)
    if as_json:
        written = {"folder": str(output), "bytes": size, "files": [str(path) for path in files]}
        click.echo(json.dumps(model.facts | written, indent=2))
        return
    click.echo(
        f"wrote {model.n_silos} silos of {model.n_features} columns, {model.n_rows:,} rows, "
        f"{size / 1e6:,.1f} MB, to {output}"
    )
    bound = "--epsilon 1 --row-norm 1" if model.normalize else "--epsilon inf"
    click.echo(f"next: fedpower fit {output}/silo-*.{kind} -k {model.rank} {bound} -o RESULT")
