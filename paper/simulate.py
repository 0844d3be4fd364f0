"""`python -m paper.simulate`: silos of made-up rows, and the truth that they hide."""

import sys
from pathlib import Path
from typing import Any

import click

from fedpower.cli.console import bar_of, exit_status, print_json
from fedpower.cli.options import option, options
from paper.models import FORMATS, Format, Model, spiked_covariance, stochastic_block, write_model


@click.group()
def simulate() -> None:
    """Write silos of simulated rows, and the truth they hide."""


_MODEL = options(
    option(
        "-o --output FOLDER", "Folder to write: silo-01, silo-02, …, truth.npz and model.json.", required=True
    ),
    option("--silos", "Number of silos.", click.IntRange(1)),
    option("--format", "File format of the silos.", click.Choice(FORMATS), name="kind", default="npy"),
    option("--seed", "Determines every row.", click.IntRange(0), default=0),
    option("--paper-size", "The paper's size where no option gives another."),
    option("--no-normalize", "Leave rows as drawn; the paper scales them to norm 1."),
    "force as_json quiet",
)
_WRITING = ("output", "kind", "force", "as_json")


@simulate.command()
@_MODEL
@options(
    option("--rows", "Rows of all silos together.", click.IntRange(1)),
    option("--features", "Columns.", click.IntRange(1), default=100),
    option("--rank", "Planted directions.", click.IntRange(1), default=4),
    option("--sigma", "Of the noise around them.", float, default=0.6),
)
def spiked(**given: Any) -> None:
    """Rows with RANK planted directions under noise: the paper's Model I.

    20,000 rows in 4 silos by default; 2,000,000 in 20 with --paper-size.
    """
    model = spiked_covariance(
        n_rows=given["rows"] or (2_000_000 if given["paper_size"] else 20_000),
        n_features=given["features"],
        n_silos=given["silos"] or (20 if given["paper_size"] else 4),
        rank=given["rank"],
        noise=given["sigma"],
        normalize=not given["no_normalize"],
        seed=given["seed"],
    )
    _write(model, **{name: given[name] for name in _WRITING})


@simulate.command()
@_MODEL
@options(
    option("--nodes", "Nodes of each network.", click.IntRange(1)),
    option("--communities", "Communities.", click.IntRange(1), default=2),
)
def sbm(**given: Any) -> None:
    """Networks on the same nodes, one per silo, with communities in common: the paper's Model II.

    200 nodes in 4 silos by default; 1000 in 20 with --paper-size.
    """
    model = stochastic_block(
        n_nodes=given["nodes"] or (1000 if given["paper_size"] else 200),
        n_silos=given["silos"] or (20 if given["paper_size"] else 4),
        n_communities=given["communities"],
        normalize=not given["no_normalize"],
        seed=given["seed"],
    )
    _write(model, **{name: given[name] for name in _WRITING})


def _write(model: Model, *, output: Path, kind: Format, force: bool, as_json: bool) -> None:
    with bar_of("rows", model.n_rows) as advance:
        files = write_model(model, output, kind=kind, force=force, on_rows=advance)
    size = sum(path.stat().st_size for path in files)
    if as_json:
        written = {"folder": str(output), "bytes": size, "files": [str(path) for path in files]}
        print_json(model.facts | written)
        return
    bound = "--epsilon 1 --row-norm 1" if model.normalize else "--epsilon inf"
    click.echo(
        f"wrote {model.n_silos} silos of {model.n_features} columns, {model.n_rows:,} rows, "
        f"{size / 1e6:,.1f} MB, to {output}"
    )
    click.echo(f"next: fedpower fit {output}/silo-*.{kind} -k {model.rank} {bound} -o RESULT")


def main(*words: str) -> int:
    """Return the exit status of the command; whatever stops it is one sentence on stderr."""
    return exit_status(
        lambda: simulate.main(list(words), "python -m paper.simulate", standalone_mode=False), traceback=False
    )


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
